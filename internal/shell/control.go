package shell

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"
)

// What is said on ctl.sock, one JSON value a line. A connection carries one
// request. "subscribe" is answered with a snapshot now and at each change, until
// nothing can change any more; all others with one reply.
const (
	opSubscribe = "subscribe"
	opStatus    = "status"
	opStdin     = "stdin" // text, keys and the end of the input, and resize
	opStop      = "stop"  // answered when the stop is over
)

// maxRequest bounds a request in bytes: the text of one input, and its frame.
const maxRequest = 2 * MaxInput

type request struct {
	Op     string        `json:"op"`
	Input  *Input        `json:"input,omitempty"`
	Signal string        `json:"signal,omitempty"`
	Grace  time.Duration `json:"grace,omitempty"`
	By     string        `json:"by,omitempty"`
}

type reply struct {
	Snapshot snapshot `json:"snapshot"`
	Waiting  bool     `json:"waiting,omitempty"` // the command waits for input
	Typed    Typed    `json:"typed,omitzero"`
	Error    string   `json:"error,omitempty"` // a sentence for a model
}

// maxSocketPath is what every system takes as the address of a socket.
const maxSocketPath = 100

// dialShim connects to the shim of a folder. The folder's path may be longer
// than a socket's address: then it is reached through a link with a short name
// in a folder that nobody else can enter.
func dialShim(ctx context.Context, dir string) (net.Conn, error) {
	path := filepath.Join(dir, ctlFile)
	if len(path) > maxSocketPath {
		tmp, err := os.MkdirTemp("", "longcall-")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(tmp)
		link := filepath.Join(tmp, "d")
		if err := os.Symlink(dir, link); err != nil {
			return nil, err
		}
		path = filepath.Join(link, ctlFile)
	}
	var d net.Dialer
	return d.DialContext(ctx, "unix", path)
}

// errNotListening says that the shim was not reached, so that nothing was done: it
// has gone, or has just been started.
var errNotListening = errors.New("the shim does not listen")

// ask sends one request to the shim and waits for the reply until ctx is done.
func ask(ctx context.Context, dir string, req request) (reply, error) {
	c, err := dialShim(ctx, dir)
	if err != nil {
		return reply{}, fmt.Errorf("%w: %w", errNotListening, err)
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	var r reply
	if err = json.NewEncoder(c).Encode(req); err == nil {
		err = json.NewDecoder(c).Decode(&r)
	}
	switch {
	case ctx.Err() != nil:
		return reply{}, ctx.Err()
	case err != nil:
		return reply{}, fmt.Errorf("talk to the shim: %w", err)
	case r.Error != "":
		return r, errors.New(r.Error)
	}
	return r, nil
}

// subscribe asks the shim for its snapshots. The caller closes the connection.
func subscribe(ctx context.Context, dir string) (net.Conn, error) {
	c, err := dialShim(ctx, dir)
	if err != nil {
		return nil, err
	}
	if err := json.NewEncoder(c).Encode(request{Op: opSubscribe}); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// snapshots reads a subscription: each snapshot goes to take, until the
// connection ends.
func snapshots(r io.Reader, take func(snapshot)) {
	d := json.NewDecoder(r)
	for {
		var s snapshot
		if d.Decode(&s) != nil {
			return
		}
		take(s)
	}
}

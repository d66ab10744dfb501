//go:build unix

package app

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/longcall/longcall/internal/call"
)

// word is one message between the two processes, a line of JSON.
type word struct {
	Say       string    `json:"say"` // socket, go, free, serving, cancel
	PID       int       `json:"pid,omitempty"`
	Epoch     uint64    `json:"epoch,omitempty"`
	Addr      string    `json:"addr,omitempty"`
	Principal string    `json:"principal,omitempty"`
	Call      call.ID   `json:"call,omitempty"`
	End       *call.End `json:"end,omitempty"`
}

const (
	askTime = 10 * time.Second // for each step before "go"
	maxWord = 64 << 10
)

// line is a connection between the two processes.
type line struct {
	*net.UnixConn
	in *bufio.Reader
	mu sync.Mutex // of writing
}

func newLine(c *net.UnixConn) *line { return &line{UnixConn: c, in: bufio.NewReaderSize(c, maxWord)} }

func (l *line) say(w word) error {
	b, err := json.Marshal(w)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.SetWriteDeadline(time.Now().Add(askTime))
	_, err = l.Write(append(b, '\n'))
	return err
}

// hear waits for a word until then; the zero time is no limit.
func (l *line) hear(until time.Time) (w word, err error) {
	_ = l.SetReadDeadline(until)
	b, err := l.in.ReadSlice('\n')
	if err != nil {
		return w, err
	}
	return w, json.Unmarshal(b, &w)
}

func (l *line) expect(say string, until time.Time) (word, error) {
	w, err := l.hear(until)
	if err == nil && w.Say != say {
		err = fmt.Errorf("it said %q, not %q", w.Say, say)
	}
	return w, err
}

// handOver serves POST /api/replace: the body names the unix socket of the
// process that is to take over.
func (a *App) handOver(w http.ResponseWriter, r *http.Request) {
	if !a.owner(w, r) {
		return
	}
	var body struct {
		Socket string `json:"socket"`
	}
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 16<<10))
	if err != nil || json.Unmarshal(b, &body) != nil || !filepath.IsAbs(body.Socket) {
		http.Error(w, `the body must be {"socket": "/path"}`, http.StatusBadRequest)
		return
	}
	if !a.ready.Load() || !a.asked.CompareAndSwap(false, true) {
		http.Error(w, "this longcall is stopping, or being replaced already", http.StatusConflict)
		return
	}
	c, err := (&net.Dialer{Timeout: askTime}).DialContext(r.Context(), "unix", body.Socket)
	if err != nil {
		a.asked.Store(false)
		http.Error(w, "cannot reach the socket: "+err.Error(), http.StatusBadRequest)
		return
	}
	l := newLine(c.(*net.UnixConn))
	select {
	case a.handing <- l:
		w.WriteHeader(http.StatusAccepted)
	case <-a.leaving:
		l.Close()
		http.Error(w, "this longcall is stopping", http.StatusConflict)
	}
}

// giveWay hands over to the process at the other end of the line. It is true if
// that serves now, or if there is no way back.
func (a *App) giveWay(l *line) (done bool) {
	defer func() {
		if !done {
			l.Close()
			a.asked.Store(false)
		}
	}()
	if err := a.sendSocket(l); err != nil {
		a.log.Error("not replaced: the socket could not be handed over", "error", err)
		return false
	}
	if _, err := l.expect("go", time.Now().Add(askTime)); err != nil {
		a.log.Warn("not replaced: the new process gave up", "error", err)
		return false
	}
	if err := a.gate.pause(); err != nil {
		a.log.Error("not replaced", "error", err)
		return false
	}
	a.ready.Store(false)
	a.front.successor.Store(passing(""))
	if !a.front.settled() {
		a.log.Warn("some requests are still coming in; they will be told to come again")
	}
	a.engine.Refuse()
	a.journal.Drain()
	err := l.say(word{Say: "free"})
	var w word
	if err == nil {
		w, err = l.expect("serving", time.Now().Add(handOverTime))
	}
	if err != nil {
		a.log.Error("the process that was to replace this one did not come up; this one stops now. Start longcall again", "error", err)
		a.gate.Close()
		return true
	}
	if w.Addr != "" {
		a.front.successor.Store(passing(w.Addr))
		a.gate.resume() // nobody else accepts here
	}
	a.log.Info("replaced: new requests go to the new process", "pid", w.PID)
	return true
}

func (a *App) sendSocket(l *line) error {
	f, err := a.gate.File()
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := json.Marshal(word{Say: "socket", PID: os.Getpid(), Epoch: a.journal.Epoch(), Addr: a.gate.Addr().String()})
	if err != nil {
		return err
	}
	_ = l.SetWriteDeadline(time.Now().Add(askTime))
	_, _, err = l.WriteMsgUnix(append(b, '\n'), syscall.UnixRights(int(f.Fd())), nil)
	return err
}

// hearSuccessor does what the successor asks for, until one of us is gone.
func (a *App) hearSuccessor(l *line) {
	for {
		w, err := l.hear(time.Time{})
		if err != nil {
			return
		}
		if w.Say == "cancel" && w.End != nil {
			// An error says that the call has ended, which is as good.
			_ = a.engine.Tell(w.Principal, w.Call, *w.End)
		}
	}
}

// Predecessor is the process that this one takes over from.
type Predecessor struct {
	PID   int
	epoch uint64
	ln    *net.TCPListener
	l     *line
	once  sync.Once
}

// TakeOver asks the process that serves at url to hand over. Nothing has changed
// yet when it returns; Abandon or New must follow.
func TakeOver(ctx context.Context, url, token string) (_ *Predecessor, err error) {
	dir, err := os.MkdirTemp("", "longcall-*") // 0700
	if err != nil {
		return nil, fmt.Errorf("make a folder for the socket: %w", err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "s")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("make a socket: %w", err)
	}
	defer ln.Close()
	if err := askToReplace(ctx, url, token, path); err != nil {
		return nil, err
	}
	_ = ln.SetDeadline(time.Now().Add(askTime))
	c, err := ln.AcceptUnix()
	if err != nil {
		return nil, fmt.Errorf("wait for the longcall that runs: %w", err)
	}
	p := &Predecessor{l: newLine(c)}
	if err := p.receive(); err != nil {
		p.Abandon()
		return nil, fmt.Errorf("take the socket of the longcall that runs: %w", err)
	}
	return p, nil
}

func askToReplace(ctx context.Context, url, token, socket string) error {
	body, err := json.Marshal(map[string]string{"socket": socket})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/api/replace", bytes.NewReader(body))
	if err != nil {
		return err
	}
	q.Header.Set("Authorization", "Bearer "+token)
	q.Header.Set("Content-Type", "application/json")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(q)
	if err != nil {
		return fmt.Errorf("reach the longcall that runs: %w", err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	switch {
	case err != nil:
		return fmt.Errorf("reach the longcall that runs: %w", err)
	case resp.StatusCode == http.StatusNotFound:
		return errors.New("the longcall that runs is too old to be replaced: stop it, then start this one")
	case resp.StatusCode != http.StatusAccepted:
		return fmt.Errorf("the longcall that runs does not give way: %s", strings.TrimSpace(string(b)))
	}
	return nil
}

// receive takes the first word, and the socket that comes with it.
func (p *Predecessor) receive() error {
	_ = p.l.SetReadDeadline(time.Now().Add(askTime))
	b, oob := make([]byte, maxWord), make([]byte, 128)
	n, oobn, _, _, err := p.l.ReadMsgUnix(b, oob)
	if err != nil {
		return err
	}
	var w word
	if err := json.Unmarshal(bytes.TrimSpace(b[:n]), &w); err != nil || w.Say != "socket" {
		return errors.New("it said something else")
	}
	p.PID, p.epoch = w.PID, w.Epoch
	messages, err := syscall.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(messages) != 1 {
		return errors.New("there was none")
	}
	fds, err := syscall.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return errors.New("there was none")
	}
	syscall.CloseOnExec(fds[0])
	f := os.NewFile(uintptr(fds[0]), "listener")
	defer f.Close()
	ln, err := net.FileListener(f)
	if err != nil {
		return err
	}
	tcp, ok := ln.(*net.TCPListener)
	if !ok {
		ln.Close()
		return errors.New("it is none of TCP")
	}
	p.ln = tcp
	return nil
}

// Abandon leaves the predecessor as it is.
func (p *Predecessor) Abandon() {
	p.once.Do(func() {
		p.l.Close()
		if p.ln != nil {
			p.ln.Close()
		}
	})
}

// release has the predecessor free the state folder.
func (p *Predecessor) release() error {
	if err := p.l.say(word{Say: "go"}); err != nil {
		return fmt.Errorf("take over from process %d: %w", p.PID, err)
	}
	if _, err := p.l.expect("free", time.Now().Add(handOverTime)); err != nil {
		return fmt.Errorf("take over from process %d: it did not free the state folder: %w", p.PID, err)
	}
	return nil
}

// serving tells the predecessor that we accept connections; addr is ours if it
// is another one than its own.
func (p *Predecessor) serving(addr string) error {
	return p.l.say(word{Say: "serving", PID: os.Getpid(), Addr: addr})
}

func (p *Predecessor) cancel(principal string, id call.ID, end call.End) error {
	if err := p.l.say(word{Say: "cancel", Principal: principal, Call: id, End: &end}); err != nil {
		return call.ErrUnknown // it is gone, and we take its calls up in a moment
	}
	return nil
}

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/longcall/longcall/internal/app"
)

const (
	// startLimit bounds how long a background serve may take until it is ready,
	// with those that it loses the race against.
	startLimit = 60 * time.Second
	startPoll  = 20 * time.Millisecond
	// winnerTime is how long whoever started a serve that did not come up looks
	// for another one that did.
	winnerTime  = time.Second
	startTries  = 20 // serves that found the state folder taken
	maxServeLog = 4 << 20
	idleExit    = 10 * time.Minute
)

// background finds the serve of a state folder, and starts one that stays when
// this process has ended if there is none.
type background struct {
	state  string
	config string        // absolute path; empty if there is none
	asked  bool          // the user named config: a serve with another one will not do
	listen string        // 127.0.0.1:0 if empty
	idle   time.Duration // idleExit if 0
	flags  []string      // further ones of longcall serve
}

// logPath is where a background serve writes its log.
func logPath(state string) string { return filepath.Join(state, "serve.log") }

// find returns a serve that takes calls, with the config that was asked for.
func (b *background) find(ctx context.Context) (app.Serving, error) {
	s, err := b.findAny(ctx)
	if err == nil && b.asked && !sameFile(b.config, s.Config) {
		return s, otherConfig(b.state, b.config, &s)
	}
	return s, err
}

// findAny returns a serve that takes calls. Several may look at once, in several
// processes: the journal's lock decides which serve stays, and the others use it.
func (b *background) findAny(ctx context.Context) (app.Serving, error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for range startTries {
		if s, there := ready(ctx, b.state); there {
			return s, nil
		}
		ended, from, err := b.start(ctx)
		if err != nil {
			return app.Serving{}, err
		}
		s, there, how := b.await(ctx, ended)
		if there {
			return s, nil
		}
		said := b.said(from)
		switch {
		case ctx.Err() != nil:
			return s, exit(exitUnreachable, "longcall serve was started in the background, but is not ready after %s. Its log is %s", startLimit, logPath(b.state))
		case !strings.Contains(said, heldWords):
			return s, exit(exitUnreachable, "longcall serve cannot be started in the background: %s. Its log is %s", lastLine(said, how), logPath(b.state))
		}
		// Whoever holds the folder starts, or stops: the next look tells.
	}
	return app.Serving{}, exit(exitUnreachable, "the state folder %s is held by a longcall that takes no calls. Its log may be %s", b.state, logPath(b.state))
}

// await waits until there is a serve, ours or another one, or until ours has
// ended and another one has had its time; then how says how ours ended.
func (b *background) await(ctx context.Context, ended <-chan error) (s app.Serving, there bool, how error) {
	tick := time.NewTicker(startPoll)
	defer tick.Stop()
	var over <-chan time.Time
	for {
		select {
		case <-tick.C:
		case how = <-ended:
			t := time.NewTimer(winnerTime)
			defer t.Stop()
			ended, over = nil, t.C
		case <-over:
			return s, false, how
		case <-ctx.Done():
			return s, false, how
		}
		if s, there := ready(ctx, b.state); there {
			return s, true, nil
		}
	}
}

// heldWords are in what a serve says that finds the state folder taken.
const heldWords = "is held by another longcall"

// maxSaid bounds what is read of the log, in bytes.
const maxSaid = 64 << 10

// said is what the log has from that size on; empty if it cannot be read.
func (b *background) said(from int64) string {
	f, err := os.Open(logPath(b.state))
	if err != nil {
		return ""
	}
	defer f.Close()
	text, err := io.ReadAll(io.NewSectionReader(f, from, maxSaid))
	if err != nil {
		return ""
	}
	return string(text)
}

// lastLine is the last line of what a serve said, or how it ended if it said
// nothing.
func lastLine(said string, how error) string {
	said = strings.TrimSpace(said)
	switch {
	case said != "":
		return strings.TrimPrefix(clean(said[strings.LastIndexByte(said, '\n')+1:]), "longcall: ")
	case how != nil:
		return "it said nothing and ended with " + how.Error()
	}
	return "it ended and said nothing"
}

// start starts a serve that outlives us. ended gets how it ended, if it does
// while we look; from is the size of its log before.
func (b *background) start(ctx context.Context) (ended <-chan error, from int64, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, 0, fmt.Errorf("find this program: %w", err)
	}
	log, err := openServeLog(b.state)
	if err != nil {
		return nil, 0, err
	}
	defer log.Close()
	if info, err := log.Stat(); err == nil {
		from = info.Size()
	}
	listen, idle := "127.0.0.1:0", idleExit
	if b.listen != "" {
		listen = b.listen
	}
	if b.idle > 0 {
		idle = b.idle
	}
	args := []string{"serve", "--detached", "--state", b.state, "--listen", listen, "--idle-exit", idle.String()}
	if b.config != "" {
		args = append(args, "--config", b.config)
	}
	args = append(args, b.flags...)
	// Not bound to ctx: it stays.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), self, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = detached()
	if err := cmd.Start(); err != nil {
		return nil, 0, fmt.Errorf("start longcall serve in the background: %w", err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }() // with our own end, the system waits instead
	return done, from, nil
}

// openServeLog opens the log of background serves; one that has grown large is
// put aside first, in place of the one before.
func openServeLog(state string) (*os.File, error) {
	if err := os.MkdirAll(state, 0o700); err != nil {
		return nil, fmt.Errorf("cannot make the state folder: %w. Name another with --state", err)
	}
	path := logPath(state)
	if info, err := os.Stat(path); err == nil && info.Size() > maxServeLog {
		// If somebody else has just done it, all is well, too.
		_ = os.Rename(path, path+".1")
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot write the log of the serve: %w. Make the state folder writable, or name another with --state", err)
	}
	return f, nil
}

// ready gives the serve of a state folder if it is there and takes calls. What a
// crash left behind names an address where nobody answers, or somebody else.
func ready(ctx context.Context, state string) (app.Serving, bool) {
	s, err := app.ReadServing(state)
	if err != nil {
		return s, false
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/readyz", nil)
	if err != nil {
		return s, false
	}
	resp, err := direct.Do(q)
	if err != nil {
		return s, false
	}
	resp.Body.Close()
	return s, resp.StatusCode == http.StatusOK && resp.Header.Get(app.HeaderPID) == strconv.Itoa(s.PID)
}

// direct asks a serve of this machine, without any proxy and on a connection of
// its own.
var direct = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// sameFile says whether two paths name one file.
func sameFile(a, b string) bool {
	if a == b {
		return true
	}
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}

// configPath is the config that a background serve gets, absolute; asked says
// that the user named it.
func (f *stateFlags) configPath(sys *System) (path string, asked bool, err error) {
	path = f.file(sys)
	if path == "" {
		return "", false, nil
	}
	path, err = filepath.Abs(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", false, usage("--config: the folder that this command runs in is gone")
	}
	return path, f.Config != "", err
}

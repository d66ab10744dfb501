//go:build linux || darwin

package shell

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/longcall/longcall/internal/shell/spool"
)

const (
	readSize  = 128 << 10 // bytes of output read at once
	quietTime = 20 * time.Millisecond
)

// startCommand starts the command with its streams. An error is a sentence for
// a model.
func (s *shim) startCommand() (pid int, err error) {
	c := &s.spec.Command
	if info, err := os.Stat(c.Dir); err != nil || !info.IsDir() {
		return 0, fmt.Errorf("the folder %q does not exist, or is no folder", c.Dir)
	}
	path, err := c.program()
	if err != nil {
		return 0, fmt.Errorf("the program %q cannot be run: %w", c.Argv[0], err)
	}
	// A session of its own: no terminal but the one that we give it, and all
	// that it starts can be told by it.
	attr := &os.ProcAttr{Dir: c.Dir, Env: c.environment(), Sys: &syscall.SysProcAttr{Setsid: true}}
	var out, in *os.File
	if c.TTY {
		attr.Sys.Setctty = true
		out, attr.Files, err = terminal(c.Cols, c.Rows)
		in = out
	} else {
		out, in, attr.Files, err = pipes(c.Stdin)
	}
	if err != nil {
		return 0, fmt.Errorf("the streams of the command cannot be made: %w", err)
	}
	p, err := os.StartProcess(path, c.Argv, attr)
	for _, f := range unique(attr.Files) {
		f.Close()
	}
	if err != nil {
		return 0, fmt.Errorf("the program %q cannot be run: %w", c.Argv[0], errors.Unwrap(err))
	}
	s.output = &outputReader{file: out, spool: s.spool, drained: make(chan struct{}), done: make(chan struct{})}
	s.input = newInputWriter(s.dir, in, c.TTY)
	pid = p.Pid
	return pid, p.Release() // the reaper waits, nobody else
}

func unique(files []*os.File) []*os.File {
	var out []*os.File
	seen := map[*os.File]bool{}
	for _, f := range files {
		if !seen[f] {
			seen[f] = true
			out = append(out, f)
		}
	}
	return out
}

// terminal makes a pseudo-terminal; its far end is all three streams.
func terminal(cols, rows int) (near *os.File, far []*os.File, err error) {
	master, slave, err := pty.Open()
	if err != nil {
		return nil, nil, err
	}
	size := &unix.Winsize{Col: uint16(cmp.Or(cols, 80)), Row: uint16(cmp.Or(rows, 24))}
	err = unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, size)
	if err == nil {
		near, err = pollable(master)
	}
	if err != nil {
		master.Close()
		slave.Close()
		return nil, nil, err
	}
	return near, []*os.File{slave, slave, slave}, nil
}

// pipes makes the streams of a command without a terminal. Output and errors
// share a pipe: only so are they in the order in which they were written.
func pipes(stdin bool) (out, in *os.File, theirs []*os.File, err error) {
	out, theirOut, err := os.Pipe()
	if err != nil {
		return nil, nil, nil, err
	}
	var theirIn *os.File
	if stdin {
		theirIn, in, err = os.Pipe()
	} else {
		theirIn, err = os.Open(os.DevNull)
	}
	if err != nil {
		out.Close()
		theirOut.Close()
		return nil, nil, nil, err
	}
	widen(out)
	return out, in, []*os.File{theirIn, theirOut, theirOut}, nil
}

// outputReader moves output from the command to the spool. It never stops
// reading while there is somebody to write, also when nothing can be stored, so
// that no command stands still because of us.
type outputReader struct {
	file    *os.File
	spool   *spool.Writer
	drained chan struct{} // closed when all was read that was there when drain was called
	done    chan struct{} // closed when nobody can write any more
	reads   atomic.Int64
}

// run reads to the end. printed is told of each lot.
func (r *outputReader) run(printed func(total int64, err error)) {
	defer close(r.done)
	buf := make([]byte, readSize)
	take := func(n int) {
		r.reads.Add(1)
		_, err := r.spool.Write(spool.Stdout, buf[:n])
		printed(r.spool.Total(), err)
	}
	for {
		n, err := r.file.Read(buf)
		if n > 0 {
			take(n)
		}
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded):
			// The leader has ended: what it wrote is here already. Others may
			// go on writing, and are not waited for.
			_ = r.file.SetReadDeadline(time.Time{})
			for most := r.pending(); ; {
				n, end := r.readNow(buf)
				if end {
					return
				}
				if n > 0 {
					take(n)
				}
				if most -= n; n == 0 || most < 0 {
					break
				}
			}
			close(r.drained)
		default: // the end; of a terminal it is EIO
			return
		}
	}
}

// pending is how many bytes can be read without waiting, at least.
func (r *outputReader) pending() (n int) {
	raw, err := r.file.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), ioctlPending) })
	}
	if err != nil || n == 0 {
		return readSize // a terminal may hold back what it has
	}
	return n
}

// readNow reads without waiting; n is 0 if there is nothing yet.
func (r *outputReader) readNow(b []byte) (n int, end bool) {
	raw, err := r.file.SyscallConn()
	if err != nil {
		return 0, true
	}
	rerr := raw.Read(func(fd uintptr) bool {
		n, err = unix.Read(int(fd), b)
		return true
	})
	switch {
	case rerr != nil:
		return 0, true
	case err == unix.EAGAIN || err == unix.EINTR:
		return 0, false
	}
	return max(n, 0), n <= 0
}

// drain waits until what the leader wrote is stored, at most d.
func (r *outputReader) drain(d time.Duration) {
	end := time.After(d)
	if r.file.SetReadDeadline(time.Unix(1, 0)) == nil {
		select {
		case <-r.drained:
		case <-r.done:
		case <-end:
		}
		return
	}
	// A terminal that cannot be interrupted: wait until nothing comes.
	for {
		before := r.reads.Load()
		select {
		case <-r.done:
			return
		case <-end:
			return
		case <-time.After(quietTime):
			if r.reads.Load() == before {
				return
			}
		}
	}
}

func (r *outputReader) ended() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

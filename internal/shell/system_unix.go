//go:build linux || darwin

package shell

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Supported says whether commands can be run on this system.
const Supported = true

// selfPath is the file that this process runs, also when it was replaced.
const selfPath = "/proc/self/exe"

// Self is how this very binary starts a shim.
func Self() ([]string, error) {
	if _, err := os.Stat(selfPath); err == nil {
		return []string{selfPath, ShimCommand}, nil
	}
	path, err := os.Executable()
	return []string{path, ShimCommand}, err
}

// startDetached starts a program in a session of its own, so that no signal to
// our group or terminal reaches it, with an empty environment, so that nothing
// of ours can be read from it. The caller reaps it.
func startDetached(argv []string, dir string, files []*os.File) (pid int, err error) {
	path := argv[0]
	if path == selfPath {
		argv[0] = "longcall" // for who looks at the process table
	}
	// A shim waits nearly all of its life: one processor makes it smaller.
	p, err := os.StartProcess(path, argv, &os.ProcAttr{
		Dir: dir, Env: []string{"GOMAXPROCS=1"}, Files: files, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return 0, err
	}
	pid = p.Pid
	return pid, p.Release()
}

// tryLock takes the lock of an open file for as long as the file, and each copy
// of it in a child, is open. It says whether it got it.
func tryLock(f *os.File) (bool, error) {
	for {
		switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err {
		case nil:
			return true, nil
		case unix.EINTR:
		case unix.EWOULDBLOCK:
			return false, nil
		default:
			return false, err
		}
	}
}

// reapShim gives back the process id of a shim that has ended, if it is our
// child: the next manager of a process may find shims of the one before.
func reapShim(id Identity) {
	e, err := readEntry(id.PID)
	if err == nil && e.parent == os.Getpid() && e.identity() == id {
		for {
			if _, err := unix.Wait4(id.PID, nil, 0, nil); err != unix.EINTR {
				return
			}
		}
	}
}

// alive says whether the process is there and has not ended.
func alive(id Identity) bool {
	if id.PID <= 0 || id.Boot != bootID() {
		return false
	}
	e, err := readEntry(id.PID)
	return err == nil && e.start == id.Start && !e.zombie
}

// pollGone waits until the process has ended, by looking: where nothing tells.
func pollGone(ctx context.Context, id Identity) error {
	t := time.NewTicker(200 * time.Millisecond)
	defer t.Stop()
	for alive(id) {
		select {
		case <-t.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// signalByName knows "TERM" and "SIGTERM", in any case.
func signalByName(name string) (syscall.Signal, error) {
	n := strings.ToUpper(strings.TrimSpace(name))
	if !strings.HasPrefix(n, "SIG") {
		n = "SIG" + n
	}
	if sig := unix.SignalNum(n); sig != 0 {
		return sig, nil
	}
	return 0, errors.New("there is no signal " + quote(name) + "; the usual ones are TERM, INT, HUP, QUIT and KILL")
}

func signalName(sig syscall.Signal) string { return unix.SignalName(sig) }

const contSignal = unix.SIGCONT

// socketPair makes a connection to a child.
func socketPair() (ours net.Conn, theirs *os.File, err error) {
	syscall.ForkLock.RLock()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		unix.CloseOnExec(fds[0])
		unix.CloseOnExec(fds[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, err
	}
	f := os.NewFile(uintptr(fds[0]), "shim")
	defer f.Close() // the connection has a copy
	theirs = os.NewFile(uintptr(fds[1]), "shim")
	if ours, err = net.FileConn(f); err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return ours, theirs, nil
}

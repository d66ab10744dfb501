package shell

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// waiting says whether a process of the tree is blocked reading what we write
// to: the terminal, or the other end of the pipe. The kernel says in which call
// each thread is, to those who may trace it: to us, its ancestor. Who watches
// the input along with other things, as servers do, does not count as waiting.
func (s *shim) waiting() bool {
	list, err := s.tree()
	if err != nil {
		return false
	}
	is, ok := s.input.isInput()
	if !ok {
		return false
	}
	for i := range list {
		tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", list[i].pid))
		for _, t := range tasks {
			if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/syscall", list[i].pid, t.Name())); err == nil && blockedOn(list[i].pid, string(b), is) {
				return true
			}
		}
	}
	return false
}

// isInput makes the test whether a file of another process is the far end of
// the input: the same pipe, or the terminal.
func (w *inputWriter) isInput() (is func(pid int, fd uint64) bool, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file == nil || w.eof || w.broken != nil {
		return nil, false
	}
	raw, err := w.file.SyscallConn()
	if err != nil {
		return nil, false
	}
	var own unix.Stat_t
	far := -1
	if raw.Control(func(fd uintptr) {
		if err = unix.Fstat(int(fd), &own); err == nil && w.tty {
			far, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
	}) != nil || err != nil {
		return nil, false
	}
	return func(pid int, fd uint64) bool {
		path := fmt.Sprintf("/proc/%d/fd/%d", pid, fd)
		if w.tty {
			name, _ := os.Readlink(path)
			return name == fmt.Sprintf("/dev/pts/%d", far) || name == "/dev/tty"
		}
		var st unix.Stat_t
		return unix.Stat(path, &st) == nil && st.Dev == own.Dev && st.Ino == own.Ino
	}, true
}

// blockedOn reads a line of /proc/…/syscall: the number of the call that a
// thread is blocked in, and its arguments; "running" otherwise.
func blockedOn(pid int, line string, is func(pid int, fd uint64) bool) bool {
	f := strings.Fields(line)
	if len(f) < 7 {
		return false
	}
	nr, err := strconv.ParseInt(f[0], 10, 64)
	if err != nil {
		return false
	}
	arg := func(i int) uint64 {
		n, _ := strconv.ParseUint(strings.TrimPrefix(f[i], "0x"), 16, 64)
		return n
	}
	switch {
	case nr == unix.SYS_READ || nr == unix.SYS_READV:
		return is(pid, arg(1))
	case nr == unix.SYS_PSELECT6 || nr == sysSelect:
		fd, only := onlySelected(pid, arg(1), arg(2), arg(3))
		return only && is(pid, fd)
	case nr == unix.SYS_PPOLL || nr == sysPoll:
		fd, only := onlyPolled(pid, arg(1), arg(2))
		return only && is(pid, fd)
	}
	return false
}

// onlySelected says which descriptor a select waits to read from, if it is
// only one, and none to write to.
func onlySelected(pid int, n, readable, writable uint64) (fd uint64, only bool) {
	if n == 0 || n > 1024 || readable == 0 {
		return 0, false
	}
	set := make([]byte, (n+7)/8)
	if writable != 0 {
		if !peek(pid, writable, set) {
			return 0, false
		}
		for _, b := range set {
			if b != 0 {
				return 0, false
			}
		}
	}
	if !peek(pid, readable, set) {
		return 0, false
	}
	count := 0
	for i := range n {
		if set[i/8]&(1<<(i%8)) != 0 {
			fd = i
			count++
		}
	}
	return fd, count == 1
}

// onlyPolled says which descriptor a poll waits to read from, if it is only one.
func onlyPolled(pid int, at, n uint64) (fd uint64, only bool) {
	var b [8]byte // int fd; short events; short revents
	if n != 1 || !peek(pid, at, b[:]) || b[4]&unix.POLLIN == 0 {
		return 0, false
	}
	return uint64(b[0]) | uint64(b[1])<<8 | uint64(b[2])<<16 | uint64(b[3])<<24, true
}

// peek reads memory of another process.
func peek(pid int, at uint64, b []byte) bool {
	local := []unix.Iovec{{Base: &b[0]}}
	local[0].SetLen(len(b))
	n, err := unix.ProcessVMReadv(pid, local, []unix.RemoteIovec{{Base: uintptr(at), Len: len(b)}}, 0)
	return err == nil && n == len(b)
}

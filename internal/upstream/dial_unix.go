//go:build unix

package upstream

import (
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Read is net.Conn's, but marks the moment at which the socket is empty. The
// mark is taken back before the next byte is read, so that idle and an empty
// socket together prove that nothing is under way.
func (c *quietConn) Read(p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	werr := c.raw.Read(func(fd uintptr) bool {
		if c.idle.Load()%2 == 1 {
			c.idle.Add(1)
		}
		for {
			n, err = unix.Read(int(fd), p)
			if err != unix.EINTR {
				break
			}
		}
		if err == unix.EAGAIN {
			c.idle.Add(1)
			return false
		}
		return true
	})
	switch {
	case werr != nil:
		if c.idle.Load()%2 == 1 {
			c.idle.Add(1)
		}
		return 0, werr
	case err != nil:
		return 0, &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", err)}
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

func (c *quietConn) quiet() bool {
	mark := c.idle.Load()
	if mark%2 == 0 {
		return false
	}
	waiting := 0
	if err := c.raw.Control(func(fd uintptr) { waiting, _ = unix.IoctlGetInt(int(fd), ioctlPending) }); err != nil {
		return true // closed: nothing comes any more
	}
	return waiting == 0 && c.idle.Load() == mark
}

package exit

import "golang.org/x/sys/unix"

// Await waits until the child has ended, also if it had before. It is an error if
// there is no such child.
func Await(pid int) error {
	for {
		switch err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err {
		case unix.EINTR:
		default:
			return err
		}
	}
}

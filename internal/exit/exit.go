// Package exit waits for the end of a child process, and leaves it to be reaped.
//
// Until it is reaped nobody else can get its id, so that its group can still be
// signalled.
package exit

import "errors"

// ErrGone means that the system cannot tell a child that has ended, and waits to be
// reaped, from one that there is not.
var ErrGone = errors.New("no such process, or it has ended already")

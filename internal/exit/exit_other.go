//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package exit

import "errors"

// Await cannot be done here.
func Await(int) error { return errors.ErrUnsupported }

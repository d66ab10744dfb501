//go:build !linux && !darwin

package shell

import (
	"context"
	"net"
	"os"
	"syscall"
)

// Supported says whether commands can be run on this system.
const Supported = false

// Caveat is what this system cannot do for commands.
const Caveat = "longcall cannot run commands on this system."

// Self fails here.
func Self() ([]string, error) { return nil, ErrUnsupported }

// Shim is the main of the hidden subcommand, which is nothing here.
func Shim([]string) int { return 2 }

func bootID() string { return "" }

func readTable() ([]entry, error) { return nil, ErrUnsupported }

func startDetached([]string, string, []*os.File) (int, error) { return 0, ErrUnsupported }

func tryLock(*os.File) (bool, error) { return false, ErrUnsupported }

func reapShim(Identity) {}

func alive(Identity) bool { return false }

func signalByName(string) (syscall.Signal, error) { return 0, ErrUnsupported }

func signalExact(Identity, syscall.Signal) error { return ErrUnsupported }

func awaitGone(context.Context, Identity) error { return ErrUnsupported }

const contSignal = syscall.Signal(0)

func socketPair() (net.Conn, *os.File, error) { return nil, nil, ErrUnsupported }

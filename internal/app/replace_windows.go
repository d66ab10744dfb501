package app

import (
	"context"
	"errors"
	"net"
	"net/http"

	"github.com/longcall/longcall/internal/call"
)

// line is a connection between two processes; there is none here.
type line struct{}

// Close does nothing.
func (*line) Close() error { return nil }

func (a *App) hearSuccessor(*line) {}

// handOver serves POST /api/replace.
func (a *App) handOver(w http.ResponseWriter, _ *http.Request) {
	http.Error(w, "a socket cannot be handed over on Windows", http.StatusNotImplemented)
}

func (a *App) giveWay(*line) bool { return false }

// Predecessor is the process that this one takes over from.
type Predecessor struct {
	PID   int
	epoch uint64
	ln    *net.TCPListener
}

// TakeOver asks the process that serves at url to hand over.
func TakeOver(context.Context, string, string) (*Predecessor, error) {
	return nil, errors.New("a running longcall cannot be replaced on Windows: stop it, then start this one")
}

// Abandon leaves the predecessor as it is.
func (p *Predecessor) Abandon() {}

func (p *Predecessor) release() error { return nil }

func (p *Predecessor) serving(string) error { return nil }

func (p *Predecessor) cancel(string, call.ID, call.End) error { return call.ErrUnknown }

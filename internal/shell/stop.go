package shell

import (
	"syscall"
	"time"
)

const (
	stopLook = 20 * time.Millisecond // between looks at the process table, where nothing else tells
	killWait = 2 * time.Second       // from the first KILL on, after which what is left has survived
)

// stopper is what a stop needs of the one who does it.
type stopper struct {
	list   func() ([]entry, error)
	signal func([]entry, syscall.Signal)
	gone   <-chan struct{} // closed when nothing is left, or nobody waits any more
	blind  bool            // gone does not tell when nothing is left: look
}

// stopAll signals all, waits for the grace, kills what is left and what comes
// new until nothing does, and returns what survived: processes that the kernel
// does not let go of, or that are not ours to kill (SHELL §3).
//
// What appears after the first signal is the work of those who clean up, and is
// left alone until the grace is over.
func stopAll(sig syscall.Signal, grace time.Duration, s stopper) ([]entry, error) {
	now := func() ([]entry, error) {
		select {
		case <-s.gone:
			return nil, nil
		default:
			return s.list()
		}
	}
	list, err := now()
	if err != nil || len(list) == 0 {
		return nil, err
	}
	if sig != syscall.SIGKILL {
		s.signal(list, sig)
		if sig == syscall.SIGTERM || sig == syscall.SIGHUP {
			s.signal(list, contSignal) // a stopped process would not notice
		}
		if list, err = s.await(grace, now); err != nil || len(list) == 0 {
			return nil, err
		}
	}
	for end := time.Now().Add(killWait); ; {
		s.signal(list, syscall.SIGKILL)
		if list, err = s.await(stopLook, now); err != nil || len(list) == 0 || time.Now().After(end) {
			return list, err
		}
	}
}

// await waits until nothing is left, at most d, and returns what is.
func (s *stopper) await(d time.Duration, now func() ([]entry, error)) ([]entry, error) {
	end := time.Now().Add(d)
	for {
		step := time.Until(end)
		if s.blind {
			step = min(step, stopLook)
		}
		t := time.NewTimer(max(step, 0))
		select {
		case <-t.C:
		case <-s.gone:
			t.Stop()
			return nil, nil
		}
		if list, err := now(); err != nil || len(list) == 0 || !time.Now().Before(end) {
			return list, err
		}
	}
}

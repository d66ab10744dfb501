//go:build unix

package peers

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"
)

// Run is what a client saw of its call.
type Run struct {
	Events         []Event
	Code           int // 0 result, 3 tool error, 4 other error
	Stdout, Stderr string
}

func parse(t testing.TB, line string) Event {
	t.Helper()
	var e Event
	var kind struct{ Ev string }
	err := json.Unmarshal([]byte(line), &kind)
	if kind.Ev == "did" {
		e.Ev = kind.Ev
		err = errors.Join(err, json.Unmarshal([]byte(line), &e.Did))
	} else {
		err = errors.Join(err, json.Unmarshal([]byte(line), &e))
	}
	if err != nil {
		t.Fatalf("a client printed %q: %v", line, err)
	}
	return e
}

// First is the first event of a kind; its Ev is empty if there is none.
func (r Run) First(kind string) Event {
	for _, e := range r.Events {
		if e.Ev == kind {
			return e
		}
	}
	return Event{}
}

// Progress lists the progress events in the order in which they were seen.
func (r Run) Progress() (out []Event) {
	for _, e := range r.Events {
		if e.Ev == "progress" {
			out = append(out, e)
		}
	}
	return out
}

// Check says what is wrong with a call of a slow tool that must have reported
// steps and given a text. If mayLoseLast, the last step may be missing, or come
// after the result.
func (r Run) Check(want string, steps int, mayLoseLast bool) error {
	result := r.First("result")
	switch {
	case r.Code != 0 || result.IsError:
		return fmt.Errorf("exit code %d, %s", r.Code, r.First("error").Msg)
	case result.Text != want:
		return fmt.Errorf("the result is %q, not %q", result.Text, want)
	}
	seen := 0
	for _, p := range r.Events {
		switch {
		case p.Ev == "progress":
			seen++
			if p.Progress != float64(seen) || p.Total != float64(steps) {
				return fmt.Errorf("progress event %d says %v of %v", seen, p.Progress, p.Total)
			}
		case p.Ev == "result" && seen != steps && (!mayLoseLast || seen != steps-1):
			return fmt.Errorf("%d of %d progress events came before the result", seen, steps)
		}
	}
	if seen > steps {
		return fmt.Errorf("%d progress events came, %d were sent", seen, steps)
	}
	return nil
}

// Live says what is wrong if the events of the call did not come while it ran:
// the first must be there well before the result.
func (r Run) Live(before time.Duration) error {
	result, first := r.First("result"), r.First("progress")
	if first.Ev == "" || result.T-first.T < before.Seconds() {
		return fmt.Errorf("the first progress came at %.2f s, and the result at %.2f s", first.T, result.T)
	}
	return nil
}

package upstream

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

func TestPollInterval(t *testing.T) {
	for raw, want := range map[string]time.Duration{
		"":       0,
		"null":   0,
		`"1000"`: 0,
		"-1":     0,
		"-1e999": 0,
		"{}":     0,
		"0":      pollMin,
		"0.5":    pollMin,
		"99":     pollMin,
		"100":    pollMin,
		"1500.5": 1500500 * time.Microsecond,
		"59999":  59999 * time.Millisecond,
		"60000":  pollMax,
		"1e300":  pollMax,
		"1e999":  pollMax,
	} {
		if got := pollInterval([]byte(raw)); got != want {
			t.Errorf("%s gives %v, not %v", raw, got, want)
		}
	}
}

func TestPollEvery(t *testing.T) {
	for _, c := range []struct{ said, age, idle, want time.Duration }{
		{0, 0, 0, pollMin},
		{0, time.Second, 0, 500 * time.Millisecond},
		{0, 2 * time.Second, 0, time.Second},
		{0, 10 * time.Second, 0, 2 * time.Second},
		{0, time.Minute, 0, 5 * time.Second},
		{0, time.Hour, 0, 15 * time.Second},
		{time.Minute, 0, 0, time.Minute},
		{pollMin, time.Hour, 0, pollMin},
		{time.Minute, 0, 30 * time.Second, 10 * time.Second}, // it has to show that it lives
		{0, time.Hour, time.Millisecond, pollMin},
	} {
		if got := pollEvery(c.said, c.age, c.idle); got != c.want {
			t.Errorf("%+v gives %v", c, got)
		}
	}
}

func TestReadTask(t *testing.T) {
	for raw, want := range map[string]taskState{
		`{"taskId":"a","status":"working"}`:                                          {id: "a", status: "working"},
		`{"taskId":"a","status":"working","pollInterval":500,"pollIntervalMs":2000}`: {id: "a", status: "working", every: 2 * time.Second},
		`{"pollIntervalMs":2000,"pollInterval":500,"status":"working"}`:              {status: "working", every: 2 * time.Second},
		`{"task":{"taskId":"a","status":"failed","statusMessage":"\ud83d"}}`:         {id: "a", status: "failed", message: "\ufffd"},
		`{"status":"new","task":{"status":"old"},"statusMessage":null}`:              {status: "new"},
	} {
		if got, err := readTask([]byte(raw)); err != nil || got.id != want.id || got.status != want.status || got.message != want.message || got.every != want.every {
			t.Errorf("%s gives %+v, %v", raw, got, err)
		}
	}
	for _, raw := range []string{``, `{}`, `null`, `[]`, `{"status":1}`, `{"task":{"task":{"status":"working"}}}`, `{"status":""}`, `{"status":"working"`} {
		if got, err := readTask([]byte(raw)); err == nil {
			t.Errorf("%s gives %+v", raw, got)
		}
	}
}

func TestTaskCapability(t *testing.T) {
	for caps, want := range map[string]int{
		`{"tasks":{"requests":{"tools":{"call":{}}}}}`:               tasksCalled,
		`{"tasks":{"cancel":{},"requests":{"tools":{"call":{}}}}}`:   tasksCancelled,
		`{"tasks":{"cancel":null,"requests":{"tools":{"call":{}}}}}`: tasksCalled,
		`{"tasks":{"requests":{"tools":{"call":false}}}}`:            0,
		`{"tasks":{"requests":{"tools":{}}}}`:                        0,
		`{"tasks":{}}`:                                               0,
		`{}`:                                                         0,
	} {
		if got := taskCapability([]byte(`{"protocolVersion":"2025-11-25","capabilities":` + caps + `}`)); got != want {
			t.Errorf("%s gives %d", caps, got)
		}
		if got := taskCapability([]byte(`{"protocolVersion":"2025-06-18","capabilities":` + caps + `}`)); got != 0 {
			t.Errorf("an older revision with %s gives %d", caps, got)
		}
	}
}

// A task is read from any bytes without harm, and what is made of it is valid.
func FuzzReadTask(f *testing.F) {
	for _, s := range []string{
		`{"taskId":"a","status":"working","statusMessage":"x","pollIntervalMs":1e3}`,
		`{"taskId":"a","status":"completed","result":{"content":[],"isError":true}}`,
		`{"taskId":"a","status":"failed","error":{"code":-1,"message":"\ud83d"}}`,
		`{"task":{"taskId":"a","status":"input_required","pollInterval":-5}}`,
		`{"status":"input_required","inputRequests":{"k":{"method":"roots/list"}}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, err := mcp.Parse(mcp.ResultResponse([]byte("1"), raw))
		if err != nil {
			return // it never comes this far
		}
		s, err := readTask(m.Result.Of(m.Raw))
		if err != nil {
			return
		}
		if s.status == "" || s.every < 0 || s.every > pollMax || s.every > 0 && s.every < pollMin || !utf8.ValidString(s.message) {
			t.Errorf("%q gives %+v", raw, s)
		}
		for _, modern := range []bool{false, true} {
			made, err := createdTask(&m, modern)
			if err == nil && made != nil && (made.id == "" || made.status == "") {
				t.Errorf("%q makes %+v", raw, made)
			}
		}
		tk := &task{modern: true, state: s}
		for _, end := range []func() (string, []byte){
			func() (string, []byte) { a := tk.failedThere(); return a.Text, a.Body },
			func() (string, []byte) { a := tk.cancelledThere(); return a.Text, a.Body },
		} {
			if text, body := end(); !utf8.ValidString(text) || strings.ContainsAny(text, "\r\n\x1b") || body != nil {
				t.Errorf("%q says %q", raw, text)
			}
		}
		if s.requests != nil && !json.Valid(s.requests) {
			t.Errorf("%q asks %q", raw, s.requests)
		}
	})
}

// dying is a server whose process ends at the first question after a cancel.
type dying struct {
	over  chan struct{}
	asked int
}

func (d *dying) ask(context.Context, string, []byte) (mcp.Message, error) {
	if d.asked++; d.asked == 1 {
		close(d.over)
	} else if d.asked > 100 {
		panic("it is asked without end")
	}
	return mcp.Message{}, errOver
}

func (d *dying) tell(string, []byte) (<-chan struct{}, func()) {
	answered := make(chan struct{})
	close(answered)
	return answered, func() {}
}

func (d *dying) address() []byte            { return nil }
func (d *dying) last() (time.Time, float64) { return time.Time{}, 0 }
func (d *dying) gone() <-chan struct{}      { return d.over }
func (d *dying) ended() call.Answer         { return call.Answer{} }
func (d *dying) limit() int64               { return 0 }

// A process that ends while a cancelled task is awaited is not asked again.
func TestProcessEndsAfterTheCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		d := &dying{over: make(chan struct{})}
		began := time.Now()
		a := (&task{x: &call.Exec{}, peer: d, life: began}).cancelled(ctx)
		if a.Outcome != call.Running || d.asked != 1 || time.Since(began) != 0 {
			t.Errorf("%+v after %d questions and %v", a.End, d.asked, time.Since(began))
		}
	})
}

// A call's own limit for a message holds also where its server has none.
func TestLimitOfATaskOverStdio(t *testing.T) {
	for _, c := range []struct{ server, call, want int64 }{
		{100, 0, 100},
		{100, 10, 10},
		{-1, 10, 10},
		{-1, -1, -1},
	} {
		peer := &stdioTask{w: &wire{limit: c.server}, x: &call.Exec{Limits: call.Limits{Message: c.call}}}
		if got := peer.limit(); got != c.want {
			t.Errorf("%+v gives %d", c, got)
		}
	}
}

package load

import (
	"fmt"
	"math"
	"testing"
	"time"
)

// TestMessagesAreTold checks how an agent counts what it reads: own events,
// events out of order or after the result, those of others, and beats.
func TestMessagesAreTold(t *testing.T) {
	now := time.Now()
	progress := func(tag string, n int) string {
		return fmt.Sprintf(`{"method":"notifications/progress","params":{"progress":%d,"message":"%s %d %d"}}`, n, tag, n, now.UnixNano())
	}
	done := func(tag string) string {
		return `{"id":1,"result":{"content":[{"type":"text","text":"done ` + tag + ` 01"}]}}`
	}
	for _, c := range []struct {
		name                        string
		messages                    []string
		events, order, cross, beats int
		ok                          bool
	}{
		{"own events and the result", []string{progress("ta.", 1), progress("ta.", 2), done("ta.")}, 2, 0, 0, 0, true},
		{"twice", []string{progress("ta.", 1), progress("ta.", 1), done("ta.")}, 1, 1, 0, 0, true},
		{"after the result", []string{done("ta."), progress("ta.", 1)}, 0, 1, 0, 0, true},
		{"of another call", []string{progress("tb.", 1), done("tb.")}, 0, 0, 2, 0, false},
		{"made up by a gateway", []string{`{"method":"notifications/progress","params":{"message":"still working"}}`}, 0, 0, 0, 1, false},
		{"an error", []string{`{"id":1,"error":{"code":-1}}`}, 0, 0, 0, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := &outcome{}
			for _, m := range c.messages {
				o.message([]byte(m), now, "ta.", work{})
			}
			if o.events != c.events || o.order != c.order || o.cross != c.cross || o.beats != c.beats || o.ok != c.ok {
				t.Errorf("%d events, %d out of order, %d of others, %d beats, ok %v", o.events, o.order, o.cross, o.beats, o.ok)
			}
		})
	}
}

func TestQuantiles(t *testing.T) {
	d := make([]time.Duration, 100)
	for i := range d {
		d[99-i] = time.Duration(i) * time.Millisecond
	}
	if q := quantile(d, .5); q != 50 {
		t.Errorf("p50 is %v", q)
	}
	if q := quantile(d, .99); q != 99 {
		t.Errorf("p99 is %v", q)
	}
	if q := quantile(nil, .5); !math.IsNaN(q) {
		t.Errorf("of nothing: %v", q)
	}
}

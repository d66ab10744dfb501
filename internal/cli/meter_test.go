package cli

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestMeterLine(t *testing.T) {
	m := &meter{label: "files/copy", now: time.Now}
	at := func(d time.Duration) { m.now = func() time.Time { return m.start.Add(d) } }
	for _, tt := range []struct {
		name         string
		value, total float64
		text         string
		frames       int
		after        time.Duration
		width        int
		want         string
	}{
		{"spinner", 0, 0, "", 0, 0, 80, "⠋  files/copy  0ms"},
		{"spinner turns", 0, 0, "", 3, 12400 * time.Millisecond, 80, "⠸  files/copy  12.4s"},
		{"beats are no progress", 0.00001, 0, "still running", 0, 20 * time.Second, 80, "⠋  files/copy  20.0s  still running"},
		{"count without total", 17, 0, "", 0, time.Second, 80, "⠋ 17  files/copy  1.0s"},
		{"bar at start", 0, 5, "", 0, time.Second, 80, strings.Repeat("░", 24) + "   0%  0/5  files/copy  1.0s"},
		{"bar", 2, 5, "copying", 0, time.Second, 80, strings.Repeat("█", 10) + strings.Repeat("░", 14) + "  40%  2/5  files/copy  1.0s  copying"},
		{"bar full", 5, 5, "", 0, time.Second, 80, strings.Repeat("█", 24) + " 100%  5/5  files/copy  1.0s"},
		{"over the total", 7, 5, "", 0, time.Second, 80, strings.Repeat("█", 24) + " 100%  7/5  files/copy  1.0s"},
		{"negative", -1, 5, "", 0, time.Second, 80, strings.Repeat("░", 24) + "   0%  -1/5  files/copy  1.0s"},
		{"narrow", 2, 5, "a long text that does not fit", 0, time.Second, 50, strings.Repeat("█", 10) + strings.Repeat("░", 14) + "  40%  2/5  files/copy  1…"},
	} {
		m.value, m.total, m.text, m.frames = tt.value, tt.total, tt.text, tt.frames
		at(tt.after)
		if got := m.line(tt.width); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestMeterPlainLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := newOutput()
		m := newMeter(&System{Err: out}, "s/\x1b[31mtool")
		for i := range 10 { // faster than lines may come
			m.progress(float64(i), 20, "step\x07 "+number(float64(i)))
			time.Sleep(240 * time.Millisecond)
		}
		time.Sleep(65 * time.Second) // silence
		m.progress(20, 20, "all")
		m.say("a line that stays")
		m.close()
		want := `  1.0s  s/[31mtool  4/20 (20%)  step 4
  2.0s  s/[31mtool  8/20 (40%)  step 8
  3.0s  s/[31mtool  9/20 (45%)  step 9
 33.0s  s/[31mtool  9/20 (45%)  step 9
 1m03s  s/[31mtool  9/20 (45%)  step 9
 1m07s  s/[31mtool  20/20 (100%)  all
a line that stays
`
		if got := out.String(); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	})
}

func TestMeterDrawsOverItsLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := newOutput()
		m := newMeter(&System{Err: out, ErrTerminal: true, Width: func() int { return 40 }}, "s/t")
		time.Sleep(150 * time.Millisecond)
		m.progress(1, 2, "half")
		time.Sleep(100 * time.Millisecond)
		m.say("note")
		m.close()
		want := "\r\x1b[2K⠙  s/t  0.1s" +
			"\r\x1b[2K" + strings.Repeat("█", 12) + strings.Repeat("░", 12) + "  50%  1/2  s/…" +
			"\r\x1b[2Knote\n"
		if got := out.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

package cli

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

const (
	meterFrame  = 100 * time.Millisecond // between two drawings
	plainEvery  = time.Second            // between two plain lines, at least
	silentEvery = 30 * time.Second       // between two plain lines of a silent call
	barWidth    = 24
)

var spinner = [...]string{"⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"}

// meter shows how a call goes: on a terminal one line that is drawn over and
// over, a bar if the total is known and a spinner if not; elsewhere plain
// lines, not too many.
type meter struct {
	w        io.Writer
	terminal bool
	width    func() int
	now      func() time.Time
	start    time.Time

	mu      sync.Mutex
	label   string
	value   float64
	total   float64
	text    string
	drawn   bool // a line is on the screen
	frames  int
	printed time.Time // of the last plain line
	pending bool      // progress that no plain line has shown
	stop    chan struct{}
	done    chan struct{}
}

// newMeter starts to draw. close must follow.
func newMeter(sys *System, label string) *meter {
	m := &meter{
		w: sys.Err, terminal: sys.ErrTerminal, width: sys.width, now: time.Now,
		label: clean(label), stop: make(chan struct{}), done: make(chan struct{}),
	}
	m.start = m.now()
	m.printed = m.start
	go m.run()
	return m
}

func (m *meter) run() {
	defer close(m.done)
	every := meterFrame
	if !m.terminal {
		every = plainEvery
	}
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-m.stop:
			return
		case <-t.C:
			m.tick()
		}
	}
}

func (m *meter) tick() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.terminal {
		m.frames++
		m.draw()
		return
	}
	quiet := m.now().Sub(m.printed)
	if m.pending && quiet >= plainEvery || quiet >= silentEvery {
		m.plain()
	}
}

// progress shows what the tool says; a total of 0 is not known.
func (m *meter) progress(value, total float64, text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.value, m.total = value, total
	if text != "" {
		m.text = clean(text)
	}
	m.pending = true
	if m.terminal {
		return // the next frame shows it
	}
	if m.now().Sub(m.printed) >= plainEvery || total > 0 && value >= total {
		m.plain()
	}
}

// rename changes what the line is about.
func (m *meter) rename(label string) {
	m.mu.Lock()
	m.label = clean(label)
	m.mu.Unlock()
}

// say prints a line that stays.
func (m *meter) say(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.erase()
	fmt.Fprintf(m.w, format+"\n", args...)
}

// close takes the drawing away.
func (m *meter) close() {
	close(m.stop)
	<-m.done
	m.mu.Lock()
	defer m.mu.Unlock()
	m.erase()
	if !m.terminal && m.pending {
		m.plain()
	}
}

func (m *meter) elapsed() time.Duration { return m.now().Sub(m.start) }

func (m *meter) erase() {
	if m.drawn {
		fmt.Fprint(m.w, "\r\x1b[2K")
		m.drawn = false
	}
}

func (m *meter) draw() {
	line := m.line(m.width() - 1)
	fmt.Fprint(m.w, "\r\x1b[2K"+line)
	m.drawn = true
}

// line is what the terminal shows, in at most width columns.
func (m *meter) line(width int) string {
	var b strings.Builder
	if m.total > 0 {
		share := min(max(m.value/m.total, 0), 1)
		full := int(share*barWidth + 0.5)
		fmt.Fprintf(&b, "%s%s %3.0f%%  %s/%s", strings.Repeat("█", full), strings.Repeat("░", barWidth-full), share*100, number(m.value), number(m.total))
	} else {
		b.WriteString(spinner[m.frames%len(spinner)])
		if m.value >= 0.01 {
			b.WriteString(" " + number(m.value))
		}
	}
	fmt.Fprintf(&b, "  %s  %s", m.label, duration(m.elapsed()))
	if m.text != "" {
		b.WriteString("  " + m.text)
	}
	return cut(b.String(), width)
}

// plain prints where the call is, for logs and pipes.
func (m *meter) plain() {
	m.printed, m.pending = m.now(), false
	var parts []string
	switch {
	case m.total > 0:
		parts = append(parts, fmt.Sprintf("%s/%s (%.0f%%)", number(m.value), number(m.total), 100*min(max(m.value/m.total, 0), 1)))
	case m.value >= 0.01:
		parts = append(parts, number(m.value))
	}
	if m.text != "" {
		parts = append(parts, m.text)
	}
	if len(parts) == 0 {
		parts = append(parts, "running")
	}
	fmt.Fprintf(m.w, "%s  %s  %s\n", pad(duration(m.elapsed()), 6), m.label, strings.Join(parts, "  "))
}

// pad puts blanks before s.
func pad(s string, n int) string {
	return strings.Repeat(" ", max(n-utf8.RuneCountInString(s), 0)) + s
}

// above lets f print to the terminal, above the drawing.
func (m *meter) above(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.erase()
	f()
}

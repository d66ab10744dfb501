//go:build unix

package upstream

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
)

// I8: after close nothing of the process is left, however it behaves.
func TestProcessLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, flags string
		child       string // what a grandchild does
		within      time.Duration
	}{
		{"leaves at the end of its input", "legacy", "", 1500 * time.Millisecond},
		{"leaves at SIGTERM", "legacy lingers", "", 4 * time.Second},
		{"has to be killed", "legacy deaf", "", 10 * time.Second},
		{"has a child in its group", "legacy", "grouped", 1500 * time.Millisecond},
		{"has a child that escaped and holds its output", "legacy", "escaped", 4 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, childServer(tt.flags))
			pid, _ := strconv.Atoi(r.do(`{"do":"pid"}`))
			grandchild := 0
			if tt.child != "" {
				grandchild, _ = strconv.Atoi(r.do(`{"do":"child","n":6000,"text":%q}`, tt.child))
			}
			running := r.start(`{"do":"hold","key":"k"}`, call.Limits{})
			r.until(running, call.KindDispatched)
			start := time.Now()
			r.conn.close(context.Background())
			if d := time.Since(start); d > tt.within {
				t.Errorf("close took %s", d)
			}
			if alive(pid) {
				t.Error("the process is still there")
			}
			if tt.child == "grouped" {
				eventually(t, "the grandchild is gone", func() bool { return !alive(grandchild) })
			}
			s := r.follow(running)
			if s.end.Outcome != call.Interrupted || !strings.Contains(s.end.Text, "longcall stopped") {
				t.Errorf("ended as %+v", s.end)
			}
		})
	}
}

func TestProcessIsKilledWhenTimeIsUp(t *testing.T) {
	r := newRig(t, childServer("legacy deaf"))
	pid, _ := strconv.Atoi(r.do(`{"do":"pid"}`))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	r.conn.close(ctx)
	if d := time.Since(start); d > time.Second {
		t.Errorf("close took %s", d)
	}
	if alive(pid) {
		t.Error("the process is still there")
	}
}

func TestProcessIsStoppedWhileItStarts(t *testing.T) {
	r := newRig(t, childServer("legacy start=60000"))
	c := r.start(`{}`, call.Limits{})
	eventually(t, "the process runs", func() bool {
		r.conn.mu.Lock()
		defer r.conn.mu.Unlock()
		return r.conn.start != nil && r.conn.start.tail != nil
	})
	start := time.Now()
	r.conn.close(t.Context())
	if d := time.Since(start); d > 2*time.Second {
		t.Errorf("close took %s", d)
	}
	if s := r.follow(c); s.end.Outcome != call.Failed {
		t.Errorf("ended as %+v", s.end)
	}
}

func TestLookCommand(t *testing.T) {
	dir := t.TempDir()
	tool := filepath.Join(dir, "tool-of-longcall")
	if err := os.WriteFile(tool, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	got, err := lookCommand("tool-of-longcall", []string{"PATH=.:/nowhere:" + dir})
	if err != nil || got != tool {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := lookCommand("tool-of-longcall", []string{"PATH=/nowhere"}); err == nil {
		t.Errorf("found %q", got)
	}
	if got, err := lookCommand("./x", nil); err != nil || got != "./x" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestRing(t *testing.T) {
	var r ring
	var all strings.Builder
	for i := range 30000 {
		s := strconv.Itoa(i) + "\n"
		all.WriteString(s)
		r.write([]byte(s))
	}
	want := all.String()
	if got := r.text(); got != want[len(want)-ringSize:] {
		t.Error("the ring does not hold the last bytes")
	}
	r.write([]byte(strings.Repeat("a", 3*ringSize) + "b"))
	if got := r.text(); got != strings.Repeat("a", ringSize-1)+"b" {
		t.Error("the ring does not hold the last bytes of a large write")
	}
	if r.written() != int64(len(want)+3*ringSize+1) {
		t.Error("wrong count")
	}
}

func TestLastLines(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"", ""},
		{" one\ntwo\n\n", "one\ntwo"},
		{strings.Repeat("x", 20) + "\nlast lines", "last lines"},
		{strings.Repeat("€", 20), "…" + strings.Repeat("€", 5)},
	} {
		if got := lastLines(tt.in, 19); got != tt.want {
			t.Errorf("lastLines(%q) is %q, want %q", tt.in, got, tt.want)
		}
	}
	if got := plainText("a\x1b[31;1mred\x1b[0m\r\n\tb\x00\x7f\xff"); got != "ared\n b" {
		t.Errorf("got %q", got)
	}
}

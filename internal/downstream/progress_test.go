package downstream

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/longcall/longcall/internal/mcp"
)

// note is a notifications/progress as the engine holds it, and its hole.
func note(members string) ([]byte, int) {
	raw := `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":0,` + members + `}}`
	return []byte(raw), strings.Index(raw, `:0,`) + 1
}

func TestProgressLine(t *testing.T) {
	tests := []struct{ name, in, want string }{
		{"O10: equal, falling and good values", `1 1 3 2 4`, `1 1.000001 3 3.000001 4`},
		{"byte for byte", `0.0 1.50 2e0 9007199254740993`, `0.0 1.50 2e0 9007199254740993`},
		{"no floats between", `9007199254740993 9007199254740993`, `9007199254740993 9007199254740994`},
		{"negative", `-5 -5 -1`, `-5 -4.999999 -1`},
		{"no number to a client", `1e999 1 1e400`, `0 1 1.000001`},
		{"close to the total", `99.999999/100 99.999999/100 100/100 100/100`, `99.999999/100 99.999999000001/100 100/100 100.000001`},
		{"total below the value stays", `5/3 6/3 6/3`, `5/3 6/3 6.000001/3`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var l line
			var got []string
			for f := range strings.FieldsSeq(tt.in) {
				v, total, has := strings.Cut(f, "/")
				members := `"message":"m","progress":` + v
				if has {
					members = `"total":` + total + "," + members
				}
				body, hole := note(members)
				out, ok := l.appendProgress(nil, body, hole, []byte(`"tok"`))
				if !ok {
					got = append(got, "-")
					continue
				}
				m, err := mcp.Parse(out)
				if err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				if string(m.ProgressToken.Of(out)) != `"tok"` || string(m.Text.Of(out)) != `"m"` {
					t.Errorf("token or message lost: %s", out)
				}
				g := string(m.Progress.Of(out))
				if m.Total.Ok() {
					g += "/" + string(m.Total.Of(out))
				}
				got = append(got, g)
			}
			if g := strings.Join(got, " "); g != tt.want {
				t.Errorf("got  %s\nwant %s", g, tt.want)
			}
		})
	}
}

func TestProgressThatCannotBeShown(t *testing.T) {
	for _, raw := range []string{
		`{"jsonrpc":"2.0","method":"notifications/progress"}`,
		`{"params":{"progressToken":0}}`,
		`{"params":{"progressToken":0,"progress":"1"}}`,
		`{"params":0}`, `{`, `[]`, `{"params":{"progressToken":0,"progress":`,
	} {
		var l line
		if out, ok := l.appendProgress(nil, []byte(raw), strings.Index(raw, "0"), []byte("1")); ok || len(out) > 0 {
			t.Errorf("%s: shown as %s", raw, out)
		}
	}
}

func TestBeatAfterTheTotal(t *testing.T) {
	var l line
	body, hole := note(`"progress":10,"total":10`)
	if _, ok := l.appendProgress(nil, body, hole, []byte("1")); !ok {
		t.Fatal("not shown")
	}
	if out, ok := l.appendBeat(nil, []byte("1"), time.Minute); ok {
		t.Errorf("a beat beyond the total: %s", out)
	}
}

func TestElapsed(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0 s", 10*time.Second + 3*time.Millisecond: "10 s", 59600 * time.Millisecond: "1 min 0 s",
		125 * time.Second: "2 min 5 s", 3*time.Hour + 12*time.Minute: "3 h 12 min", 50 * time.Hour: "50 h 0 min",
	} {
		if got := string(appendElapsed(nil, d)); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
}

// TestProgressIncreases is I11 and X-3: whatever the tool server says and
// however it mixes with beats, values strictly increase as a client reads them,
// good ones are untouched, and no beat reaches a total.
func TestProgressIncreases(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l line
		last, any := 0.0, false
		elapsed := time.Duration(0)
		total := rapid.SampledFrom([]string{"", "10", "1", "1e15", "0.001"}).Draw(t, "total")
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			beat := rapid.Bool().Draw(t, "beat")
			value := ""
			var out []byte
			var ok bool
			if beat {
				elapsed += 10 * time.Second
				out, ok = l.appendBeat(nil, []byte("7"), elapsed)
			} else {
				value = rapid.OneOf(
					rapid.Map(rapid.IntRange(0, 12), strconv.Itoa),
					rapid.Map(rapid.Float64(), func(f float64) string { b, _ := json.Marshal(f); return string(b) }),
				).Draw(t, "value")
				members := `"progress":` + value
				if total != "" && rapid.Bool().Draw(t, "with total") {
					members += `, "total" : ` + total
				}
				body, hole := note(members)
				out, ok = l.appendProgress(nil, body, hole, []byte("7"))
			}
			if !ok {
				if !beat && !any {
					t.Fatalf("%s was not shown", value)
				}
				continue
			}
			var m struct {
				Params struct {
					Progress      float64
					Total         *float64
					ProgressToken int
					Message       string
				}
			}
			if err := json.Unmarshal(out, &m); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			p := m.Params
			if any && p.Progress <= last {
				t.Fatalf("%v after %v: %s", p.Progress, last, out)
			}
			if beat && (p.Total != nil && p.Progress >= *p.Total || len(p.Message) > 200) {
				t.Fatalf("beat %s", out)
			}
			if v, err := strconv.ParseFloat(value, 64); !beat && err == nil && (!any || v > last) && !strings.Contains(string(out), `"progress":`+value) {
				t.Fatalf("%s was changed: %s", value, out)
			}
			if p.ProgressToken != 7 || math.IsInf(p.Progress, 0) {
				t.Fatalf("bad message %s", out)
			}
			last, any = p.Progress, true
		}
	})
}

// X-3, I11 over a resume: the resumed stream knows of no beats, and of the last
// event only what its id says; its values lie above all the same.
func TestLineResumed(t *testing.T) {
	message := func(v string) []byte {
		return []byte(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":0,"progress":` + v + `,"total":10}}`)
	}
	hole := strings.Index(string(message("1")), `:0,`) + 1
	value := func(b []byte) float64 {
		p := find(b, 0, "params")
		f := find(b, p.val, "progress")
		v, err := strconv.ParseFloat(string(b[f.val:f.end]), 64)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for i, first := range []string{"", "1", "9.9999999", "", "1"} {
		every := []time.Duration{10 * time.Second, time.Second, time.Second, 100 * time.Millisecond, 10 * time.Millisecond}[i]
		var old line
		last, at := -1.0, time.Duration(0)
		show := func(l *line, beat bool, v string) {
			t.Helper()
			at += every
			b, ok := l.appendBeat(nil, []byte("7"), at)
			if !beat {
				b, ok = l.appendProgress(nil, message(v), hole, []byte("7"))
			}
			if !ok {
				return // no room below the total: nothing is shown
			}
			if got := value(b); got <= last {
				t.Errorf("after %q: %v follows %v", first, got, last)
			} else {
				last = got
			}
		}
		for range 3 {
			show(&old, true, "")
		}
		if first != "" {
			show(&old, false, first)
			show(&old, false, first) // raised
		}
		id := old
		for range 100 {
			show(&old, true, "")
		}
		var again line
		if id.measured {
			rest, v, ok := cutValue("57" + valueMark + string(appendNumber(nil, id.base)))
			if rest != "57" || !ok || v != id.base {
				t.Errorf("value %v reads back as %v, %v", id.base, v, ok)
			}
			again.resumed(v, at)
		}
		show(&again, false, "1.000001") // above the last event, but not above the beats
		for range 3 {
			show(&again, true, "")
		}
		show(&again, false, "1")
		show(&again, true, "")
	}
	for _, bad := range []string{"57", "57_", "57_x", "57_Inf", "57_NaN"} {
		if rest, _, ok := cutValue(bad); ok || rest != "57" {
			t.Errorf("%q: %q, %v", bad, rest, ok)
		}
	}
}

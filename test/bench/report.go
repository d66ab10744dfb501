//go:build unix

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/longcall/longcall/test/bench/load"
)

// goal is what one number of a scenario is to reach. The number is the ratio
// to the floor's, or our own value.
type goal struct {
	ratio bool
	least bool // the bound is a least value; otherwise a most
	bound float64
	era   string // empty: both
	calls int    // 0: all sizes
}

func (g *goal) hit(v float64) bool {
	if g.least {
		return v >= g.bound
	}
	return v <= g.bound
}

func (g *goal) String() string {
	sign := "≤"
	if g.least {
		sign = "≥"
	}
	unit := ""
	if g.ratio {
		unit = "x"
	}
	return fmt.Sprintf("%s %g%s", sign, g.bound, unit)
}

// row is one line of a scenario's table.
type row struct {
	key, head, format string
	goals             []goal
}

func most(v float64) []goal          { return []goal{{bound: v}} }
func least(v float64) []goal         { return []goal{{bound: v, least: true}} }
func ratio(v float64) []goal         { return []goal{{bound: v, ratio: true}} }
func in(era string, g []goal) []goal { g[0].era = era; return g }

// scenarios are the tables, with what issue 2 asks for.
var scenarios = []struct {
	name, title string
	rows        []row
}{
	{"rest", "At rest", []row{{"rss_mb", "memory, MB", "%.1f", most(30)}}},
	{"S1", "Instant calls", []row{
		{"ms_p50", "call p50, ms", "%.2f", ratio(1.5)},
		{"ms_p99", "call p99, ms", "%.1f", nil},
		{"per_s", "calls per second", "%.0f", nil},
		{"cpu_us", "CPU per call, µs", "%.0f", ratio(1.6)},
		{"rss_mb", "memory, MB", "%.0f", nil},
		{"failed", "calls failed, %", "%.1f", most(0)},
	}},
	{"S2", "Progress", []row{
		{"delivered", "events on the call's own stream, %", "%.1f", least(100)},
		{"order", "events out of order or twice", "%.0f", most(0)},
		{"cross", "events on another call's stream", "%.0f", most(0)},
		{"ev_ms_p50", "event p50, ms", "%.2f", ratio(1.5)},
		{"ev_ms_p99", "event p99, ms", "%.1f", ratio(2)},
		{"late_ms_p99", "result late p99, ms", "%.0f", nil},
		{"cpu_us", "CPU per message, µs", "%.0f", ratio(1.35)},
		{"rss_mb", "memory, MB", "%.0f", nil},
		{"failed", "calls failed, %", "%.1f", most(0)},
	}},
	{"S3", "Silence", []row{
		{"headers_ms_p99", "headers p99, ms", "%.1f", most(100)},
		{"first_ms_p99", "first byte p99, ms", "%.1f", most(100)},
		{"gap_s_max", "longest silence, s", "%.1f", most(5.5)},
		{"beats", "beats per call", "%.1f", nil},
		{"kb_per_call", "memory per parked call, KB", "%.1f", ratio(1.35)},
		{"idle_cpu_pct", "CPU while parked, %", "%.1f", nil},
		{"failed", "calls failed, %", "%.1f", most(0)},
	}},
	{"S4", "Agents hang up", []row{
		{"started", "calls started, %", "%.0f", nil},
		{"cancels", "cancel sent upstream, %", "%.0f", in("legacy", most(0))},
		{"closed_early", "upstream stream closed, %", "%.0f", nil},
		{"ran_on", "calls that ran on, %", "%.0f", in("legacy", least(100))},
		{"stopped", "calls stopped, %", "%.0f", in("modern", least(100))},
		{"fds_left", "descriptors left", "%.0f", most(5)},
		{"rss_left_mb", "memory left, MB", "%.1f", ratio(2)},
	}},
	{"S5", "The upstream's stream breaks", []row{
		{"dropped", "streams broken, %", "%.0f", nil},
		{"hidden", "agent got all and noticed nothing, %", "%.0f", in("legacy", least(100))},
		{"whole", "agent got all, with a resume of its own, %", "%.0f", nil},
		{"result", "agent got the result, %", "%.0f", in("legacy", least(100))},
		{"stall_ms_p99", "stall p99, ms", "%.0f", in("legacy", most(1500))},
		{"late_ms_p99", "result late p99, ms", "%.0f", nil},
	}},
	{"S6", "Large results", []row{
		{"ms_p50", "call p50, ms", "%.2f", ratio(1.5)},
		{"ms_p99", "call p99, ms", "%.1f", nil},
		{"cpu_us", "CPU per call, µs", "%.0f", nil},
		{"rss_mb", "memory, MB", "%.0f", nil},
		{"failed", "calls failed, %", "%.1f", most(0)},
	}},
	{"S7", "Equal ids and tokens", []row{
		{"cross", "messages to the wrong agent", "%.0f", most(0)},
		{"delivered", "own events on the call, %", "%.1f", least(100)},
		{"elsewhere", "own events on the GET stream, %", "%.1f", most(0)},
		{"result", "own results, %", "%.1f", least(100)},
	}},
	{"R1", "A call of 100 000 events is read again", []row{
		{"events", "messages", "%.0f", least(100_001)},
		{"per_s", "messages per second", "%.0f", least(100_000)},
		{"rss_mb", "memory, MB", "%.0f", nil},
	}},
	{"R2", "The same call again, after its stream was lost", []row{
		{"ms_p50", "attached p50, ms", "%.2f", nil},
		{"ms_p99", "attached p99, ms", "%.2f", most(5)},
		{"twice", "calls that ran twice", "%.0f", most(0)},
	}},
	{"R3", "Calls without a reader", []row{
		{"rss_mb", "memory, MB", "%.0f", most(300)},
		{"kb_per_call", "memory per call, KB", "%.1f", nil},
	}},
	{"R4", "longcall is killed and started again; the tool server can resume", []row{
		{"ready_s", "ready after, s", "%.2f", most(2)},
		{"resumed", "calls taken up again, %", "%.1f", least(100)},
		{"twice", "calls that ran twice", "%.0f", most(0)},
		{"rss_mb", "memory, MB", "%.0f", nil},
	}},
	{"R5", "longcall is killed and started again; the tool server cannot resume", []row{
		{"ready_s", "ready after, s", "%.2f", most(2)},
		{"twice", "calls that ran twice", "%.0f", most(0)},
		{"rss_mb", "memory, MB", "%.0f", nil},
	}},
	{"H1", "A command ends while an await_call waits for it", []row{
		{"ms_p50", "answer after its last word p50, ms", "%.1f", nil},
		{"ms_p99", "answer after its last word p99, ms", "%.1f", most(50)},
	}},
	{"H2", "A command starts, beside a bare exec", []row{
		{"ms_p50", "first word p50, ms", "%.1f", most(40)},
		{"ms_p99", "first word p99, ms", "%.1f", nil},
	}},
	{"H3", "A command writes 1 GiB, beside cat > file", []row{
		{"mb_per_s", "MiB per second", "%.0f", []goal{{ratio: true, least: true, bound: 0.5}}},
		{"rss_mb", "memory of longcall at most, MB", "%.0f", most(100)},
		{"shim_mb", "memory of the shim at most, MB", "%.0f", most(50)},
	}},
	{"H4", "64 commands run silently, and many wait for them", []row{
		{"rss_mb", "memory of longcall, MB", "%.0f", most(150)},
		{"idle_cpu_pct", "CPU of longcall, %", "%.1f", most(1)},
		{"shim_mb", "memory of all shims, MB", "%.0f", nil},
		{"shim_cpu_pct", "CPU of all shims, %", "%.1f", most(1)},
	}},
}

// group of records of the same measurement.
type groupKey struct {
	era, variant string
	calls        int
}

func printFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	var records []load.Record
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		var r load.Record
		if err := json.Unmarshal(sc.Bytes(), &r); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		records = append(records, r)
	}
	printTable(os.Stdout, records)
	return sc.Err()
}

// printTable shows medians over the records of each measurement.
func printTable(w io.Writer, records []load.Record) {
	hits, misses := 0, 0
	for _, s := range scenarios {
		byKey := map[groupKey][]load.Record{}
		var keys []groupKey
		for _, r := range records {
			if r.Scenario != s.name {
				continue
			}
			k := groupKey{r.Era, r.Variant, r.Calls}
			if byKey[k] == nil {
				keys = append(keys, k)
			}
			byKey[k] = append(byKey[k], r)
		}
		for _, k := range keys {
			fmt.Fprintf(w, "\n%s  %s: %s, %d calls at once, %s era\n", s.name, s.title, k.variant, k.calls, k.era)
			for _, r := range byKey[k] {
				if r.Failed != "" {
					fmt.Fprintf(w, "  FAILED: %s %s\n", r.Failed, r.Why)
				}
			}
			fmt.Fprintf(w, "  %-44s %10s %10s %8s   %-10s\n", "", "floor", "longcall", "ratio", "target")
			for _, line := range s.rows {
				h, m := line.print(w, k, byKey[k])
				hits, misses = hits+h, misses+m
			}
		}
		if s.name == "S3" {
			for _, era := range []string{"legacy", "modern"} {
				h, m := printGrowth(w, era, byKey)
				hits, misses = hits+h, misses+m
			}
		}
	}
	fmt.Fprintf(w, "\n%d targets hit, %d missed\n", hits, misses)
}

// print writes one line, and counts the targets hit and missed.
func (l row) print(w io.Writer, k groupKey, rs []load.Record) (hits, misses int) {
	floor := median(rs, func(r load.Record) load.Metrics { return r.Floor }, l.key)
	ours := median(rs, func(r load.Record) load.Metrics { return r.Peer }, l.key)
	ratio := median(rs, func(r load.Record) load.Metrics { return r.Ratio }, l.key)
	target := ""
	for _, g := range l.goals {
		if g.era != "" && g.era != k.era || g.calls != 0 && g.calls != k.calls {
			continue
		}
		v := ours
		if g.ratio {
			v = ratio
		}
		verdict := "MISS"
		switch {
		case v == nil:
			verdict = "not measured"
		case g.hit(*v):
			verdict = "hit"
			hits++
		default:
			misses++
		}
		target = fmt.Sprintf("%-10s %s", g.String(), verdict)
	}
	fmt.Fprintf(w, "  %-44s %10s %10s %8s   %s\n", l.head, number(l.format, floor), number(l.format, ours), number("%.2fx", ratio), target)
	return hits, misses
}

// sameSize is how much more memory a parked call may take at one number of
// calls than at another to count as the same.
const sameSize = 1.25

// printGrowth compares the memory of a parked call at 1000 calls and more.
func printGrowth(w io.Writer, era string, byKey map[groupKey][]load.Record) (hits, misses int) {
	var v []float64
	for k, rs := range byKey {
		if x := median(rs, func(r load.Record) load.Metrics { return r.Peer }, "kb_per_call"); x != nil && k.era == era && k.calls >= 1000 {
			v = append(v, *x)
		}
	}
	if len(v) < 2 {
		return 0, 0
	}
	growth := slices.Max(v) / slices.Min(v)
	g := goal{bound: sameSize}
	verdict := "hit"
	if hits = 1; !g.hit(growth) {
		verdict, hits, misses = "MISS", 0, 1
	}
	fmt.Fprintf(w, "\nS3  Memory per parked call, most over least from 1000 calls on, %s era: %.2f, target %s %s\n", era, growth, g.String(), verdict)
	return hits, misses
}

func number(format string, v *float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf(format, *v)
}

// median of a metric over the records that have it; nil if none has.
func median(rs []load.Record, side func(load.Record) load.Metrics, key string) *float64 {
	var v []float64
	for _, r := range rs {
		if x, ok := side(r)[key]; ok {
			v = append(v, x)
		}
	}
	if v == nil {
		return nil
	}
	slices.Sort(v)
	m := v[len(v)/2]
	if len(v)%2 == 0 {
		m = (m + v[len(v)/2-1]) / 2
	}
	return &m
}

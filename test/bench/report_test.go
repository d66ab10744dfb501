//go:build unix

package main

import (
	"strings"
	"testing"

	"github.com/longcall/longcall/test/bench/load"
)

// TestTable checks that medians, ratios and verdicts are those of the records.
func TestTable(t *testing.T) {
	record := func(calls int, p50, floor float64) load.Record {
		return load.Record{
			Era: "legacy", Scenario: "S1", Variant: "instant calls", Calls: calls,
			Floor: load.Metrics{"ms_p50": floor}, Peer: load.Metrics{"ms_p50": p50, "failed": 0}, Ratio: load.Metrics{"ms_p50": p50 / floor},
		}
	}
	silent := func(calls int, kb float64) load.Record {
		return load.Record{Era: "modern", Scenario: "S3", Calls: calls, Peer: load.Metrics{"kb_per_call": kb}}
	}
	var b strings.Builder
	printTable(&b, []load.Record{
		record(1, 3, 2), record(1, 5, 2), record(1, 9, 2), record(20, 2.9, 2), silent(1000, 40), silent(5000, 60),
		{Era: "legacy", Scenario: "S4", Failed: "not done", Why: "no result"},
	})
	for _, want := range []string{
		"call p50, ms                                       2.00       5.00    2.50x   ≤ 1.5x     MISS",
		"call p50, ms                                       2.00       2.90    1.45x   ≤ 1.5x     hit",
		"from 1000 calls on, modern era: 1.50, target ≤ 1.25 MISS",
		"FAILED: not done no result",
		"not measured",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, b.String())
		}
	}
}

func TestVariants(t *testing.T) {
	for _, c := range []struct {
		o    options
		era  string
		want int
	}{
		{options{}, "legacy", len(load.Variants)},
		{options{scenarios: []string{"S6"}}, "modern", 2},
		{options{quick: true}, "legacy", 7},
		{options{quick: true}, "modern", 2},
	} {
		if got := len(variants(c.o, c.era)); got != c.want {
			t.Errorf("%+v in the %s era: %d variants, want %d", c.o, c.era, got, c.want)
		}
	}
}

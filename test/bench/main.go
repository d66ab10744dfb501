//go:build unix

// Command bench measures the longcall binary beside the floor: the standard library's reverse proxy, flushing every write.
//
// Both stand in front of the same deterministic upstream, and are measured in
// turns or at the same time, so that a drift of the machine cancels. Every
// number is printed with its ratio to the floor's and with what is to be
// reached; what was measured goes to a file of JSON lines as well.
//
//	go run ./test/bench -longcall bin/longcall            all, both eras: 7 minutes
//	go run ./test/bench -longcall bin/longcall -quick     a part of it
//	go run ./test/bench -floor-again                      the floor beside itself: the machine's noise
//	go run ./test/bench -table bin/bench/FILE.jsonl       a file's table again
//
// Load generator, gateway and upstream share the machine: ratios count, not
// throughput.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/longcall/longcall/test/bench/load"
)

type options struct {
	longcall   string
	floorAgain bool
	quick      bool
	eras       []string
	scenarios  []string
	length     float64
	repeat     int
	out        string
}

func main() {
	var o options
	flag.StringVar(&o.longcall, "longcall", "bin/longcall", "the binary to measure")
	flag.BoolVar(&o.floorAgain, "floor-again", false, "measure a second floor instead")
	flag.BoolVar(&o.quick, "quick", false, "one size of each scenario, and only the first two in the stateless era")
	eras := flag.String("eras", "legacy,modern", "eras, comma-separated")
	scenarios := flag.String("scenarios", "", "scenarios such as S1,S3; empty means all")
	flag.Float64Var(&o.length, "length", 1, "length of the slices, 1 being the usual")
	flag.IntVar(&o.repeat, "repeat", 1, "how often to run everything; the table shows medians")
	flag.StringVar(&o.out, "out", "", "result file; empty means one under bin/bench")
	table := flag.String("table", "", "print this result file and exit")
	flag.Parse()
	if *table != "" {
		exit(printFile(*table))
	}
	o.eras = strings.Split(*eras, ",")
	if *scenarios != "" {
		o.scenarios = strings.Split(*scenarios, ",")
	}
	if o.quick && o.length == 1 {
		o.length = 0.4
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	exit(bench(ctx, o))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// bench runs all that was asked for, writing each record as it comes.
func bench(ctx context.Context, o options) (err error) {
	label := time.Now().UTC().Format("20060102-150405")
	if o.out == "" {
		o.out = filepath.Join("bin", "bench", label+".jsonl")
	}
	if err := os.MkdirAll(filepath.Dir(o.out), 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "longcall-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	programs, err := build(ctx, work)
	if err != nil {
		return err
	}
	programs.longcall, programs.floorAgain = o.longcall, o.floorAgain
	f, err := os.OpenFile(o.out, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	var records []load.Record
	for range o.repeat {
		for _, era := range o.eras {
			for _, v := range variants(o, era) {
				for _, r := range programs.measure(ctx, era, v, o.length) {
					r.Run = label
					records = append(records, r)
					if err := json.NewEncoder(f).Encode(r); err != nil {
						return err
					}
					progress(r)
				}
				if ctx.Err() != nil {
					return errors.New("interrupted")
				}
			}
		}
	}
	if !o.floorAgain {
		emit := func(r load.Record) error {
			r.Run = label
			records = append(records, r)
			progress(r)
			return json.NewEncoder(f).Encode(r)
		}
		if err := errors.Join(programs.measureOutlive(ctx, o, emit), programs.measureShell(ctx, o, emit)); err != nil {
			return err
		}
	}
	printTable(os.Stdout, records)
	fmt.Printf("\nJSON lines: %s\n", o.out)
	return failed(records)
}

// variants are those to measure in an era.
func variants(o options, era string) []load.Variant {
	return slices.DeleteFunc(slices.Clone(load.Variants), func(v load.Variant) bool {
		return o.quick && (!v.Quick || era != "legacy" && v.Scenario > "S2") ||
			o.scenarios != nil && !slices.Contains(o.scenarios, v.Scenario)
	})
}

// progress tells on standard error that a measurement is done.
func progress(r load.Record) {
	state := "done"
	if r.Failed != "" {
		state = "FAILED: " + r.Failed
	}
	fmt.Fprintf(os.Stderr, "%s %-6s %s %s, %d calls: %s %s\n", time.Now().Format(time.TimeOnly), r.Era, r.Scenario, r.Variant, r.Calls, state, r.Why)
}

func failed(records []load.Record) error {
	var errs []error
	for _, r := range records {
		if r.Failed != "" {
			errs = append(errs, fmt.Errorf("%s %s, %s, %d calls: %s %s", r.Era, r.Scenario, r.Variant, r.Calls, r.Failed, r.Why))
		}
	}
	return errors.Join(errs...)
}

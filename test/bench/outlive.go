//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/longcall/longcall/test/bench/load"
)

// outlive measures what no plain proxy can do, so there is no floor: calls that
// outlive their connection, and longcall itself.
type outlive struct {
	group
	ctx    context.Context
	dir    string
	binary string
	file   string // config
	url    string
	up     string
	pid    int
	agent  *http.Client
}

// outliveVariants are R1 to R5.
var outliveVariants = []struct {
	scenario, name string
	calls          int
	quick          bool
	run            func(*outlive, int) (load.Metrics, error)
}{
	{"R1", "resume, one connection", 1, true, (*outlive).resume},
	{"R2", "attach", 300, true, (*outlive).attach},
	{"R3", "detached calls", 10_000, false, (*outlive).detached},
	{"R4", "recovery, calls go on", 10_000, false, (*outlive).recoverResumable},
	{"R5", "recovery, calls are lost", 10_000, false, (*outlive).recoverLost},
}

func (p *programs) measureOutlive(ctx context.Context, o options, emit func(load.Record) error) error {
	for _, v := range outliveVariants {
		if o.quick && !v.quick || o.scenarios != nil && !slices.Contains(o.scenarios, v.scenario) {
			continue
		}
		r := load.Record{Time: time.Now().UTC().Format(time.RFC3339), Era: "legacy", Scenario: v.scenario, Variant: v.name, Calls: v.calls}
		m, err := p.outlive(ctx, func(s *outlive) (load.Metrics, error) { return v.run(s, v.calls) })
		if r.Peer = m; err != nil {
			r.Failed = err.Error()
		}
		if err := emit(r); err != nil {
			return err
		}
	}
	return nil
}

func (p *programs) outlive(ctx context.Context, run func(*outlive) (load.Metrics, error)) (m load.Metrics, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp(p.work, "outlive-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	s := &outlive{group: group{log: log}, ctx: ctx, dir: dir, binary: p.longcall, file: filepath.Join(dir, "longcall.yaml")}
	defer s.stop()
	var ports [2]int
	for i := range ports {
		if ports[i], err = freePort(); err != nil {
			return nil, err
		}
	}
	up := fmt.Sprintf("127.0.0.1:%d", ports[0])
	s.up, s.url = "http://"+up, fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	config := fmt.Sprintf("listen: 127.0.0.1:%d\nstate: %q\nlog: {level: warn}\nlimits: {per_principal: 30000}\njournal: {events: {count: 200000, bytes: 64MiB}}\nshell: {enabled: true, roots: [%q], per_owner: 64}\nmcpServers:\n  up: {url: %q, era: legacy, limits: {concurrent: 30000}}\n",
		ports[1], filepath.Join(dir, "state"), dir, s.up+"/mcp")
	if err := os.WriteFile(s.file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	if _, err := s.start(p.upstream, "-addr", up, "-era", "legacy"); err != nil {
		return nil, err
	}
	s.agent = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, DialContext: (&net.Dialer{}).DialContext}}
	defer s.agent.CloseIdleConnections()
	if err := until(ctx, func() bool { return s.answers(s.up + "/control/stats") }); err != nil {
		return nil, err
	}
	if _, err := s.serve(); err != nil {
		return nil, err
	}
	m, err = run(s)
	if err != nil {
		printed, _ := os.ReadFile(log.Name()) // it only helps to explain err
		err = fmt.Errorf("%w\n%s", err, printed[max(0, len(printed)-2000):])
	}
	return m, err
}

// serve starts longcall and returns how long it took until calls are taken.
func (s *outlive) serve() (time.Duration, error) {
	began := time.Now()
	pid, err := s.start(s.binary, "serve", "--no-auth", "--config", s.file)
	if err != nil {
		return 0, err
	}
	s.pid = pid
	err = until(s.ctx, func() bool { return s.answers(s.url + "/readyz") })
	return time.Since(began), err
}

// kill ends longcall at once.
func (s *outlive) kill() error {
	last := len(s.procs) - 1
	cmd := s.procs[last]
	s.procs = s.procs[:last]
	if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); err != nil {
		return err
	}
	_ = cmd.Wait() // it was killed, so it fails
	return nil
}

func (s *outlive) answers(url string) bool {
	resp, err := s.agent.Get(url)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// until polls a process of which nothing else tells.
func until(ctx context.Context, holds func() bool) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// send makes a request of a session; body is a message, or empty for a GET.
func (s *outlive) send(ctx context.Context, session, lastID, body string) (*http.Response, error) {
	method := http.MethodPost
	if body == "" {
		method = http.MethodGet
	}
	req, err := http.NewRequestWithContext(ctx, method, s.url+"/mcp/up", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	if session != "" {
		req.Header.Set("Mcp-Session-Id", session)
	}
	if lastID != "" {
		req.Header.Set("Last-Event-ID", lastID)
	}
	resp, err := s.agent.Do(req)
	if err == nil && resp.StatusCode/100 != 2 {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 1000)) // it only helps to explain the status
		resp.Body.Close()
		return nil, fmt.Errorf("HTTP %d: %s", resp.StatusCode, b)
	}
	return resp, err
}

func (s *outlive) open() (session string, err error) {
	resp, err := s.send(s.ctx, "", "", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}`)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.Header.Get("Mcp-Session-Id"), err
}

func callOf(id int, args string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"work","arguments":%s,"_meta":{"progressToken":%d}}}`, id, args, id)
}

func (s *outlive) stats() (map[string]int64, error) {
	resp, err := s.agent.Get(s.up + "/control/stats")
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	m := map[string]int64{}
	return m, json.NewDecoder(resp.Body).Decode(&m)
}

// hangUp starts calls that run for long, leaves each as soon as its stream is
// open, and returns when the upstream has them all.
func (s *outlive) hangUp(session string, n int, args func(i int) string) error {
	var wg sync.WaitGroup
	next := make(chan int)
	var mu sync.Mutex
	var errs []error
	for range 64 {
		wg.Go(func() {
			for i := range next {
				ctx, cancel := context.WithCancel(s.ctx)
				resp, err := s.send(ctx, session, "", callOf(i+1, args(i)))
				if err == nil {
					_, err = bufio.NewReader(resp.Body).ReadSlice('\n')
				}
				cancel()
				if resp != nil {
					resp.Body.Close()
				}
				if err != nil {
					mu.Lock()
					errs = append(errs, err)
					mu.Unlock()
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
	if err := errors.Join(errs[:min(len(errs), 3)]...); err != nil {
		return fmt.Errorf("%d of %d calls: %w", len(errs), n, err)
	}
	return until(s.ctx, func() bool {
		m, err := s.stats()
		return err == nil && m["started"] >= int64(n)
	})
}

// resume reads a call of 100 000 events from its first event id on, once its tool
// server has sent them all. It counts messages: the progress and the answer.
func (s *outlive) resume(int) (load.Metrics, error) {
	const events = 100_000
	session, err := s.open()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	resp, err := s.send(ctx, session, "", callOf(1, fmt.Sprintf(`{"tag":"t","ms":1,"n":%d}`, events)))
	if err != nil {
		return nil, err
	}
	first, err := readStream(resp.Body, func(id string, _ []byte) bool { return id == "" })
	cancel()
	resp.Body.Close()
	if err != nil {
		return nil, err
	}
	if err := until(s.ctx, func() bool { m, err := s.stats(); return err == nil && m["completed"] == 1 }); err != nil {
		return nil, err
	}
	// The best of three: the first may still wait for what longcall has yet to read
	// or to store.
	var best time.Duration
	got := 0
	for range 3 {
		began := time.Now()
		resp, err = s.send(s.ctx, session, first.id, "")
		if err != nil {
			return nil, err
		}
		got = 0
		_, err = readStream(resp.Body, func(_ string, data []byte) bool {
			if len(data) > 0 {
				got++
			}
			return true
		})
		resp.Body.Close()
		if took := time.Since(began); best == 0 || took < best {
			best = took
		}
		if err != nil {
			return nil, err
		}
	}
	return load.Metrics{
		"events": float64(got), "per_s": float64(got) / best.Seconds(), "rss_mb": float64(load.Memory(s.pid)) / (1 << 20),
	}, nil
}

type place struct{ id string }

// readStream reads events until more says no or the stream ends.
func readStream(r io.Reader, more func(id string, data []byte) bool) (last place, err error) {
	br := bufio.NewReaderSize(r, 256<<10)
	var id string
	for {
		line, err := br.ReadSlice('\n')
		if err == io.EOF {
			return last, nil
		}
		if err != nil {
			return last, err
		}
		switch {
		case bytes.HasPrefix(line, []byte("id: ")):
			id = string(line[4 : len(line)-1])
			last.id = id
		case bytes.HasPrefix(line, []byte("data: ")):
			if !more(id, line[6:len(line)-1]) {
				return last, nil
			}
			id = ""
		}
	}
}

// attach leaves calls and makes them again: how long until the second request is
// on the running call.
func (s *outlive) attach(n int) (load.Metrics, error) {
	session, err := s.open()
	if err != nil {
		return nil, err
	}
	args := func(i int) string { return fmt.Sprintf(`{"tag":"a%d","ms":120000,"n":1}`, i) }
	if err := s.hangUp(session, n, args); err != nil {
		return nil, err
	}
	var took []float64
	for i := range n {
		ctx, cancel := context.WithCancel(s.ctx)
		began := time.Now()
		resp, err := s.send(ctx, session, "", callOf(n+i+1, args(i)))
		if err == nil {
			_, err = bufio.NewReader(resp.Body).ReadSlice('\n')
			took = append(took, float64(time.Since(began).Microseconds())/1e3)
			resp.Body.Close()
		}
		cancel()
		if err != nil {
			return nil, err
		}
	}
	m, err := s.stats()
	if err != nil {
		return nil, err
	}
	slices.Sort(took)
	return load.Metrics{
		"ms_p50": took[len(took)/2], "ms_p99": took[len(took)*99/100], "twice": float64(m["started"] - int64(n)),
	}, nil
}

// detached leaves calls, which go on: what they cost.
func (s *outlive) detached(n int) (load.Metrics, error) {
	session, err := s.open()
	if err != nil {
		return nil, err
	}
	rest := load.Memory(s.pid)
	if err := s.hangUp(session, n, func(i int) string { return fmt.Sprintf(`{"tag":"d%d","ms":240000,"n":1}`, i) }); err != nil {
		return nil, err
	}
	var settled []float64
	for range 8 { // memory is given back within seconds
		select {
		case <-time.After(time.Second):
		case <-s.ctx.Done():
			return nil, context.Cause(s.ctx)
		}
		settled = append(settled, float64(load.Memory(s.pid)))
	}
	rss := slices.Min(settled)
	return load.Metrics{"rss_mb": rss / (1 << 20), "kb_per_call": (rss - float64(rest)) / 1024 / float64(n)}, nil
}

func (s *outlive) recoverResumable(n int) (load.Metrics, error) {
	return s.recover(n, func(i int) string { return fmt.Sprintf(`{"tag":"r%d","ms":240000,"n":60,"ids":true}`, i) })
}

func (s *outlive) recoverLost(n int) (load.Metrics, error) {
	return s.recover(n, func(i int) string { return fmt.Sprintf(`{"tag":"r%d","ms":240000,"n":1}`, i) })
}

// recover kills longcall while calls run, and starts it again.
func (s *outlive) recover(n int, args func(i int) string) (load.Metrics, error) {
	session, err := s.open()
	if err != nil {
		return nil, err
	}
	if err := s.hangUp(session, n, args); err != nil {
		return nil, err
	}
	select { // until every call has had an event, where it has any
	case <-time.After(6 * time.Second):
	case <-s.ctx.Done():
		return nil, context.Cause(s.ctx)
	}
	before, err := s.stats()
	if err != nil {
		return nil, err
	}
	if err := s.kill(); err != nil {
		return nil, err
	}
	took, err := s.serve()
	if err != nil {
		return nil, err
	}
	select {
	case <-time.After(5 * time.Second):
	case <-s.ctx.Done():
		return nil, context.Cause(s.ctx)
	}
	after, err := s.stats()
	if err != nil {
		return nil, err
	}
	return load.Metrics{
		"ready_s": took.Seconds(), "resumed": 100 * float64(after["resumed"]-before["resumed"]) / float64(n),
		"twice": float64(after["started"] - before["started"]), "rss_mb": float64(load.Memory(s.pid)) / (1 << 20),
	}, nil
}

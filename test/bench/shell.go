//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/longcall/longcall/test/bench/load"
)

// shellVariants are H1 to H4: commands of the shell. Where there is a floor, it
// is the same command without longcall, in turns.
var shellVariants = []struct {
	scenario, name string
	calls          int
	quick          bool
	run            func(*outlive, int) (floor, ours load.Metrics, err error)
}{
	{"H1", "await_call", 200, true, (*outlive).awaitExit},
	{"H2", "start", 100, true, (*outlive).startCommand},
	{"H3", "1 GiB of output", 1, false, (*outlive).flood},
	{"H4", "64 commands, 1 000 waiters", 1000, false, (*outlive).waiters},
}

func (p *programs) measureShell(ctx context.Context, o options, emit func(load.Record) error) error {
	for _, v := range shellVariants {
		if o.quick && !v.quick || o.scenarios != nil && !slices.Contains(o.scenarios, v.scenario) {
			continue
		}
		r := load.Record{Time: time.Now().UTC().Format(time.RFC3339), Era: "modern", Scenario: v.scenario, Variant: v.name, Calls: v.calls}
		_, err := p.outlive(ctx, func(s *outlive) (m load.Metrics, err error) {
			r.Floor, r.Peer, err = v.run(s, v.calls)
			return r.Peer, err
		})
		r.Ratio = load.Metrics{}
		for k, v := range r.Peer {
			if f := r.Floor[k]; f > 0 {
				r.Ratio[k] = v / f
			}
		}
		if err != nil {
			r.Failed = err.Error()
		}
		if err := emit(r); err != nil {
			return err
		}
	}
	return nil
}

// shellResult is what the bench reads of a result of the shell.
type shellResult struct {
	CallID     string `json:"call_id"`
	State      string `json:"state"`
	Output     string `json:"output"`
	TotalBytes int64  `json:"total_bytes"`
	WaitedOut  bool   `json:"waited_out"`
	Calls      []struct {
		State  string      `json:"state"`
		Result shellResult `json:"result"`
	} `json:"calls"`
}

// shell calls one tool at /mcp/shell in the stateless era and returns what its
// result says.
func (s *outlive) shell(ctx context.Context, tool string, args any) (r shellResult, err error) {
	raw, err := json.Marshal(args)
	if err != nil {
		return r, err
	}
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":%q,"arguments":%s,"_meta":{"progressToken":1,"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"bench","version":"1"}}}}`, tool, raw)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/mcp/shell", strings.NewReader(body))
	if err != nil {
		return r, err
	}
	for k, v := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": tool,
	} {
		req.Header.Set(k, v)
	}
	resp, err := s.agent.Do(req)
	if err != nil {
		return r, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return r, err
	}
	for line := range bytes.Lines(b) {
		data, ok := bytes.CutPrefix(line, []byte("data: "))
		if !ok && !bytes.HasPrefix(line, []byte("{")) {
			continue
		}
		if !ok {
			data = line
		}
		var m struct {
			Result *struct {
				IsError           bool            `json:"isError"`
				StructuredContent shellResult     `json:"structuredContent"`
				Content           json.RawMessage `json:"content"`
			} `json:"result"`
			Error json.RawMessage `json:"error"`
		}
		if err := json.Unmarshal(data, &m); err != nil {
			return r, err
		}
		switch {
		case m.Error != nil:
			return r, fmt.Errorf("%s: %s", tool, m.Error)
		case m.Result != nil && m.Result.IsError:
			return r, fmt.Errorf("%s: %s", tool, m.Result.Content)
		case m.Result != nil:
			return m.Result.StructuredContent, nil
		}
	}
	return r, fmt.Errorf("%s: no answer in %q", tool, b[:min(len(b), 500)])
}

// shims are the processes that supervise commands.
func (s *outlive) shims() []int { return load.Named(filepath.Join(s.dir, "state", "shell")) }

// shimMemory is what they take together; what they share is counted once.
func (s *outlive) shimMemory() (sum int64) {
	for _, pid := range s.shims() {
		sum += load.Share(pid)
	}
	return sum
}

func (s *outlive) shimCPU() (sum time.Duration) {
	for _, pid := range s.shims() {
		sum += load.CPU(pid)
	}
	return sum
}

// stamp is the time that a command printed last, in nanoseconds since 1970.
func stamp(output string) (time.Time, error) {
	f := strings.Fields(output)
	if len(f) == 0 {
		return time.Time{}, errors.New("the command printed nothing")
	}
	n, err := strconv.ParseInt(f[len(f)-1], 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("no time in %q", output)
	}
	return time.Unix(0, n), nil
}

func percentiles(prefix string, ms []float64) load.Metrics {
	slices.Sort(ms)
	return load.Metrics{prefix + "_p50": ms[len(ms)/2], prefix + "_p99": ms[len(ms)*99/100]}
}

func since(t time.Time) float64 { return float64(time.Since(t).Microseconds()) / 1e3 }

// awaitExit measures from a command's last word, which is before its exit, to
// the answer of the await_call that waited for it.
func (s *outlive) awaitExit(n int) (floor, ours load.Metrics, err error) {
	var took []float64
	for i := range n {
		r, err := s.shell(s.ctx, "exec_command", map[string]any{"command": fmt.Sprintf("sleep 0.2; : %d; date +%%s%%N", i), "yield_ms": 0})
		if err != nil {
			return nil, nil, err
		}
		r, err = s.shell(s.ctx, "await_call", map[string]any{"ids": []string{r.CallID}})
		now := time.Now()
		if err != nil {
			return nil, nil, err
		}
		if len(r.Calls) != 1 || r.Calls[0].State == "running" {
			return nil, nil, fmt.Errorf("await_call did not wait for the exit: %+v", r)
		}
		said, err := stamp(r.Calls[0].Result.Output)
		if err != nil {
			return nil, nil, err
		}
		took = append(took, float64(now.Sub(said).Microseconds())/1e3)
	}
	return nil, percentiles("ms", took), nil
}

// startCommand measures from the request to the command's first word, beside a
// bare exec of the same.
func (s *outlive) startCommand(n int) (floor, ours load.Metrics, err error) {
	var bare, took []float64
	for i := range n {
		command := fmt.Sprintf("date +%%s%%N; : %d", i)
		began := time.Now()
		out, err := exec.CommandContext(s.ctx, "/bin/bash", "-c", command).Output()
		if err != nil {
			return nil, nil, err
		}
		said, err := stamp(string(out))
		if err != nil {
			return nil, nil, err
		}
		bare = append(bare, float64(said.Sub(began).Microseconds())/1e3)
		began = time.Now()
		r, err := s.shell(s.ctx, "exec_command", map[string]any{"command": command})
		if err != nil {
			return nil, nil, err
		}
		if said, err = stamp(r.Output); err != nil {
			return nil, nil, err
		}
		took = append(took, float64(said.Sub(began).Microseconds())/1e3)
	}
	return percentiles("ms", bare), percentiles("ms", took), nil
}

// flood has a command write 1 GiB of lines, beside the same into a file.
func (s *outlive) flood(int) (floor, ours load.Metrics, err error) {
	const size = 1 << 30
	source := fmt.Sprintf("yes 'a line of output as a build may print it, with some length' | head -c %d", size)
	var bare, took []float64
	var serve, shims int64
	for range 2 {
		began := time.Now()
		file := filepath.Join(s.dir, "flood")
		if out, err := exec.CommandContext(s.ctx, "/bin/bash", "-c", source+" | cat > "+file).CombinedOutput(); err != nil {
			return nil, nil, fmt.Errorf("%w: %s", err, out)
		}
		bare = append(bare, since(began))
		os.Remove(file)
		began = time.Now()
		r, err := s.shell(s.ctx, "exec_command", map[string]any{"command": source, "yield_ms": 0, "if_running": "new"})
		if err != nil {
			return nil, nil, err
		}
		watched, stop := context.WithCancel(s.ctx)
		var wg sync.WaitGroup
		wg.Go(func() {
			for tick := time.Tick(20 * time.Millisecond); ; {
				select {
				case <-watched.Done():
					return
				case <-tick:
					serve = max(serve, load.Memory(s.pid))
					shims = max(shims, s.shimMemory())
				}
			}
		})
		for {
			a, err := s.shell(s.ctx, "await_call", map[string]any{"ids": []string{r.CallID}})
			if err != nil {
				stop()
				return nil, nil, err
			}
			if len(a.Calls) == 1 && a.Calls[0].State != "running" {
				took = append(took, since(began))
				if got := a.Calls[0].Result.TotalBytes; got != size {
					stop()
					return nil, nil, fmt.Errorf("the output has %d bytes, not %d", got, size)
				}
				break
			}
		}
		stop()
		wg.Wait()
	}
	rate := func(ms []float64) load.Metrics {
		return load.Metrics{"mb_per_s": size / (1 << 20) / slices.Min(ms) * 1e3}
	}
	ours = rate(took)
	ours["rss_mb"], ours["shim_mb"] = float64(serve)/(1<<20), float64(shims)/(1<<20)
	return rate(bare), ours, nil
}

// waiters has 64 commands run and many await_calls wait for them: what that costs
// while nothing happens.
func (s *outlive) waiters(n int) (floor, ours load.Metrics, err error) {
	const commands = 64
	var ids []string
	for i := range commands {
		r, err := s.shell(s.ctx, "exec_command", map[string]any{"command": fmt.Sprintf("sleep 600; : %d", i), "yield_ms": 0})
		if err != nil {
			return nil, nil, err
		}
		ids = append(ids, r.CallID)
	}
	ctx, cancel := context.WithCancel(s.ctx)
	var wg sync.WaitGroup
	defer func() {
		cancel()
		wg.Wait()
		for _, id := range ids {
			_, e := s.shell(s.ctx, "cancel_call", map[string]any{"id": id})
			err = errors.Join(err, e)
		}
	}()
	failed := make(chan error, n)
	for i := range n {
		wg.Go(func() {
			r, err := s.shell(ctx, "await_call", map[string]any{"ids": []string{ids[i%commands]}, "wait_ms": 120_000})
			if ctx.Err() == nil {
				failed <- fmt.Errorf("a wait ended before its time: %+v %w", r, err)
			}
		})
	}
	pause := func(d time.Duration) error {
		select {
		case <-time.After(d):
			return nil
		case err := <-failed:
			return err
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		}
	}
	if err := pause(10 * time.Second); err != nil { // all wait, and memory is given back
		return nil, nil, err
	}
	before := load.CPU(s.pid)
	shimsBefore := s.shimCPU()
	const window = 20 * time.Second
	if err := pause(window); err != nil {
		return nil, nil, err
	}
	share := func(used time.Duration) float64 { return 100 * used.Seconds() / window.Seconds() }
	return nil, load.Metrics{
		"rss_mb": float64(load.Memory(s.pid)) / (1 << 20), "shim_mb": float64(s.shimMemory()) / (1 << 20),
		"idle_cpu_pct": share(load.CPU(s.pid) - before), "shim_cpu_pct": share(s.shimCPU() - shimsBefore),
	}, nil
}

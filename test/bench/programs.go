//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/longcall/longcall/test/bench/load"
)

// programs are what a measurement starts.
type programs struct {
	work            string // scratch folder
	floor, upstream string
	longcall        string
	floorAgain      bool
}

func build(ctx context.Context, work string) (*programs, error) {
	const here = "github.com/longcall/longcall/test/bench/"
	cmd := exec.CommandContext(ctx, "go", "build", "-o", work+string(filepath.Separator), here+"floor", here+"upstream")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build: %w\n%s", err, out)
	}
	return &programs{work: work, floor: filepath.Join(work, "floor"), upstream: filepath.Join(work, "upstream")}, nil
}

// group is the processes of one measurement.
type group struct {
	log   *os.File
	procs []*exec.Cmd
}

// start runs a program in a process group of its own and returns its id.
func (g *group) start(path string, args ...string) (int, error) {
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = g.log, g.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("start %s: %w", path, err)
	}
	g.procs = append(g.procs, cmd)
	return cmd.Process.Pid, nil
}

// stop ends all processes: with SIGTERM, and 10 s later with SIGKILL.
func (g *group) stop() {
	for _, cmd := range g.procs {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) // a group that is gone is what we want
	}
	for _, cmd := range g.procs {
		hard := time.AfterFunc(10*time.Second, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
		_ = cmd.Wait() // it was killed, so it fails
		hard.Stop()
	}
	g.log.Close()
}

func freePort() (int, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port, nil
}

// measure runs one variant with a fresh upstream, floor and gateway. It gives
// the gateway's memory at rest as a record of its own, with the first variant.
func (p *programs) measure(ctx context.Context, era string, v load.Variant, length float64) []load.Record {
	failed := func(err error) []load.Record {
		return []load.Record{{
			Time: time.Now().UTC().Format(time.RFC3339), Era: era, Scenario: v.Scenario, Variant: v.Name, Calls: v.Calls, Failed: err.Error(),
		}}
	}
	dir, err := os.MkdirTemp(p.work, "run-")
	if err != nil {
		return failed(err)
	}
	defer os.RemoveAll(dir)
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return failed(err)
	}
	g := &group{log: log}
	defer g.stop()
	b, err := p.launch(ctx, g, dir, era)
	if err != nil {
		printed, _ := os.ReadFile(log.Name()) // it only helps to explain err
		return failed(fmt.Errorf("%w\n%s", err, printed[max(0, len(printed)-2000):]))
	}
	b.Length = length
	var out []load.Record
	if v.Scenario == "S1" {
		time.Sleep(3 * time.Second) // settle
		r := load.Record{Time: time.Now().UTC().Format(time.RFC3339), Era: era, Scenario: "rest", Variant: "before any call"}
		r.Floor, r.Peer = b.Floor.AtRest(), b.Peer.AtRest()
		out = append(out, r)
	}
	r := b.Measure(ctx, v)
	r.Era = era
	return append(out, r)
}

func (p *programs) launch(ctx context.Context, g *group, dir, era string) (*load.Bench, error) {
	var ports [3]int
	for i := range ports {
		var err error
		if ports[i], err = freePort(); err != nil {
			return nil, err
		}
	}
	addr := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", ports[i]) }
	upstream := "http://" + addr(0)
	if _, err := g.start(p.upstream, "-addr", addr(0), "-era", era); err != nil {
		return nil, err
	}
	floor, err := g.start(p.floor, "-addr", addr(1), "-up", upstream)
	if err != nil {
		return nil, err
	}
	path, args := p.floor, []string{"-addr", addr(2), "-up", upstream}
	url := "http://" + addr(2) + "/mcp"
	if !p.floorAgain {
		config := fmt.Sprintf("listen: %s\nstate: %q\nlimits: {per_principal: 20000}\nmcpServers:\n  up: {url: %q, era: %s, limits: {concurrent: 20000}}\n",
			addr(2), filepath.Join(dir, "state"), upstream+"/mcp", era)
		file := filepath.Join(dir, "longcall.yaml")
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			return nil, err
		}
		path, args, url = p.longcall, []string{"serve", "--no-auth", "--config", file}, url+"/up"
	}
	peer, err := g.start(path, args...)
	if err != nil {
		return nil, err
	}
	modern := era == "modern"
	b := &load.Bench{
		Floor: load.NewEndpoint("floor", "http://"+addr(1)+"/mcp", modern, floor),
		Peer:  load.NewEndpoint("longcall", url, modern, peer),
		Stats: upstream + "/control/stats",
	}
	return b, errors.Join(b.Floor.WaitFor(ctx, 30*time.Second), b.Peer.WaitFor(ctx, 30*time.Second))
}

package load

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// process is the process id of a gateway or of the floor; 0 is not measured.
type process int

// usage is what a process has used: its CPU time so far, and its memory and
// descriptors now. All is zero where there is no /proc.
type usage struct {
	cpu time.Duration
	rss int64 // bytes
	fds int
}

const tick = time.Second / 100 // USER_HZ

func (p process) usage() (u usage) {
	if p == 0 {
		return u
	}
	dir := filepath.Join("/proc", strconv.Itoa(int(p)))
	b, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return u
	}
	// Field k of proc(5) is number k-3 after the command's closing parenthesis.
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 22 {
		return u
	}
	u.cpu = ticks(f[11]) + ticks(f[12])
	pages, _ := strconv.ParseInt(f[21], 10, 64) // the kernel writes numbers
	u.rss = pages * int64(os.Getpagesize())
	fds, _ := os.ReadDir(filepath.Join(dir, "fd")) // a process that has just ended has none
	u.fds = len(fds)
	return u
}

func ticks(s string) time.Duration {
	n, _ := strconv.ParseInt(s, 10, 64) // the kernel writes numbers
	return time.Duration(n) * tick
}

// AtRest is the memory that the endpoint's process takes now.
func (e *Endpoint) AtRest() Metrics {
	if e.proc == 0 {
		return Metrics{}
	}
	return Metrics{"rss_mb": mib(e.proc.usage().rss)}
}

// Memory is what a process takes now, in bytes; 0 where there is no /proc.
func Memory(pid int) int64 { return process(pid).usage().rss }

// CPU is the time that a process has computed so far; 0 where there is no /proc.
func CPU(pid int) time.Duration { return process(pid).usage().cpu }

// Named are the processes whose command line contains s.
func Named(s string) (pids []int) {
	dirs, _ := filepath.Glob("/proc/[0-9]*") // the pattern is good
	for _, dir := range dirs {
		line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if pid, no := strconv.Atoi(filepath.Base(dir)); err == nil && no == nil && pid != os.Getpid() && bytes.Contains(line, []byte(s)) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Share is what a process takes now, in bytes, with what several share counted in
// parts; 0 where there is no /proc.
func Share(pid int) int64 {
	b, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "smaps_rollup")) // a process that has just ended has none
	for line := range bytes.Lines(b) {
		if rest, ok := bytes.CutPrefix(line, []byte("Pss:")); ok {
			kb, _ := strconv.ParseInt(strings.Fields(string(rest))[0], 10, 64) // the kernel writes numbers
			return kb << 10
		}
	}
	return 0
}

//go:build linux || darwin

package shell

import (
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"
)

// BenchmarkStart measures the start of a command through a shim, beside a bare
// exec. LONGCALL_SHIM names a binary of longcall to be the shim.
func BenchmarkStart(b *testing.B) {
	m, err := Open(b.Context(), Options{Dir: b.TempDir(), Exe: benchShim(), MaxPerOwner: 1 << 20, MaxTotal: 1 << 20})
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	var ready, told, bare []time.Duration
	for b.Loop() {
		t := time.Now()
		p, err := m.Start(b.Context(), testCommand("exec true"))
		if err != nil {
			b.Fatal(err)
		}
		ready = append(ready, time.Since(t))
		<-p.Done()
		told = append(told, time.Since(p.Status().Ended))
		t = time.Now()
		if err := exec.Command("/bin/sh", "-c", "exec true").Run(); err != nil {
			b.Fatal(err)
		}
		bare = append(bare, time.Since(t))
	}
	for name, d := range map[string][]time.Duration{"ready": ready, "told": told, "bare": bare} {
		slices.Sort(d)
		b.ReportMetric(float64(d[len(d)/2])/1e6, name+"-p50-ms")
		b.ReportMetric(float64(d[len(d)*99/100])/1e6, name+"-p99-ms")
	}
}

func benchShim() []string {
	if path := os.Getenv("LONGCALL_SHIM"); path != "" {
		return []string{path, ShimCommand}
	}
	return []string{os.Args[0], ShimCommand}
}

package spool

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

func TestCreate(t *testing.T) {
	dir := t.TempDir()
	w, err := Create(dir, Caps{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Create(dir, Caps{}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second one: %v", err)
	}
	for _, name := range []string{"out.log", "out.idx"} {
		if fi, err := os.Stat(filepath.Join(dir, name)); err != nil || fi.Mode().Perm() != 0o600 {
			t.Error(name, fi, err)
		}
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if _, err := Create(filepath.Join(dir, "none"), Caps{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a folder: %v", err)
	}
}

// The index knows stream and time of what was written, and stays small whatever the command does.
func TestIndex(t *testing.T) {
	w, r := spooled(t, Caps{})
	start := time.Now()
	for _, p := range []struct {
		s    Stream
		text string
	}{{Stdout, "out"}, {Stderr, "err"}, {Stdout, "again"}, {Stdout, "more"}} {
		if _, err := w.Write(p.s, []byte(p.text)); err != nil {
			t.Fatal(err)
		}
	}
	for at, want := range []struct {
		s    Stream
		from int64
	}{{Stdout, 0}, {Stdout, 0}, {Stdout, 0}, {Stderr, 3}, {Stderr, 3}, {Stderr, 3}, {Stdout, 6}, {Stdout, 6}} {
		if m, err := r.At(int64(at)); err != nil || m.Stream != want.s || m.Offset != want.from || m.Time.Before(start.Truncate(0)) || time.Since(m.Time) > time.Minute {
			t.Errorf("at %d: %+v, %v", at, m, err)
		}
	}
	for i := range 100_000 {
		if _, err := w.Write(Stream(1+i%2), []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	fi, err := os.Stat(filepath.Join(r.dir, "out.idx"))
	if err != nil || fi.Size() > entrySize*(entryFree+100_100/entryShare) {
		t.Errorf("index of 100 kB has %d bytes, %v", fi.Size(), err)
	}
}

// A disk that takes no more must neither stop the command nor shift cursors: what it did not take is told as no longer kept.
func TestDiskFull(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("no /dev/full here")
	}
	defer full.Close()
	w, r := spooled(t, Caps{}, "before\n")
	log := w.log
	w.log = full
	if n, err := w.Write(Stdout, []byte("lost\n")); n != 0 || err == nil {
		t.Error(n, err)
	}
	w.log = log
	if n, err := w.Write(Stdout, []byte("after\n")); n != 6 || err != nil {
		t.Error(n, err)
	}
	v, err := r.Summary(t.Context(), 0, Look{})
	if err != nil || v.Text != "before\n[… 5 bytes no longer kept]\nafter\n" || v.Total != 18 || v.Evicted != 5 || w.Total() != 18 {
		t.Errorf("%+v, %v", v, err)
	}
}

// flood is a process that writes a spool: blocks of 64 bytes, each saying its own offset.
func flood(dir string, total int64) error {
	w, err := Create(dir, Caps{Head: 1 << 20, Total: 4 << 20})
	if err != nil {
		return err
	}
	fmt.Println("created")
	var b bytes.Buffer
	for w.Total() < total {
		b.Reset()
		for i := range int64(1000) {
			fmt.Fprintf(&b, "%-63d\n", w.Total()+64*i)
		}
		if _, err := w.Write(Stdout, b.Bytes()); err != nil {
			return err
		}
	}
	return w.Close()
}

// Readers in another process see, at any time and from any cursor, the bytes that belong there, or that they are gone.
func TestReadersBesideAWriter(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), "SPOOL_FLOOD="+dir)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(stdout).ReadByte(); err != nil { // the spool is there
		t.Fatal(err)
	}
	r, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for from := range int64(4) {
		wg.Go(func() {
			var last int64
			for c := int64(-64 * 100 * (1 + from)); ; {
				v, err := r.Page(t.Context(), c, Look{Raw: true})
				if err != nil || v.Total < last {
					t.Error(err, v.Total, last)
					return
				}
				last = v.Total
				for i := 0; i < len(v.Text); {
					at := v.From + int64(i)
					if at%64 == 0 && len(v.Text)-i >= 64 {
						if want := fmt.Sprintf("%-63d\n", at); v.Text[i:i+64] != want {
							t.Errorf("at %d is %q", at, v.Text[i:i+64])
							return
						}
						i += 64
					} else {
						i++
					}
				}
				if v.Total == floodTotal && v.Next == v.Total {
					return
				}
				if c = v.Next; from%2 == 0 && v.Total < floodTotal {
					c = v.Total * from / 5
				}
			}
		})
	}
	wg.Wait()
	_, _ = io.Copy(io.Discard, stdout)
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if n := evicted(t, r, Caps{Head: 1 << 20, Total: 4 << 20}, floodTotal); n.To == n.From {
		t.Error("nothing was evicted")
	}
}

const floodTotal = 64_000 * 1000

// BenchmarkWrite is how fast a spool takes what comes in pieces of a pipe's size, beside a plain file (SHELL §7: 1 GiB at 0.5 times the
// speed of cat or more).
func BenchmarkWrite(b *testing.B) {
	p := bytes.Repeat([]byte("0123456789abcde\n"), 4<<10)
	b.Run("spool", func(b *testing.B) {
		w, err := Create(b.TempDir(), Caps{})
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(int64(len(p)))
		for b.Loop() {
			if _, err := w.Write(Stdout, p); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("file", func(b *testing.B) {
		f, err := os.Create(filepath.Join(b.TempDir(), "f"))
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(int64(len(p)))
		for n := 0; b.Loop(); n++ {
			if n%16384 == 0 { // a GiB
				_ = f.Truncate(0)
			}
			if _, err := f.Write(p); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkSummary(b *testing.B) {
	_, r := spooled(b, Caps{}, numbers(5_000_000))
	for b.Loop() {
		if _, err := r.Summary(b.Context(), 0, Look{}); err != nil {
			b.Fatal(err)
		}
	}
}

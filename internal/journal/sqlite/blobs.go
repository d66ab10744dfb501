package sqlite

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
)

// blobs is the folder that holds the bodies that are too large for the
// database, one file each. A file is written whole before the commit of the
// row that names it, and removed after the commit that deletes the row: so a
// file without a row is litter from a crash, and swept at the next start.
//
// Most of what a file costs is the kernel finding memory for its pages. Once
// large bodies come, spare files are made ahead: to write over their pages
// costs a tenth, and somebody waits for that. Their names hold the epoch, since
// two processes may write here at a time: see Drain.
type blobs struct {
	dir   string
	sync  bool
	bytes atomic.Int64 // of all files

	spares chan *os.File
	want   chan struct{} // asks for a spare
	size   atomic.Int64  // of the last body: what spares are made for
}

// A body that is larger than a spare gets new pages for the rest.
const (
	spareFiles = 2
	spareMax   = 4 << 20
	sparePart  = 64 << 10 // spares have whole multiples
	spareName  = "spare-"
)

func newBlobs(dir string, sync bool) *blobs {
	return &blobs{dir: dir, sync: sync, spares: make(chan *os.File, spareFiles), want: make(chan struct{}, 1)}
}

// file names a body: the call's number and the event's seq.
type file struct {
	n   int64
	seq uint64
}

func (b *blobs) path(f file) string {
	return filepath.Join(b.dir, fmt.Sprintf("%d-%d", f.n, f.seq))
}

func (b *blobs) write(n int64, seq uint64, body []byte) error {
	name := b.path(file{n, seq})
	b.size.Store(int64(len(body)))
	f, err := b.open(name)
	select {
	case b.want <- struct{}{}:
	default:
	}
	if err != nil {
		return err
	}
	_, err = f.WriteAt(body, 0)
	if err == nil {
		err = f.Truncate(int64(len(body)))
	}
	if err == nil && b.sync {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil && f.Name() != name {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		os.Remove(f.Name())
		return err
	}
	b.bytes.Add(int64(len(body)))
	return nil
}

// open gives a spare file, or makes a new one of that name.
func (b *blobs) open(name string) (*os.File, error) {
	select {
	case f := <-b.spares:
		return f, nil
	default:
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.Mkdir(b.dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		f, err = os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	}
	return f, err
}

// makeSpares is a goroutine that keeps spare files ready until quit.
func (b *blobs) makeSpares(epoch uint64, quit <-chan struct{}) {
	defer func() {
		for len(b.spares) > 0 {
			f := <-b.spares
			f.Close()
			os.Remove(f.Name())
		}
	}()
	for i := 0; ; {
		select {
		case <-b.want:
		case <-quit:
			return
		}
		for len(b.spares) < spareFiles {
			f, err := b.spare(fmt.Sprintf("%s%d-%d", spareName, epoch, i))
			if err != nil {
				break // the disk is full or worse: whoever has a body finds out
			}
			i++
			b.spares <- f // has room: nobody else sends
		}
	}
}

func (b *blobs) spare(name string) (*os.File, error) {
	name = filepath.Join(b.dir, name)
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	zeros := make([]byte, sparePart)
	for n := min(b.size.Load(), spareMax); n > 0 && err == nil; n -= sparePart {
		_, err = f.Write(zeros)
	}
	if err != nil {
		f.Close()
		os.Remove(name)
		return nil, err
	}
	return f, nil
}

// read gives a body back, and fails if it is not as long as it was.
func (b *blobs) read(f file, size int64) ([]byte, error) {
	body, err := os.ReadFile(b.path(f))
	if err != nil {
		return nil, err
	}
	if int64(len(body)) != size {
		return nil, fmt.Errorf("%s has %d bytes, not %d", b.path(f), len(body), size)
	}
	return body, nil
}

func (b *blobs) remove(f file) {
	name := b.path(f)
	if fi, err := os.Lstat(name); err == nil && os.Remove(name) == nil {
		b.bytes.Add(-fi.Size())
	}
}

// parseFile says which body the file with that name holds.
func parseFile(name string) (f file, ok bool) {
	call, seq, ok := strings.Cut(name, "-")
	n, err1 := strconv.ParseInt(call, 10, 64)
	s, err2 := strconv.ParseUint(seq, 10, 64)
	return file{n, s}, ok && err1 == nil && err2 == nil
}

// recount sums up the files again, also those that another process wrote. What
// is written or removed meanwhile may be off by its size.
func (b *blobs) recount() error {
	before := b.bytes.Load()
	entries, err := os.ReadDir(b.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	sum := int64(0)
	for _, e := range entries {
		if _, ok := parseFile(e.Name()); !ok {
			continue
		}
		if fi, err := e.Info(); err == nil {
			sum += fi.Size()
		}
	}
	b.bytes.Add(sum - before)
	return nil
}

// sweep removes files that no row names, and sums up the rest. A file may be
// there before its row if a process that still lives is about to end the call.
func (w *writer) sweep() error {
	b := w.j.blobs
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	find, err := w.c.prepare(`SELECT EXISTS (SELECT 1 FROM events WHERE key = ?1 AND file IS NOT NULL),
		(SELECT epoch FROM calls WHERE n = ?2 AND NOT EXISTS (SELECT 1 FROM ends WHERE ends.n = ?2))`)
	if err != nil {
		return err
	}
	defer w.c.drop(find)
	known := map[uint64]bool{}
	alive := func(epoch uint64) bool {
		a, ok := known[epoch]
		if !ok {
			a = w.j.alive(epoch)
			known[epoch] = a
		}
		return a
	}
	for _, e := range entries {
		if rest, ok := strings.CutPrefix(e.Name(), spareName); ok {
			epoch, _, _ := strings.Cut(rest, "-")
			if n, err := strconv.ParseUint(epoch, 10, 64); err != nil || !alive(n) {
				os.Remove(filepath.Join(b.dir, e.Name()))
			}
			continue
		}
		f, ok := parseFile(e.Name())
		if !ok {
			continue // not ours
		}
		find.int(1, f.n<<seqBits|int64(f.seq))
		find.int(2, f.n)
		if _, err := find.step(); err != nil {
			return err
		}
		litter := find.colInt(0) == 0 && (find.colNull(1) || !alive(uint64(find.colInt(1))))
		find.reset()
		if litter {
			os.Remove(b.path(f))
			continue
		}
		if fi, err := e.Info(); err == nil {
			b.bytes.Add(fi.Size())
		}
	}
	return nil
}

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
// costs a tenth, and somebody waits for that.
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
func (b *blobs) makeSpares(quit <-chan struct{}) {
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
			f, err := b.spare(i)
			if err != nil {
				break // the disk is full or worse: whoever has a body finds out
			}
			i++
			b.spares <- f // has room: nobody else sends
		}
	}
}

func (b *blobs) spare(i int) (*os.File, error) {
	name := filepath.Join(b.dir, spareName+strconv.Itoa(i))
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

// sweep removes files that no row names, and sums up the rest.
func (w *writer) sweep() error {
	b := w.j.blobs
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	find, err := w.c.prepare("SELECT 1 FROM events WHERE key = ?1 AND file IS NOT NULL")
	if err != nil {
		return err
	}
	defer w.c.drop(find)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), spareName) {
			os.Remove(filepath.Join(b.dir, e.Name()))
		}
		call, seq, ok := strings.Cut(e.Name(), "-")
		n, err1 := strconv.ParseInt(call, 10, 64)
		s, err2 := strconv.ParseInt(seq, 10, 64)
		if !ok || err1 != nil || err2 != nil {
			continue // not ours
		}
		find.int(1, n<<seqBits|s)
		found, err := find.step()
		if err != nil {
			return err
		}
		if !found {
			os.Remove(filepath.Join(b.dir, e.Name()))
			continue
		}
		find.reset()
		if fi, err := e.Info(); err == nil {
			b.bytes.Add(fi.Size())
		}
	}
	return nil
}

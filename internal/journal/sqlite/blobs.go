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
type blobs struct {
	dir   string
	sync  bool
	bytes atomic.Int64 // of all files
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
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.Mkdir(b.dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		f, err = os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	}
	if err != nil {
		return err
	}
	_, err = f.Write(body)
	if err == nil && b.sync {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		os.Remove(name)
		return err
	}
	b.bytes.Add(int64(len(body)))
	return nil
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
	b := &w.j.blobs
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

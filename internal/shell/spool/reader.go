package spool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"time"
)

// Reader reads a spool, also while a Writer in another process goes on. It holds no file open between calls; any number may be used,
// each from any number of goroutines.
type Reader struct {
	dir   string
	chunk int64 // see span
}

// Open finds the spool in a command's folder. The error is fs.ErrNotExist if there is none.
func Open(dir string) (*Reader, error) {
	if _, err := os.Stat(filepath.Join(dir, headName+logExt)); err != nil {
		return nil, fmt.Errorf("open spool: %w", err)
	}
	return &Reader{dir: dir, chunk: chunk}, nil
}

// Extent says which bytes there are now.
func (r *Reader) Extent() (Extent, error) {
	s, err := r.snap(0)
	if err != nil {
		return Extent{}, err
	}
	defer s.close()
	return Extent{Total: s.total, Evicted: s.gaps(0, s.total)}, nil
}

// Total is how many bytes were printed so far. It costs one look at the folder and one at the newest part.
func (r *Reader) Total() (int64, error) {
	s, err := r.snap(1<<63 - 1)
	if err != nil {
		return 0, err
	}
	s.close()
	return s.total, nil
}

// Raw copies the bytes from an offset on into b, as many as lie there without a gap, and says where they begin: at the offset, or
// where the next bytes are kept. n is 0 at the end of the output.
func (r *Reader) Raw(b []byte, offset int64) (n int, from int64, err error) {
	s, err := r.snap(offset)
	if err != nil {
		return 0, 0, err
	}
	defer s.close()
	from = s.kept(max(offset, 0))
	b, err = s.read(b, from)
	return len(b), from, err
}

// snap is a view of the folder at one moment: the parts from an offset on, held open, so that an eviction meanwhile takes nothing away.
type snap struct {
	parts []part
	total int64
}

type part struct {
	from, to int64
	log      *os.File
}

// snap opens the parts that hold bytes from an offset on, and at least the newest.
func (r *Reader) snap(offset int64) (*snap, error) {
	for range 8 {
		s, whole, err := r.look(offset)
		if err != nil || whole {
			return s, err
		}
		s.close()
	}
	return nil, errors.New("read spool: its files change faster than they can be listed")
}

// look is one try of snap. It is not whole if parts came or went between the listing and the opening, so that a gap may be none.
func (r *Reader) look(offset int64) (s *snap, whole bool, err error) {
	names, err := os.ReadDir(r.dir)
	if err != nil {
		return nil, false, fmt.Errorf("read spool: %w", err)
	}
	var starts []int64
	for _, e := range names {
		if from, ok := partFrom(e.Name(), logExt); ok {
			starts = append(starts, from)
		}
	}
	slices.Sort(starts)
	if len(starts) == 0 || starts[0] != 0 {
		return nil, false, fmt.Errorf("read spool: %w", fs.ErrNotExist)
	}
	for len(starts) > 1 && starts[1] <= offset {
		starts = starts[1:]
	}
	s = &snap{}
	for i, from := range starts {
		f, err := os.Open(filepath.Join(r.dir, partName(from)+logExt))
		if errors.Is(err, fs.ErrNotExist) {
			s.close()
			return s, false, nil
		}
		if err != nil {
			s.close()
			return nil, false, fmt.Errorf("read spool: %w", err)
		}
		s.parts = append(s.parts, part{from: from, to: from, log: f})
		fi, err := f.Stat()
		if err != nil {
			s.close()
			return nil, false, fmt.Errorf("read spool: %w", err)
		}
		p := &s.parts[len(s.parts)-1]
		p.to = from + fi.Size()
		if i > 0 && s.parts[i-1].to > from {
			s.close()
			return nil, false, fmt.Errorf("read spool: the parts at %d and %d overlap", s.parts[i-1].from, from)
		}
		s.total = p.to
	}
	return s, true, nil
}

func (s *snap) close() {
	for _, p := range s.parts {
		_ = p.log.Close() // was only read
	}
	s.parts = nil
}

// kept is the first offset from one on whose byte is kept, or the total.
func (s *snap) kept(offset int64) int64 {
	for _, p := range s.parts {
		if offset < p.to {
			return max(offset, p.from)
		}
	}
	return s.total
}

// gaps lists the bytes between two offsets that are not kept.
func (s *snap) gaps(from, to int64) (out []Range) {
	for i := 1; i < len(s.parts); i++ {
		g := Range{From: max(s.parts[i-1].to, from), To: min(s.parts[i].from, to)}
		if g.From < g.To {
			out = append(out, g)
		}
	}
	return out
}

// read fills b from an offset on, as far as bytes lie there without a gap.
func (s *snap) read(b []byte, offset int64) ([]byte, error) {
	n := 0
	for _, p := range s.parts {
		if at := offset + int64(n); p.from <= at && at < p.to && n < len(b) {
			k, err := p.log.ReadAt(b[n:min(int64(len(b)), int64(n)+p.to-at)], at-p.from)
			n += k
			if err != nil && !errors.Is(err, io.EOF) {
				return nil, fmt.Errorf("read output: %w", err)
			}
		}
	}
	return b[:n], nil
}

// before fills b with the bytes that end at an offset, as far back as they lie without a gap, and says where they begin.
func (s *snap) before(b []byte, offset int64) ([]byte, int64, error) {
	from := offset
	for _, p := range slices.Backward(s.parts) {
		if p.from < from && from <= p.to {
			from = max(p.from, offset-int64(len(b)))
		}
	}
	b, err := s.read(b[:offset-from], from)
	return b, from, err
}

// At says what the index knows of the byte at an offset. It is zero if the index knows nothing.
func (r *Reader) At(offset int64) (Mark, error) {
	names, err := os.ReadDir(r.dir)
	if err != nil {
		return Mark{}, fmt.Errorf("read index: %w", err)
	}
	base := int64(-1)
	for _, e := range names {
		if from, ok := partFrom(e.Name(), idxExt); ok && from <= offset {
			base = max(base, from)
		}
	}
	if base < 0 {
		return Mark{}, nil
	}
	f, err := os.Open(filepath.Join(r.dir, partName(base)+idxExt))
	if errors.Is(err, fs.ErrNotExist) {
		return Mark{}, nil // just evicted
	}
	if err != nil {
		return Mark{}, fmt.Errorf("read index: %w", err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return Mark{}, fmt.Errorf("read index: %w", err)
	}
	n := sort.Search(int(fi.Size()/entrySize), func(i int) bool {
		m, err := entry(f, int64(i))
		return err != nil || m.Offset > offset
	})
	if n == 0 {
		return Mark{}, nil
	}
	return entry(f, int64(n-1))
}

// entry reads an entry of an index.
func entry(f io.ReaderAt, i int64) (Mark, error) {
	var b [entrySize]byte
	if _, err := f.ReadAt(b[:], i*entrySize); err != nil {
		return Mark{}, fmt.Errorf("read index: %w", err)
	}
	return Mark{
		Offset: int64(binary.BigEndian.Uint64(b[:])),
		Time:   time.Unix(0, int64(binary.BigEndian.Uint64(b[8:]))),
		Stream: Stream(b[16]),
	}, nil
}

// settled says whether nothing more will follow the newest byte soon: the Writer was closed, or has been silent for a second. Until
// then half a character at the end is held back, since its other half is on its way.
func (r *Reader) settled(s *snap) bool {
	p := s.parts[len(s.parts)-1]
	if fi, err := p.log.Stat(); err != nil || time.Since(fi.ModTime()) > time.Second {
		return true
	}
	f, err := os.Open(filepath.Join(r.dir, partName(p.from)+idxExt))
	if err != nil {
		return true
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil || fi.Size() < entrySize {
		return err != nil
	}
	m, err := entry(f, fi.Size()/entrySize-1)
	return err != nil || m.Stream == closed
}

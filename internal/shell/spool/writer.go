package spool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"
	"unicode/utf8"
)

// An entry of the index is offset, time in nanoseconds since 1970 and stream: 8, 8 and 1 bytes, big endian.
const entrySize = 17

// Entries of the index: one at each change of stream, and otherwise one per this many bytes or this long. Their number in a part is
// bounded by its bytes, so that a command that changes its stream with each byte cannot fill the disk by its index.
const (
	entryBytes = 64 << 10
	entryAfter = time.Second
	entryFree  = 1024 // entries per part whatever its size, and one more per entryShare bytes
	entryShare = 256
)

// Writer appends a command's output. Its methods may be called from several goroutines.
type Writer struct {
	dir  string
	caps Caps

	mu      sync.Mutex
	log     *os.File // the part being written
	idx     *os.File
	from    int64 // offset of its first byte
	total   int64
	rolled  []int64 // offsets of the kept rolling parts, ascending; the last is being written, unless the head is
	entries int64   // in the part's index
	lost    bool    // bytes after the part's last one could not be written
	last    Mark
}

// Create starts the spool of a command in its folder, which must exist and have none. Files are readable by the user alone.
func Create(dir string, caps Caps) (*Writer, error) {
	w := &Writer{dir: dir, caps: caps.orDefault()}
	if err := w.open(0); err != nil {
		return nil, err
	}
	return w, nil
}

// open begins the part at an offset.
func (w *Writer) open(from int64) error {
	base := filepath.Join(w.dir, partName(from))
	log, err := os.OpenFile(base+logExt, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("create spool: %w", err)
	}
	idx, err := os.OpenFile(base+idxExt, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
	if err != nil {
		_ = log.Close()
		_ = os.Remove(base + logExt)
		return fmt.Errorf("create spool index: %w", err)
	}
	w.closeFiles()
	w.log, w.idx, w.from, w.entries, w.last, w.lost = log, idx, from, 0, Mark{}, false
	return nil
}

func (w *Writer) closeFiles() {
	if w.log != nil {
		_ = w.log.Close() // its bytes are with the system since Write
		_ = w.idx.Close()
	}
}

// Write appends what came from a stream. It never waits for readers. If the disk takes less than all of p, the error says so, the
// bytes it did not take count as printed and evicted, and the next Write tries again: a full disk must not stop the command.
func (w *Writer) Write(s Stream, p []byte) (n int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(p) > 0 {
		k := w.fits(p)
		if k == 0 {
			if err := w.roll(); err != nil {
				w.lose(p)
				return n, err
			}
			k = w.fits(p)
		}
		w.mark(s)
		k, err := w.log.Write(p[:k])
		n, p = n+k, p[k:]
		w.total += int64(k)
		if err != nil {
			w.lose(p)
			return n, fmt.Errorf("write spool: %w", err)
		}
	}
	return n, nil
}

// fits is how many of the bytes p go to the part being written: not more than it has room for, but for the rest of a character. None
// go there if bytes were lost since its last one, for what comes then has another offset than the end of the file.
func (w *Writer) fits(p []byte) int {
	size := w.caps.part()
	if w.from == 0 {
		size = w.caps.Head
	}
	room := size - (w.total - w.from)
	if w.lost {
		return 0
	}
	if room >= int64(len(p)) {
		return len(p)
	}
	n := int(max(room, 0))
	if k := runeStart(p, n); k > 0 {
		n = k
	} else if n > 0 && w.total > w.from {
		return 0 // one character, which begins the next part
	}
	for n < len(p) && !utf8.RuneStart(p[n]) && room+utf8.UTFMax-1 > int64(n) {
		n++ // begun by an earlier Write
	}
	return n
}

// lose counts bytes that could not be written.
func (w *Writer) lose(p []byte) {
	w.total += int64(len(p))
	w.lost = w.lost || len(p) > 0
}

// roll begins the next part, and evicts the oldest rolling part if there are too many.
func (w *Writer) roll() error {
	for len(w.rolled) >= rollParts {
		if err := removePart(w.dir, w.rolled[0]); err != nil {
			return err
		}
		w.rolled = w.rolled[1:]
	}
	if err := w.open(w.total); err != nil {
		return err
	}
	w.rolled = append(w.rolled, w.total)
	return nil
}

// removePart removes a part, if it is still there. Readers that have it open go on reading it.
func removePart(dir string, from int64) error {
	base := filepath.Join(dir, partName(from))
	for _, ext := range []string{idxExt, logExt} {
		if err := os.Remove(base + ext); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("evict output: %w", err)
		}
	}
	return nil
}

// mark writes an entry of the index for the next byte, if one is due. The index is a help: an entry that cannot be written is left out.
func (w *Writer) mark(s Stream) {
	now := time.Now()
	due := w.entries == 0 || s != w.last.Stream || w.total-w.last.Offset >= entryBytes || now.Sub(w.last.Time) >= entryAfter
	if !due || w.entries >= entryFree+(w.total-w.from)/entryShare {
		return
	}
	w.last = Mark{Offset: w.total, Time: now, Stream: s}
	w.entries++
	_, _ = w.idx.Write(appendEntry(nil, w.last))
}

func appendEntry(b []byte, m Mark) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(m.Offset))
	b = binary.BigEndian.AppendUint64(b, uint64(m.Time.UnixNano()))
	return append(b, byte(m.Stream))
}

// Total is how many bytes were printed so far.
func (w *Writer) Total() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.total
}

// Close ends the spool: nothing more will come. Readers then no longer wait for the rest of a broken character at its end.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := w.idx.Write(appendEntry(nil, Mark{Offset: w.total, Time: time.Now(), Stream: closed}))
	return errors.Join(err, w.idx.Close(), w.log.Close())
}

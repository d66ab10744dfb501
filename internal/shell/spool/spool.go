// Package spool keeps the output of one command on disk and shows windows of it.
//
// A Writer appends what a command prints, byte for byte in the order of arrival, to files in the command's own folder. A Reader,
// mostly in another process and while the Writer still writes, finds any part by its offset and never loads a file whole.
//
// Offsets ("cursors") count the bytes that the command has printed, from 0, and mean the same for ever, whatever has been evicted in
// between: the first Caps.Head bytes are kept, then the newest ones up to Caps.Total in all (SHELL §6).
//
// Files: out.log holds the first part, out.<offset>.log the parts after it, each beginning at the offset in its name, so that what is
// missing between two parts is known. Beside each lies an index, out.idx and out.<offset>.idx: sparse entries of offset, time, stream.
package spool

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Stream says where output came from. A pseudo-terminal has Stdout only.
type Stream uint8

// Streams of a command, and the mark that an index ends with once its Writer was closed.
const (
	Stdout Stream = 1 + iota
	Stderr
	closed
)

// Caps bounds what is kept of one command's output, in bytes. The zero value is DefaultCaps.
type Caps struct {
	Head  int64 // kept from the beginning
	Total int64 // kept at most in all: the head, and the newest bytes
}

// DefaultCaps are those of SHELL §6.
var DefaultCaps = Caps{Head: 16 << 20, Total: 256 << 20}

// Rolling parts are a sixteenth of what rolls, so that at least 15/16 of the newest bytes that Caps promises are always there.
const rollParts = 16

// part is the size of a rolling part, less what a character that begins in it may have behind it.
func (c Caps) part() int64 {
	n := (c.Total - c.Head) / rollParts
	if n > 16*utf8.UTFMax {
		n -= utf8.UTFMax
	}
	return max(n, 1)
}

func (c Caps) orDefault() Caps {
	if c.Head <= 0 {
		c.Head = DefaultCaps.Head
	}
	if c.Total <= 0 {
		c.Total = DefaultCaps.Total
	}
	c.Total = max(c.Total, 2)
	c.Head = min(c.Head, c.Total/2)
	return c
}

// Range is the bytes From ≤ offset < To.
type Range struct{ From, To int64 }

// Extent says which bytes there are.
type Extent struct {
	Total   int64   // bytes printed so far, and the offset of the next one
	Evicted []Range // those no longer kept, ascending
}

// Mark says what the index knows of a byte: when it came, or a byte shortly before it, and from which stream.
type Mark struct {
	Offset int64
	Time   time.Time
	Stream Stream
}

const (
	headName = "out"
	logExt   = ".log"
	idxExt   = ".idx"
)

// partName is the name, without extension, of the part that begins at an offset.
func partName(from int64) string {
	if from == 0 {
		return headName
	}
	return fmt.Sprintf("%s.%015d", headName, from)
}

// partFrom is the offset at which the part with a file name begins.
func partFrom(name, ext string) (from int64, ok bool) {
	name, ok = strings.CutSuffix(name, ext)
	if !ok {
		return 0, false
	}
	if name == headName {
		return 0, true
	}
	digits, ok := strings.CutPrefix(name, headName+".")
	if !ok {
		return 0, false
	}
	from, err := strconv.ParseInt(digits, 10, 64)
	return from, err == nil && from > 0
}

package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/longcall/longcall/internal/call"
)

// Filter says which calls to list. The zero value of a field means any.
type Filter struct {
	Principal   string
	Server      string
	Tool        string // the server's own name of it, or the one that the agent used
	Outcome     call.Outcome
	RunningOnly bool
	Since       time.Time // started then or later
	Before      time.Time // started before
	Limit       int       // how many at most; 0 means 100
}

// List gives calls, newest first. It checks no principal: that is up to the
// caller (I6).
func (j *Journal) List(ctx context.Context, f Filter) ([]call.Record, error) {
	if err := j.catchUp(ctx); err != nil {
		return nil, err
	}
	return j.reads().List(ctx, f)
}

// Deliveries gives how the attachments of a call ended, in the order in which
// they came, or call.ErrUnknown.
func (j *Journal) Deliveries(ctx context.Context, id call.ID) ([]call.Delivery, error) {
	if err := j.catchUp(ctx); err != nil {
		return nil, err
	}
	return j.reads().Deliveries(ctx, id)
}

// Find gives the one call whose id begins like that: see Reader.Find.
func (j *Journal) Find(ctx context.Context, prefix string) (call.ID, error) {
	if err := j.catchUp(ctx); err != nil {
		return "", err
	}
	return j.reads().Find(ctx, prefix)
}

// catchUp writes what is queued. If that cannot be written, what is written
// so far is better than nothing.
func (j *Journal) catchUp(ctx context.Context) error {
	if err := j.Flush(ctx); err != nil && ctx.Err() != nil {
		return err
	}
	return nil
}

func (j *Journal) reads() *Reader { return &Reader{j.pool, j.blobs} }

// Reader reads a journal, also one that another process writes.
type Reader struct {
	pool  *pool
	blobs *blobs
}

// OpenReadOnly opens the journal at path for reading, whether or not a process
// writes it at the time. It changes nothing, and fails if there is none or if
// its schema is another one.
func OpenReadOnly(path string) (*Reader, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("open journal: there is none at %s: start longcall serve once, or name the state folder that it uses: %w", path, err)
	}
	version, err := checkSchema(path, openWriter)
	if err != nil && !errors.Is(err, ErrNewer) {
		version, err = checkSchema(path, openReadOnly)
	}
	if err != nil {
		return nil, err
	}
	if version < schema {
		return nil, fmt.Errorf("open journal %s: it was written by an older longcall (schema %d, this one reads %d): start longcall serve once to bring it up to date", path, version, schema)
	}
	p := newPool(path, true)
	return &Reader{p, newBlobs(filepath.Join(filepath.Dir(path), "blobs"), false)}, nil
}

// Close closes the reader, when nobody uses it any more.
func (r *Reader) Close() error {
	r.pool.close()
	return nil
}

// Read is call.Log's Read, of what is written so far.
func (r *Reader) Read(ctx context.Context, id call.ID, after uint64, max int) (events []call.Event, err error) {
	err = r.pool.with(ctx, func(c *reader) error {
		events, err = c.read(r.blobs, id, 0, after, max)
		return err
	})
	return events, err
}

// Get is call.Log's Get, of what is written so far.
func (r *Reader) Get(ctx context.Context, id call.ID) (rec *call.Record, err error) {
	err = r.pool.with(ctx, func(c *reader) error {
		if _, err := c.open(id, 0); err != nil {
			return err
		}
		rec, err = c.record(c.head)
		return err
	})
	return rec, err
}

const (
	// listWindow is how many calls are looked at between two looks at ctx.
	listWindow = 10_000
	// listSlack is by how much calls may be out of the order of their start.
	listSlack = time.Minute
)

// List is Journal.List, of what is written so far.
func (r *Reader) List(ctx context.Context, f Filter) (list []call.Record, err error) {
	if f.Limit <= 0 {
		f.Limit = 100
	}
	outcome, err := number(outcomes, f.Outcome)
	if err != nil {
		return nil, fmt.Errorf("list calls: %w", err)
	}
	err = r.pool.with(ctx, func(c *reader) error {
		first, err := c.c.queryInt("SELECT min(n) FROM calls")
		if err != nil {
			return err
		}
		if f.RunningOnly {
			low, err := c.c.queryInt("SELECT low FROM owner")
			if err != nil {
				return err
			}
			first = max(first, low)
		}
		last, err := c.c.queryInt("SELECT max(n) FROM calls")
		if err != nil {
			return err
		}
		s, err := c.c.prepare("SELECT " + callColumns + ` WHERE c.n BETWEEN ?1 AND ?2
			AND (?3 IS NULL OR c.principal = ?3) AND (?4 IS NULL OR c.server = ?4) AND (?5 IS NULL OR c.tool = ?5 OR c.public_tool = ?5)
			AND (?6 = 0 OR e.outcome = ?6) AND (?7 = 0 OR e.n IS NULL) AND c.started >= ?8 AND (?9 = 0 OR c.started < ?9) ORDER BY c.n DESC`)
		if err != nil {
			return err
		}
		defer c.c.drop(s)
		for ; last >= first && last > 0 && len(list) < f.Limit; last -= listWindow {
			if err := ctx.Err(); err != nil {
				return err
			}
			newest, err := c.c.queryInt(fmt.Sprintf("SELECT started FROM calls WHERE n <= %d ORDER BY n DESC LIMIT 1", last))
			if err != nil {
				return err
			}
			if newest < stamp(f.Since)-listSlack.Microseconds() {
				return nil
			}
			s.int(1, max(first, last-listWindow+1))
			s.int(2, last)
			s.text(3, f.Principal)
			s.text(4, f.Server)
			s.text(5, f.Tool)
			s.int(6, outcome)
			s.int(7, bit(f.RunningOnly))
			s.int(8, stamp(f.Since))
			s.int(9, stamp(f.Before))
			for len(list) < f.Limit {
				ok, err := s.step()
				if err != nil {
					return err
				}
				if !ok {
					break
				}
				rec, err := c.record(s)
				if err != nil {
					return err
				}
				list = append(list, *rec)
			}
			s.reset()
		}
		return nil
	})
	return list, err
}

// Deliveries is Journal.Deliveries, of what is written so far.
func (r *Reader) Deliveries(ctx context.Context, id call.ID) (list []call.Delivery, err error) {
	err = r.pool.with(ctx, func(c *reader) error {
		n, err := c.open(id, 0)
		if err != nil {
			return err
		}
		s, err := c.c.prepare(`SELECT kind, how, era, attached, first_byte, ended, bytes, events, dropped
			FROM deliveries WHERE key BETWEEN ?1 << 16 AND (?1 << 16) + 65535 ORDER BY attached, key`)
		if err != nil {
			return err
		}
		defer c.c.drop(s)
		s.int(1, n)
		for {
			ok, err := s.step()
			if err != nil || !ok {
				return err
			}
			list = append(list, call.Delivery{
				Call: id, Kind: s.colText(0), How: word(hows, s.colInt(1)), Era: s.colText(2),
				Attached: unstamp(s.colInt(3)), FirstByte: time.Duration(s.colInt(4)) * time.Microsecond, Ended: unstamp(s.colInt(5)),
				Bytes: s.colInt(6), Events: s.colInt(7), Dropped: s.colInt(8),
			})
		}
	})
	return list, err
}

// Asks says whether a running call waits for an answer to what its tool asks, by
// what is written so far: the last of its ask and answer events says so.
func (r *Reader) Asks(ctx context.Context, id call.ID) (asks bool, err error) {
	err = r.pool.with(ctx, func(c *reader) error {
		n, err := c.open(id, 0)
		if err != nil {
			return err
		}
		s, err := c.c.prepare(`SELECT kind = 11 AND coalesce(file, length(body)) > 2
			FROM events WHERE key BETWEEN ?1 AND ?2 AND kind IN (11, 12) ORDER BY key DESC LIMIT 1`)
		if err != nil {
			return err
		}
		defer c.c.drop(s)
		s.int(1, n<<seqBits)
		s.int(2, n<<seqBits|maxSeq)
		ok, err := s.step()
		asks = ok && err == nil && s.colInt(0) != 0
		return err
	})
	return asks, err
}

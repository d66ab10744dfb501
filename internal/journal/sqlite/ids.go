package sqlite

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/longcall/longcall/internal/call"
)

// The index of calls by id is a table of numbers, which costs half of what one
// of texts does. A call is found by the first 60 bits of its id, and then by
// the id itself: see the schema.

// idTries is by how much a number in the index may differ from the id's own,
// because other calls have that.
const idTries = 16

// idDigits is how many characters of an id, 5 bits each, are in its number.
const idDigits = 12

// idNumber gives the number of an id, or the lowest of all that begin like
// this. It keeps the order of ids.
func idNumber(id string) (h int64) {
	id = strings.TrimPrefix(id, "c_")
	for i := range idDigits {
		h <<= 5
		if i < len(id) {
			switch c := id[i]; {
			case c >= 'a' && c <= 'z':
				h |= int64(c - 'a')
			case c >= '2' && c <= '7':
				h |= int64(c-'2') + 26
			}
		}
	}
	return h
}

// idRange gives the numbers of all ids that begin like this.
func idRange(prefix string) (from, to int64) {
	n := len(strings.TrimPrefix(prefix, "c_"))
	from = idNumber(prefix)
	if n < idDigits {
		return from, from | (1<<(5*(idDigits-n)) - 1) + idTries
	}
	return from, from + idTries
}

// entry is a call to be indexed.
type entry struct{ h, n int64 }

// addID puts a call in the index, if it is not there.
func (w *writer) addID(e entry) error {
	for h := e.h; h <= e.h+idTries; h++ {
		w.index.int(1, h)
		w.index.int(2, e.n)
		err := w.index.run()
		if err == nil || !single(err) {
			return err
		}
		w.indexedAs.int(1, h)
		ok, err := w.indexedAs.step()
		if err != nil {
			return err
		}
		if ok {
			n := w.indexedAs.colInt(0)
			w.indexedAs.reset()
			if n == e.n {
				return nil // a crash came before this was noted
			}
		}
	}
	return nil // can be found by list only, once in 10^18 calls
}

// indexAll puts in the index what a crash left out.
func (w *writer) indexAll() error {
	from, err := w.c.queryInt("SELECT indexed FROM owner")
	if err != nil {
		return err
	}
	s, err := w.c.prepare("SELECT n, id FROM calls WHERE n > ?1")
	if err != nil {
		return err
	}
	defer w.c.drop(s)
	s.int(1, from)
	var list []entry
	for {
		ok, err := s.step()
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		list = append(list, entry{idNumber(s.colText(1)), s.colInt(0)})
		from = max(from, s.colInt(0))
	}
	if len(list) == 0 {
		return nil
	}
	sortEntries(list)
	return w.write([]op{{kind: opTask, wait: &waiter{task: func(w *writer) error {
		for _, e := range list {
			if err := w.addID(e); err != nil {
				return err
			}
		}
		w.indexed.int(1, from)
		return w.indexed.run()
	}}}})
}

func sortEntries(list []entry) {
	slices.SortFunc(list, func(a, b entry) int {
		if a.h < b.h {
			return -1
		}
		return 1
	})
}

// index puts recent calls in the index in its order, so that each page of it
// is touched once for many calls.
func (m *maintainer) index(ctx context.Context) error {
	j := m.j
	j.mu.Lock()
	to := j.next - 1
	j.mu.Unlock()
	// What is taken up to now is stored after this, or not a recent call any more.
	if err := j.Flush(ctx); err != nil {
		return err
	}
	j.mu.Lock()
	list := make([]entry, 0, len(j.recents))
	for id, n := range j.recents {
		if n <= to {
			list = append(list, entry{idNumber(string(id)), n})
		}
	}
	j.mu.Unlock()
	sortEntries(list)
	for chunk := range slices.Chunk(list, indexChunk) {
		err := j.do(ctx, opTask, func(w *writer) error {
			for _, e := range chunk {
				if err := w.addID(e); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	err := j.do(ctx, opTask, func(w *writer) error {
		w.indexed.int(1, to)
		return w.indexed.run()
	})
	if err != nil {
		return err
	}
	// A new map, since an old one keeps the memory of its best days.
	j.mu.Lock()
	defer j.mu.Unlock()
	left := make(map[call.ID]int64, len(j.recents)-len(list))
	for id, n := range j.recents {
		if n > to {
			left[id] = n
		}
	}
	j.recents = left
	return nil
}

// lookup gives the number of a call; 0 if there is none.
func (w *writer) lookup(id call.ID) (int64, error) {
	if n := w.j.recent(id); n != 0 {
		return n, nil
	}
	return findID(w.find, id)
}

// findID runs findSQL.
func findID(s *stmt, id call.ID) (int64, error) {
	from := idNumber(string(id))
	s.int(1, from)
	s.int(2, from+idTries)
	s.text(3, string(id))
	ok, err := s.step()
	if err != nil || !ok {
		return 0, err
	}
	n := s.colInt(0)
	s.reset()
	return n, nil
}

const findSQL = "SELECT c.n FROM ids i CROSS JOIN calls c ON c.n = i.n WHERE i.h BETWEEN ?1 AND ?2 AND c.id = ?3"

// Find gives the one call whose id begins like that, with or without its "c_",
// of what is written so far. None gives call.ErrUnknown, several an error that
// names some.
func (r *Reader) Find(ctx context.Context, prefix string) (call.ID, error) {
	prefix = strings.ToLower(strings.TrimSpace(prefix))
	if !strings.HasPrefix(prefix, "c_") {
		prefix = "c_" + prefix
	}
	var ids []string
	err := r.pool.with(ctx, func(c *reader) error {
		s, err := c.c.prepare(`SELECT c.id FROM ids i CROSS JOIN calls c ON c.n = i.n WHERE i.h BETWEEN ?1 AND ?2 AND substr(c.id, 1, length(?3)) = ?3
			UNION SELECT id FROM calls WHERE n > (SELECT indexed FROM owner) AND substr(id, 1, length(?3)) = ?3 LIMIT 4`)
		if err != nil {
			return err
		}
		defer c.c.drop(s)
		from, to := idRange(prefix)
		s.int(1, from)
		s.int(2, to)
		s.text(3, prefix)
		for {
			ok, err := s.step()
			if err != nil || !ok {
				return err
			}
			ids = append(ids, s.colText(0))
		}
	})
	switch {
	case err != nil:
		return "", err
	case len(ids) == 0:
		return "", call.ErrUnknown
	case len(ids) > 1:
		return "", fmt.Errorf("several calls begin with %s, such as %s: give more of the id", prefix, strings.Join(ids[:min(3, len(ids))], ", "))
	}
	return call.ID(ids[0]), nil
}

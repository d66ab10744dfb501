package sqlite

// kept counts the events of a running call that are in the database, so that
// the middle can go when there are too many (Options.MaxEvents, MaxBytes).
type kept struct {
	events int
	bytes  int64
	// head is the seq of the last event of the first quarter, 0 while that
	// is not full. What comes after it is counted in chunks, oldest first.
	head    uint64
	chunks  []chunk
	open    chunk  // the newest, not in chunks yet
	address uint64 // seq of the last KindAddress
}

// chunk is a number of events side by side.
type chunk struct {
	last  uint64 // seq of its last event
	n     int
	bytes int64
}

func (k *kept) add(seq uint64, bytes int64) {
	k.events++
	k.bytes += bytes
	if k.head != 0 {
		k.open.last = seq
		k.open.n++
		k.open.bytes += bytes
	}
}

// cap deletes the oldest events behind the head when a call has more than is
// kept of one. It does so in chunks of a 64th, so that most events delete
// nothing.
func (w *writer) cap(run *run, seq uint64) error {
	k, maxN, maxB := &run.kept, w.j.opt.MaxEvents, w.j.opt.MaxBytes
	if k.head == 0 {
		if k.events < maxN/4 && k.bytes < maxB/4 {
			return nil
		}
		k.head = seq
		return nil
	}
	if k.open.n >= max(maxN/64, 1) || k.open.bytes >= max(maxB/64, 1) {
		k.chunks = append(k.chunks, k.open)
		k.open = chunk{}
	}
	last, n := uint64(0), 0
	for len(k.chunks) > 0 && (k.events > maxN || k.bytes > maxB) {
		c := k.chunks[0]
		k.chunks = k.chunks[1:]
		k.events -= c.n
		k.bytes -= c.bytes
		last = c.last
		n += c.n
	}
	if last == 0 {
		return nil
	}
	// Where the call can be found again is kept, until there is a newer one.
	deleted, err := w.deleteEvents(run.n, k.head+1, last, k.address)
	k.events += n - deleted
	return err
}

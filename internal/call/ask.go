package call

// maxAnswers is how many answers may wait for a call's runner; one more gives
// ErrFull.
const maxAnswers = 16

// Asked gives the input requests that wait for an answer now, a JSON object by
// key; nil if there are none.
func (c *Call) Asked() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ending {
		return nil
	}
	return c.asked
}

// Answer gives input responses, a JSON object by key, to the call; keys is a
// JSON array of their names, for the record. A call that asks nothing ignores
// it.
func (c *Call) Answer(responses, keys []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.ending:
		return ErrNotRunning
	case c.foreign:
		return ErrElsewhere
	case c.answers == nil:
		return nil
	}
	select {
	case c.answers <- responses:
		c.appendLocked(Event{Kind: KindAnswer, Hole: -1, Body: keys})
		return nil
	default:
		return ErrFull
	}
}

// Stored says whether the call survives a crash of the process.
func (c *Call) Stored() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stored
}

// Latest gives the last event of a kind that is still in memory; ok is false if
// none is.
func (c *Call) Latest(k Kind) (ev Event, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := len(c.tail) - 1; i >= 0; i-- {
		if c.tail[i].Kind == k {
			return c.tail[i], true
		}
	}
	return Event{}, false
}

// ServerTask says that the tool server itself has made a task of the call, so
// that its end is not near.
func (c *Call) ServerTask() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.serverTask
}

// ServerTask notes that the tool server has made a task of the call. It is to be
// called before the Address or Note that tells of it, which wakes the readers.
func (x *Exec) ServerTask() {
	x.c.mu.Lock()
	defer x.c.mu.Unlock()
	x.c.serverTask = true
}

// Reached says whether a reader can have been at seq.
func (c *Call) Reached(seq uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return seq <= c.rec.Seq || c.resume != nil || c.foreign
}

package call

import (
	"encoding/json"
	"slices"
	"time"
)

// maxAnswers is how many answers may wait for a call's runner; one more gives
// ErrFull.
const maxAnswers = 16

// maxPulses is how many signs of an agent at work on a question wait for the
// runner; one more is dropped, since the next says the same.
const maxPulses = 4

// Pulse is a sign that somebody works on an answer: progress of the agent on one
// request.
type Pulse struct {
	Key      string // of the request
	Progress []byte // the agent's notifications/progress, raw
}

// Asked gives the input requests that wait for an answer now, a JSON object by
// key; nil if there are none.
func (c *Call) Asked() []byte {
	requests, _ := c.Question()
	return requests
}

// Question is Asked, with the runner's own words for how an answer can still be
// used when this call is no more; nil if it cannot. See Exec.Ask.
func (c *Call) Question() (requests, state []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ending || c.asked == nil {
		return nil, nil
	}
	return c.asked, c.askState
}

// AskedAt is the seq of the event that first asked for an answer to the key, of
// those that wait now; 0 if it does not wait.
func (c *Call) AskedAt(key string) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.askedSeq[key]
}

// Attended says whether an agent's request reads the call now, apart from those
// that found it by its id.
func (c *Call) Attended() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.readers > c.watchers
}

// Pulse tells the runner that somebody works on an answer. It does not wait, and
// may be lost.
func (c *Call) Pulse(p Pulse) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ending || c.pulses == nil {
		return
	}
	select {
	case c.pulses <- p:
	default:
	}
}

// Answer gives input responses, a JSON object by key, to the call; keys is a
// JSON array of their names, for the record. What was answered is asked no more,
// at once. What is not asked, or not any more, is ignored: of two agents that answer
// the same, the first counts.
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
	if responses, keys = c.wanted(responses, keys); responses == nil {
		return nil
	}
	select {
	case c.answers <- responses:
		c.settled(keys)
		c.appendLocked(Event{Kind: KindAnswer, Hole: -1, Body: keys})
		c.ask(c.open(c.asked))
		return nil
	default:
		return ErrFull
	}
}

// wanted is what of responses and keys is asked now; nil if nothing is. c.mu is held.
func (c *Call) wanted(responses, keys []byte) (some, theirKeys []byte) {
	var names, left []string
	var asked, all map[string]json.RawMessage
	if c.asked == nil || json.Unmarshal(c.asked, &asked) != nil || json.Unmarshal(keys, &names) != nil {
		return nil, nil
	}
	for _, k := range names {
		if _, ok := asked[k]; ok {
			left = append(left, k)
		}
	}
	switch {
	case len(left) == len(names):
		return responses, keys
	case left == nil, json.Unmarshal(responses, &all) != nil:
		return nil, nil
	}
	for k := range all {
		if !slices.Contains(left, k) {
			delete(all, k)
		}
	}
	some, err := json.Marshal(all)
	if err == nil {
		theirKeys, err = json.Marshal(left)
	}
	if err != nil {
		return nil, nil
	}
	return some, theirKeys
}

// ask notes what the call waits for from now on: nil is nothing. While it waits,
// its time stands still (SPEC §2.4). c.mu is held.
func (c *Call) ask(requests []byte) {
	was := c.asked
	c.asked = requests
	switch {
	case requests != nil:
		c.appendLocked(Event{Kind: KindAsk, Hole: -1, Body: requests})
	case was != nil:
		c.appendLocked(Event{Kind: KindAsk, Hole: -1, Body: []byte("{}")})
	}
	c.noteAsked(c.asked, c.rec.Seq)
	switch now := time.Now(); {
	case was == nil && requests != nil:
		c.askedAt = now
		if c.total != nil {
			c.total.Stop()
		}
	case was != nil && requests == nil:
		c.waited += now.Sub(c.askedAt)
		if c.total != nil {
			c.total.Reset(time.Until(c.overdueAt()))
		}
	}
}

// noteAsked keeps when each key of requests was asked first, which is at seq if it was
// not asked before; c.mu is held.
func (c *Call) noteAsked(requests []byte, seq uint64) {
	var all map[string]json.RawMessage
	if requests == nil || json.Unmarshal(requests, &all) != nil {
		c.askedSeq = nil
		return
	}
	was := c.askedSeq
	c.askedSeq = make(map[string]uint64, len(all))
	for k := range all {
		if c.askedSeq[k] = was[k]; was[k] == 0 {
			c.askedSeq[k] = seq
		}
	}
}

// overdueAt is when limits.total ends the call, if it does not wait; c.mu is held.
func (c *Call) overdueAt() time.Time {
	return c.rec.Started.Add(c.rec.Limits.Total + c.waited)
}

// settled notes keys, a JSON array, whose answers wait for the runner; c.mu is held.
func (c *Call) settled(keys []byte) {
	var list []string
	if json.Unmarshal(keys, &list) != nil {
		return
	}
	if c.answered == nil {
		c.answered = map[string]bool{}
	}
	for _, k := range list {
		c.answered[k] = true
	}
}

// open is requests without those whose answers wait for the runner, which may
// have asked the tool server before they came. It is nil if none is left; c.mu is
// held.
func (c *Call) open(requests []byte) []byte {
	if requests == nil || len(c.answered) == 0 {
		return requests
	}
	var all map[string]json.RawMessage
	if json.Unmarshal(requests, &all) != nil {
		return requests
	}
	n := len(all)
	for k := range c.answered {
		delete(all, k)
	}
	switch len(all) {
	case n:
		return requests
	case 0:
		return nil
	}
	left, err := json.Marshal(all)
	if err != nil {
		return requests
	}
	return left
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
	for _, ev := range slices.Backward(c.tail) {
		if ev.Kind == k {
			return ev, true
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

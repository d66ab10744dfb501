package wire

import (
	"strconv"
	"strings"
)

// EventLog keeps the numbered events of one call for agents that come back
// with Last-Event-ID, which the scripted server then serves from it.
type EventLog struct {
	u      *Upstream
	name   string
	events []string
	done   bool
}

// NewLog makes a log whose events have the ids name_1, name_2 and so on; as
// Last-Event-ID name_0 means the start. The name is the log's alone.
func (u *Upstream) NewLog(name string) *EventLog {
	l := &EventLog{u: u, name: name}
	u.change(func() { u.logs[name] = l })
	return l
}

// log finds the log that an event id belongs to, and the event's number.
func (u *Upstream) log(id string) (*EventLog, int) {
	i := strings.LastIndexByte(id, '_')
	if i < 0 {
		return nil, 0
	}
	n, err := strconv.Atoi(id[i+1:])
	if err != nil {
		return nil, 0
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.logs[id[:i]], n
}

// Append adds messages.
func (l *EventLog) Append(messages ...string) {
	l.u.change(func() { l.events = append(l.events, messages...) })
}

// Finish says that no more messages come: streams end after the last.
func (l *EventLog) Finish() { l.u.change(func() { l.done = true }) }

// Serve writes the events after number after, each as one segment, until the
// log is finished, the agent has left, or event number last was written
// (0 means no such bound).
func (l *EventLog) Serve(c *Conn, after, last int) {
	for n := after; ; {
		wake := l.u.wake()
		l.u.mu.Lock()
		events, done := l.events[min(n, len(l.events)):], l.done
		l.u.mu.Unlock()
		for _, m := range events {
			n++
			c.EventID(l.name+"_"+strconv.Itoa(n), m)
			if n == last {
				return
			}
		}
		if done {
			return
		}
		select {
		case <-wake:
		case <-c.gone:
			return
		case <-l.u.done:
			return
		}
	}
}

package wire

import (
	"strings"
	"time"
)

// Item is one thing in an event stream: a whole event, or a comment.
type Item struct {
	At      time.Duration // when its last byte came, since the request was sent
	Comment bool
	ID      string
	HasID   bool
	Type    string
	Data    string // of an event; the text of a comment
	HasData bool
	Retry   string
}

// Msg is the JSON-RPC message in an event; ok is false if there is none.
func (i *Item) Msg() (Msg, bool) {
	if i.Comment || i.Data == "" {
		return Msg{}, false
	}
	return ParseMsg(i.Data)
}

// Splitter cuts an event stream into items as its bytes come. It keeps
// comments, and takes CR, LF and CRLF as line ends.
type Splitter struct {
	line   []byte
	cr     bool // the last byte was a CR, which an LF may follow
	data   []string
	event  Item
	any    bool // the event has a field
	Broken bool // bytes of an event that has not ended are there
}

// Feed takes in bytes that came at a time, and returns what they complete.
func (s *Splitter) Feed(b []byte, at time.Duration) (out []Item) {
	for _, c := range b {
		switch {
		case c == '\n' && s.cr:
			s.cr = false
			continue
		case c != '\n' && c != '\r':
			s.cr = false
			s.line = append(s.line, c)
			continue
		}
		s.cr = c == '\r'
		if i, ok := s.endLine(at); ok {
			out = append(out, i)
		}
	}
	s.Broken = s.any || len(s.line) > 0
	return out
}

func (s *Splitter) endLine(at time.Duration) (Item, bool) {
	line := string(s.line)
	s.line = s.line[:0]
	if line == "" {
		i, whole := s.event, s.any
		i.At, i.Data, i.HasData = at, strings.Join(s.data, "\n"), s.data != nil
		s.event, s.data, s.any = Item{}, nil, false
		return i, whole
	}
	if text, ok := strings.CutPrefix(line, ":"); ok {
		return Item{At: at, Comment: true, Data: strings.TrimPrefix(text, " ")}, true
	}
	name, value, _ := strings.Cut(line, ":")
	value = strings.TrimPrefix(value, " ")
	s.any = true
	switch name {
	case "data":
		s.data = append(s.data, value)
	case "event":
		s.event.Type = value
	case "id":
		s.event.ID, s.event.HasID = value, true
	case "retry":
		s.event.Retry = value
	}
	return Item{}, false
}

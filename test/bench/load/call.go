package load

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// work is one call to make.
type work struct {
	ms, n, bytes int
	hold, ids    bool
	drop         int
	resume       bool          // come back with Last-Event-ID when the stream breaks
	id, token    string        // JSON; empty means unique
	tag          string        // what the upstream puts in every message; empty means unique
	patience     time.Duration // beyond ms; 0 means 10 s
}

// outcome is what the agent saw.
type outcome struct {
	ok         bool
	why        string // if not ok
	sent, done time.Time
	headers    time.Duration // to the response's headers
	first      time.Duration // to the first byte of the body
	gap        time.Duration // longest silence, from the request to the result
	events     int
	latency    []time.Duration // of each event, from upstream's write to our read
	order      int             // events out of order, twice, or after the result
	cross      int             // events or results of another call
	beats      int             // comments and made-up progress
	resumed    int
	stall      time.Duration // from the upstream's cut to the next event

	last    time.Time
	lastSeq int
	cutAt   time.Time
	eventID string
}

var tags atomic.Int64

func (s *session) call(ctx context.Context, w work) *outcome {
	id, token, tag := w.id, w.token, w.tag
	if tag == "" {
		tag = "t" + strconv.FormatInt(tags.Add(1), 36) + "."
	}
	if id == "" {
		id = strconv.FormatInt(s.next.Add(1)+1, 10)
	}
	if token == "" {
		token = `"` + tag + `"`
	}
	meta := `"progressToken":` + token
	if s.modern {
		meta += "," + modernMeta
	}
	args := fmt.Sprintf(`{"tag":"%s","ms":%d,"n":%d`, tag, w.ms, w.n)
	if w.bytes > 0 {
		args += fmt.Sprintf(`,"bytes":%d`, w.bytes)
	}
	if w.hold {
		args += `,"hold":true`
	}
	if w.ids {
		args += fmt.Sprintf(`,"ids":true,"drop":%d`, w.drop)
	}
	body := `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"` + s.tool + `","arguments":` + args + `},"_meta":{` + meta + `}}}`
	if w.patience == 0 {
		w.patience = 10 * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(w.ms)*time.Millisecond+w.patience)
	defer cancel()

	o := &outcome{sent: time.Now()}
	o.last = o.sent
	resp, err := s.request(ctx, "tools/call", s.id, s.tool, "", body)
	o.last = time.Now()
	o.headers = o.last.Sub(o.sent)
	o.gap = o.headers
	s.read(resp, err, o, tag, w, cancel)
	for try := 0; w.resume && o.done.IsZero() && o.eventID != "" && ctx.Err() == nil && try < 5; try++ {
		time.Sleep(100 * time.Millisecond)
		resp, err := s.request(ctx, http.MethodGet, s.id, "", o.eventID, "")
		o.resumed++
		s.read(resp, err, o, tag, w, cancel)
	}
	if o.done.IsZero() {
		o.done = time.Now()
		if o.why == "" {
			o.why = "no result"
		}
	}
	return o
}

// listen reads the agent's standalone stream until ctx ends, as one long call
// that never gets a result.
func (s *session) listen(ctx context.Context, tag string) *outcome {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	o := &outcome{}
	resp, err := s.request(ctx, http.MethodGet, s.id, "", "", "")
	s.read(resp, err, o, tag, work{}, cancel)
	return o
}

// read takes in one response, to its end or to its deadline.
func (s *session) read(resp *http.Response, err error, o *outcome, tag string, w work, cancel func()) {
	if err != nil {
		o.why = reason(err)
		return
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		o.why = "HTTP " + strconv.Itoa(resp.StatusCode)
		return
	}
	r := bufio.NewReaderSize(resp.Body, 4<<10)
	var long []byte
	var grace *time.Timer
	for {
		line, err := r.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			long = append(long, line...)
			continue
		}
		if long != nil {
			long = append(long, line...)
			line, long = long, nil
		}
		now := time.Now()
		if len(line) > 0 && o.done.IsZero() {
			if o.first == 0 {
				o.first = now.Sub(o.sent)
			}
			o.gap = max(o.gap, now.Sub(o.last))
			o.last = now
		}
		switch {
		case bytes.HasPrefix(line, []byte(":")):
			o.beats++
		case bytes.HasPrefix(line, []byte("id:")):
			o.eventID = string(bytes.TrimSpace(line[3:]))
		case bytes.HasPrefix(line, []byte("data:")):
			o.message(line[5:], now, tag, w)
		case bytes.HasPrefix(line, []byte("{")):
			o.message(line, now, tag, w)
		}
		if !o.done.IsZero() && grace == nil {
			// What follows the result is read, but not waited for.
			grace = time.AfterFunc(500*time.Millisecond, cancel)
			defer grace.Stop()
		}
		if err != nil {
			if !errors.Is(err, io.EOF) && o.why == "" && o.done.IsZero() {
				o.why = reason(err)
			}
			return
		}
	}
}

// message takes in one JSON-RPC message. It looks only at the text that the
// upstream wrote, so that it costs little and any rewriting passes.
func (o *outcome) message(b []byte, now time.Time, tag string, w work) {
	if bytes.Contains(b[:min(len(b), 400)], []byte(`"notifications/progress"`)) {
		f := strings.Fields(field(b, `"message"`))
		if len(f) != 3 || !strings.HasSuffix(f[0], ".") {
			o.beats++
			return
		}
		seq, _ := strconv.Atoi(f[1])
		ns, err := strconv.ParseInt(f[2], 10, 64)
		switch {
		case err != nil:
			o.beats++
		case f[0] != tag:
			o.cross++
		case seq <= o.lastSeq || !o.done.IsZero():
			o.order++
		default:
			at := time.Unix(0, ns)
			o.events++
			o.latency = append(o.latency, now.Sub(at))
			if w.drop > 0 && o.lastSeq == w.drop {
				o.stall = now.Sub(o.cutAt)
			}
			o.lastSeq, o.cutAt = seq, at
		}
		return
	}
	if !bytes.Contains(b, []byte(`"result"`)) && !bytes.Contains(b, []byte(`"error"`)) {
		return
	}
	i := bytes.Index(b, []byte("done t"))
	switch {
	case i < 0 || len(b) < w.bytes:
		o.why = string(bytes.TrimSpace(b[:min(len(b), 160)]))
	case !bytes.HasPrefix(b[i+5:], []byte(tag)):
		o.cross++
		o.why = "the result of another call"
	default:
		o.ok = true
	}
	o.done = now
}

// field is the string after key, which must not hold an escape.
func field(b []byte, key string) string {
	i := bytes.LastIndex(b, []byte(key))
	if i < 0 {
		return ""
	}
	b = b[i+len(key):]
	if i = bytes.IndexByte(b, '"'); i < 0 {
		return ""
	}
	b = b[i+1:]
	if i = bytes.IndexByte(b, '"'); i < 0 {
		return ""
	}
	return string(b[:i])
}

func reason(err error) string {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "no result in time"
	case errors.Is(err, context.Canceled):
		return "cancelled"
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return "the connection broke"
	}
	s := err.Error()
	return s[max(0, len(s)-80):]
}

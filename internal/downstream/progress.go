package downstream

import (
	"math"
	"strconv"
	"time"
)

// beatsPerUnit is how many seconds of silence make one unit of progress while
// nobody has measured any: so many that we stay below the tool server's first
// step, whatever its scale, and its own values can be shown as they are
// (SPEC §2.2).
const beatsPerUnit = 1e6

// line is the number line of one progress token. What is sent on it strictly
// increases (I11), whatever the tool server and our beats say.
type line struct {
	any      bool
	v        float64 // sent last
	measured bool    // the tool server has sent a value
	base     float64 // sent last for one of its messages
	total    float64
	hasTotal bool
	num      [32]byte // where a raised value is written
}

// appendProgress appends the notifications/progress in body, a message of the
// tool server with its token cut out at hole, with the client's token. A value
// that does not increase is raised by a trifle and its message kept (O10);
// everything else stays byte for byte. ok is false if it cannot be shown.
func (l *line) appendProgress(dst, body []byte, hole int, token []byte) (out []byte, ok bool) {
	if hole < 0 || hole >= len(body) {
		return dst, false
	}
	params := find(body, 0, "params")
	if !params.ok() {
		return dst, false
	}
	value := find(body, params.val, "progress")
	if !value.ok() {
		return dst, false
	}
	p, err := strconv.ParseFloat(string(body[value.val:value.end]), 64)
	if err != nil && !math.IsInf(p, 0) {
		return dst, false
	}
	total, hasTotal := 0.0, false
	t := find(body, params.val, "total")
	if t.ok() {
		total, err = strconv.ParseFloat(string(body[t.val:t.end]), 64)
		hasTotal = err == nil
	}
	l.total, l.hasTotal, l.measured = total, hasTotal, true

	var array [3]cut
	cuts := append(array[:0], cut{hole, hole + 1, token})
	if (!l.any || p > l.v) && !math.IsInf(p, 0) {
		l.any, l.v, l.base = true, p, p
	} else {
		v, ok := l.above(total, hasTotal)
		if !ok {
			return dst, false
		}
		if hasTotal && v >= total && p <= total {
			from, to := without(body, t) // more than the total says nothing
			cuts = append(cuts, cut{from: from, to: to})
			l.hasTotal = false
		}
		l.any, l.v, l.base = true, v, v
		cuts = append(cuts, cut{value.val, value.end, appendNumber(l.num[:0], v)})
	}
	return splice(dst, body, cuts), true
}

// above is the next value after v: v+ε, with ε so small that many of them stay
// below the tool server's next step and below the total.
func (l *line) above(total float64, hasTotal bool) (v float64, ok bool) {
	if !l.any {
		return 0, true
	}
	e := 1e-6
	if hasTotal && total > l.v {
		e = min(e, (total-l.v)/1e6)
	}
	v = l.v + e
	if v <= l.v {
		v = math.Nextafter(l.v, math.Inf(1))
	}
	return v, !math.IsInf(v, 0)
}

// resumed goes on with the line of a stream whose last event had that value; beats
// may have followed it until now.
func (l *line) resumed(v float64, elapsed time.Duration) {
	*l = line{any: true, v: v + elapsed.Seconds()/beatsPerUnit, base: v, measured: true}
}

// appendBeat appends a progress message of ours, or says that there is no
// room for one below the total. Its value grows with the time since the call
// began: so it increases over a resume as well, after beats of which the resumed
// stream knows nothing.
func (l *line) appendBeat(dst, token []byte, elapsed time.Duration) (out []byte, ok bool) {
	t := elapsed.Seconds() / beatsPerUnit
	if l.hasTotal && l.total > l.base {
		t *= min(1, l.total-l.base)
	}
	v, ok := t+l.base, true
	if l.any && v <= l.v || l.hasTotal && v >= l.total {
		v, ok = l.above(l.total, l.hasTotal)
	}
	if !ok || l.hasTotal && v >= l.total {
		return dst, false
	}
	l.any, l.v = true, v
	dst = append(dst, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":`...)
	dst = append(dst, token...)
	dst = append(dst, `,"progress":`...)
	dst = appendNumber(dst, v)
	if l.hasTotal {
		dst = append(dst, `,"total":`...)
		dst = appendNumber(dst, l.total)
	}
	dst = append(dst, `,"message":"still running, `...)
	dst = appendElapsed(dst, elapsed)
	return append(dst, `"}}`...), true
}

// appendNumber writes a float as JSON, as short as reads back the same.
func appendNumber(dst []byte, v float64) []byte {
	format := byte('f')
	if a := math.Abs(v); a != 0 && (a < 1e-9 || a >= 1e21) {
		format = 'e'
	}
	return strconv.AppendFloat(dst, v, format, -1, 64)
}

// appendElapsed writes "35 s", "2 min 5 s" or "3 h 12 min".
func appendElapsed(dst []byte, d time.Duration) []byte {
	s := int64(d.Round(time.Second) / time.Second)
	switch {
	case s < 60:
		return append(strconv.AppendInt(dst, s, 10), " s"...)
	case s < 3600:
		dst = append(strconv.AppendInt(dst, s/60, 10), " min "...)
		return append(strconv.AppendInt(dst, s%60, 10), " s"...)
	}
	dst = append(strconv.AppendInt(dst, s/3600, 10), " h "...)
	return append(strconv.AppendInt(dst, s%3600/60, 10), " min"...)
}

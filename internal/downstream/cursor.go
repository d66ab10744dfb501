package downstream

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"math"
	"strconv"
	"strings"

	"github.com/longcall/longcall/internal/call"
)

// place is what an event id of a stream says besides the event's seq: which call
// it shows, to which request, and in which process. It is sealed for one
// principal's session: an id of another is unknown.
type place struct {
	call  call.ID
	epoch uint64
	id    []byte // of the request, raw
	token []byte // of the request, raw; nil if it wants no progress
}

// handedOff is the seq of the answer that hands a call over: the stream of that
// request is over, whatever the call does.
const handedOff = "h"

const (
	placeMAC = 12
	idSize   = 16
)

// maxPlace bounds what of a client's own a stream's event ids carry; a request
// with a larger id or token gets a stream that cannot be resumed.
const maxPlace = 512

var placeText = base64.RawURLEncoding.Strict()

// seal gives the beginning of all event ids of a stream, with its dot; nil if
// the stream cannot be resumed.
func (p *place) seal(key *[32]byte, principal, session string) []byte {
	if len(p.id)+len(p.token) > maxPlace {
		return nil
	}
	b := make([]byte, placeMAC, placeMAC+64+len(p.id)+len(p.token))
	b = binary.AppendUvarint(b, p.epoch)
	b = append(b, p.call.Bytes()...)
	b = appendBytes(b, p.id)
	b = appendBytes(b, p.token)
	copy(b, placeSum(key, principal, session, b[placeMAC:]))
	out := placeText.AppendEncode(make([]byte, 0, placeText.EncodedLen(len(b))+1), b)
	return append(out, '.')
}

func appendBytes(b, v []byte) []byte { return append(binary.AppendUvarint(b, uint64(len(v))), v...) }

func placeSum(key *[32]byte, principal, session string, b []byte) []byte {
	h := hmac.New(sha256.New, key[:])
	for _, s := range []string{"stream", principal, session} {
		h.Write(appendBytes(nil, []byte(s)))
	}
	h.Write(b)
	return h.Sum(nil)[:placeMAC]
}

// openPlace reads an event id that the principal's session got; ok is false for
// anything else.
func openPlace(key *[32]byte, principal, session, eventID string) (p place, seq string, ok bool) {
	text, seq, ok := strings.Cut(eventID, ".")
	if !ok {
		return p, "", false
	}
	b, err := placeText.DecodeString(text)
	if err != nil || len(b) < placeMAC || len(text) != placeText.EncodedLen(len(b)) || !hmac.Equal(b[:placeMAC], placeSum(key, principal, session, b[placeMAC:])) {
		return p, "", false
	}
	b = b[placeMAC:]
	epoch, n := binary.Uvarint(b)
	if n <= 0 {
		return p, "", false
	}
	if b = b[n:]; len(b) < idSize {
		return p, "", false
	}
	p.epoch, p.call, b = epoch, call.IDOf(b[:idSize]), b[idSize:]
	var parts [2][]byte
	for i := range parts {
		l, n := binary.Uvarint(b)
		if n <= 0 || l > uint64(len(b)-n) {
			return p, "", false
		}
		parts[i], b = b[n:n+int(l)], b[n+int(l):]
	}
	p.id = bytes.Clone(parts[0])
	if len(parts[1]) > 0 {
		p.token = bytes.Clone(parts[1])
	}
	return p, seq, len(b) == 0
}

// valueMark stands in an event id before the progress that was shown last: a
// resumed stream goes on above it (I11).
const valueMark = "_"

// appendID appends the field of the event's id, if the stream has ids. It comes
// after the data, which decides on the value.
func (a *attachment) appendID(b []byte, seq uint64) []byte {
	if a.prefix == nil {
		return b
	}
	b = append(append(b, "id: "...), a.prefix...)
	b = strconv.AppendUint(b, seq, 10)
	if a.token != nil && a.line.measured {
		b = appendNumber(append(b, valueMark...), a.line.base)
	}
	return append(b, '\n')
}

// cutValue takes the progress off the seq of an event id; ok is false if there
// is none.
func cutValue(seq string) (rest string, v float64, ok bool) {
	rest, text, ok := strings.Cut(seq, valueMark)
	if !ok {
		return seq, 0, false
	}
	v, err := strconv.ParseFloat(text, 64)
	return rest, v, err == nil && !math.IsInf(v, 0) && !math.IsNaN(v)
}

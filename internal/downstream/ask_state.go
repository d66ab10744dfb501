package downstream

import (
	"crypto/sha256"
	"encoding/binary"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
	"github.com/longcall/longcall/internal/seal"
)

// inputState is what the requestState of an InputRequiredResult says: which call
// asks, and for which request (SPEC §4.1). It comes back from the agent, who may
// have changed it, got it from somebody else, or kept it for long; so it is sealed
// for one principal at one endpoint.
type inputState struct {
	call    call.ID
	expires time.Time
	digest  [32]byte // of the request: see requestDigest
	// runner is how another call goes on with the answer if this one has ended; see
	// call.Exec.Ask.
	runner []byte
}

const (
	// stateFor is how long an agent may take to come back. The question itself
	// waits as limits.answer says; this bounds a question of a stateless server,
	// which waits for nobody.
	stateFor = 24 * time.Hour
	// maxState bounds a requestState, in bytes: what is larger was not made here.
	maxState     = 256 << 10
	stateVersion = 1
	purposeState = "requestState"
)

// sealedFor is what a state is sealed for.
func sealedFor(principal, server string) []byte {
	return appendBytes(appendBytes([]byte{stateVersion}, []byte(principal)), []byte(server))
}

// sealState gives the state as text.
func (h *Handler) sealState(s *inputState, principal, server string) string {
	b := binary.AppendVarint(nil, s.expires.Unix())
	b = append(b, s.call.Bytes()...)
	b = append(b, s.digest[:]...)
	b = append(b, s.runner...)
	return placeText.EncodeToString(seal.Seal(h.opt.Key, purposeState, b, sealedFor(principal, server)))
}

// openState reads a state that the principal was given at this endpoint; ok is
// false for anything else.
func (h *Handler) openState(text, principal, server string) (s inputState, ok bool) {
	if len(text) > maxState {
		return s, false
	}
	b, err := placeText.DecodeString(text)
	if err != nil {
		return s, false
	}
	if b, ok = seal.Open(h.opt.Key, purposeState, b, sealedFor(principal, server)); !ok {
		return s, false
	}
	at, n := binary.Varint(b)
	if n <= 0 || len(b) < n+idSize+len(s.digest) {
		return s, false
	}
	b = b[n:]
	s.expires, s.call, b = time.Unix(at, 0), call.IDOf(b[:idSize]), b[idSize:]
	b = b[copy(s.digest[:], b):]
	if len(b) > 0 {
		s.runner = b
	}
	return s, true
}

// requestDigest is of what has to be the same when a request is made again with
// answers: its method and params, but for _meta and what the answer is in.
func requestDigest(m *mcp.Message) (sum [32]byte, ok bool) {
	params, err := mcp.EditObject(m.Params.Of(m.Raw), func(name string) bool {
		return name == "_meta" || name == memberState || name == memberResponses
	})
	if err == nil {
		params, err = mcp.Canonical(params)
	}
	if err != nil {
		return sum, false
	}
	return sha256.Sum256(append(append([]byte(m.Method), 0), params...)), true
}

// Members of the params of a request that is made again (SPEC §4.1).
const (
	memberState     = "requestState"
	memberResponses = "inputResponses"
)

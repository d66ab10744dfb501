package downstream

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/longcall/longcall/internal/call"
)

// FuzzPlace: an event id opens only if it was sealed for the very principal and
// session, and nothing that an agent sends does harm.
func FuzzPlace(f *testing.F) {
	key := [32]byte{1, 2, 3}
	p := place{call: call.IDOf([]byte("0123456789abcdef")), epoch: 7, id: []byte("1"), token: []byte(`"t"`)}
	prefix := string(p.seal(&key, "ann", "s"))
	for _, s := range []string{prefix + "1", prefix, "a.1", ".", "", prefix + "h", prefix[:9] + "\r" + prefix[9:] + "1", strings.Repeat("A", 100) + ".0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, id string) {
		got, _, ok := openPlace(&key, "ann", "s", id)
		if text, _, _ := strings.Cut(id, "."); ok && text+"." != prefix {
			t.Fatalf("%q opens as %+v", id, got)
		}
	})
}

// A place comes back as it was sealed; no other principal, session or key opens
// it, and no changed byte does.
func TestPlace(t *testing.T) {
	key := [32]byte{1}
	for _, p := range []place{
		{call: call.NewID(), epoch: 1, id: []byte("1")},
		{call: call.NewID(), epoch: 1 << 40, id: []byte(`"é\u0000"`), token: []byte("9007199254740993")},
		{call: call.NewID(), epoch: 300, id: []byte(`"` + strings.Repeat("x", maxPlace-4) + `"`), token: []byte("1")},
	} {
		prefix := string(p.seal(&key, "ann", "s"))
		got, seq, ok := openPlace(&key, "ann", "s", prefix+"12")
		if !ok || seq != "12" || got.call != p.call || got.epoch != p.epoch || string(got.id) != string(p.id) || string(got.token) != string(p.token) {
			t.Fatalf("%+v comes back as %+v, %q, %v", p, got, seq, ok)
		}
		other := key
		other[31]++
		for name, ok := range map[string]bool{
			"key":       second(openPlace(&other, "ann", "s", prefix+"12")),
			"principal": second(openPlace(&key, "anns", "", prefix+"12")),
			"session":   second(openPlace(&key, "ann", "t", prefix+"12")),
		} {
			if ok {
				t.Errorf("opens with another %s", name)
			}
		}
		raw, _ := base64.RawURLEncoding.DecodeString(strings.TrimSuffix(prefix, "."))
		for i := range raw {
			for _, bit := range []byte{1, 0x80} {
				raw[i] ^= bit
				if second(openPlace(&key, "ann", "s", base64.RawURLEncoding.EncodeToString(raw)+".12")) {
					t.Fatalf("opens with byte %d changed", i)
				}
				raw[i] ^= bit
			}
			if second(openPlace(&key, "ann", "s", base64.RawURLEncoding.EncodeToString(raw[:i])+".12")) {
				t.Fatalf("opens with %d bytes", i)
			}
		}
	}
	for n := range 3 { // each length of the last group of characters
		p := place{call: call.NewID(), epoch: 1, id: []byte("123")[:n+1]}
		prefix := p.seal(&key, "ann", "s")
		for i := range len(prefix) - 1 {
			was := prefix[i]
			for _, c := range []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_=+/\n .") {
				if prefix[i] = c; c != was && second(openPlace(&key, "ann", "s", string(prefix)+"1")) {
					t.Fatalf("opens with character %d, %q, as %q", i, was, c)
				}
			}
			prefix[i] = was
		}
	}
	if p := (&place{id: make([]byte, maxPlace+1)}).seal(&key, "ann", "s"); p != nil {
		t.Error("an id that is too long is carried")
	}
}

func second(_ place, _ string, ok bool) bool { return ok }

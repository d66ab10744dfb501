package downstream

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// FuzzX8State: a state that was sealed opens as what it was for whom it was sealed, and
// nothing else does: no other text, no changed one, and for nobody else (SPEC §4.1).
func FuzzX8State(f *testing.F) {
	r := newRig(f)
	for _, text := range []string{"", "A", "AAAA", r.h.sealState(&inputState{call: call.NewID()}, "ann", "up")} {
		f.Add(text, []byte("the server's own"), int64(1<<33), "ann", "up", 3)
	}
	f.Fuzz(func(t *testing.T, text string, runner []byte, at int64, principal, server string, place int) {
		if _, ok := r.h.openState(text, "nobody", "nowhere"); ok {
			t.Fatalf("%q opens", text)
		}
		was := inputState{call: call.NewID(), expires: time.Unix(at%(1<<40), 0), runner: runner}
		copy(was.digest[:], text)
		sealed := r.h.sealState(&was, principal, server)
		got, ok := r.h.openState(sealed, principal, server)
		if len(sealed) > maxState {
			if ok {
				t.Error("one that is too large opens")
			}
			return
		}
		if !ok || got.call != was.call || !got.expires.Equal(was.expires) || got.digest != was.digest || !bytes.Equal(got.runner, was.runner) {
			t.Errorf("%+v became %+v, %t", was, got, ok)
		}
		if _, ok := r.h.openState(sealed, principal+"x", server); ok {
			t.Error("it opens for another principal")
		}
		if _, ok := r.h.openState(sealed, principal, server+"x"); ok {
			t.Error("it opens at another endpoint")
		}
		if principal != server { // what is beside the seal is no mere concatenation
			if _, ok := r.h.openState(sealed, principal+server, ""); ok && server != "" {
				t.Error("it opens for who is called like both")
			}
		}
		changed := []byte(sealed)
		i := int(uint(place) % uint(len(changed)))
		if changed[i]++; changed[i] == 'z'+1 {
			changed[i] = 'a'
		}
		if b, ok := r.h.openState(string(changed), principal, server); ok && placeTextBytes(string(changed)) != placeTextBytes(sealed) {
			t.Errorf("changed at %d, it opens as %+v", i, b)
		}
	})
}

// placeTextBytes is what a text stands for: the last character of some has bits that
// mean nothing.
func placeTextBytes(text string) string {
	b, err := placeText.DecodeString(text)
	if err != nil {
		return "no text"
	}
	return string(b)
}

// FuzzX8Answers: whatever an agent brings as its answers, a tool server gets whole,
// valid ones to what was asked, each once, or nothing.
func FuzzX8Answers(f *testing.F) {
	r := newRig(f)
	r.tools["work"] = asking(askForm+","+askPage+","+askMind, nil)
	c, err := r.eng.Start(f.Context(), call.Spec{Principal: "ann", Server: "up", Tool: "work"})
	if err != nil {
		f.Fatal(err)
	}
	until(f, "the tool asks", func() bool { return c.Asked() != nil })
	for _, s := range []string{
		``, `{}`, `[]`, `{"form":{"action":"accept","content":{"n":9007199254740993}}}`, `{"form":{"action":"accept"},"form":{"action":"decline"}}`,
		`{"page":{"action":"cancel"},"mind":{"role":"assistant","content":{"type":"text","text":"x"},"model":"m"},"other":{}}`,
		`{"form":{"action":"perhaps"}}`, `{"form":7}`, `{"\u0066orm":{"action":"accept"}}`, `{"form":{"action":"accept"}`, "{\"form\":\n{\"action\":\"accept\"}}",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, responses []byte) {
		if !json.Valid(responses) {
			return // a request that holds it is none
		}
		taken, keys, wrong := answersTo(c, responses)
		switch {
		case wrong != "" && (taken != nil || keys != nil):
			t.Errorf("refused, and taken: %s", taken)
		case (taken == nil) != (keys == nil):
			t.Errorf("answers %s, keys %s", taken, keys)
		case taken == nil:
			return
		}
		members, err := mcp.Members(taken)
		if err != nil {
			t.Fatalf("%s: %v", taken, err)
		}
		var names []string
		if err := json.Unmarshal(keys, &names); err != nil {
			t.Fatalf("%s: %v", keys, err)
		}
		methods := map[string]string{"form": mcp.MethodElicit, "page": mcp.MethodElicit, "mind": mcp.MethodSample}
		var got []string
		for _, m := range members {
			if slices.Contains(got, m.Name) {
				t.Errorf("%s is answered twice: %s", m.Name, taken)
			}
			got = append(got, m.Name)
			if bad := mcp.BadAnswer(methods[m.Name], m.Value); methods[m.Name] == "" || bad != "" {
				t.Errorf("%s is answered with %s: %s", m.Name, m.Value, bad)
			}
		}
		if !slices.Equal(got, names) {
			t.Errorf("answers to %q, keys %q", got, names)
		}
	})
}

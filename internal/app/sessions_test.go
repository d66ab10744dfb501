package app

import (
	"slices"
	"testing"
)

// TestSessionData: what a session has asked for comes back from the journal (R-09,
// R-11), also from one that has the client's capabilities alone.
func TestSessionData(t *testing.T) {
	caps := `{"roots":{"listChanged":true}}`
	for _, level := range []string{"", "error"} {
		for _, uris := range [][]string{nil, {"file:///a", "x:\"\u2028"}} {
			l, r, c := readSession(writeSession(level, uris, []byte(caps)))
			if l != level || !slices.Equal(r, uris) || string(c) != caps {
				t.Errorf("%q %q: %q %q %s", level, uris, l, r, c)
			}
		}
	}
	if l, r, c := readSession(nil); l != "" || r != nil || c != nil {
		t.Errorf("of nothing: %q %q %s", l, r, c)
	}
}

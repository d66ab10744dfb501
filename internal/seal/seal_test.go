package seal

import "testing"

func TestSeal(t *testing.T) {
	key, other := [32]byte{1}, [32]byte{2}
	sealed := Seal(key, "one", []byte("text"), []byte("ann"))
	if b, ok := Open(key, "one", sealed, []byte("ann")); !ok || string(b) != "text" {
		t.Errorf("opened as %q, %v", b, ok)
	}
	changed := append([]byte(nil), sealed...)
	changed[len(changed)-1] ^= 1
	for name, open := range map[string]func() ([]byte, bool){
		"another key":     func() ([]byte, bool) { return Open(other, "one", sealed, []byte("ann")) },
		"another purpose": func() ([]byte, bool) { return Open(key, "two", sealed, []byte("ann")) },
		"beside another":  func() ([]byte, bool) { return Open(key, "one", sealed, []byte("bob")) },
		"changed":         func() ([]byte, bool) { return Open(key, "one", changed, []byte("ann")) },
		"cut":             func() ([]byte, bool) { return Open(key, "one", sealed[:5], []byte("ann")) },
		"nothing":         func() ([]byte, bool) { return Open(key, "one", nil, nil) },
	} {
		if b, ok := open(); ok || b != nil {
			t.Errorf("%s: opened as %q", name, b)
		}
	}
	if again := Seal(key, "one", []byte("text"), []byte("ann")); string(again) == string(sealed) {
		t.Error("the same text looks the same twice")
	}
}

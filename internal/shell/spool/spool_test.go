package spool

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
)

// spooled is a spool that holds the chunks, all from stdout.
func spooled(t testing.TB, caps Caps, chunks ...string) (*Writer, *Reader) {
	t.Helper()
	dir := t.TempDir()
	w, err := Create(dir, caps)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() }) // many have closed it
	for _, c := range chunks {
		if n, err := w.Write(Stdout, []byte(c)); n != len(c) || err != nil {
			t.Fatal(n, err)
		}
	}
	r, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return w, r
}

func numbers(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "line %d\n", i)
	}
	return b.String()
}

func TestPagesMakeTheWhole(t *testing.T) {
	all := numbers(5000)
	w, r := spooled(t, Caps{}, all)
	for _, raw := range []bool{false, true} {
		var got bytes.Buffer
		for c := int64(0); c < w.Total(); {
			v, err := r.Page(t.Context(), c, Look{Max: 777, Raw: raw})
			if err != nil || v.Next <= c || v.From != c {
				t.Fatal(v, err)
			}
			if !strings.HasSuffix(v.Text, "\n") {
				t.Errorf("page at %d does not end with a line", c)
			}
			got.WriteString(v.Text)
			c = v.Next
		}
		if got.String() != all {
			t.Error("the pages are not the whole")
		}
	}
}

func TestSummaryHasBothEnds(t *testing.T) {
	_, r := spooled(t, Caps{}, numbers(5000))
	v, err := r.Summary(t.Context(), 0, Look{Max: 1000})
	if err != nil {
		t.Fatal(err)
	}
	head, rest, _ := strings.Cut(v.Text, "[… 48,018 bytes omitted — read_output cursor=262]\n")
	if !strings.HasPrefix(head, "line 0\n") || !strings.HasPrefix(rest, "line 4939\n") || !strings.HasSuffix(rest, "line 4999\n") || v.Omitted != 48018 {
		t.Errorf("%+v", v)
	}
}

func TestOpenWithout(t *testing.T) {
	if _, err := Open(t.TempDir()); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

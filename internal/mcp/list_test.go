package mcp

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestReadPage(t *testing.T) {
	p, err := ReadPage(ListTools, []byte(`{"_meta":{},"tools":[ {"name":"a","inputSchema":{"z":1,"a":2}} , {"x":null,"name":"\u00e9"}],"nextCursor":"c"}`))
	if err != nil || p.Next != "c" || p.TTL >= 0 || p.Public {
		t.Fatalf("%+v %v", p, err)
	}
	if got := fmt.Sprintf("%q %s %q %s", p.Entries[0].Name, p.Entries[0].Raw, p.Entries[1].Name, p.Entries[1].Raw); got != `"a" {"name":"a","inputSchema":{"z":1,"a":2}} "é" {"x":null,"name":"\u00e9"}` {
		t.Errorf("got %s", got)
	}
	if p, err := ReadPage(ListTools, []byte(`{"tools":[],"nextCursor":null}`)); err != nil || len(p.Entries) != 0 || p.Next != "" {
		t.Errorf("empty: got %+v %v", p, err)
	}
	for bad, want := range map[string]string{
		`[]`:                          "not a JSON object",
		`{}`:                          "no array",
		`{"tools":{}}`:                "no array",
		`{"tools":[{"name":"a"},{}]}`: "entry 1: it has no name",
		`{"tools":[{"name":""}]}`:     "entry 0: it has no name",
		`{"tools":[{"name":7}]}`:      "entry 0: it has no name",
		`{"tools":["a"]}`:             "entry 0: not a JSON object",
		`{"tools":[],"nextCursor":1}`: "nextCursor",
		`{"tools":[],"tools":[]}`:     "twice",
		`{"tools":[{"name":"a"},]}`:   "not valid JSON",
	} {
		if p, err := ReadPage(ListTools, []byte(bad)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %+v, %v; want %q", bad, p, err, want)
		}
	}
}

// Each kind is read by its own member and key.
func TestReadPageKinds(t *testing.T) {
	const all = `{"tools":[{"name":"t"}],"prompts":[{"name":"p"}],"resources":[{"uri":"r://1","name":"x"}],"resourceTemplates":[{"uriTemplate":"r://{id}","name":"x"}]}`
	want := [...]string{"t", "p", "r://1", "r://{id}"}
	for _, k := range ListKinds {
		p, err := ReadPage(k, []byte(all))
		if err != nil || len(p.Entries) != 1 || p.Entries[0].Name != want[k] {
			t.Errorf("%s: %+v %v", k, p, err)
		}
	}
	if _, err := ReadPage(ListResources, []byte(`{"resources":[{"name":"x"}]}`)); err == nil || !strings.Contains(err.Error(), "it has no uri") {
		t.Error(err)
	}
}

// SPEC §5.5: absent is none at all, a negative one is 0, and nothing holds for ever.
func TestReadPageTTL(t *testing.T) {
	for text, want := range map[string]time.Duration{
		`1500`: 1500 * time.Millisecond, `0`: 0, `-5`: 0, `"x"`: 0, `null`: 0, `1e400`: maxTTL, `99999999999`: maxTTL,
	} {
		p, err := ReadPage(ListPrompts, []byte(`{"prompts":[],"cacheScope":"public","ttlMs":`+text+`}`))
		if err != nil || p.TTL != want || !p.Public {
			t.Errorf("%s: %+v %v", text, p, err)
		}
	}
}

func TestListsChanged(t *testing.T) {
	for _, k := range ListKinds {
		found := false
		for _, c := range ListsChanged(k.ChangedMethod()) {
			found = found || c == k
		}
		if !found {
			t.Errorf("%s does not say that %s changed", k.ChangedMethod(), k)
		}
	}
	if n := len(ListsChanged(MethodResourcesChanged)); n != 2 {
		t.Errorf("%d lists of resources", n)
	}
	if ListsChanged(MethodProgress) != nil {
		t.Error("progress changes no list")
	}
}

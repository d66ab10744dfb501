//go:build linux || darwin

package tools

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// The list's entries, as they are read by every model in every conversation.
func TestEntries(t *testing.T) {
	s := &Settings{Roots: []string{"/home/ann/code", `/srv/"q"`}, Shell: []string{"/bin/bash", "-c"}}
	var b bytes.Buffer
	last := ""
	for _, e := range s.entries() {
		if e.Name <= last {
			t.Errorf("%s after %s (X-17)", e.Name, last)
		}
		last = e.Name
		b.WriteString(e.Name + "\n")
		if err := json.Indent(&b, e.Raw, "", " "); err != nil {
			t.Fatalf("%s: %v in %s", e.Name, err, e.Raw)
		}
		b.WriteByte('\n')
		if bytes.Contains(e.Raw, []byte("\n")) {
			t.Errorf("%s has more than one line", e.Name)
		}
	}
	golden(t, "entries.json", b.Bytes())
}

// Schemas are flat for models that know no unions, nothing is nullable, the bounds
// are the parser's, and every property that a parser knows is described.
func TestSchemas(t *testing.T) {
	s := &Settings{Roots: []string{"/r"}, Shell: []string{"/bin/sh", "-c"}}
	known := map[string][]string{Exec: execParameters, Parallel: batchParameters, Read: readParameters, Write: writeParameters}
	for _, e := range s.entries() {
		for _, word := range []string{"anyOf", "oneOf", "allOf", "$ref", "null", `"type":[`} {
			if strings.Contains(string(e.Raw), word) {
				t.Errorf("%s has %s", e.Name, word)
			}
		}
		var v struct {
			InputSchema struct {
				Properties           map[string]map[string]any
				AdditionalProperties *bool
			}
			OutputSchema struct {
				Type       string
				Properties map[string]any
			}
			Annotations map[string]any
			Description string
		}
		if err := json.Unmarshal(e.Raw, &v); err != nil {
			t.Fatal(err)
		}
		if len(v.InputSchema.Properties) != len(known[e.Name]) || v.InputSchema.AdditionalProperties == nil || *v.InputSchema.AdditionalProperties {
			t.Errorf("%s: %d properties, the parser knows %d", e.Name, len(v.InputSchema.Properties), len(known[e.Name]))
		}
		for _, name := range known[e.Name] {
			if v.InputSchema.Properties[name] == nil {
				t.Errorf("%s has no %s in its schema", e.Name, name)
			}
		}
		if y := v.InputSchema.Properties["yield_ms"]; y != nil && (fmt.Sprint(y["default"]) != fmt.Sprint(DefaultYield.Milliseconds()) || fmt.Sprint(y["maximum"]) != fmt.Sprint(MaxYield.Milliseconds())) {
			t.Errorf("%s: yield_ms is %v", e.Name, y)
		}
		if v.OutputSchema.Type != "object" || len(v.OutputSchema.Properties) == 0 || len(v.Annotations) < 3 || len(v.Description) > 800 {
			t.Errorf("%s: %+v", e.Name, v)
		}
	}
}

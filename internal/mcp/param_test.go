package mcp

import (
	"net/http"
	"strings"
	"testing"
)

// The rules of x-mcp-header (SPEC §1.3): where it may stand, and beside which types.
func TestHeaderParams(t *testing.T) {
	for name, c := range map[string]struct {
		schema string
		want   string // headers with their paths, or the error
	}{
		"none":          {`{"properties":{"a":{"type":"string"}}}`, ""},
		"each type":     {`{"properties":{"a":{"type":"string","x-mcp-header":"a"},"b":{"x-mcp-header":"B-2","type":"integer"},"c":{"type":"boolean","x-mcp-header":"c"}}}`, "Mcp-Param-A=a Mcp-Param-B-2=b# Mcp-Param-C=c"},
		"nested":        {`{"properties":{"a":{"type":"object","properties":{"b":{"type":"string","x-mcp-header":"X"}}}}}`, "Mcp-Param-X=a.b"},
		"nullable":      {`{"properties":{"a":{"type":["null","integer"],"x-mcp-header":"X"}}}`, "Mcp-Param-X=a#"},
		"escaped name":  {`{"properties":{"a":{"type":"string","x-mcp-heade\u0072":"X"}}}`, "Mcp-Param-X=a"},
		"a property":    {`{"properties":{"x-mcp-header":{"type":"string"}}}`, ""},
		"a default":     {`{"properties":{"a":{"type":"object","default":{"x-mcp-header":"X"}}}}`, ""},
		"true schema":   {`{"properties":{"a":true}}`, ""},
		"number":        {`{"properties":{"a":{"type":"number","x-mcp-header":"X"}}}`, `of type "number"`},
		"object":        {`{"properties":{"a":{"type":"object","x-mcp-header":"X"}}}`, `of type "object"`},
		"two types":     {`{"properties":{"a":{"type":["string","integer"],"x-mcp-header":"X"}}}`, "which no header can carry"},
		"no type":       {`{"properties":{"a":{"x-mcp-header":"X"}}}`, "no type"},
		"empty":         {`{"properties":{"a":{"type":"string","x-mcp-header":""}}}`, "no name of a header"},
		"no token":      {`{"properties":{"a":{"type":"string","x-mcp-header":"a b"}}}`, "no name of a header"},
		"line break":    {`{"properties":{"a":{"type":"string","x-mcp-header":"a\r\nb"}}}`, "no name of a header"},
		"no string":     {`{"properties":{"a":{"type":"string","x-mcp-header":1}}}`, "no name of a header"},
		"twice":         {`{"properties":{"a":{"type":"string","x-mcp-header":"X"},"b":{"type":"string","x-mcp-header":"x"}}}`, "another one names"},
		"at the root":   {`{"type":"string","x-mcp-header":"X"}`, "properties alone"},
		"in items":      {`{"properties":{"a":{"type":"array","items":{"type":"string","x-mcp-header":"X"}}}}`, "properties alone"},
		"in oneOf":      {`{"oneOf":[{"properties":{"a":{"type":"string","x-mcp-header":"X"}}}]}`, "properties alone"},
		"in not":        {`{"properties":{"a":{"not":{"type":"string","x-mcp-header":"X"}}}}`, "properties alone"},
		"in $defs":      {`{"$defs":{"d":{"type":"string","x-mcp-header":"X"}},"properties":{"a":{"$ref":"#/$defs/d"}}}`, "properties alone"},
		"in additional": {`{"additionalProperties":{"type":"string","x-mcp-header":"X"}}`, "properties alone"},
	} {
		params, err := HeaderParams([]byte(c.schema))
		var got []string
		for _, p := range params {
			s := p.Header + "=" + strings.Join(p.Path, ".")
			if p.Integer {
				s += "#"
			}
			got = append(got, s)
		}
		switch {
		case err != nil && (c.want == "" || !strings.Contains(err.Error(), c.want)), err == nil && strings.Join(got, " ") != c.want:
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// What a header may say of an argument, and what Mirror makes of it.
func TestHeaderParamMatches(t *testing.T) {
	params, err := HeaderParams([]byte(`{"properties":{"s":{"type":"string","x-mcp-header":"S"},"o":{"properties":{"n":{"type":"integer","x-mcp-header":"N"}}},"b":{"type":"boolean","x-mcp-header":"B"}}}`))
	if err != nil || len(params) != 3 {
		t.Fatal(params, err)
	}
	for _, c := range []struct {
		args, header, value string
		ok                  bool
	}{
		{`{"s":"x"}`, "S", "x", true},
		{`{"s":"x"}`, "S", " x\t", true}, // blanks around a value are no part of it
		{`{"s":"x"}`, "S", "X", false},
		{`{"s":"x"}`, "S", "", false},
		{`{"s":""}`, "S", "", true},
		{`{"s":"é"}`, "S", "=?base64?w6k=?=", true},
		{`{"s":"é"}`, "S", "=?BASE64?w6k=?=", false},
		{`{"s":"=?base64?eA==?="}`, "S", "=?base64?eA==?=", false}, // decoded before it is compared
		{`{"s":"x"}`, "S", "=?base64?%?=", false},
		{`{"s":1}`, "S", "1", true},
		{`{}`, "S", "x", false},
		{`{"s":null}`, "S", "null", false},
		{`{"s":["x"]}`, "S", "x", false},
		{`{"o":{"n":42}}`, "N", "42.0", true},
		{`{"o":{"n":42.0}}`, "N", "42", true},
		{`{"o":{"n":42}}`, "N", "4.2e1", true},
		{`{"o":{"n":42}}`, "N", "43", false},
		{`{"o":{"n":42}}`, "N", "x", false},
		{`{"o":{"n":9007199254740991}}`, "N", "9007199254740991", true},
		{`{"o":1}`, "N", "1", false},
		{`{"b":true}`, "B", "true", true},
		{`{"b":true}`, "B", "True", false},
	} {
		for i := range params {
			if params[i].Header != HeaderParamPrefix+c.header {
				continue
			}
			h := http.Header{params[i].Header: {c.value}}
			if got := params[i].Matches(h, []byte(c.args)); got != c.ok {
				t.Errorf("%s with %s: %q is %v", c.args, c.header, c.value, got)
			}
			h[params[i].Header] = []string{c.value, c.value}
			if params[i].Matches(h, []byte(c.args)) {
				t.Errorf("%s: a header that comes twice matches", c.args)
			}
		}
		h := http.Header{}
		Mirror(h, params, []byte(c.args))
		for i := range params {
			if !params[i].Matches(h, []byte(c.args)) {
				t.Errorf("%s: what Mirror made does not match: %v", c.args, h)
			}
		}
	}
}

func FuzzHeaderParams(f *testing.F) {
	f.Add(`{"properties":{"a":{"type":"string","x-mcp-header":"A"},"o":{"properties":{"n":{"type":["integer","null"],"x-mcp-header":"N"}}}}}`, `{"a":"=?base64?eA==?=","o":{"n":1e3}}`)
	f.Add(`{"allOf":[{"not":{"items":{"x-mcp-header":"X"}}}]}`, `null`)
	f.Fuzz(func(t *testing.T, schema, args string) {
		params, err := HeaderParams([]byte(schema))
		if err != nil {
			return
		}
		h := http.Header{}
		Mirror(h, params, []byte(args))
		for i := range params {
			if _, err := Members([]byte(args)); err == nil && !params[i].Matches(h, []byte(args)) {
				t.Errorf("%s %s: %v does not match", schema, args, h)
			}
		}
		for _, v := range h {
			if strings.ContainsAny(v[0], "\r\n\x00") {
				t.Errorf("header %q", v)
			}
		}
	})
}

package mcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

// parts are the members of a message that a test expects, by field name.
type parts map[string]string

// found lists the spans of m that are there.
func found(m *Message) parts {
	got := parts{}
	v := reflect.ValueOf(m).Elem()
	for i := range v.NumField() {
		if s, ok := v.Field(i).Interface().(Span); ok && s.Ok() {
			got[v.Type().Field(i).Name] = string(s.Of(m.Raw))
		}
	}
	return got
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		name, raw string
		kind      Kind
		method    string
		want      parts
	}{
		{
			"P10 big id", `{"jsonrpc":"2.0","id":9007199254740993,"method":"ping"}`, Request, "ping",
			parts{"ID": "9007199254740993"},
		},
		{
			"P10 fraction id", `{"id":1.5,"method":"ping","jsonrpc":"2.0"}`, Request, "ping",
			parts{"ID": "1.5"},
		},
		{
			"O4 token zero", `{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"_meta":{"progressToken":0},"name":"x","arguments":{}}}`,
			Request, "tools/call",
			parts{
				"ID": `"a"`, "Name": `"x"`, "Arguments": "{}", "Meta": `{"progressToken":0}`, "MetaToken": "0",
				"Params": `{"_meta":{"progressToken":0},"name":"x","arguments":{}}`,
			},
		},
		{
			"modern envelope", `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":"c","_meta":{` +
				`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"x":1},` +
				`"io.modelcontextprotocol/clientInfo":{"name":"n"},"io.modelcontextprotocol/logLevel":"info",` +
				`"traceparent":"00-1","tracestate":"k=v","vendor/other":[1]}}}`, Request, "tools/list",
			parts{
				"ID": "1", "Cursor": `"c"`, "MetaVersion": `"2026-07-28"`, "MetaCapabilities": `{"x":1}`,
				"MetaClientInfo": `{"name":"n"}`, "MetaLogLevel": `"info"`, "Traceparent": `"00-1"`, "Tracestate": `"k=v"`,
				"Meta": `{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"x":1},` +
					`"io.modelcontextprotocol/clientInfo":{"name":"n"},"io.modelcontextprotocol/logLevel":"info",` +
					`"traceparent":"00-1","tracestate":"k=v","vendor/other":[1]}`,
				"Params": `{"cursor":"c","_meta":{` +
					`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"x":1},` +
					`"io.modelcontextprotocol/clientInfo":{"name":"n"},"io.modelcontextprotocol/logLevel":"info",` +
					`"traceparent":"00-1","tracestate":"k=v","vendor/other":[1]}}`,
			},
		},
		{
			"initialize", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{}}}`,
			Request, "initialize",
			parts{
				"ID": "1", "Version": `"2025-06-18"`, "Capabilities": "{}", "ClientInfo": "{}",
				"Params": `{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{}}`,
			},
		},
		{
			"progress, pretty", "{\r\n \"jsonrpc\": \"2.0\",\n \"method\": \"notifications/progress\", \"params\": { \"progressToken\" : \"t\" ,\n\"progress\":1e2,\"total\":-0.5,\"message\":\"m\" }\n}\n",
			Notification, "notifications/progress",
			parts{
				"ProgressToken": `"t"`, "Progress": "1e2", "Total": "-0.5", "Text": `"m"`,
				"Params": "{ \"progressToken\" : \"t\" ,\n\"progress\":1e2,\"total\":-0.5,\"message\":\"m\" }",
			},
		},
		{
			"cancelled", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7,"reason":"r"}}`,
			Notification, "notifications/cancelled",
			parts{"RequestID": "7", "Reason": `"r"`, "Params": `{"requestId":7,"reason":"r"}`},
		},
		{
			"resource", `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"file:///a"}}`, Request, "resources/read",
			parts{"ID": "1", "URI": `"file:///a"`, "Params": `{"uri":"file:///a"}`},
		},
		{
			"result", `{"jsonrpc":"2.0","id":1,"result":{"content":[{"isError":1}],"isError":true,"_meta":{"a":1},"resultType":"complete"}}`,
			Response, "",
			parts{
				"ID": "1", "IsError": "true", "ResultType": `"complete"`, "Meta": `{"a":1}`,
				"Result": `{"content":[{"isError":1}],"isError":true,"_meta":{"a":1},"resultType":"complete"}`,
			},
		},
		{
			"result of another shape", `{"jsonrpc":"2.0","id":1,"result":[1]}`, Response, "",
			parts{"ID": "1", "Result": "[1]"},
		},
		{
			"null beside the other answer", `{"jsonrpc":"2.0","id":1,"error":null,"result":{}}`, Response, "",
			parts{"ID": "1", "Result": "{}"},
		},
		{
			"null result beside an error", `{"jsonrpc":"2.0","id":1,"result":null,"error":{"code":1,"message":""}}`, Response, "",
			parts{"ID": "1", "Error": `{"code":1,"message":""}`},
		},
		{
			"error without id", `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"no"}}`, Response, "",
			parts{"Error": `{"code":-32600,"message":"no"}`},
		},
		{
			"null params and unknown members", `{"jsonrpc":"2.0","id":1,"method":"x/y","params":null,"extra":{"Method":1}}`, Request, "x/y",
			parts{"ID": "1", "Params": "null"},
		},
		{
			"case matters only where we look", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":{"Name":1,"name":2,"NAME":3}}}`,
			Request, "tools/call",
			parts{
				"ID": "1", "Name": `"x"`, "Arguments": `{"Name":1,"name":2,"NAME":3}`,
				"Params": `{"name":"x","arguments":{"Name":1,"name":2,"NAME":3}}`,
			},
		},
		{
			"escaped names are names", `{"jsonrpc":"2.0","i\u0064":1,"m\u0065thod":"p\u0069ng"}`, Request, "ping",
			parts{"ID": "1"},
		},
		{
			"text cut inside an emoji", `{"jsonrpc":"2.0","id":1,"result":{"t":"\ud83d"}}`, Response, "",
			parts{"ID": "1", "Result": `{"t":"\ud83d"}`},
		},
		{
			"cut text in arguments", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":"\uDE42"}}`, Request, "tools/call",
			parts{"ID": "1", "Name": `"x"`, "Arguments": `"\uDE42"`, "Params": `{"name":"x","arguments":"\uDE42"}`},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, err := Parse([]byte(c.raw))
			if err != nil {
				t.Fatal(err)
			}
			if m.Kind != c.kind || m.Method != c.method {
				t.Errorf("kind %d method %q, want %d %q", m.Kind, m.Method, c.kind, c.method)
			}
			if got := found(&m); !reflect.DeepEqual(got, c.want) {
				t.Errorf("got  %v\nwant %v", got, c.want)
			}
		})
	}
}

func TestParseErrorMembers(t *testing.T) {
	m, err := Parse([]byte(`{"jsonrpc":"2.0","id":1,"error":{"data":{},"code":-32602,"message":"no \"such\" tool"}}`))
	if err != nil || m.Code != CodeInvalidParams || m.ErrText != `no "such" tool` {
		t.Errorf("got %d %q %v", m.Code, m.ErrText, err)
	}
	m, err = Parse([]byte(`{"jsonrpc":"2.0","id":1,"error":{"code":"E_FAIL"}}`))
	if err != nil || m.Code != 0 || !m.Error.Ok() {
		t.Errorf("got %d %v", m.Code, err)
	}
}

func TestParseRefuses(t *testing.T) {
	deep := strings.Repeat("[", 20000) + strings.Repeat("]", 20000)
	for _, c := range []struct {
		name, raw string
		code      int
		id, text  string // text: part of it
	}{
		{"P17 duplicate", `{"method":"tools/list","method":"tools/call"}`, CodeInvalidRequest, "", `"method" is there twice`},
		{"P17 duplicate, id kept", `{"jsonrpc":"2.0","method":"a","method":"b","id":3}`, CodeInvalidRequest, "3", "twice"},
		{"P17 duplicate by escape", `{"jsonrpc":"2.0","id":3,"method":"a","m\u0065thod":"b"}`, CodeInvalidRequest, "3", "twice"},
		{"P17 duplicate deep down", `{"jsonrpc":"2.0","id":"x","method":"a","params":{"arguments":[{"k":1,"k":1}]}}`, CodeInvalidRequest, `"x"`, `"k" is there twice`},
		{"P17 duplicate id", `{"jsonrpc":"2.0","id":3,"id":4,"method":"a"}`, CodeInvalidRequest, "", "twice"},
		{"P17 case", `{"jsonrpc":"2.0","id":5,"method":"tools/list","Method":"tools/call"}`, CodeInvalidRequest, "5", `"method" only in`},
		{"P17 case alone", `{"jsonrpc":"2.0","id":5,"METHOD":"tools/call"}`, CodeInvalidRequest, "5", `"method"`},
		{"P17 case of id", `{"jsonrpc":"2.0","id":5,"ID":6,"method":"a"}`, CodeInvalidRequest, "", `"id"`},
		{"P17 case by folding", `{"jsonrpc":"2.0","id":5,"method":"a","param\u017f":{}}`, CodeInvalidRequest, "5", `"params"`},
		{"P17 case in params", `{"jsonrpc":"2.0","id":5,"method":"a","params":{"name":"x","Name":"y"}}`, CodeInvalidRequest, "5", `"name"`},
		{"P17 case in meta", `{"jsonrpc":"2.0","id":5,"method":"a","params":{"_meta":{"ProgressToken":1}}}`, CodeInvalidRequest, "5", `"progressToken"`},
		{"O23 batch", "  \n[{},{}]", CodeInvalidRequest, "", "batch"},
		{"no object", `"text"`, CodeInvalidRequest, "", "object"},
		{"empty", ``, CodeParse, "", "too early"},
		{"blank", " \n", CodeParse, "", "too early"},
		{"cut", `{"jsonrpc":"2.0","id":1`, CodeParse, "", "too early"},
		{"syntax", `{"jsonrpc":"2.0","id":1,}`, CodeParse, "", "byte 23"},
		{"BOM", "\xEF\xBB\xBF{}", CodeParse, "", "byte 0"},
		{"trailing bytes", `{"jsonrpc":"2.0","id":1,"method":"a"}{}`, CodeParse, "", "after the end"},
		{"invalid UTF-8", "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":\"\xff\"}", CodeParse, "1", "byte 34"},
		{"invalid UTF-8 beside a lone surrogate", "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":\"\\ud83d \xff\"}", CodeParse, "1", "byte"},
		{"lone surrogate in a name", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a\ud83d"}}`, CodeInvalidRequest, "1", "Unicode"},
		{"lone surrogate in a method", `{"jsonrpc":"2.0","id":1,"method":"a\ud83d"}`, CodeInvalidRequest, "1", "Unicode"},
		{"lone surrogate in an id", `{"jsonrpc":"2.0","id":"\ud83d","method":"a"}`, CodeInvalidRequest, `"\ud83d"`, "Unicode"},
		{"too deep", `{"jsonrpc":"2.0","id":1,"result":` + deep + `}`, CodeParse, "", "not valid"},
		{"no version", `{"id":1,"method":"a"}`, CodeInvalidRequest, "1", "jsonrpc"},
		{"other version", `{"jsonrpc":"1.0","id":1,"method":"a"}`, CodeInvalidRequest, "1", "jsonrpc"},
		{"null id", `{"jsonrpc":"2.0","id":null,"method":"a"}`, CodeInvalidRequest, "", "null"},
		{"object id", `{"jsonrpc":"2.0","id":{},"method":"a"}`, CodeInvalidRequest, "", "id must"},
		{"bool id", `{"jsonrpc":"2.0","id":true,"result":{}}`, CodeInvalidRequest, "", "id must"},
		{"method is no string", `{"jsonrpc":"2.0","id":1,"method":1}`, CodeInvalidRequest, "1", "method must"},
		{"method is empty", `{"jsonrpc":"2.0","id":1,"method":""}`, CodeInvalidRequest, "1", "method must"},
		{"params by position", `{"jsonrpc":"2.0","id":1,"method":"a","params":[]}`, CodeInvalidRequest, "1", "params must"},
		{"meta is no object", `{"jsonrpc":"2.0","id":1,"method":"a","params":{"_meta":1}}`, CodeInvalidRequest, "1", "_meta must"},
		{"request and response", `{"jsonrpc":"2.0","id":1,"method":"a","result":{}}`, CodeInvalidRequest, "1", "neither"},
		{"response with params", `{"jsonrpc":"2.0","id":1,"result":{},"params":{}}`, CodeInvalidRequest, "1", "params"},
		{"result and error", `{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1}}`, CodeInvalidRequest, "1", "not both"},
		{"error is no object", `{"jsonrpc":"2.0","id":1,"error":"x"}`, CodeInvalidRequest, "1", "error must"},
		{"null error alone", `{"jsonrpc":"2.0","id":1,"error":null}`, CodeInvalidRequest, "1", "must have"},
		{"result without id", `{"jsonrpc":"2.0","result":{}}`, CodeInvalidRequest, "", "id of its request"},
		{"nothing", `{"jsonrpc":"2.0","id":1}`, CodeInvalidRequest, "1", "must have"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, err := Parse([]byte(c.raw))
			var pe *ParseError
			if !errors.As(err, &pe) {
				t.Fatalf("err %v, message %v", err, found(&m))
			}
			if pe.Code != c.code || string(pe.ID) != c.id || !strings.Contains(pe.Text, c.text) {
				t.Errorf("got %d id %q %q; want %d id %q %q", pe.Code, pe.ID, pe.Text, c.code, c.id, c.text)
			}
		})
	}
}

// A refusal says nothing of the message but at most one name, and that is short.
func TestParseErrorQuotesLittle(t *testing.T) {
	long := strings.Repeat("n", 5000)
	_, err := Parse([]byte(`{"jsonrpc":"2.0","a":{"` + long + `":"secret","` + long + `":1}}`))
	if err == nil || len(err.Error()) > 120 || strings.Contains(err.Error(), "secret") {
		t.Errorf("got %v", err)
	}
}

// What a parser kept of one message must not show in the next one.
func TestParseAfterFailure(t *testing.T) {
	for range 50 {
		for _, bad := range []string{`{"jsonrpc":"2.0","id":1,"x":[[{"a`, `{"a":1,"a":1}`, "\"\xff\"", `[`, ``} {
			if _, err := Parse([]byte(bad)); err == nil {
				t.Fatal(bad)
			}
			if _, err := Parse([]byte(progressMessage)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestIsBatch(t *testing.T) {
	for raw, want := range map[string]bool{"[]": true, " \r\n\t[": true, "{}": false, "": false, " ": false, "x[": false} {
		if got := IsBatch([]byte(raw)); got != want {
			t.Errorf("%q: %v", raw, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		progressMessage,
		`{"jsonrpc":"2.0","id":9007199254740993,"method":"tools/call","params":{"name":"x","arguments":{"a":[1,2]},"_meta":{"progressToken":0}}}`,
		`{"jsonrpc":"2.0","id":"a","result":{"content":[{"type":"text","text":"\ud83d"}],"isError":false,"_meta":{},"resultType":"x"}}`,
		`{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"no","data":null}}`,
		"{\r\n\t\"jsonrpc\" : \"2.0\",\r\n\"method\":\"a\" ,\"params\":null} \n",
		`{"method":"tools/list","Method":"tools/call"}`,
		`{"jsonrpc":"2.0","i\u0064":1,"method":"a","params":{"_meta":null,"name":{}}}`,
		`[{}]`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		before := bytes.Clone(raw)
		m, err := Parse(raw)
		if !bytes.Equal(raw, before) {
			t.Fatal("Parse changed its input")
		}
		if err != nil {
			var pe *ParseError
			if !errors.As(err, &pe) || pe.Code != CodeParse && pe.Code != CodeInvalidRequest || pe.Text == "" {
				t.Fatalf("error %#v", err)
			}
			if pe.ID != nil && (!bytes.Contains(raw, pe.ID) || !isKey(pe.ID)) {
				t.Fatalf("id %q", pe.ID)
			}
			return
		}
		checkAccepted(t, &m)
	})
}

// checkAccepted holds a message against what other parsers make of it.
func checkAccepted(t *testing.T, m *Message) {
	t.Helper()
	var std struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
		Params struct {
			Name  any `json:"name"`
			Token any `json:"progressToken"`
		} `json:"params"`
	}
	if err := json.Unmarshal(m.Raw, &std); err != nil && std.Method != "" {
		t.Fatalf("encoding/json: %v", err)
	}
	if std.Method != m.Method {
		t.Fatalf("encoding/json sees method %q, we %q", std.Method, m.Method)
	}
	if m.ID.Ok() && string(std.ID) != string(m.ID.Of(m.Raw)) {
		t.Fatalf("encoding/json sees id %s, we %s", std.ID, m.ID.Of(m.Raw))
	}
	if s, ok := String(m.Name.Of(m.Raw)); ok && std.Params.Name != s {
		t.Fatalf("encoding/json sees name %v, we %q", std.Params.Name, s)
	}

	v := reflect.ValueOf(m).Elem()
	for i := range v.NumField() {
		s, ok := v.Field(i).Interface().(Span)
		if !ok || s == (Span{}) {
			continue
		}
		name := v.Type().Field(i).Name
		if s.Start < 0 || s.Start >= s.End || s.End > len(m.Raw) {
			t.Fatalf("%s is at %v of %d", name, s, len(m.Raw))
		}
		if raw := s.Of(m.Raw); !jsontext.Value(raw).IsValid(jsontext.AllowInvalidUTF8(true)) || len(bytes.Trim(raw, blanks)) != len(raw) {
			t.Fatalf("%s is %q", name, raw)
		}
		body, hole := m.WithHole(s)
		if bytes.ContainsAny(body, "\r\n") || !json.Valid(body) || body[hole] != '0' {
			t.Fatalf("hole for %s: %q", name, body)
		}
		want := OneLine(bytes.Clone(m.Raw))
		if got := AppendFilled(nil, body, hole, OneLine(bytes.Clone(s.Of(m.Raw)))); !bytes.Equal(got, want) {
			t.Fatalf("filled %s: %q, want %q", name, got, want)
		}
	}
	again, err := Parse(OneLine(bytes.Clone(m.Raw)))
	if err != nil || again.Kind != m.Kind || again.Method != m.Method {
		t.Fatalf("again: %v", err)
	}
	edited, err := EditObject(m.Raw, nil, Member{"jsonrpc", []byte(`"2.0"`)}, Member{"dev.longcall/x", []byte("1")})
	if err != nil && !bytes.Contains(m.Raw, []byte("longcall")) {
		t.Fatalf("edit: %v", err)
	}
	if again, err = Parse(edited); err != nil || again.Kind != m.Kind || again.Method != m.Method {
		t.Fatalf("edited %q: %v", edited, err)
	}
}

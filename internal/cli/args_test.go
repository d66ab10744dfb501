package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const argsSchema = `{
	"type": "object",
	"additionalProperties": false,
	"$defs": {"color": {"enum": ["red", "green"]}, "level": {"type": "integer"}},
	"properties": {
		"text":   {"type": "string"},
		"count":  {"type": "integer"},
		"ratio":  {"type": "number"},
		"deep":   {"type": "boolean"},
		"tags":   {"type": "array", "items": {"type": "string"}},
		"sizes":  {"type": "array", "items": {"type": "integer"}},
		"where":  {"type": "object"},
		"color":  {"$ref": "#/$defs/color"},
		"level":  {"anyOf": [{"$ref": "#/$defs/level"}, {"type": "null"}]},
		"maybe":  {"type": ["string", "null"]},
		"any":    {}
	}
}`

func TestArgumentsTyped(t *testing.T) {
	for _, tt := range []struct {
		words, want string
		err         string
	}{
		{words: "", want: `{}`},
		{words: `text=7`, want: `{"text":"7"}`},
		{words: `text=true`, want: `{"text":"true"}`},
		{words: `text=`, want: `{"text":""}`},
		{words: `text=a=b`, want: `{"text":"a=b"}`},
		{words: `count=7`, want: `{"count":7}`},
		{words: `count=-7`, want: `{"count":-7}`},
		{words: `count=123456789012345678901`, want: `{"count":123456789012345678901}`},
		{words: `count=1.5`, err: `"1.5" is no integer`},
		{words: `count=x`, err: `argument "count": "x" is no integer`},
		{words: `ratio=1`, want: `{"ratio":1}`},
		{words: `ratio=1e-3`, want: `{"ratio":1e-3}`},
		{words: `deep=true`, want: `{"deep":true}`},
		{words: `deep=yes`, err: `"yes" is no boolean`},
		{words: `tags=a`, want: `{"tags":["a"]}`},
		{words: `tags=a tags=7`, want: `{"tags":["a","7"]}`},
		{words: `tags=["a","b"]`, want: `{"tags":["a","b"]}`},
		{words: `sizes=1 sizes=2`, want: `{"sizes":[1,2]}`},
		{words: `sizes=one`, err: `"one" is no integer`},
		{words: `where={"x":1}`, want: `{"where":{"x":1}}`},
		{words: `where=here`, err: `"here" is no object`},
		{words: `color=red`, want: `{"color":"red"}`},
		{words: `level=3`, want: `{"level":3}`},
		{words: `level=null`, want: `{"level":null}`},
		{words: `level=high`, err: `is no integer or null`},
		{words: `maybe=null`, want: `{"maybe":null}`},
		{words: `maybe=nil`, want: `{"maybe":"nil"}`},
		{words: `any=7 text=x`, want: `{"any":7,"text":"x"}`},
		{words: `any=hello`, want: `{"any":"hello"}`},
		{words: `any=007`, want: `{"any":"007"}`},
		{words: `any="quoted"`, want: `{"any":"\"quoted\""}`},
		{words: `text:=7`, want: `{"text":7}`},
		{words: `any:={"a":[1]}`, want: `{"any":{"a":[1]}}`},
		{words: `any:=nope`, err: `argument "any": not valid JSON`},
		{words: `any:={"a":1,"a":2}`, err: `duplicate`},
		{words: `count=1 count=2`, err: `"count" is given twice`},
		{words: `colour=red`, err: `no argument "colour"; it has any, color, count`},
		{words: `text=a nonsense`, err: `"nonsense" is no key=value`},
		{words: `{"count":18446744073709551617}`, want: `{"count":18446744073709551617}`},
		{words: `{"a":1} b=2`, err: `there is more after the arguments`},
		{words: `{"a":`, err: `not valid JSON`},
		{words: `{"a":1}x`, err: `not valid JSON`},
	} {
		got, err := arguments(strings.Fields(tt.words), json.RawMessage(argsSchema), nil)
		switch {
		case tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)):
			t.Errorf("%s: %s, error %v; want an error with %q", tt.words, got, err, tt.err)
		case tt.err == "" && (err != nil || string(got) != tt.want):
			t.Errorf("%s: %s, error %v; want %s", tt.words, got, err, tt.want)
		}
	}
}

func TestArgumentsWithoutSchema(t *testing.T) {
	got, err := arguments([]string{"a=1", "b=x y", "c=false", "d=[1]"}, nil, nil)
	if want := `{"a":1,"b":"x y","c":false,"d":[1]}`; err != nil || string(got) != want {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
}

func TestArgumentsFromFileAndStdin(t *testing.T) {
	got, err := arguments([]string{"-"}, nil, strings.NewReader(" {\"a\": 1}\n"))
	if err != nil || string(got) != `{"a": 1}` {
		t.Errorf("stdin: %s, %v", got, err)
	}
	path := filepath.Join(t.TempDir(), "args.json")
	if err := os.WriteFile(path, []byte(`{"b": [2]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err = arguments([]string{"@" + path}, nil, nil)
	if err != nil || string(got) != `{"b": [2]}` {
		t.Errorf("file: %s, %v", got, err)
	}
	if _, err = arguments([]string{"@" + path + ".not"}, nil, nil); err == nil {
		t.Error("a missing file is no error")
	}
	if _, err = arguments([]string{"-"}, nil, strings.NewReader("[1]")); err == nil || !strings.Contains(err.Error(), "not a JSON object") {
		t.Errorf("an array: %v", err)
	}
}

func TestIsArgument(t *testing.T) {
	for word, want := range map[string]bool{
		"files": false, "files__read": false, "get-sum": false, "a.b": false,
		"a=1": true, "a:=1": true, "a.b=1": true, "-": true, "@f.json": true, "{}": true, ` {"a":1}`: true, "=x": false,
	} {
		if got := isArgument(word); got != want {
			t.Errorf("%q: %v", word, got)
		}
	}
}

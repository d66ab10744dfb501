package policy

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// planted are secrets as they look; they are put together here, so that no scanner
// takes this file for a leak.
var planted = []string{
	"AKIA" + "IOSFODNN7EXAMPLE",
	"ghp_" + "0123456789abcdefABCDEF0123456789abcd",
	"github_pat_" + "11ABCDEFG0123456789_abcdefghij",
	"glpat-" + "0123456789abcdefghij",
	"xoxb-" + "123456789012-abcdefghijkl",
	"sk-" + "ant-api03-abcdefghij_0123456789",
	"sk-" + "proj-abcdefghij0123456789",
	"AIza" + "SyA0123456789abcdefghijklmnopqrstuv",
	"hf_" + "abcdefghijklmnopqrstuvwxyz01",
	"npm_" + "abcdefghijklmnopqrstuvwxyz0123456789",
	"lc_" + "abcdefghijklmnopqrstuvwxyz0123456789-_ABCDE",
	"sk_" + "live_abcdefghij0123456789",
	"eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
	"-----BEGIN PRIVATE KEY-----\nMIIEvQIBADAN\n" + "-----END PRIVATE KEY-----",
}

// carriers put a secret that has no look of its own into a text.
var carriers = []string{
	"Authorization: Bearer %", "Bearer %", "password=%", "--token %", "--api-key=%", "https://u:%@h.example/x", "curl -u u:% x",
	"Cookie: sid=%", "PGPASSWORD=% psql", `{"password":"%"}`, `x {"secret": "%"} y`, "api_key: %", "https://h.example/?access_token=%&x=1",
	"sshpass -p % ssh h", "export CLIENT_SECRET='%'", `curl -H "X-Api-Key: %"`,
}

const bareSecret = "Zq7Zq7hunter2Zq7"

// FuzzRedact: whatever stands around a secret, it does not survive, and what is
// kept is JSON within its bound.
func FuzzRedact(f *testing.F) {
	for i := range planted {
		f.Add("text before ", " text after", uint8(i), uint8(i))
	}
	f.Add(`{"a":"`, `\"}`, uint8(0), uint8(1))
	f.Add(strings.Repeat("x", 1000), "é", uint8(3), uint8(2))
	f.Add(`[`, `]`, uint8(3), uint8(3))
	r := NewRedactor(KeepRedacted, nil, 512)
	f.Fuzz(func(t *testing.T, before, after string, which, how uint8) {
		if !utf8.ValidString(before) || !utf8.ValidString(after) {
			t.Skip()
		}
		secret := planted[int(which)%len(planted)]
		if how%2 == 1 {
			secret = bareSecret
		}
		text := secret
		if how%2 == 1 {
			text = strings.ReplaceAll(carriers[int(which)%len(carriers)], "%", secret)
		}
		text = before + " " + text + " " + after
		quoted := func(s string) string {
			b, err := jsontext.AppendQuote(nil, s)
			if err != nil {
				t.Fatal(err)
			}
			return string(b)
		}
		var in string
		switch how / 2 % 5 {
		case 0:
			in = `{"t":` + quoted(text) + `}`
		case 1:
			in = `{"a":[1,{"b":` + quoted(text) + `}],"c":2}`
		case 2: // JSON in a string
			in = `{"body":` + quoted(`{"t":`+quoted(text)+`}`) + `}`
		case 3: // under a name
			in = `{"my_password":` + quoted(text) + `,` + quoted(before) + `:1}`
		case 4: // a pair, the name last
			in = `{"h":[{"value":` + quoted(text) + `,"x":` + quoted(after) + `,"name":"Authorization"}]}`
		}
		got := r.Kept([]byte(in))
		if !jsontext.Value(got).IsValid(jsontext.AllowDuplicateNames(true)) || len(got) > 512 {
			t.Fatalf("in %s\nkept %d bytes: %s", in, len(got), got)
		}
		if strings.Contains(before+after, secret) {
			t.Skip()
		}
		if bytes.Contains(got, []byte(secret)) || bytes.Contains(got, []byte(bareSecret)) && secret == bareSecret || secret[0] == '-' && bytes.Contains(got, []byte("MIIEvQIBADAN")) {
			t.Errorf("in   %s\nkept %s", in, got)
		}
	})
}

// FuzzKept: any bytes at all, in every mode.
func FuzzKept(f *testing.F) {
	f.Add([]byte(`{"a":1}`))
	f.Add([]byte(`{"password":"x"`))
	f.Add([]byte("\xff"))
	f.Add(typical)
	modes := map[Keep]*Redactor{}
	for _, k := range []Keep{KeepFull, KeepRedacted, KeepHash} {
		modes[k] = NewRedactor(k, []string{"x"}, 256)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		before := bytes.Clone(in)
		for k, r := range modes {
			got := r.Kept(in)
			if len(in) > 0 && (!jsontext.Value(got).IsValid(jsontext.AllowDuplicateNames(true)) || len(got) > 256) {
				t.Errorf("%s %q: kept %d bytes: %q", k, in, len(got), got)
			}
		}
		if Digest(in); !bytes.Equal(in, before) {
			t.Errorf("%q was changed to %q", before, in)
		}
	})
}

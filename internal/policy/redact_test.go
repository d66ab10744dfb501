package policy

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

func TestRedact(t *testing.T) {
	const x = "[redacted]"
	jwt := "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
	pem := `-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nIBAAKC\n-----END RSA PRIVATE KEY-----`
	same := "" // out is in
	tests := []struct{ in, out string }{
		// nothing to hide: byte for byte
		{`{}`, same},
		{` { "path" : "/a/b" , "n":1.50, "big":9007199254740993,"u":"\u00e9\/x","t":true,"z":null } `, same},
		{`{"query":"how do tokens and passwords work?","max_tokens":4096,"tokens":[1,2],"tokenizer":"gpt"}`, `{"query":"how do tokens and passwords work?","max_tokens":4096,"tokens":"[redacted]","tokenizer":"gpt"}`},
		{`{"url":"https://example.com/a/@scope/b?x=1","repo":"git@github.com:a/b","at":"a@b.example"}`, same},
		{`{"url":"http://localhost:8080/a/@scope/pkg"}`, same},
		{`{"password":null,"secret":false,"token":"","use_token":true,"max_tokens":10}`, same},
		{`{"text":"basic authentication and bearer of news: see README"}`, same},
		{`{"cmd":"grep -u x; docker run --token-file /x"}`, same},
		{`"plain"`, same},
		{`[]`, same},
		{`12`, same},
		{`{"cmd":"echo $TOKEN --password $PW PASSWORD=\"$PW\" max_tokens=100"}`, same},
		{`{"file":"src/token.go:42"}`, same},

		// by name, at any depth, whatever the value
		{`{"password":"hunter2"}`, `{"password":"[redacted]"}`},
		{`{ "a" : [ {"Api-Key" : "k" , "b":1} ] }`, `{ "a" : [ {"Api-Key" : "[redacted]" , "b":1} ] }`},
		{
			`{"apiKey":"k","ACCESS_KEY_ID":"k","clientSecret":"k","x-auth-token":"k","Set-Cookie":"k","sessionId":"k","auth":"k","myCredentials":{"user":"u","p":[1,2]},"pin":"1"}`,
			`{"apiKey":"[redacted]","ACCESS_KEY_ID":"[redacted]","clientSecret":"[redacted]","x-auth-token":"[redacted]","Set-Cookie":"[redacted]","sessionId":"[redacted]","auth":"[redacted]","myCredentials":"[redacted]","pin":"1"}`,
		},
		{`{"password":12345,"token":7}`, `{"password":"[redacted]","token":"[redacted]"}`},
		{`{"pass\u0077ord":"hunter2"}`, `{"pass\u0077ord":"[redacted]"}`},
		{`{"password":"a","password":"b"}`, `{"password":"[redacted]","password":"[redacted]"}`},
		{`{"iban":"DE1","My-IBAN-No":"DE2"}`, `{"iban":"[redacted]","My-IBAN-No":"[redacted]"}`},
		{`{"Пароль":"x"}`, `{"Пароль":"[redacted]"}`},

		{`{"DB_PASS":"k","smtp_pass":"k","bypass":"x","ssh-key":"k"}`, `{"DB_PASS":"[redacted]","smtp_pass":"[redacted]","bypass":"x","ssh-key":"[redacted]"}`},
		{`{"c":"DB_PASS=hunter2 ./run; echo passed: 5"}`, `{"c":"DB_PASS=[redacted] ./run; echo passed: 5"}`},

		// pairs and flags
		{
			`{"headers":[{"name":"Authorization","value":"k1"},{"value":"k2","name":"X-Api-Key"},{"name":"Accept","value":"*/*"}]}`,
			`{"headers":[{"name":"Authorization","value":"[redacted]"},{"value":"[redacted]","name":"X-Api-Key"},{"name":"Accept","value":"*/*"}]}`,
		},
		{`{"key":"PASSWORD","value":{"a":[1]}}`, `{"key":"PASSWORD","value":"[redacted]"}`},
		{`{"args":["--password","hunter2","-v","--token=abc","--user-token",7,"x"]}`, `{"args":["--password","[redacted]","-v","--token=[redacted]","--user-token","[redacted]","x"]}`},

		// by pattern, inside of texts
		{`{"h":"Authorization: Bearer abc.def-123"}`, `{"h":"Authorization: [redacted]"}`},
		{
			`{"c":"curl -H 'Authorization: Token abc def' -H \"Cookie: a='b'; c=d\" https://u:p@h.example/x?token=abc&y=1"}`,
			`{"c":"curl -H 'Authorization: [redacted]' -H \"Cookie: [redacted]\" https://[redacted]@h.example/x?token=[redacted]"}`,
		},
		{`{"c":"curl -u ann:hunter2 https://h.example; sshpass -p hunter2 ssh h"}`, `{"c":"curl -u ann:[redacted] https://h.example; sshpass -p [redacted] ssh h"}`},
		{`{"c":"PGPASSWORD=hunter2 psql; export API_KEY='a b' && x --db-password \"a \\\" b\" -n"}`, `{"c":"PGPASSWORD=[redacted] psql; export API_KEY=[redacted] && x --db-password [redacted] -n"}`},
		{`{"t":"Bearer abcdef1234"}`, `{"t":"Bearer [redacted]"}`},
		{`{"t":"Basic YW5uOmh1bnRlcjI="}`, `{"t":"Basic [redacted]"}`},
		{`{"t":"db is postgres://ann:hun/ter@2@db.example:5432/x"}`, `{"t":"db is postgres://[redacted]@db.example:5432/x"}`},
		{`{"t":"https:\/\/ann:hunter2@h.example\/"}`, `{"t":"https://[redacted]@h.example/"}`},
		{`{"https://ann:hunter2@h.example":1,"https://bob:hunter2@h.example":2}`, `{"https://[redacted]@h.example":1,"https://[redacted]@h.example #2":2}`},
		{`{"t":"x ` + jwt + ` y"}`, `{"t":"x ` + x + ` y"}`},
		{`{"t":"a\n` + pem + `\nb"}`, `{"t":"a\n` + x + `\nb"}`},
		{`{"t":"-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl"}`, `{"t":"[redacted]"}`},
		{
			`{"t":"AKIAIOSFODNN7EXAMPLE ghp_0123456789abcdefABCDEF0123456789abcd xoxb-123456789012-abcdef sk-ant-REDACTED sk-proj-abc123def456ghi789"}`,
			`{"t":"[redacted] [redacted] [redacted] [redacted] [redacted]"}`,
		},
		{`{"t":"A\u004bIAIOSFODNN7EXAMPLE"}`, `{"t":"[redacted]"}`},

		// JSON in a string, and in a string of that
		{`{"body":"{\"password\":\"a\\\"b\",\"n\":1.50}"}`, `{"body":"{\"password\":\"[redacted]\",\"n\":1.50}"}`},
		{`{"body":"{\"in\":\"{\\\"token\\\":\\\"hunter2\\\"}\"}"}`, `{"body":"{\"in\":\"{\\\"token\\\":\\\"[redacted]\\\"}\"}"}`},
		{`{"body":" [ {\"a\": 1} ] "}`, same},
		{`{"c":"curl -d '{\"password\": \"hunter2\"}' x"}`, `{"c":"curl -d '{\"password\": [redacted]}' x"}`},
		{`{"c":"curl -d \"{\\\"password\\\": \\\"hun\\\\\\\"ter2\\\"}\" x"}`, `{"c":"curl -d \"{\\\"password\\\": [redacted]}\" x"}`},
	}
	r := NewRedactor(KeepRedacted, []string{"IBAN", "пароль", "", "-"}, 0)
	for _, tt := range tests {
		want := tt.out
		if want == same {
			want = tt.in
		}
		got := r.Kept([]byte(tt.in))
		if string(got) != want {
			t.Errorf("in   %s\ngot  %s\nwant %s", tt.in, got, want)
		}
		if again := r.Kept(got); !bytes.Equal(again, got) {
			t.Errorf("not stable: %s\nbecomes %s", got, again)
		}
	}
}

// TestRedactNoCopy: what has no secret is not copied.
func TestRedactNoCopy(t *testing.T) {
	if got := NewRedactor(KeepRedacted, nil, 0).Kept(typical); &got[0] != &typical[0] || len(got) != len(typical) {
		t.Errorf("copied: %s", got)
	}
}

func TestKeep(t *testing.T) {
	in := []byte(`{"password":"hunter2"}`)
	if got := Redact(in, KeepFull, nil); string(got) != string(in) {
		t.Errorf("full: %s", got)
	}
	if got := Redact(in, KeepHash, nil); string(got) != fmt.Sprintf(`{"sha256":"%s","bytes":22}`, hexSum(in)) {
		t.Errorf("hash: %s", got)
	}
	if got := Redact(in, "", nil); string(got) != `{"password":"[redacted]"}` {
		t.Errorf("default: %s", got)
	}
	if Redact(nil, KeepHash, nil) != nil || Redact(nil, KeepFull, nil) != nil || Redact(nil, KeepRedacted, nil) != nil {
		t.Error("nothing became something")
	}
	for _, bad := range []string{`{"password":"hunter2"`, `hunter2`, `{} {"password":"hunter2"}`, "{\"a\":\"\xff hunter2\"}", `{"a":hunter2}`, strings.Repeat("[", 20000)} {
		for _, k := range []Keep{KeepFull, KeepRedacted} {
			if got := Redact([]byte(bad), k, nil); !bytes.HasPrefix(got, []byte(`{"sha256":"`)) && !bytes.HasPrefix(got, []byte(`{"cut":true`)) || !jsontext.Value(got).IsValid() {
				t.Errorf("%s %.30s: kept %.100s", k, bad, got)
			}
		}
	}
}

// TestKeptSize: whatever the arguments, what is kept stays below the bound, is
// JSON, and shows no secret, also none that stands at the cut.
func TestKeptSize(t *testing.T) {
	const secret = "ghp_0123456789abcdefABCDEF0123456789abcd"
	for _, max := range []int{256, 1000, 16 << 10} {
		modes := map[Keep]*Redactor{KeepRedacted: NewRedactor(KeepRedacted, nil, max), KeepFull: NewRedactor(KeepFull, nil, max)}
		for _, fill := range []string{"a", `\"`, "é", `\n`, "🙂"} {
			for shift := range 60 {
				n := (max - 30 + shift) / len(fill)
				in := []byte(`{"t":"` + strings.Repeat(fill, n) + " " + secret + `","password":"hunter2","u":"` + strings.Repeat("b", max) + `"}`)
				for k, r := range modes {
					got := r.Kept(in)
					if len(got) > max || !jsontext.Value(got).IsValid() {
						t.Fatalf("max %d, fill %q: %d bytes: %s", max, fill, len(got), got)
					}
					if !bytes.Contains(got, []byte(`"cut":true`)) || !bytes.Contains(got, hexSum(in)) {
						t.Fatalf("max %d: no mark of the cut: %s", max, got)
					}
					if k == KeepRedacted && (bytes.Contains(got, []byte("ghp_0")) || bytes.Contains(got, []byte("hunter2"))) {
						t.Fatalf("max %d, fill %q: a secret shows: %s", max, fill, got)
					}
				}
			}
		}
	}
}

// TestShrunk: what redaction makes short enough must not bring back what was
// too far away to be looked at.
func TestShrunk(t *testing.T) {
	const secret = "ghp_0123456789abcdefABCDEF0123456789abcd"
	pem := `-----BEGIN PRIVATE KEY-----\n` + strings.Repeat("QUJD", 8<<10) + `\n-----END PRIVATE KEY-----`
	for _, in := range []string{
		`{"pem":"` + pem + `","t":"` + secret + `"}`,
		`{"password":"` + strings.Repeat("x", 32<<10) + `","t":"` + secret + `"}`,
		`{"password":"` + strings.Repeat("x", 32<<10) + `","o":{"value":"` + secret + `","name":"x"}}`,
		`{"body":"{\"password\":\"` + strings.Repeat("x", 32<<10) + `\",\"t\":\"` + secret + `\"}","t":"` + secret + `"}`,
		`{"o":{"value":"` + secret[5:] + `","fill":"` + strings.Repeat("x", 32<<10) + `","name":"password"}}`,
	} {
		got := Redact([]byte(in), KeepRedacted, nil)
		if bytes.Contains(got, []byte(secret[5:])) {
			t.Errorf("%.40s: a secret shows: %s", in, got)
		}
		if len(got) > DefaultMaxKept || !jsontext.Value(got).IsValid() {
			t.Errorf("%.40s: %d bytes", in, len(got))
		}
	}
}

func TestDigest(t *testing.T) {
	same := [][]string{
		{``, `{}`, ` { } `},
		{`{"a":1,"b":[1,2]}`, `{ "b":[1, 2], "a":1 }`, `{"\u0061":1,"b":[1,2]}`},
		{`{"n":9007199254740993}`},
		{`{"n":9007199254740992}`},
		{`{"n":0.1}`},
		{`{"n":0.10000000000000000001}`},
		{`{"a":1,"b":[2,1]}`},
		{`no json`},
		{`null`},
	}
	seen := map[string]string{}
	for _, group := range same {
		first := Digest([]byte(group[0]))
		if other, ok := seen[first]; ok {
			t.Errorf("%s and %s have the same digest", other, group[0])
		}
		seen[first] = group[0]
		for _, s := range group[1:] {
			if Digest([]byte(s)) != first {
				t.Errorf("%s and %s differ", group[0], s)
			}
		}
	}
	in := []byte(`{"b":1,"a":2}`)
	if Digest(in); string(in) != `{"b":1,"a":2}` {
		t.Errorf("Digest changed its input: %s", in)
	}
}

var typical = []byte(`{"path":"/home/ann/src/project/main.go","pattern":"func .*Handler","max_results":100,"recursive":true,"options":{"case":false,"context":3,"globs":["*.go","!vendor"]},"note":"find the handlers please, ok"}`)

// BenchmarkRedact is what every call costs: 0.2 KB of arguments without and
// with a secret, and a file of 1 MiB.
func BenchmarkRedact(b *testing.B) {
	big := []byte(`{"path":"/x","content":"` + strings.Repeat(`if x { return token(a) }\n`, 40<<10) + `"}`)
	r := NewRedactor(KeepRedacted, nil, 0)
	for _, in := range []struct {
		name string
		args []byte
	}{{"plain", typical}, {"name", append([]byte(`{"token":"abcdefgh",`), typical[1:]...)}, {"text", append([]byte(`{"t":"PASSWORD=abcdefgh ./run",`), typical[1:]...)}, {"1MiB", big}} {
		b.Run(in.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(in.args)))
			for b.Loop() {
				r.Kept(in.args)
			}
		})
	}
}

func BenchmarkDigest(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		Digest(typical)
	}
}

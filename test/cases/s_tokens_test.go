package cases_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/longcall/longcall/test/wire"
)

// pipeKeys are ids and tokens of requests: on one pipe, all differ in both eras, if
// only by their type.
var pipeKeys = map[string][][2]string{
	wire.Legacy: {{`1`, `"0"`}, {`"1"`, `0`}, {`9007199254740993`, `9007199254740992`}, {`1.5`, `"é🙂"`}, {`"\u0031x"`, ``}},
	wire.Modern: {{`2`, `"5"`}, {`"2"`, `5`}, {`9007199254740995`, `9007199254740994`}, {`2.5`, `"ü\"🙂"`}, {`"\u0032x"`, ``}},
}

// told is what progress messages of a token the pipe has brought, as "value message".
func (p *pipe) told(token string) (out []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.all {
		if m.Method == progressMethod && string(m.At("params.progressToken")) == token {
			out = append(out, string(m.At("params.progress"))+" "+m.Str("params.message"))
		}
	}
	return out
}

// O4, O5, O6, O7, O8, O10, O15, P10 for hosts on a pipe, in both eras at once: each
// token with its JSON type, each id with its digits, each answer once, nothing
// without a token or too late, and nothing of another host.
func TestStdioTokens(t *testing.T) {
	t.Parallel()
	for _, at := range []place{overSSE, overStdio} {
		t.Run(at.name, func(t *testing.T) {
			t.Parallel()
			h := newHome(t, "up: "+at.open(t).config())
			one := h.host(nil, "stdio", "--config", h.config, "--server", "up")
			two := h.host(nil, "stdio", "--config", h.config, "--server", "up")
			type sent struct {
				p                  *pipe
				version, id, token string
				text               string
			}
			var all []sent
			for i, p := range []*pipe{one, two} {
				p.open()
				for version, pairs := range pipeKeys {
					for k, pair := range pairs {
						id, token := pair[0], pair[1]
						c := sent{p, version, id, token, fmt.Sprintf("é🙂 %d %s %d", i, version, k)}
						all = append(all, c)
						meta := strings.TrimPrefix(eraMeta(version), ",")
						if token != "" {
							meta = `"progressToken":` + token + eraMeta(version)
						}
						p.send(`{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"work","arguments":` + script(
							step{Progress: "2", Message: "a " + c.text}, step{Pause: 50, Progress: "2", Message: "b " + c.text}, step{Progress: "9", Message: "c " + c.text},
							step{Text: c.text}, step{Pause: 200, Progress: "10", Message: "late"}) + `,"_meta":{` + meta + `}}}`)
					}
				}
			}
			for _, c := range all {
				if m := c.p.response(c.id); m.ToolText() != c.text {
					t.Errorf("%s %s: %s", c.version, c.id, m.JSON)
				}
				if c.token == "" {
					continue
				}
				if got, want := c.p.told(c.token), []string{"2 a " + c.text, "2.000001 b " + c.text, "9 c " + c.text}; !slices.Equal(got, want) {
					t.Errorf("%s %s: progress %q, not %q", c.version, c.token, got, want)
				}
			}
			for i, p := range []*pipe{one, two} {
				p.send(`{"jsonrpc":"2.0","id":"last","method":"tools/call","params":{"name":"work","arguments":` + script(step{Pause: 400, Text: "last"}) + `}}`)
				p.response(`"last"`)
				for _, c := range all {
					if n := p.count(`"id":` + c.id + `,"result"`); c.p == p && n != 1 {
						t.Errorf("%s was answered %d times", c.id, n)
					}
				}
				if other := fmt.Sprintf("é🙂 %d ", 1-i); strings.Contains(p.text(), other) || strings.Contains(p.text(), "late") || strings.Contains(p.text(), "not a message") {
					t.Errorf("the pipe has what is not its host's:%s", p.text())
				}
				p.close()
			}
		})
	}
}

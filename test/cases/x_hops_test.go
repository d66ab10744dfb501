package cases_test

import (
	"strings"
	"testing"

	"github.com/longcall/longcall/test/wire"
)

// R-71, I12, SPEC §5.7: what _meta and the headers say of one hop is said anew on the
// next, as its era has it; what is the caller's own passes as it is.
func TestHops(t *testing.T) {
	t.Parallel()
	const (
		ours  = "io.modelcontextprotocol/"
		mine  = `"x.example/kept":{"z":1.0,"a":9007199254740993}`
		trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	)
	h := newHouse(t)
	for _, agent := range []string{wire.Legacy, "2025-03-26", wire.Modern} {
		for _, p := range []place{overSSE, overOld, overSSEModern, overStdio, overStdioModern, {name: "2025-03-26", version: "2025-03-26"}} {
			h.add(p.name+" for "+agent, agent, p.open(t), func(t *testing.T, s *scene) {
				s.dn.Name = "the agent's name"
				meta := mine + `,"traceparent":"` + trace + `"`
				if agent == wire.Modern {
					meta += `,"` + ours + `logLevel":"error"`
				}
				answered(t, s.dn.Start(wire.Call{ID: `"the agent's id"`, Token: `"the agent's token"`, Meta: meta}), "worked")
				answered(t, s.dn.Read("resources/read", wire.Call{Args: `{"steps":[{"text":"read"}]}`, Meta: meta}), "read")
				for _, method := range []string{"tools/call", "resources/read"} {
					m := s.up.waitSeen(t, method, 1)
					meta := string(m.At("params._meta"))
					if strings.Contains(m.JSON, "the agent's") || !strings.Contains(meta, mine) {
						t.Errorf("%s: sent %s", method, m.JSON)
					}
					// A span of ours is between the agent's and the server's, if there is one.
					if got := m.Str("params._meta.traceparent"); got[:35] != trace[:35] {
						t.Errorf("%s: traceparent %s", method, got)
					}
					if p.version != wire.Modern {
						if strings.Contains(meta, ours) {
							t.Errorf("%s: a server of %s is sent %s", method, p.version, meta)
						}
						continue
					}
					if !strings.Contains(meta, `"`+ours+`protocolVersion":"`+wire.Modern+`"`) || !strings.Contains(meta, `"`+ours+`clientInfo":{"name":"longcall"`) ||
						!strings.Contains(meta, `"`+ours+`clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}`) {
						t.Errorf("%s: sent %s", method, meta)
					}
					if level := strings.Contains(meta, `"`+ours+`logLevel":"error"`); level != (agent == wire.Modern) {
						t.Errorf("%s: sent %s", method, meta)
					}
				}
				if s.up.http == nil {
					return
				}
				for _, r := range s.up.http.Requests("") {
					modern := r.Method == "server/discover" || p.version == wire.Modern // the probe is the other era's
					first := r.Method == "initialize" || r.Method == "server/discover"
					for name, want := range map[string]bool{
						"Mcp-Session-Id":       !modern && !first && !p.old,
						"Mcp-Protocol-Version": modern || !first && !p.old && p.version != "2025-03-26",
						"Mcp-Method":           modern && r.Verb == "POST",
						"Mcp-Name":             modern && (r.Method == "tools/call" || r.Method == "resources/read"),
						"Last-Event-Id":        false,
						"Traceparent":          false,
					} {
						if has := r.Header.Get(name) != ""; has != want {
							t.Errorf("%s %s: %s is %q", r.Verb, r.Method, name, r.Header.Get(name))
						}
					}
					if v := r.Header.Get("Mcp-Protocol-Version"); v != "" && v != map[bool]string{true: wire.Modern, false: p.version}[modern] {
						t.Errorf("%s %s: version %s", r.Verb, r.Method, v)
					}
				}
			})
		}
	}
	h.run("")
}

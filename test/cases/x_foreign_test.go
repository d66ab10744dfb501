package cases_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/longcall/longcall/test/wire"
)

// withTasks are the capabilities of a modern agent that takes tasks.
const withTasks = `{"extensions":{"io.modelcontextprotocol/tasks":{}}}`

// answerOf is all that an agent is told: status, type and body, with what it sent
// itself made equal.
func answerOf(x *wire.Exchange, sent string) string {
	if err := x.End(5 * time.Second); err != nil {
		return "cut: " + err.Error()
	}
	body := strings.ReplaceAll(x.Body(), sent, "ID")
	return fmt.Sprintf("%d %s %s", x.Status(), x.Head(0).Get("Content-Type"), body)
}

// whatever an agent shows of another principal's looks to it exactly like
// what never was.
func TestX11ForeignLooksUnknown(t *testing.T) {
	t.Parallel()
	for _, ended := range []bool{false, true} {
		t.Run(fmt.Sprint("ended ", ended), func(t *testing.T) {
			t.Parallel()
			s := newStaged()
			up := stagedUp(t, s)
			g := start(t, fmt.Sprintf("%s\n%sshutdown: {drain: 100ms}\nmcpServers: {up: {url: %q}}\n", tokens, impatient, up.URL))
			ann := g.agent(wire.Legacy, "up", "ann")
			s.let(0, 1)
			x := ann.Start(wire.Call{Token: "1"})
			id := handedOff(t, x)
			event := x.Items()[1].ID
			if ended {
				s.let(1, 7)
				if m := awaited(t, ann, id); m.Str("result.content.1.text") != "worked" {
					t.Fatalf("the owner got %s", m.JSON)
				}
			}
			never := "c_" + strings.Repeat("a", 26)

			same := func(what, foreign, unknown string, ask func(id string) *wire.Exchange) {
				t.Helper()
				f, u := answerOf(ask(foreign), foreign), answerOf(ask(unknown), unknown)
				if strings.HasPrefix(f, "cut: ") {
					t.Errorf("%s: no whole answer: %s", what, f)
				}
				if f != u {
					t.Errorf("%s: another principal's gives\n%s\nand one that never was\n%s", what, f, u)
				}
				if strings.Contains(f, "worked") || strings.Contains(f, "running") {
					t.Errorf("%s tells of the call: %s", what, f)
				}
			}
			for _, version := range []string{wire.Legacy, wire.Modern} {
				bob := g.agent(version, "up", "bob")
				same(version+" await_call", id, never, func(id string) *wire.Exchange {
					return bob.Start(wire.Call{ID: "7", Tool: "await_call", Args: `{"ids":["` + id + `"]}`})
				})
				same(version+" cancel_call", id, never, func(id string) *wire.Exchange {
					return bob.Start(wire.Call{ID: "7", Tool: "cancel_call", Args: `{"id":"` + id + `"}`})
				})
				if m := bob.Start(wire.Call{Tool: "list_calls"}).Response(0); strings.Contains(m.JSON, id) {
					t.Errorf("%s list_calls names another's call: %s", version, m.JSON)
				}
			}
			bob := g.agent(wire.Modern, "up", "bob")
			bob.Caps = withTasks
			task := func(method, id, more string) *wire.Exchange {
				return bob.Do(wire.HTTP{
					Body:   bob.Message("7", method, `"taskId":"`+id+`"`+more, ""),
					Header: map[string]string{"Mcp-Protocol-Version": wire.Modern, "Mcp-Method": method, "Mcp-Name": id},
				})
			}
			same("tasks/get", id, never, func(id string) *wire.Exchange { return task("tasks/get", id, "") })
			same("tasks/cancel", id, never, func(id string) *wire.Exchange { return task("tasks/cancel", id, "") })
			same("tasks/update", id, never, func(id string) *wire.Exchange { return task("tasks/update", id, `,"inputResponses":{"a":{}}`) })
			old := g.agent(wire.Legacy, "up", "bob")
			for _, method := range []string{"tasks/get", "tasks/result", "tasks/cancel"} {
				same("2025-11-25 "+method, id, never, func(id string) *wire.Exchange {
					return old.Do(wire.HTTP{Body: old.Message("7", method, `"taskId":"`+id+`"`, "")})
				})
			}
			if m := old.Request("tasks/list", ""); strings.Contains(m.JSON, id) {
				t.Errorf("tasks/list names another's: %s", m.JSON)
			}

			// A subscription takes up what there is for the principal, and its first
			// message says what that is.
			listen := func(id string) string {
				x := bob.Do(wire.HTTP{
					Body:   bob.Message("7", "subscriptions/listen", `"notifications":{"taskIds":["`+id+`"]}`, ""),
					Header: map[string]string{"Mcp-Protocol-Version": wire.Modern, "Mcp-Method": "subscriptions/listen"},
				})
				defer x.Close()
				x.Head(wire.Timeout)
				if strings.HasPrefix(x.Head(0).Get("Content-Type"), "text/event-stream") {
					return strings.ReplaceAll(x.WaitMessages("notifications/subscriptions/acknowledged", 1, 5*time.Second)[0].JSON, id, "ID")
				}
				return answerOf(x, id)
			}
			if f, u := listen(id), listen(never); f != u {
				t.Errorf("subscriptions/listen: another principal's gives\n%s\nand one that never was\n%s", f, u)
			}

			// An event id, in bob's own session.
			other := "A" + event[1:]
			if other == event {
				other = "B" + event[1:]
			}
			same("Last-Event-ID", event, other, func(id string) *wire.Exchange { return old.Listen(id) })

			// A session: every verb.
			thief := g.agent(wire.Legacy, "up", "bob")
			stolen, made := ann.Session, "s_"+strings.Repeat("a", 26)
			for name, do := range map[string]func() *wire.Exchange{
				"tools/list": func() *wire.Exchange {
					return thief.Do(wire.HTTP{Body: thief.Message("7", "tools/list", "", "")})
				},
				"tools/call": func() *wire.Exchange { return thief.Start(wire.Call{ID: "7"}) },
				"cancel": func() *wire.Exchange {
					return thief.Do(wire.HTTP{Body: thief.Message("", "notifications/cancelled", `"requestId":`+x.ID, "")})
				},
				"GET":    func() *wire.Exchange { return thief.Listen("") },
				"resume": func() *wire.Exchange { return thief.Listen(event) },
				"DELETE": func() *wire.Exchange { return thief.Do(wire.HTTP{Verb: "DELETE"}) },
			} {
				same("session, "+name, stolen, made, func(session string) *wire.Exchange {
					thief.Session = session
					return do()
				})
			}
			if m := ann.Request("tools/list", ""); m.Result == nil {
				t.Errorf("the owner's session is gone: %s", m.JSON)
			}

			// Nothing of all this did anything to the call.
			if !ended {
				s.let(1, 7)
			}
			if m := awaited(t, ann, id); m.Str("result.content.1.text") != "worked" {
				t.Errorf("the owner got %s", m.JSON)
			}
			if n := up.Count(cancelledMethod); n != 0 || up.Count("tools/call") != 1 {
				t.Errorf("%d cancels, %d calls", n, up.Count("tools/call"))
			}
		})
	}
}

//go:build unix

package cases_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/longcall/longcall/test/wire"
)

var updateAsks = flag.Bool("update", false, "write the conversations of testdata/asks anew")

// What differs from run to run.
var askNames = []struct {
	what *regexp.Regexp
	name string
}{
	{regexp.MustCompile(`c_[a-z2-7]{26}/[0-9a-f]{16}`), "$$QUESTION"},
	{regexp.MustCompile(`c_[a-z2-7]{26}`), "$$CALL"},
	{regexp.MustCompile(`lc[a-z2-7]{8}-[0-9a-z]+`), "$$ID"},
	{regexp.MustCompile(`"requestState":"[A-Za-z0-9_-]{60,}"`), `"requestState":"$$SEALED"`},
}

// talk is what one side of longcall said and heard, one message per line.
type talk struct{ strings.Builder }

func (l *talk) say(arrow, message string) {
	for _, n := range askNames {
		message = n.what.ReplaceAllString(message, n.name)
	}
	fmt.Fprintln(l, arrow, strings.TrimSpace(message))
}

// agentTalks has an agent of an era call the tool and answer all that it asks.
func agentTalks(t *testing.T, dn *wire.Client) string {
	var l talk
	say := func(m wire.Msg) wire.Msg { l.say("<", m.JSON); return m }
	if dn.Version != wire.Modern {
		x := dn.Start(wire.Call{ID: "7"})
		l.say(">", dn.Message("7", "tools/call", `"name":"work","arguments":{}`, ""))
		var list []wire.Msg
		soon(t, "all is asked", func() bool {
			list = list[:0]
			for _, m := range x.Messages() {
				if m.Method != "" && m.ID != nil {
					list = append(list, m.Msg)
				}
			}
			return len(list) >= len(askKeys)
		})
		for _, q := range list {
			say(q)
		}
		for _, q := range list {
			body := `{"jsonrpc":"2.0","id":` + string(q.ID) + `,"result":` + agentSays(t, q) + `}`
			l.say(">", body)
			r := dn.Do(wire.HTTP{Body: body})
			if r.Head(0); r.Status() != 202 {
				t.Errorf("an answer got HTTP %d", r.Status())
			}
		}
		say(x.Response(0))
		return l.String()
	}
	more := ""
	for id := 7; id < 12; id++ {
		body := dn.Message(fmt.Sprint(id), "tools/call", `"name":"work","arguments":{}`+more, "")
		l.say(">", body)
		m := say(dn.Do(wire.HTTP{Body: body, Header: map[string]string{"Mcp-Protocol-Version": dn.Version, "Mcp-Method": "tools/call", "Mcp-Name": "work"}}).Response(0))
		if m.Str("result.resultType") != "input_required" {
			return l.String()
		}
		more = answersTo(t, m)
	}
	t.Error("it asks without an end")
	return l.String()
}

// What agents of both eras and servers of both eras say to each other through longcall
// when a tool asks: a form, a page, a model and roots (SPEC §4.2). In the files "<" is
// what came from longcall, and ">" what was said to it; what the servers say is in
// asker.
func TestX8Conversations(t *testing.T) {
	t.Parallel()
	for _, agent := range []string{wire.Legacy, wire.Modern} {
		for _, server := range []string{wire.Legacy, wire.Modern} {
			name := agent + "-" + server
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				up := asker(t, server)
				g := before(t, up)
				dn := wire.NewClient(t, g.app.URL()+"/mcp/up", agent)
				dn.Caps = everyCap
				dn.Initialize()
				said := agentTalks(t, dn)
				var l talk
				for _, r := range up.Requests("") {
					if r.Method == "tools/call" || r.Response() {
						l.say("<", r.Body)
					}
				}
				got := txtar.Format(&txtar.Archive{
					Comment: []byte("An agent of " + agent + " and a tool server of " + server + ".\n"),
					Files:   []txtar.File{{Name: "agent", Data: []byte(said)}, {Name: "tool server", Data: []byte(l.String())}},
				})
				file := filepath.Join("testdata", "asks", name+".txtar")
				if *updateAsks {
					if err := os.WriteFile(file, got, 0o644); err != nil {
						t.Fatal(err)
					}
					return
				}
				want, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				if string(got) != string(want) {
					t.Errorf("got:\n%s\nwant:\n%s", got, want)
				}
			})
		}
	}
}

package cases_test

import (
	"encoding/hex"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/longcall/longcall/test/wire"
)

// fuzzed is the tool of FuzzTwoEnds: it does what the bytes in its arguments say.
func fuzzed(w *worker, raw func(string), r *wire.Request) {
	program, _ := hex.DecodeString(arg(r.Msg, "p"))
	id := string(r.ID)
	for i, op := range program {
		v := fmt.Sprint(i)
		switch op % 20 {
		case 0:
			w.send(r.Progress(v, "", "step"))
		case 1:
			w.send(r.Progress(v, "3", ""))
		case 2:
			w.send(wire.Progress(`"nobody's"`, v, "", ""))
		case 3:
			w.send(wire.Log("info", "note"))
		case 4:
			w.send(wire.ServerRequest(`"upid-canary"`, "ping", "{}"))
		case 5:
			w.send(wire.ServerRequest(`"upid-canary"`, "sampling/createMessage", `{"messages":[]}`))
		case 6:
			w.send(`{"jsonrpc":"2.0","id":"upid-canary","result":{}}`)
		case 7:
			w.send(`{"jsonrpc":"2.0","id":` + id + `,"result":{"content":[]},"result":{"content":[]}}`)
		case 8:
			w.send(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":` + id + `}}`)
		case 9:
			w.send("{\"jsonrpc\":\"2.0\",\n \"id\":" + id + ",\r\n\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"\xff\u2028\"}]}}")
		case 10:
			w.send(r.Text("worked"))
		case 11:
			w.send(r.Fail("-32603", "broken"))
		case 12:
			w.send(r.Fail("-32020", "header"), r.Fail("-32021", "capability"))
		case 13:
			w.send(`[` + r.Text("in an array") + `]`)
		case 14:
			w.send(r.Result(`{"resultType":"input_required","inputRequests":{"k":{"method":"roots/list"}},"requestState":"s"}`))
		case 15:
			w.send(r.Result(`{"resultType":"task","task":{"taskId":"upid-canary","status":"working"}}`))
		case 16:
			w.send("", "null", `"text"`, `{"jsonrpc":"2.0"`)
		case 17:
			raw("data: {\"jsonrpc\"\r\rid: a\x00\nretry: 1\nevent: endpoint\ndata: /elsewhere\n\n: \n")
		case 18:
			raw("id: 7\ndata: " + r.Progress(v, "", "numbered") + "\n\n")
		case 19:
			w.pause(time.Millisecond)
		}
	}
}

// FuzzTwoEnds has an agent and a tool server exchange what random bytes say,
// through the whole gateway. It must not fall over, must not show one side's ids and
// tokens to the other (I12), and must not answer a request twice.
func FuzzTwoEnds(f *testing.F) {
	onStream := func(head bool) wire.Handler {
		return func(c *wire.Conn, r *wire.Request) {
			s := c
			if head {
				c.SSE()
			} else {
				s = c.Took()
			}
			fuzzed(&worker{s.Event, s.Pause}, func(b string) { s.Body(b) }, r)
			if head {
				c.End()
			}
		}
	}
	asJSON := func(c *wire.Conn, r *wire.Request) {
		var first string
		fuzzed(&worker{func(m ...string) {
			if first == "" {
				first = m[0]
			}
		}, c.Pause}, func(string) {}, r)
		c.JSON(200, first)
	}
	var ups []*wire.Upstream
	var config strings.Builder
	config.WriteString("hand_off: off\nlimits: {first_byte: 400ms, idle: 400ms, total: 2s}\nshutdown: {drain: 100ms}\nmcpServers:\n")
	for i, opt := range []wire.Options{
		{On: map[string]wire.Handler{"tools/call": onStream(true)}},
		{Version: wire.Modern, On: map[string]wire.Handler{"tools/call": onStream(true)}},
		{Version: "2024-11-05", Old: true, On: map[string]wire.Handler{"tools/call": onStream(false)}},
		{On: map[string]wire.Handler{"tools/call": asJSON}},
	} {
		ups = append(ups, wire.NewUpstream(f, opt))
		fmt.Fprintf(&config, "  s%d: {url: %q, ping: 100ms}\n", i, ups[i].URL)
	}
	g := start(f, config.String())
	agents := map[string]*wire.Client{}
	for i := range ups {
		for _, v := range []string{"2025-03-26", "2025-06-18", wire.Legacy, wire.Modern} {
			c := wire.NewClient(f, fmt.Sprintf("%s/mcp/s%d", g.app.URL(), i), v)
			c.Initialize()
			agents[fmt.Sprint(i, v)] = c
		}
	}
	var serial atomic.Int64

	f.Add([]byte{0}, []byte{0, 10}, []byte{})
	f.Add([]byte{1, 3}, []byte{0, 2, 3, 4, 10, 0, 10, 11}, []byte{1})
	f.Add([]byte{2, 1}, []byte{4, 5, 6, 9}, []byte{2, 9})
	f.Add([]byte{7, 2}, []byte{16, 17, 18, 10}, []byte{3, 40})
	f.Add([]byte{5, 3}, []byte{14}, []byte{4, 4})
	f.Add([]byte{9, 2}, []byte{15, 7}, []byte{5, 77})
	f.Add([]byte{4, 2}, []byte{12}, []byte{0, 200})
	f.Add([]byte{6, 2}, []byte{8, 13, 1, 11}, []byte{6, 3})
	f.Add([]byte{6, 2}, []byte{7}, []byte{7, 3})
	f.Fuzz(func(t *testing.T, where, program, agent []byte) {
		at := func(b []byte, i int) int {
			if i < len(b) {
				return int(b[i])
			}
			return 0
		}
		program = program[:min(len(program), 24)]
		server, version := at(where, 0)%len(ups), []string{"2025-03-26", "2025-06-18", wire.Legacy, wire.Modern}[at(where, 1)%4]
		up, dn := ups[server], wire.NewClient(t, fmt.Sprintf("%s/mcp/s%d", g.app.URL(), server), version)
		dn.Session = agents[fmt.Sprint(server, version)].Session
		n := serial.Add(1)
		// What is the agent's own: it must not come out at the other end.
		mine := fmt.Sprintf("dnid-canary-%d", n)
		params := `"name":"work","arguments":{"p":"` + hex.EncodeToString(program) + fmt.Sprintf(`","n":%d}`, n)
		message := dn.Message(wire.Quote(mine), "tools/call", params, `"progressToken":`+wire.Quote(mine+"-token"))
		headers := map[string]string{}
		if version == wire.Modern {
			headers = map[string]string{"Mcp-Protocol-Version": version, "Mcp-Method": "tools/call", "Mcp-Name": "work"}
		} else {
			headers["Mcp-Session-Id"] = dn.Session
			if version >= "2025-06-18" {
				headers["Mcp-Protocol-Version"] = version
			}
		}
		cut := at(agent, 1) % (len(message) + 1)
		owed := 1
		switch at(agent, 0) % 8 {
		case 1: // cut short
			message = message[:cut]
		case 2: // a byte of something else
			message = message[:cut] + "\x00" + message[min(cut+1, len(message)):]
		case 3:
			message = message[:cut] + `"` + message[cut:]
		case 4:
			message, owed = "["+message+",{},"+message+"]", 3
		case 5:
			message += message
		case 6:
			headers["Accept"] = "application/json"
		}
		x := dn.Do(wire.HTTP{Body: message, Header: headers})
		if at(agent, 0)%8 == 7 && version != wire.Modern {
			dn.Notify("notifications/cancelled", `"requestId":`+wire.Quote(mine))
		}
		if err := x.End(20 * time.Second); err != nil {
			t.Fatalf("no end: %v, %s", err, x.Body())
		}
		answers := strings.Count(x.Body(), `"result":`) + strings.Count(x.Body(), `"error":{`)
		if answers > owed {
			t.Errorf("%d answers to %s:\n%s", answers, message, x.Body())
		}
		for _, theirs := range []string{"upid-canary", "nobody's", "lc"} {
			if i := strings.Index(x.Body(), `"`+theirs); i >= 0 {
				t.Errorf("the agent is shown %.60q", x.Body()[i:])
			}
		}
		for _, r := range up.Requests("") {
			if strings.Contains(r.Body, mine) || strings.Contains(fmt.Sprint(r.Header), mine) {
				t.Errorf("the tool server is shown %s", r.Body)
			}
		}
	})
}

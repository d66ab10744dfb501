package wire

import (
	"strings"
)

// WorkTool is the tools/list entry of the usual tool.
const WorkTool = `{"name":"work","description":"Works for a while.","inputSchema":{"type":"object","properties":{"tag":{"type":"string"}}}}`

// Usual answers a request as if Options.On had nothing for it.
func (u *Upstream) Usual(c *Conn, r *Request) { u.usual(c, r) }

// usual answers what the case does not care about, as a well-behaved server does.
func (u *Upstream) usual(c *Conn, r *Request) {
	switch {
	case r.Verb == "GET":
		u.get(c, r)
	case r.Verb == "DELETE":
		u.change(func() { delete(u.sessions, r.Header.Get("Mcp-Session-Id")) })
		c.Status(200)
	case r.Bad != nil || r.Verb != "POST":
		c.JSON(400, `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"parse error"}}`)
	case r.Modern() != modern(u.options().Version) && !u.options().Both:
		c.JSON(400, r.Fail("-32601", "method not found"))
	case r.ID == nil || r.Response():
		c.Status(202)
	case r.Method == "initialize" && !u.options().NoSession:
		c.JSON(200, u.reply(r), "Mcp-Session-Id: "+u.newSession())
	case r.Method == "tools/call" && !u.options().JSON:
		c.Answer(u.reply(r))
	default:
		body := u.reply(r)
		if r.Modern() && strings.Contains(body, "-32601") {
			c.JSON(404, body)
			return
		}
		c.JSON(200, body)
	}
}

func (u *Upstream) reply(r *Request) string { return usualReply(r, u.options()) }

// usualReply is the response to a request, on any transport.
func usualReply(r *Request, opt Options) string {
	cache := ""
	if r.Modern() {
		cache = `,"ttlMs":60000,"cacheScope":"public"`
	}
	tools := opt.Tools
	if tools == "" {
		tools = "[" + WorkTool + "]"
	}
	caps, says := opt.Capabilities, ""
	if opt.Instructions != "" {
		says = `,"instructions":` + Quote(opt.Instructions)
	}
	switch r.Method {
	case "initialize":
		v := opt.Version
		if r.Version < v || modern(v) {
			v = min(r.Version, Legacy)
		}
		if caps == "" {
			caps = `{"tools":{"listChanged":true}}`
		}
		return r.Result(`{"protocolVersion":"` + v + `","capabilities":` + caps + `,"serverInfo":{"name":"up","version":"1"}` + says + `}`)
	case "server/discover":
		if caps == "" {
			caps = `{"tools":{}}`
		}
		return r.Result(`{"supportedVersions":["` + Modern + `"],"capabilities":` + caps + says + `,` +
			`"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"up","version":"1"}}` + cache + `}`)
	case "ping":
		return r.Result(`{}`)
	case "tools/list":
		return r.Result(`{"tools":` + tools + cache + `}`)
	case "tools/call":
		return r.Text("worked")
	}
	return r.Fail("-32601", "method not found")
}

// get serves the standalone stream, which stays silent until the case writes
// to it, and the resumption of an EventLog.
func (u *Upstream) get(c *Conn, r *Request) {
	if u.options().NoStream || modern(u.options().Version) {
		c.Status(405, "Allow: POST")
		return
	}
	if id := r.Header.Get("Last-Event-ID"); id != "" {
		if log, after := u.log(id); log != nil {
			c.SSE()
			log.Serve(c, after, 0)
			c.End()
			return
		}
		c.Status(400)
		return
	}
	c.SSE()
	u.change(func() { u.streams = append(u.streams, c) })
	c.Hold()
	u.change(func() {
		for i, s := range u.streams {
			if s == c {
				u.streams = append(u.streams[:i:i], u.streams[i+1:]...)
				break
			}
		}
	})
	c.Close()
}

package upstream_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
	"github.com/longcall/longcall/test/wire"
)

const pageDone = `{"jsonrpc":"2.0","method":"notifications/elicitation/complete","params":{"elicitationId":"e1"}}`

// TestPageDoneWakes_R28: that a page is done answers the question that sent a stateless
// agent's person there, since that agent hears nothing of it; one with a session hears it,
// and answers itself.
func TestPageDoneWakes_R28(t *testing.T) {
	for _, own := range []bool{false, true} { // on the call's own stream
		release, n := make(chan struct{}), 0
		up := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{"tools/call": func(c *wire.Conn, r *wire.Request) {
			n++
			c.SSE()
			c.Event(`{"jsonrpc":"2.0","id":` + strconv.Itoa(n) + `,"method":"elicitation/create","params":{"mode":"url","url":"https://a.example","elicitationId":"e1","message":"Go."}}`)
			if own {
				<-release
				c.Event(pageDone)
			}
			<-release
			c.Event(r.Text("worked"))
			c.End()
		}}})
		g := newGateway(t, up.URL)
		for i, era := range []string{mcp.V20260728, mcp.V20251125} {
			id := strconv.Itoa(i + 1)
			c := g.askable(asksAll, func(s *call.Spec) { s.Era = era })
			asked(t, c, `"elicitation-`+id+`"`)
			if own {
				release <- struct{}{}
			} else {
				up.Stream().Event(strings.Replace(pageDone, "e1", "e2", 1), pageDone)
			}
			if era == mcp.V20260728 {
				waitReply(t, up, id, `"result":{"action":"accept"}`)
			} else {
				asked(t, c, `"elicitation-`+id+`"`)
				answer(t, c, "elicitation-"+id, `{"action":"decline"}`)
				waitReply(t, up, id, `"result":{"action":"decline"}`)
			}
			release <- struct{}{}
			g.follow(c).want(t, call.Completed, "worked")
		}
	}
}

// The same for the error that a page has to be visited first: the call is made again.
func TestPageDoneMakesTheCallAgain_R28(t *testing.T) {
	n := 0
	up := wire.NewUpstream(t, wire.Options{On: map[string]wire.Handler{"tools/call": func(c *wire.Conn, r *wire.Request) {
		if n++; n == 1 {
			c.JSON(200, `{"jsonrpc":"2.0","id":`+string(r.ID)+`,"error":{"code":-32042,"message":"go","data":{"elicitations":[{"mode":"url","elicitationId":"e1","url":"https://a.example","message":"Go."}]}}}`)
			return
		}
		c.JSON(200, r.Text("worked"))
	}}})
	g := newGateway(t, up.URL)
	c := g.askable(asksAll, func(s *call.Spec) { s.Era = mcp.V20260728 })
	asked(t, c, "https://a.example")
	up.Stream().Event(pageDone)
	s := g.follow(c)
	s.want(t, call.Completed, "worked")
	if notes := strings.Join(s.notes, "\n"); !strings.Contains(notes, "the page is done") {
		t.Errorf("notes %q", s.notes)
	}
}

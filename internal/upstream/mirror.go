package upstream

import (
	"context"
	"net/http"
	"slices"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// This file is what a client of 2026-07-28 owes a server over HTTP beside the
// message: the headers that mirror it, and the repair of a request that the server
// refused for how it was sent (SPEC §1.3, §5.6, R-71, R-82).

// maxKept is how large a request may be that is kept to be sent anew.
const maxKept = 1 << 20

// mirrored leaves out the tools that a client must not use over HTTP, because what
// they say of headers is invalid.
func (c *catalog) mirrored(tools []mcp.Entry) []mcp.Entry {
	return slices.DeleteFunc(tools, func(t mcp.Entry) bool {
		_, err := mcp.HeaderParams(mcp.Value(t.Raw, "inputSchema"))
		if err != nil {
			c.p.opt.Log.Warn("a tool is left out, as the protocol wants it: its schema asks for a header that cannot be", "server", c.l.server.Name, "tool", t.Name, "reason", err)
		}
		return err != nil
	})
}

// headerParams is which arguments of a tool are mirrored; see Hooks.Params.
func (c *catalog) headerParams(ctx context.Context, tool string, again bool) []mcp.HeaderParam {
	if again {
		c.reread(ctx)
	}
	list, _ := c.get(ctx) // without a list, nothing can be mirrored
	for _, t := range list.Entries {
		if t.Name == tool {
			params, _ := mcp.HeaderParams(mcp.Value(t.Raw, "inputSchema"))
			return params
		}
	}
	return nil
}

// reread reads the list now and waits for it, but not for ever.
func (c *catalog) reread(ctx context.Context) {
	c.mu.Lock()
	busy := c.readLocked()
	c.mu.Unlock()
	await(ctx, busy)
}

// mirror sets the headers that mirror the call's arguments, as they are sent: what
// policy made of them counts.
func (x *exchange) mirror(h http.Header, body []byte) {
	if x.sess.isModern {
		for name, v := range x.exec.Spec.Params {
			h[name] = []string{v}
		}
	}
	if len(x.params) == 0 {
		return
	}
	for i := range x.params {
		delete(h, x.params[i].Header)
	}
	if m, err := mcp.Parse(body); err == nil {
		mcp.Mirror(h, x.params, m.Arguments.Of(m.Raw))
	}
}

// malformed says whether an error means that the request was refused for how it was
// sent, before anything was done with it. That is between the server and us.
func malformed(code int) bool {
	return code == mcp.CodeHeaderMismatch || code == mcp.CodeUnsupportedVersion
}

// refusedForm is the answer for a call that the server refused for how it was sent.
//
//go:noinline
func refusedForm(server string, code int, text string) call.Answer {
	return failed("The tool server %q refused the call for how longcall sent it (code %d: %s). It did not run. Calling again will not help: the operator has to look at it.", server, code, printable([]byte(text)))
}

// anew sends a call once more that the server refused for how it was sent: with
// headers from a new list (-32020), or in another revision (-32022). It is still the
// one dispatch of the call, of which the server has done nothing.
//
//go:noinline
func (c *httpConn) anew(ctx context.Context, x *call.Exec, first *exchange) call.Answer {
	switch first.malformed {
	case mcp.CodeHeaderMismatch:
		c.hooks.params(ctx, x.Spec.Tool, true)
	case mcp.CodeUnsupportedVersion:
		c.forget(first.sess) // it is asked again what it speaks
	}
	x.Note("The tool server refused the request for how it was sent (code %d), and did nothing; it was sent anew.", first.malformed)
	e, refused := c.prepare(ctx, x, first.kept, nil)
	if refused != nil {
		return *refused
	}
	if e.old != nil {
		return failed("The tool server %q speaks another transport now. The call did not run: call again.", c.s.Name)
	}
	e.anew = true
	return c.carried(ctx, x, e)
}

package downstream

import (
	"slices"
	"strings"
	"time"

	"github.com/longcall/longcall/internal/mcp"
)

// offers are what an endpoint has for a caller: the union of what its servers say
// of themselves.
type offers struct {
	prompts, resources, subscribe, completions, logging bool
	partly                                              bool         // a server has not spoken yet
	extensions                                          []mcp.Member // that the operator lets through, with their settings
}

// offers never waits (A3). A server that has not spoken yet may have everything:
// an agent asks once, and is then told what there is by the lists.
func (x *exchange) offers() (o offers) {
	for _, server := range x.servers() {
		caps, known := x.h.opt.Catalog.Capabilities(x.caller(), server)
		if !known {
			o.prompts, o.resources, o.subscribe, o.completions, o.logging, o.partly = true, true, true, true, true, true
			continue
		}
		has := func(name string) bool { f := find(caps, 0, name); return f.ok() && caps[f.val] == '{' }
		o.prompts = o.prompts || has("prompts")
		o.completions = o.completions || has("completions")
		o.logging = o.logging || has("logging")
		if r := find(caps, 0, "resources"); r.ok() && caps[r.val] == '{' {
			o.resources = true
			o.subscribe = o.subscribe || isTrue(caps, r.val, "subscribe")
		}
		if ext := find(caps, 0, "extensions"); ext.ok() {
			for _, name := range x.allowedExtensions(server) {
				f := find(caps, ext.val, name)
				if f.ok() && caps[f.val] == '{' && !slices.ContainsFunc(o.extensions, func(m mcp.Member) bool { return m.Name == name }) {
					o.extensions = append(o.extensions, mcp.Member{Name: name, Value: caps[f.val:skipValue(caps, f.val)]})
				}
			}
		}
	}
	if x.h.own != nil {
		o.resources, o.subscribe = true, true
	}
	slices.SortFunc(o.extensions, func(a, b mcp.Member) int { return strings.Compare(a.Name, b.Name) })
	return o
}

// ttl is how long a modern agent may keep this.
func (o offers) ttl() time.Duration {
	if o.partly {
		return 0
	}
	return listTTL
}

// serves says whether a method of the protocol is there: what was not declared is
// not. What longcall does by itself always is; so logging/setLevel: it leaves out what
// is below, also of servers that log without having said so; and subscriptions, which
// some servers take that cannot say so (see subscribable). A tool call asks no server.
func (x *exchange) serves(method string) bool {
	switch method {
	case mcp.MethodPromptsList, mcp.MethodPromptsGet:
		return x.offers().prompts
	case mcp.MethodResourcesList, mcp.MethodTemplatesList, mcp.MethodResourcesRead, mcp.MethodSubscribe, mcp.MethodUnsubscribe:
		return x.offers().resources
	case mcp.MethodComplete:
		return x.offers().completions
	}
	return true
}

// lists are the lists that may change.
func (o offers) lists() listSet {
	set := listsOf(mcp.ListTools)
	if o.prompts {
		set |= listsOf(mcp.ListPrompts)
	}
	if o.resources {
		set |= listsOf(mcp.ListResources)
	}
	return set
}

// append writes the members of a capabilities object that both eras have. What is
// said of lists is true of longcall: it reads them again and tells what is new.
func (o offers) append(b []byte) []byte {
	b = append(b, `"tools":{"listChanged":true}`...)
	if o.prompts {
		b = append(b, `,"prompts":{"listChanged":true}`...)
	}
	if o.resources {
		b = append(b, `,"resources":{`...)
		if o.subscribe {
			b = append(b, `"subscribe":true,`...)
		}
		b = append(b, `"listChanged":true}`...)
	}
	if o.completions {
		b = append(b, `,"completions":{}`...)
	}
	if o.logging {
		b = append(b, `,"logging":{}`...)
	}
	return b
}

// maxInstructions bounds all instructions of an endpoint together, in bytes: a
// model reads them in every conversation.
const maxInstructions = 16 << 10

// appendInstructions writes the member of an introduction that is for models: ours,
// then those of the endpoint's servers as far as they are known and there is room.
func (x *exchange) appendInstructions(b []byte) []byte {
	all := x.h.opt.Info.Instructions
	for _, server := range x.servers() {
		said, ok := mcp.String(x.h.opt.Catalog.Instructions(x.caller(), server))
		if said = strings.TrimSpace(said); !ok || said == "" {
			continue
		}
		if x.server == "" {
			said = "About the tools whose names begin with " + server + separator + ":\n" + said
		}
		if len(all)+len(said) > maxInstructions {
			x.h.log.Warn("instructions of a tool server left out: all together are too long", "server", server, "bytes", len(said))
			continue
		}
		if all != "" {
			all += "\n\n"
		}
		all += said
	}
	if all == "" {
		return b
	}
	b = append(b, `,"instructions":`...)
	return append(b, mcp.Quote(all)...)
}

package downstream

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

var (
	completeC = []byte(`"resultType":"complete",`)
	invalid   = []byte("-32602")
)

// metaKeyUpstream is who answered longcall, in the _meta of a result: the protocol's
// own key is of each hop (SPEC §5.7).
const metaKeyUpstream = "dev.longcall/upstreamServer"

// view is how an agent has to see what a tool server answered.
type view struct {
	modern   bool
	version  string // of the agent's request
	method   string // of its request; empty for tools/call
	uncached bool   // the result must not be cached
	info     []byte // our own serverInfo, raw
	stamps   *stamps
	replayed bool // the result was kept because nobody had got it
}

// stamps are what results of ours and of tool servers get for stateless agents, ready
// to be put in.
type stamps struct {
	member   []byte // serverInfo, a member of _meta
	complete []byte // resultType and _meta, for a result that has neither
}

func newStamps(info []byte) *stamps {
	s := &stamps{member: append([]byte(`"`+mcp.MetaKeyServerInfo+`":`), info...)}
	s.complete = append(append(append([]byte(nil), completeC...), `"_meta":{`...), s.member...)
	s.complete = append(s.complete, `},`...)
	return s
}

func (a *attachment) view() view {
	v := view{modern: a.modern, version: a.x.version, info: a.x.h.info, stamps: a.x.h.stamps, replayed: a.join == call.Replay}
	if a.read != nil {
		v.method, v.uncached = a.read.method, a.read.uncached
	}
	return v
}

// convert is what has to be cut in a response of the tool server so that the agent
// may see it (SPEC §7.6): nothing, in most cases. The rest of the message stays
// byte for byte.
func convert(body []byte, v view, cuts []cut) []cut {
	result := find(body, 0, "result")
	switch {
	case !result.ok():
		return v.convertError(body, cuts)
	case body[result.val] != '{':
		return cuts
	}
	var kind, meta, structured, content, messages, ttl, scope field
	members(body, result.val, func(name []byte, f field) {
		switch string(name) {
		case "resultType":
			kind = f
		case "_meta":
			meta = f
		case "structuredContent":
			structured = f
		case "content":
			content = f
		case "messages":
			messages = f
		case "ttlMs":
			ttl = f
		case "cacheScope":
			scope = f
		}
	})
	if v.modern {
		return v.toModern(body, result.val, kind, meta, ttl, scope, cuts)
	}
	drop := []field{kind}
	if v.method == mcp.MethodResourcesRead {
		drop = append(drop, ttl, scope)
	}
	if structured.ok() && body[structured.val] != '{' {
		// It has to be an object here. Who wrote it says the same in text, as a rule.
		drop = append(drop, structured)
		if content.ok() && body[content.val] == '[' && string(bytes.TrimSpace(body[content.val+1:content.end-1])) == "" {
			cuts = append(cuts, cut{content.val, content.end, textContent(string(body[structured.val:structured.end]), true)})
		}
	}
	if v.version < mcp.V20250618 {
		cuts = v.older(body, content, messages, cuts)
	}
	if cuts = withoutAll(body, drop, cuts); v.replayed {
		cuts = markReplayed(body, cuts)
	}
	return cuts
}

// toModern adds what results of 2026-07-28 have to have.
func (v view) toModern(body []byte, obj int, kind, meta, ttl, scope field, cuts []cut) []cut {
	var add []byte
	stamp := v.stamp()
	switch {
	case !kind.ok() && !meta.ok() && v.stamps != nil && !v.replayed:
		add = v.stamps.complete[:len(v.stamps.complete):len(v.stamps.complete)]
	case !kind.ok():
		add = append(add, completeC...)
		fallthrough
	default:
		if !meta.ok() && stamp != nil {
			add = append(append(append(add, `"_meta":{`...), stamp...), `},`...)
		}
	}
	done := !kind.ok() || string(body[kind.val:kind.end]) == `"complete"`
	if v.method == mcp.MethodResourcesRead && done {
		switch {
		case !ttl.ok():
			add = append(add, `"ttlMs":0,`...)
		case v.uncached:
			cuts = append(cuts, cut{ttl.val, ttl.end, []byte("0")})
		}
		if !scope.ok() {
			add = append(add, `"cacheScope":"private",`...)
		}
	}
	if len(add) > 0 {
		at := obj + 1
		if i := space(body, at); i < len(body) && body[i] == '}' {
			add = add[:len(add)-1]
		}
		cuts = append(cuts, cut{at, at, add})
	}
	if meta.ok() && body[meta.val] == '{' {
		if f := find(body, meta.val, mcp.MetaKeyServerInfo); f.ok() {
			with := append([]byte(`"`+mcp.MetaKeyServerInfo+`":`), v.info...)
			with = append(with, `,"`+metaKeyUpstream+`"`...)
			cuts = append(cuts, cut{f.key, f.key + len(mcp.MetaKeyServerInfo) + 2, with})
			if stamp = nil; v.replayed {
				stamp = []byte(replayedMember)
			}
		}
		if stamp != nil {
			if i := space(body, meta.val+1); i < len(body) && body[i] != '}' {
				stamp = append(stamp[:len(stamp):len(stamp)], ',')
			}
			cuts = append(cuts, cut{meta.val + 1, meta.val + 1, stamp})
		}
	}
	return cuts
}

// stamp are the members of _meta that a result gets that says nothing of who answered;
// nil if it gets none.
func (v view) stamp() []byte {
	if v.stamps == nil {
		return nil
	}
	if v.replayed {
		return append(append(append([]byte(nil), v.stamps.member...), ','), replayedMember...)
	}
	return v.stamps.member
}

const replayedMember = `"` + metaKeyReplayed + `":true`

// convertError changes the code by which servers up to 2025-11-25 say that there is
// no such resource, for agents after (SPEC §5.6).
func (v view) convertError(body []byte, cuts []cut) []cut {
	if !v.modern {
		return cuts
	}
	if e := find(body, 0, "error"); e.ok() {
		if c := find(body, e.val, "code"); c.ok() && string(body[c.val:c.end]) == strconv.Itoa(mcp.CodeResourceNotFound) {
			cuts = append(cuts, cut{c.val, c.end, invalid})
		}
	}
	return cuts
}

// withoutAll leaves members of one object out; those that are not there are none.
func withoutAll(body []byte, drop []field, cuts []cut) []cut {
	drop = slices.DeleteFunc(drop, func(f field) bool { return !f.ok() })
	slices.SortFunc(drop, func(a, b field) int { return a.key - b.key })
	for i := 0; i < len(drop); i++ {
		f := drop[i]
		for i+1 < len(drop) { // neighbours go together, with one comma
			next := space(body, f.end)
			if next >= len(body) || body[next] != ',' || space(body, next+1) != drop[i+1].key {
				break
			}
			i++
			f.end = drop[i].end
		}
		from, to := without(body, f)
		cuts = append(cuts, cut{from: from, to: to})
	}
	return cuts
}

// older replaces blocks of content that a revision does not know by text: links to
// resources before 2025-06-18, sound before 2025-03-26 (SPEC §7.6).
func (v view) older(body []byte, content, messages field, cuts []cut) []cut {
	if !bytes.Contains(body, []byte("resource_link")) && !bytes.Contains(body, []byte("audio")) {
		return cuts
	}
	blocks, _ := elements(body[content.val:content.end])
	list, _ := elements(body[messages.val:messages.end])
	for _, message := range list {
		if c := find(message, 0, "content"); c.ok() {
			blocks = append(blocks, message[c.val:skipValue(message, c.val)])
		}
	}
	for _, b := range blocks {
		if text := v.asText(b); text != nil {
			from := cap(body) - cap(b) // both end where the message's memory does
			cuts = append(cuts, cut{from, from + len(b), text})
		}
	}
	return cuts
}

// asText is a block as text, if the revision does not know its type.
func (v view) asText(block []byte) []byte {
	switch kind, _ := text(block, "type"); {
	case kind == "resource_link":
		uri, _ := text(block, "uri")
		name, _ := text(block, "title")
		if name == "" {
			name, _ = text(block, "name")
		}
		if name != "" {
			uri = name + ": " + uri
		}
		return textContent(uri, false)
	case kind == "audio" && v.version < mcp.V20250326:
		mime, _ := text(block, "mimeType")
		return textContent("[audio, "+mime+": this client's revision of the protocol cannot show it]", false)
	}
	return nil
}

// textContent is a block of text, or a whole array of one.
func textContent(s string, array bool) []byte {
	b := append([]byte(`{"type":"text","text":`), mcp.Quote(s)...)
	b = append(b, '}')
	if array {
		return append(append([]byte{'['}, b...), ']')
	}
	return b
}

// pages is the answer in place of an error by which a server of 2025-11-25 says that
// the person has to visit a page first, for an agent that does not know the code: it
// is told in words. A stateless agent that can be sent there never sees the error: it
// is a question by then (SPEC §4.2). nil if the answer is another, or the agent knows
// what it means.
func (a *attachment) pages(ev *call.Event) []byte {
	if ev.End.Outcome != call.Failed || ev.End.Code != mcp.CodeURLElicitation || !a.modern && a.x.version >= mcp.V20251125 {
		return nil
	}
	urls := pagesOf(ev.Body)
	if len(urls) == 0 {
		return nil
	}
	lines := []string{"A person has to visit a page before this can be done, and this client cannot ask for it. Give the person the address, and make the call again when they have been there:"}
	for _, u := range urls {
		lines = append(lines, oneLine(u.message+" "+u.url, 2000))
	}
	return a.words(&call.End{Outcome: call.Failed, By: "server", Text: strings.Join(lines, "\n")}, a.call.ID())
}

// page is one that a person has to visit.
type page struct{ message, url, id string }

// pagesOf reads data.elicitations of an error.
func pagesOf(body []byte) (all []page) {
	e := find(body, 0, "error")
	if !e.ok() {
		return nil
	}
	data := find(body, e.val, "data")
	if !data.ok() {
		return nil
	}
	f := find(body, data.val, "elicitations")
	if !f.ok() {
		return nil
	}
	list, _ := elements(body[f.val:skipValue(body, f.val)])
	for _, raw := range list {
		url, ok := text(raw, "url")
		message, _ := text(raw, "message")
		if ok && url != "" {
			id, _ := text(raw, memberElicitation)
			all = append(all, page{message, url, id})
		}
	}
	return all
}

// ownFault is longcall's own answer to a request that is no tools/call: an error in
// plain words, with the outcome in its data (DESIGN §1).
func ownFault(id []byte, end *call.End) []byte {
	return mcp.ErrorResponse(id, mcp.CodeInternal, plainWords(end), []byte("{"+outcomeMeta(end, "")+"}"))
}

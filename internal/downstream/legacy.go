package downstream

import (
	"bytes"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// streamComment is the silence on a session's stream before a comment.
const streamComment = 15 * time.Second

// serveLegacy serves a message of the revisions with sessions, up to 2025-11-25.
func (x *exchange) serveLegacy(m *mcp.Message) *attachment {
	id := m.ID.Of(m.Raw)
	if m.Method == mcp.MethodInitialize {
		x.initialize(m)
		return nil
	}
	s := x.session(id)
	if s == nil {
		return nil
	}
	return x.serveSession(s, m)
}

// serveSession serves a message in its session, which is in use until the message,
// or the attachment that it returns, has been served.
func (x *exchange) serveSession(s *session, m *mcp.Message) *attachment {
	defer func() {
		if s != nil {
			s.done()
		}
	}()
	switch m.Kind {
	case mcp.Notification:
		x.notified(s, m)
		x.accepted()
		return nil
	case mcp.Response:
		x.answered(s, m)
		x.accepted()
		return nil
	}
	if m.Method == methodTasksResult && x.hasTasks(s) {
		a := x.taskResult(m, s)
		if a != nil {
			s = nil
		}
		return a
	}
	a, answer := x.legacyRequest(m, s)
	if a == nil {
		x.observe()
		x.reply(answer)
		return nil
	}
	s = nil // in use until the attachment ends
	if a.asTask && a.createTask() {
		return nil
	}
	return a
}

// legacyRequest serves a request of a session: it returns what a tool server has to
// answer, started, or the answer itself.
func (x *exchange) legacyRequest(m *mcp.Message, s *session) (*attachment, []byte) {
	if kind, ok := listOf(m.Method); ok {
		s.noteList(kind) // also if there is none: it is told when there is
	}
	if !x.serves(m.Method) {
		return nil, noMethod(m)
	}
	switch {
	case m.Method == mcp.MethodToolsCall:
		return x.legacyCall(m, s)
	case x.isRead(m.Method):
		return x.startRead(m, s)
	}
	return nil, x.answerLegacy(s, m)
}

// notified takes a notification, which gets no answer.
func (x *exchange) notified(s *session, m *mcp.Message) {
	switch m.Method {
	case mcp.MethodCancelled:
		x.cancelled(s, m)
	case mcp.MethodRootsChanged:
		s.roots.changed()
		x.h.opt.Catalog.RootsChanged(x.caller())
	case mcp.MethodProgress:
		x.working(s, m)
	default:
		if owner := x.extensionOwner(m.Method); owner != "" {
			x.h.opt.Catalog.Notify(x.caller(), owner, m.Method, bytes.Clone(m.Params.Of(m.Raw)))
		}
	}
}

// answerLegacy answers a request that longcall serves by itself. Whatever is wrong
// with it is said with status 200.
func (x *exchange) answerLegacy(s *session, m *mcp.Message) []byte {
	id := m.ID.Of(m.Raw)
	if kind, ok := listOf(m.Method); ok {
		x.tasks = x.hasTasks(s)
		return x.list(m, kind)
	}
	switch m.Method {
	case mcp.MethodPing:
		return mcp.ResultResponse(id, []byte("{}"))
	case mcp.MethodSetLevel:
		return x.setLevel(m, s)
	case mcp.MethodSubscribe, mcp.MethodUnsubscribe:
		return x.subscribeLegacy(m, s)
	}
	if x.hasTasks(s) {
		if answer, ok := x.legacyTask(m, s); ok {
			return answer
		}
	}
	return noMethod(m)
}

// noMethod answers a request of a method that is not there.
func noMethod(m *mcp.Message) []byte {
	return mcp.ErrorResponse(m.ID.Of(m.Raw), mcp.CodeMethodNotFound, "Method not found: "+oneLine(m.Method, 100), nil)
}

// legacyCall starts a tools/call, or answers what is wrong with it.
func (x *exchange) legacyCall(m *mcp.Message, s *session) (*attachment, []byte) {
	id := m.ID.Of(m.Raw)
	if wrong := badCall(m); wrong != "" {
		return nil, mcp.ErrorResponse(id, mcp.CodeInvalidParams, wrong, nil)
	}
	if a, answer, own := x.callOwn(m, s); own {
		return a, answer
	}
	asTask, wrong := x.asksTask(m, s)
	if wrong != "" {
		return nil, mcp.ErrorResponse(id, mcp.CodeInvalidParams, wrong, nil)
	}
	public, _ := mcp.String(m.Name.Of(m.Raw))
	t, ok := x.resolve(mcp.ListTools, public)
	if !ok {
		return nil, unknownTool(id, t.public)
	}
	if !asTask && x.taskOnly(t) {
		return nil, mcp.ErrorResponse(id, mcp.CodeMethodNotFound, "This tool runs only as a task (execution.taskSupport is required): send params.task, in a session of 2025-11-25. Nothing was started.", nil)
	}
	a, answer := x.startCall(m, t, s)
	if a != nil {
		a.asTask = asTask
	}
	return a, answer
}

// initialize opens a session; nil if there is none. It never waits for a tool
// server (A3).
func (x *exchange) initialize(m *mcp.Message) *session {
	id := m.ID.Of(m.Raw)
	if m.Kind != mcp.Request {
		x.fail(http.StatusBadRequest, nil, mcp.CodeInvalidRequest, "initialize must be a request with an id.", nil)
		return nil
	}
	asked, ok := mcp.String(m.Version.Of(m.Raw))
	if !ok {
		x.fail(http.StatusBadRequest, id, mcp.CodeInvalidParams, "initialize needs params.protocolVersion, a string.", nil)
		return nil
	}
	x.version = mcp.LatestLegacy
	if slices.Contains(mcp.LegacyVersions, asked) || x.old && asked == mcp.V20241105 {
		x.version = asked
	}
	x.q.Era = x.version
	var caps []byte
	if f := find(m.Raw, m.Params.Start, "capabilities"); f.ok() {
		caps = bytes.Clone(m.Raw[f.val : f.val+skipValue(m.Raw[f.val:], 0)])
	}
	client := clientName(m.ClientInfo.Of(m.Raw))
	store := x.h.sessions.store
	if x.old {
		store = nil
	}
	s, ok := x.h.sessions.openIn(store, x.q.Principal, x.server, x.version, client, caps)
	if !ok {
		x.out.w.Header().Set("Retry-After", "60")
		x.fail(http.StatusTooManyRequests, id, mcp.CodeInternal, "Too many sessions are busy. Try again later.", nil)
		return nil
	}
	x.q.Session = s.id
	x.observe()
	x.out.w.Header().Set(mcp.HeaderSession, s.id)
	b := []byte(`{"protocolVersion":`)
	b = append(b, mcp.Quote(x.version)...)
	b = append(b, `,"capabilities":{`...)
	o := x.offers()
	s.concern(o.lists())
	b = o.append(b)
	if len(o.extensions) > 0 {
		all, _ := mcp.EditObject(nil, nil, o.extensions...) // which makes one of nothing
		b = append(append(b, `,"extensions":`...), all...)
	}
	b = append(b, x.legacyTasks(client)...)
	b = append(b, `},"serverInfo":`...)
	b = append(b, x.h.info...)
	b = x.appendInstructions(b)
	x.result(id, append(b, '}'))
	return s
}

// session finds the session of a request that is not initialize, and holds it
// in use; nil means that the request was answered. An id of another principal or
// endpoint looks unknown. A missing version header is no error (A5), one that
// differs from the session's is.
func (x *exchange) session(id []byte) *session {
	name, present, ok := only(x.r.Header, mcp.HeaderSession)
	if !present && x.set.Sessionless {
		s := x.alone()
		x.enter(s)
		return s
	}
	if !present || !ok || name == "" {
		x.fail(http.StatusBadRequest, id, mcp.CodeInvalidRequest, "There is no session: send initialize first, then its Mcp-Session-Id header with every request. A client of "+mcp.LatestModern+" puts "+mcp.MetaKeyVersion+" into params._meta instead.", nil)
		return nil
	}
	s := x.h.sessions.use(name, x.q.Principal, x.server)
	if s == nil {
		x.fail(http.StatusNotFound, id, mcp.CodeInvalidRequest, "This session is not known any more. Send initialize, without a session id, for a new one.", nil)
		return nil
	}
	x.enter(s)
	x.h.takeUp(s)
	if v, present, ok := only(x.r.Header, mcp.HeaderVersion); !ok || present && v != s.version {
		s.done()
		x.fail(http.StatusBadRequest, id, mcp.CodeInvalidRequest, "Mcp-Protocol-Version must be "+s.version+", which this session negotiated.", nil)
		return nil
	}
	return s
}

// enter notes whose session the request is of.
func (x *exchange) enter(s *session) {
	x.version, x.q.Era, x.q.Session = s.version, s.version, s.id
	if x.sse || x.r.Method != http.MethodPost {
		x.asks = s.asks // who takes no stream cannot be asked anything
	}
}

// alone is the session of one request of a client that sends no initialize
// (allow_sessionless_legacy): nobody else finds it, and nothing can be resumed or
// cancelled in it.
func (x *exchange) alone() *session {
	version := mcp.V20250326 // what a missing header means (SPEC §5.3)
	if v, _, _ := only(x.r.Header, mcp.HeaderVersion); slices.Contains(mcp.LegacyVersions, v) {
		version = v
	}
	return &session{
		principal: x.q.Principal, server: x.server, version: version,
		used: time.Now(), sweepAt: sweepCalls, posts: 1, news: newChanges(),
	}
}

// cancelled passes a cancel on to the call that it names. One that is unknown,
// finished or malformed is ignored (A1).
func (x *exchange) cancelled(s *session, m *mcp.Message) {
	raw := m.RequestID.Of(m.Raw)
	if raw == nil || s.id == "" { // without a session, ids of requests are not unique
		return
	}
	end := call.End{By: "agent", Text: "The agent cancelled the call."}
	if reason, ok := mcp.String(m.Reason.Of(m.Raw)); ok && reason != "" {
		end.Text = "The agent cancelled the call: " + oneLine(reason, 200)
	}
	id, found, ok := s.cancel(idKey(raw), end)
	if ok {
		// An error says that the call has ended: the cancel came too late.
		_ = x.h.opt.Engine.Tell(s.principal, id, end)
	}
	if !found { // started before a restart, or of a stream that was handed on
		// One that was handed off has had its answer, and is cancelled in another way.
		// So is a command.
		if c := x.h.opt.Engine.Find(s.principal, s.id, idKey(raw)); c != nil {
			if rec := c.Record(); !rec.HandedOff && !x.isShell(rec.Server) {
				_ = c.Cancel(end)
			}
		}
	}
}

// get serves the session's stream: it carries what concerns no call. The newest
// one of a session takes over.
// One with Last-Event-ID is returned as an attachment to that stream's call,
// still to be run.
func (x *exchange) get() *attachment {
	v, _, _ := only(x.r.Header, mcp.HeaderVersion)
	_, hasSession := x.r.Header[mcp.HeaderSession]
	_, resumes := x.r.Header[mcp.HeaderLastEvent]
	switch {
	case mcp.Modern(v), !hasSession && !resumes:
		x.notAllowed("There is no stream to GET here. POST a request; its answer is a stream of its own.")
		return nil
	case !hasSession:
		x.refuse(http.StatusBadRequest, mcp.CodeInvalidRequest, "Last-Event-ID needs the Mcp-Session-Id of its stream.")
		return nil
	}
	s := x.session(nil)
	if s == nil {
		return nil
	}
	if resumes {
		a := x.resume(s)
		if a == nil {
			s.done()
		}
		return a
	}
	defer s.done()
	x.listen(s)
	return nil
}

// listen serves the session's stream, until its client or longcall ends it.
func (x *exchange) listen(s *session) {
	kick := s.takeStream()
	defer s.endStream(kick)
	x.rootsOnStream(s)
	x.observe()
	out := &x.out
	streamHead(out.w.Header())
	out.head(http.StatusOK)
	out.write(commentOpen)
	tick := time.NewTicker(x.streamBeat())
	defer tick.Stop()
	var w *watch
	var wake <-chan struct{}
	var sweep <-chan time.Time
	if x.hasTasks(s) {
		w = x.h.asked.listen(x.r.Context(), s.id, x.findCall)
		defer x.h.asked.quit(s.id, w)
		wake, sweep = w.wake, w.timer.C
	}
	news := time.NewTimer(time.Hour)
	defer news.Stop()
	s.news.arm(news)
	var told telling
	for {
		if !out.flush() {
			s.news.giveBack(told)
			return
		}
		told = telling{}
		for wrote := false; !wrote; {
			select {
			case <-s.news.wake:
				s.news.arm(news)
			case <-news.C:
				told = s.news.take()
				told.lists &= x.offers().lists() // a session of before may have heard of fewer
				told.each(func(method string, members []byte) {
					out.write(notification(method, members))
					x.q.Events++
					wrote = true
				})
				for _, raw := range told.more {
					out.write(mcp.AppendSSE(nil, "", "message", raw))
					x.q.Events++
					wrote = true
				}
				s.news.arm(news)
			case <-wake:
				w.soon()
			case <-sweep:
				w.sweep(x.r.Context(), func(v *taskView) {
					x.taskChanged(s, v)
					wrote = true
				})
			case <-tick.C:
				out.write(commentBeat)
				x.q.Beats++
				wrote = true
			case <-kick:
				return
			case <-x.h.stopping:
				return
			case <-x.r.Context().Done():
				return
			}
		}
	}
}

// notification is an event with a notification of ours; members of its params may
// be nil.
func notification(method string, members []byte) []byte {
	b := append([]byte("event: message\ndata: "+`{"jsonrpc":"2.0","method":"`), method...)
	b = append(b, '"')
	if members != nil {
		b = append(append(append(b, `,"params":{`...), members...), '}')
	}
	return append(b, "}\n\n"...)
}

// delete ends a session, at once (A4). Its running calls go on: DELETE says that
// the agent leaves, not that it wants its work undone.
func (x *exchange) delete() {
	v, _, _ := only(x.r.Header, mcp.HeaderVersion)
	if _, ok := x.r.Header[mcp.HeaderSession]; !ok || mcp.Modern(v) {
		x.notAllowed("DELETE ends a session, named by Mcp-Session-Id.")
		return
	}
	s := x.session(nil)
	if s == nil {
		return
	}
	x.observe()
	x.h.sessions.drop(s)
	s.done()
	x.out.head(http.StatusNoContent)
	x.out.flush()
}

// clientName makes one short line of a clientInfo, for people.
func clientName(info []byte) string {
	name, _ := text(info, "name")
	if v, ok := text(info, "version"); ok {
		name += "/" + v
	}
	return oneLine(name, 100)
}

// text is a string member of an object.
func text(obj []byte, name string) (string, bool) {
	f := find(obj, 0, name)
	if !f.ok() {
		return "", false
	}
	return mcp.String(obj[f.val:f.end])
}

// oneLine makes s fit for a log line or a table: no control characters, and at
// most n bytes.
func oneLine(s string, n int) string {
	s = strings.ToValidUTF8(strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, s[:min(len(s), n)]), "")
	return strings.TrimSpace(s)
}

// isObject says whether a raw value is a JSON object.
func isObject(raw []byte) bool { return bytes.HasPrefix(raw, []byte("{")) }

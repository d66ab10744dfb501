package downstream

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

const (
	methodTaskChanged = "notifications/tasks"

	maxListens     = 100  // of one principal at a time
	maxListenTasks = 1000 // of one listen
)

// filter is what a listener asks to hear of. Kinds that are not here are not
// served, and left out of what is acknowledged.
type filter struct {
	lists     listSet
	resources []string // URIs
	tasks     []string // ids as the client wrote them
	named     bool     // whether tasks were named at all
}

// filterNames are the members of a filter for lists, in the order of listNotices.
var filterNames = [len(listNotices)]string{"toolsListChanged", "promptsListChanged", "resourcesListChanged"}

// badListen says what is wrong with the params of subscriptions/listen; empty if
// nothing is.
func badListen(m *mcp.Message) string {
	_, wrong := readFilter(m)
	return wrong
}

// readFilter reads params.notifications; wrong says what is wrong with it.
func readFilter(m *mcp.Message) (f filter, wrong string) {
	params := m.Params.Of(m.Raw)
	n := find(params, 0, "notifications")
	if !n.ok() || params[n.val] != '{' {
		return f, "subscriptions/listen needs params.notifications, an object."
	}
	members, err := mcp.Members(params[n.val:skipValue(params, n.val)])
	if err != nil {
		return f, "subscriptions/listen needs params.notifications, an object."
	}
	for _, m := range members {
		switch m.Name {
		case filterNames[0], filterNames[1], filterNames[2]:
			switch string(m.Value) {
			case "true":
				f.lists |= 1 << slices.Index(filterNames[:], m.Name)
			case "false", "null":
			default:
				return f, "params.notifications." + m.Name + " must be true or false."
			}
		case "taskIds":
			if f.tasks, wrong = readNames(m, maxListenTasks); wrong != "" {
				return f, wrong
			}
			f.named = string(m.Value) != "null"
		case "resourceSubscriptions":
			if f.resources, wrong = readNames(m, maxHeld); wrong != "" {
				return f, wrong
			}
		}
	}
	return f, ""
}

// readNames reads an array of strings, or null.
func readNames(m mcp.Member, most int) (names []string, wrong string) {
	if string(m.Value) == "null" {
		return nil, ""
	}
	list, ok := elements(m.Value)
	if !ok || len(list) > most {
		return nil, "params.notifications." + m.Name + " must be an array of at most " + strconv.Itoa(most) + " strings. Open another listen for more."
	}
	for _, raw := range list {
		name, ok := mcp.String(raw)
		if !ok {
			return nil, "params.notifications." + m.Name + " must hold strings."
		}
		names = append(names, name)
	}
	return names, ""
}

// subscribe serves subscriptions/listen (R-10, SPEC §5.1): an acknowledgement of
// what is heard here, then a notification for each change, until the client or
// longcall ends the stream. Its end changes nothing about the tasks.
func (x *exchange) subscribe(m *mcp.Message) {
	id := append([]byte(nil), m.ID.Of(m.Raw)...)
	f, _ := readFilter(m)
	if f.named && !declaresTasks(m.MetaCapabilities.Of(m.Raw)) {
		x.needsTasks(id, "A listen with taskIds")
		return
	}
	if !x.sse {
		x.fail(http.StatusNotAcceptable, id, mcp.CodeInvalidRequest, "subscriptions/listen is answered with a stream: add text/event-stream to Accept.", nil)
		return
	}
	f.lists &= x.offers().lists()
	s, ok := x.h.subs.open(x.q.Principal, x.server, f.lists)
	if !ok {
		x.out.w.Header().Set("Retry-After", "60")
		x.fail(http.StatusTooManyRequests, id, mcp.CodeInternal, "You already have "+strconv.Itoa(maxListens)+" listens open, which is the limit. Close one first; one listen takes up to "+strconv.Itoa(maxListenTasks)+" task ids.", nil)
		return
	}
	defer x.h.subs.close(s)
	w := newWatch(true)
	defer w.stop()
	var tasks []call.ID
	for _, name := range f.tasks {
		c, err := x.findCall(name)
		if errors.Is(err, call.ErrUnknown) {
			continue // also a foreign one: not honoured
		}
		if err != nil {
			x.reply(noTask(id, err))
			return
		}
		if w.add(x.r.Context(), c) { // no change from here on is missed
			tasks = append(tasks, c.ID())
		}
	}
	x.observe()
	l := &listener{x: x, id: id}
	streamHead(x.out.w.Header())
	x.out.head(http.StatusOK)
	if len(f.resources) > 0 { // which tool servers may take their time with
		x.out.write(commentOpen)
		if !x.out.flush() {
			return
		}
	}
	f.resources = x.holdAll(&s.held, f.resources)
	l.acknowledge(&f, tasks)
	if x.out.flush() {
		l.run(s, w)
	}
}

// holdWait bounds how long an acknowledgement waits for tool servers to take
// subscriptions: those that have not by then are not honoured.
const holdWait = 20 * time.Second

// holdAll subscribes to resources at the same time, and gives those that somebody
// took, in order.
func (x *exchange) holdAll(h *held, uris []string) (taken []string) {
	if len(uris) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(x.r.Context(), holdWait)
	defer cancel()
	ok := make([]bool, len(uris))
	var wg sync.WaitGroup
	turns := make(chan struct{}, 16) // at a time
	for i, uri := range uris {
		turns <- struct{}{}
		wg.Go(func() {
			ok[i] = x.subscribeTo(ctx, h, uri) == nil
			<-turns
		})
	}
	wg.Wait()
	for i, uri := range uris {
		if ok[i] && !slices.Contains(taken, uri) {
			taken = append(taken, uri)
		}
	}
	return taken
}

// listener writes to one listen stream.
type listener struct {
	x  *exchange
	id []byte // of the request, raw: it names the subscription
}

// run writes what comes, and returns when the stream is over.
func (l *listener) run(s *subscription, w *watch) {
	x := l.x
	tick := time.NewTicker(streamComment)
	defer tick.Stop()
	news := time.NewTimer(time.Hour)
	defer news.Stop()
	for {
		select {
		case <-s.news.wake:
			s.news.arm(news)
		case <-news.C:
			s.news.take().each(l.notify)
			s.news.arm(news)
			x.out.flush()
		case <-w.wake:
			w.soon()
		case <-w.timer.C:
			w.sweep(x.r.Context(), l.task)
		case <-tick.C:
			x.out.write(commentBeat)
			x.q.Beats++
			x.out.flush()
		case <-x.h.stopping:
			l.end()
			return
		case <-x.r.Context().Done():
			return
		}
		if x.out.err != nil {
			return
		}
	}
}

// acknowledge says what the stream will carry.
func (l *listener) acknowledge(f *filter, tasks []call.ID) {
	b := []byte(`"notifications":{`)
	sep := func() {
		if b[len(b)-1] != '{' {
			b = append(b, ',')
		}
	}
	for i, name := range filterNames {
		if f.lists&(1<<i) != 0 {
			sep()
			b = append(append(append(b, '"'), name...), `":true`...)
		}
	}
	if len(f.resources) > 0 {
		sep()
		b = append(b, `"resourceSubscriptions":`...)
		b = appendNames(b, f.resources)
	}
	if f.named {
		sep()
		b = append(b, `"taskIds":`...)
		b = appendNames(b, tasks)
	}
	l.notify(mcp.MethodAcknowledged, append(b, '}'))
}

func appendNames[T ~string](b []byte, names []T) []byte {
	b = append(b, '[')
	for i, name := range names {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, mcp.Quote(string(name))...)
	}
	return append(b, ']')
}

// task writes a notifications/tasks. One that tells of the end is a delivery of
// it.
func (l *listener) task(v *taskView) {
	write := func() {
		l.notify(methodTaskChanged, v.appendDetail(nil, l.x))
		l.x.out.flush()
	}
	if v.over() {
		l.x.deliverTask(v, write)
		return
	}
	write()
}

// notify writes a notification with members of params, which may be nil.
func (l *listener) notify(method string, members []byte) {
	b := make([]byte, 0, 160+len(l.id)+len(members))
	b = append(append(b, `{"jsonrpc":"2.0","method":"`...), method...)
	b = append(b, `","params":{`...)
	if members != nil {
		b = append(append(b, members...), ',')
	}
	b = append(b, `"_meta":{"`+mcp.MetaKeySubscription+`":`...)
	b = append(append(b, l.id...), `}}}`...)
	l.write(b)
}

// end writes the result that ends the subscription (A6).
func (l *listener) end() {
	b := append([]byte(`{"jsonrpc":"2.0","id":`), l.id...)
	b = append(b, `,"result":{"resultType":"complete","_meta":{"`+mcp.MetaKeySubscription+`":`...)
	b = append(append(b, l.id...), `,"`+mcp.MetaKeyServerInfo+`":`...)
	b = append(append(b, l.x.h.info...), `}}}`...)
	l.write(b)
	l.x.out.flush()
}

func (l *listener) write(message []byte) {
	out := &l.x.out
	out.write(eventHead)
	out.write(message)
	out.write(eventTail)
	l.x.q.Events++
}

// subscriptions are the listens that are open.
type subscriptions struct {
	mu    sync.Mutex
	all   map[*subscription]struct{}
	count map[string]int // by principal
}

// subscription is one of them.
type subscription struct {
	principal string
	server    string // of the endpoint; "" for all
	lists     listSet
	news      changes
	held      held // resources
}

// open counts a listen of the principal in; ok is false if it has too many.
func (ss *subscriptions) open(principal, server string, lists listSet) (s *subscription, ok bool) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.count[principal] >= maxListens {
		return nil, false
	}
	if ss.all == nil {
		ss.all, ss.count = map[*subscription]struct{}{}, map[string]int{}
	}
	s = &subscription{principal: principal, server: server, lists: lists, news: newChanges()}
	s.held.news = &s.news
	ss.all[s] = struct{}{}
	ss.count[principal]++
	return s, true
}

func (ss *subscriptions) close(s *subscription) {
	s.held.close()
	ss.mu.Lock()
	defer ss.mu.Unlock()
	delete(ss.all, s)
	if ss.count[s.principal]--; ss.count[s.principal] == 0 {
		delete(ss.count, s.principal)
	}
}

// changed tells those who asked that something of a server has changed.
func (ss *subscriptions) changed(server string, c mcp.Change) {
	set := listsOf(c.List)
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for s := range ss.all {
		switch {
		case c.Message != "": // nobody asked for it
		case s.server != "" && s.server != server || !concerns(c, s.principal, ""):
		case c.URI != "":
			s.held.changed(server, c.URI)
		case s.lists&set != 0:
			s.news.list(set)
		}
	}
}

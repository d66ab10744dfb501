package upstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

// Methods and names of tasks, of both generations.
const (
	methodTaskGet    = "tasks/get"
	methodTaskResult = "tasks/result" // 2025-11-25 only
	methodTaskUpdate = "tasks/update" // the extension only
	methodTaskCancel = "tasks/cancel"
	methodTaskStatus = "notifications/tasks/status"

	extensionTasks = "io.modelcontextprotocol/tasks"
	metaRelated    = "io.modelcontextprotocol/related-task"

	taskInput     = "input_required"
	taskCompleted = "completed"
	taskFailed    = "failed"
	taskCancelled = "cancelled"
)

const (
	// pollMin and pollMax bound what a server may say about the time between
	// two questions.
	pollMin = 100 * time.Millisecond
	pollMax = time.Minute
	// pollTime bounds one question.
	pollTime = 30 * time.Second
	// retryFirst and retryMax are the pauses after questions that failed.
	retryFirst = 200 * time.Millisecond
	retryMax   = 15 * time.Second
	// taskText is how much of a status message is passed on, in bytes.
	taskText = 4 << 10
)

// taskPeer is how the tool server that holds a task is reached.
type taskPeer interface {
	// ask sends a request about the task and waits for the response. What
	// comes with it is handled as messages of the call. A response that nobody
	// could use gives an error; see lasting.
	ask(ctx context.Context, method string, params []byte) (mcp.Message, error)
	// tell sends a request about the task whose response nobody reads. answered
	// is closed when there was one; after leave nothing is kept for it.
	tell(method string, params []byte) (answered <-chan struct{}, leave func())
	// address is where a later process finds the task; nil if it cannot.
	address() []byte
	// last is when something came for the call besides responses of ask, and
	// the highest progress value until then.
	last() (time.Time, float64)
	// gone is closed when nothing can come any more, as ended then says; nil if
	// the server can always come back.
	gone() <-chan struct{}
	ended() call.Answer
	// limit is how many bytes an answer may have.
	limit() int64
}

// task follows one call's task at its tool server, from its creation, or from
// where an earlier process left it, to its end. All is done in the goroutine of
// the call, but for one question that may block (see fetch).
type task struct {
	x      *call.Exec
	peer   taskPeer
	id     string
	modern bool
	told   <-chan struct{} // the server said something about the task

	state  taskState // as last heard
	born   time.Time
	polled time.Time     // the last question
	life   time.Time     // the last answer
	pause  time.Duration // after a question that failed; 0 while they are answered
	later  time.Duration // as a server that is busy asked, after it
	why    error         // the last one failed
	value  float64       // of the last progress message
	ended  time.Time     // when the task was found to be over, with its result still to be fetched

	asked    []byte          // what agents were asked last
	answered map[string]bool // keys that the server has taken an answer for
	owed     [][]byte        // answers that it has not

	fetch   *fetch       // under way; nil if none
	early   *mcp.Message // what it brought before the task was known to be over
	hasty   bool         // that came before the task was over: no waiting on tasks/result
	closing bool         // cancelled: nothing more is shown
}

// fetch is a tasks/result under way, which a server of 2025-11-25 answers when
// the task is over.
type fetch struct {
	done  chan struct{}
	stop  context.CancelFunc
	final bool // the task was known to be over when it began
	m     mcp.Message
	err   error
}

// run carries the call to its end.
func (t *task) run(ctx context.Context) call.Answer {
	defer func() { t.drop() }()
	t.answered = map[string]bool{}
	t.born = time.Now()
	t.life = t.born
	if ctx.Err() != nil {
		return t.cancelled(ctx)
	}
	timer := time.NewTimer(t.first())
	defer timer.Stop()
	for {
		var a call.Answer
		var done bool
		select {
		case <-ctx.Done():
			return t.cancelled(ctx)
		case <-t.peer.gone():
			return t.parting()
		case <-t.fetched():
			a, done = t.took(ctx)
		case b := <-t.x.Answers():
			t.owed = append(t.owed, b)
			a, done = t.poll(ctx)
		case <-t.told:
			timer.Reset(max(0, pollMin-time.Since(t.polled)))
			continue
		case <-timer.C:
			a, done = t.tick(ctx)
		}
		switch {
		case ctx.Err() != nil:
			return t.cancelled(ctx)
		case done:
			return a
		}
		timer.Reset(t.next())
	}
}

// parting is the answer when nothing can come any more: what came last may be it.
func (t *task) parting() call.Answer {
	if t.fetch != nil {
		<-t.fetch.done // it cannot wait for anything either
		t.early = &t.fetch.m
	}
	if t.early != nil && t.early.Result.Ok() {
		return t.answer(*t.early)
	}
	return t.peer.ended()
}

// first shows what came with the task's creation, and is how long to wait before
// the first question.
func (t *task) first() time.Duration {
	if t.state.status == "" || t.state.over() || t.state.status == taskInput {
		return 0 // taken up again, or there is something to be fetched
	}
	t.show(t.state.message)
	return pollEvery(t.state.every, 0, t.x.Limits.Idle)
}

// next is how long nothing can have to be done.
func (t *task) next() time.Duration {
	switch {
	case t.pause > 0:
		return min(max(t.pause, t.later), max(t.left(), time.Millisecond))
	case !t.ended.IsZero():
		return min(pingTime, max(t.left(), time.Millisecond))
	}
	return pollEvery(t.state.every, time.Since(t.born), t.x.Limits.Idle)
}

// patience is how long the server may answer no question.
func (t *task) patience() time.Duration {
	if d := t.x.Limits.Idle; d > 0 {
		return d
	}
	return resumeFor
}

// left is what is left of it.
func (t *task) left() time.Duration {
	since := t.life
	if at, _ := t.peer.last(); at.After(since) {
		since = at
	}
	if !t.ended.IsZero() {
		since = t.ended // it says again and again that the task is over, and never gives the result
	}
	return t.patience() - time.Since(since)
}

// tick asks what is to be asked now.
func (t *task) tick(ctx context.Context) (a call.Answer, done bool) {
	if t.ended.IsZero() {
		return t.poll(ctx)
	}
	if t.left() <= 0 {
		return t.lost(), true
	}
	if t.fetch != nil && !t.fetch.final {
		t.drop() // it may hang on a connection that is dead
	}
	t.get(ctx)
	return a, false
}

// params names the task, with one member more if there is one.
func (t *task) params(more ...mcp.Member) []byte {
	b, _ := mcp.EditObject(nil, nil, append([]mcp.Member{{Name: "taskId", Value: mcp.Quote(t.id)}}, more...)...)
	return b
}

// ask sends one question with a bound.
func (t *task) ask(ctx context.Context, method string, params []byte) (mcp.Message, error) {
	ctx, cancel := context.WithTimeout(ctx, min(pollTime, max(t.left(), pollMin)))
	defer cancel()
	return t.peer.ask(ctx, method, params)
}

// poll gives the server what it waits for and asks how the task stands.
func (t *task) poll(ctx context.Context) (a call.Answer, done bool) {
	if a, done, ok := t.update(ctx); !ok {
		return a, done
	}
	t.polled = time.Now()
	m, err := t.ask(ctx, methodTaskGet, t.params())
	if err != nil || m.Error.Ok() {
		return t.failing(&m, err)
	}
	s, err := readTask(m.Result.Of(m.Raw))
	if err == nil && s.id != "" && s.id != t.id {
		err = errors.New("the answer is about another task")
	}
	if err != nil {
		return t.failing(nil, err)
	}
	t.life, t.pause, t.why = time.Now(), 0, nil
	return t.saw(ctx, s)
}

// lasting says whether asking again can bring nothing else, and why.
func (t *task) lasting(m *mcp.Message, err error) (a call.Answer, ok bool) {
	var status *statusError
	switch {
	case errors.Is(err, mcp.ErrTooLarge):
		return tooLarge(t.peer.limit()), true
	case errors.As(err, &status):
		switch s := status.Status; {
		case s == http.StatusUnauthorized || s == http.StatusForbidden:
			return interrupted("the tool server made a task of the call and then refused longcall's credentials (HTTP %d) when it was asked about it. The operator has to check its headers in the config.", s), true
		case s/100 == 4 && s != http.StatusRequestTimeout && s != http.StatusTooEarly && s != http.StatusTooManyRequests, s/100 == 3:
			return interrupted("the tool server made a task of the call and then refused to say how it stands (HTTP %d).", s), true
		}
	case err != nil || m == nil:
	case m.Code == mcp.CodeInvalidParams:
		return interrupted("the tool server made a task of the call and does not know it any more: it may have been restarted, or kept the task for too short a time."), true
	case slices.Contains([]int{mcp.CodeMethodNotFound, mcp.CodeInvalidRequest, mcp.CodeParse, mcp.CodeHeaderMismatch, mcp.CodeMissingCapability, mcp.CodeUnsupportedVersion}, m.Code):
		return interrupted("the tool server made a task of the call and then refused to say how it stands: %s (code %d).", printable([]byte(m.ErrText)), m.Code), true
	}
	return a, false
}

// failing takes a question that brought no usable answer: it is asked again,
// with growing pauses, for as long as a call may be silent.
func (t *task) failing(m *mcp.Message, err error) (a call.Answer, done bool) {
	if a, ok := t.lasting(m, err); ok {
		if t.early != nil {
			return t.answer(*t.early), true
		}
		return a, true
	}
	if err == nil {
		err = fmt.Errorf("it answered: %s (code %d)", printable([]byte(m.ErrText)), m.Code)
	}
	t.why, t.later = err, 0
	if t.pause = min(2*t.pause, retryMax); t.pause == 0 {
		t.pause = retryFirst
	}
	var busy *busyError
	if errors.As(err, &busy) {
		t.later = min(busy.after, pollMax)
	}
	if t.left() <= 0 {
		return t.lost(), true
	}
	return a, false
}

// busyError is a question that the server wants to be asked later.
type busyError struct {
	error
	after time.Duration
}

func (e *busyError) Unwrap() error { return e.error }

// lost ends a call whose task cannot be followed any more.
func (t *task) lost() call.Answer {
	if t.early != nil {
		return t.answer(*t.early)
	}
	_, leave := t.peer.tell(methodTaskCancel, t.params())
	leave()
	why := "no answer"
	if t.why != nil {
		why = printable([]byte(rootCause(t.why).Error()))
	}
	if !t.ended.IsZero() {
		return interrupted("the tool server says that the call's task is over (%s), but has not given its result for %s (%s).", t.state.status, t.patience(), why)
	}
	return interrupted("the tool server made a task of the call and has not said how it stands for %s (%s).", t.patience(), why)
}

// saw takes how the task stands.
func (t *task) saw(ctx context.Context, s taskState) (a call.Answer, done bool) {
	if s.message != t.state.message {
		t.show(s.message)
	}
	t.state = s
	if s.status != taskInput {
		t.question(nil)
	}
	if t.early != nil && !s.over() {
		t.early, t.hasty = nil, true
		t.x.Note("The tool server gave a result before the task was over; it was not taken.")
	}
	switch s.status {
	case taskCancelled:
		return t.cancelledThere(), true
	case taskCompleted, taskFailed:
		if t.modern {
			return t.inline(), true
		}
		if t.early != nil {
			return t.answer(*t.early), true
		}
		if t.ended.IsZero() {
			t.ended = time.Now()
		}
		t.get(ctx)
	case taskInput:
		switch {
		case t.modern:
			t.question(s.requests)
		case !t.hasty:
			t.get(ctx) // the server asks on its stream, and is told there that nobody can answer
		}
	}
	return a, false
}

// show makes a progress message of a status message.
func (t *task) show(text string) {
	if t.closing || text == "" {
		return
	}
	if len(text) > taskText {
		text = strings.ToValidUTF8(text[:taskText], "")
	}
	// It counts in millionths above what the tool itself reported, so that the
	// tool's own next step is still a step.
	_, reached := t.peer.last()
	t.value = max(t.value, reached) + 1e-6
	b := []byte(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":`)
	hole := len(b)
	b = append(b, `0,"progress":`...)
	b = strconv.AppendFloat(b, t.value, 'f', -1, 64)
	b = append(append(b, `,"message":`...), mcp.Quote(text)...)
	// An error ends the call's context, which run watches.
	_ = t.x.Emit(call.Event{Kind: call.KindProgress, Body: append(b, "}}"...), Hole: hole})
}

// question shows the input requests that the server still waits for. Keys that
// it has an answer for are left out: it may need a moment to note that.
func (t *task) question(requests []byte) {
	if t.closing {
		return
	}
	open, err := mcp.EditObject(requests, func(name string) bool { return t.answered[name] })
	if err != nil || string(open) == "{}" {
		open = nil
	}
	if bytes.Equal(open, t.asked) {
		return
	}
	t.asked = open
	t.x.Ask(mcp.OneLine(bytes.Clone(open)), nil)
}

// update passes on what agents answered. ok is false if it has to be done again.
func (t *task) update(ctx context.Context) (a call.Answer, done, ok bool) {
	for len(t.owed) > 0 {
		answers, err := mcp.Members(t.owed[0])
		if err != nil || !t.modern {
			t.owed = t.owed[1:]
			continue
		}
		m, err := t.ask(ctx, methodTaskUpdate, t.params(mcp.Member{Name: "inputResponses", Value: t.owed[0]}))
		switch {
		case err != nil:
			a, done = t.failing(&m, err)
			return a, done, false
		case m.Error.Ok():
			t.x.Note("The tool server refused an answer to its questions: %s (code %d).", printable([]byte(m.ErrText)), m.Code)
			t.asked = nil // what it still waits for is asked again
		default:
			for _, answer := range answers {
				t.answered[answer.Name] = true
			}
		}
		t.owed = t.owed[1:]
	}
	return a, false, true
}

// get fetches the result, unless that is under way.
func (t *task) get(ctx context.Context) {
	if t.fetch != nil {
		return
	}
	f := &fetch{done: make(chan struct{}), final: !t.ended.IsZero()}
	if f.final {
		ctx, f.stop = context.WithTimeout(ctx, pollTime)
	} else {
		ctx, f.stop = context.WithCancel(ctx)
	}
	t.fetch = f
	params := t.params()
	go func() {
		defer close(f.done)
		f.m, f.err = t.peer.ask(ctx, methodTaskResult, params)
	}()
}

// fetched is closed when the fetch under way has ended; nil if there is none.
func (t *task) fetched() <-chan struct{} {
	if t.fetch == nil {
		return nil
	}
	return t.fetch.done
}

// drop ends the fetch under way.
func (t *task) drop() {
	if t.fetch != nil {
		t.fetch.stop()
		<-t.fetch.done
		t.fetch = nil
	}
}

// took takes what tasks/result brought.
func (t *task) took(ctx context.Context) (a call.Answer, done bool) {
	f := t.fetch
	t.drop()
	switch {
	case errors.Is(f.err, mcp.ErrTooLarge):
		return tooLarge(t.peer.limit()), true
	case f.err != nil:
		return t.failing(nil, f.err)
	case f.m.Error.Ok() && t.ended.IsZero():
		// Is this the task's end, or a server that does not let us wait for it?
		// The next question tells.
		return a, false
	case t.ended.IsZero():
		t.early = &f.m
		return t.poll(ctx) // how did it end?
	case f.m.Error.Ok() && t.state.status == taskCompleted:
		if _, ok := t.lasting(&f.m, nil); ok {
			return interrupted("the tool server says that the call's task is completed, but does not give its result: %s (code %d).", printable([]byte(f.m.ErrText)), f.m.Code), true
		}
		return t.failing(&f.m, nil)
	}
	return t.answer(f.m), true
}

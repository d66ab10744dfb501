// Package call holds what a call is and the engine that drives calls from acceptance to their one end.
package call

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"errors"
	"strings"
	"time"
)

// ID names a call: "c_" and 128 random bits in lower-case base32. It is
// unguessable, and still checked against its owner at every use (I6).
type ID string

var idEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// NewID makes a fresh id.
func NewID() ID {
	var b [16]byte
	rand.Read(b[:])
	return ID("c_" + idEncoding.EncodeToString(b[:]))
}

// Bytes are the 128 bits of an id; nil if it is none.
func (id ID) Bytes() []byte {
	b, err := idEncoding.DecodeString(strings.TrimPrefix(string(id), "c_"))
	if err != nil || len(b) != 16 {
		return nil
	}
	return b
}

// IDOf is the id with these 128 bits.
func IDOf(b []byte) ID { return ID("c_" + idEncoding.EncodeToString(b)) }

// Kind says what an event tells.
type Kind uint8

// The kinds of events. Their numbers are stored: never renumber.
const (
	KindAccepted        Kind = 1  // the call was admitted and stored; always seq 1
	KindDispatched      Kind = 2  // the request is about to leave for the tool server; from here on it is never sent again (I1)
	KindAddress         Kind = 3  // body: the runner's own, where the call can be found again at its tool server; shown to nobody
	KindProgress        Kind = 4  // body: the notifications/progress message, Hole at its token
	KindMessage         Kind = 5  // body: another notification of this call, such as notifications/message
	KindNote            Kind = 6  // body: plain words about what happened on the way (stream lost, resumed, request refused)
	KindCancelRequested Kind = 7  // body: plain words, who asked and why
	KindLateResult      Kind = 8  // body: the response that came after the cancel; shown to no agent (O22)
	KindEnd             Kind = 9  // the one terminal event; End says how, Hole is at the id of a response
	KindBeat            Kind = 10 // never stored, Seq 0: Follow yields it after a silence, so that readers can show life
	KindAsk             Kind = 11 // body: a JSON object of input requests by key, as MCP's inputRequests; the call waits for answers
	KindAnswer          Kind = 12 // body: a JSON array of the keys that were answered; the answers themselves are not kept
	KindReady           Kind = 13 // body: plain words; the call goes on, and what its caller waits for has come: it is handed off now
)

var kindNames = [...]string{
	KindAccepted: "accepted", KindDispatched: "dispatched", KindAddress: "address",
	KindProgress: "progress", KindMessage: "message", KindNote: "note",
	KindCancelRequested: "cancel_requested", KindLateResult: "late_result", KindEnd: "end", KindBeat: "beat",
	KindAsk: "ask", KindAnswer: "answer", KindReady: "ready",
}

func (k Kind) String() string {
	if int(k) < len(kindNames) && kindNames[k] != "" {
		return kindNames[k]
	}
	return "unknown"
}

// Outcome says how a call ended. The zero value means that it has not.
type Outcome string

// The outcomes of DESIGN §1. Running is not one of them, and is never a success.
const (
	Running     Outcome = ""
	Completed   Outcome = "completed"   // the tool answered; its own isError is a column of its own
	Failed      Outcome = "failed"      // the tool server answered with a JSON-RPC error, could not be reached, or answered over a size limit
	Cancelled   Outcome = "cancelled"   // somebody asked; End.By says who
	TimedOut    Outcome = "timed_out"   // a limit of ours; End.Limit says which
	Denied      Outcome = "denied"      // never dispatched
	Interrupted Outcome = "interrupted" // outcome unknown: the tool server or our supervision was lost after dispatch
)

// How an attachment ended: a fact about a reader, never about the call.
type How string

// The deliveries of DESIGN §1.
const (
	Delivered         How = "delivered"
	AbortedDownstream How = "aborted_downstream"
	HandedOff         How = "handed_off"
	Replayed          How = "replayed"
	Slow              How = "slow"
	ShutDown          How = "shutdown"
	// Asked says that the agent was told what the tool asks, and comes back with
	// the answer (SPEC §4.1): nothing has ended.
	Asked How = "asked"
	// Told says that the agent was told on the side that the call has ended and
	// how, but not with what: its result still waits to be read (SHELL §5).
	Told How = "told"
)

// Event is one fact about a call. Events of a call are contiguous from 1 and
// written by the call's owner only (I3).
type Event struct {
	Seq  uint64
	Kind Kind
	Time time.Time
	// Hole is the offset in Body of a one-byte placeholder "0" that stands
	// where each reader's own id or progress token goes; -1 if there is none.
	// So no id or token of one side is ever stored or shown to the other.
	Hole int
	// Body is the message as the tool server wrote it, but for the hole; or
	// plain words for kinds that say so. Nobody may change it.
	Body []byte
	// Cursor is the runner's own: with KindAddress it says from where on to go
	// on after this event, should our process be lost. nil if there is none.
	Cursor []byte
	// End is set on KindEnd only.
	End *End
}

// End is how a call ended.
type End struct {
	Outcome   Outcome
	ToolError bool   // the tool's own isError, with outcome completed
	Code      int    // JSON-RPC error code, with outcome failed
	By        string // who cancelled or denied: "agent", "operator", "disconnect", "policy", "shutdown", "server"
	Limit     string // which limit: "connect", "first_byte", "idle", "total", "answer", "message_bytes", "call_bytes", "concurrency"
	Text      string // what happened and what to do, for people and models; empty if the tool answered
}

// Limits of one call. Zero means none, for every field.
type Limits struct {
	Connect   time.Duration // until the tool server's session or process is there
	FirstByte time.Duration // from dispatch to the first byte of an answer
	Idle      time.Duration // longest silence; reset by progress, messages and answered pings
	Total     time.Duration // from acceptance to the end, less the time in which the call waited for answers
	Answer    time.Duration // how long a question of the tool waits for its answer; see Attended
	Message   int64         // bytes of one message from the tool server
	Call      int64         // bytes of all messages of the call

	PerServer    int // calls running at once for the server, over all principals
	PerPrincipal int // calls running at once for the principal
}

// Caller is who makes a request. What is reached for one caller is never used for
// another that differs in what the operator keeps apart (DESIGN §4). It is
// comparable.
type Caller struct {
	Principal string
	Session   string // the agent's session; empty if it has none
	// Capabilities are what the agent can be asked: a canonical JSON object of
	// elicitation, sampling and roots as it declared them, never more; empty if
	// it can be asked nothing (SPEC §4.3).
	Capabilities string
}

// Spec describes a call to start.
type Spec struct {
	Principal string // who calls; ids are checked against it
	Session   string // the agent's session, if it has one
	// Capabilities are what the agent can be asked; see Caller. They are not
	// stored.
	Capabilities string
	Client       string // the agent's name and version as it says, for people only
	Server       string // configured name of the tool server
	Tool         string // the tool server's own name of the tool, or of the prompt; empty for other methods
	PublicTool   string // the name that the agent used
	Era          string // protocol revision of the agent's request
	RequestID    string // ours, for log lines
	Traceparent  string
	// AgentRequest is the agent's request id in its session, with its JSON type,
	// so that its cancel finds the call also after a restart.
	AgentRequest string
	// Idempotency is a digest of the key that the caller gave for this call, or
	// empty. With one, the same key is the same call, whatever became of it.
	Idempotency string

	// Method is the request's; empty means tools/call. It is not stored.
	Method string
	// LogLevel is from where on this request wants log messages of its server;
	// empty means as its session has set, if it has. It is not stored.
	LogLevel string
	// Params are Mcp-Param headers of the agent that no known argument is mirrored
	// by, canonical name to value: a tool server over HTTP gets them as they came
	// . They are not stored.
	Params map[string]string
	// Volatile says that nobody asks for the call later: it is never stored,
	// never taken over by an equal request and not listed, and it ends as soon as
	// its reader is gone. Other methods than tools/call are such.
	Volatile bool

	// Parent is the call that started this one, as run_commands_parallel does, and
	// Index its place there, from 1. A call that an agent started has neither.
	Parent ID
	Index  int

	// Request is the agent's message, raw. It lives in memory until dispatch
	// and is never stored; Arguments is what policy keeps of it, and lives in
	// the log only.
	Request   []byte
	Arguments []byte
	Digest    string // of the canonical arguments, hex
	// State and Answers go on with a request that the tool server had answered
	// with a question, in a call that has ended since: see Exec.Ask. Answers are
	// input responses by key, a JSON object. They live in memory until dispatch.
	State, Answers []byte

	// Attach says when an equal call takes this request instead of a new one.
	// It is not stored.
	Attach Attach

	Limits Limits
	// Denied, if not nil, says why the call must not run. It is recorded all
	// the same, ends at once, and never reaches the runner.
	Denied *End
}

// Caller is who makes the call.
func (s *Spec) Caller() Caller {
	return Caller{Principal: s.Principal, Session: s.Session, Capabilities: s.Capabilities}
}

// Attach is the rule of SPEC §3.7: when a request takes over a call that runs or
// has ended, instead of starting an equal one. Equal is: same principal, server,
// tool and digest of the arguments, or the same idempotency key.
type Attach uint8

const (
	// AttachUndelivered takes over a running call whose readers are all gone or
	// that was handed off, and an ended one whose result nobody got: that
	// result is shown once more, to one reader.
	AttachUndelivered Attach = iota
	// AttachAlways also takes a running call that others still read.
	AttachAlways
	// AttachNever always starts a new call. An idempotency key goes before it.
	AttachNever
	// AttachFresh does too, but the call that it starts is taken over like one of
	// AttachAlways.
	AttachFresh
)

// Record is a call as stored.
type Record struct {
	ID ID
	Spec
	Epoch      uint64 // of the owner
	Started    time.Time
	Ended      time.Time // zero while running
	Dispatched time.Time // zero if the request never left
	FirstByte  time.Time // of the tool server's answer; zero if none came
	End        End       // Outcome is Running while it has not ended
	Seq        uint64    // of the last event
	Missing    uint64    // events that were not kept, because of a cap or a full queue
	Bytes      uint64    // bytes of all event bodies

	// Delivered says that some reader got the end, HandedOff that one was told
	// to ask for it later, Told that one was told that it is there. A log sets
	// them in Owned, Undelivered and Get.
	Delivered, HandedOff, Told bool
	// Alive says that the owner of a running call is another process that still
	// lives, and carries it to its end. A log sets it in Running.
	Alive bool
	// Address and Cursor are the last ones of the call's events. A log sets them
	// in Running only; while a call runs, the engine keeps its Address. An empty
	// Address is none.
	Address, Cursor []byte
	// Asked is the last of its KindAsk and KindAnswer events if that asks something:
	// it waits for answers; else nil. A log sets it in Running only.
	Asked *Event
	// Cancel is the body of its KindCancelRequested; nil if nobody asked. A log
	// sets it in Running only.
	Cancel []byte
}

// Delivery is how one attachment ended.
type Delivery struct {
	Call      ID
	Kind      string // "sse", "json", "resume", "task", "await"
	How       How
	Era       string
	Attached  time.Time
	FirstByte time.Duration // from attach to the first byte written; 0 if none
	Ended     time.Time
	Bytes     int64
	Events    int64
	Dropped   int64 // progress that this reader got merged or not at all
}

var (
	// ErrUnknown says that there is no such call for this principal. A foreign
	// id and one that never was look the same (I6).
	ErrUnknown = errors.New("no such call")
	// ErrGap says that events before the position asked for are not kept any
	// more. What follows must not be taken for the whole (I5).
	ErrGap = errors.New("events are missing at this position")
	// ErrFull says that the log takes no more for now.
	ErrFull = errors.New("the journal's queue is full")
	// ErrNotRunning says that the call has ended, so there is nothing to tell it.
	ErrNotRunning = errors.New("the call has ended")
	// ErrStopping says that no new call is taken.
	ErrStopping = errors.New("longcall is stopping")
	// ErrElsewhere says that the call is carried to its end by the process that
	// this one replaces, which takes no commands for it any more.
	ErrElsewhere = errors.New("the call runs in the process that is being replaced")
	// ErrMismatch says that an idempotency key was used before, for another
	// tool or with other arguments.
	ErrMismatch = errors.New("this idempotency key belongs to another call")
)

// Log keeps calls and their events. All methods are safe for concurrent use.
// calltest.Log is the suite that every implementation passes.
type Log interface {
	// Create stores a new call and its first events, in one transaction. On
	// return they survive a crash of the process. If the last event is a
	// KindEnd, the call is stored as ended.
	Create(ctx context.Context, r *Record, events ...Event) error
	// Append takes an event that is stored within milliseconds. It does not
	// wait; if the queue is full in bytes it returns ErrFull and the event is
	// counted as missing.
	Append(id ID, epoch uint64, e Event) error
	// Finish stores the terminal event, the state and the record's times and
	// counts in one transaction, if the call is still running in r.Epoch
	// (compare and set); everything appended before is stored with it. On
	// return it survives a crash. A call that is not running gives
	// ErrNotRunning.
	Finish(ctx context.Context, r *Record, e Event) error
	// Flush returns when all that was appended before survives a crash.
	Flush(ctx context.Context) error
	// Deliver notes how an attachment ended. It does not wait.
	Deliver(d Delivery)
	// Read returns events after seq, oldest first, up to about max bytes of
	// bodies but at least one, seeing all that was appended before. Missing
	// events give ErrGap, none at all an empty slice.
	Read(ctx context.Context, id ID, after uint64, max int) ([]Event, error)
	// Get returns a call, or ErrUnknown.
	Get(ctx context.Context, id ID) (*Record, error)
	// Running returns the calls that are not ended and whose owner's epoch is
	// lower than the given one, with Alive, Address, Cursor, Asked, Cancel, Seq
	// and HandedOff as stored.
	Running(ctx context.Context, epoch uint64) ([]Record, error)
	// Adopt makes r.Epoch the owner of a running call, if from still is
	// (compare and set); else it gives ErrNotRunning. On return it survives a
	// crash, and Append and Finish take r.Epoch.
	Adopt(ctx context.Context, r *Record, from uint64) error
	// Undelivered returns calls that ended at or after since, were dispatched or
	// interrupted, were not cancelled or denied, and that no reader got the end of; and those
	// with an Idempotency key that ended since then, however they ended and were
	// delivered. Newest first, at most max, among the last 100 000 calls.
	Undelivered(ctx context.Context, since time.Time, max int) ([]Record, error)
	// Owned returns the principal's calls, newest first, with what is appended
	// so far: those numbered before the one with id before, or from the newest
	// on if it is empty, at most max.
	Owned(ctx context.Context, principal string, before ID, max int) ([]Record, error)
}

// Resumer is a Runner that can take up a call again that an earlier process left
// at its tool server.
type Resumer interface {
	// Resumable says whether Run can go on with the call, of which r has
	// Address, nil if there was none, Dispatched and, after a restart, Cursor. Run
	// is then called with Exec.Resume set. If what was shown after the last stored
	// event does not come again, it moves the Cursor into the Address, so that no
	// reader takes what is new for seen (Call.Position). It may also set Attach,
	// which is not stored.
	Resumable(r *Record) bool
}

// Leaver is a Resumer that has calls which lose nothing if they are left at any
// time, because what they wait for goes on by itself.
type Leaver interface {
	// Leaves says whether Stop need not wait for the call's end.
	Leaves(r *Record) bool
}

// Runner carries one call to its tool server.
type Runner interface {
	// Run does the call's work: it connects, calls x.Dispatched right before
	// the request leaves, emits what comes back, and returns how it ended. It
	// is called once per call, in a goroutine of its own.
	//
	// A real answer of the tool server is returned as Answer with Completed or
	// Failed, its message and its hole. When ctx is done, Run passes the cancel
	// on in the way of the upstream's era, may wait shortly for a late answer,
	// and returns that or an Answer without outcome: the engine then takes the
	// end from context.Cause. If that is ErrLeft, the call stays where it is:
	// Run tells the tool server nothing, and returns at once. Run must not use x
	// after it returned.
	//
	// With x.Resume set the request left in an earlier process: Run must not
	// send it, and takes the call up at x.Resume.
	Run(ctx context.Context, x *Exec) Answer
}

// Answer is what a Runner brings back.
type Answer struct {
	End
	Body []byte
	Hole int
	// Release, if not nil, gives back what the runner still holds. It is called
	// once, after the end was shown, so that nobody waits for it, and takes a
	// second at most.
	Release func()
}

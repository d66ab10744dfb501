package downstream

import (
	"encoding/base32"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/mcp"
)

const defaultBodyLimit = 4 << 20

// exchange is one HTTP request and its answer.
type exchange struct {
	h       *Handler
	r       *http.Request
	set     *Settings
	at      endpointKind
	server  string // of the endpoint; "" for all
	version string // revision of the request, once known
	modern  bool
	tasks   bool // tools are listed with what they can do as tasks of 2025-11-25
	sse     bool // what Accept allows
	json    bool
	old     bool // what answers goes to the stream of a session of the 2024-11-05 transport
	started bool // the Observer knows
	tried   *secondTry
	asks    string    // what the agent can be asked; see call.Caller
	who     string    // what the agent calls itself; known for a tools/call
	told    []call.ID // calls whose ends the answer shows on the side
	// digested are calls of which the answer says that they have ended.
	digested []call.Record
	out      sink
	q        Request
}

// caller is who makes the request, as far as it is known by now.
func (x *exchange) caller() call.Caller {
	return call.Caller{Principal: x.q.Principal, Session: x.q.Session, Capabilities: x.asks}
}

// done tells the Observer how it went.
func (x *exchange) done() {
	x.tellTold()
	o := x.h.opt.Observer
	if o == nil {
		return
	}
	x.observe()
	q := &x.q
	q.Status, q.FirstByte, q.BytesOut = x.out.status, x.out.first, x.out.bytes
	o.RequestEnded(q)
}

// observe tells the Observer that the request is served.
func (x *exchange) observe() {
	if o := x.h.opt.Observer; o != nil && !x.started {
		x.started = true
		o.RequestStarted(&x.q)
	}
}

var requestIDs = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// newRequestID names a request in log lines; it opens no door.
func newRequestID() string {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], rand.Uint64())
	return "r_" + requestIDs.EncodeToString(b[:])
}

// post reads the message, whole, and serves it. What it returns is the answer
// to a tools/call, still to be run.
func (x *exchange) post() *attachment {
	x.q.ID = newRequestID()
	if !isJSON(x.r.Header.Get("Content-Type")) {
		x.refuse(http.StatusUnsupportedMediaType, mcp.CodeInvalidRequest, "Content-Type must be application/json.")
		return nil
	}
	body, ok := x.body()
	if !ok {
		return nil
	}
	x.q.BytesIn = int64(len(body))
	x.sse, x.json = accepts(x.r.Header["Accept"])
	if mcp.IsBatch(body) {
		x.batch(body)
		return nil
	}
	m, err := mcp.Parse(body)
	if err != nil {
		x.parseError(err)
		return nil
	}
	if m.Method != "" {
		x.q.Method = oneLine(m.Method, 64)
	}
	if x.claimsModern(&m) {
		return x.serveModern(&m)
	}
	return x.serveLegacy(&m)
}

func (x *exchange) parseError(err error) {
	var pe *mcp.ParseError
	if errors.As(err, &pe) {
		x.fail(http.StatusBadRequest, pe.ID, pe.Code, pe.Text, nil)
		return
	}
	x.fail(http.StatusBadRequest, nil, mcp.CodeParse, "The body is not JSON.", nil)
}

// body reads the request whole, before any byte of an answer: the server would
// throw away what is unread then, and the client's stream with it (A7).
func (x *exchange) body() ([]byte, bool) {
	limit := x.set.BodyLimit
	if limit <= 0 {
		limit = defaultBodyLimit
	}
	_ = x.out.rc.SetReadDeadline(time.Now().Add(bodyTimeout))
	var b []byte
	var err error
	switch n := x.r.ContentLength; {
	case n > limit:
		err = mcp.ErrTooLarge
	case n >= 0:
		b = make([]byte, n)
		_, err = io.ReadFull(x.r.Body, b)
	default:
		if b, err = io.ReadAll(io.LimitReader(x.r.Body, limit+1)); int64(len(b)) > limit {
			err = mcp.ErrTooLarge
		}
	}
	if errors.Is(err, mcp.ErrTooLarge) {
		x.out.w.Header().Set("Connection", "close")
		x.refuse(http.StatusRequestEntityTooLarge, mcp.CodeInvalidRequest, "The request is larger than "+strconv.FormatInt(limit, 10)+" bytes, the limit for one message.")
		return nil, false
	}
	if err != nil {
		x.out.w.Header().Set("Connection", "close")
		x.refuse(http.StatusBadRequest, mcp.CodeParse, "The request ended before its body was complete.")
		return nil, false
	}
	_ = x.out.rc.SetReadDeadline(time.Time{})
	return b, true
}

// isJSON accepts parameters, and any case (O16, R-61).
func isJSON(contentType string) bool {
	t, _, _ := strings.Cut(contentType, ";")
	return strings.EqualFold(strings.TrimSpace(t), "application/json")
}

// accepts says which reply types the client takes. No Accept is refused: strict
// servers break real hosts (SPEC §1.2). What names neither type gets JSON.
func accepts(values []string) (sse, json bool) {
	if len(values) == 0 {
		return true, true
	}
	for _, v := range values {
		for part := range strings.SplitSeq(v, ",") {
			t, params, _ := strings.Cut(part, ";")
			t = strings.TrimSpace(t)
			if params != "" && refused(params) {
				continue
			}
			switch {
			case strings.EqualFold(t, "application/json"), strings.EqualFold(t, "application/*"):
				json = true
			case strings.EqualFold(t, "text/event-stream"), strings.EqualFold(t, "text/*"):
				sse = true
			case t == "*/*", t == "":
				sse, json = true, true
			}
		}
	}
	return sse, json || !sse
}

// refused says whether parameters of a media range hold q=0.
func refused(params string) bool {
	for p := range strings.SplitSeq(params, ";") {
		k, v, _ := strings.Cut(strings.TrimSpace(p), "=")
		if strings.EqualFold(k, "q") {
			q, err := strconv.ParseFloat(v, 64)
			return err == nil && q == 0
		}
	}
	return false
}

// only is the value of a header that must not come twice.
func only(h http.Header, name string) (v string, present, ok bool) {
	values := h[name]
	switch len(values) {
	case 0:
		return "", false, true
	case 1:
		return strings.Trim(values[0], " \t"), true, true
	}
	return "", true, false
}

// Header values that many answers share; nobody changes them.
var (
	valueJSON      = []string{"application/json"}
	valueSSE       = []string{"text/event-stream"}
	valueNoCache   = []string{"no-cache, no-transform"}
	valueNoBuffer  = []string{"no"}
	valueNoStore   = []string{"no-store"}
	valueStreamGet = []string{"POST, DELETE, OPTIONS"}
)

// streamHead sets the headers of an event stream (DESIGN §3, R-51): the bare
// type, for proxies that compare it literally, and nothing that lets one hold
// back or compress what comes.
func streamHead(h http.Header) {
	h["Content-Type"] = valueSSE
	h["Cache-Control"] = valueNoCache
	h["X-Accel-Buffering"] = valueNoBuffer
}

// refuse answers what is wrong about the HTTP request, in a message without id.
func (x *exchange) refuse(status, code int, text string) {
	x.fail(status, nil, code, text, nil)
}

// notAllowed answers 405 with what is (O24).
func (x *exchange) notAllowed(text string) {
	x.out.w.Header()["Allow"] = valueStreamGet
	x.refuse(http.StatusMethodNotAllowed, mcp.CodeInvalidRequest, text)
}

// fail answers with a JSON-RPC error. id and data are raw JSON or nil.
func (x *exchange) fail(status int, id []byte, code int, text string, data []byte) {
	x.writeJSON(status, mcp.ErrorResponse(id, code, text, data))
}

// result answers a request with a raw result.
func (x *exchange) result(id, result []byte) {
	x.reply(mcp.ResultResponse(id, result))
}

// reply sends a JSON-RPC response with status 200, as the client can take it.
func (x *exchange) reply(msg []byte) {
	if x.json {
		x.writeJSON(http.StatusOK, msg)
		return
	}
	streamHead(x.out.w.Header())
	x.out.head(http.StatusOK)
	x.out.write(mcp.AppendSSE(nil, "", "message", msg))
	x.out.flush()
}

func (x *exchange) writeJSON(status int, msg []byte) {
	if x.old {
		x.reply(msg)
		return
	}
	h := x.out.w.Header()
	h["Content-Type"] = valueJSON
	h["Cache-Control"] = valueNoStore
	h.Set("Content-Length", strconv.Itoa(len(msg)))
	x.out.head(status)
	x.out.write(msg)
	x.out.flush()
}

// accepted answers a notification.
func (x *exchange) accepted() {
	x.out.head(http.StatusAccepted)
	x.out.flush()
}

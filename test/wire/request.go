package wire

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"time"
)

// Request is what a scripted server was sent: an HTTP request, or a line on
// its standard input.
type Request struct {
	Msg
	Time   time.Time // when its last byte was read
	Conn   int       // number of the TCP connection, from 1; 0 on stdio
	Verb   string    // HTTP method; empty on stdio
	Path   string
	Header http.Header
	Body   string
	Bad    error // why the body is no JSON-RPC message; nil if it is or if there is none

	Tool    string // params.name
	Args    Raw    // params.arguments
	Token   Raw    // params._meta.progressToken, with its JSON type
	Version string // of this request: _meta, else what initialize asks for, else the header
}

// Modern says whether the request is of the stateless era.
func (r *Request) Modern() bool { return modern(r.Version) }

// Key is the name under which a handler is found: the JSON-RPC method, or the
// HTTP method of a request without a body.
func (r *Request) Key() string {
	if r.Method != "" {
		return r.Method
	}
	return r.Verb
}

// Progress makes a progress message of this call. Total and text may be empty.
func (r *Request) Progress(value, total, text string) string {
	token := string(r.Token)
	if token == "" {
		token = `"no token was given"`
	}
	return Progress(token, value, total, text)
}

// Result makes the response that carries a raw result object, which must not
// be empty in the stateless era.
func (r *Request) Result(object string) string {
	if r.Modern() && At(object, "resultType") == nil {
		object = `{"resultType":"complete",` + object[1:]
		if object == `{"resultType":"complete",}` {
			object = `{"resultType":"complete"}`
		}
	}
	return `{"jsonrpc":"2.0","id":` + string(r.ID) + `,"result":` + object + `}`
}

// Text makes the response of a tool that gives one text.
func (r *Request) Text(text string) string {
	return r.Result(`{"content":[{"type":"text","text":` + Quote(text) + `}]}`)
}

// Fail makes an error response.
func (r *Request) Fail(code, text string) string {
	id := string(r.ID)
	if id == "" {
		id = "null"
	}
	return `{"jsonrpc":"2.0","id":` + id + `,"error":{"code":` + code + `,"message":` + Quote(text) + `}}`
}

// parse fills the members that come from the JSON-RPC message.
func (r *Request) parse() {
	var p struct {
		Name            string `json:"name"`
		Arguments       Raw    `json:"arguments"`
		ProtocolVersion string `json:"protocolVersion"`
		Meta            struct {
			Token   Raw    `json:"progressToken"`
			Version string `json:"io.modelcontextprotocol/protocolVersion"`
		} `json:"_meta"`
	}
	if r.Bad = json.Unmarshal([]byte(r.Body), &r.Msg); r.Bad != nil {
		return
	}
	r.JSON = r.Body
	if r.Params != nil {
		r.Bad = json.Unmarshal(r.Params, &p)
	}
	r.Tool, r.Args, r.Token = p.Name, p.Arguments, p.Meta.Token
	switch {
	case p.Meta.Version != "":
		r.Version = p.Meta.Version
	case r.Method == "initialize":
		r.Version = p.ProtocolVersion
	default:
		r.Version = r.Header.Get("Mcp-Protocol-Version")
	}
}

// readRequest reads one HTTP request whole.
func readRequest(br *bufio.Reader) (*Request, error) {
	h, err := http.ReadRequest(br)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(h.Body)
	if err != nil {
		return nil, err
	}
	h.Header.Set("Host", h.Host)
	r := &Request{Time: time.Now(), Verb: h.Method, Path: h.URL.RequestURI(), Header: h.Header, Body: string(body)}
	r.Version = h.Header.Get("Mcp-Protocol-Version")
	if r.Body != "" {
		r.parse()
	}
	return r, nil
}

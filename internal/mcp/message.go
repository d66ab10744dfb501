// Package mcp is the wire: raw messages, eras, errors and event streams of the Model Context Protocol.
package mcp

import "errors"

// Span is where a JSON value stands in a message's raw bytes, half open. The
// zero Span means that the member is absent.
type Span struct{ Start, End int }

// Ok says whether the member is there.
func (s Span) Ok() bool { return s.End > s.Start }

// Of is the raw JSON of the member; nil if it is absent.
func (s Span) Of(raw []byte) []byte {
	if !s.Ok() {
		return nil
	}
	return raw[s.Start:s.End]
}

// Kind of a JSON-RPC message.
type Kind uint8

// The kinds of messages.
const (
	Request Kind = iota + 1
	Notification
	Response
)

// Message is one JSON-RPC message as it came: the raw bytes, checked, and where
// its parts are. Raw is never re-marshalled: what a gateway changes is spliced
// in, so that unknown members, big integers and key order survive untouched.
type Message struct {
	Raw    []byte
	Kind   Kind
	Method string
	ID     Span // with its JSON type
	Params Span
	Result Span
	Error  Span

	// Members of params.
	Name          Span // tools/call, prompts/get
	Arguments     Span
	URI           Span
	ProgressToken Span // notifications/progress
	Progress      Span
	Total         Span
	Text          Span // notifications/progress: message
	RequestID     Span // notifications/cancelled
	Reason        Span
	Cursor        Span
	Version       Span // initialize: protocolVersion
	Capabilities  Span // initialize: capabilities
	ClientInfo    Span // initialize: clientInfo
	Meta          Span // params._meta, or result._meta in a response

	// Members of params._meta.
	MetaToken        Span // progressToken
	MetaVersion      Span // io.modelcontextprotocol/protocolVersion
	MetaCapabilities Span // io.modelcontextprotocol/clientCapabilities
	MetaClientInfo   Span // io.modelcontextprotocol/clientInfo
	MetaLogLevel     Span // io.modelcontextprotocol/logLevel
	Subscription     Span // io.modelcontextprotocol/subscriptionId
	Traceparent      Span
	Tracestate       Span

	// Members of result.
	ResultType Span
	IsError    Span

	// Members of error.
	Code    int
	ErrText string
}

// ParseError says why bytes are not one acceptable JSON-RPC message.
type ParseError struct {
	Code int    // CodeParse or CodeInvalidRequest
	Text string // for people; never quotes more than a member's name
	ID   []byte // raw id of the message if it could be read; else nil
}

func (e *ParseError) Error() string { return e.Text }

// ErrTooLarge says that a message or event passed the reader's limit. The
// reader has skipped it and can go on.
var ErrTooLarge = errors.New("message over the size limit")

package mcp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// Parse checks raw and finds its parts. It refuses what two parsers could read
// differently: duplicate keys at any depth, members of the envelope, of params
// or of _meta that equal a known one but for upper and lower case (P17),
// invalid UTF-8, trailing bytes, an array (a batch), an id that is neither
// string nor number (null counts as absent in responses only). raw must not
// change while the Message is in use.
//
// Two things that real peers write are let through: null for params, _meta,
// error beside a result or result beside an error; and escaped lone surrogates
// ("\ud83d", what JavaScript makes of a text cut inside an emoji), except where
// somebody decides on the text (method, name, uri, id, token).
// Errors are *ParseError.
func Parse(raw []byte) (Message, error) {
	var m Message
	err := ParseInto(&m, raw)
	return m, err
}

// ParseInto is Parse into a Message of the caller's, whatever was in it. A
// Message is large: where stacks count, it should not be on them.
func ParseInto(m *Message, raw []byte) error {
	*m = Message{}
	err := parse(raw, m)
	if err == nil {
		return nil
	}
	if cutEmoji(raw, err) {
		*m = Message{}
		if err = parse(raw, m, jsontext.AllowInvalidUTF8(true)); err == nil {
			err = m.checkDecisive()
		}
		if err == nil {
			return nil
		}
	}
	*m = Message{}
	return parseError(raw, err)
}

// IsBatch says whether the first byte that is not blank is "[".
func IsBatch(raw []byte) bool {
	raw = bytes.TrimLeft(raw, blanks)
	return len(raw) > 0 && raw[0] == '['
}

const blanks = " \t\r\n"

// The known members, for which another spelling in case is refused.
var (
	envelopeNames = names("jsonrpc", "id", "method", "params", "result", "error")
	paramsNames   = names("name", "arguments", "uri", "progressToken", "progress", "total", "message", "requestId",
		"reason", "cursor", "protocolVersion", "capabilities", "clientInfo", "_meta")
	metaNames = names(MetaKeyProgressToken, MetaKeyVersion, MetaKeyCapabilities, MetaKeyClientInfo, MetaKeyLogLevel,
		"traceparent", "tracestate", MetaKeySubscription)
)

func names(list ...string) [][]byte {
	out := make([][]byte, len(list))
	for i, s := range list {
		out[i] = []byte(s)
	}
	return out
}

// methods spares a string per message for the methods of the data path.
var methods = func() map[string]string {
	m := map[string]string{}
	for _, s := range []string{
		MethodInitialize, MethodInitialized, MethodPing, MethodDiscover, MethodToolsList, MethodToolsCall,
		MethodCancelled, MethodProgress, MethodMessage, MethodToolsChanged, MethodPromptsChanged, MethodResourcesChanged,
		MethodPromptsGet, MethodResourcesRead, MethodUpdated,
	} {
		m[s] = s
	}
	return m
}()

// parser is a pooled decoder that reads raw in place.
type parser struct {
	dec jsontext.Decoder
	buf bytes.Buffer
	at  int // where the last name starts, with its quote
}

var parsers = sync.Pool{New: func() any { return new(parser) }}

func newParser(raw []byte, opts ...jsontext.Options) *parser {
	p := parsers.Get().(*parser)
	p.buf = *bytes.NewBuffer(raw)
	p.dec.Reset(&p.buf, opts...)
	return p
}

// free gives the parser back; it holds on to nothing of the message.
func (p *parser) free() {
	p.buf = bytes.Buffer{}
	p.dec.Reset(&p.buf)
	parsers.Put(p)
}

// name reads the next member's name, decoded; nil at the end of the object.
func (p *parser) name() ([]byte, error) {
	if p.dec.PeekKind() == '}' {
		_, err := p.dec.ReadToken()
		return nil, err
	}
	v, err := p.dec.ReadValue()
	if err != nil {
		return nil, err
	}
	p.at = p.offset() - len(v)
	if bytes.IndexByte(v, '\\') < 0 {
		return v[1 : len(v)-1], nil
	}
	name, _ := jsontext.AppendUnquote(make([]byte, 0, len(v)), v) // the decoder has checked it
	return name, nil
}

// value reads a whole value.
func (p *parser) value() (Span, error) {
	v, err := p.dec.ReadValue()
	end := p.offset()
	return Span{end - len(v), end}, err
}

// open steps into an object and says where it starts. If the next value is no
// object it is read whole instead: inside is false and s is all of it.
func (p *parser) open() (s Span, inside bool, err error) {
	if p.dec.PeekKind() != '{' {
		s, err = p.value()
		return s, false, err
	}
	_, err = p.dec.ReadToken()
	end := p.offset()
	return Span{end - 1, end}, true, err
}

func (p *parser) offset() int { return int(p.dec.InputOffset()) }

func parse(raw []byte, m *Message, opts ...jsontext.Options) error {
	p := newParser(raw, opts...)
	defer p.free()
	m.Raw = raw
	if err := p.envelope(m); err != nil {
		return err
	}
	if rest := bytes.TrimLeft(raw[p.offset():], blanks); len(rest) > 0 {
		return &ParseError{Code: CodeParse, Text: "bytes after the end of the message"}
	}
	return nil
}

func (p *parser) envelope(m *Message) error {
	_, inside, err := p.open()
	if err != nil {
		return err
	}
	if !inside {
		if IsBatch(m.Raw) {
			return invalid("a batch is not served: send one message at a time")
		}
		return invalid("a message must be a JSON object")
	}
	var version, method Span
	for {
		name, err := p.name()
		if err != nil {
			return err
		}
		if name == nil {
			break
		}
		switch string(name) {
		case "jsonrpc":
			version, err = p.value()
		case "id":
			m.ID, err = p.value()
		case "method":
			method, err = p.value()
		case "params":
			err = p.params(m)
		case "result":
			err = p.result(m)
		case "error":
			err = p.error(m)
		default:
			err = p.unknown(name, envelopeNames)
		}
		if err != nil {
			return err
		}
	}
	if string(version.Of(m.Raw)) != `"2.0"` {
		return invalid(`jsonrpc must be "2.0"`)
	}
	return m.classify(method)
}

// unknown passes over a member that we do not know.
func (p *parser) unknown(name []byte, known [][]byte) error {
	for _, k := range known {
		if bytes.EqualFold(name, k) {
			return invalid(fmt.Sprintf("a member differs from %q only in upper and lower case", k))
		}
	}
	_, err := p.value()
	return err
}

func (p *parser) params(m *Message) error {
	s, inside, err := p.open()
	m.Params = s
	if err != nil || !inside {
		return err
	}
	for {
		name, err := p.name()
		if err != nil {
			return err
		}
		if name == nil {
			break
		}
		switch string(name) {
		case "name":
			m.Name, err = p.value()
		case "arguments":
			m.Arguments, err = p.value()
		case "uri":
			m.URI, err = p.value()
		case "progressToken":
			m.ProgressToken, err = p.value()
		case "progress":
			m.Progress, err = p.value()
		case "total":
			m.Total, err = p.value()
		case "message":
			m.Text, err = p.value()
		case "requestId":
			m.RequestID, err = p.value()
		case "reason":
			m.Reason, err = p.value()
		case "cursor":
			m.Cursor, err = p.value()
		case "protocolVersion":
			m.Version, err = p.value()
		case "capabilities":
			m.Capabilities, err = p.value()
		case "clientInfo":
			m.ClientInfo, err = p.value()
		case "_meta":
			err = p.meta(m)
		default:
			err = p.unknown(name, paramsNames)
		}
		if err != nil {
			return err
		}
	}
	m.Params.End = p.offset()
	return nil
}

func (p *parser) meta(m *Message) error {
	s, inside, err := p.open()
	m.Meta = s
	if err != nil {
		return err
	}
	if !inside {
		if string(s.Of(m.Raw)) != "null" {
			return invalid("_meta must be an object")
		}
		return nil
	}
	for {
		name, err := p.name()
		if err != nil {
			return err
		}
		if name == nil {
			break
		}
		switch string(name) {
		case MetaKeyProgressToken:
			m.MetaToken, err = p.value()
		case MetaKeyVersion:
			m.MetaVersion, err = p.value()
		case MetaKeyCapabilities:
			m.MetaCapabilities, err = p.value()
		case MetaKeyClientInfo:
			m.MetaClientInfo, err = p.value()
		case MetaKeyLogLevel:
			m.MetaLogLevel, err = p.value()
		case MetaKeySubscription:
			m.Subscription, err = p.value()
		case "traceparent":
			m.Traceparent, err = p.value()
		case "tracestate":
			m.Tracestate, err = p.value()
		default:
			err = p.unknown(name, metaNames)
		}
		if err != nil {
			return err
		}
	}
	m.Meta.End = p.offset()
	return nil
}

func (p *parser) result(m *Message) error {
	s, inside, err := p.open()
	m.Result = s
	if err != nil || !inside {
		return err
	}
	for {
		name, err := p.name()
		if err != nil {
			return err
		}
		if name == nil {
			break
		}
		var s Span
		if s, err = p.value(); err != nil {
			return err
		}
		switch string(name) {
		case "resultType":
			m.ResultType = s
		case "isError":
			m.IsError = s
		case "_meta":
			m.Meta = s
		}
	}
	m.Result.End = p.offset()
	return nil
}

func (p *parser) error(m *Message) error {
	s, inside, err := p.open()
	m.Error = s
	if err != nil {
		return err
	}
	if !inside {
		if string(s.Of(m.Raw)) != "null" {
			return invalid("error must be an object")
		}
		return nil
	}
	for {
		name, err := p.name()
		if err != nil {
			return err
		}
		if name == nil {
			break
		}
		var s Span
		if s, err = p.value(); err != nil {
			return err
		}
		switch string(name) {
		case "code": // a code that is no integer stays 0: the error counts, its number does not
			m.Code, _ = strconv.Atoi(string(s.Of(m.Raw)))
		case "message":
			m.ErrText, _ = String(s.Of(m.Raw))
		}
	}
	m.Error.End = p.offset()
	return nil
}

// classify finds the kind and checks that the members fit it.
func (m *Message) classify(method Span) error {
	if m.Params.Ok() {
		if c := m.Raw[m.Params.Start]; c != '{' && c != 'n' {
			return invalid("params must be an object")
		}
	}
	null := m.ID.Ok() && m.Raw[m.ID.Start] == 'n'
	if m.ID.Ok() && !null && !isKey(m.ID.Of(m.Raw)) {
		return invalid("id must be a string or a number")
	}
	if method.Ok() {
		raw := method.Of(m.Raw)
		if raw[0] != '"' || len(raw) == 2 {
			return invalid("method must be a string that is not empty")
		}
		if m.Result.Ok() || m.Error.Ok() {
			return invalid("a message with a method must have neither result nor error")
		}
		if null {
			return invalid("id must be a string or a number, not null")
		}
		known, ok := methods[string(raw[1:len(raw)-1])]
		if !ok {
			known, _ = String(raw)
		}
		m.Method = known
		m.Kind = Notification
		if m.ID.Ok() {
			m.Kind = Request
		}
		return nil
	}

	// A null beside the other answer is how some libraries write "absent".
	if m.Result.Ok() && m.Error.Ok() {
		switch {
		case m.Raw[m.Error.Start] == 'n':
			m.Error = Span{}
		case m.Raw[m.Result.Start] == 'n':
			m.Result = Span{}
		default:
			return invalid("a response must have either result or error, not both")
		}
	}
	if m.Error.Ok() && m.Raw[m.Error.Start] == 'n' {
		m.Error = Span{}
	}
	switch {
	case !m.Result.Ok() && !m.Error.Ok():
		return invalid("a message must have a method, a result or an error")
	case m.Params.Ok():
		return invalid("a response must have no params")
	}
	if null {
		m.ID = Span{}
	}
	if m.Result.Ok() && !m.ID.Ok() {
		return invalid("a result must have the id of its request")
	}
	m.Kind = Response
	return nil
}

// isKey says whether raw may be an id or a progress token by its JSON type.
func isKey(raw []byte) bool {
	return len(raw) > 0 && (raw[0] == '"' || raw[0] == '-' || '0' <= raw[0] && raw[0] <= '9')
}

// cutEmoji says whether raw may have failed only for lone surrogates.
func cutEmoji(raw []byte, err error) bool {
	return errors.As(err, new(*jsontext.SyntacticError)) &&
		(bytes.Contains(raw, []byte(`\ud`)) || bytes.Contains(raw, []byte(`\uD`))) && utf8.Valid(raw)
}

// checkDecisive refuses lone surrogates where a decision hangs on the text:
// parsers differ in what they make of them.
func (m *Message) checkDecisive() error {
	for _, s := range [...]Span{m.ID, m.Name, m.URI, m.ProgressToken, m.RequestID, m.MetaToken, m.Cursor} {
		if raw := s.Of(m.Raw); len(raw) > 0 && raw[0] == '"' {
			if _, err := jsontext.AppendUnquote(nil, raw); err != nil {
				return invalid("a name, id or token is not valid Unicode")
			}
		}
	}
	if strings.ContainsRune(m.Method, utf8.RuneError) {
		return invalid("method is not valid Unicode")
	}
	return nil
}

func invalid(text string) *ParseError { return &ParseError{Code: CodeInvalidRequest, Text: text} }

// maxQuoted bounds the member's name that an error quotes, in bytes.
const maxQuoted = 64

// parseError makes err a *ParseError with the id if raw has exactly one.
func parseError(raw []byte, err error) *ParseError {
	pe := new(ParseError)
	syntax := new(jsontext.SyntacticError)
	switch {
	case errors.As(err, &pe):
	case errors.Is(err, jsontext.ErrDuplicateName):
		pe.Code, pe.Text = CodeInvalidRequest, "a member is there twice"
		if errors.As(err, &syntax) {
			name := syntax.JSONPointer.LastToken()
			if len(name) > maxQuoted {
				name = name[:maxQuoted]
			}
			pe.Text = fmt.Sprintf("member %q is there twice", name)
		}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		pe.Code, pe.Text = CodeParse, "the message ends too early"
	case errors.As(err, &syntax):
		pe.Code, pe.Text = CodeParse, fmt.Sprintf("not valid JSON at byte %d", syntax.ByteOffset)
	default:
		pe.Code, pe.Text = CodeParse, "not valid JSON"
	}
	pe.ID = findID(raw)
	return pe
}

// findID reads the id of a message that Parse refuses, so that the answer can
// name it. It gives none if raw has several, or is no whole JSON object.
func findID(raw []byte) []byte {
	p := newParser(raw, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	defer p.free()
	if _, inside, err := p.open(); err != nil || !inside {
		return nil
	}
	var id []byte
	seen := 0
	for {
		name, err := p.name()
		if err != nil {
			return nil
		}
		if name == nil {
			break
		}
		s, err := p.value()
		if err != nil {
			return nil
		}
		if bytes.EqualFold(name, []byte("id")) {
			seen++
			if v := s.Of(raw); string(name) == "id" && isKey(v) && utf8.Valid(v) {
				id = v
			}
		}
	}
	if seen != 1 || len(bytes.TrimLeft(raw[p.offset():], blanks)) > 0 {
		return nil
	}
	return bytes.Clone(id)
}

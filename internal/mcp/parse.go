package mcp

// Parse checks raw and finds its parts. It refuses what two parsers could read
// differently: duplicate keys at any depth, members of the envelope, of params
// or of _meta that equal a known one but for upper and lower case (P17),
// invalid UTF-8, trailing bytes, an array (a batch), an id that is neither
// string nor number (null counts as absent in responses only). raw must not
// change while the Message is in use.
// Errors are *ParseError.
func Parse(raw []byte) (Message, error) { panic("todo") }

// IsBatch says whether the first byte that is not blank is "[".
func IsBatch(raw []byte) bool { panic("todo") }

// WithHole copies the message with the value at s replaced by the one-byte
// placeholder 0, and without raw line breaks (which JSON allows between tokens,
// and an event's data line does not). It stays valid JSON.
func (m *Message) WithHole(s Span) (body []byte, hole int) { panic("todo") }

// AppendFilled appends body to dst with the placeholder at hole replaced by
// with; a negative hole appends body as it is.
func AppendFilled(dst, body []byte, hole int, with []byte) []byte { panic("todo") }

// Edit replaces the bytes of a span.
type Edit struct {
	At   Span
	With []byte
}

// AppendEdited appends raw with edits made, which must be in order and not overlap.
func AppendEdited(dst, raw []byte, edits ...Edit) []byte { panic("todo") }

// Member is one member of an object; Value is raw JSON.
type Member struct {
	Name  string
	Value []byte
}

// EditObject returns the JSON object obj without the members for which drop
// says true (drop may be nil), with the values of set replaced where a member
// of that name is, and the rest of set added at the end, in order. All other
// members stay byte for byte, in order. A nil or empty obj counts as {}.
func EditObject(obj []byte, drop func(name string) bool, set ...Member) ([]byte, error) {
	panic("todo")
}

// Members iterates over an object's members without copying values. The error
// is *ParseError if obj is no object.
func Members(obj []byte) ([]Member, error) { panic("todo") }

// String decodes a raw JSON string; ok is false if raw is none.
func String(raw []byte) (s string, ok bool) { panic("todo") }

// Quote encodes s as a JSON string.
func Quote(s string) []byte { panic("todo") }

// OneLine replaces CR and LF between tokens by blanks, in place, and returns raw.
func OneLine(raw []byte) []byte { panic("todo") }

// Canonical returns the canonical form (RFC 8785) of a JSON value, for digests.
func Canonical(raw []byte) ([]byte, error) { panic("todo") }

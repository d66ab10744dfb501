package config

import (
	"errors"
	"log/slog"
	"math"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Secret is a text that is never printed, logged or marshalled: only Reveal
// gives it.
type Secret string

// Reveal is the secret itself.
func (s Secret) Reveal() string { return string(s) }

const hidden = "***"

func (Secret) String() string               { return hidden }
func (Secret) GoString() string             { return hidden }
func (Secret) LogValue() slog.Value         { return slog.StringValue(hidden) }
func (Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }
func (Secret) MarshalYAML() (any, error)    { return hidden, nil }

// Size is a number of bytes.
type Size int64

// enum is a string with a closed set of values.
type enum interface{ values() []string }

// Relay is live, or the kill switch: one JSON body at the end.
type Relay string

// The relays.
const (
	RelayLive     Relay = "live"
	RelayBuffered Relay = "buffered"
)

func (Relay) values() []string { return []string{"live", "buffered"} }

// OnDisconnect says what a gone agent means for its call.
type OnDisconnect string

// The policies. Auto is detach for sessions and cancel after the grace for
// stateless requests, as the protocol has it.
const (
	DisconnectAuto   OnDisconnect = "auto"
	DisconnectCancel OnDisconnect = "cancel"
	DisconnectDetach OnDisconnect = "detach"
)

func (OnDisconnect) values() []string { return []string{"auto", "cancel", "detach"} }

// HandOff says whether a call that takes longer than its agent's patience is
// handed off, or keeps the agent waiting. HandOffTask hands off only as a task:
// an agent that knows none is refused.
type HandOff string

// The ways.
const (
	HandOffAuto HandOff = "auto"
	HandOffOff  HandOff = "off"
	HandOffTask HandOff = "task"
)

func (HandOff) values() []string { return []string{"auto", "off", "task"} }

// Attach says when a request takes over an equal call instead of starting one.
type Attach string

// The rules.
const (
	AttachAuto        Attach = "auto" // always for tools that say they are idempotent, else undelivered
	AttachUndelivered Attach = "undelivered"
	AttachAlways      Attach = "always"
	AttachNever       Attach = "never"
)

func (Attach) values() []string { return []string{"auto", "undelivered", "always", "never"} }

// Switch is on or off, or empty where the level above decides.
type Switch string

// The switches.
const (
	On  Switch = "on"
	Off Switch = "off"
)

func (Switch) values() []string { return []string{"on", "off"} }

// Level of log lines.
type Level string

// The levels.
const (
	LevelDebug Level = "debug"
	LevelInfo  Level = "info"
	LevelWarn  Level = "warn"
	LevelError Level = "error"
)

func (Level) values() []string { return []string{"debug", "info", "warn", "error"} }

// Slog is the level as slog knows it.
func (l Level) Slog() slog.Level {
	switch l {
	case LevelDebug:
		return slog.LevelDebug
	case LevelWarn:
		return slog.LevelWarn
	case LevelError:
		return slog.LevelError
	}
	return slog.LevelInfo
}

// Format of log lines.
type Format string

// The formats.
const (
	FormatText Format = "text"
	FormatJSON Format = "json"
)

func (Format) values() []string { return []string{"text", "json"} }

// Arguments says what the journal keeps of a call's arguments.
type Arguments string

// What can be kept.
const (
	ArgumentsFull     Arguments = "full"
	ArgumentsRedacted Arguments = "redacted"
	ArgumentsHash     Arguments = "hash"
)

func (Arguments) values() []string { return []string{"full", "redacted", "hash"} }

// Sync says what accepted and terminal events survive: normal a crash of the
// process, full also a power cut.
type Sync string

// The modes.
const (
	SyncNormal Sync = "normal"
	SyncFull   Sync = "full"
)

func (Sync) values() []string { return []string{"normal", "full"} }

// OnFailure decides about new calls while the journal is down.
type OnFailure string

// The policies.
const (
	FailureDegrade OnFailure = "degrade"
	FailureRefuse  OnFailure = "refuse"
)

func (OnFailure) values() []string { return []string{"degrade", "refuse"} }

// Era of a server's protocol.
type Era string

// The eras.
const (
	EraAuto   Era = "auto"
	EraModern Era = "modern"
	EraLegacy Era = "legacy"
	EraSSE    Era = "sse" // HTTP with SSE of 2024-11-05
)

func (Era) values() []string { return []string{"auto", "modern", "legacy", "sse"} }

// Share says who may use one connection to a server.
type Share string

// The ways to share.
const (
	SharePrincipal Share = "principal"
	ShareServer    Share = "server"
	ShareSession   Share = "session"
)

func (Share) values() []string { return []string{"principal", "server", "session"} }

// Transport is how a server is reached.
type Transport string

// The transports. SSE is the older pair of HTTP+SSE endpoints of 2024-11-05.
const (
	TransportHTTP  Transport = "http"
	TransportSSE   Transport = "sse"
	TransportStdio Transport = "stdio"
)

func (Transport) values() []string { return []string{"http", "sse", "stdio"} }

// transports are the words that hosts use for them.
var transports = map[string]Transport{
	"http": TransportHTTP, "streamable-http": TransportHTTP, "streamablehttp": TransportHTTP,
	"streamable_http": TransportHTTP, "remote": TransportHTTP,
	"sse": TransportSSE, "stdio": TransportStdio, "local": TransportStdio,
}

// Where shows the server to people: the address without user, query and
// fragment, which may hold credentials, or the name of the program.
func (s Server) Where() string {
	if s.URL == "" {
		return filepath.Base(s.Command)
	}
	u, err := url.Parse(s.URL)
	if err != nil {
		return ""
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

var errRange = errors.New("too large")

// parseDuration reads what time.ParseDuration reads, and days: 2d, 1d12h.
func parseDuration(s string) (time.Duration, error) {
	var days time.Duration
	rest := s
	if n, after, ok := strings.Cut(s, "d"); ok {
		f, err := strconv.ParseFloat(n, 64)
		if err != nil || strings.ContainsAny(n, "xXpPnNiI_+-") {
			return 0, strconv.ErrSyntax
		}
		if f > float64(math.MaxInt64/(24*int64(time.Hour)))/2 {
			return 0, errRange
		}
		days, rest = time.Duration(f*float64(24*time.Hour)), after
		if rest == "" {
			return days, nil
		}
	}
	d, err := time.ParseDuration(rest)
	if err != nil {
		return 0, err
	}
	if d < 0 || strings.HasPrefix(rest, "+") {
		return 0, strconv.ErrSyntax
	}
	if days > math.MaxInt64-d {
		return 0, errRange
	}
	return days + d, nil
}

var units = []struct {
	name string
	n    int64
}{
	{"kib", 1 << 10},
	{"mib", 1 << 20},
	{"gib", 1 << 30},
	{"tib", 1 << 40},
	{"kb", 1e3},
	{"mb", 1e6},
	{"gb", 1e9},
	{"tb", 1e12},
	{"b", 1},
	{"", 1},
}

// parseSize reads plain bytes, or a decimal number with a unit of 1000 (KB) or
// 1024 (KiB).
func parseSize(s string) (Size, error) {
	lower := strings.ToLower(s)
	for _, u := range units {
		num, ok := strings.CutSuffix(lower, u.name)
		if !ok {
			continue
		}
		num = strings.TrimRight(num, " ")
		if num == "" || strings.Trim(num, "0123456789.") != "" {
			return 0, strconv.ErrSyntax
		}
		f, err := strconv.ParseFloat(num, 64)
		if err != nil {
			return 0, strconv.ErrSyntax
		}
		if f *= float64(u.n); f >= 1<<62 {
			return 0, errRange
		} else if f != math.Trunc(f) {
			return 0, strconv.ErrSyntax // half a byte
		}
		return Size(f), nil
	}
	return 0, strconv.ErrSyntax
}

// Package config reads the operator's file: ours in YAML, or any host's mcpServers JSON as it is.
package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"
)

// maxFile bounds what is read; a host keeps its own state in the same file, so
// such files grow to some megabytes.
const maxFile = 32 << 20

// Config is everything an operator can say. Default has the values of what was
// left out; Defaults is the same as commented YAML.
type Config struct {
	// File is where the config came from; empty if there was none.
	File string `yaml:"-"`
	// Warnings are things in the file that have no effect here, such as keys
	// that only a host understands. They never stop a start.
	Warnings []Error `yaml:"-"`

	Listen string `yaml:"listen,expand"`     // host:port
	State  string `yaml:"state,expand,path"` // folder of journal, token and catalogs

	Log     Log     `yaml:"log"`
	Metrics Metrics `yaml:"metrics"`
	OTel    OTel    `yaml:"otel"`

	Auth Auth `yaml:"auth"`
	CORS CORS `yaml:"cors"`
	// Hosts are values of the Host header that are accepted besides loopback
	// names and the listen address: "name" for any port, or "name:port".
	Hosts []string `yaml:"hosts"`
	// Sessionless serves legacy requests without a session instead of refusing them.
	Sessionless bool `yaml:"allow_sessionless_legacy"`

	Relay           Relay         `yaml:"relay"`
	Beats           Beats         `yaml:"beats"`
	Limits          Limits        `yaml:"limits"`
	OnDisconnect    OnDisconnect  `yaml:"on_disconnect"`
	DisconnectGrace time.Duration `yaml:"disconnect_grace"`

	HandOff      HandOff       `yaml:"hand_off"`
	Attach       Attach        `yaml:"attach"`
	AttachWindow time.Duration `yaml:"attach_window"` // 0: what has ended is never shown again
	StreamAge    time.Duration `yaml:"stream_age"`    // 0: no planned disconnects
	// Clients are what the operator says about agents' hosts, by any name.
	Clients map[string]Client `yaml:"clients"`

	Shell Shell `yaml:"shell"`

	Request  Request  `yaml:"request"`
	Journal  Journal  `yaml:"journal"`
	Shutdown Shutdown `yaml:"shutdown"`
	Reload   Reload   `yaml:"reload"`

	// Servers are the tool servers by name.
	Servers map[string]Server `yaml:"mcpServers"`

	pos     map[string]position // of every key in File, by path
	secrets map[string]string   // variables that values of File were made of, to the key of one of those values
}

// Log says how lifecycle lines are written.
type Log struct {
	Level  Level  `yaml:"level"`
	Format Format `yaml:"format"`
}

// Metrics says whether /metrics is served.
type Metrics struct {
	Enabled bool `yaml:"enabled"`
}

// OTel says where spans go. An empty Endpoint means nowhere.
type OTel struct {
	Endpoint string            `yaml:"endpoint,expand"` // URL of an OTLP/HTTP collector
	Headers  map[string]Secret `yaml:"headers,expand"`
	Sample   float64           `yaml:"sample"` // share of new traces kept, 0 to 1
}

// Auth names further principals. The token in the state folder is always valid
// and belongs to the principal "local", whose entry has scopes alone.
type Auth struct {
	Tokens map[string]Token `yaml:"tokens,expand"` // by principal's name
}

// CORS names the origins of web pages that may call, such as https://app.example.
type CORS struct {
	Origins []string `yaml:"origins"`
}

// Beats are signs of life on a silent call. Zero turns one off.
type Beats struct {
	Comment  time.Duration `yaml:"comment"`  // silence on the wire before an SSE comment
	Progress time.Duration `yaml:"progress"` // silence before a progress message, if the agent sent a token
}

// Limits of calls. Zero means no limit, for every field.
type Limits struct {
	Connect   time.Duration `yaml:"connect"`
	FirstByte time.Duration `yaml:"first_byte"`
	Idle      time.Duration `yaml:"idle"`
	Total     time.Duration `yaml:"total"`
	Answer    time.Duration `yaml:"answer"`
	Message   Size          `yaml:"message"`
	Call      Size          `yaml:"call"`

	Concurrent   int `yaml:"concurrent"`    // calls at once, per server
	PerPrincipal int `yaml:"per_principal"` // calls at once, per principal, over all servers
}

// LimitOverrides are limits of one server or tool; nil means that the level
// above decides.
type LimitOverrides struct {
	Connect   *time.Duration `yaml:"connect"`
	FirstByte *time.Duration `yaml:"first_byte"`
	Idle      *time.Duration `yaml:"idle"`
	Total     *time.Duration `yaml:"total"`
	Answer    *time.Duration `yaml:"answer"`
	Message   *Size          `yaml:"message"`
	Call      *Size          `yaml:"call"`
}

// ServerLimits are the limits of one server. Concurrent counts the calls of a
// whole server, so a tool has none of its own.
type ServerLimits struct {
	LimitOverrides `yaml:",inline"`
	Concurrent     *int `yaml:"concurrent"`
}

// Client is what the operator says about some agents: how patient they are. nil
// leaves what is known of them; zero means no bound.
type Client struct {
	Match       Match          `yaml:"match"` // its Client is the entry's name if nothing else is said
	Budget      *time.Duration `yaml:"budget"`
	BudgetToken *time.Duration `yaml:"budget_token"`
	Tasks       Switch         `yaml:"tasks"` // empty leaves it
	TaskBudget  *time.Duration `yaml:"task_budget"`
	Await       *time.Duration `yaml:"await"`
	AwaitToken  *time.Duration `yaml:"await_token"`
	Yield       *time.Duration `yaml:"yield"` // of commands that say none
}

// Match says whose requests an entry of clients is for: all that is not empty
// must hold.
type Match struct {
	Client    string `yaml:"client"` // the beginning of name/version; "*" for any
	Principal string `yaml:"principal"`
	Server    string `yaml:"server"` // of the endpoint /mcp/NAME
}

// Request bounds what an agent may send.
type Request struct {
	Body    Size `yaml:"body"`
	Headers Size `yaml:"headers"`
}

// Journal says what is kept, how safely and for how long.
type Journal struct {
	Arguments    Arguments `yaml:"arguments"`
	Redact       []string  `yaml:"redact"`        // further words: arguments whose name has one are redacted
	MaxArguments Size      `yaml:"max_arguments"` // bytes kept of one call's arguments
	Sync         Sync      `yaml:"sync"`
	OnFailure    OnFailure `yaml:"on_failure"`
	Retention    Retention `yaml:"retention"`
	Events       Events    `yaml:"events"`
}

// Retention bounds the journal. Zero means no bound of that kind.
type Retention struct {
	Age  time.Duration `yaml:"age"`
	Size Size          `yaml:"size"`
}

// Events bounds what is stored of one call; head and tail are kept.
type Events struct {
	Count int  `yaml:"count"`
	Bytes Size `yaml:"bytes"`
}

// Shutdown says how long running calls may take to end.
type Shutdown struct {
	Drain time.Duration `yaml:"drain"`
}

// Reload says when the file is read again. SIGHUP always does it.
type Reload struct {
	Watch bool `yaml:"watch"`
}

// Server is one tool server. Exactly one of Command and URL is set.
type Server struct {
	Command string            `yaml:"command,expand,path"`
	Args    []string          `yaml:"args,expand"`
	Env     map[string]Secret `yaml:"env,expand"`
	Cwd     string            `yaml:"cwd,expand,path"` // absolute, or empty for our own

	URL     string            `yaml:"url,expand"` // may hold a credential: show Where instead
	Headers map[string]Secret `yaml:"headers,expand"`

	Type     Transport `yaml:"type"` // never empty after Parse
	Disabled bool      `yaml:"disabled"`
	Era      Era       `yaml:"era"`
	Share    Share     `yaml:"share"`

	Limits          ServerLimits   `yaml:"limits"`
	Relay           Relay          `yaml:"relay"`         // empty: the level above decides
	OnDisconnect    OnDisconnect   `yaml:"on_disconnect"` // empty: the level above decides
	DisconnectGrace *time.Duration `yaml:"disconnect_grace"`
	HandOff         HandOff        `yaml:"hand_off"` // empty: the level above decides
	Attach          Attach         `yaml:"attach"`   // empty: the level above decides

	Ping    time.Duration   `yaml:"ping"` // silence after which a server with a running call must prove that it lives
	Restart Restart         `yaml:"restart"`
	Tools   map[string]Tool `yaml:"tools"` // by the server's own name of the tool
	// Extensions are those of the protocol that longcall does not know and lets
	// through: by name, the methods of requests to the server and of notifications
	// in both directions; one that ends in * stands for all that begin so.
	Extensions map[string][]string `yaml:"extensions"`
	Asks       Asks                `yaml:"asks"`
}

// Asks says what a server may ask of the agents whose calls it works on. What is off
// is not declared to it, and refused if it asks all the same.
type Asks struct {
	Elicitation bool `yaml:"elicitation"` // questions to the person
	Sampling    bool `yaml:"sampling"`    // work for the agent's model
	Roots       bool `yaml:"roots"`       // which folders the agent works in
}

// Restart bounds the back-off between two starts of a process.
type Restart struct {
	Min time.Duration `yaml:"min"`
	Max time.Duration `yaml:"max"`
}

// Tool overrides what its server says.
type Tool struct {
	Limits          LimitOverrides `yaml:"limits"`
	Relay           Relay          `yaml:"relay"`
	OnDisconnect    OnDisconnect   `yaml:"on_disconnect"`
	DisconnectGrace *time.Duration `yaml:"disconnect_grace"`
	HandOff         HandOff        `yaml:"hand_off"`
	Attach          Attach         `yaml:"attach"`
	Deny            bool           `yaml:"deny"`
}

// Default is the config of an empty file, for this user.
func Default() *Config { return defaults(os.LookupEnv) }

func defaults(getenv func(string) (string, bool)) *Config {
	return &Config{
		Listen:  "127.0.0.1:8722",
		State:   defaultState(runtime.GOOS, getenv),
		Log:     Log{Level: LevelInfo, Format: FormatText},
		Metrics: Metrics{Enabled: true},
		OTel:    OTel{Sample: 1},
		Relay:   RelayLive,
		Beats:   Beats{Comment: 5 * time.Second, Progress: 10 * time.Second},
		Limits: Limits{
			Connect: 10 * time.Second,
			// Many tools of older servers say nothing at all until they answer
			// with one JSON body, so until then the first byte is the only
			// clock. It must be longer than the patience of any host (10 min at
			// most, HOSTS.md), or we would cut calls that would have succeeded.
			FirstByte: 10 * time.Minute,
			// Silence after a sign of life is another matter: progress, messages
			// and answered pings reset it.
			Idle: 5 * time.Minute,
			// A hard end is required (SPEC §2.4). Two hours hold every plain
			// tool; what takes longer is named by the operator.
			Total: 2 * time.Hour,
			// A person has to see the question first (SPEC §7.8, park_ttl).
			Answer:       5 * time.Minute,
			Message:      16 << 20,
			Call:         64 << 20,
			Concurrent:   1000,
			PerPrincipal: 10000,
		},
		OnDisconnect:    DisconnectAuto,
		DisconnectGrace: 15 * time.Second,
		HandOff:         HandOffAuto,
		Attach:          AttachUndelivered,
		AttachWindow:    10 * time.Minute,
		Shell:           defaultShell(),
		Request:         Request{Body: 4 << 20, Headers: 32 << 10},
		Journal: Journal{
			Arguments:    ArgumentsRedacted,
			MaxArguments: 16 << 10,
			Sync:         SyncNormal,
			OnFailure:    FailureDegrade,
			Retention:    Retention{Age: 30 * 24 * time.Hour, Size: 2 << 30},
			Events:       Events{Count: 10000, Bytes: 16 << 20},
		},
		Shutdown: Shutdown{Drain: 30 * time.Second},
		Reload:   Reload{Watch: true},
		Servers:  map[string]Server{},
	}
}

// DefaultServer has the values of what an entry of mcpServers leaves out.
func DefaultServer() Server {
	return Server{
		Era: EraAuto, Share: SharePrincipal,
		Ping:    30 * time.Second,
		Restart: Restart{Min: 500 * time.Millisecond, Max: 30 * time.Second},
		Asks:    Asks{Elicitation: true, Sampling: true, Roots: true},
	}
}

// defaultState is the user's state folder, or empty if there is no home.
func defaultState(goos string, getenv func(string) (string, bool)) string {
	home, _ := getenv("HOME")
	if goos == "darwin" && home != "" {
		return filepath.Join(home, "Library", "Application Support", "longcall")
	}
	// A relative path there must be ignored, says the XDG specification.
	if xdg, _ := getenv("XDG_STATE_HOME"); filepath.IsAbs(xdg) {
		return filepath.Join(xdg, "longcall")
	}
	if home == "" {
		return ""
	}
	return filepath.Join(home, ".local", "state", "longcall")
}

// Load reads the file, or gives the defaults if path is empty. getenv looks up
// variables; nil means the environment. The error is an Errors: everything that
// is wrong, one line each.
func Load(path string, getenv func(string) (string, bool)) (*Config, error) {
	if path == "" {
		if getenv == nil {
			getenv = os.LookupEnv
		}
		c := defaults(getenv)
		return c, c.Check()
	}
	data, err := read(path)
	if err != nil {
		return nil, Errors{{File: path, Text: "cannot read the config: " + reason(err), Hint: "name a file that this user can read, or leave out --config"}}
	}
	return Parse(data, path, getenv)
}

func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("it is larger than %d MiB", maxFile>>20)
	}
	return data, err
}

// reason is a file error without the path, which the line has already.
func reason(err error) string {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err.Error()
	}
	return err.Error()
}

// Parse reads a config from memory. filename is for messages, tells JSON by its
// ending, and its folder is what relative paths start from (for a host's file in
// a folder such as .vscode, the folder above). The error is an
// Errors.
func Parse(data []byte, filename string, getenv func(string) (string, bool)) (*Config, error) {
	if getenv == nil {
		getenv = os.LookupEnv
	}
	root, host, err := parseTree(data, filename)
	if err != nil {
		return nil, Errors{*err}
	}
	d := &decoder{file: filename, host: host, getenv: getenv, pos: map[string]position{}, secrets: map[string]string{}}
	c := defaults(getenv)
	c.File = filename
	d.config(root, c)
	c.Warnings, c.pos, c.secrets = d.warnings, d.pos, d.secrets
	// What could not be decoded has its default, so the rest can be checked too:
	// an operator wants to hear of everything at once.
	var errs Errors
	if errors.As(c.Check(), &errs) {
		d.errs = append(d.errs, errs...)
	}
	if len(d.errs) > 0 {
		sortErrors(d.errs)
		return nil, d.errs
	}
	sortErrors(c.Warnings)
	return c, nil
}

// Enabled are the names of the servers that are not disabled, sorted.
func (c *Config) Enabled() []string {
	names := slices.Sorted(maps.Keys(c.Servers))
	return slices.DeleteFunc(names, func(n string) bool { return c.Servers[n].Disabled })
}

// TokenValues are the configured tokens by principal, in the clear.
func (a Auth) TokenValues() map[string]string {
	m := make(map[string]string, len(a.Tokens))
	for name, t := range a.Tokens {
		if t.Token != "" {
			m[name] = t.Token.Reveal()
		}
	}
	return m
}

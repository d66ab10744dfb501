package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// entry is what a client needs to know to connect.
type entry struct {
	url  string
	name string // of the entry in the client
	auth bool   // a token is asked for
	// token is written into the entry. Without it, the entry takes the token
	// from where tokenFile is read, or from $LONGCALL_TOKEN.
	token     string
	tokenFile string
}

// header is the value of Authorization, given how the client names variables.
func (e *entry) header(variable string) string {
	if e.token != "" {
		return "Bearer " + e.token
	}
	return "Bearer " + variable
}

// export is the shell line that sets the variable that the entry uses.
func (e *entry) export() string {
	if !e.auth || e.token != "" {
		return ""
	}
	return `export LONGCALL_TOKEN="$(cat ` + shellQuote(e.tokenFile) + `)"`
}

// clientEntry is one client that longcall knows how to connect.
type clientEntry struct {
	Name  string // on our command line
	Title string
	parts func(e *entry) []snippet
}

// snippet is one thing to paste.
type snippet struct {
	Where string `json:"where"` // a file, or what to do with it
	Text  string `json:"text"`
}

var clients = []clientEntry{
	{"claude-code", "Claude Code", claudeCode},
	{"codex", "Codex", codex},
	{"vscode", "VS Code", vsCode},
	{"cursor", "Cursor", cursor},
	{"generic", "any other client with an mcpServers file", generic},
}

// remote is an entry for a server over HTTP, in the order that people write it.
type remote struct {
	Type    string            `json:"type,omitempty"`
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers,omitempty"`
}

func (e *entry) remote(typ, variable string) map[string]remote {
	r := remote{Type: typ, URL: e.url}
	if e.auth {
		r.Headers = map[string]string{"Authorization": e.header(variable)}
	}
	return map[string]remote{e.name: r}
}

func indented(v any) string {
	var b strings.Builder
	if err := printJSON(&b, v); err != nil {
		return "" // maps of strings always encode
	}
	return strings.TrimSpace(b.String())
}

func claudeCode(e *entry) []snippet {
	cmd := "claude mcp add --transport http " + e.name + " " + shellQuote(e.url)
	if e.auth {
		value := `"Authorization: ` + e.header("$(cat "+shellQuote(e.tokenFile)+")") + `"`
		cmd += " \\\n  --header " + value
	}
	return []snippet{
		{"run this", cmd},
		{"or in .mcp.json of a project", indented(map[string]any{"mcpServers": e.remote("http", "${LONGCALL_TOKEN}")})},
	}
}

func codex(e *entry) []snippet {
	var b strings.Builder
	fmt.Fprintf(&b, "[mcp_servers.%s]\nurl = %s\n", e.name, tomlString(e.url))
	switch {
	case e.auth && e.token != "":
		fmt.Fprintf(&b, "http_headers = { Authorization = %s }\n", tomlString(e.header("")))
	case e.auth:
		b.WriteString("bearer_token_env_var = \"LONGCALL_TOKEN\"\n")
	}
	// Codex ends every call after 300 s, whatever it hears (HOSTS.md).
	b.WriteString("tool_timeout_sec = 7200")
	return []snippet{{"~/.codex/config.toml", b.String()}}
}

func vsCode(e *entry) []snippet {
	v := struct {
		Servers map[string]remote   `json:"servers"`
		Inputs  []map[string]string `json:"-"`
	}{Servers: e.remote("http", "${input:longcall-token}")}
	if !e.auth || e.token != "" {
		return []snippet{{".vscode/mcp.json", indented(v)}}
	}
	type input struct {
		Type        string `json:"type"`
		ID          string `json:"id"`
		Description string `json:"description"`
		Password    bool   `json:"password"`
	}
	return []snippet{{".vscode/mcp.json", indented(struct {
		Inputs  []input           `json:"inputs"`
		Servers map[string]remote `json:"servers"`
	}{
		[]input{{"promptString", "longcall-token", "longcall's token, from " + e.tokenFile, true}},
		v.Servers,
	})}}
}

func cursor(e *entry) []snippet {
	return []snippet{{"~/.cursor/mcp.json", indented(map[string]any{"mcpServers": e.remote("", "${env:LONGCALL_TOKEN}")})}}
}

func generic(e *entry) []snippet {
	return []snippet{{"its mcpServers file", indented(map[string]any{"mcpServers": e.remote("http", "${LONGCALL_TOKEN}")})}}
}

// tomlString is a TOML basic string; what JSON escapes, TOML escapes alike.
func tomlString(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

// shellQuote is s as one word of a POSIX shell, also inside "$( )".
func shellQuote(s string) string {
	safe := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-:@%+,=", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !safe(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

func printEntry(w io.Writer, c clientEntry, e entry, bold func(string) string) {
	for i, s := range c.parts(&e) {
		if i == 0 {
			fmt.Fprintf(w, "%s: %s\n", bold(c.Title), s.Where)
		} else {
			fmt.Fprintln(w, s.Where)
		}
		if needsExport(s.Text) {
			fmt.Fprintln(w, "  # before you start it: "+e.export())
		}
		for line := range strings.SplitSeq(s.Text, "\n") {
			fmt.Fprintln(w, "  "+line)
		}
		fmt.Fprintln(w)
	}
}

func needsExport(text string) bool { return strings.Contains(text, "LONGCALL_TOKEN") }

type clientsCmd struct {
	whereFlags
	Client string `arg:"" optional:"" name:"client" help:"claude-code, codex, vscode, cursor or generic. Default: all."`
	Server string `placeholder:"NAME" help:"Connect to this one tool server, with its tools' own names."`
	Env    bool   `help:"Write $LONGCALL_TOKEN and the token's file in place of the token."`
	JSON   bool   `name:"json" help:"Print a list of snippets as JSON."`
}

// Help has the details and examples.
func (clientsCmd) Help() string {
	return `The token itself is in what this prints; --env leaves it out.

Examples:
  longcall clients
  longcall clients codex
  longcall clients cursor --server files --env`
}

// Run is the command.
func (c *clientsCmd) Run(r *runner) error {
	chosen := clients
	if c.Client != "" {
		chosen = nil
		var names []string
		for _, k := range clients {
			names = append(names, k.Name)
			if k.Name == c.Client {
				chosen = []clientEntry{k}
			}
		}
		if chosen == nil {
			return usage("no client is called %q here; there are %s", c.Client, strings.Join(names, ", "))
		}
	}
	cfg, err := c.load(r.sys)
	if err != nil {
		return err
	}
	g, err := c.running(r.ctx, r.sys)
	if err != nil {
		return err
	}
	e := entry{name: "longcall", url: "http://" + cfg.Listen, token: c.Token}
	if g != nil {
		e.url, e.token = g.url, g.token
	} else if e.token == "" {
		e.token = readToken(cfg.State)
	}
	// Before the first start there is no token yet, and there will be one.
	e.auth = e.token != "" || g == nil
	e.url += "/mcp"
	if c.Server != "" {
		e.url, e.name = e.url+"/"+c.Server, c.Server
	}
	e.tokenFile = tokenPath(cfg.State)
	if c.Env {
		e.token = ""
	}
	if c.JSON {
		type one struct {
			Client string `json:"client"`
			Title  string `json:"title"`
			snippet
		}
		list := []one{}
		for _, k := range chosen {
			for _, s := range k.parts(&e) {
				list = append(list, one{k.Name, k.Title, s})
			}
		}
		return printJSON(r.sys.Out, list)
	}
	bold := func(s string) string {
		if !r.sys.OutTerminal {
			return s
		}
		return r.sys.style("1", s)
	}
	for _, k := range chosen {
		printEntry(r.sys.Out, k, e, bold)
	}
	return nil
}

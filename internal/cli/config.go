package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/longcall/longcall/internal/config"
)

type configCmd struct {
	Defaults bool `help:"Print every key with its default, commented."`

	Check configCheckCmd    `cmd:"" help:"Say what is wrong in a config file, with lines."`
	Print configDefaultsCmd `cmd:"" name:"defaults" help:"Print every key with its default, commented."`
	None  configNoneCmd     `cmd:"" name:"none" hidden:"" default:"1"`
}

// Help has the details and examples.
func (configCmd) Help() string {
	return `Examples:
  longcall config check longcall.yaml
  longcall config --defaults > longcall.yaml`
}

type configDefaultsCmd struct{}

// Help has the details and examples.
func (configDefaultsCmd) Help() string {
	return `Examples:
  longcall config defaults > longcall.yaml`
}

// Run is the command.
func (configDefaultsCmd) Run(r *runner) error {
	_, err := fmt.Fprint(r.sys.Out, config.Defaults())
	return err
}

// configNoneCmd is "longcall config" without a command.
type configNoneCmd struct{}

// Run is the command.
func (configNoneCmd) Run(r *runner, g *grammar) error {
	if g.Config.Defaults {
		return configDefaultsCmd{}.Run(r)
	}
	return usage("config needs a command: check, defaults; see longcall config --help")
}

type configCheckCmd struct {
	File string `arg:"" optional:"" help:"The file. Default: the one that serve would read."`
	JSON bool   `name:"json" help:"Print what is wrong as JSON."`
}

// Help has the details and examples.
func (configCheckCmd) Help() string {
	return `Every line says file:line:column: key: what is wrong; what to do. Nothing is
started and nothing is contacted. Exit codes: 0 good, 2 not.

Examples:
  longcall config check
  longcall config check ~/.cursor/mcp.json
  longcall config check longcall.yaml --json`
}

// finding is one thing that config check found.
type finding struct {
	Level string `json:"level"` // error or warning
	File  string `json:"file"`
	Line  int    `json:"line,omitempty"`
	Col   int    `json:"column,omitempty"`
	Key   string `json:"key,omitempty"`
	Text  string `json:"text"`
	Hint  string `json:"hint,omitempty"`
}

func findings(level string, list []config.Error) []finding {
	out := make([]finding, 0, len(list))
	for _, e := range list {
		out = append(out, finding{level, e.File, e.Line, e.Col, e.Key, e.Text, e.Hint})
	}
	return out
}

// Run is the command.
func (c *configCheckCmd) Run(r *runner) error {
	file := c.File
	if file == "" {
		flags := stateFlags{}
		if env, ok := r.sys.LookupEnv("LONGCALL_CONFIG"); ok {
			flags.Config = env
		}
		if file = flags.file(r.sys); file == "" {
			return usage("there is no config file: name one. Without any, the defaults hold (longcall config defaults)")
		}
	}
	cfg, err := config.Load(file, r.sys.LookupEnv)
	if err != nil {
		var errs config.Errors
		if !c.JSON || !errors.As(err, &errs) {
			return err
		}
		if err := printJSON(r.sys.Out, findings("error", errs)); err != nil {
			return err
		}
		return &exitError{code: exitUsage}
	}
	if c.JSON {
		return printJSON(r.sys.Out, findings("warning", cfg.Warnings))
	}
	for _, w := range cfg.Warnings {
		fmt.Fprintln(r.sys.Err, "warning: "+clean(w.Error()))
	}
	names := cfg.Enabled()
	switch len(names) {
	case 0:
		fmt.Fprintf(r.sys.Out, "%s is good; it has no tool server\n", clean(file))
	case 1:
		fmt.Fprintf(r.sys.Out, "%s is good; its tool server is %s\n", clean(file), clean(names[0]))
	default:
		fmt.Fprintf(r.sys.Out, "%s is good; its %d tool servers are %s\n", clean(file), len(names), clean(strings.Join(names, ", ")))
	}
	return nil
}

package cli

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/longcall/longcall/internal/cli/client"
)

type toolsCmd struct {
	whereFlags
	Server string `arg:"" optional:"" help:"Only the tools of this server, with their own names."`
	JSON   bool   `name:"json" help:"Print the entries as JSON, as the servers give them."`
}

// Help has the details and examples.
func (toolsCmd) Help() string {
	return `Arguments that a tool requires come first; those with ? may be left out.

Examples:
  longcall tools
  longcall tools files
  longcall tools --json | jq '.[].name'`
}

// Run is the command.
func (c *toolsCmd) Run(r *runner) error {
	g, err := c.connect(r.ctx, r.sys)
	if err != nil {
		return err
	}
	defer g.stop()
	tools, err := g.endpoint(c.Server).Tools(r.ctx)
	if err != nil {
		return wireError(err)
	}
	if c.JSON {
		list := make([]json.RawMessage, len(tools))
		for i, t := range tools {
			list[i] = t.Raw
		}
		return printJSON(r.sys.Out, list)
	}
	if len(tools) == 0 {
		fmt.Fprintln(r.sys.Err, "no tools: the servers have none, or could not be reached; the log of longcall serve says why")
		return nil
	}
	rows := make([][]string, len(tools))
	for i, t := range tools {
		rows[i] = []string{clean(t.Name) + "(" + signature(t) + ")", clean(firstSentence(t.Description))}
	}
	width := 0
	if r.sys.OutTerminal {
		width = r.sys.width()
		for _, row := range rows {
			row[0] = cut(row[0], max(width*3/5, 30))
		}
	}
	table(r.sys.Out, width, []string{"TOOL", "WHAT IT DOES"}, rows)
	return nil
}

// signature lists a tool's arguments.
func signature(t client.Tool) string {
	s := readSchema(t.InputSchema, t.InputSchema)
	var must, may []string
	for name := range s.Properties {
		if slices.Contains(s.Required, name) {
			must = append(must, clean(name))
		} else {
			may = append(may, clean(name)+"?")
		}
	}
	slices.Sort(must)
	slices.Sort(may)
	return strings.Join(append(must, may...), ", ")
}

// firstSentence is enough of a description to choose by.
func firstSentence(s string) string {
	s = strings.TrimSpace(s)
	if i := strings.IndexByte(s, '\n'); i >= 0 {
		s = s[:i]
	}
	if i := strings.Index(s, ". "); i >= 0 {
		s = s[:i+1]
	}
	return s
}

package cli

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/alecthomas/kong"
)

// helpPrinter is kong's, with the detail of a command (its examples) last,
// where people look for it.
func helpPrinter(options kong.HelpOptions, ctx *kong.Context) error {
	node := ctx.Selected()
	if node == nil {
		// "longcall calls --help" selects nothing, but means calls.
		if p := ctx.Path; len(p) > 0 && p[len(p)-1].Command != nil {
			node = p[len(p)-1].Command
		}
	}
	var detail string
	if node != nil {
		detail, node.Detail = node.Detail, ""
		defer func() { node.Detail = detail }()
	}
	// What kong calls the words of "call" says little.
	out := ctx.Stdout
	var b bytes.Buffer
	ctx.Stdout = &b
	err := kong.DefaultHelpPrinter(options, ctx)
	ctx.Stdout = out
	if err != nil {
		return err
	}
	fmt.Fprint(out, strings.Replace(b.String(), "call <tool> ... [flags]", "call [SERVER] TOOL [ARGS] [flags]", 1))
	if detail != "" {
		fmt.Fprintf(ctx.Stdout, "\n%s\n", strings.TrimSpace(detail))
	}
	return nil
}

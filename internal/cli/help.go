package cli

import (
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
	if err := kong.DefaultHelpPrinter(options, ctx); err != nil {
		return err
	}
	if detail != "" {
		fmt.Fprintf(ctx.Stdout, "\n%s\n", strings.TrimSpace(detail))
	}
	return nil
}

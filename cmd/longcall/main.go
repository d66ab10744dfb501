// Command longcall keeps long MCP tool calls alive.
package main

import (
	"context"
	"os"

	"github.com/longcall/longcall/internal/cli"
)

func main() {
	os.Exit(cli.Main(context.Background(), cli.OS(), os.Args[1:]))
}

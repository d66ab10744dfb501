package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/longcall/longcall/internal/mcp"
)

// version is set by the linker for releases: -X .../internal/cli.version=1.2.3
var version string

// build says what this binary is.
type build struct {
	Version   string   `json:"version"`
	Commit    string   `json:"commit,omitempty"`
	Modified  bool     `json:"modified,omitempty"` // built from a tree with changes
	Go        string   `json:"go"`
	Platform  string   `json:"platform"`
	Protocols []string `json:"protocols"`
}

func buildVersion() build {
	b := build{
		Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
		Protocols: append(append([]string{}, mcp.ModernVersions...), mcp.LegacyVersions...),
	}
	info, ok := debug.ReadBuildInfo()
	if ok {
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Commit = s.Value
			case "vcs.modified":
				b.Modified = s.Value == "true"
			}
		}
		if b.Version == "" && info.Main.Version != "(devel)" {
			b.Version = strings.TrimPrefix(info.Main.Version, "v")
		}
	}
	if b.Version == "" {
		b.Version = "dev"
	}
	return b
}

type versionCmd struct {
	JSON bool `name:"json" help:"Print it as JSON."`
}

// Help has the details and examples.
func (versionCmd) Help() string {
	return `Examples:
  longcall version
  longcall version --json`
}

// Run is the command.
func (c *versionCmd) Run(r *runner) error {
	b := buildVersion()
	if c.JSON {
		return printJSON(r.sys.Out, b)
	}
	fmt.Fprintf(r.sys.Out, "longcall %s\n", b.Version)
	if b.Commit != "" {
		changed := ""
		if b.Modified {
			changed = ", with changes"
		}
		fmt.Fprintf(r.sys.Out, "commit %s%s\n", b.Commit, changed)
	}
	fmt.Fprintf(r.sys.Out, "%s %s\n", b.Go, b.Platform)
	fmt.Fprintf(r.sys.Out, "MCP %s\n", strings.Join(b.Protocols, ", "))
	return nil
}

package cli

import (
	"errors"
	"testing"
)

// A name is in logs and records: no script and no setting gets in there.
func TestNameOf(t *testing.T) {
	for want, command := range map[string][]string{
		"server-files": {"npx", "-y", "@scope/server-files@1.2"}, "sh": {"sh", "-c", "server --key s3cret"},
		"env": {"env", "KEY=s3cret"}, "tool": {"/opt/tool.exe", "s3cret"},
	} {
		if got := nameOf(command); got != want {
			t.Errorf("%q is called %q, not %q", command, got, want)
		}
	}
}

// Why a serve did not come up is what it said last, or how it ended.
func TestLastLine(t *testing.T) {
	for _, c := range []struct {
		said string
		how  error
		want string
	}{
		{"a\nlongcall: the port is in use\n", errors.New("exit status 1"), "the port is in use"},
		{"\n", errors.New("signal: killed"), "it said nothing and ended with signal: killed"},
		{"", nil, "it ended and said nothing"},
	} {
		if got := lastLine(c.said, c.how); got != c.want {
			t.Errorf("%q, not %q", got, c.want)
		}
	}
}

package upstream

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// A longcall that dies without a word takes its tool servers with it, also one
// that does not care about the end of its input.
func TestProcessDiesWithUs(t *testing.T) {
	parent := exec.Command(os.Args[0])
	parent.Env = []string{childFlags + "=parent"}
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	_, err = fmt.Fscan(out, &pid)
	parent.Process.Kill()
	parent.Wait()
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the tool server is gone", func() bool { return !alive(pid) })
}

//go:build linux

package tools

import (
	"fmt"
	"os"
	"strings"
	"syscall"
)

// killShim kills the shim of a process as kill -9 does: it is the command's parent.
func (r *rig) killShim(pid int) {
	r.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	r.must(err)
	var self, parent int
	var name, state string
	_, err = fmt.Sscanf(string(stat), "%d %s %s %d", &self, &name, &state, &parent)
	r.must(err)
	if parent <= 1 || parent == os.Getpid() {
		r.Fatalf("the parent of %d is %d: no shim", pid, parent)
	}
	r.must(syscall.Kill(parent, syscall.SIGKILL))
	r.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) }) // what outlived its shim
}

// alive says whether a process runs; one that nobody has reaped does not.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

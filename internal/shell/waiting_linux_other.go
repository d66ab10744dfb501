//go:build linux && !amd64

package shell

const (
	sysSelect = -1
	sysPoll   = -1
)

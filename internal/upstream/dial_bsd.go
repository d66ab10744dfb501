//go:build unix && !linux

package upstream

const ioctlPending = 0x4004667f // FIONREAD, the same on macOS and the BSDs

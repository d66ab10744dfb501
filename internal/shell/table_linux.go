package shell

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
)

// Caveat is what this system cannot do for commands, for the output of tools
// (SHELL §3); empty if there is nothing to say.
const Caveat = ""

var bootID = sync.OnceValue(func() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return string(bytes.TrimSpace(b))
})

// readTable is the process table now. Processes that end while it is read may
// be in it or not.
func readTable() ([]entry, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var table []entry
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			if e, err := readEntry(pid); err == nil {
				table = append(table, e)
			}
		}
	}
	return table, nil
}

// readEntry reads one process, also one that waits to be reaped.
func readEntry(pid int) (entry, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return entry{}, err
	}
	// The name, in parentheses, may hold anything, parentheses too.
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 20 {
		return entry{}, errors.New("a line of the process table is cut short")
	}
	num := func(i int) int { n, _ := strconv.Atoi(string(f[i])); return n }
	start, err := strconv.ParseUint(string(f[19]), 10, 64)
	if err != nil {
		return entry{}, err
	}
	return entry{
		pid: pid, parent: num(1), group: num(2), session: num(3), start: start,
		zombie: f[0][0] == 'Z' || f[0][0] == 'X',
	}, nil
}

package shell

import (
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Caveat is what this system cannot do for commands, for the output of tools
// (SHELL §3); empty if there is nothing to say.
const Caveat = "On macOS longcall finds what a command started by its process group and session only: a process that left both (setsid, a daemon) is neither counted nor stopped. Whether a command waits for input is not known here."

const zombieState = 5 // SZOMB of sys/proc.h

var bootID = sync.OnceValue(func() string {
	id, _ := unix.Sysctl("kern.bootsessionuuid")
	return id
})

// readTable is the process table now, of this user's processes.
func readTable() ([]entry, error) {
	list, err := unix.SysctlKinfoProcSlice("kern.proc.uid", syscall.Getuid())
	if err != nil {
		return nil, err
	}
	table := make([]entry, 0, len(list))
	for i := range list {
		table = append(table, kinfoEntry(&list[i]))
	}
	return table, nil
}

func readEntry(pid int) (entry, error) {
	k, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err != nil {
		return entry{}, err
	}
	return kinfoEntry(k), nil
}

func kinfoEntry(k *unix.KinfoProc) entry {
	e := entry{
		pid: int(k.Proc.P_pid), parent: int(k.Eproc.Ppid), group: int(k.Eproc.Pgid),
		start:  uint64(k.Proc.P_starttime.Sec)*1e6 + uint64(k.Proc.P_starttime.Usec),
		zombie: k.Proc.P_stat == zombieState,
	}
	e.session, _ = unix.Getsid(e.pid)
	return e
}

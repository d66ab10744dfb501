package shell

import "slices"

// Identity is one process for all time: a process id is given away again, its
// time of start is not, and neither counts beyond a boot (SHELL §3).
type Identity struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start_ticks"` // in a unit of the system's; only compared
	Boot  string `json:"boot_id"`
}

// entry is one line of the process table.
type entry struct {
	pid, parent, group, session int
	start                       uint64
	zombie                      bool
}

func (e *entry) identity() Identity { return Identity{PID: e.pid, Start: e.start, Boot: bootID()} }

// tree is all that lives below the roots, and in the session of leader, and
// below that. The roots themselves and those that only wait to be reaped are
// left out. With a leader that is no longer in the table, its session counts
// still: its number is given away again only when nobody has it.
func tree(table []entry, leader Identity, roots ...int) []entry {
	children := map[int][]int{} // parent to positions
	sameSession := leader.PID > 0
	for i := range table {
		e := &table[i]
		children[e.parent] = append(children[e.parent], i)
		if e.pid == leader.PID && e.start != leader.Start {
			sameSession = false // the number belongs to somebody else
		}
	}
	seen := map[int]bool{}
	var found []entry
	var walk func(pid int)
	add := func(i int) {
		e := table[i]
		if seen[e.pid] || slices.Contains(roots, e.pid) {
			return
		}
		seen[e.pid] = true
		if !e.zombie {
			found = append(found, e)
		}
		walk(e.pid)
	}
	walk = func(pid int) {
		for _, i := range children[pid] {
			add(i)
		}
	}
	for _, pid := range roots {
		walk(pid)
	}
	if sameSession {
		for i := range table {
			if table[i].session == leader.PID || table[i].pid == leader.PID {
				add(i)
			}
		}
	}
	return found
}

func pids(list []entry) []int {
	var out []int
	for i := range list {
		out = append(out, list[i].pid)
	}
	slices.Sort(out)
	return out
}

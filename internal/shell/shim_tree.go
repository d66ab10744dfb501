//go:build linux || darwin

package shell

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// treeLook is how often the process table is looked at for what a command left
// behind, where there is no subreaper.
const treeLook = time.Second

// reap gives back the ids of all children, and is the only one to do so. A
// subreaper has no child left when the whole tree has ended, and not before.
func (s *shim) reap() {
	for awaitChild(s.leader.PID) {
		s.kids.Lock()
		s.reapAll(unix.WNOHANG)
		s.kids.Unlock()
	}
	if !s.reaped { // the system does not say when: be told by the wait itself
		s.reapAll(0)
	}
	for !isReaper {
		if left, err := s.tree(); err != nil || len(left) == 0 {
			break
		}
		time.Sleep(treeLook)
	}
	close(s.treeGone)
}

func (s *shim) reapAll(options int) {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, options, nil)
		switch {
		case err == unix.EINTR:
		case err != nil || pid <= 0:
			return
		case pid == s.leader.PID && !s.reaped:
			s.reaped = true
			s.leaderEnded <- status
		}
	}
}

// tree is what lives of the command: all below us, and its session.
func (s *shim) tree() ([]entry, error) {
	table, err := readTable()
	if err != nil {
		return nil, err
	}
	return tree(table, s.leader, os.Getpid()), nil
}

// signal signals the command's group at once, so that a shell does not see its
// children die one by one, and then what is not in it.
func (s *shim) signal(list []entry, sig syscall.Signal) {
	s.kids.Lock()
	group := !s.reaped && unix.Kill(-s.leader.PID, sig) == nil
	s.kids.Unlock()
	for i := range list {
		if !group || list[i].group != s.leader.PID {
			_ = signalExact(list[i].identity(), sig)
		}
	}
}

// stop ends the whole tree, and returns when that is done and recorded.
func (s *shim) stop(sig syscall.Signal, grace time.Duration, by string) {
	s.mu.Lock()
	if s.by == "" && !s.snap.State.Final() {
		s.by = by
	}
	s.mu.Unlock()
	rest, err := stopAll(sig, grace, stopper{list: s.tree, signal: s.signal, gone: s.treeGone, blind: !isReaper})
	if !containsPID(rest, s.leader.PID) && err == nil {
		<-s.recorded
	}
	if survivors := pids(rest); len(survivors) > 0 || err != nil {
		s.change(func(n *snapshot) {
			n.Survivors = survivors
			if err != nil {
				n.Error = "what the command started could not be found: " + err.Error()
			}
		})
	}
}

func containsPID(list []entry, pid int) bool {
	for i := range list {
		if list[i].pid == pid {
			return true
		}
	}
	return false
}

// timeIsUp stops the command because it ran for its Timeout.
func (s *shim) timeIsUp() {
	s.mu.Lock()
	s.overtime = s.by == "" && !s.snap.State.Final()
	mine := s.overtime
	s.mu.Unlock()
	if mine {
		s.stop(unix.SIGTERM, s.spec.Grace, "")
	}
}

// obey is for who ends supervisors: what stops all processes of a service, or
// of the machine. The command is stopped with us, and that is known.
func (s *shim) obey(caught <-chan os.Signal) {
	for sig := range caught {
		if sig == unix.SIGTERM {
			s.stop(unix.SIGTERM, s.spec.Grace, "a SIGTERM to its supervisor")
		}
	}
}

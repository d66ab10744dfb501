//go:build linux || darwin

package shell

import (
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longcall/longcall/internal/shell/spool"
)

const (
	// drainMost bounds how long the end of the leader waits for the output that
	// it left in the pipe (SHELL §7: reported within 300 ms).
	drainMost = 200 * time.Millisecond
	// lingerMost bounds how long a shim stays for what a command left behind:
	// until then it counts its processes and keeps their output.
	lingerMost = 7 * 24 * time.Hour
	// farewell bounds how long a shim waits for its listeners to take the end.
	farewell = time.Second
)

// Files that a shim gets from its Manager.
const (
	firstListenerFD = 3 // a subscription
	lockFD          = 4 // holds the folder's lock; never used
)

// shim is the supervisor of one command, in a process of its own, which ends
// all that it started when it ends.
type shim struct {
	dir  string
	spec specification

	spool  *spool.Writer
	output *outputReader
	input  *inputWriter

	leader      Identity
	leaderEnded chan syscall.WaitStatus // gets one value
	recorded    chan struct{}           // closed when the end of the leader is
	treeGone    chan struct{}           // closed when no descendant is left
	served      sync.WaitGroup          // what somebody at the other end waits for

	kids   sync.Mutex // held while a child's id is given back, and while its group is signalled
	reaped bool       // the leader's id is no longer ours

	mu       sync.Mutex
	snap     snapshot
	overtime bool          // it is stopped because its time is over
	by       string        // who asked for a stop first
	news     chan struct{} // closed at the next change
	state    chan struct{} // closed at the next change that is not output
}

// Shim is the main of the hidden subcommand: it runs the command of the folder
// that it is given, and stays until that and all that it started have ended. It
// returns the exit code of the shim, which nobody looks at.
func Shim(args []string) int {
	if len(args) != 1 {
		fmt.Fprintln(os.Stderr, "longcall: this command is for longcall itself")
		return 2
	}
	if err := runShim(args[0]); err != nil {
		fmt.Fprintln(os.Stderr, "longcall: supervisor:", err)
		return 1
	}
	return 0
}

func runShim(dir string) error {
	defer time.AfterFunc(time.Second, debug.FreeOSMemory).Stop() // what starting took
	syscall.CloseOnExec(firstListenerFD)
	syscall.CloseOnExec(lockFD)
	first, err := net.FileConn(os.NewFile(firstListenerFD, "listener"))
	if err != nil {
		return err
	}
	s := &shim{
		dir: dir, leaderEnded: make(chan syscall.WaitStatus, 1), recorded: make(chan struct{}), treeGone: make(chan struct{}),
		news: make(chan struct{}), state: make(chan struct{}), snap: snapshot{State: Starting, ExitCode: -1, Started: time.Now()},
	}
	s.served.Go(func() { s.tell(first) })
	defer s.leave()
	// What is ignored here would be ignored by the command, too, and what is
	// caught has its default there: catch all. Only TERM means something.
	hearAll()
	caught := make(chan os.Signal, 8)
	signal.Notify(caught, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGPIPE, unix.SIGUSR1, unix.SIGUSR2,
		unix.SIGALRM, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU, unix.SIGWINCH)
	if err := s.start(); err != nil {
		s.fail(err)
		return nil
	}
	listener, err := net.Listen("unix", ctlFile) // relative, because the folder's path may be too long
	if err == nil {
		defer listener.Close()
		err = os.Chmod(ctlFile, 0o600)
		go s.serve(listener)
	}
	s.change(func(n *snapshot) {
		n.State, n.PID = Running, s.leader.PID
		if err != nil {
			n.Error = "longcall will lose sight of the command when it restarts: " + err.Error()
		}
	})
	go s.reap()
	go s.output.run(s.printed)
	go s.input.run()
	go s.obey(caught)
	if s.spec.Timeout > 0 {
		defer time.AfterFunc(s.spec.Timeout, s.timeIsUp).Stop()
	}
	s.supervise()
	return nil
}

// leave waits, a moment, until those who listen have got the end.
func (s *shim) leave() {
	gone := make(chan struct{})
	go func() {
		s.served.Wait()
		close(gone)
	}()
	select {
	case <-gone:
	case <-time.After(farewell):
	}
}

// start opens what the command needs, and starts it.
func (s *shim) start() error {
	if err := becomeReaper(); err != nil {
		return err
	}
	if ok, err := load(s.dir, specFile, &s.spec); !ok {
		return fmt.Errorf("the command cannot be read: %w", err)
	}
	m := meta{Control: controlVersion, Started: s.snap.Started}
	if self, err := readEntry(os.Getpid()); err == nil {
		m.Shim = self.identity()
	}
	// From here on the command may run: without this file it never did.
	if err := store(s.dir, metaFile, m, false); err != nil {
		return err
	}
	var err error
	if s.spool, err = spool.Create(s.dir, s.spec.Caps); err != nil {
		return err
	}
	pid, err := s.startCommand()
	if err != nil {
		return err
	}
	s.leader = Identity{PID: pid}
	if e, err := readEntry(pid); err == nil { // it is there until it is reaped
		s.leader = e.identity()
	}
	m.Leader = s.leader
	if err := store(s.dir, metaFile, m, false); err != nil {
		s.snap.Error = "longcall will lose sight of the command when it restarts: " + err.Error()
	}
	return nil
}

// fail records that there is no command.
func (s *shim) fail(err error) {
	s.record(func(n *snapshot) {
		n.State, n.Ended, n.Error = StartFailed, time.Now(), err.Error()
		n.TreeEnded = n.Ended
	})
}

// supervise follows the command to the end of its tree. The end of the leader
// is what wait says, never the end of its output, which others may hold open.
func (s *shim) supervise() {
	status := <-s.leaderEnded
	ended := time.Now()
	s.output.drain(drainMost)
	left := s.leftBehind()
	alone := len(left) == 0 && s.output.ended()
	if alone {
		s.spool.Close()
	}
	s.record(func(n *snapshot) {
		n.Ended, n.Descendants, n.StoppedBy = ended, len(left), s.by
		if status.Signaled() {
			n.State, n.Signal = Signaled, signalName(status.Signal())
		} else {
			n.State, n.ExitCode = Exited, status.ExitStatus()
		}
		switch {
		case s.overtime:
			n.State = TimedOut
		case s.by != "":
			n.State = Stopped
		}
		if alone {
			n.TreeEnded = ended
		}
	})
	close(s.recorded)
	if alone {
		return
	}
	linger := time.NewTimer(lingerMost)
	defer linger.Stop()
	select {
	case <-s.treeGone:
		// Whoever holds the output open now is none of ours, or got away where
		// there is no subreaper.
		select {
		case <-s.output.done:
		case <-linger.C:
		}
	case <-linger.C:
	}
	s.spool.Close()
	s.record(func(n *snapshot) { n.TreeEnded = time.Now() })
}

// change tells the listeners that something is new.
func (s *shim) change(f func(*snapshot)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.snap)
	s.told()
}

func (s *shim) told() {
	close(s.news)
	close(s.state)
	s.news, s.state = make(chan struct{}), make(chan struct{})
}

// leftBehind is what still lives of the tree when its leader has ended. A subreaper
// knows by its children that there is nothing; only else is the process table read,
// which costs a tenth of a millisecond per process of the machine. What is just
// ending, too, is not left behind.
func (s *shim) leftBehind() []entry {
	select {
	case <-s.treeGone:
		return nil
	case <-time.After(quietTime):
	}
	left, _ := s.tree()
	return left
}

// record stores an end, and only then tells it: whoever is killed from then on, it
// is known. That it survives a power cut, too, is not waited for.
func (s *shim) record(f func(*snapshot)) {
	s.mu.Lock()
	n := s.snap
	f(&n)
	err := store(s.dir, exitFile, n, false)
	if err != nil && n.Error == "" {
		n.Error = "how the command ended could not be stored: " + err.Error()
	}
	s.snap = n
	s.told()
	s.mu.Unlock()
	if err == nil {
		if err = flush(s.dir, exitFile); err != nil {
			s.change(func(n *snapshot) { n.Error = "how the command ended would not survive a power cut: " + err.Error() })
		}
	}
}

// printed is told of output that was stored, or could not be.
func (s *shim) printed(total int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.snap.Total = total
	if err != nil && s.snap.Error == "" {
		s.snap.Error = "output of the command is missing, because it could not be stored: " + err.Error()
	}
	close(s.news)
	s.news = make(chan struct{})
}

// look is what there is now, and what is closed when there is more.
func (s *shim) look() (n snapshot, news, state <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.snap, s.news, s.state
}

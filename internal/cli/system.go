package cli

import (
	"os"
	"os/signal"

	"golang.org/x/term"
)

// OS is the System of this process.
func OS() *System {
	is := func(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }
	_, noColor := os.LookupEnv("NO_COLOR")
	dumb := os.Getenv("TERM") == "dumb"
	return &System{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
		InTerminal: is(os.Stdin), OutTerminal: is(os.Stdout) && !dumb, ErrTerminal: is(os.Stderr) && !dumb,
		Color: !noColor && !dumb,
		Width: func() int {
			for _, f := range []*os.File{os.Stderr, os.Stdout} {
				if w, _, err := term.GetSize(int(f.Fd())); err == nil && w > 0 {
					return w
				}
			}
			return 0
		},
		LookupEnv: os.LookupEnv,
		Notify: func(c chan<- os.Signal, sig ...os.Signal) func() {
			signal.Notify(c, sig...)
			return func() { signal.Stop(c) }
		},
	}
}

// Package app puts the parts of a running longcall together, and takes them apart again.
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/longcall/longcall/internal/auth"
	"github.com/longcall/longcall/internal/call"
	"github.com/longcall/longcall/internal/config"
	"github.com/longcall/longcall/internal/downstream"
	"github.com/longcall/longcall/internal/journal/sqlite"
	"github.com/longcall/longcall/internal/mcp"
	"github.com/longcall/longcall/internal/policy"
	"github.com/longcall/longcall/internal/shell"
	"github.com/longcall/longcall/internal/shell/tools"
	"github.com/longcall/longcall/internal/telemetry"
	"github.com/longcall/longcall/internal/upstream"
)

// Options of an App.
type Options struct {
	Config     *config.Config
	ConfigPath string // watched and read again on Reload; empty if there is no file
	NoAuth     bool   // loopback only
	Log        *slog.Logger
	Level      *slog.LevelVar // of Log, set anew on Reload; may be nil
	LogDrops   func() uint64  // lines that Log could not write, for metrics; may be nil
	Version    string
	// IdleExit ends Run when for that time no request was open and no call ran;
	// 0 means never. Background says in the state folder that a relay started
	// this process.
	IdleExit   time.Duration
	Background bool
	// Predecessor is the process that this one takes over from; nil if none
	// runs. It is given back whatever becomes of New.
	Predecessor *Predecessor
}

// App is one running longcall.
type App struct {
	opt     Options
	log     *slog.Logger
	snap    atomic.Pointer[snapshot]
	auth    *auth.Authenticator
	token   string
	tel     *telemetry.Telemetry
	journal *sqlite.Journal
	pool    *upstream.Pool
	manager *shell.Manager // nil: the shell is off
	shell   *tools.Tools
	runner  *runner
	engine  *call.Engine
	handler *downstream.Handler
	server  *http.Server
	gate    *gate // what it listens on
	ready   atomic.Bool
	front   front
	leaving chan struct{} // closed when requests that only wait are to end
	handing chan *line    // to a process that wants to take over
	asked   atomic.Bool   // one does
	usage   usage
	wraps   wraps
	reload  sync.Mutex
	file    *config.Config // as last read from ConfigPath; guarded by reload
	base    *config.Config // in force, without the wraps; guarded by reload

	cleanups []cleanup // in the order in which the resources came to be
}

// cleanup gives one resource back. It is bounded by ctx.
type cleanup struct {
	what string
	do   func(ctx context.Context) error
}

func (a *App) onStop(what string, do func(ctx context.Context) error) {
	a.cleanups = append(a.cleanups, cleanup{what, do})
}

// journalDelay is how long progress may wait to be stored, so that the events of
// many calls share one commit. Beginnings and ends of calls do not wait.
const journalDelay = 40 * time.Millisecond

// stopTime bounds each step of taking the App apart, after the drain.
const stopTime = 10 * time.Second

// New opens everything that can fail: the state folder, the journal, the
// listener. Calls that an earlier process left running are closed as
// interrupted before the first new one is taken. Run or Close must follow.
func New(o Options) (_ *App, err error) {
	a := &App{opt: o, log: o.Log, base: o.Config, leaving: make(chan struct{}), handing: make(chan *line)}
	if p := o.Predecessor; p != nil {
		a.onStop("predecessor", func(context.Context) error { p.Abandon(); return nil })
	}
	defer func() {
		if err != nil {
			a.Close()
		}
	}()
	c := o.Config
	a.snap.Store(newSnapshot(c))
	if o.ConfigPath != "" {
		// An error leaves it nil: c was read from there a moment ago.
		a.file, _ = config.Load(o.ConfigPath, nil)
	}

	if o.NoAuth && !config.IsLoopback(c.Listen) {
		return nil, fmt.Errorf("--no-auth is for loopback addresses only, and listen is %s: whoever reaches it could run your tools. Leave out --no-auth, or listen on 127.0.0.1", c.Listen)
	}
	if err := openState(c.State); err != nil {
		return nil, err
	}
	if err := a.openAuth(); err != nil {
		return nil, err
	}

	if err := a.openTelemetry(c); err != nil {
		return nil, err
	}
	if o.Predecessor != nil { // all else that can fail comes before
		if err := a.listen(); err != nil {
			return nil, err
		}
		if err := o.Predecessor.release(); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	a.journal, err = sqlite.Open(ctx, JournalPath(c.State), sqlite.Options{
		Sync: string(c.Journal.Sync), Delay: journalDelay, MaxEvents: c.Journal.Events.Count, MaxBytes: int64(c.Journal.Events.Bytes),
		Age: unlimited(c.Journal.Retention.Age), Size: unlimited(int64(c.Journal.Retention.Size)), Logger: o.Log,
	})
	if err != nil {
		return nil, err
	}
	a.onStop("journal", func(context.Context) error { return a.journal.Close() })
	a.tel.SetJournal(a.journalStats)

	key, err := streamKey(c.State)
	if err != nil {
		return nil, err
	}
	a.pool = upstream.NewPool(upstream.Options{Dir: c.State, Key: key, Log: o.Log, Observer: a.tel})
	a.onStop("tool servers", func(ctx context.Context) error { a.pool.Stop(ctx); return nil })
	a.pool.SetServers(servers(c, a.snap.Load().rules))

	if err := a.openShell(ctx, c); err != nil {
		return nil, err
	}
	a.runner = &runner{pool: a.pool, wraps: &a.wraps, shell: a.shell}
	a.engine = call.NewEngine(a.journal, a.tel.Runner(a.runner), call.Options{
		Epoch:    a.journal.Epoch(),
		Refuse:   c.Journal.OnFailure == config.FailureRefuse,
		Observer: a.tel,
		Window:   unlimited(c.AttachWindow), // 0: nothing that has ended is shown again
		Orphan:   a.orphan,
	})
	if a.shell != nil {
		a.shell.Bind(a.engine)
	}
	adopted, lost, err := a.engine.Recover(ctx)
	if err != nil {
		return nil, fmt.Errorf("take up the calls of the last run in %s: %w", JournalPath(c.State), err)
	}
	if adopted > 0 {
		o.Log.Info("calls of the last run go on", "calls", adopted)
	}
	if lost > 0 {
		o.Log.Warn("calls of the last run were closed: their outcome is unknown", "calls", lost)
	}

	a.handler = downstream.New(downstream.Options{
		Anonymous: a.opt.NoAuth,
		Key:       key, Epoch: a.journal.Epoch(), Sessions: sessions{a.journal},
		Engine:   a.engine,
		Catalog:  catalog{a.pool, &a.wraps},
		Auth:     checker{a.auth},
		Admit:    a.admit,
		Profile:  a.profile,
		Settings: func() *downstream.Settings { return a.snap.Load().settings },
		Info:     downstream.ServerInfo{Name: "longcall", Version: o.Version},
		Observer: observed{requests{a.tel}, &a.front},
		Log:      o.Log,
		Shell:    a.shellSide(),

		SessionEnded: a.pool.EndSession,
	})
	if err := a.handler.LoadSessions(ctx); err != nil {
		return nil, fmt.Errorf("read the sessions of the last run in %s: %w", JournalPath(c.State), err)
	}

	if a.gate == nil {
		if err := a.listen(); err != nil {
			return nil, err
		}
	}
	a.newServer()
	if err := writeServing(c.State, a.serving()); err != nil {
		return nil, fmt.Errorf("write %s: %w", servingPath(c.State), err)
	}
	a.onStop("serve.json", func(context.Context) error { return removeServing(c.State) })
	return a, nil
}

func (a *App) serving() Serving {
	s := Serving{PID: os.Getpid(), URL: a.URL(), Version: a.opt.Version, Background: a.opt.Background}
	if a.opt.ConfigPath != "" {
		s.Config, _ = filepath.Abs(a.opt.ConfigPath) // it was read from there
	}
	return s
}

// unlimited turns "no bound" of the config, 0, into the journal's.
func unlimited[T ~int64](v T) T {
	if v == 0 {
		return -1
	}
	return v
}

func (a *App) openAuth() error {
	if a.opt.NoAuth {
		a.auth = auth.None()
		return nil
	}
	token, created, err := auth.LoadOrCreate(a.opt.Config.State)
	if err != nil {
		return err
	}
	if created {
		a.log.Info("a token was made for this state folder", "file", "token", "folder", a.opt.Config.State)
	}
	a.token = token
	a.auth = auth.New(a.tokens(a.opt.Config))
	return nil
}

// tokens are all that are valid, by principal.
func (a *App) tokens(c *config.Config) map[string]string {
	m := c.Auth.TokenValues()
	m["local"] = a.token
	return m
}

// checker shows auth to the agents' side.
type checker struct{ *auth.Authenticator }

func (c checker) Check(header string) (string, error) {
	p, err := c.Authenticator.Check(header)
	return p.Name, err
}

func (a *App) admit(principal, server, tool string, modern bool) downstream.Decision {
	if end := a.foreignWrap(principal, server); end != nil {
		return downstream.Decision{Denied: end}
	}
	d := a.snap.Load().rules.Admit(principal, server, tool, modern)
	return downstream.Decision{
		Denied: d.Denied, Limits: d.Limits, Buffered: d.Relay == "buffered",
		CancelOnDisconnect: d.OnDisconnect == "cancel", Grace: d.Grace,
		HandOff: d.HandOff, TaskOnly: d.TaskOnly, Attach: d.Attach,
		AutoAttach: d.AutoAttach, AutoDisconnect: d.AutoDisconnect, PerSession: d.PerSession,
	}
}

func (a *App) profile(principal, server, client string) downstream.Profile {
	p := a.snap.Load().profiles.For(principal, server, client)
	return downstream.Profile{
		Name: p.Name, Budget: p.Budget, BudgetToken: p.BudgetToken,
		Tasks: p.Tasks, TaskBudget: p.TaskBudget, Await: p.Await, AwaitToken: p.AwaitToken,
	}
}

// orphan is how long a call of the last run may go on without a reader: as long
// as one whose agent was lost, for so it is (I7).
func (a *App) orphan(r *call.Record) time.Duration {
	if r.Server == downstream.ServerShell {
		return -1 // only who says so stops a command (SHELL §1, D14)
	}
	modern := mcp.Modern(r.Era)
	if d := a.snap.Load().rules.Admit(r.Principal, r.Server, r.Tool, modern); modern && d.OnDisconnect == policy.Cancel {
		return d.Grace
	}
	return -1
}

// listen opens the listener, or takes the predecessor's.
func (a *App) listen() error {
	c := a.opt.Config
	if p := a.opt.Predecessor; p != nil && sameAddress(c.Listen, p.ln) {
		a.gate = newGate(p.ln)
	} else {
		ln, err := net.Listen("tcp", c.Listen)
		if err != nil {
			if errors.Is(err, syscall.EADDRINUSE) {
				return fmt.Errorf("cannot listen on %s: the port is in use. Stop the program that uses it (another longcall?), or choose another with --listen 127.0.0.1:PORT", c.Listen)
			}
			return fmt.Errorf("cannot listen on %s: %w", c.Listen, err)
		}
		a.gate = newGate(ln.(*net.TCPListener)) // which "tcp" gives
		if p != nil {
			p.ln.Close() // its own end stays open: it tells who still comes there
		}
	}
	a.onStop("listener", func(context.Context) error { a.gate.Close(); return nil })
	return nil
}

func (a *App) newServer() {
	a.server = &http.Server{
		Handler:           a.routes(),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    int(a.opt.Config.Request.Headers),
		ErrorLog:          log.New(io.Discard, "", 0), // its lines may quote what clients sent
		Protocols:         new(http.Protocols),
		ConnState:         a.front.connState,
		// No WriteTimeout: it would cut streams. Each write has its own deadline.
	}
	a.server.Protocols.SetHTTP1(true)
	a.server.Protocols.SetUnencryptedHTTP2(true)
}

// URL is where the App listens, such as http://127.0.0.1:8722.
func (a *App) URL() string {
	host, port, _ := net.SplitHostPort(a.gate.Addr().String())
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "http://" + net.JoinHostPort(host, port)
}

// Token is the bearer token of the principal "local"; empty without auth.
func (a *App) Token() string { return a.token }

// Run serves until ctx is done, then stops: no new calls, running ones may end
// within shutdown.drain, the rest are recorded as interrupted, and all streams
// are told.
func (a *App) Run(ctx context.Context) error {
	defer a.Close()
	background, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	if a.opt.ConfigPath != "" && a.opt.Config.Reload.Watch {
		wg.Go(func() {
			if err := config.Watch(background, a.opt.ConfigPath, func() { _ = a.Reload() }); err != nil {
				a.log.Warn("the config is not watched; SIGHUP still reads it again", "error", err)
			}
		})
	}
	wg.Go(func() { tidy(background) })
	wg.Go(func() { a.sweepWraps(background) })
	idle := make(chan struct{})
	if after := a.opt.IdleExit; after > 0 {
		wg.Go(func() {
			a.untilIdle(background, after)
			close(idle)
		})
	}
	served := make(chan error, 1)
	wg.Go(func() { served <- a.server.Serve(a.gate) })
	if p := a.opt.Predecessor; p != nil {
		elsewhere := ""
		if p.ln != a.gate.TCPListener {
			elsewhere = a.gate.Addr().String()
		}
		if err := p.serving(elsewhere); err != nil {
			a.log.Warn("the replaced longcall is gone already", "error", err)
		}
		wg.Go(func() { a.takeUp(background, p.epoch) })
	}
	a.pool.Warm("local")
	a.ready.Store(true)
	a.log.Info("serving", "url", a.URL(), "servers", len(a.pool.Servers()))
	var replaced time.Time
	for stop := false; !stop; {
		select {
		case err := <-served:
			return fmt.Errorf("serve: %w", err)
		case l := <-a.handing:
			if stop = a.giveWay(l); stop {
				replaced = time.Now()
				wg.Go(func() { a.hearSuccessor(l) })
				defer l.Close()
			}
		case <-idle:
			a.log.Info("nobody has needed this longcall for a while", "idle", a.opt.IdleExit)
			stop = true
		case <-ctx.Done():
			stop = true
		}
	}
	a.ready.Store(false)
	close(a.leaving)
	if !replaced.IsZero() {
		a.handler.Retire()
	}
	drain := a.snap.Load().config.Shutdown.Drain
	a.log.Info("stopping", "in_flight", a.engine.InFlight(), "drain", drain)
	bound, cancelDrain := context.WithTimeout(context.Background(), drain)
	a.runner.stopping.Store(a.stopsCommands(!replaced.IsZero()))
	a.engine.Stop(bound)
	cancelDrain()
	if a.runner.stopping.Load() { // what lives on of commands that have ended
		bound, cancel := context.WithTimeout(context.Background(), stopTime)
		a.manager.StopAll(bound, "shutdown")
		cancel()
	}
	a.handler.Stop()
	if !replaced.IsZero() {
		a.lingerReplaced(replaced, drain)
	}
	bound, cancelStop := context.WithTimeout(context.Background(), stopTime)
	defer cancelStop()
	if err := a.server.Shutdown(bound); err != nil {
		_ = a.server.Close()
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}

// Close gives back what New opened, last first. It is safe to call twice.
func (a *App) Close() {
	for len(a.cleanups) > 0 {
		c := a.cleanups[len(a.cleanups)-1]
		a.cleanups = a.cleanups[:len(a.cleanups)-1]
		ctx, cancel := context.WithTimeout(context.Background(), stopTime)
		if err := c.do(ctx); err != nil {
			a.log.Error("not closed cleanly", "what", c.what, "error", err)
		}
		cancel()
	}
}

// opened is what of the journal's config is fixed when it is opened; what it
// keeps of arguments is not.
func opened(j config.Journal) string {
	j.Arguments, j.Redact, j.MaxArguments = "", nil, 0
	return fmt.Sprint(j)
}

// openedShell is what of the shell's config is fixed at the start.
func openedShell(s config.Shell) string { return fmt.Sprint(s.Enabled, s.PerOwner, s.Total, s.Spool) }

// Reload reads the config again. One that is wrong changes nothing and says
// why. Running calls keep the rules that they started with. What needs a new
// start (listen, state, journal) is said and left as it is.
func (a *App) Reload() error {
	a.reload.Lock()
	defer a.reload.Unlock()
	if a.opt.ConfigPath == "" {
		return nil
	}
	c, err := config.Load(a.opt.ConfigPath, nil)
	if err != nil {
		a.log.Error("the new config is wrong; the old one stays in force", "error", err)
		return err
	}
	old := a.file // not what the command line made of it
	a.file = c
	if old == nil {
		old = a.snap.Load().config
	}
	for key, changed := range map[string]bool{
		"listen": c.Listen != old.Listen, "state": c.State != old.State,
		"journal": opened(c.Journal) != opened(old.Journal), "request.headers": c.Request.Headers != old.Request.Headers,
		"attach_window": c.AttachWindow != old.AttachWindow, "shell": openedShell(c.Shell) != openedShell(old.Shell),
	} {
		if changed {
			a.log.Warn("this part of the config takes effect at the next start only", "key", key)
		}
	}
	if !a.opt.NoAuth {
		a.auth.Set(a.tokens(c))
	}
	if a.opt.Level != nil && c.Log.Level != old.Log.Level { // else what the command line said stays
		a.opt.Level.Set(c.Log.Level.Slog())
	}
	a.use(c)
	a.pool.Warm("local")
	a.log.Info("config read again", "servers", len(a.pool.Servers()))
	return nil
}

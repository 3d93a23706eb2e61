// Package agent is the daemon on every machine: it wires the store, the engine that applies, the
// packet filter, the link to the bus and what show says, and runs their loop. It decides nothing those
// packages decide. One goroutine owns the loop's state; passes over the machine run one at a time in a
// second one, so that a slow fetch holds up no heartbeat, no report and no watchdog. Run owns every
// goroutine and ends them in reverse order of their start.
package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"mesh/agent/apply"
	"mesh/agent/filter"
	"mesh/agent/link"
	"mesh/agent/show"
	"mesh/agent/state"
	"mesh/shared/bus"
	"mesh/shared/clock"
	"mesh/shared/credential"
	"mesh/shared/declaration"
	"mesh/shared/report"
	"mesh/shared/subject"
	"mesh/shared/version"
)

const (
	// reconcileEvery is how often everything is looked at, whatever the kernel and systemd tell (APP-6).
	reconcileEvery = time.Minute
	// fullEvery is how often a report is sent though nothing is news (NOD-7).
	fullEvery = time.Hour
	// debounce gathers the events of one change on the machine into one look.
	debounce = 200 * time.Millisecond
	// leaveBound is for the last words at the end.
	leaveBound = 3 * time.Second
)

// StatusFile is the name of the Document below the run directory.
const StatusFile = "status.json"

// StateFile is the name of the store below the state directory.
const StateFile = "state.db"

// CredentialFile is the name of the node's credential below the state directory.
const CredentialFile = "credential.json"

// Machine is what the agent works on; a test or a benchmark hands in less than a whole machine.
type Machine struct {
	// Host is what the engine acts through.
	Host apply.Host
	// Filter drives the packet filter; nil when there is none to drive.
	Filter *filter.Filter
	// Changed hints that something on the machine changed and a look is due; nil for none.
	Changed <-chan struct{}
	// Events fills Changed until its context ends; nil when nothing does.
	Events func(context.Context) error
	// Profile finds out what the machine is; nil for nothing.
	Profile func(context.Context) *report.Profile
	// Close lets go of it; nil when there is nothing to let go.
	Close func() error
}

// Config is what an Agent works with.
type Config struct {
	Credential credential.File
	// Dir keeps the store and the bundles; Run is for what does not outlive a boot, empty for none.
	Dir, Run string
	// Root is where paths of declarations begin: "/" on a machine.
	Root string
	// Digest is the SHA-256 of the agent's own file, when known.
	Digest string
	Clock  clock.Clock
	Rand   io.Reader
	Log    *slog.Logger
	// Machine makes the machine's edges once the store is open. probe reaches the bus anew (NET-7).
	Machine func(ctx context.Context, s *state.Store, probe func(context.Context) error) (Machine, error)
	// Notify tells systemd how the daemon is (sd_notify(3)); nil for nobody.
	Notify func(state string)
	// Watchdog is how often Notify wants "WATCHDOG=1"; 0 for never.
	Watchdog time.Duration
	// FailPoint is called at each named step of applying; a test dies there. nil on a machine.
	FailPoint func(name string)
	// Workers bounds the modules applied side by side; 0 for the engine's default.
	Workers int
}

// Agent is one node's daemon.
type Agent struct {
	cfg     Config
	node    subject.Node
	store   *state.Store
	engine  *apply.Engine
	machine Machine
	conn    *bus.Conn
	link    *link.Link
	self    show.Daemon
	boot    string

	// The loop's goroutine owns the rest.
	profile  *report.Profile
	last     apply.Result
	declared *declaration.Declaration
	said     string // newsKey of the last report
	saidAt   time.Time
	drift    []report.Drift // found since the last report

	seq struct { // what the heartbeat says, read by the link's goroutine
		sync.Mutex
		n uint64
	}
}

// job is one pass over the machine.
type job struct {
	heard *link.Heard // nil: reconcile
	cause apply.Cause
}

type done struct {
	job    job
	result apply.Result
	err    error
}

// Run is the daemon's life: from the store alone first, then with the bus.
func Run(ctx context.Context, cfg Config) (err error) {
	a := &Agent{cfg: cfg, node: subject.Node(cfg.Credential.Name)}
	if a.cfg.Notify == nil {
		a.cfg.Notify = func(string) {}
	}
	a.store, err = state.Open(ctx, state.Config{Path: filepath.Join(cfg.Dir, StateFile), Clock: cfg.Clock, Rand: cfg.Rand, Log: cfg.Log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.store.Close()) }()
	if a.self, err = show.Self(); err != nil {
		return err
	}
	a.boot = bootID()
	if a.machine, err = cfg.Machine(ctx, a.store, a.probe); err != nil {
		return err
	}
	if a.machine.Close != nil {
		defer func() { err = errors.Join(err, a.machine.Close()) }()
	}
	if a.conn, err = bus.Connect(ctx, a.options()); err != nil {
		return err
	}
	defer a.conn.Close()
	a.link = link.New(link.Config{Node: a.node, Conn: a.conn, Outbox: a.store, Alive: a.alive, Clock: cfg.Clock, Log: cfg.Log})
	a.engine, err = apply.New(a.engineConfig())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.engine.Close()) }()
	return a.run(ctx)
}

func (a *Agent) options() bus.Options {
	f := a.cfg.Credential
	return bus.Options{Bus: f.Bus, Seed: f.Seed, Principal: f.Principal(), Name: "mesh-agent " + f.Name, Clock: a.cfg.Clock, Log: a.cfg.Log}
}

func (a *Agent) probe(ctx context.Context) error { return bus.Probe(ctx, a.options()) }

func (a *Agent) engineConfig() apply.Config {
	c := apply.Config{
		Store: a.store, Node: a.node, Mesh: a.cfg.Credential.Mesh, Verifier: a.cfg.Credential.Signer, Curve: a.cfg.Credential.Curve,
		Root: a.cfg.Root, BundleDir: filepath.Join(a.cfg.Dir, "bundles"), Host: a.machine.Host, Fetch: a.link.Fetch,
		Clock: a.cfg.Clock, Rand: a.cfg.Rand, Log: a.cfg.Log, Workers: a.cfg.Workers, FailPoint: a.cfg.FailPoint,
	}
	if a.machine.Filter != nil {
		c.Filter = filterEdge{a.machine.Filter}
	}
	return c
}

// run starts what runs side by side, in an order that the end reverses.
func (a *Agent) run(ctx context.Context) error {
	work, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	failed := make(chan error, 2)
	start := func(name string, fn func(context.Context) error) {
		wg.Add(1)
		go func() { // ends with work
			defer wg.Done()
			if err := fn(work); err != nil && work.Err() == nil {
				failed <- fmt.Errorf("%s: %w", name, err)
			}
		}()
	}
	if a.machine.Filter != nil {
		start("packet filter", a.machine.Filter.Run)
	}
	if a.machine.Events != nil {
		start("events", a.machine.Events)
	}
	start("bus link", a.link.Run)
	jobs, results := make(chan job), make(chan done, 1)
	start("apply", func(ctx context.Context) error { return a.work(ctx, jobs, results) })
	err := a.loop(ctx, jobs, results, failed)
	a.leave(ctx)
	return err
}

// work runs passes one at a time.
func (a *Agent) work(ctx context.Context, jobs <-chan job, results chan<- done) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case j := <-jobs:
			d := done{job: j}
			if j.heard != nil {
				d.result, d.err = a.engine.Accept(ctx, j.heard.Signed)
			} else {
				d.result, d.err = a.engine.Pass(ctx, j.cause)
			}
			select {
			case results <- d:
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// loop is the daemon's one goroutine of state. What is to be done waits in next; one pass is under way
// at a time.
func (a *Agent) loop(ctx context.Context, jobs chan<- job, results <-chan done, failed <-chan error) error {
	minute, stopMinute := a.cfg.Clock.Every(reconcileEvery)
	defer stopMinute()
	watchdog, stopWatchdog := a.watchdog()
	defer stopWatchdog()
	moved := make(chan struct{}, 1) // the bus came or went
	defer a.conn.OnState(func(bool) {
		select {
		case moved <- struct{}{}:
		default:
		}
	})()
	next, busy := &job{cause: apply.Boot}, false
	var later, retry <-chan time.Time
	changed := a.machine.Changed
	a.status(ctx)
	a.cfg.Notify("READY=1")
	for {
		var give chan<- job
		var heard <-chan link.Heard
		var offer job
		switch {
		case busy:
		case next != nil:
			give, offer = jobs, *next
		default:
			heard = a.link.Heard()
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case <-watchdog:
			a.cfg.Notify("WATCHDOG=1")
		case give <- offer:
			next, busy = nil, true
		case h := <-heard:
			next = &job{heard: &h}
		case d := <-results:
			busy = false
			a.after(ctx, d)
			retry = a.retryAt()
		case <-minute:
			if next == nil {
				next = &job{cause: apply.Reconcile}
			}
		case <-changed:
			if later == nil {
				later = a.cfg.Clock.After(debounce)
			}
		case <-later:
			later = nil
			if next == nil {
				next = &job{cause: apply.Reconcile}
			}
		case <-retry:
			retry = nil
			if next == nil {
				next = &job{cause: apply.Reconcile}
			}
		case <-moved:
			a.status(ctx)
		}
	}
}

// after takes a pass's result in: it is remembered, shown, and reported when it is news.
func (a *Agent) after(ctx context.Context, d done) {
	if d.err != nil {
		if ctx.Err() == nil {
			a.cfg.Log.Error("a pass could not be made", "err", d.err)
			a.problem(ctx, d.err.Error())
		}
		return
	}
	a.take(d.result)
	a.seq.Lock()
	a.seq.n, _ = a.store.Newest()
	a.seq.Unlock()
	a.drift = append(a.drift, d.result.Drift...)
	if d.job.heard != nil || a.profile == nil {
		a.readProfile(ctx)
	}
	answer := d.job.heard != nil && d.job.heard.Pushed
	if err := a.report(ctx, answer); err != nil && ctx.Err() == nil {
		a.cfg.Log.Error("no report could be made", "err", err)
	}
	a.status(ctx)
}

// take remembers the result. A refusal stands until a declaration is accepted: looks at the machine in
// between are about the one before it.
func (a *Agent) take(r apply.Result) {
	if old := a.last; old.RefusedSeq > r.Seq && !r.News && r.RefusedSeq == 0 && r.Outcome == report.Applied {
		r.Outcome, r.Refused, r.RefusedSeq = old.Outcome, old.Refused, old.RefusedSeq
	}
	a.last = r
}

func (a *Agent) problem(ctx context.Context, text string) {
	if err := a.store.AddProblem(ctx, text); err != nil {
		a.cfg.Log.Error("a problem could not be remembered", "err", err)
	}
}

// retryAt fires when the first module that failed is due again; nil when none is.
func (a *Agent) retryAt() <-chan time.Time {
	if a.last.NextTry.IsZero() {
		return nil
	}
	return a.cfg.Clock.After(max(a.last.NextTry.Sub(a.cfg.Clock.Now()), 0))
}

// alive is the heartbeat.
func (a *Agent) alive() report.Heartbeat {
	a.seq.Lock()
	defer a.seq.Unlock()
	return report.Heartbeat{At: a.cfg.Clock.Now().UnixMilli(), Seq: a.seq.n}
}

func (a *Agent) watchdog() (<-chan time.Time, func()) {
	if a.cfg.Watchdog <= 0 {
		return nil, func() {}
	}
	return a.cfg.Clock.Every(a.cfg.Watchdog / 2)
}

// leave says good-bye, so that a machine that is shut down is not missed (NOD-11).
func (a *Agent) leave(ctx context.Context) {
	a.cfg.Notify("STOPPING=1")
	h := a.alive()
	h.Leaving = "shutdown"
	if err := a.link.Beat(h); err != nil {
		return // the bus is away: it will see the silence
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveBound)
	defer cancel()
	if err := a.conn.NATS().FlushWithContext(ctx); err != nil {
		a.cfg.Log.Debug("good-bye", "err", err)
	}
}

func (a *Agent) agentWords() report.Agent {
	return report.Agent{Version: version.String(), Digest: a.cfg.Digest}
}

// freeDisk is what is left where the agent keeps its state, in bytes; 0 when it cannot be told.
func freeDisk(dir string) int64 {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0
	}
	return int64(s.Bavail) * s.Bsize
}

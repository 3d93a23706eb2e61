// Package agent is the daemon on every machine: it wires the store, the engine that applies, the
// packet filter, the link to the bus and what show says, and runs their loop. It decides nothing those
// packages decide, but what is news. One goroutine owns the loop's state; passes over the machine run one
// at a time in a second one, so that a slow fetch or a dead D-Bus holds up no heartbeat, no report and no
// watchdog. Run owns every goroutine and returns when all have ended.
package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"mesh/agent/apply"
	"mesh/agent/converge"
	"mesh/agent/diagnose"
	"mesh/agent/filter"
	"mesh/agent/journal"
	"mesh/agent/link"
	"mesh/agent/serve"
	"mesh/agent/show"
	"mesh/agent/state"
	"mesh/agent/upgrade"
	"mesh/shared/bus"
	"mesh/shared/clock"
	"mesh/shared/credential"
	"mesh/shared/declaration"
	"mesh/shared/report"
	"mesh/shared/subject"
	"mesh/shared/version"
)

// leaveBound is for the last words at the end.
const leaveBound = 3 * time.Second

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
	// Converge hands the machine's packet filter over, and says what refuses traffic; nil for nobody.
	Converge *converge.Converger
	// Exposed says what can be reached from outside other than declared, in sentences; nil when nobody looks.
	// It is called by one goroutine.
	Exposed func(context.Context, *declaration.Filter) []string
	// Changed hints that something on the machine changed and a look is due; nil for none.
	Changed <-chan struct{}
	// Events fills Changed until its context ends; nil when nothing does.
	Events func(context.Context) error
	// Profile finds out what the machine is; nil for nothing. It is called by one goroutine at a time.
	Profile func(context.Context) *report.Profile
	// Stopping reports whether the machine is being shut down; nil when it cannot be told.
	Stopping func(context.Context) bool
	// Rests calls tell when the machine is about to suspend or shut down (report.Suspend, report.Shutdown) and
	// when it is back, until its context ends; nil when nobody says so.
	Rests func(ctx context.Context, tell func(why string, begins bool)) error
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
	// Digest finds the SHA-256 of the agent's own file, beside the rest of the start; nil for unknown.
	Digest func() (string, error)
	// Metrics is where metrics are served, host:port on loopback; empty for nowhere.
	Metrics string
	// Diagnose writes a diagnosis of the machine to a file that is not there yet; nil for none.
	Diagnose func(ctx context.Context, file string) error
	Clock    clock.Clock
	Rand     io.Reader
	Log      *slog.Logger
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
	// Self is the path of the program that runs; empty for an agent that does not change itself (NOD-12).
	Self string
	// Window is how long a new agent has for its first report; 0 for the usual.
	Window time.Duration
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
	digest  <-chan string // delivers once
	emptied chan struct{} // capacity 1: the outbox was emptied
	calls   chan func(*waiting)
	resting chan struct{} // closed when the loop has ended
	journal *journal.Reader
	serve   *serve.Server
	pieces  *diagnose.Pieces
	keys    *keyring

	made atomic.Uint64 // the number of the last report; 0 before the first of this life

	upgrade *upgrade.Upgrader // nil: the agent does not change itself

	// The loop's goroutine owns the rest.
	me      report.Agent
	profile *report.Profile
	refuses *report.Refusals
	exposed []string
	view    view
	totals  totals
	news    news
	drift   []report.Drift // found since the last report
	owed    bool           // somebody waits for a report that could not be made
	sending int            // reports that were handed over a moment ago, and do not wait yet
	shown   int            // how many wait, in the status
	asked   bool           // show asks this daemon; otherwise it reads the status alone
	laid    *show.Document // what the status says
	laidAt  time.Time
	looked  bool           // a pass was made in this life
	kept    *show.Document // what the history has, of what the status said
	change  time.Time      // when the first change came that it does not have; zero for none

	// The module that holds the agent's own seat, its bundle, and what was last said of it.
	agentModule  subject.Module
	agentBundle  string
	agentTrouble string
}

// Run is the daemon's life: from the store alone first, then with the bus. It returns nil when ctx ended.
func Run(ctx context.Context, cfg Config) (err error) {
	if cfg.Notify == nil {
		cfg.Notify = func(string) {}
	}
	living := false
	defer func() {
		if !living && ctx.Err() != nil {
			err = nil // told to stop while it started
		}
	}()
	a := &Agent{cfg: cfg, emptied: make(chan struct{}, 1), calls: make(chan func(*waiting)), resting: make(chan struct{}), node: subject.Node(cfg.Credential.Name), boot: bootID(), me: report.Agent{Version: version.String()}, keys: newKeyring(cfg.Credential)}
	release, err := lock(cfg.Dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	digest := make(chan string, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { digest <- a.ownDigest() }) // ends by itself
	a.digest = digest
	a.store, err = state.Open(ctx, state.Config{Path: filepath.Join(cfg.Dir, StateFile), Clock: cfg.Clock, Rand: cfg.Rand, Log: cfg.Log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.store.Close()) }()
	if a.self, err = show.Self(); err != nil {
		return err
	}
	if a.machine, err = cfg.Machine(ctx, a.store, a.probe); err != nil {
		return err
	}
	if a.machine.Close != nil {
		defer func() { err = errors.Join(err, a.machine.Close()) }()
	}
	if c := a.machine.Converge; c != nil {
		c.Use(cmp.Or(cfg.Run, cfg.Dir), cfg.FailPoint)
	}
	if f := a.machine.Filter; f != nil {
		// Before anybody is told how this machine is: a first report that knows no uplinks yet would be
		// answered with a declaration without a filter.
		if err := f.Start(ctx); err != nil && ctx.Err() == nil {
			cfg.Log.Error("packet filter not started", "err", err) // its Run tries again
		}
	}
	if a.conn, err = bus.Connect(ctx, a.options()); err != nil {
		return err
	}
	defer a.conn.Close()
	a.link = link.New(link.Config{Node: a.node, Conn: a.conn, Outbox: a.store, Alive: a.alive, Stands: a.stands, Emptied: func() { poke(a.emptied) }, Clock: cfg.Clock, Log: cfg.Log})
	a.engine, err = apply.New(a.engineConfig())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.engine.Close()) }()
	if err := a.answers(); err != nil {
		return err
	}
	if a.upgrade, err = a.ownUpgrade(); err != nil {
		return err
	}
	living = true
	return a.run(ctx)
}

func (a *Agent) ownDigest() string {
	if a.cfg.Digest == nil {
		return ""
	}
	d, err := a.cfg.Digest()
	if err != nil {
		a.cfg.Log.Warn("the agent's own file could not be read", "err", err)
	}
	return d
}

// options connect to the bus. Nothing waits for the first try: a machine whose bus is far is kept all the
// same.
func (a *Agent) options() bus.Options {
	f := a.cfg.Credential
	return bus.Options{Bus: f.Bus, Seed: f.Seed, Principal: f.Principal(), Name: "mesh-agent " + f.Name, Lazy: true, Clock: a.cfg.Clock, Log: a.cfg.Log}
}

func (a *Agent) probe(ctx context.Context) error { return bus.Probe(ctx, a.options()) }

func (a *Agent) engineConfig() apply.Config {
	c := apply.Config{
		Store: a.store, Node: a.node, Mesh: a.cfg.Credential.Mesh, Verifier: a.cfg.Credential.Signer, Curve: a.cfg.Credential.Curve, Instance: a.keys.seed,
		Root: a.cfg.Root, BundleDir: filepath.Join(a.cfg.Dir, "bundles"), Host: a.machine.Host, Fetch: a.link.Fetch, Offer: a.offers(), Journal: a.lastLines,
		Clock: a.cfg.Clock, Rand: a.cfg.Rand, Log: a.cfg.Log, Workers: a.cfg.Workers, FailPoint: a.cfg.FailPoint,
	}
	if a.machine.Filter != nil {
		c.Filter = filterEdge{a.machine.Filter, a.machine.Converge}
	}
	return c
}

// run starts what runs side by side, runs the loop, and ends all.
func (a *Agent) run(ctx context.Context) error {
	work, stop := context.WithCancel(ctx)
	defer stop()
	type part struct {
		name string
		run  func(context.Context) error
	}
	jobs, results := make(chan job), make(chan done)
	parts := []part{{"bus link", a.link.Run}, {"verbs", a.serve.Run}, {"journal", a.journal.Run}, {"diagnose", a.pieces.Run}, {"health", a.engine.Run}, {"apply", func(ctx context.Context) error { return a.work(ctx, jobs, results) }}}
	if a.upgrade != nil {
		parts = append(parts, part{"own upgrade", a.upgrade.Run})
	}
	if a.machine.Filter != nil {
		parts = append(parts, part{"packet filter", a.machine.Filter.Run})
	}
	if a.cfg.Metrics != "" {
		parts = append(parts, part{"metrics", a.serveMetrics})
	}
	if a.machine.Rests != nil {
		parts = append(parts, part{"rests", a.rests})
	}
	if a.machine.Events != nil {
		parts = append(parts, part{"events", a.machine.Events})
	}
	if l := a.listen(); l != nil {
		a.asked = true
		parts = append(parts, part{"show", func(ctx context.Context) error { return a.answerShow(ctx, l) }})
	}
	var wg sync.WaitGroup
	failed := make(chan error, len(parts)) // each has room: nobody may be listening any more
	for _, p := range parts {
		wg.Go(func() { // ends with work
			if err := p.run(work); work.Err() == nil {
				failed <- fmt.Errorf("%s ended: %w", p.name, cmp.Or(err, errEnded))
			}
		})
	}
	err := a.loop(ctx, jobs, results, failed)
	a.cfg.Notify("STOPPING=1")
	a.layDown(context.WithoutCancel(ctx))
	a.ends(ctx)
	if err == nil {
		a.leave(ctx)
	}
	stop()
	a.conn.Close() // ends a try to reach the bus, too, which the parts may be waiting for
	wg.Wait()
	return err
}

// ends remembers that from now on nobody looks.
func (a *Agent) ends(ctx context.Context) {
	if a.kept == nil {
		return
	}
	last := *a.kept
	last.Daemon.Up = false
	parts, err := show.Parts(a.kept, &last, a.boot)
	if err == nil {
		err = a.store.Remember(context.WithoutCancel(ctx), a.cfg.Clock.Now(), parts, false)
	}
	if err != nil {
		a.cfg.Log.Error("that the agent ends could not be remembered", "err", err)
	}
}

var errEnded = errors.New("nobody asked it to")

// leave says good-bye at the end: a machine that is shut down is not missed (NOD-11), one whose agent was
// stopped is, and so is one whose agent could not go on, which says nothing.
func (a *Agent) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveBound)
	defer cancel()
	why := report.Stopping
	if a.machine.Stopping != nil && a.machine.Stopping(ctx) {
		why = report.Shutdown
	}
	a.goodBye(ctx, why)
}

func (a *Agent) goodBye(ctx context.Context, why string) {
	h := a.alive()
	h.Leaving = why
	if err := a.link.Leave(h); err != nil {
		return // the bus is away: it will see the silence
	}
	if err := a.conn.NATS().FlushWithContext(ctx); err != nil {
		a.cfg.Log.Debug("good-bye", "err", err)
	}
}

// rests says good-bye when the machine is about to rest, and that it is back.
func (a *Agent) rests(ctx context.Context) error {
	return a.machine.Rests(ctx, func(why string, begins bool) {
		a.cfg.Log.Info("the machine rests", "why", why, "begins", begins)
		bound, cancel := context.WithTimeout(ctx, leaveBound)
		defer cancel()
		if begins {
			a.goodBye(bound, why)
			return
		}
		if err := a.link.Back(a.alive()); err != nil && !errors.Is(err, bus.ErrAway) {
			a.cfg.Log.Debug("heartbeat", "err", err)
		}
	})
}

// alive is the heartbeat; the link's goroutine asks for it.
func (a *Agent) alive() report.Heartbeat {
	seq, _ := a.store.Newest()
	return report.Heartbeat{At: a.cfg.Clock.Now().UnixMilli(), Seq: seq, Report: a.made.Load()}
}

// stands says that there is nothing to do and nothing new to say about signed: it is the declaration held,
// and whoever sent it holds the last report. The link's goroutine asks.
func (a *Agent) stands(signed declaration.Signed, known uint64) bool {
	seq, digest := a.store.Newest()
	return known == a.made.Load() && signed.Claimed() == seq && signed.Digest() == digest
}

// freeDisk is what is left where the agent keeps its state, in bytes; 0 when it cannot be told.
func freeDisk(dir string) int64 {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0
	}
	return int64(s.Bavail) * s.Bsize
}

// bootID names this boot of the kernel (random(4)); empty when it cannot be told.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// Package apply makes a machine as its declaration says: it takes a signed declaration in, looks at the
// machine, has the plan made, keeps declaration and intents in one commit, acts, and says how each
// module is. It decides nothing that mesh/agent/plan could.
//
// A declaration that is refused changes nothing. Whatever instant the agent dies at, the next pass looks
// again, plans again and finishes (APP-5): an act may be repeated, and nothing is left half done. A
// module's failure stops that module where it is, and no other, nor the packet filter; it is tried again
// with growing pauses. Where nothing differs nothing is written, no process started, no question asked
// but what stat and one call to systemd answer.
//
// One pass runs at a time; callers wait for each other. The goroutines of a pass end before it returns. It
// waits a bounded time for what may take long, a unit that starts or a bundle that comes: that goes on by
// itself or with the next pass, so that a newer declaration and a repair never wait for it.
package apply

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"mesh/agent/health"
	"mesh/agent/host/engine"
	"mesh/agent/host/file"
	"mesh/agent/host/systemd"
	"mesh/agent/host/user"
	"mesh/agent/plan"
	"mesh/agent/resource"
	"mesh/agent/state"
	"mesh/shared/clock"
	"mesh/shared/credential"
	"mesh/shared/declaration"
	"mesh/shared/manifest"
	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/subject"
)

// Units is what *systemd.Conn does.
type Units interface {
	List(ctx context.Context, units []string) (map[string]systemd.UnitState, error)
	States(ctx context.Context, units []string) (map[string]systemd.UnitState, error)
	Reload(ctx context.Context) error
	Enable(ctx context.Context, units []string) (changed bool, err error)
	Disable(ctx context.Context, units []string) (changed bool, err error)
	ResetFailed(ctx context.Context, unit string) error
	Start(ctx context.Context, unit string) (systemd.JobResult, error)
	Restart(ctx context.Context, unit string) (systemd.JobResult, error)
	Stop(ctx context.Context, unit string) (systemd.JobResult, error)
	Settle(ctx context.Context, start systemd.JobResult, d time.Duration) (systemd.Verdict, error)
}

// Host is what a pass acts through.
type Host struct {
	// Files is the root of all declared paths; nil opens Config.Root.
	Files *file.Root
	// Units is systemd; nil for none: modules with units are then unknown.
	Units Units
	// Runner starts the distribution's programs that make users.
	Runner user.Runner
	// Machine is what modules' needs are held against; zero for nothing.
	Machine resource.Machine
	// Programs runs what is asked of modules' health; nil for nobody.
	Programs Programs
	// Witness says who may have changed something by hand shortly before a time, in words; nil for nobody (APP-19).
	Witness func(at time.Time) []string
	// Taken are the ranges of addresses that are in use on the machine, for new networks to keep out of; nil
	// for none.
	Taken func(ctx context.Context) ([]netip.Prefix, error)
}

// Filter puts the packet filter of a declaration in force. An error is said, and tried again.
type Filter interface {
	Apply(ctx context.Context, d *declaration.Declaration) error
}

// Config is what an Engine works with.
type Config struct {
	Store    *state.Store
	Node     subject.Node
	Mesh     string
	Verifier credential.Verifier
	// Curve opens the secrets sealed to this node.
	Curve credential.Seed
	// Instance is the key of the machine's instance of a module; nil for none.
	Instance func(subject.Module) (credential.Seed, error)
	// Root is where declared paths begin, "/" on a machine.
	Root string
	// BundleDir is where bundles are unpacked: an absolute path of its own, not below Root.
	BundleDir string
	Host      Host
	// Fetch writes an artifact to w from a chunk on, in order, each chunk in a slice of its own: w keeps it.
	Fetch  func(ctx context.Context, a declaration.Artifact, from int, w io.Writer) error
	Filter Filter // nil for none
	// Offer serves an image that the mesh carries to the machine's engine, until its Close; nil for none.
	Offer OfferFunc
	// Journal returns at most n of the last lines that units said since a time; nil for none.
	Journal func(ctx context.Context, units []string, since time.Time, n int) ([]string, error)
	Clock   clock.Clock
	Rand    io.Reader
	Log     *slog.Logger
	// Workers bounds the modules worked on side by side; 0 means 4.
	Workers int
	// Settle is how long a started unit must stay up; 0 means 1.5 s.
	Settle time.Duration
	// Wait is how long a pass waits for units to start or stop, and for bundles to come, in all before it ends
	// without them; 0 means 10 s.
	Wait time.Duration
	// Reserve is how many bytes a bundle must leave free on the disk; 0 means 16 MiB.
	Reserve int64
	// FailPoint is called at each of FailPoints; a test dies there. nil on a machine.
	FailPoint func(name string)
}

const (
	defaultWorkers = 4
	defaultSettle  = 1500 * time.Millisecond
	defaultReserve = 16 << 20
	defaultWait    = 10 * time.Second
	// fetchGrace is how long modules that need no bundle wait for those that do, so that one reload
	// serves all.
	fetchGrace = 3 * time.Second
	// mendEvery is how often at most a bundle that is altered again and again is put right: each time its
	// bytes are fetched anew.
	mendEvery = time.Hour
	// pauseMin and pauseMax bound the pause before a failed module is tried again.
	pauseMin, pauseMax = 5 * time.Second, 5 * time.Minute
	// plausible bounds how far ahead of the declaration held the seq of an unreadable one may be.
	plausible = 1_000_000
)

// Cause is why a pass is made.
type Cause string

// The causes.
const (
	Boot      Cause = "boot"      // the agent came up
	Reconcile Cause = "reconcile" // it is time to look, or something hinted
	Asked     Cause = "asked"     // somebody wants it: what failed is tried again, too
)

// Result is how a pass went.
type Result struct {
	// Seq is the declaration this node holds.
	Seq     uint64
	Outcome report.Outcome
	// Refused says why, when Outcome is Refused or Failed.
	Refused *refusal.Refusal
	// RefusedSeq is the declaration that was refused; what could not be read whole is taken at its word
	// for it, and 0 when it says nothing.
	RefusedSeq uint64
	// News: Accept took a declaration it did not hold.
	News bool
	// Modules are sorted by name.
	Modules []report.Module
	// Drift is what was found changed by hand in this pass, each once.
	Drift []report.Drift
	// Left is what was changed by hand and stays as it is, now.
	Left []report.Drift
	// Held are declared things that are there and not mesh's, Taken is how takes stand (APP-9, APP-10).
	Held  []report.Held
	Taken []report.Take
	// Strays are units with mesh's mark that nothing declares and the ledger does not know.
	Strays []string
	// Steps is how many acts were made.
	Steps int
	Took  time.Duration
	// NextTry is when a module that failed, or waits for something, is to be looked at again, by a pass; zero
	// when none is.
	NextTry time.Time
}

// Engine applies. Make it with New.
type Engine struct {
	cfg  Config
	root *file.Root
	turn chan struct{} // token: one pass at a time; it owns what follows

	reader    declaration.Reader    // and of what came last, what need not be read again
	decoder   resource.Decoder      // the same for manifests
	passed    resource.Passed       // manifests that keep the rules
	expanded  resource.Expanded     // of the modules of the last declaration, what need not be expanded again
	seen      map[string]file.State // what was read at a path and can be told unchanged by stat
	accounts  user.Accounts
	passwd    [2]file.Fingerprint // of the files accounts was read from
	fast      *settled            // what a look has to find unchanged to be over; nil: look at everything
	pauses    map[subject.Module]*pause
	lives     map[string]life // of the units that should run
	box       *engine.Engine  // the container engine, when one was found
	boxed     map[string]bool // the declared units that are containers
	builtIn   map[string]bool // kernel modules that are built in, once it was asked for; nil before
	pulls     pulls
	indexes   map[string]*index       // of the bundles that are there, by folder
	mended    map[string]time.Time    // when a bundle's folder was put right last
	said      map[string]report.Drift // findings that stay, as they were last said
	refused   string                  // digest of the declaration refused last
	filterOK  bool                    // the filter of the declaration held is in force
	booted    bool
	storeGone bool // and could not be written anew
	hand      hand
	health    healthState
	prober    *health.Prober

	mu       sync.Mutex // guards the two below
	declared *declaration.Declaration
	last     Result
}

type pause struct {
	next   time.Time
	length time.Duration
	why    string
}

// New returns an Engine that has done nothing yet.
func New(cfg Config) (*Engine, error) {
	if cfg.Workers == 0 {
		cfg.Workers = defaultWorkers
	}
	if cfg.Settle == 0 {
		cfg.Settle = defaultSettle
	}
	if cfg.Wait == 0 {
		cfg.Wait = defaultWait
	}
	if cfg.Reserve == 0 {
		cfg.Reserve = defaultReserve
	}
	if cfg.FailPoint == nil {
		cfg.FailPoint = func(string) {}
	}
	e := &Engine{cfg: cfg, root: cfg.Host.Files, turn: make(chan struct{}, 1), passed: resource.Passed{}, expanded: resource.Expanded{}, seen: map[string]file.State{},
		pauses: map[subject.Module]*pause{}, lives: map[string]life{}, indexes: map[string]*index{}, mended: map[string]time.Time{}, said: map[string]report.Drift{}}
	e.turn <- struct{}{}
	e.health.trials, e.health.goods, e.health.sums = map[subject.Module]*trial{}, map[subject.Module]*goodBuild{}, map[subject.Module]sumOf{}
	e.health.kept = map[subject.Module]string{}
	e.prober = health.New(health.Config{Run: e.runProgram, Clock: cfg.Clock})
	if e.root == nil {
		var err error
		if e.root, err = file.OpenRoot(cfg.Root); err != nil {
			return nil, err
		}
	}
	e.hand.desk = e.newDesk()
	cfg.Store.Before(e.root.SyncFolders)
	return e, nil
}

// Declared is the declaration held, without the modules' manifests; nil when none is.
func (e *Engine) Declared() *declaration.Declaration {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.declared
}

// Last is the result of the last pass.
func (e *Engine) Last() Result {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.last
}

// work is one declaration being carried out.
type work struct {
	start     time.Time
	cause     Cause
	accepted  bool // by this very call
	d         *declaration.Declaration
	resources []resource.Resource
	ledger    []state.Row
	see       plan.Observed
	plan      plan.Plan
	// unreadable are modules that could not be expanded or looked at.
	unreadable map[subject.Module]error
	// whole is the declaration as it was declared; in d the last good instances stand for those that failed.
	whole *declaration.Declaration
	// sums tell the declared instances; back are those in whose place the last good one stands, keep the ids of
	// what the last good ones are started from, and due what goes back with this work.
	sums map[subject.Module]string
	back map[subject.Module]*proof
	keep map[string]bool
	due  []due
}

// Accept takes a signed declaration in and carries it out. A declaration that is refused, because it is
// not signed by the pinned key, not understood whole, meant for another or older than the one held,
// changes nothing: the Result says so, and the error is nil. The newest one again does nothing either.
// An error means that the pass could not be made at all; RefusedSeq is then the declaration it was for.
func (e *Engine) Accept(ctx context.Context, signed declaration.Signed) (Result, error) {
	give, err := e.take(ctx)
	if err != nil {
		return Result{}, err
	}
	defer give()
	start, digest := e.cfg.Clock.Now(), signed.Digest()
	if _, held := e.cfg.Store.Newest(); held == digest {
		return e.again(), nil
	}
	d, manifests, err := e.read(signed)
	if err == nil {
		_, err = e.cfg.Store.Judge(d.Seq, digest)
	}
	if err != nil {
		return e.refuse(ctx, d, signed, err, start)
	}
	w := &work{start: start, cause: Reconcile, accepted: true, d: d}
	if err := e.look(ctx, w, manifests); err != nil {
		return Result{RefusedSeq: d.Seq}, fmt.Errorf("apply declaration %d: %w", d.Seq, err)
	}
	e.cfg.FailPoint(beforeAccept)
	if _, err := e.cfg.Store.Accept(ctx, d.Seq, digest, signed, w.plan.Intents()); err != nil {
		if refusal.Of(err) != nil {
			return e.refuse(ctx, d, signed, err, start)
		}
		return Result{RefusedSeq: d.Seq}, state.Named(err, fmt.Sprintf("declaration %d", d.Seq))
	}
	e.cfg.FailPoint(afterAccept)
	e.hold(d)
	e.filterOK, e.refused = false, ""
	clear(e.pauses)
	if w, err = e.hands(ctx, w, manifests); err != nil {
		return Result{RefusedSeq: d.Seq}, err
	}
	r, err := e.carry(ctx, w)
	if r.News = true; err != nil {
		return r, err
	}
	return e.goBack(ctx, d, manifests, r)
}

// Pass looks at the machine and puts in order what is not as the declaration held says.
func (e *Engine) Pass(ctx context.Context, cause Cause) (Result, error) {
	give, err := e.take(ctx)
	if err != nil {
		return Result{}, err
	}
	defer give()
	start := e.cfg.Clock.Now()
	e.keepStore(ctx)
	if cause == Asked {
		if err := e.tryAgain(ctx); err != nil {
			return Result{}, err
		}
	}
	if cause != Boot && e.unchanged(ctx) {
		return e.again(), nil
	}
	held, ok, err := e.cfg.Store.Current(ctx)
	if err != nil {
		return Result{}, fmt.Errorf("read the declaration held: %w", err)
	}
	if !ok {
		return e.keep(Result{Outcome: report.None}), nil
	}
	d, manifests, err := e.read(declaration.Signed(held.Signed))
	if err != nil {
		// It was accepted once: the pinned key or the program is another now.
		return e.keep(Result{Seq: held.Seq, Outcome: report.Failed, Refused: refusalOf(err, "the declaration held"), Modules: e.cfg.Store.Modules()}), nil
	}
	e.hold(d)
	w := &work{start: start, cause: cause, d: d}
	if err := e.look(ctx, w, manifests); err != nil {
		return Result{}, fmt.Errorf("look at the machine: %w", err)
	}
	if cause == Boot {
		e.sweep(ctx, w)
	}
	if w, err = e.hands(ctx, w, manifests); err != nil {
		return Result{}, err
	}
	if rows := w.plan.Intents(); len(rows) > 0 {
		e.cfg.FailPoint(beforeIntent)
		if err := e.cfg.Store.Intend(ctx, rows); err != nil {
			return Result{}, state.Named(err, "to begin what is to be done")
		}
		e.cfg.FailPoint(afterIntent)
	}
	r, err := e.carry(ctx, w)
	if err != nil {
		return r, err
	}
	return e.goBack(ctx, d, manifests, r)
}

// keepStore sees to the store's file. That it cannot be written anew is said once, and no reason not to look
// after the machine.
func (e *Engine) keepStore(ctx context.Context) {
	err := e.cfg.Store.Keep(ctx)
	if err != nil && !e.storeGone {
		e.cfg.Log.Error("the store's file is gone and cannot be written anew; it is tried again", "err", err)
	}
	e.storeGone = err != nil
}

// Preview is the plan that Accept would carry out. It changes nothing (APP-15).
func (e *Engine) Preview(ctx context.Context, signed declaration.Signed) (plan.Plan, error) {
	give, err := e.take(ctx)
	if err != nil {
		return plan.Plan{}, err
	}
	defer give()
	d, manifests, err := e.read(signed)
	if err != nil {
		return plan.Plan{}, err
	}
	w := &work{start: e.cfg.Clock.Now(), cause: Reconcile, d: d}
	err = e.look(ctx, w, manifests)
	return w.plan, err
}

// Close has the store write what it still holds of passes, and gives back what New opened. No pass may run.
func (e *Engine) Close() error {
	e.pulls.end()
	err := e.cfg.Store.Part()
	if e.cfg.Host.Files != nil {
		return err
	}
	return errors.Join(err, e.root.Close())
}

func (e *Engine) take(ctx context.Context) (give func(), err error) {
	select {
	case <-e.turn:
		return func() { e.turn <- struct{}{} }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// read verifies and decodes a declaration whole.
func (e *Engine) read(signed declaration.Signed) (*declaration.Declaration, []manifest.Manifest, error) {
	d, err := e.reader.Open(signed, e.cfg.Verifier, e.cfg.Mesh, e.cfg.Node)
	if err != nil {
		return nil, nil, err
	}
	manifests, err := e.decoder.Decode(d)
	return d, manifests, err
}

// refuse says no; the machine and the store stay as they are.
func (e *Engine) refuse(ctx context.Context, d *declaration.Declaration, signed declaration.Signed, why error, start time.Time) (Result, error) {
	if refusal.Of(why) == nil {
		return Result{}, why
	}
	seq, _ := e.cfg.Store.Newest()
	r := Result{Seq: seq, Outcome: report.Refused, Refused: refusal.Of(why), Modules: e.cfg.Store.Modules(), Strays: e.Last().Strays,
		Took: e.cfg.Clock.Now().Sub(start)}
	if d != nil {
		r.RefusedSeq = d.Seq
	} else if claimed := signed.Claimed(); claimed <= seq+plausible {
		r.RefusedSeq = claimed
	}
	digest := signed.Digest()
	if digest == e.refused {
		return r, nil // the bus delivers more than once
	}
	e.refused = digest
	e.cfg.Log.Warn("a declaration was refused", "seq", r.RefusedSeq, "err", why)
	text := oneLine(r.Refused)
	past := state.Past{Seq: r.RefusedSeq, Outcome: report.Refused, Why: text, Took: r.Took}
	// That the store would not remember it, as on a full disk, changes nothing about the refusal.
	if err := errors.Join(e.cfg.Store.AddProblem(ctx, text), e.cfg.Store.Done(ctx, state.Batch{Past: &past})); err != nil {
		e.cfg.Log.Error("a refusal could not be remembered", "err", err)
	}
	return r, nil
}

// again is the last result for a pass that had nothing to do.
func (e *Engine) again() Result {
	r := e.Last()
	if seq, _ := e.cfg.Store.Newest(); r.Seq != seq || r.Outcome == "" {
		return Result{Seq: seq, Outcome: report.Applying, Modules: e.cfg.Store.Modules()}
	}
	r.Modules = e.cfg.Store.Modules()
	r.Steps, r.Drift, r.News, r.Took = 0, nil, false, 0
	return r
}

func (e *Engine) keep(r Result) Result {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.last = r
	return r
}

// hold remembers the declaration, without what is large.
func (e *Engine) hold(d *declaration.Declaration) {
	small := *d
	small.Modules = make([]declaration.Module, len(d.Modules))
	for i, m := range d.Modules {
		small.Modules[i] = declaration.Module{Name: m.Name, Build: m.Build, Artifact: m.Artifact, Membership: m.Membership}
		if mayHoldAgent(&m) {
			small.Modules[i].Manifest = m.Manifest
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.declared = &small
}

// refusalOf is the refusal in err, or err as one.
func refusalOf(err error, what string) *refusal.Refusal {
	if r := refusal.Of(err); r != nil {
		return r
	}
	return &refusal.Refusal{What: what, Why: err.Error(), Do: "it is tried again by itself; look at the machine"}
}

var errNoUnits = errors.New("there is no systemd to ask")

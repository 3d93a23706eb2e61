// Package upgrade changes the agent of a machine for the one a declaration names, and back when that one
// does not report (NOD-12, design §7). Workloads are services of their own and notice nothing.
//
// The agent's program is a link to a folder below the state directory, named by the digest of the bundle it
// came in. An upgrade tries the new program, puts it and a copy of the store beside, arms a timer of systemd
// that runs the program of before, switches the link and has systemd restart the agent. The new agent says
// Reported once the bus has its first report, and the timer goes. When it does not, the timer's service, which
// is the old program, switches back, puts the store of before back when the new one changed its form, and
// starts the agent. The timer is a unit on the disk: a power cut in between changes nothing. What was tried
// in vain is tried again once, an hour later, and then left until another bundle is declared.
//
// All of it may be killed anywhere: what is under way stands in one file, written whole, and every step may be
// repeated. Run owns no goroutine but its caller's.
package upgrade

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"mesh/agent/host/systemd"
	"mesh/shared/bundle"
	"mesh/shared/clock"
)

const (
	// Program is where the agent's program is on a machine.
	Program = "/usr/local/bin/mesh-agent"
	// Service is the agent's unit.
	Service = "mesh-agent.service"
	// DefaultWindow is how long a new agent has for its first report (NOD-12).
	DefaultWindow = 2 * time.Minute

	// mostTries is how often a bundle is tried, againAfter how long after it failed.
	mostTries  = 2
	againAfter = time.Hour
)

// Units is what *systemd.Conn does.
type Units interface {
	Reload(ctx context.Context) error
	Enable(ctx context.Context, units []string) (changed bool, err error)
	Disable(ctx context.Context, units []string) (changed bool, err error)
	Start(ctx context.Context, unit string) (systemd.JobResult, error)
	Stop(ctx context.Context, unit string) (systemd.JobResult, error)
	Restart(ctx context.Context, unit string) (systemd.JobResult, error)
	Run(ctx context.Context, name string, argv []string) (exit int, output string, err error)
}

// Config is what an Upgrader works with.
type Config struct {
	// Dir is the agent's state directory; the programs are below it.
	Dir string
	// Root stands before the paths of the program and of units: "/" on a machine.
	Root string
	// Self is the path of the program that runs, as the kernel has it; see Self.
	Self string
	// Window is how long a new agent has for its first report; 0 means DefaultWindow.
	Window time.Duration
	// Copy writes a copy of the store to a file that is not there.
	Copy  func(ctx context.Context, path string) error
	Units Units
	Clock clock.Clock
	Log   *slog.Logger
}

// Agent is one program of the agent's.
type Agent struct {
	// Program is its path.
	Program string `json:"program"`
	// Bundle is the digest of the bundle it came in, empty for one that was placed by hand.
	Bundle string `json:"bundle,omitempty"`
}

// State is how far an upgrade came.
type State string

// The states.
const (
	Trying    State = "trying"
	Confirmed State = "confirmed"
	Failed    State = "failed"
)

// record is the file that says what is under way.
type record struct {
	State State `json:"state"`
	From  Agent `json:"from"`
	To    Agent `json:"to"`
	Tries int   `json:"tries"`
	AtMS  int64 `json:"at_ms"`
	// WindowMS is how long the new agent has.
	WindowMS int64  `json:"window_ms"`
	Why      string `json:"why,omitempty"`
}

// Upgrader changes the agent. Make it with New.
type Upgrader struct {
	cfg  Config
	poke chan struct{} // capacity 1: there is something to look at

	mu       sync.Mutex // guards the fields below
	want     Agent      // Program is in the bundle's folder
	reported bool
	trouble  string // why the wanted bundle is not the agent; empty when nothing is wrong
	rec      record
}

// New makes an Upgrader for the program that runs. It starts nothing.
func New(c Config) (*Upgrader, error) {
	if c.Window == 0 {
		c.Window = DefaultWindow
	}
	u := &Upgrader{cfg: c, poke: make(chan struct{}, 1)}
	var err error
	u.rec, err = u.read()
	return u, err
}

// Self is the path of the running program.
func Self() (string, error) {
	at, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return "", fmt.Errorf("find the running program: %w", err)
	}
	return strings.TrimSuffix(at, " (deleted)"), nil
}

// BundleOf is the digest of the bundle that a program below the state directory dir came in, or "" for one
// that was placed by hand.
func BundleOf(dir, program string) string {
	folder := filepath.Dir(program)
	if digest := filepath.Base(folder); filepath.Dir(folder) == filepath.Join(dir, programs) && bundle.CheckDigest(digest) == nil {
		return digest
	}
	return ""
}

// Bundle is that of the program that runs.
func (u *Upgrader) Bundle() string { return BundleOf(u.cfg.Dir, u.cfg.Self) }

// Want says which bundle the machine's agent shall be from, and where in it the program lies; an empty digest
// says that nobody cares. It does not wait.
func (u *Upgrader) Want(digest, program string) {
	u.mu.Lock()
	changed := u.want.Bundle != digest
	u.want = Agent{Program: program, Bundle: digest}
	if changed {
		u.trouble = ""
	}
	u.mu.Unlock()
	u.wake()
}

// Reported says that the bus has a report of this process. It does not wait.
func (u *Upgrader) Reported() {
	u.mu.Lock()
	first := !u.reported
	u.reported = true
	u.mu.Unlock()
	if first {
		u.wake()
	}
}

func (u *Upgrader) wake() {
	select {
	case u.poke <- struct{}{}:
	default:
	}
}

// Trouble says why the machine's agent is not the one from that bundle, in words; waits says that it may
// still become it. Both are empty when there is nothing to say.
func (u *Upgrader) Trouble(digest string) (why string, waits bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case digest == "" || digest == u.Bundle() && u.rec.State != Trying:
		return "", false
	case u.rec.State == Trying && u.rec.To.Bundle == digest:
		return "the new agent is being tried", true
	case u.trouble != "":
		return u.trouble, false
	case u.rec.State == Failed && u.rec.To.Bundle == digest:
		return u.rec.Why, false
	}
	return "the agent is about to be changed", true
}

// Run does what Want and Reported ask for, until ctx ends.
func (u *Upgrader) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-u.poke:
		}
		if err := u.look(ctx); err != nil && ctx.Err() == nil {
			u.cfg.Log.Error("the agent could not be changed", "err", err)
		}
	}
}

// look does the one thing that is due.
func (u *Upgrader) look(ctx context.Context) error {
	u.mu.Lock()
	want, reported, rec := u.want, u.reported, u.rec
	u.mu.Unlock()
	switch {
	case rec.State == Trying && rec.To.Program == u.cfg.Self:
		if !reported {
			return nil
		}
		return u.confirm(ctx)
	case want.Bundle == "" || want.Bundle == u.Bundle():
		return nil
	case rec.State == Failed && rec.To.Bundle == want.Bundle && !u.due(rec):
		return nil
	}
	err := u.change(ctx, want, rec)
	if err != nil && ctx.Err() == nil {
		u.mu.Lock()
		u.trouble = "the agent could not be changed: " + err.Error()
		u.mu.Unlock()
	}
	return err
}

// due says whether what failed is to be tried again.
func (u *Upgrader) due(r record) bool {
	since := u.cfg.Clock.Now().Sub(time.UnixMilli(r.AtMS))
	return r.Tries < mostTries && (since >= againAfter || since < 0) // or the clock was put back
}

// confirm ends a try that went well.
func (u *Upgrader) confirm(ctx context.Context) error {
	release, err := lock(ctx, u.cfg.Dir)
	if err != nil {
		return err
	}
	defer release()
	rec, err := u.read()
	if err != nil || rec.State != Trying {
		return err // the time was over, and the agent of before is about to come back
	}
	rec.State, rec.Why, rec.AtMS = Confirmed, "", u.cfg.Clock.Now().UnixMilli()
	if err := u.write(rec); err != nil {
		return err
	}
	u.cfg.Log.Info("the new agent stays: it has reported", "bundle", rec.To.Bundle)
	return errors.Join(u.disarm(ctx), u.tidy(rec))
}

// read reads the file; none is no upgrade ever.
func (u *Upgrader) read() (record, error) {
	var r record
	b, err := os.ReadFile(u.cfg.recordPath())
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil {
		// An unreadable note must not keep the agent from starting; what it was about is done or comes again.
		u.cfg.Log.Error("what was noted of an upgrade cannot be read and is set aside", "err", err)
		return record{}, os.Rename(u.cfg.recordPath(), u.cfg.recordPath()+".unreadable")
	}
	return r, nil
}

// write keeps the record, on the disk when it returns.
func (u *Upgrader) write(r record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := put(u.cfg.recordPath(), b, 0o600); err != nil {
		return fmt.Errorf("note the upgrade: %w", err)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.rec = r
	return nil
}

func (c *Config) recordPath() string { return filepath.Join(c.Dir, programs, "upgrade.json") }

// lock keeps the agent and the program that falls back apart.
func lock(ctx context.Context, dir string) (release func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, programs, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil { // held for moments
		return nil, errors.Join(err, f.Close())
	}
	if err := ctx.Err(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil // which lets go of it
}

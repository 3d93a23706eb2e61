package upgrade_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"mesh/agent/host/systemd"
	"mesh/agent/upgrade"
	"mesh/shared/clock"
	"mesh/shared/waitfor"
)

const soon = 10 * time.Second

// paper stands in for systemd: it writes down what it was asked to do.
type paper struct {
	mu    sync.Mutex
	did   []string
	runs  func(argv []string) (int, string, error)
	fails map[string]error // by what it would write down
}

func (p *paper) note(what string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.did = append(p.did, what)
	return p.fails[what]
}

func (p *paper) all() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.did)
}

func (p *paper) Reload(context.Context) error { return p.note("reload") }
func (p *paper) Enable(_ context.Context, units []string) (bool, error) {
	return true, p.note("enable " + strings.Join(units, " "))
}
func (p *paper) Disable(_ context.Context, units []string) (bool, error) {
	return true, p.note("disable " + strings.Join(units, " "))
}
func (p *paper) Start(_ context.Context, unit string) (j systemd.JobResult, err error) {
	return j, p.note("start " + unit)
}
func (p *paper) Stop(_ context.Context, unit string) (j systemd.JobResult, err error) {
	return j, p.note("stop " + unit)
}
func (p *paper) Restart(_ context.Context, unit string) (j systemd.JobResult, err error) {
	return j, p.note("restart " + unit)
}
func (p *paper) Run(_ context.Context, _ string, argv []string) (int, string, error) {
	if p.runs != nil {
		return p.runs(argv)
	}
	return 0, "mesh-agent version 1", nil
}

// bed is a machine with an agent placed by hand.
type bed struct {
	*testing.T
	root, dir string
	clock     *clock.Fake
	units     *paper
}

func newBed(t *testing.T) *bed {
	t.Helper()
	b := &bed{T: t, root: t.TempDir(), clock: clock.NewFake(time.Unix(1_800_000_000, 0)), units: &paper{fails: map[string]error{}}}
	b.dir = filepath.Join(b.root, "state")
	for _, d := range []string{"state", "usr/local/bin", "etc/systemd/system"} {
		b.ok(os.MkdirAll(filepath.Join(b.root, d), 0o755))
	}
	b.write(upgrade.Program, "placed by hand")
	b.write("/state/state.db", "store of old form")
	return b
}

func (b *bed) ok(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bed) write(path, content string) {
	b.Helper()
	b.ok(os.WriteFile(filepath.Join(b.root, path), []byte(content), 0o755))
}

func (b *bed) read(path string) string {
	b.Helper()
	content, err := os.ReadFile(filepath.Join(b.root, path))
	if err != nil {
		return "(" + err.Error() + ")"
	}
	return string(content)
}

// program is what the agent's path leads to.
func (b *bed) program() string { return b.read(upgrade.Program) }

// armed says whether anything of the way back is there; armedWhole whether all of it is.
func (b *bed) armed() bool      { return b.parts() > 0 }
func (b *bed) armedWhole() bool { return b.parts() == 2 }

func (b *bed) parts() (n int) {
	for _, name := range []string{"mesh-agent-fallback.timer", "mesh-agent-fallback.service"} {
		if _, err := os.Stat(filepath.Join(b.root, "etc/systemd/system", name)); err == nil {
			n++
		}
	}
	return n
}

func digest(c string) string { return strings.Repeat(c, 64) }

// bundle brings a bundle with an agent, and returns the path of its program.
func (b *bed) bundle(c, content string) string {
	b.Helper()
	b.ok(os.MkdirAll(filepath.Join(b.dir, "bundles", digest(c), "bin"), 0o755))
	path := filepath.Join(b.dir, "bundles", digest(c), "bin", "mesh-agent")
	b.ok(os.WriteFile(path, []byte(content), 0o755))
	return path
}

// agent is a life of the agent whose program runs from self; "" is the one placed by hand. stop ends it.
func (b *bed) agent(self string) (u *upgrade.Upgrader, stop func()) {
	b.Helper()
	if self == "" {
		self = filepath.Join(b.root, upgrade.Program)
	}
	u, err := upgrade.New(upgrade.Config{Dir: b.dir, Root: b.root, Self: self, Units: b.units, Clock: b.clock, Log: slog.New(slog.DiscardHandler),
		Copy: func(_ context.Context, path string) error {
			return os.WriteFile(path, []byte(b.read("/state/state.db")), 0o600)
		}})
	b.ok(err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- u.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			b.ok(waitfor.Value(b, "the upgrader to stop", soon, done))
		})
	}
	b.Cleanup(stop)
	return u, stop
}

func (b *bed) restarted(n int) {
	b.Helper()
	waitfor.True(b, fmt.Sprintf("restart number %d of the agent", n), soon, func() (bool, any) {
		got := 0
		for _, d := range b.units.all() {
			if d == "restart mesh-agent.service" {
				got++
			}
		}
		return got >= n, b.units.all()
	})
}

func (b *bed) kept(c string) string { return filepath.Join(b.dir, "agent", digest(c), "mesh-agent") }

func (b *bed) fallBack(unlessConfirmed bool, readable error) (string, error) {
	b.Helper()
	u, stop := b.agent(b.from())
	defer stop()
	return u.FallBack(b.Context(), unlessConfirmed, func(context.Context) error { return readable })
}

// from is the program that the armed service would run.
func (b *bed) from() string {
	b.Helper()
	_, rest, found := strings.Cut(b.read("/etc/systemd/system/mesh-agent-fallback.service"), `ExecStart="`)
	path, _, _ := strings.Cut(rest, `"`)
	if !found || path == "" {
		b.Fatal("nothing would fall back")
	}
	return path
}

// NOD-12: switched by link with a way back armed; confirmed by a report; the next one is tried from there, and
// only the last two stay.
func TestAnUpgradeThatReports(t *testing.T) {
	b := newBed(t)
	u, stop := b.agent("")
	if u.Bundle() != "" {
		t.Errorf("an agent placed by hand is of bundle %q", u.Bundle())
	}
	u.Want(digest("a"), b.bundle("a", "agent a"))
	b.restarted(1)
	stop()
	if b.program() != "agent a" || !b.armedWhole() || !strings.Contains(b.read("/etc/systemd/system/mesh-agent-fallback.timer"), "OnActiveSec=120s") {
		t.Errorf("the program is %q, armed %v", b.program(), b.armed())
	}
	if want := []string{"reload", "enable mesh-agent-fallback.timer", "restart mesh-agent-fallback.timer", "restart mesh-agent.service"}; !slices.Equal(b.units.all(), want) {
		t.Errorf("systemd did %v, want %v", b.units.all(), want)
	}
	b.ok(os.RemoveAll(filepath.Join(b.dir, "bundles"))) // the module goes: the agent stays

	u, stop = b.agent(b.kept("a"))
	if u.Bundle() != digest("a") {
		t.Errorf("it is of bundle %q", u.Bundle())
	}
	u.Want(digest("a"), "")
	if why, waits := u.Trouble(digest("a")); why == "" || !waits {
		t.Errorf("while it is tried: %q, waits %v", why, waits)
	}
	u.Reported()
	waitfor.True(t, "the way back to go", soon, func() (bool, any) { return !b.armed(), b.units.all() })
	if why, _ := u.Trouble(digest("a")); why != "" {
		t.Errorf("once it has reported: %q", why)
	}
	u.Want(digest("b"), b.bundle("b", "agent b"))
	b.restarted(2)
	stop()
	if b.from() != b.kept("a") {
		t.Errorf("it would fall back to %s", b.from())
	}
	u, _ = b.agent(b.kept("b"))
	u.Reported()
	waitfor.True(t, "the way back to go", soon, func() (bool, any) { return !b.armed(), b.units.all() })
	waitfor.True(t, "all but the last two to go", soon, func() (bool, any) {
		var folders []string
		entries, err := os.ReadDir(filepath.Join(b.dir, "agent"))
		for _, e := range entries {
			if e.IsDir() {
				folders = append(folders, e.Name())
			}
		}
		return err == nil && slices.Equal(folders, []string{digest("a"), digest("b")}), folders
	})
}

// NOD-12: the way back, with the store of before when the new agent changed its form; what failed is tried
// once more an hour later, and then no more.
func TestAnUpgradeThatDoesNotReport(t *testing.T) {
	b := newBed(t)
	source := b.bundle("a", "agent a")
	u, stop := b.agent("")
	u.Want(digest("a"), source)
	b.restarted(1)
	stop()
	b.write("/state/state.db", "store of new form")
	b.write("/state/state.db-wal", "of the new form too")
	said, err := b.fallBack(true, errors.New("made by a newer agent"))
	if err != nil || !strings.Contains(said, "the agent of before is back") {
		t.Fatalf("%q, %v", said, err)
	}
	if b.program() != "placed by hand" && !strings.Contains(b.program(), "ELF") || b.armed() { // what ran is kept, and this is a test's
		t.Errorf("the program is %.20q, armed %v", b.program(), b.armed())
	}
	if got := b.read("/state/state.db"); got != "store of old form" || !strings.HasPrefix(b.read("/state/state.db-wal"), "(") {
		t.Errorf("the store is %q", got)
	}
	did := b.units.all()
	if i, k := slices.Index(did, "stop mesh-agent.service"), slices.Index(did, "start mesh-agent.service"); i < 0 || k < i {
		t.Errorf("systemd did %v", did)
	}
	old, err := os.Readlink(filepath.Join(b.root, upgrade.Program))
	b.ok(err)
	u, stop = b.agent(old)
	u.Want(digest("a"), source)
	waitfor.True(t, "the trouble to be said", soon, func() (bool, any) {
		why, waits := u.Trouble(digest("a"))
		return strings.Contains(why, "did not report within 2m0s") && !waits, why
	})
	if n := len(b.units.all()); n != len(did) {
		t.Errorf("it was tried again at once: %v", b.units.all()[len(did):])
	}
	b.clock.Advance(time.Hour)
	u.Want(digest("a"), source)
	b.restarted(2)
	stop()
	if _, err := b.fallBack(true, nil); err != nil {
		t.Fatal(err)
	}
	u, _ = b.agent(old)
	b.clock.Advance(24 * time.Hour)
	tried := len(b.units.all())
	u.Want(digest("a"), source)
	u.Want(digest("b"), b.bundle("b", "agent b")) // another one is
	b.restarted(3)
	for _, d := range b.units.all()[tried:] {
		if strings.HasPrefix(d, "stop mesh-agent.service") {
			t.Errorf("the bad one was tried a third time: %v", b.units.all()[tried:])
		}
	}
}

// What cannot run here is refused before anything is changed.
func TestAnAgentThatCannotRun(t *testing.T) {
	for name, tt := range map[string]struct {
		runs func([]string) (int, string, error)
		path func(b *bed) string
		says string
	}{
		"another machine's": {func([]string) (int, string, error) { return 203, "exec format error", nil }, func(b *bed) string { return b.bundle("a", "agent a") }, "status 203"},
		"another program":   {func([]string) (int, string, error) { return 0, "hello", nil }, func(b *bed) string { return b.bundle("a", "hello") }, `says "hello"`},
		"no program":        {nil, func(b *bed) string { return filepath.Join(b.dir, "none/mesh-agent") }, "there is no mesh-agent"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.units.runs = tt.runs
			u, _ := b.agent("")
			u.Want(digest("a"), tt.path(b))
			waitfor.True(t, "the trouble to be said", soon, func() (bool, any) {
				why, waits := u.Trouble(digest("a"))
				return strings.Contains(why, tt.says) && !waits, why
			})
			if b.program() != "placed by hand" || b.armed() || len(b.units.all()) > 0 {
				t.Errorf("changed: %q, %v", b.program(), b.units.all())
			}
		})
	}
}

// Killed before the switch, the timer finds nothing to take back, and the agent tries again.
func TestBrokenOffBeforeTheSwitch(t *testing.T) {
	b := newBed(t)
	source := b.bundle("a", "agent a")
	b.units.fails["restart mesh-agent-fallback.timer"] = errors.New("systemd is gone")
	u, stop := b.agent("")
	u.Want(digest("a"), source)
	waitfor.True(t, "the trouble to be said", soon, func() (bool, any) {
		why, _ := u.Trouble(digest("a"))
		return why != "", why
	})
	waitfor.True(t, "the units to be written", soon, func() (bool, any) { return b.armedWhole(), b.units.all() })
	stop()
	if b.program() != "placed by hand" {
		t.Errorf("the program is %q", b.program())
	}
	if said, err := b.fallBack(true, nil); err != nil || !strings.Contains(said, "never started") || b.armed() {
		t.Errorf("%q, %v, armed %v", said, err, b.armed())
	}
	delete(b.units.fails, "restart mesh-agent-fallback.timer")
	b.clock.Advance(time.Hour)
	u, _ = b.agent("")
	u.Want(digest("a"), source)
	b.restarted(1)
	if b.program() != "agent a" {
		t.Errorf("the program is %q", b.program())
	}
}

// A person goes back by hand; what was left is not taken again.
func TestFallBackByHand(t *testing.T) {
	b := newBed(t)
	u, stop := b.agent("")
	if _, err := u.FallBack(t.Context(), false, func(context.Context) error { return nil }); err == nil {
		t.Error("there is nothing to go back to")
	}
	source := b.bundle("a", "agent a")
	u.Want(digest("a"), source)
	b.restarted(1)
	stop()
	u, stop = b.agent(b.kept("a"))
	u.Reported()
	waitfor.True(t, "the way back to go", soon, func() (bool, any) { return !b.armed(), b.units.all() })
	if said, err := u.FallBack(t.Context(), true, func(context.Context) error { return nil }); err != nil || !strings.Contains(said, "stays") {
		t.Errorf("the timer comes late: %q, %v", said, err)
	}
	if _, err := u.FallBack(t.Context(), false, func(context.Context) error { return nil }); err != nil {
		t.Fatal(err)
	}
	stop()
	old, err := os.Readlink(filepath.Join(b.root, upgrade.Program))
	b.ok(err)
	u, _ = b.agent(old)
	b.clock.Advance(48 * time.Hour)
	u.Want(digest("a"), source)
	if why, waits := u.Trouble(digest("a")); !strings.Contains(why, "a person went back") || waits {
		t.Errorf("%q, waits %v", why, waits)
	}
}

// A note that cannot be read keeps no agent from starting.
func TestADamagedNote(t *testing.T) {
	b := newBed(t)
	b.ok(os.MkdirAll(filepath.Join(b.dir, "agent"), 0o755))
	b.write("/state/agent/upgrade.json", "{")
	u, _ := b.agent("")
	u.Want(digest("a"), b.bundle("a", "agent a"))
	b.restarted(1)
	if !strings.HasPrefix(b.read("/state/agent/upgrade.json.unreadable"), "{") {
		t.Error("the note is not set aside")
	}
}

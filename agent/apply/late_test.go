package apply_test

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"mesh/agent/apply"
	"mesh/shared/bundle"
	"mesh/shared/declaration"
	"mesh/shared/manifest"
	"mesh/shared/report"
)

func process(name string) mod {
	return module(name, manifest.Run{Files: []manifest.File{file("/etc/"+name, "x")}, Processes: map[string]manifest.Process{"p": {Exec: []string{"/bin/" + name}}}})
}

// meanwhile runs a pass, and moves the clock on once the pass waits for something.
func (b *bed) meanwhile(t testing.TB, pass func() apply.Result) apply.Result {
	t.Helper()
	out := make(chan apply.Result, 1)
	go func() { out <- pass() }()
	waitUntil(t, "the pass to end", func() bool {
		if b.clock.Waiting() > 0 {
			b.clock.Advance(time.Second)
		}
		return len(out) > 0
	})
	return <-out
}

func states(r apply.Result) string {
	var all []string
	for _, m := range r.Modules {
		all = append(all, string(m.Name)+" "+string(m.State))
	}
	return strings.Join(all, ", ")
}

// A unit that does not come up, or go down, in its time holds up no pass: the others are seen to, and a
// newer declaration is taken in. Nothing of it is a failure, or somebody's doing.
func TestAUnitThatHangsHoldsUpNoPass(t *testing.T) {
	b := newBed(t)
	b.units.waits = func(call string) bool { return strings.HasSuffix(call, "mesh-slow-p.service") }
	r := b.meanwhile(t, func() apply.Result { return b.accept(t, 1, process("slow"), process("zzz")) })
	if r.Outcome != report.Applying || states(r) != "slow pending, zzz running" || r.Refused != nil {
		t.Fatalf("%s %s %v", r.Outcome, states(r), r.Refused)
	}
	if !strings.Contains(r.Modules[0].Detail, "still starting") || r.NextTry.IsZero() {
		t.Errorf("%+v", r)
	}
	b.units.calls(t)
	r = b.pass(t, apply.Reconcile)
	if calls := b.units.calls(t); len(calls) > 0 || r.Outcome != report.Applying || len(r.Drift) > 0 {
		t.Errorf("while it starts: %s, %q, drift %v", r.Outcome, calls, r.Drift)
	}
	b.units.by(t, "mesh-slow-p.service", func(p *paperUnit) { p.Active, p.Sub = "active", "running" })
	if r = applied(t, b.pass(t, apply.Reconcile)); len(b.units.calls(t)) > 0 || states(r) != "slow running, zzz running" {
		t.Errorf("once it is up: %s", states(r))
	}
	// It goes, and takes its time; its files stay until it is gone.
	r = b.meanwhile(t, func() apply.Result { return b.accept(t, 2, process("zzz")) })
	if r.Outcome != report.Applying || b.read(t, "/etc/slow") != "x" || b.read(t, "/etc/systemd/system/mesh-slow-p.service") == "(absent)" {
		t.Errorf("while it stops: %s %v", r.Outcome, r.Refused)
	}
	b.units.waits = nil
	applied(t, b.pass(t, apply.Reconcile))
	if b.read(t, "/etc/slow") != "(absent)" || b.read(t, "/etc/systemd/system/mesh-slow-p.service") != "(absent)" {
		t.Error("it is not gone")
	}
}

// Many that hang are waited for once, not each in turn.
func TestManyThatHangAreWaitedForOnce(t *testing.T) {
	b := newBed(t)
	b.units.waits = func(call string) bool { return strings.HasPrefix(call, "start") }
	var mods []mod
	for i := range 12 {
		mods = append(mods, process(string(rune('a'+i))))
	}
	began := b.clock.Now()
	r := b.meanwhile(t, func() apply.Result { return b.accept(t, 1, mods...) })
	if took := b.clock.Now().Sub(began); r.Outcome != report.Applying || took > 20*time.Second {
		t.Errorf("%s after %v", r.Outcome, took)
	}
}

// What stops by itself, or by a person's slow stop, is left alone until it has stopped.
func TestAUnitOnItsWayDownIsNoDrift(t *testing.T) {
	b := newBed(t)
	applied(t, b.accept(t, 1, process("notes")))
	b.units.calls(t)
	b.units.by(t, "mesh-notes-p.service", func(p *paperUnit) { p.Active, p.Sub = "deactivating", "stop-sigterm" })
	if r := b.pass(t, apply.Reconcile); r.Outcome != report.Applying || len(r.Drift) > 0 || len(b.units.calls(t)) > 0 {
		t.Errorf("%s, drift %v", r.Outcome, r.Drift)
	}
	b.units.by(t, "mesh-notes-p.service", func(p *paperUnit) { p.Active, p.Sub = "inactive", "dead" })
	if r := applied(t, b.pass(t, apply.Reconcile)); len(r.Drift) != 1 || !slices.Equal(b.units.calls(t), []string{"start mesh-notes-p.service"}) {
		t.Errorf("%+v", r)
	}
}

// A program that dies a while after each start is failing: said once, with pauses that grow, and well only
// when it has stayed up.
func TestACrashLoopIsOneFailure(t *testing.T) {
	b := newBed(t)
	applied(t, b.accept(t, 1, process("loops")))
	const unit = "mesh-loops-p.service"
	details := map[string]bool{}
	look := func() apply.Result {
		r := b.pass(t, apply.Reconcile)
		details[r.Modules[0].Detail] = true
		return r
	}
	starts := 0
	began := b.clock.Now()
	for b.clock.Now().Sub(began) < time.Hour {
		for life := range 5 { // as systemd does it
			b.clock.Advance(3 * time.Second)
			b.units.by(t, unit, func(p *paperUnit) { p.Sub, p.Active, p.Result = "auto-restart", "activating", "exit-code" })
			if r := look(); r.Outcome != report.Failed {
				t.Fatalf("dead: %s", r.Outcome)
			}
			b.clock.Advance(time.Second)
			b.units.by(t, unit, func(p *paperUnit) {
				p.Sub, p.Active, p.Result, p.Restart = "running", "active", "success", life+1
			})
			if r := look(); r.Outcome != report.Failed {
				t.Fatalf("up again after %d deaths, and that is called %s", life+1, r.Outcome)
			}
		}
		b.units.by(t, unit, func(p *paperUnit) { p.Sub, p.Active, p.Result, p.Restart = "failed", "failed", "start-limit-hit", 5 })
		b.units.calls(t)
		for again := false; !again; again = slices.Contains(b.units.calls(t), "start "+unit) {
			if r := look(); r.NextTry.After(b.clock.Now()) && b.units.get(t, unit).Active == "failed" {
				b.clock.Advance(r.NextTry.Sub(b.clock.Now()))
			}
		}
		starts++
	}
	if starts > 20 { // every 20 s would be 180
		t.Errorf("started %d times in an hour: the pauses do not grow", starts)
	}
	if len(details) > 2 { // it ended, and it failed
		t.Errorf("said in %d ways: %v", len(details), details)
	}
	r := look()
	if r.Outcome != report.Failed || r.NextTry.IsZero() || r.NextTry.Sub(b.clock.Now()) > time.Minute {
		t.Errorf("just up: %s, looked at again in %v", r.Outcome, r.NextTry.Sub(b.clock.Now()))
	}
	b.clock.Advance(time.Minute)
	applied(t, look())
	// A new declaration begins a new life.
	b.units.by(t, unit, func(p *paperUnit) { p.Sub, p.Active, p.Result = "auto-restart", "activating", "exit-code" })
	look()
	m := process("loops")
	m.Run.Files[0].Content = "better"
	applied(t, b.accept(t, 2, m))
}

// A unit that cannot be enabled fails its module and no other.
func TestOneUnitThatCannotBeEnabled(t *testing.T) {
	b := newBed(t)
	b.units.refuses = func(call string) error {
		if strings.HasPrefix(call, "enable") && strings.Contains(call, "mesh-bad-p") {
			return errors.New("invalid alias")
		}
		return nil
	}
	r := b.accept(t, 1, process("aaa"), process("bad"), process("zzz"))
	if states(r) != "aaa running, bad failed, zzz running" || !strings.Contains(r.Modules[1].Detail, "invalid alias") {
		t.Errorf("%s: %+v", states(r), r.Modules)
	}
}

// A unit that systemd cannot load is a failure with a name, not a change by hand that is undone every minute.
func TestAUnitSystemdCannotLoad(t *testing.T) {
	b := newBed(t)
	m := module("raw", manifest.Run{Units: map[string]manifest.Unit{"x.service": {Content: "[Service]\n[Install]\nWantedBy=multi-user.target", Enabled: true}}})
	applied(t, b.accept(t, 1, m))
	b.units.by(t, "x.service", func(p *paperUnit) { p.Load = "bad-setting" })
	must(t, os.Remove(b.units.wants("x.service")))
	b.units.calls(t)
	for range 3 {
		r := b.pass(t, apply.Reconcile)
		if r.Outcome != report.Failed || !strings.Contains(r.Modules[0].Detail, "bad-setting") || len(r.Drift) > 0 || len(b.units.calls(t)) > 0 {
			t.Errorf("%s %+v, drift %v", r.Outcome, r.Modules, r.Drift)
		}
		b.clock.Advance(time.Minute)
	}
}

// A drop-in is a change by hand beside the unit: it is said, once, and left where it is.
func TestADropInIsSaid(t *testing.T) {
	b := newBed(t)
	applied(t, b.accept(t, 1, process("notes")))
	b.units.by(t, "mesh-notes-p.service", func(p *paperUnit) {
		p.DropIns = "/usr/lib/systemd/system/service.d/10-all.conf\n/etc/systemd/system/mesh-notes-p.service.d/override.conf\n/run/systemd/system.control/mesh-notes-p.service.d/50-CPUWeight.conf"
	})
	b.clock.Advance(time.Minute)
	var found []report.Drift
	for range 15 {
		r := b.pass(t, apply.Reconcile)
		found = append(found, r.Drift...)
	}
	if len(found) != 2 || !strings.Contains(found[0].What, "/override.conf") || found[0].Repaired || found[0].Thing != "unit:mesh-notes-p.service" {
		t.Errorf("found %+v", found)
	}
}

// A bundle that takes long is fetched over several passes; between them the machine is looked after, and a
// newer declaration is taken in.
func TestALongFetchHoldsUpNoPass(t *testing.T) {
	b := newBed(t)
	m := bundled(b, t, noise(20*bundle.ChunkSize))
	other := process("other")
	b.fetched = func(declaration.Artifact, int) error { return nil }
	b.chunk = func() { b.clock.Advance(3 * time.Second) }
	var froms []int
	b.fetched = func(_ declaration.Artifact, from int) error {
		froms = append(froms, from)
		return nil
	}
	r := b.accept(t, 1, m, other)
	if r.Outcome != report.Applying || states(r) != "big pending, other running" || !strings.Contains(r.Modules[0].Detail, "on its way") {
		t.Fatalf("%s %s %v", r.Outcome, states(r), r.Refused)
	}
	must(t, os.WriteFile(b.root("/etc/other"), []byte("by hand"), 0o644))
	for passes := 0; r.Outcome == report.Applying; passes++ {
		b.clock.Advance(r.NextTry.Sub(b.clock.Now()))
		r = b.pass(t, apply.Reconcile)
		if b.read(t, "/etc/other") != "x" {
			t.Error("the other module is not looked after")
		}
		if passes > 10 {
			t.Fatalf("it gets nowhere: fetched from %v", froms)
		}
	}
	applied(t, r)
	if !slices.IsSorted(froms) || len(froms) < 4 || froms[1] == 0 {
		t.Errorf("fetched from %v", froms)
	}
	if p := b.units.get(t, "mesh-big-p.service"); p.Active != "active" || p.Starts != 1 {
		t.Errorf("%+v", p)
	}
}

// A module that is unassigned, or gets another bundle, while its bundle is on its way leaves nothing behind.
func TestUnassignedWhileItsBundleIsOnItsWay(t *testing.T) {
	b := newBed(t)
	m := bundled(b, t, noise(20*bundle.ChunkSize))
	b.chunk = func() { b.clock.Advance(3 * time.Second) }
	if r := b.accept(t, 1, m); r.Outcome != report.Applying {
		t.Fatal(r.Outcome)
	}
	small := bundled(b, t, "small")
	applied(t, b.accept(t, 2, small))
	applied(t, b.accept(t, 3))
	b.restart(t)
	applied(t, b.pass(t, apply.Boot))
	if names := dirNames(t, b.path("state/bundles")); len(names) > 0 {
		t.Errorf("left: %v", names)
	}
	if r := b.accept(t, 4, m); r.Outcome != report.Applying { // and back
		t.Fatal(r.Outcome)
	}
	b.chunk = nil
	applied(t, b.pass(t, apply.Reconcile))
}

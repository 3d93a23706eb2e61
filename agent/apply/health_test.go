package apply_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mesh/agent/apply"
	"mesh/agent/host/systemd"
	"mesh/shared/declaration"
	"mesh/shared/manifest"
	"mesh/shared/report"
	"mesh/shared/waitfor"
)

const web = "mesh-notes-web.service"

// asking has the engine of b ask, until the test or the agent's life ends.
func asking(t *testing.T, b *bed) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	engine := b.engine
	go func() { defer close(over); _ = engine.Run(ctx) }()
	stop = sync.OnceFunc(func() { cancel(); <-over })
	t.Cleanup(stop)
	return stop
}

// front is what the machine's web server is to the network: it answers by what of it runs.
type front struct {
	address string
	status  atomic.Value // by what is in the unit's text; func(text string) string
}

func newFront(t *testing.T, b *bed, status func(text string) string) *front {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	f := &front{address: l.Addr().String()}
	f.status.Store(status)
	over := make(chan struct{})
	go func() {
		defer close(over)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 1024))
			text := ""
			_ = b.units.with("list", func(all map[string]*paperUnit) error {
				if p := all[web]; p != nil && p.Active == "active" {
					text = p.Text
				}
				return nil
			})
			_, _ = io.WriteString(c, "HTTP/1.1 "+f.status.Load().(func(string) string)(text)+"\r\n\r\n")
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-over })
	return f
}

// notesAt is the module in a version, asked at address within half a minute.
func notesAt(b *bed, t *testing.T, address, version, build string) mod {
	m := notes(b, t, version)
	m.build = build
	p := m.Run.Processes["web"]
	p.Health = &manifest.Health{HTTP: "http://" + address + "/healthz", Every: "1s", Within: "30s"}
	m.Run.Processes = map[string]manifest.Process{"web": p}
	return m
}

// settles has passes made until the result is as wanted, moving the clock on by step each time.
func settles(t *testing.T, b *bed, what string, step time.Duration, want func(apply.Result) bool) (r apply.Result) {
	t.Helper()
	waitfor.True(t, what, 20*time.Second, func() (bool, any) {
		r = b.pass(t, apply.Reconcile)
		if want(r) {
			return true, nil
		}
		b.clock.Advance(step)
		return false, r
	})
	return r
}

func well(r apply.Result) bool { return r.Outcome == report.Applied }

func backTo(build string) func(apply.Result) bool {
	return func(r apply.Result) bool {
		return r.Outcome == report.Failed && strings.Contains(r.Modules[0].Detail, "rolled back to "+build) && r.Modules[0].Build == build
	}
}

func badTwo(text string) string {
	if strings.Contains(text, "bin/web two") {
		return "500 Internal Server Error"
	}
	return "200 OK"
}

// APP-7: a new build that does not answer in its time gives way to the last good one, as it was; that is said
// with the build's last lines, outlives the agent, and is not tried again until somebody asks or declares
// another.
func TestABuildThatDoesNotAnswerGivesWay(t *testing.T) {
	b := newBed(t)
	b.journal = []string{"first", "web: cannot open the database"}
	stop := asking(t, b)
	f := newFront(t, b, badTwo)
	at := func(version, build string) mod { return notesAt(b, t, f.address, version, build) }
	one := at("one", "build-1")
	b.accept(t, 1, one)
	settles(t, b, "the first to be well", 0, well)
	two := b.content(t, at("two", "build-2")) // sealed once, as in the coordinator's records
	if r := b.acceptContent(t, 2, two); r.Outcome != report.Applying || !r.News || r.Modules[0].State != report.Pending {
		t.Errorf("on trial it is %s: %+v", r.Outcome, r.Modules)
	}
	r := settles(t, b, "the trial to be said", 0, func(r apply.Result) bool { return strings.Contains(r.Modules[0].Detail, "500") })
	if m := r.Modules[0]; m.State != report.Pending || m.Build != "build-2" || m.Detail != "it is given 30s to get well: mesh-notes-web: it answers 500 Internal Server Error" {
		t.Errorf("on trial: %+v", m)
	}
	if next := r.NextTry.Sub(b.clock.Now()); next <= 0 || next > 30*time.Second {
		t.Errorf("the next look is in %v", next)
	}
	if got := b.read(t, "/etc/notes/conf"); !strings.HasPrefix(got, "two") {
		t.Errorf("on trial conf is %q", got)
	}
	b.clock.Advance(30 * time.Second)
	r = b.pass(t, apply.Reconcile)
	if !backTo("build-1")(r) {
		t.Fatalf("past its time it is %s: %+v", r.Outcome, r.Modules)
	}
	const detail = "build-2: it did not get well within 30s: mesh-notes-web: it answers 500 Internal Server Error; rolled back to build-1, which runs"
	if m := r.Modules[0]; m.State != report.Broken || m.Detail != detail || m.Log != strings.Join(b.journal, "\n") {
		t.Errorf("it says %+v", m)
	}
	if r.Refused == nil || r.Refused.What != "module notes" || !strings.Contains(r.Refused.Do, "node apply-now n1") {
		t.Errorf("refused %+v", r.Refused)
	}
	still := func(what string) {
		t.Helper()
		if got := b.read(t, "/etc/notes/conf"); got != "one 8080 n1 ${HOME}\n" {
			t.Errorf("%s: conf is %q", what, got)
		}
		p := b.units.get(t, web)
		if p.Active != "active" || !strings.Contains(p.Text, one.artifact.Digest) || strings.Contains(p.Text, "bin/web two") {
			t.Errorf("%s: what runs is %+v", what, p)
		}
		if _, err := os.Stat(b.path("state/bundles/" + one.artifact.Digest + "/bin/web")); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	still("after going back")
	starts := b.units.get(t, web).Starts
	if r := b.pass(t, apply.Reconcile); !backTo("build-1")(r) || r.Steps > 0 {
		t.Errorf("another pass: %+v", r)
	}
	stop()
	b.restart(t)
	asking(t, b)
	if r := b.pass(t, apply.Boot); !backTo("build-1")(r) || r.Steps > 0 || r.Modules[0].Log == "" {
		t.Errorf("after a restart: %+v", r)
	}
	// Drift is put right towards what runs.
	must(t, os.WriteFile(b.root("/etc/notes/conf"), []byte("by hand"), 0o640))
	if r := b.pass(t, apply.Reconcile); !backTo("build-1")(r) || len(r.Drift) != 1 || !r.Drift[0].Repaired {
		t.Errorf("after a change by hand: %+v", r)
	}
	still("after a change by hand")
	// Another module's change is none of this one's.
	other := module("other", files(file("/etc/other", "x")))
	two.Modules = append(two.Modules, b.content(t, other).Modules...)
	if r := b.acceptContent(t, 3, two); !backTo("build-1")(r) || b.read(t, "/etc/other") != "x" {
		t.Errorf("with another module: %+v", r)
	}
	still("with another module")
	if n := b.units.get(t, web).Starts; n != starts {
		t.Errorf("it was started %d times more", n-starts)
	}
	// Somebody asks: it is tried again, and fails again.
	if r := b.pass(t, apply.Asked); r.Modules[0].State != report.Pending || r.Modules[0].Build != "build-2" {
		t.Errorf("asked to try again: %+v", r.Modules)
	}
	settles(t, b, "it to go back again", time.Second, backTo("build-1"))
	still("after it was tried again")
	// And a better one: what is on trial makes no room in place of what it may have to go back to.
	r = b.accept(t, 4, at("three", "build-3"), other)
	if m := r.Modules[0]; m.Build != "build-3" {
		t.Errorf("%+v", m)
	}
	if _, err := os.Stat(b.path("state/bundles/" + one.artifact.Digest)); err != nil {
		t.Errorf("the last good bundle during the next trial: %v", err)
	}
	r = settles(t, b, "the third to be well", 0, well)
	if m := r.Modules[0]; m.Build != "build-3" || m.State != report.Running || m.Log != "" || m.Detail != "" {
		t.Errorf("the third: %+v", m)
	}
}

// A first build has nothing to go back to: it is left as it is, and may still get well.
func TestAFirstBuildThatDoesNotGetWell(t *testing.T) {
	b := newBed(t)
	b.journal = []string{"not yet"}
	asking(t, b)
	f := newFront(t, b, badTwo)
	b.accept(t, 1, notesAt(b, t, f.address, "two", "build-2"))
	r := settles(t, b, "it to fail", time.Second, func(r apply.Result) bool { return r.Outcome == report.Failed })
	if m := r.Modules[0]; m.State != report.Broken || m.Build != "build-2" || !strings.HasPrefix(m.Detail, "it did not get well within 30s") && !strings.Contains(m.Detail, "500") || m.Log != "not yet" {
		t.Errorf("%+v", m)
	}
	p := b.units.get(t, web)
	if p.Active != "active" || p.Starts != 1 {
		t.Errorf("it was not left as it is: %+v", p)
	}
	b.restart(t)
	asking(t, b)
	if r := b.pass(t, apply.Boot); r.Outcome != report.Failed || r.Modules[0].Log != "not yet" {
		t.Errorf("after a restart: %+v", r)
	}
	f.status.Store(func(string) string { return "200 OK" })
	r = settles(t, b, "it to get well", time.Second, well)
	if r.Modules[0].Log != "" {
		t.Errorf("well: %+v", r.Modules[0])
	}
	f.status.Store(badTwo)
	b.accept(t, 2, notesAt(b, t, f.address, "two", "build-3"))
	r = settles(t, b, "the next to go back to it", time.Second, backTo("build-2"))
	if !strings.Contains(r.Modules[0].Detail, "which is not well either") { // it does not answer any more
		settles(t, b, "that one to be not well either", time.Second, func(r apply.Result) bool {
			return backTo("build-2")(r) && strings.Contains(r.Modules[0].Detail, "which is not well either: mesh-notes-web: it answers 500")
		})
	}
}

// What was well and does not answer any more is said, and left to run; so is that it does again.
func TestWhatGetsUnhealthyIsSaidBothWays(t *testing.T) {
	b := newBed(t)
	asking(t, b)
	f := newFront(t, b, badTwo)
	b.accept(t, 1, notesAt(b, t, f.address, "one", "build-1"))
	settles(t, b, "it to be well", 0, well)
	settles(t, b, "everything to be looked at quickly", 0, func(r apply.Result) bool { return r.Took == 0 })
	starts := b.units.get(t, web).Starts
	f.status.Store(func(string) string { return "503 Service Unavailable" })
	r := settles(t, b, "it to be unhealthy", 500*time.Millisecond, func(r apply.Result) bool { return r.Outcome == report.Failed })
	if m := r.Modules[0]; m.State != report.Unwell || m.Build != "build-1" || m.Detail != "mesh-notes-web: it answers 503 Service Unavailable" {
		t.Errorf("%+v", m)
	}
	if n := b.units.get(t, web).Starts; n != starts {
		t.Errorf("it was started %d times more", n-starts)
	}
	b.restart(t) // who does not know yet does not call it well
	if r := b.pass(t, apply.Boot); r.Modules[0].State != report.Unwell {
		t.Errorf("after a restart: %+v", r.Modules[0])
	}
	asking(t, b)
	f.status.Store(badTwo)
	settles(t, b, "it to be well again", 500*time.Millisecond, well)
}

// A module that says nothing about its health is judged by what systemd says of it.
func TestWhatSystemdGivesUpGoesBackAtOnce(t *testing.T) {
	for _, tt := range []struct {
		name, version string
		refuses       error
		says          string
	}{
		{"a unit that dies", "fails", nil, "build-2: mesh-notes-web.service: it failed (exit-code, status 0); rolled back to build-1, which runs"},
		{"a unit that systemd cannot read", "two", systemd.ErrBadUnit, "the unit's file is not valid; rolled back to build-1, which runs"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t)
			one := notes(b, t, "one")
			applied(t, b.accept(t, 1, one))
			two := notes(b, t, tt.version)
			two.build = "build-2"
			b.units.refuses = func(call string) error {
				if text, _ := b.units.file(web); strings.HasSuffix(call, "start "+web) && strings.Contains(text, two.artifact.Digest) {
					return tt.refuses
				}
				return nil
			}
			r := b.accept(t, 2, two)
			if !backTo("build-1")(r) || !strings.HasSuffix(r.Modules[0].Detail, tt.says) || !r.News {
				t.Fatalf("%s: %+v", r.Outcome, r.Modules)
			}
			if p := b.units.get(t, web); p.Active != "active" || !strings.Contains(p.Text, one.artifact.Digest) {
				t.Errorf("what runs is %+v", p)
			}
			if past, err := b.store.History(t.Context(), 10); err != nil || len(past) != 2 || past[0].Outcome != report.Failed {
				t.Errorf("history %+v, %v", past, err)
			}
			refuses := b.units.refuses
			for seq := range uint64(12) { // only the settings, and still not; the declaration of the good one is long gone
				two.settings = map[string]string{"port": fmt.Sprint(seq)}
				if r := b.accept(t, 3+seq, two); !backTo("build-1")(r) {
					t.Fatalf("with other settings: %+v", r.Modules)
				}
				if seq%5 == 4 {
					b.restart(t)
					b.units.refuses = refuses
				}
			}
			one.settings = map[string]string{"port": "9"}
			applied(t, b.accept(t, 20, one))
			if got := b.read(t, "/etc/notes/conf"); !strings.HasPrefix(got, "one 9") {
				t.Errorf("conf is %q", got)
			}
		})
	}
}

// "Could not fetch" is not "unhealthy", nor is what is held, or a systemd that is not there: the old build runs
// on, and the new one is tried again by itself.
func TestWhatCouldNotBeDoneIsNoVerdict(t *testing.T) {
	b := newBed(t)
	applied(t, b.accept(t, 1, notes(b, t, "one")))
	starts := b.units.get(t, web).Starts
	away := true
	b.fetched = func(declaration.Artifact, int) error {
		if away {
			return errors.New("the bus is away")
		}
		return nil
	}
	two := notes(b, t, "two")
	two.build = "build-2"
	r := b.accept(t, 2, two)
	for range 5 {
		if m := r.Modules[0]; m.State != report.Broken || !strings.Contains(m.Detail, "the bus is away") || m.Build != "build-2" || b.units.get(t, web).Starts != starts {
			t.Fatalf("%+v", m)
		}
		b.clock.Advance(5 * time.Minute)
		r = b.pass(t, apply.Reconcile)
	}
	away = false
	b.clock.Advance(10 * time.Minute)
	b.units.gone = errors.New("no bus")
	r = b.pass(t, apply.Reconcile)
	if r.Modules[0].State != report.Unknown {
		t.Errorf("without systemd: %+v", r.Modules[0])
	}
	b.units.gone = nil
	b.clock.Advance(10 * time.Minute)
	applied(t, b.pass(t, apply.Reconcile))
	if p := b.units.get(t, web); !strings.Contains(p.Text, two.artifact.Digest) {
		t.Errorf("what runs is %+v", p)
	}
}

// A program that is asked by gets what the process has; one in a container is killed there when it hangs.
func TestWhatIsAskedByAProgram(t *testing.T) {
	b := newBed(t)
	asking(t, b)
	m := notes(b, t, "one")
	m.Run.Processes = map[string]manifest.Process{"web": {Exec: []string{"bin/web"}, User: "notes", Env: map[string]string{"A": "plain", "B": "${secret:key}"},
		Health: &manifest.Health{Command: []string{"bin/check", "--deep"}}}}
	must(t, os.MkdirAll(b.root(b.path("state")), 0o755))
	b.accept(t, 1, m)
	settles(t, b, "it to be well", time.Second, well)
	all := b.programs()
	if len(all) == 0 {
		t.Fatal("nothing was run")
	}
	folder := b.path("state/bundles/" + m.artifact.Digest)
	if p := all[0]; p.name != "mesh-engine_health-mesh-notes-web" || !slices.Equal(p.Argv, []string{folder + "/bin/check", "--deep"}) || p.User != "notes" || p.Directory != folder ||
		!slices.Equal(p.Env, []string{"A=plain"}) || p.EnvFile != b.path("state/env/mesh-notes-web.env") {
		t.Errorf("it was %+v", p)
	}
}

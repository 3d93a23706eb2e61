package apply_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"mesh/agent/apply"
	"mesh/agent/plan"
	"mesh/agent/resource"
	"mesh/agent/state"
	"mesh/shared/declaration"
	"mesh/shared/manifest"
	"mesh/shared/report"
)

func TestMain(m *testing.M) {
	if point := os.Getenv(childEnv); point != "" {
		child(point)
	}
	if point := os.Getenv(takeEnv); point != "" {
		takeChild(point)
	}
	if dir := os.Getenv(daemonEnv); dir != "" {
		daemon(dir)
	}
	if to := os.Getenv(dumpEnv); to != "" {
		dump(to)
	}
	goleak.VerifyTestMain(m)
}

func file(path, content string) manifest.File { return manifest.File{Path: path, Content: content} }

func files(all ...manifest.File) manifest.Run { return manifest.Run{Files: all} }

func def(s string) *string { return &s }

// notes is a module with one of everything.
func notes(b *bed, t testing.TB, version string) mod {
	t.Helper()
	m := module("notes", manifest.Run{
		Processes:   map[string]manifest.Process{"web": {Exec: []string{"bin/web", version}}},
		Timers:      map[string]manifest.Timer{"backup": {Exec: []string{"bin/backup"}, Calendar: "daily"}},
		Files:       []manifest.File{{Path: "/etc/notes/conf", Content: version + " ${setting:port} ${node:name} $${HOME}\n", Mode: "0640"}, {Path: "/etc/notes/key", Content: "${secret:key}", Mode: "0600"}},
		Directories: []manifest.Directory{{Path: "/srv/notes", Mode: "0750", Data: true}},
		Users:       map[string]manifest.User{"notes": {}},
	}).with(b.artifact(t, map[string]string{"bin/web": "web " + version, "bin/backup": "backup " + version}))
	m.Settings = map[string]manifest.Setting{"port": {Default: def("8080")}}
	m.Secrets = map[string]manifest.Secret{"key": {}}
	m.secrets = map[string]string{"key": "s3cret"}
	return m
}

func applied(t testing.TB, r apply.Result) apply.Result {
	t.Helper()
	if r.Outcome != report.Applied {
		t.Fatalf("outcome %s, refused %v, modules %+v", r.Outcome, r.Refused, r.Modules)
	}
	return r
}

func TestAppliesAModule(t *testing.T) {
	b := newBed(t)
	r := applied(t, b.accept(t, 7, notes(b, t, "one")))
	if r.Seq != 7 || !r.News || r.Steps == 0 || len(r.Modules) != 1 || r.Modules[0].State != report.Running || r.Modules[0].Build != "build-1" {
		t.Errorf("%+v", r)
	}
	if got := b.read(t, "/etc/notes/conf"); got != "one 8080 n1 ${HOME}\n" {
		t.Errorf("conf is %q", got)
	}
	if got := b.read(t, "/etc/notes/key"); got != "s3cret" {
		t.Errorf("key is %q", got)
	}
	for p, mode := range map[string]fs.FileMode{"/etc/notes/conf": 0o640, "/etc/notes/key": 0o600, "/srv/notes": fs.ModeDir | 0o750, "/etc/notes": fs.ModeDir | 0o755} {
		st, err := os.Stat(b.root(p))
		must(t, err)
		if st.Mode() != mode {
			t.Errorf("%s has mode %v, want %v", p, st.Mode(), mode)
		}
	}
	want := []string{"enable mesh-notes-backup.timer mesh-notes-web.service", "reload", "start mesh-notes-backup.timer", "start mesh-notes-web.service"}
	if got := b.units.calls(t); !slices.Equal(got, want) {
		t.Errorf("systemd was asked %q, want %q", got, want)
	}
	if p := b.units.get(t, "mesh-notes-web.service"); p.Active != "active" || !strings.Contains(p.Text, b.path("state/bundles/")) {
		t.Errorf("web is %+v", p)
	}
	if past, err := b.store.History(t.Context(), 10); err != nil || len(past) != 1 || past[0].Seq != 7 || past[0].Steps != r.Steps {
		t.Errorf("history %+v, %v", past, err)
	}
	if d := b.engine.Declared(); d == nil || d.Seq != 7 || len(d.Modules) != 1 || d.Modules[0].Manifest != nil {
		t.Errorf("declared %+v", d)
	}
}

// APP-3: applying the same again writes nothing and restarts nothing.
func TestAppliedAgainWritesNothing(t *testing.T) {
	b := newBed(t)
	c := b.content(t, notes(b, t, "one"))
	signed := b.sign(t, 1, c)
	r, err := b.engine.Accept(t.Context(), signed)
	must(t, err)
	applied(t, r)
	b.units.calls(t)
	root, bundles, store := stamps(t, b.path("root")), stamps(t, b.path("state/bundles")), stamps(t, b.path("state"))
	still := func(what string, steps int) {
		t.Helper()
		if calls := b.units.calls(t); len(calls) > 0 || steps > 0 {
			t.Errorf("%s: %d steps, systemd was asked %q", what, steps, calls)
		}
		if d := cmp.Diff(root, stamps(t, b.path("root"))) + cmp.Diff(bundles, stamps(t, b.path("state/bundles"))); d != "" {
			t.Errorf("%s wrote: %s", what, d)
		}
		if d := cmp.Diff(store, stamps(t, b.path("state"))); d != "" {
			t.Errorf("%s wrote to the store: %s", what, d)
		}
	}
	again, err := b.engine.Accept(t.Context(), signed)
	must(t, err)
	if again.News || again.Outcome != report.Applied {
		t.Errorf("the same again: %+v", again)
	}
	still("the same declaration", again.Steps)
	still("a pass", b.pass(t, apply.Reconcile).Steps)
	b.clock.Advance(time.Minute)
	for i := range 15 { // thorough and quick looks
		still(fmt.Sprintf("pass %d", i), applied(t, b.pass(t, apply.Reconcile)).Steps)
	}
	b.restart(t)
	root, bundles = stamps(t, b.path("root")), stamps(t, b.path("state/bundles"))
	store = stamps(t, b.path("state"))
	boot := applied(t, b.pass(t, apply.Boot))
	if boot.Steps > 0 || len(b.units.calls(t)) > 0 || stamps(t, b.path("root")) != root {
		t.Errorf("a boot did something: %+v", boot)
	}
	store = stamps(t, b.path("state")) // the boot is remembered
	// The same content under a new seq is one row in the store and nothing on the machine.
	still("a new seq", applied(t, b.pass(t, apply.Reconcile)).Steps)
	r = applied(t, b.acceptContent(t, 2, c))
	store = stamps(t, b.path("state"))
	still("the same content under a new seq", r.Steps)
}

// APP-1 and the rules of seq: what is refused changes nothing.
func TestRefusedChangesNothing(t *testing.T) {
	b := newBed(t)
	applied(t, b.accept(t, 5, module("notes", files(file("/etc/notes.conf", "five")))))
	other := newBed(t)
	next := b.content(t, module("notes", files(file("/etc/notes.conf", "six"))))
	unknown := next
	unknown.Modules = slices.Clone(next.Modules)
	unknown.Modules[0].Manifest = json.RawMessage(`{"module":"notes","run":{"files":[{"path":"/etc/notes.conf","colour":"red"}]}}`)
	for _, tt := range []struct {
		name   string
		signed declaration.Signed
		seq    uint64
		want   string
	}{
		{"not signed", declaration.Signed("{}"), 0, "not a signed declaration"},
		{"signed by another", other.sign(t, 6, next), 6, "its signature is not by the key"},
		{"from a seq that nobody comes to", other.sign(t, 1<<60, next), 0, "its signature is not by the key"},
		{"changed on the way", append(b.sign(t, 6, next), ' '), 6, "its signature is not by the key"},
		{"an unknown field in a manifest", b.sign(t, 6, unknown), 6, "modules[0].manifest.run.files[0].colour"},
		{"an older seq", b.sign(t, 4, next), 4, "seq only grows"},
		{"another text under the seq held", b.sign(t, 5, next), 5, "another text"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root, ledger := stamps(t, b.path("root")), ledger(t, b)
			r, err := b.engine.Accept(t.Context(), tt.signed)
			must(t, err)
			if r.Outcome != report.Refused || r.Refused == nil || !strings.Contains(r.Refused.Error(), tt.want) || r.RefusedSeq != tt.seq || r.Seq != 5 {
				t.Errorf("%+v, want a refusal of %d with %q", r, tt.seq, tt.want)
			}
			if past, err := b.store.History(t.Context(), 1); err != nil || len(past) != 1 || past[0].Seq != tt.seq || past[0].Outcome != report.Refused || !strings.Contains(past[0].Why, tt.want) {
				t.Errorf("history %+v, %v", past, err)
			}
			store := stamps(t, b.path("state"))
			if again, err := b.engine.Accept(t.Context(), tt.signed); err != nil || again.RefusedSeq != tt.seq || again.Outcome != report.Refused {
				t.Errorf("delivered again: %+v, %v", again, err)
			}
			if d := cmp.Diff(store, stamps(t, b.path("state"))); d != "" {
				t.Errorf("delivered again it was written: %s", d)
			}
			if d := cmp.Diff(root, stamps(t, b.path("root"))); d != "" {
				t.Errorf("the machine changed: %s", d)
			}
			if seq, _ := b.store.Newest(); seq != 5 {
				t.Errorf("the store holds %d", seq)
			}
			if d := cmp.Diff(ledger, ledgerOf(t, b)); d != "" {
				t.Errorf("the ledger changed: %s", d)
			}
			if p, err := b.store.Problems(t.Context(), 1); err != nil || len(p) != 1 || !strings.Contains(p[0].Text, tt.want) {
				t.Errorf("problems %v, %v", p, err)
			}
		})
	}
	if r := b.pass(t, apply.Reconcile); r.Outcome != report.Applied || r.Seq != 5 {
		t.Errorf("afterwards %+v", r)
	}
}

func ledger(t testing.TB, b *bed) []state.Row { return ledgerOf(t, b) }

func ledgerOf(t testing.TB, b *bed) []state.Row {
	t.Helper()
	rows, err := b.store.Ledger(t.Context())
	must(t, err)
	for i := range rows {
		rows[i].At = time.Time{}
	}
	return rows
}

// APP-4: a module that fails stops no other; what it needs comes first.
func TestOneModuleFailsAlone(t *testing.T) {
	b := newBed(t)
	must(t, os.WriteFile(b.root("/etc/held"), []byte("mine"), 0o600))
	missing := module("missing", files(file("/etc/missing", "${setting:port}")))
	missing.Settings = map[string]manifest.Setting{"port": {}}
	breaks := module("breaks", manifest.Run{Processes: map[string]manifest.Process{"p": {Exec: []string{"/bin/fails"}}}})
	r := b.accept(t, 1,
		module("good", manifest.Run{Files: []manifest.File{file("/etc/good", "x")}, Processes: map[string]manifest.Process{"p": {Exec: []string{"/bin/p"}}}}),
		module("held", manifest.Run{Files: []manifest.File{file("/etc/held", "theirs"), file("/etc/beside", "x")}, Processes: map[string]manifest.Process{"p": {Exec: []string{"/bin/p"}}}}),
		missing, breaks)
	if r.Outcome != report.Failed || r.Refused == nil {
		t.Errorf("%+v", r)
	}
	want := map[string]struct {
		state  report.State
		detail string
	}{
		"good":    {report.Running, ""},
		"held":    {report.Broken, "file /etc/held of module held on n1: it is there and mesh did not put it there (root, 0600"},
		"missing": {report.Broken, "${setting:port} in file /etc/missing of module missing"},
		"breaks":  {report.Broken, "mesh-breaks-p.service: it failed"},
	}
	for _, m := range r.Modules {
		w := want[string(m.Name)]
		if m.State != w.state || !strings.Contains(m.Detail, w.detail) || strings.Contains(m.Detail, "\n") {
			t.Errorf("module %s is %s: %q, want %s: %q", m.Name, m.State, m.Detail, w.state, w.detail)
		}
	}
	if b.read(t, "/etc/good") != "x" || b.read(t, "/etc/held") != "mine" || b.read(t, "/etc/beside") != "(absent)" || b.units.get(t, "mesh-held-p.service").Starts != 0 {
		t.Error("a module was half applied, or a held file touched")
	}
	// The person moves it away: the next pass goes on by itself.
	must(t, os.Remove(b.root("/etc/held")))
	b.clock.Advance(time.Minute)
	b.pass(t, apply.Reconcile)
	if b.read(t, "/etc/held") != "theirs" || b.units.get(t, "mesh-held-p.service").Active != "active" {
		t.Error("the module was not taken up again")
	}
	// Unassigned, nothing of theirs stays and nothing else goes.
	applied(t, b.accept(t, 2))
	for _, p := range []string{"/etc/good", "/etc/held", "/etc/beside", "/etc/systemd/system/mesh-good-p.service"} {
		if got := b.read(t, p); got != "(absent)" {
			t.Errorf("%s is %q", p, got)
		}
	}
}

func TestUnassignKeepsDataAndWhatWasThere(t *testing.T) {
	b := newBed(t)
	must(t, os.WriteFile(b.root("/etc/adopted"), []byte("x"), 0o644))
	before := tree(t, b.path("root"))
	m := notes(b, t, "one")
	m.Run.Files = append(m.Run.Files, file("/etc/adopted", "x"))
	applied(t, b.accept(t, 1, m))
	must(t, os.WriteFile(b.root("/srv/notes/data"), []byte("precious"), 0o600))
	applied(t, b.accept(t, 2))
	after := tree(t, b.path("root"))
	for p := range after {
		if strings.HasPrefix(p, "srv") || p == "etc/passwd" || p == "etc/group" { // data and users stay
			delete(after, p)
			delete(before, p)
		}
	}
	if d := cmp.Diff(before, after); d != "" {
		t.Errorf("(-before +after):\n%s", d)
	}
	if b.read(t, "/srv/notes/data") != "precious" {
		t.Error("data is gone")
	}
	if entries, err := os.ReadDir(b.path("state/bundles")); err != nil || len(entries) > 0 {
		t.Errorf("bundles left: %v, %v", entries, err)
	}
	if p := b.units.get(t, "mesh-notes-web.service"); p.Active != "" {
		t.Errorf("web is %+v", p)
	}
}

func TestChangesRestartWhatDependsOnThem(t *testing.T) {
	b := newBed(t)
	c := b.content(t, notes(b, t, "one"))
	applied(t, b.acceptContent(t, 1, c))
	starts := b.units.get(t, "mesh-notes-web.service").Starts
	b.units.calls(t)
	c.Modules[0].Settings = map[string]string{"port": "9090"}
	applied(t, b.acceptContent(t, 2, c))
	if got := b.units.calls(t); !slices.Equal(got, []string{"restart mesh-notes-web.service"}) {
		t.Errorf("a setting: systemd was asked %q", got)
	}
	if b.read(t, "/etc/notes/conf") != "one 9090 n1 ${HOME}\n" {
		t.Error("the setting did not arrive")
	}
	applied(t, b.accept(t, 3, notes(b, t, "two")))
	got := b.units.calls(t)
	if n := len(slices.DeleteFunc(slices.Clone(got), func(s string) bool { return s != "reload" })); n != 1 {
		t.Errorf("a new bundle: %d reloads in %q", n, got)
	}
	p := b.units.get(t, "mesh-notes-web.service")
	if p.Starts != starts+2 || p.Running != resource.Sum([]byte(b.read(t, resource.UnitFolder+"/mesh-notes-web.service"))) {
		t.Errorf("web was started %d times: %+v", p.Starts-starts, p)
	}
	// Three builds on, the last two bundles are there.
	applied(t, b.accept(t, 4, notes(b, t, "three")))
	if names := dirNames(t, b.path("state/bundles")); len(names) != 2 {
		t.Errorf("bundles: %v", names)
	}
}

func TestManyUnitsOneReload(t *testing.T) {
	b := newBed(t)
	var mods []mod
	for i := range 12 {
		mods = append(mods, module(fmt.Sprintf("m%d", i), manifest.Run{Processes: map[string]manifest.Process{"a": {Exec: []string{"/bin/a"}, After: []string{"b"}}, "b": {Exec: []string{"/bin/b"}}}}))
	}
	applied(t, b.accept(t, 1, mods...))
	calls := b.units.calls(t)
	count := map[string]int{}
	for i, c := range calls {
		verb, name, _ := strings.Cut(c, " ")
		count[verb]++
		if before, ok := strings.CutSuffix(name, "-a.service"); ok && verb == "start" && !slices.Contains(calls[:i], "start "+before+"-b.service") {
			t.Errorf("%s came before the process it is after", c)
		}
	}
	if count["reload"] != 1 || count["enable"] != 1 || count["start"] != 24 {
		t.Errorf("%v", count)
	}
}

// APP-14: no systemd is a named state, and nothing is half done.
func TestDeadSystemd(t *testing.T) {
	b := newBed(t)
	b.units.gone = errors.New("connection refused")
	r := b.accept(t, 1, notes(b, t, "one"), module("plain", files(file("/etc/plain", "x"))))
	if r.Outcome != report.Failed || r.Modules[0].State != report.Unknown || !strings.Contains(r.Modules[0].Detail, "systemd cannot be asked: connection refused") {
		t.Errorf("%+v", r)
	}
	if r.Modules[1].State != report.Running || b.read(t, "/etc/plain") != "x" || b.read(t, "/etc/notes/conf") != "(absent)" {
		t.Errorf("%+v", r.Modules)
	}
	b.units.gone = nil
	applied(t, b.pass(t, apply.Reconcile))
}

func TestFailedModulesWaitLonger(t *testing.T) {
	b := newBed(t)
	tries := 0
	b.fetched = func(declaration.Artifact, int) error { tries++; return errors.New("the bus is away") }
	r := b.accept(t, 1, notes(b, t, "one"))
	if r.Outcome != report.Failed || !strings.Contains(r.Modules[0].Detail, "the bus is away") || r.NextTry.IsZero() {
		t.Errorf("%+v", r)
	}
	for range 60 { // ten minutes in steps of ten seconds
		b.clock.Advance(10 * time.Second)
		if r = b.pass(t, apply.Reconcile); r.Outcome != report.Failed || !strings.Contains(r.Modules[0].Detail, "the bus is away") {
			t.Fatalf("%+v", r)
		}
	}
	if tries < 5 || tries > 9 {
		t.Errorf("%d tries in ten minutes", tries)
	}
	b.fetched = nil
	b.clock.Advance(r.NextTry.Sub(b.clock.Now()))
	if r = applied(t, b.pass(t, apply.Reconcile)); !r.NextTry.IsZero() {
		t.Errorf("%+v", r)
	}
}

// filterFunc is the packet filter of a test.
// A pause that ends while a pass is under way, which had left the module out for it, is followed by the next pass
// at once and not by the one of the next minute.
func TestAPauseThatEndsDuringAPass(t *testing.T) {
	b, err := makeBed(t.TempDir())
	must(t, err)
	var takes time.Duration // what the packet filter takes, after it was seen who has a pause
	b.filter = filterFunc(func(*declaration.Declaration) error {
		b.clock.Advance(takes)
		return errors.New("not today")
	})
	b.open(t)
	b.fetched = func(declaration.Artifact, int) error { return errors.New("the bus is away") }
	r := b.accept(t, 1, notes(b, t, "one"))
	b.clock.Advance(r.NextTry.Sub(b.clock.Now()) - time.Second)
	takes = 2 * time.Second
	r = b.pass(t, apply.Reconcile)
	if wait := r.NextTry.Sub(b.clock.Now()); r.NextTry.IsZero() || wait > time.Second {
		t.Errorf("the next try is in %v: %+v", wait, r)
	}
}

type filterFunc func(*declaration.Declaration) error

func (f filterFunc) Apply(_ context.Context, d *declaration.Declaration) error { return f(d) }

func TestPacketFilterComesBeforeUnitsWhateverModulesDo(t *testing.T) {
	b, err := makeBed(t.TempDir())
	must(t, err)
	var calls []string
	answer := errors.New("nf_tables is missing")
	b.filter = filterFunc(func(d *declaration.Declaration) error {
		calls = append(calls, fmt.Sprint(d.Seq))
		if p := b.units.get(t, "mesh-notes-web.service"); p.Starts > 0 {
			t.Error("a unit started before the filter was in force")
		}
		return answer
	})
	b.open(t)
	must(t, os.WriteFile(b.root("/etc/held"), []byte("mine"), 0o600))
	r := b.accept(t, 1, notes(b, t, "one"), module("held", files(file("/etc/held", "x"))))
	if r.Outcome != report.Failed || r.Refused == nil || !strings.Contains(r.Refused.Error(), "nf_tables is missing") || r.Modules[1].State != report.Running {
		t.Errorf("%+v", r)
	}
	must(t, os.Remove(b.root("/etc/held")))
	answer = nil
	b.filter = nil
	b.units.by(t, "mesh-notes-web.service", func(p *paperUnit) { p.Starts = 0 })
	b.clock.Advance(time.Minute)
	applied(t, b.pass(t, apply.Reconcile))
	b.pass(t, apply.Reconcile)
	if !slices.Equal(calls, []string{"1", "1"}) {
		t.Errorf("the filter was applied for %v; once in force it keeps itself", calls)
	}
}

func TestPreviewChangesNothing(t *testing.T) {
	b := newBed(t)
	before := stamps(t, b.dir)
	p, err := b.engine.Preview(t.Context(), b.sign(t, 1, b.content(t, module("notes", files(file("/etc/notes.conf", "x"))))))
	must(t, err)
	if len(p.Steps) != 1 || p.Steps[0].Op != plan.WriteFile || p.Steps[0].Reason != "declared, not there" {
		t.Errorf("%+v", p.Steps)
	}
	if d := cmp.Diff(before, stamps(t, b.dir)); d != "" {
		t.Error(d)
	}
}

func TestStrays(t *testing.T) {
	b := newBed(t)
	for name, text := range map[string]string{"mesh-old-p.service": resource.Mark + "old, process p.\n", "mesh-agent.service": "[Service]\n"} {
		must(t, os.WriteFile(b.root(resource.UnitFolder+"/"+name), []byte(text), 0o644))
	}
	r := applied(t, b.accept(t, 1, module("notes", files(file("/etc/notes.conf", "x")))))
	if !slices.Equal(r.Strays, []string{"unit:mesh-old-p.service"}) {
		t.Errorf("strays %v", r.Strays)
	}
}

func TestNothingAccepted(t *testing.T) {
	b := newBed(t)
	if r := b.pass(t, apply.Boot); r.Outcome != report.None || b.engine.Declared() != nil {
		t.Errorf("%+v", r)
	}
}

func TestCancelledPassIsTakenUpAgain(t *testing.T) {
	b, err := makeBed(t.TempDir())
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	b.point = func(name string) {
		if name == "after write file" {
			cancel()
		}
	}
	b.workers = 1
	b.open(t)
	_, err = b.engine.Accept(ctx, b.sign(t, 1, b.content(t, module("notes", files(file("/etc/a", "a"), file("/etc/b", "b"))))))
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("%v", err)
	}
	if b.read(t, "/etc/a") != "a" || b.read(t, "/etc/b") != "(absent)" {
		t.Error("it did not stop where it was")
	}
	applied(t, b.pass(t, apply.Reconcile))
	if b.read(t, "/etc/b") != "b" {
		t.Error("it was not taken up again")
	}
}

func TestSecretForAnotherNodeFailsItsModule(t *testing.T) {
	b, other := newBed(t), newBed(t)
	c := other.content(t, notes(b, t, "one"))
	r := b.acceptContent(t, 1, c)
	if r.Modules[0].State != report.Broken || !strings.Contains(r.Modules[0].Detail, "sealed to another key") {
		t.Errorf("%+v", r.Modules)
	}
	if text, err := os.ReadFile(b.path("state/state.db-wal")); err != nil || strings.Contains(string(text), "s3cret") {
		t.Errorf("an opened secret is in the store, or %v", err)
	}
}

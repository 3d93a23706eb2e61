package apply_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mesh/agent/apply"
	"mesh/agent/resource"
	"mesh/shared/declaration"
	"mesh/shared/manifest"
)

// APP-6, the part about files and units.
func TestDriftIsRepairedAndSaid(t *testing.T) {
	b := newBed(t)
	applied(t, b.accept(t, 1, notes(b, t, "one")))
	b.clock.Advance(time.Minute)
	applied(t, b.pass(t, apply.Reconcile))
	want := tree(t, b.path("root"))
	for _, tt := range []struct {
		name   string
		change func()
		thing  string
		what   string
	}{
		{"content", func() { must(t, os.WriteFile(b.root("/etc/notes/conf"), []byte("mine"), 0o640)) }, "file:/etc/notes/conf", "content differs"},
		{"mode", func() { must(t, os.Chmod(b.root("/etc/notes/key"), 0o644)) }, "file:/etc/notes/key", "mode is 0644, declared 0600"},
		{"missing", func() { must(t, os.Remove(b.root("/etc/notes/conf"))) }, "file:/etc/notes/conf", "it is gone"},
		{"folder's mode", func() { must(t, os.Chmod(b.root("/srv/notes"), 0o777)) }, "dir:/srv/notes", "mode is 0777, declared 0750"},
		{"bundle gone", func() { must(t, os.RemoveAll(bundleFolder(t, b))) }, "bundle:notes/", "it is gone"},
		{"stopped", func() {
			b.units.by(t, "mesh-notes-web.service", func(p *paperUnit) { p.Active, p.Sub = "inactive", "dead" })
		}, "unit:mesh-notes-web.service", "it was stopped"},
		{"disabled", func() { must(t, os.Remove(b.units.wants("mesh-notes-backup.timer"))) }, "unit:mesh-notes-backup.timer", "it does not start at boot any more"},
		{"unit's text", func() {
			must(t, os.WriteFile(b.root(resource.UnitFolder+"/mesh-notes-web.service"), []byte("[Service]\nExecStart=/bin/mine\n"), 0o644))
		}, "unit:mesh-notes-web.service", "content differs"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b.clock.Advance(time.Minute)
			applied(t, b.pass(t, apply.Reconcile)) // so that a quick look has something to miss
			tt.change()
			b.clock.Advance(time.Minute)
			r := applied(t, b.pass(t, apply.Reconcile))
			if len(r.Drift) != 1 || !strings.HasPrefix(r.Drift[0].Thing, tt.thing) || r.Drift[0].What != tt.what || !r.Drift[0].Repaired || r.Drift[0].Module != "notes" {
				t.Errorf("drift %+v, want %s: %s", r.Drift, tt.thing, tt.what)
			}
			if d := cmp.Diff(want, tree(t, b.path("root"))); d != "" {
				t.Errorf("not repaired (-want +got):\n%s", d)
			}
			if p := b.units.get(t, "mesh-notes-web.service"); p.Active != "active" {
				t.Errorf("web is %+v", p)
			}
			if kept, err := b.store.Drift(t.Context(), 1); err != nil || len(kept) != 1 || kept[0] != r.Drift[0] {
				t.Errorf("kept %+v, %v", kept, err)
			}
			if r := applied(t, b.pass(t, apply.Reconcile)); len(r.Drift) > 0 || r.Steps > 0 {
				t.Errorf("said or done again: %+v", r)
			}
		})
	}
}

func bundleFolder(t testing.TB, b *bed) string {
	t.Helper()
	for _, row := range ledgerOf(t, b) {
		if row.Kind == string(resource.KindBundle) {
			return b.path("state/bundles/" + row.ID[strings.LastIndexByte(row.ID, '/')+1:])
		}
	}
	t.Fatal("no bundle in the ledger")
	return ""
}

func TestDriftIsOnlySaidWhereThatIsThePolicy(t *testing.T) {
	b := newBed(t)
	c := b.content(t, module("notes", files(file("/etc/notes.conf", "one"))))
	c.Drift = declaration.ReportOnly
	applied(t, b.acceptContent(t, 1, c))
	must(t, os.WriteFile(b.root("/etc/notes.conf"), []byte("mine"), 0o644))
	b.clock.Advance(time.Minute)
	r := b.pass(t, apply.Reconcile)
	if len(r.Drift) != 1 || r.Drift[0].Repaired || r.Steps != 0 || b.read(t, "/etc/notes.conf") != "mine" {
		t.Errorf("%+v", r)
	}
	b.clock.Advance(time.Minute)
	if r := b.pass(t, apply.Reconcile); len(r.Drift) != 0 {
		t.Errorf("said twice: %+v", r.Drift)
	}
	// A new declaration is no drift.
	c = b.content(t, module("notes", files(file("/etc/notes.conf", "two"))))
	c.Drift = declaration.ReportOnly
	applied(t, b.acceptContent(t, 2, c))
	if b.read(t, "/etc/notes.conf") != "two" {
		t.Error("the new content was not written")
	}
}

// With drift=report nothing that a person changed is touched, whatever it is, by no look and no restart of the
// agent; after a boot of the machine what should run is started.
func TestReportOnlyChangesNothing(t *testing.T) {
	b := newBed(t)
	boot := func(id string) {
		t.Helper()
		must(t, os.MkdirAll(b.root("/proc/sys/kernel/random"), 0o755))
		must(t, os.WriteFile(b.root("/proc/sys/kernel/random/boot_id"), []byte(id+"\n"), 0o444))
	}
	boot("first")
	m := notes(b, t, "one")
	m.Run.Processes["other"] = manifest.Process{Exec: []string{"bin/web"}}
	m.Run.Processes["gone"] = manifest.Process{Exec: []string{"bin/web"}}
	c := b.content(t, m)
	c.Drift = declaration.ReportOnly
	applied(t, b.acceptContent(t, 1, c))
	must(t, os.WriteFile(b.root("/etc/notes/conf"), []byte("mine"), 0o600))
	must(t, os.Remove(b.root("/etc/notes/key")))
	must(t, os.Symlink("/etc/passwd", b.root("/etc/notes/key")))
	must(t, os.Chmod(b.root("/srv/notes"), 0o777))
	must(t, os.WriteFile(filepath.Join(bundleFolder(t, b), "bin/web"), []byte("mine"), 0))
	must(t, os.WriteFile(b.root(resource.UnitFolder+"/mesh-notes-other.service"), []byte("[Service]\nExecStart=/bin/mine\n"), 0o644))
	must(t, os.Remove(b.root(resource.UnitFolder+"/mesh-notes-gone.service")))
	must(t, os.Remove(b.units.wants("mesh-notes-backup.timer")))
	passwd, err := os.ReadFile(b.root("/etc/passwd"))
	must(t, err)
	must(t, os.WriteFile(b.root("/etc/passwd"), []byte(strings.ReplaceAll(string(passwd), "/nonexistent", "/home/notes")), 0o644))
	b.units.by(t, "mesh-notes-web.service", func(p *paperUnit) { p.Active, p.Sub = "inactive", "dead" })
	b.units.calls(t)
	root, bundles := stamps(t, b.path("root")), stamps(t, b.path("state/bundles"))
	said := map[string]int{}
	same := func(what string, r apply.Result) {
		t.Helper()
		for _, d := range r.Drift {
			if said[d.Thing]++; d.Repaired {
				t.Errorf("%s: %+v", what, d)
			}
		}
		if calls := b.units.calls(t); r.Steps > 0 || len(calls) > 0 {
			t.Errorf("%s: %d steps, systemd was asked %q", what, r.Steps, calls)
		}
		if d := cmp.Diff(root, stamps(t, b.path("root"))) + cmp.Diff(bundles, stamps(t, b.path("state/bundles"))); d != "" {
			t.Errorf("%s wrote: %s", what, d)
		}
	}
	for i := range 12 {
		b.clock.Advance(time.Minute)
		same(fmt.Sprint("look ", i), b.pass(t, apply.Reconcile))
	}
	if len(said) != 9 {
		t.Errorf("said: %v", said)
	}
	b.restart(t)
	same("a restart of the agent", b.pass(t, apply.Boot))
	same("the same content under a new seq", b.acceptContent(t, 2, c))
	boot("second")
	root = stamps(t, b.path("root"))
	b.restart(t)
	r := b.pass(t, apply.Boot)
	if calls := b.units.calls(t); !slices.Contains(calls, "start mesh-notes-web.service") {
		t.Errorf("after a boot: %q, %+v", calls, r)
	}
	same("the boot, but for what it started", apply.Result{})
}

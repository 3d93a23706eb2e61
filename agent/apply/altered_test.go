package apply_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mesh/agent/apply"
	"mesh/shared/declaration"
	"mesh/shared/manifest"
	"mesh/shared/report"
)

// program is a module with a bundle of some files.
func program(b *bed, t *testing.T) mod {
	return module("prog", manifest.Run{Processes: map[string]manifest.Process{"p": {Exec: []string{"bin/p"}}}}).
		with(b.artifact(t, map[string]string{"bin/p": "program", "share/a": "aaa", "share/b": "bbb", "share/deep/c": "ccc"}))
}

// APP-6: what was changed by hand in an unpacked bundle is found by the next look, quick or thorough, put right,
// and said; what else a program wrote there is left alone.
func TestAnAlteredBundleIsPutRight(t *testing.T) {
	for _, tt := range []struct {
		name  string
		alter func(t *testing.T, dir string)
		says  string
	}{
		{"a file changed, its times set back", func(t *testing.T, dir string) {
			p := filepath.Join(dir, "bin/p")
			st, err := os.Stat(p)
			must(t, err)
			must(t, os.WriteFile(p, []byte("PROGRAM"), 0))
			must(t, os.Chtimes(p, st.ModTime(), st.ModTime()))
		}, "bin/p in it has other content"},
		{"a bit lost", func(t *testing.T, dir string) { must(t, os.Chmod(filepath.Join(dir, "bin/p"), 0o644)) }, "bin/p in it has mode 0644"},
		{"a file gone", func(t *testing.T, dir string) { must(t, os.Remove(filepath.Join(dir, "share/a"))) }, "share/a in it is gone"},
		{"a file replaced by a symlink", func(t *testing.T, dir string) {
			must(t, os.Remove(filepath.Join(dir, "share/a")))
			must(t, os.Symlink("/etc/passwd", filepath.Join(dir, "share/a")))
		}, "share/a in it is of another kind"},
		{"a folder replaced by a symlink", func(t *testing.T, dir string) {
			must(t, os.Rename(filepath.Join(dir, "share"), filepath.Join(dir, "elsewhere")))
			must(t, os.Symlink("elsewhere", filepath.Join(dir, "share")))
		}, "share in it is of another kind"},
		{"a file replaced by a folder", func(t *testing.T, dir string) {
			must(t, os.Remove(filepath.Join(dir, "share/a")))
			must(t, os.MkdirAll(filepath.Join(dir, "share/a/b"), 0o755))
		}, "share/a in it is of another kind"},
		{"emptied", func(t *testing.T, dir string) {
			must(t, os.RemoveAll(filepath.Join(dir, "bin")))
			must(t, os.RemoveAll(filepath.Join(dir, "share")))
		}, "is gone"},
		{"removed", func(t *testing.T, dir string) { must(t, os.RemoveAll(dir)) }, "it is gone"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t)
			m := program(b, t)
			applied(t, b.accept(t, 1, m))
			dir := b.path("state/bundles/" + m.artifact.Digest)
			before := tree(t, dir)
			must(t, os.WriteFile(filepath.Join(dir, "share/cache"), []byte("the program's own"), 0o600))
			b.clock.Advance(time.Minute)
			for range 3 { // quick looks from now on
				if r := applied(t, b.pass(t, apply.Reconcile)); r.Steps > 0 {
					t.Fatalf("what a program wrote is no change: %+v", r)
				}
			}
			tt.alter(t, dir)
			b.units.calls(t)
			r := applied(t, b.pass(t, apply.Reconcile))
			if len(r.Drift) != 1 || !r.Drift[0].Repaired || !strings.Contains(r.Drift[0].What, tt.says) {
				t.Errorf("found %+v, want %q", r.Drift, tt.says)
			}
			after := tree(t, dir)
			for p, text := range before {
				if after[p] != text {
					t.Errorf("%s is %q, was %q", p, after[p], text)
				}
			}
			if tt.name != "removed" && !slices.Contains(b.units.calls(t), "restart mesh-prog-p.service") {
				t.Error("what runs may run what was changed, and was not restarted")
			}
			if r := applied(t, b.pass(t, apply.Reconcile)); r.Steps > 0 || len(r.Drift) > 0 {
				t.Errorf("not settled: %+v", r)
			}
			b.restart(t)
			if r := applied(t, b.pass(t, apply.Boot)); r.Steps > 0 || len(r.Drift) > 0 {
				t.Errorf("not settled after a restart: %+v", r)
			}
			if names := dirNames(t, b.path("state/bundles")); len(names) != 1 {
				t.Errorf("left: %v", names)
			}
		})
	}
}

// What was altered while the agent was down is found when it comes up; a backup that links to the files, and
// so changes their times, is no change.
func TestAnAlteredBundleAfterARestart(t *testing.T) {
	b := newBed(t)
	m := program(b, t)
	applied(t, b.accept(t, 1, m))
	dir := b.path("state/bundles/" + m.artifact.Digest)
	must(t, os.Link(filepath.Join(dir, "bin/p"), b.path("backup")))
	for range 2 {
		b.restart(t)
		if r := applied(t, b.pass(t, apply.Boot)); r.Steps > 0 || len(r.Drift) > 0 {
			t.Fatalf("a link is no change: %+v", r)
		}
	}
	must(t, os.WriteFile(filepath.Join(dir, "bin/p"), []byte("PROGRAM"), 0))
	b.restart(t)
	if r := applied(t, b.pass(t, apply.Boot)); len(r.Drift) != 1 {
		t.Errorf("%+v", r)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "bin/p")); err != nil || string(got) != "program" {
		t.Errorf("bin/p is %q, %v", got, err)
	}
}

// With drift=report an altered bundle is said, once, and nothing is changed; and one that is altered all the
// time is fetched again once an hour and not every minute.
func TestAnAlteredBundleThatIsOnlySaid(t *testing.T) {
	b := newBed(t)
	m := program(b, t)
	c := b.content(t, m)
	c.Drift = declaration.ReportOnly
	applied(t, b.acceptContent(t, 1, c))
	p := filepath.Join(b.path("state/bundles/"+m.artifact.Digest), "bin/p")
	must(t, os.WriteFile(p, []byte("PROGRAM"), 0))
	b.units.calls(t)
	said := 0
	for range 5 {
		b.clock.Advance(time.Minute)
		r := b.pass(t, apply.Reconcile)
		if said += len(r.Drift); r.Steps > 0 || len(b.units.calls(t)) > 0 {
			t.Errorf("%+v", r)
		}
	}
	if got, err := os.ReadFile(p); said != 1 || err != nil || string(got) != "PROGRAM" {
		t.Errorf("said %d times; it is %q", said, got)
	}
	fetches := 0
	b.fetched = func(declaration.Artifact, int) error { fetches++; return nil }
	applied(t, b.accept(t, 2, m))
	said = 0
	for range 130 {
		b.clock.Advance(time.Minute)
		must(t, os.WriteFile(p, []byte("PROGRAM"), 0))
		said += len(b.pass(t, apply.Reconcile).Drift)
	}
	if fetches != 3 || said > 6 {
		t.Errorf("in two hours fetched %d times, said %d times", fetches, said)
	}
}

// The bus is away when a bundle is altered: that is said, what runs runs on, and the machine's other modules
// are looked after.
func TestAnAlteredBundleWithTheBusAway(t *testing.T) {
	b := newBed(t)
	m := program(b, t)
	applied(t, b.accept(t, 1, m, process("zzz")))
	dir := b.path("state/bundles/" + m.artifact.Digest)
	must(t, os.Chmod(filepath.Join(dir, "bin/p"), 0o600))
	b.fetched = func(declaration.Artifact, int) error { return errors.New("the bus is away") }
	b.units.calls(t)
	r := b.pass(t, apply.Reconcile)
	if r.Outcome != report.Failed || states(r) != "prog failed, zzz running" || len(b.units.calls(t)) > 0 {
		t.Errorf("%s %s", r.Outcome, states(r))
	}
	b.fetched = nil
	b.clock.Advance(time.Minute)
	applied(t, b.pass(t, apply.Reconcile))
}

// A symlink that somebody put where a file of mesh was is replaced and not followed; where mesh had no file it
// stays; a folder in the file's place stays.
func TestASymlinkInAFilesPlace(t *testing.T) {
	b := newBed(t)
	m := module("notes", files(file("/etc/notes.conf", "ours")))
	applied(t, b.accept(t, 1, m))
	must(t, os.WriteFile(b.root("/etc/theirs"), []byte("theirs"), 0o600))
	swap := func() {
		t.Helper()
		must(t, os.Remove(b.root("/etc/notes.conf")))
		must(t, os.Symlink("theirs", b.root("/etc/notes.conf")))
	}
	swap()
	r := applied(t, b.pass(t, apply.Reconcile))
	if len(r.Drift) != 1 || !strings.Contains(r.Drift[0].What, "a symlink to theirs") || b.read(t, "/etc/notes.conf") != "ours" || b.read(t, "/etc/theirs") != "theirs" {
		t.Errorf("%+v; conf %q, theirs %q", r.Drift, b.read(t, "/etc/notes.conf"), b.read(t, "/etc/theirs"))
	}
	if st, err := os.Lstat(b.root("/etc/notes.conf")); err != nil || !st.Mode().IsRegular() {
		t.Errorf("%v, %v", st, err)
	}
	swap()
	applied(t, b.accept(t, 2)) // not declared any more: what stands there is not mesh's
	if got, err := os.Readlink(b.root("/etc/notes.conf")); err != nil || got != "theirs" {
		t.Errorf("%q, %v", got, err)
	}
	if r := b.accept(t, 3, m); r.Outcome != report.Failed || !strings.Contains(r.Modules[0].Detail, "a symlink stands there") {
		t.Errorf("%+v", r)
	}
	must(t, os.Remove(b.root("/etc/notes.conf")))
	b.clock.Advance(time.Minute)
	applied(t, b.pass(t, apply.Reconcile))
	must(t, os.Remove(b.root("/etc/notes.conf")))
	must(t, os.MkdirAll(b.root("/etc/notes.conf/mine"), 0o755))
	if r := b.pass(t, apply.Reconcile); r.Outcome != report.Failed || !strings.Contains(r.Modules[0].Detail, "a folder stands there") {
		t.Errorf("%+v", r)
	}
	if _, err := os.Stat(b.root("/etc/notes.conf/mine")); err != nil {
		t.Error(err)
	}
}

// A file of mesh makes room for a folder of the same path; a folder for a file takes two pushes, and says so. A
// file of somebody makes room for nothing.
func TestAFileBecomesAFolder(t *testing.T) {
	b := newBed(t)
	was, is := module("notes", files(file("/etc/notes", "x"))), module("notes", files(file("/etc/notes/a", "y"), file("/etc/notes/b/c", "z")))
	applied(t, b.accept(t, 1, was))
	applied(t, b.accept(t, 2, is))
	if b.read(t, "/etc/notes/a") != "y" || b.read(t, "/etc/notes/b/c") != "z" {
		t.Error("not as declared")
	}
	if r := applied(t, b.pass(t, apply.Reconcile)); r.Steps > 0 {
		t.Errorf("not settled: %+v", r)
	}
	r := b.accept(t, 3, was)
	if r.Outcome != report.Failed || !strings.Contains(r.Modules[0].Detail, "not gone yet") || b.read(t, "/etc/notes/a") != "y" {
		t.Errorf("%+v", r)
	}
	applied(t, b.accept(t, 4))
	if b.read(t, "/etc/notes") != "(absent)" {
		t.Error("the folder stays")
	}
	applied(t, b.accept(t, 5, was))
	applied(t, b.accept(t, 6))
	must(t, os.WriteFile(b.root("/etc/notes"), []byte("theirs"), 0o644))
	if r := b.accept(t, 7, is); r.Outcome != report.Failed || b.read(t, "/etc/notes") != "theirs" {
		t.Errorf("%+v", r)
	}
}

package apply_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mesh/agent/apply"
	"mesh/agent/state"
	"mesh/shared/clock"
	"mesh/shared/declaration"
	"mesh/shared/manifest"
	"mesh/shared/report"
)

// The child is this test's own binary as an agent that dies at the n-th fail point it comes to, or lives
// and lists them.
const (
	childEnv = "MESH_FAILPOINT"
	bedEnv   = "MESH_BED"
)

// child takes the declaration in the file "next" in, or makes a pass where there is none.
func child(at string) {
	flag.Parse()
	b, err := bedAt(os.Getenv(bedEnv))
	if err != nil {
		panic(err)
	}
	var die, n int
	fmt.Sscan(at, &die)
	b.workers = 1 // so that the n-th is the same one each time
	b.clock = clock.NewFake(clock.Real().Now().Add(time.Hour))
	b.point = func(name string) {
		if n++; n == die {
			if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
				panic(err)
			}
			select {}
		}
		fmt.Println("point:", name)
	}
	if err := b.start(); err != nil {
		panic(err)
	}
	signed, err := os.ReadFile(b.path("next"))
	if err != nil {
		_, err = b.engine.Pass(context.Background(), apply.Reconcile)
	} else {
		_, err = b.engine.Accept(context.Background(), signed)
	}
	if err != nil {
		panic(err)
	}
	os.Exit(0)
}

// live runs the child and returns the fail points it came to.
func live(t testing.TB, dir string, die int) (points []string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", childEnv, die), bedEnv+"="+dir)
	out, err := cmd.Output()
	if killed := err != nil && strings.Contains(err.Error(), "signal: killed"); killed != (die > 0) || err != nil && !killed {
		t.Fatalf("the child: %v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "point: "); ok {
			points = append(points, name)
		}
	}
	return points
}

// lives is a machine's past and the change during which it dies.
type lives struct {
	name string
	past func(t *testing.T, b *bed)
	next func(t *testing.T, b *bed) []mod // nil: the change is a pass
	back bool                             // it ends with what was before, which stands in the place of what failed
	// remove is what next has deleted.
	remove *declaration.Remove
}

func busy(b *bed, t *testing.T, version string) []mod {
	m := notes(b, t, version)
	m.Run.Files = append(m.Run.Files, file("/etc/notes/only-"+version, version))
	return []mod{m, module("steady", manifest.Run{Files: []manifest.File{file("/etc/steady", "x")}, Processes: map[string]manifest.Process{"p": {Exec: []string{"/bin/p"}}}})}
}

var change = lives{
	name: "a declaration",
	past: func(t *testing.T, b *bed) {
		old := module("old", manifest.Run{Files: []manifest.File{file("/etc/old/conf", "x")}, Processes: map[string]manifest.Process{"p": {Exec: []string{"/bin/p"}}}})
		for i, v := range []string{"zero", "one"} {
			b.clock.Advance(time.Minute)
			applied(t, b.accept(t, uint64(i+1), append(busy(b, t, v), old)...))
		}
	},
	next: func(t *testing.T, b *bed) []mod {
		mods := busy(b, t, "two")
		mods[0].Run.Directories[0].Mode = "0700"
		return append(mods, module("fresh", manifest.Run{Users: map[string]manifest.User{"fresh": {}}, Files: []manifest.File{file("/etc/fresh/conf", "x")},
			Processes: map[string]manifest.Process{"p": {Exec: []string{"/bin/p"}}}}))
	},
}

// back is a build that fails, and the last good one that takes its place again (APP-7).
var back = lives{
	name: "going back",
	past: func(t *testing.T, b *bed) { applied(t, b.accept(t, 1, busy(b, t, "one")...)) },
	next: func(t *testing.T, b *bed) []mod {
		mods := busy(b, t, "fails")
		mods[0].build = "build-2"
		return mods
	},
	back: true,
}

var repair = lives{
	name: "a pass",
	past: func(t *testing.T, b *bed) {
		must(t, os.WriteFile(b.root("/etc/steady"), []byte("held"), 0o644))
		b.accept(t, 1, busy(b, t, "one")...)
		must(t, os.Remove(b.root("/etc/steady")))
		must(t, os.WriteFile(b.root("/etc/notes/conf"), []byte("drifted"), 0o644))
		b.units.by(t, "mesh-notes-web.service", func(p *paperUnit) { p.Active = "inactive" })
	},
}

// APP-5: a kill at any instant, then a start, ends in the state the declaration asks for or in the one
// before, and never in a third.
func TestKilledAtEachInstantItConverges(t *testing.T) {
	reached := map[string]bool{}
	for _, l := range append(boxLives, change, repair, back, deleting) {
		t.Run(l.name, func(t *testing.T) {
			for _, p := range killEach(t, l) {
				reached[p] = true
			}
		})
	}
	for _, p := range apply.FailPoints {
		if !reached[p] {
			t.Errorf("no life came to the fail point %q", p)
		}
	}
}

func killEach(t *testing.T, l lives) []string {
	// One machine lives through it and shows what is right.
	dir := filepath.Join(t.TempDir(), "bed") // every life is lived here, for units name bundles by their path
	first, err := makeBed(dir)
	must(t, err)
	must(t, first.start())
	l.past(t, first)
	var mods []mod
	if l.next != nil {
		mods = l.next(t, first)
		c := first.content(t, mods...)
		c.Remove = l.remove
		must(t, os.WriteFile(first.path("next"), first.sign(t, 9, c), 0o644))
	}
	before := tree(t, first.path("root"))
	must(t, first.stop())
	start := dir + ".start"
	must(t, os.Rename(dir, start))
	again := func() {
		must(t, os.RemoveAll(dir))
		if out, err := exec.CommandContext(t.Context(), "cp", "-a", start, dir).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	again()
	points := live(t, dir, 0)
	want := end(t, dir, l.back)
	between := map[string]string{}
	if l.back { // what failed may be there, too
		again()
		live(t, dir, slices.Index(points, "before going back")+1)
		between = tree(t, filepath.Join(dir, "root"))
	}
	if len(points) < 10 {
		t.Fatalf("only %d fail points: %v", len(points), points)
	}
	for i, name := range points {
		t.Run(fmt.Sprintf("%d %s", i+1, name), func(t *testing.T) {
			again()
			live(t, dir, i+1)
			whole(t, dir, before, want.tree, between)
			got := end(t, dir, l.back)
			if d := cmp.Diff(want.tree, got.tree); d != "" {
				t.Errorf("files (-want +got):\n%s", d)
			}
			if d := cmp.Diff(want.bundles, got.bundles); d != "" {
				t.Errorf("bundles (-want +got):\n%s", d)
			}
			if d := cmp.Diff(want.rows, got.rows); d != "" {
				t.Errorf("ledger (-want +got):\n%s", d)
			}
			for name, u := range want.units {
				g := got.units[name]
				if g.Active != u.Active || g.Running != u.Running {
					t.Errorf("%s is %+v, want %+v", name, g, u)
				}
				// At most one start more than an undisturbed life has.
				if g.Starts > u.Starts+1 {
					t.Errorf("%s was started %d times, undisturbed %d", name, g.Starts, u.Starts)
				}
			}
			if len(got.units) != len(want.units) {
				t.Errorf("units %v, want %v", got.units, want.units)
			}
		})
	}
	return points
}

// whole checks the instant after the kill: every file is the old or the new one, none is half.
func whole(t *testing.T, dir string, before, after, between map[string]string) {
	t.Helper()
	for p, text := range tree(t, filepath.Join(dir, "root")) {
		if strings.HasPrefix(filepath.Base(p), ".mesh-") || p == "." || strings.HasPrefix(p, "etc/passwd") || strings.HasPrefix(p, "etc/group") ||
			strings.HasPrefix(p, "var/lib/containers") { // the engine's own, which changes it for each image
			continue
		}
		if text != before[p] && text != after[p] && text != between[p] {
			t.Errorf("after the kill %s is %q, neither %q nor %q", p, text, before[p], after[p])
		}
	}
}

type ending struct {
	tree    map[string]string
	bundles []string
	rows    []state.Row
	units   map[string]paperUnit
}

// end is the next life: a boot, the declaration once more should the first one not have been kept, and a
// look that finds nothing to do.
func end(t *testing.T, dir string, back bool) ending {
	t.Helper()
	b, err := bedAt(dir)
	must(t, err)
	b.clock = clock.NewFake(clock.Real().Now().Add(2 * time.Hour))
	must(t, b.start())
	defer func() { must(t, b.stop()) }()
	ends := func(r apply.Result) apply.Result {
		t.Helper()
		if !back {
			return applied(t, r)
		}
		if m := r.Modules[0]; r.Outcome != report.Failed && r.Seq == 9 || !strings.Contains(m.Detail, "rolled back to build-1") && r.Seq == 9 {
			t.Errorf("it did not go back: %s %+v", r.Outcome, m)
		}
		return r
	}
	ends(b.pass(t, apply.Boot))
	if signed, err := os.ReadFile(b.path("next")); err == nil {
		if r, err := b.engine.Accept(t.Context(), signed); err != nil {
			t.Fatal(err)
		} else {
			ends(r)
		}
	}
	if r := ends(b.pass(t, apply.Reconcile)); r.Steps > 0 {
		t.Errorf("not settled: %+v", r)
	}
	e := ending{tree: tree(t, b.path("root")), rows: ledgerOf(t, b), units: map[string]paperUnit{}}
	entries, err := os.ReadDir(b.path("state/bundles"))
	if !errors.Is(err, fs.ErrNotExist) {
		must(t, err)
	}
	for _, entry := range entries {
		e.bundles = append(e.bundles, entry.Name())
	}
	slices.Sort(e.bundles)
	must(t, b.units.with("states", func(all map[string]*paperUnit) error {
		for name, p := range all {
			e.units[name] = *p
		}
		return nil
	}))
	return e
}

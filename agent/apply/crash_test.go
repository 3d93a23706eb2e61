package apply_test

import (
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	_ "modernc.org/sqlite" // the store's file is checked past the store

	"mesh/agent/apply"
	"mesh/agent/state"
	"mesh/shared/clock"
	"mesh/shared/report"
)

// nextSeq is the declaration during which a machine dies.
const nextSeq = 9

// reserve is what a bundle leaves free here: the disks are small.
const reserve = 1 << 20

// told is what the agent said to others before it died.
type told struct {
	accepted bool   // it began to act on the next declaration
	reported uint64 // the last report that the bus has
	held     uint64 // the declaration that it was about
	ended    bool   // it lived
}

func (h *told) hear(line string) {
	var seq, number uint64
	switch {
	case line == "mark: accepted":
		h.accepted = true
	case line == "mark: ended":
		h.ended = true
	default:
		if n, _ := fmt.Sscanf(line, "mark: reported %d %d", &seq, &number); n == 2 {
			h.held, h.reported = seq, number
		}
	}
}

// machine is a past that can be lived again and again, and what is right at its end.
type machine struct {
	lives
	dir    string // where every life is lived, for units name bundles by their path
	start  string // how it begins
	paper  string // what is no file of the machine; of the lives, in dir
	before ending // without the change
	after  ending // with it
	// was is the tree before anything happened, between while what failed is there.
	was     map[string]string
	between map[string]string
	bundles map[string]map[string]string // by digest, of both
	points  []string                     // that an undisturbed life comes to
	deaths  int                          // of the life being judged
}

// newMachine makes the past. The folder has to be on a file system in memory, or each sync takes its time.
func newMachine(t *testing.T, l lives, folder string) *machine {
	t.Helper()
	m := &machine{lives: l, dir: filepath.Join(folder, "bed"), start: filepath.Join(folder, "start"), bundles: map[string]map[string]string{}}
	b, err := makeBed(m.dir)
	must(t, err)
	b.reserve = reserve
	must(t, b.put("/proc/sys/kernel/random/boot_id", "one\n"))
	must(t, b.start())
	l.past(t, b)
	if l.sign != nil {
		must(t, os.WriteFile(b.path("next"), l.sign(b), 0o644))
	} else if l.next != nil {
		c := b.content(t, l.next(t, b)...)
		c.Remove = l.remove
		must(t, os.WriteFile(b.path("next"), b.sign(t, nextSeq, c), 0o644))
	}
	must(t, b.stop())
	must(t, os.Rename(m.dir, m.start))
	m.was = tree(t, filepath.Join(m.start, "root"))
	m.again(t)
	if m.changes() {
		must(t, os.Remove(filepath.Join(m.dir, "next")))
	}
	m.before = m.end(t, m.open(t))
	m.again(t)
	var h told
	m.points, h = live(t, m.dir, 0)
	if !h.ended || len(m.points) < 5 {
		t.Fatalf("only %d fail points: %v, %+v", len(m.points), m.points, h)
	}
	m.after = m.end(t, m.open(t))
	if l.back {
		m.again(t)
		live(t, m.dir, slices.Index(m.points, "before going back")+1)
		m.between = tree(t, filepath.Join(m.dir, "root"))
		for digest, files := range bundlesAt(t, m.dir) {
			m.bundles[digest] = files
		}
	}
	return m
}

// again puts the machine back to its beginning.
func (m *machine) again(t *testing.T) {
	t.Helper()
	must(t, os.RemoveAll(m.dir))
	if out, err := exec.CommandContext(t.Context(), "cp", "-a", m.start, m.dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// open has the agent come up.
func (m *machine) open(t *testing.T) *bed {
	t.Helper()
	b, err := bedAt(m.dir)
	must(t, err)
	b.paper = m.paper
	b.clock = clock.NewFake(clock.Real().Now().Add(2 * time.Hour))
	b.reserve = reserve
	if b.workers = 1; b.paper != "" {
		must(t, b.put("/proc/sys/kernel/random/boot_id", "two\n"))
		b.units = &paperUnits{bed: b}
		must(t, b.units.boot())
	}
	must(t, b.start())
	return b
}

// ending is how a machine is once all was done.
type ending struct {
	tree    map[string]string
	bundles map[string]map[string]string
	rows    []state.Row
	units   map[string]paperUnit
}

// end is what a life comes to that begins with a boot, and the end of the bed.
func (m *machine) end(t *testing.T, b *bed) ending {
	t.Helper()
	defer func() { must(t, b.stop()) }()
	m.settle(t, b)
	e := m.see(t, b)
	for digest, files := range e.bundles {
		m.bundles[digest] = files
	}
	return e
}

// settle makes the passes that are made by themselves until all is in order, and reports how many steps they took.
func (m *machine) settle(t *testing.T, b *bed) (steps int) {
	t.Helper()
	cause := apply.Boot
	for range 20 {
		r := b.pass(t, cause)
		steps, cause = steps+r.Steps, apply.Reconcile
		if r.Outcome == report.None || m.well(r) && r.Steps == 0 {
			return steps
		}
		b.clock.Advance(10 * time.Minute)
	}
	t.Errorf("not settled: %+v", b.engine.Last())
	return steps
}

// well reports whether a pass ended as it has to.
func (m *machine) well(r apply.Result) bool {
	if m.back && r.Seq == nextSeq {
		return r.Outcome == report.Failed && strings.Contains(r.Modules[0].Detail, "rolled back to build-1")
	}
	if m.held && r.Seq < nextSeq {
		return r.Outcome == report.Failed && len(r.Held) > 0
	}
	return r.Outcome == report.Applied
}

// changes is false of a life whose change is a pass.
func (m *machine) changes() bool { return m.next != nil || m.sign != nil }

// see is how the machine is now.
func (m *machine) see(t *testing.T, b *bed) ending {
	t.Helper()
	e := ending{tree: ours(tree(t, b.path("root"))), rows: ledgerOf(t, b), units: map[string]paperUnit{}, bundles: bundlesAt(t, b.dir)}
	must(t, b.units.with("states", func(all map[string]*paperUnit) error {
		for name, p := range all {
			e.units[name] = *p
		}
		return nil
	}))
	return e
}

// ours leaves out of a tree what the stand-ins for the kernel and for the engine keep there.
func ours(all map[string]string) map[string]string {
	for p := range all {
		if theirs("/" + p) {
			delete(all, p)
		}
	}
	return all
}

// theirs are paths below the root that the agent never writes itself.
func theirs(p string) bool {
	for _, at := range []string{"/proc", "/sys", "/etc/passwd", "/etc/group", "/var/lib/containers", "/etc/containers", "/etc/systemd/system/multi-user.target.wants",
		"/etc/systemd/system/timers.target.wants"} {
		if p == at || strings.HasPrefix(p, at+"/") {
			return at != "/etc/systemd/system/multi-user.target.wants" && at != "/etc/systemd/system/timers.target.wants"
		}
	}
	return p == "/" // its time
}

// bundlesAt are the bundles that bear their name, and everything else there, by name.
func bundlesAt(t *testing.T, dir string) map[string]map[string]string {
	t.Helper()
	out := map[string]map[string]string{}
	entries, err := os.ReadDir(filepath.Join(dir, "state/bundles"))
	if !errors.Is(err, fs.ErrNotExist) {
		must(t, err)
	}
	for _, entry := range entries {
		out[entry.Name()] = map[string]string{}
		if entry.IsDir() {
			out[entry.Name()] = tree(t, filepath.Join(dir, "state/bundles", entry.Name()))
		}
	}
	return out
}

// whole checks the instant after the end: every file is the old or the new one, none is half, none is lost, and a
// bundle that bears its name is all there.
func (m *machine) whole(t *testing.T) {
	t.Helper()
	now := ours(tree(t, filepath.Join(m.dir, "root")))
	for p, text := range now {
		if strings.Contains("/"+p, "/.mesh-") {
			continue // under a name that says it is not there yet, or no more
		}
		if text != m.was[p] && text != m.before.tree[p] && text != m.after.tree[p] && text != m.between[p] {
			t.Errorf("right after it %s is %q: before %q, then %q", p, text, m.was[p], m.after.tree[p])
		}
	}
	for p := range m.was {
		if _, there := now[p]; !there && m.after.tree[p] != "" && m.before.tree[p] != "" && !theirs("/"+p) && (m.between == nil || m.between[p] != "") && !m.gap {
			t.Errorf("right after it %s is gone", p)
		}
	}
	for name, files := range bundlesAt(t, m.dir) {
		if want := m.bundles[name]; !strings.HasPrefix(name, ".") && cmp.Diff(want, files) != "" {
			t.Errorf("right after it the bundle %s is not whole: %s", name, cmp.Diff(want, files))
		}
	}
}

// judge looks at the machine after its end, starts the agent, and says what became of the change: nothing was
// lost, and there is no third state.
func (m *machine) judge(t *testing.T, h told) (kind string) {
	t.Helper()
	m.whole(t)
	m.integrity(t)
	b := m.open(t)
	defer func() { must(t, b.stop()) }()
	if notes := b.store.Notes(); len(notes) > 0 {
		t.Errorf("the store: %v", notes)
	}
	held, _ := b.store.Newest()
	if held < nextSeq && m.changes() && (h.accepted || h.held == nextSeq) {
		t.Errorf("declaration %d was accepted (%+v), and %d is held", nextSeq, h, held)
	}
	steps := m.settle(t, b)
	switch got := m.see(t, b); {
	case !m.changes():
		m.same(t, "after the repair", m.after, got)
		kind = "repaired by the next start"
	case held == nextSeq:
		m.same(t, "as declared", m.after, got)
		kind = "finished by the next start"
	default:
		m.same(t, "as before", m.before, got)
		kind = "as before, then done"
		signed, err := os.ReadFile(b.path("next"))
		must(t, err)
		r, err := b.engine.Accept(t.Context(), signed)
		must(t, err)
		if !m.well(r) && m.sign == nil {
			t.Errorf("declared again: %+v", r)
		}
		m.settle(t, b)
		m.same(t, "declared again", m.after, m.see(t, b))
	}
	if steps == 0 && held == nextSeq {
		kind = "done already"
	}
	number, err := b.store.NextReportNumber(t.Context())
	must(t, err)
	if number <= h.reported {
		t.Errorf("the next report has the number %d, and the bus has %d", number, h.reported)
	}
	m.ledgerHolds(t, b)
	return kind
}

func (m *machine) same(t *testing.T, what string, want, got ending) {
	t.Helper()
	if d := cmp.Diff(want.tree, got.tree); d != "" {
		t.Errorf("%s: files (-want +got):\n%s", what, d)
	}
	if d := cmp.Diff(want.bundles, got.bundles); d != "" {
		t.Errorf("%s: bundles (-want +got):\n%s", what, d)
	}
	if d := cmp.Diff(want.rows, got.rows); d != "" {
		t.Errorf("%s: ledger (-want +got):\n%s", what, d)
	}
	for name, u := range want.units {
		g := got.units[name]
		if g.Active != u.Active || g.Running != u.Running || g.Saw != u.Saw && (m.paper == "" || !m.stale) {
			t.Errorf("%s: %s is %+v, want %+v", what, name, g, u)
		}
		// At most one start more a kill than an undisturbed life has.
		if m.paper == "" && g.Starts > u.Starts+m.deaths {
			t.Errorf("%s: %s was started %d times, undisturbed %d", what, name, g.Starts, u.Starts)
		}
	}
	for name, g := range got.units {
		if _, wanted := want.units[name]; !wanted {
			t.Errorf("%s: there is %s: %+v", what, name, g)
		}
	}
}

// ledgerHolds compares the ledger with the disk.
func (m *machine) ledgerHolds(t *testing.T, b *bed) {
	t.Helper()
	for _, row := range ledgerOf(t, b) {
		kind, p, _ := strings.Cut(row.ID, ":")
		if row.Phase != state.Done {
			t.Errorf("the ledger calls %s %s after all was done", row.ID, row.Phase)
		}
		if kind != "file" && kind != "dir" {
			continue
		}
		if _, err := os.Lstat(b.root(p)); err != nil {
			t.Errorf("the ledger has %s: %v", row.ID, err)
		}
	}
}

// integrity is SQLite's own check of the store, before anybody opened it.
func (m *machine) integrity(t *testing.T) {
	t.Helper()
	at := filepath.Join(m.dir, "state/state.db")
	if st, err := os.Stat(at); errors.Is(err, fs.ErrNotExist) || err == nil && st.Size() == 0 {
		return // it died before there was one
	}
	// A copy, for the look itself would fold the log.
	dir := filepath.Join(filepath.Dir(m.start), "check")
	must(t, os.RemoveAll(dir))
	must(t, os.Mkdir(dir, 0o755))
	for _, suffix := range []string{"", "-wal"} {
		if b, err := os.ReadFile(at + suffix); err == nil {
			must(t, os.WriteFile(filepath.Join(dir, "state.db"+suffix), b, 0o600))
		}
	}
	db, err := sql.Open("sqlite", filepath.Join(dir, "state.db"))
	must(t, err)
	defer db.Close() // only read
	var text string
	if err := db.QueryRowContext(t.Context(), "PRAGMA integrity_check").Scan(&text); err != nil || text != "ok" {
		t.Errorf("integrity_check of the store: %q, %v", text, err)
	}
}

// memoryFolder is a folder in memory. It needs root.
func memoryFolder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1g,mode=0755"); err != nil {
		t.Fatalf("mount a file system in memory (root is needed): %v", err)
	}
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

package apply_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mesh/agent/apply"
	"mesh/agent/state"
	"mesh/shared/manifest"
	"mesh/shared/refusal"
	"mesh/shared/report"
)

// APP-14: a full disk under the store. The declaration is not taken in, nothing on the machine changes, it is
// said by name, and the same declaration goes through once there is room.
func TestAFullDiskUnderTheStore(t *testing.T) {
	b, err := makeBed(t.TempDir())
	must(t, err)
	dir := b.path("state")
	must(t, os.MkdirAll(dir, 0o755))
	small(t, dir, 1<<20)
	b.open(t)
	applied(t, b.accept(t, 1, module("notes", files(file("/etc/notes", "one")))))
	must(t, ignoreFull(os.WriteFile(filepath.Join(dir, "filler"), make([]byte, 2<<20), 0o600)))
	large := module("notes", files(file("/etc/notes", "two"), file("/etc/large", strings.Repeat("x", 200<<10))))
	signed := b.sign(t, 2, b.content(t, large))
	before := stamps(t, b.path("root"))
	for range 2 {
		r, err := b.engine.Accept(t.Context(), signed)
		if w := refusal.Of(err); w == nil || !strings.Contains(w.Why, "disk full") || w.Do == "" || r.RefusedSeq != 2 {
			t.Fatalf("%v; %+v", err, r)
		}
		if stamps(t, b.path("root")) != before {
			t.Error("something was changed")
		}
		b.clock.Advance(time.Minute)
		if r, err := b.engine.Pass(t.Context(), apply.Reconcile); err != nil || r.Outcome != report.Applied || r.Seq != 1 {
			t.Errorf("a look: %+v, %v", r, err)
		}
	}
	if seq, _ := b.store.Newest(); seq != 1 {
		t.Errorf("holds %d", seq)
	}
	must(t, unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, "size=16m"))
	r, err := b.engine.Accept(t.Context(), signed)
	must(t, err)
	applied(t, r)
	b.restart(t)
	if r := applied(t, b.pass(t, apply.Boot)); r.Seq != 2 || b.read(t, "/etc/notes") != "two" {
		t.Errorf("%+v", r)
	}
}

// A store on a read-only file system: said by name.
func TestAReadOnlyFileSystemUnderTheStore(t *testing.T) {
	b, err := makeBed(t.TempDir())
	must(t, err)
	dir := b.path("state")
	small(t, dir, 1<<20)
	b.open(t)
	must(t, b.stop())
	must(t, unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	if err := refusal.Of(b.start()); err == nil || !strings.Contains(err.Why, "read-only file system") || err.Do == "" {
		t.Errorf("%v", err)
	}
	must(t, unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, ""))
	must(t, b.start())
}

func ignoreFull(err error) error {
	if errors.Is(err, unix.ENOSPC) {
		return nil
	}
	return err
}

// The store is deleted, replaced or emptied under the running agent: it is written anew by the next look, and a
// restart knows everything.
func TestTheStoreIsDeletedUnderTheAgent(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(t *testing.T, path string)
	}{
		{"the file", func(t *testing.T, p string) { must(t, os.Remove(p)) }},
		{"all three", func(t *testing.T, p string) {
			for _, s := range []string{"", "-wal", "-shm"} {
				must(t, os.Remove(p+s))
			}
		}},
		{"moved away", func(t *testing.T, p string) { must(t, os.Rename(p, p+".old")) }},
		{"another in its place", func(t *testing.T, p string) {
			must(t, os.Remove(p))
			must(t, os.WriteFile(p, []byte("not a database"), 0o600))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t)
			m := notes(b, t, "one")
			applied(t, b.accept(t, 7, m))
			rows := ledgerOf(t, b)
			number, err := b.store.NextReportNumber(t.Context())
			must(t, err)
			_, err = b.store.Put(t.Context(), state.Out{Subject: "s", Kind: state.KindReport, Body: []byte("waiting")})
			must(t, err)
			tt.do(t, b.path("state/state.db"))
			b.clock.Advance(time.Minute)
			applied(t, b.pass(t, apply.Reconcile))
			applied(t, b.accept(t, 8, m)) // it goes on
			b.restart(t)
			if n := b.store.Notes(); len(n) > 0 {
				t.Errorf("notes %q", n)
			}
			b.units.calls(t)
			if r := applied(t, b.pass(t, apply.Boot)); r.Seq != 8 || r.Steps > 0 || len(b.units.calls(t)) > 0 {
				t.Errorf("%+v", r)
			}
			if got := ledgerOf(t, b); len(got) != len(rows) {
				t.Errorf("the ledger has %d rows, had %d", len(got), len(rows))
			}
			if n, err := b.store.NextReportNumber(t.Context()); err != nil || n <= number {
				t.Errorf("report number %d after %d, %v", n, number, err)
			}
			if b.store.Depth() != 1 {
				t.Errorf("%d wait in the outbox", b.store.Depth())
			}
			applied(t, b.accept(t, 9))
			if b.read(t, "/etc/notes/conf") != "(absent)" {
				t.Error("what mesh put there stays behind")
			}
		})
	}
}

// A store that is damaged is read as far as it can be: what mesh put on the machine is still its own.
func TestADamagedStoreIsReadAsFarAsItCan(t *testing.T) {
	b := newBed(t)
	var all []manifest.File
	for i := range 40 {
		all = append(all, file("/etc/notes/"+strings.Repeat("n", 50)+string(rune('a'+i%26))+string(rune('a'+i/26)), "x"))
	}
	m := module("notes", files(all...))
	applied(t, b.accept(t, 3, m))
	must(t, b.stop())
	spoil(t, b.path("state/state.db"), "history")
	must(t, b.start())
	if n := b.store.Notes(); len(n) != 1 || !strings.Contains(n[0], "was damaged") || !strings.Contains(n[0], "of ledger") {
		t.Fatalf("notes %q", n)
	}
	if r := applied(t, b.pass(t, apply.Boot)); r.Seq != 3 || r.Steps > 0 {
		t.Errorf("%+v", r)
	}
	m.Run.Files[0].Content = "y" // an old file of mesh, and other content: not somebody's
	applied(t, b.accept(t, 4, m))
	applied(t, b.accept(t, 5))
	if b.read(t, all[0].Path) != "(absent)" {
		t.Error("what mesh put there stays behind")
	}
}

// spoil overwrites the root page of a table in a store that nobody has open.
func spoil(t *testing.T, path, table string) {
	t.Helper()
	raw, err := os.ReadFile(path)
	must(t, err)
	at := bytes.Index(raw, []byte("CREATE TABLE "+table+" "))
	if at < 0 {
		t.Fatalf("no table %s", table)
	}
	// The schema's row before its text: …, name, tbl_name, rootpage (one byte here).
	page := int(raw[at-1])
	if page < 2 || page > 40 {
		t.Fatalf("root page %d", page)
	}
	const size = 4096
	_, err = rand.Read(raw[(page-1)*size : page*size])
	must(t, err)
	must(t, os.WriteFile(path, raw, 0o600))
}

// What is written in the store is what was accepted, or it is not applied.
func TestARottenDeclarationIsNotApplied(t *testing.T) {
	b := newBed(t)
	m := module("notes", files(file("/etc/notes", "held by the machine")))
	signed := b.sign(t, 4, b.content(t, m))
	applied(t, b.accept(t, 3, module("notes", files(file("/etc/notes", "older")))))
	r, err := b.engine.Accept(t.Context(), signed)
	must(t, err)
	applied(t, r)
	must(t, b.stop())
	raw, err := os.ReadFile(b.path("state/state.db"))
	must(t, err)
	if n := bytes.Count(raw, []byte("held by the machine")); n == 0 {
		t.Fatal("the text is not in the file")
	}
	must(t, os.WriteFile(b.path("state/state.db"), bytes.ReplaceAll(raw, []byte("held by the machine"), []byte("rots by the machine")), 0o600))
	must(t, b.start())
	if n := b.store.Notes(); len(n) != 1 || !strings.Contains(n[0], "declaration 4 in the store") {
		t.Errorf("notes %q", n)
	}
	if r := b.pass(t, apply.Boot); r.Outcome != report.None || b.read(t, "/etc/notes") != "held by the machine" {
		t.Errorf("%+v; %q", r, b.read(t, "/etc/notes"))
	}
	r, err = b.engine.Accept(t.Context(), signed) // as the bus gives it again
	must(t, err)
	if applied(t, r); r.Steps > 0 {
		t.Errorf("%+v", r)
	}
}

// Bundles of a store that was lost do not stay for ever; those of a module that cannot be read now do.
func TestBundlesOfALostStoreGo(t *testing.T) {
	b := newBed(t)
	old, now := program(b, t), bundled(b, t, "program")
	applied(t, b.accept(t, 1, old, now))
	must(t, b.stop())
	for _, p := range []string{"state.db", "state.db-wal", "state.db-shm"} {
		if err := os.Remove(b.path("state/" + p)); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	must(t, b.start())
	unset := old
	unset.Run.Files, unset.Settings = []manifest.File{file("/etc/x", "${setting:x}")}, map[string]manifest.Setting{"x": {}}
	if r := b.accept(t, 2, unset, now); states(r) != "big running, prog failed" {
		t.Fatal(states(r))
	}
	b.restart(t)
	b.pass(t, apply.Boot)
	if names := dirNames(t, b.path("state/bundles")); len(names) != 2 {
		t.Errorf("bundles %v", names)
	}
	applied(t, b.accept(t, 3, now))
	b.restart(t)
	applied(t, b.pass(t, apply.Boot))
	if names := dirNames(t, b.path("state/bundles")); len(names) != 1 || names[0] != now.artifact.Digest {
		t.Errorf("bundles %v", names)
	}
}

// One bad value keeps no agent from starting.
func TestARottenNumberKeepsNobodyFromStarting(t *testing.T) {
	b := newBed(t)
	for _, key := range []string{"report.number", "outbox.dropped", "packet-filter"} {
		must(t, b.store.SetMeta(t.Context(), key, []byte("x\x00rotten")))
	}
	must(t, b.stop())
	s, err := state.Open(t.Context(), state.Config{Path: b.path("state/state.db"), Clock: b.clock, Rand: rand.Reader, Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	if n, err := s.NextReportNumber(t.Context()); err != nil || n == 0 {
		t.Errorf("%d, %v", n, err)
	}
	must(t, s.Close())
	must(t, b.start())
}

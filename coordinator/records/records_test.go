package records_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mesh/coordinator/records"
	"mesh/shared/declaration"
	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/subject"
)

var update = flag.Bool("update", false, "write the stores kept in testdata anew; a released one stays")

const released = "testdata/release-1.db"

// TestKeptStore migrates the store kept from each release: its schema is that of a fresh one, and what
// was in it is there.
func TestKeptStore(t *testing.T) {
	if *update {
		makeKept(t)
	}
	m := newMesh(t)
	path := filepath.Join(t.TempDir(), "records.db")
	m.ok(os.WriteFile(path, must(os.ReadFile(released)), 0o600))
	kept, err := records.Open(t.Context(), path, records.Options{Clock: m.clk, Rand: rand.Reader})
	m.ok(err)
	defer func() { m.ok(kept.Close()) }()
	if d := cmp.Diff(schemaOf(t, m.path), schemaOf(t, path)); d != "" {
		t.Errorf("the migrated schema is not that of a fresh store (-fresh +migrated):\n%s", d)
	}
	m.ok(kept.QuickCheck(t.Context()))
	info := must(kept.Mesh(t.Context()))
	names := []subject.Node{}
	for _, n := range must(kept.Nodes(t.Context())) {
		names = append(names, n.Name)
	}
	if info.Name != "home" || !slices.Equal(names, []subject.Node{"db1", "web1"}) {
		t.Errorf("the kept store holds mesh %q with nodes %v", info.Name, names)
	}
	in := must(kept.Inputs(t.Context(), "db1"))
	if in.Declared.Seq != 3 || len(in.Placed) != 1 || in.Placed[0].Settings != `{"port":"80"}` {
		t.Errorf("the kept store holds for db1 %+v", in)
	}
	text, seq := must2(kept.DeclaredText(t.Context(), "db1"))
	if string(text) != "signed" || seq != 3 {
		t.Errorf("the kept store holds the declaration %q under %d", text, seq)
	}
	if r := must(kept.Report(t.Context(), "db1")); r.Report.Number != 7 || r.Outcome != report.Applied {
		t.Errorf("the kept store holds the report %+v", r)
	}
	if len(must(kept.Changes(t.Context(), "", "", 100))) < 5 || len(must(kept.Sends(t.Context(), "db1", 9))) != 1 {
		t.Error("the kept store lost changes or sends")
	}
}

func must2[A, B any](a A, b B, err error) (A, B) {
	if err != nil {
		panic(err)
	}
	return a, b
}

func makeKept(t *testing.T) {
	m := newMesh(t)
	m.node("db1", "web1", "old1")
	m.ok(m.store.RemoveNode(t.Context(), by, "old1"))
	m.module(`{"module":"notes","settings":{"port":{}},"run":{"files":[{"path":"/etc/notes"}]}}`)
	m.ok(m.assign("notes", records.AssignSet{Set: map[string]string{"port": "80"}}, "db1"))
	must(m.store.Invite(t.Context(), by, "new1", 0))
	n := must(m.store.Node(t.Context(), "db1"))
	m.ok(m.store.KeepDeclared(t.Context(), []records.NewDeclared{{Node: n, Seq: 3, Hash: [32]byte{1}, Text: records.Pack([]byte("signed"))}}))
	m.ok(m.store.RecordSends(t.Context(), []records.Send{{Node: "db1", Seq: 3, Push: "p1", Builds: map[subject.Module]string{"notes": "build-1"}}}))
	must(m.store.RecordReports(t.Context(), []records.Received{{Report: rep("db1", 7, 3, report.Applied), Heard: start}}))
	m.ok(os.MkdirAll(filepath.Dir(released), 0o755))
	m.ok(errIfExists(os.Remove(released)))
	m.ok(m.store.Backup(t.Context(), released))
}

func errIfExists(err error) error {
	if os.IsNotExist(err) {
		return nil
	}
	return err
}

func schemaOf(t *testing.T, path string) (lines []string) {
	db := must(sql.Open("sqlite", "file:"+path+"?mode=ro"))
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	rows := must(db.QueryContext(t.Context(), `SELECT type || ' ' || name || ' ' || coalesce(sql, '') FROM sqlite_schema ORDER BY 1`))
	defer func() { _ = rows.Close() }() // read to its end
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, s)
	}
	return lines
}

func TestTablesAreStrict(t *testing.T) {
	m := newMesh(t)
	for _, line := range schemaOf(t, m.path) {
		if strings.HasPrefix(line, "table ") && !strings.Contains(line, "STRICT") && !strings.Contains(line, "sqlite_sequence") {
			t.Errorf("not strict: %s", line)
		}
	}
}

// TestEveryActIsSigned holds every acting method against By: without a name it is refused, with one it
// leaves a line in the journal.
func TestEveryActIsSigned(t *testing.T) {
	m := newMesh(t)
	m.node("db1", "db2", "db3")
	m.module(`{"module":"notes","settings":{"port":{"default":"1"}}}`)
	old := m.module(`{"module":"notes","settings":{"port":{"default":"2"}}}`)
	m.module(`{"module":"notes","settings":{"port":{"default":"3"}}}`)
	m.ok(m.assign("notes", records.AssignSet{}, "db2"))
	m.ok(m.store.AddOperator(t.Context(), by, records.Operator{Name: "bert", Key: userKey(), Role: records.RoleRead}))
	inv := must(m.store.Invite(t.Context(), by, "new1", 0))
	asleep := true
	s := m.store
	for name, act := range map[string]func(context.Context, records.By) error{
		"SetAddresses": func(ctx context.Context, b records.By) error {
			return s.SetAddresses(ctx, b, []string{"192.0.2.2:4222"})
		},
		"AddOperator": func(ctx context.Context, b records.By) error {
			return s.AddOperator(ctx, b, records.Operator{Name: "cleo", Key: userKey(), Role: records.RoleOperate})
		},
		"RevokeOperator":   func(ctx context.Context, b records.By) error { return s.RevokeOperator(ctx, b, "bert") },
		"Invite":           func(ctx context.Context, b records.By) error { return second(s.Invite(ctx, b, "new2", 0)) },
		"RevokeInvitation": func(ctx context.Context, b records.By) error { return s.RevokeInvitation(ctx, b, inv.ID) },
		"AddNode":          func(ctx context.Context, b records.By) error { return second(s.AddNode(ctx, b, "new3", ask())) },
		"SetNode": func(ctx context.Context, b records.By) error {
			return second(s.SetNode(ctx, b, "db1", records.NodeSet{AsleepOK: &asleep}))
		},
		"RemoveNode": func(ctx context.Context, b records.By) error { return s.RemoveNode(ctx, b, "db3") },
		"Register": func(ctx context.Context, b records.By) error {
			_, _, err := s.Register(ctx, b, records.Registration{Manifest: json.RawMessage(`{"module":"other"}`)})
			return err
		},
		"UseBuild": func(ctx context.Context, b records.By) error { return second(s.UseBuild(ctx, b, old.ID)) },
		"Assign": func(ctx context.Context, b records.By) error {
			return second(s.Assign(ctx, b, []subject.Node{"db1"}, "notes", records.AssignSet{}))
		},
		"Unassign": func(ctx context.Context, b records.By) error {
			return s.Unassign(ctx, b, []subject.Node{"db2"}, "notes")
		},
		"Note": func(ctx context.Context, b records.By) error { return s.Note(ctx, b, "push", "node db1", "db1", "") },
	} {
		t.Run(name, func(t *testing.T) {
			before := len(m.journal())
			m.refused(act(t.Context(), records.By{Why: "nobody"}), "nobody is named")
			if len(m.journal()) != before {
				t.Error("what was refused is in the journal")
			}
			if err := act(t.Context(), by); err != nil {
				t.Fatal(err)
			}
			last := must(s.Changes(t.Context(), "", "", 1))[0]
			if len(m.journal()) == before || last.Who != by.Who || last.Why != by.Why || !last.At.Equal(m.clk.Now()) {
				t.Errorf("the journal's last line is %+v", last)
			}
		})
	}
}

func second[T any](_ T, err error) error { return err }

func TestJournalIsOnlyAppendedTo(t *testing.T) {
	m := newMesh(t)
	m.node("db1")
	before := m.journal()
	db := must(sql.Open("sqlite", "file:"+m.path))
	defer func() { m.ok(db.Close()) }()
	for _, q := range []string{`UPDATE change SET who = 'somebody'`, `DELETE FROM change`, `DELETE FROM change WHERE id = 1`} {
		if _, err := db.ExecContext(t.Context(), q); err == nil || !strings.Contains(err.Error(), "only appended") {
			t.Errorf("%s: %v", q, err)
		}
	}
	if !slices.Equal(m.journal(), before) {
		t.Error("the journal changed")
	}
}

func TestUnknownNames(t *testing.T) {
	m := newMesh(t)
	m.node("web1")
	m.module(`{"module":"notes","settings":{"port":{"default":"1"}}}`)
	m.ok(m.assign("notes", records.AssignSet{}, "web1"))
	ctx := t.Context()
	m.refused(second(m.store.Node(ctx, "wep1")), `did you mean "web1"?`)
	m.refused(m.store.RemoveNode(ctx, by, "zzz"), "none of this name", "node list")
	m.refused(second(m.store.Module(ctx, "note")), "not registered", `did you mean "notes"?`)
	m.refused(m.assign("nodes", records.AssignSet{}, "web1"), "not registered")
	m.refused(m.assign("notes", records.AssignSet{Set: map[string]string{"prot": "1"}}, "web1"), `did you mean "port"?`)
	m.refused(m.assign("notes", records.AssignSet{Unset: []string{"prot"}}, "web1"), `did you mean "port"?`)
	m.refused(m.assign("notes", records.AssignSet{Secrets: map[string]string{"key": "1"}}, "web1"), "no such secret")
	m.refused(m.store.Unassign(ctx, by, []subject.Node{"web1"}, "nodes"), "not assigned", `did you mean "notes"?`)
	m.refused(m.store.RevokeOperator(ctx, by, "ana"), `did you mean "anna"?`)
	m.refused(m.store.RevokeInvitation(ctx, by, "nope"), "not one of this mesh")
	m.refused(second(m.store.Build(ctx, "build-1")), "none with this id")
	m.ok(m.store.RemoveNode(ctx, by, "web1"))
	m.refused(second(m.store.Node(ctx, "web1")), "it was removed 2026-03-01")
}

// TestEmptySelection: nothing never means all (PSH-11).
func TestEmptySelection(t *testing.T) {
	m := newMesh(t)
	m.node("db1")
	m.module(`{"module":"notes"}`)
	m.refused(m.assign("notes", records.AssignSet{}), "empty selection")
	m.refused(m.store.Unassign(t.Context(), by, nil, "notes"), "empty selection")
	m.refused(second(m.store.SetNode(t.Context(), by, "db1", records.NodeSet{})), "no change is named")
}

// TestRevokedInTheMiddle: who is revoked while what was asked is under way does nothing any more.
func TestRevokedInTheMiddle(t *testing.T) {
	m := newMesh(t)
	m.node("db1")
	key := userKey()
	bob := records.By{Who: "operator-bob", Why: "x", Key: key}
	m.ok(m.store.AddOperator(t.Context(), by, records.Operator{Name: "bob", Key: key, Role: records.RoleAdmin}))
	m.ok(m.store.Note(t.Context(), bob, "note", "something", "", ""))
	m.ok(m.store.RevokeOperator(t.Context(), by, "bob"))
	before := len(m.journal())
	m.refused(m.store.Note(t.Context(), bob, "push", "something", "", ""), "operator-bob", "revoked meanwhile")
	m.refused(m.store.RemoveNode(t.Context(), bob, "db1"), "revoked meanwhile")
	if _, err := m.store.Node(t.Context(), "db1"); err != nil || len(m.journal()) != before {
		t.Errorf("it was done all the same: %v, %q", err, m.journal())
	}
}

func TestOperators(t *testing.T) {
	m := newMesh(t)
	ctx := t.Context()
	add := func(name, key string, role records.Role) error {
		return m.store.AddOperator(ctx, by, records.Operator{Name: name, Key: key, Role: role})
	}
	m.refused(m.store.RevokeOperator(ctx, by, "anna"), "last admin")
	m.refused(add("anna", userKey(), records.RoleRead), "taken")
	m.refused(add("bert", userKey(), "king"), "no such role", "viewer, operator, admin")
	m.refused(add("b.ert", userKey(), records.RoleRead), "dot")
	m.refused(add("bert", "SUnope", records.RoleRead), "no public NKEY")
	key := userKey()
	m.ok(add("bert", key, records.RoleAdmin))
	m.refused(add("cleo", key, records.RoleRead), "the key is that of operator bert")
	m.ok(m.store.RevokeOperator(ctx, by, "anna"))
	m.refused(m.store.RevokeOperator(ctx, by, "bert"), "last admin")
	m.ok(add("anna", userKey(), records.RoleRead))
	all := must(m.store.Operators(ctx))
	if len(all) != 3 || all[0].Name != "anna" || !all[0].Revoked.IsZero() || all[2].Revoked.IsZero() {
		t.Errorf("the operators are %+v", all)
	}
}

func TestSetNode(t *testing.T) {
	m := newMesh(t)
	m.node("db1")
	ctx := t.Context()
	drift, tunnel, bad := declaration.ReportOnly, "wg0", "a/b"
	n := must(m.store.SetNode(ctx, by, "db1", records.NodeSet{Drift: &drift, Tunnel: &tunnel}))
	if n.Drift != drift || n.Tunnel != tunnel {
		t.Errorf("set: %+v", n)
	}
	if got := must(m.store.Node(ctx, "db1")); !cmp.Equal(got, n, cmp.AllowUnexported(records.Node{})) || len(got.Admin) != 1 || got.Admin[0].String() != "admin: 22/tcp from anywhere" {
		t.Errorf("read: %+v, set returned %+v", got, n)
	}
	lines := len(m.journal())
	must(m.store.SetNode(ctx, by, "db1", records.NodeSet{Drift: &drift}))
	if len(m.journal()) != lines {
		t.Error("what was so already is in the journal")
	}
	wrong := declaration.Drift("maybe")
	m.refused(second(m.store.SetNode(ctx, by, "db1", records.NodeSet{Drift: &wrong})), "repair, report")
	m.refused(second(m.store.SetNode(ctx, by, "db1", records.NodeSet{Tunnel: &bad})), "link")
	m.refused(second(m.store.SetNode(ctx, by, "db1", records.NodeSet{Inside: &[]string{"eth0", ""}})), "link")
	must(m.store.SetNode(ctx, by, "db1", records.NodeSet{Inside: &[]string{"eth1", "eth0", "eth1"}}))
	if got := must(m.store.Node(ctx, "db1")); !slices.Equal(got.Inside, []string{"eth0", "eth1"}) {
		t.Errorf("inside is %v", got.Inside)
	}
}

func TestBackupHoldsEverything(t *testing.T) {
	m := newMesh(t)
	m.node("db1")
	path := filepath.Join(t.TempDir(), "copy.db")
	m.ok(m.store.Backup(t.Context(), path))
	m.node("db2") // after the copy
	twin, err := records.Open(t.Context(), path, records.Options{Clock: m.clk, Rand: rand.Reader})
	m.ok(err)
	defer func() { m.ok(twin.Close()) }()
	if all := must(twin.Nodes(t.Context())); len(all) != 1 || all[0].Name != "db1" {
		t.Errorf("the copy holds %+v", all)
	}
}

func TestTouched(t *testing.T) {
	m := newMesh(t)
	_, mark := m.store.Touched(m.store.Mark() + 9)
	m.node("db2", "db1")
	m.module(`{"module":"notes"}`)
	m.ok(m.assign("notes", records.AssignSet{}, "db1"))
	got, next := m.store.Touched(mark)
	want := records.Touched{Nodes: []subject.Node{"db1", "db2"}, Modules: []subject.Module{"notes"}, Users: true}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("touched (-want +got):\n%s", d)
	}
	if again, _ := m.store.Touched(next); !cmp.Equal(again, records.Touched{}) {
		t.Errorf("nothing happened, touched says %+v", again)
	}
	m.refused(m.assign("notes", records.AssignSet{}, "nope"))
	if again, _ := m.store.Touched(next); !cmp.Equal(again, records.Touched{}) {
		t.Errorf("a refusal touched %+v", again)
	}
}

func TestSecondMeshIsRefused(t *testing.T) {
	m := newMesh(t)
	err := m.store.CreateMesh(t.Context(), by, m.info, records.Operator{Name: "bert", Key: userKey(), Role: records.RoleAdmin})
	m.refused(err, "they hold home")
	if r := refusal.Of(err); !strings.Contains(fmt.Sprint(r), "another folder") {
		t.Errorf("got %v", r)
	}
	if d := cmp.Diff(time.UnixMilli(start.UnixMilli()).UTC(), m.info.Created); d != "" {
		t.Error(d)
	}
}

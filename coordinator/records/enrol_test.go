package records_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mesh/coordinator/records"
	"mesh/shared/credential"
	"mesh/shared/refusal"
	"mesh/shared/subject"
	"mesh/shared/waitfor"
)

func (m *mesh) invite(node string) credential.Invitation {
	m.Helper()
	inv, err := m.store.Invite(m.Context(), by, subject.Node(node), 0)
	m.ok(err)
	return inv
}

func (m *mesh) enrol(inv credential.Invitation, a records.EnrolAsk) (records.EnrolAnswer, error) {
	a.Invitation = inv.ID
	return m.store.Enrol(m.Context(), a)
}

func TestInvite(t *testing.T) {
	m := newMesh(t)
	inv := m.invite("db1")
	line := must(inv.Encode())
	back := must(credential.ParseInvitation(line))
	if d := cmp.Diff(inv, back); d != "" {
		t.Errorf("the line says another invitation: %s", d)
	}
	if inv.Bus.CA != "" || inv.Bus.Pin != m.info.Bus.Pin || !inv.ExpiresAt().Equal(start.Add(time.Hour)) {
		t.Errorf("the invitation is %+v", inv)
	}
	kept := must(m.store.Invitations(t.Context()))[0]
	if key := must(inv.Seed.Public()); kept.Key != key || kept.Node != "db1" {
		t.Errorf("the records hold %+v", kept)
	}
	m.node("web1")
	for _, tt := range []struct {
		name, node string
		life       time.Duration
		say        string
	}{
		{"a name that is taken", "web1", 0, "taken"},
		{"a name with a dot", "db.1", 0, "dot"},
		{"too long", "db2", 8 * 24 * time.Hour, "168h"},
		{"too short", "db2", time.Second, "1m"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m.refused(second(m.store.Invite(t.Context(), by, subject.Node(tt.node), tt.life)), tt.say)
		})
	}
}

// TestEnrolAgain: a lost answer is given again, to the same machine only (NOD-1).
func TestEnrolAgain(t *testing.T) {
	m := newMesh(t)
	inv, a := m.invite("db1"), ask()
	first, err := m.enrol(inv, a)
	m.ok(err)
	want := records.EnrolAnswer{Mesh: "m1", Node: "db1", Signer: m.info.Signer, Bus: m.info.Bus, New: true}
	if d := cmp.Diff(want, first); d != "" {
		t.Errorf("the answer (-want +got):\n%s", d)
	}
	m.clk.Advance(48 * time.Hour) // long after its end
	lines := len(m.journal())
	again, err := m.enrol(inv, a)
	m.ok(err)
	first.New = false
	if d := cmp.Diff(first, again); d != "" || len(m.journal()) != lines {
		t.Errorf("asked again it answered otherwise: %s", d)
	}
	if all := must(m.store.Nodes(t.Context())); len(all) != 1 || all[0].Key != a.Key {
		t.Errorf("the nodes are %+v", all)
	}
	m.refused(second(m.enrol(inv, ask())), "another machine used it", "node invite <name>", "node remove db1")
	reinstalled := ask()
	reinstalled.MachineID = a.MachineID
	m.refused(second(m.enrol(inv, reinstalled)), "this machine used it", "with other keys", "node remove db1; mesh-coordinator node invite db1")
	other := a
	other.Curve = curveKey()
	m.refused(second(m.enrol(inv, other)), "another curve key")
	m.ok(m.store.RemoveNode(t.Context(), by, "db1"))
	m.refused(second(m.enrol(inv, a)), "removed since")
}

func TestEnrolIsRefused(t *testing.T) {
	for _, tt := range []struct {
		name  string
		setup func(*mesh, *credential.Invitation, *records.EnrolAsk)
		say   []string
	}{
		{"unknown", func(m *mesh, inv *credential.Invitation, _ *records.EnrolAsk) { inv.ID = "nope" }, []string{"not one of this mesh"}},
		{"expired", func(m *mesh, _ *credential.Invitation, _ *records.EnrolAsk) { m.clk.Advance(time.Hour) }, []string{"it expired 2026-03-01T13:00:00Z", "node invite db1"}},
		{"revoked", func(m *mesh, inv *credential.Invitation, _ *records.EnrolAsk) {
			m.ok(m.store.RevokeInvitation(m.Context(), by, inv.ID))
			m.ok(m.store.RevokeInvitation(m.Context(), by, inv.ID)) // twice is no error
		}, []string{"revoked"}},
		{"name taken meanwhile", func(m *mesh, _ *credential.Invitation, _ *records.EnrolAsk) { m.node("db1") }, []string{"taken", "node remove db1"}},
		{"a cloned image", func(m *mesh, _ *credential.Invitation, a *records.EnrolAsk) {
			twin := ask()
			a.MachineID = twin.MachineID
			must(m.store.AddNode(m.Context(), by, "web1", twin))
		}, []string{"that of web1", "cloned image", "systemd-machine-id-setup"}},
		{"a key that is somebody's", func(m *mesh, _ *credential.Invitation, a *records.EnrolAsk) {
			other := ask()
			a.Key = other.Key
			must(m.store.AddNode(m.Context(), by, "web1", other))
		}, []string{"node web1"}},
		{"the invitation's own key", func(m *mesh, inv *credential.Invitation, a *records.EnrolAsk) { a.Key = must(inv.Seed.Public()) }, []string{"invitation"}},
		{"the coordinator's own key", func(m *mesh, _ *credential.Invitation, a *records.EnrolAsk) { a.Key = m.own }, []string{"that of the coordinator"}},
		{"no key", func(_ *mesh, _ *credential.Invitation, a *records.EnrolAsk) { a.Key = "" }, []string{"no public NKEY"}},
		{"no curve key", func(_ *mesh, _ *credential.Invitation, a *records.EnrolAsk) { a.Curve = a.Key }, []string{"curve"}},
		{"no machine id", func(_ *mesh, _ *credential.Invitation, a *records.EnrolAsk) { a.MachineID = "uninitialized" }, []string{"32 hex digits"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newMesh(t)
			inv, a := m.invite("db1"), ask()
			tt.setup(m, &inv, &a)
			before := must(m.store.Nodes(t.Context()))
			_, err := m.enrol(inv, a)
			m.refused(err, tt.say...)
			if after := must(m.store.Nodes(t.Context())); len(after) != len(before) {
				t.Errorf("refused, and there is %+v", after)
			}
		})
	}
}

// TestEnrolRace: of many machines with one invitation one comes in, and of many asks of it each gets the answer.
func TestEnrolRace(t *testing.T) {
	m := newMesh(t)
	inv := m.invite("db1")
	asks := make([]records.EnrolAsk, 8)
	for i := range asks {
		asks[i] = ask()
	}
	type end struct {
		ask int
		got records.EnrolAnswer
		err error
	}
	ends := make(chan end, 4*len(asks))
	for i := range cap(ends) {
		go func() { // ends with its ask
			a, err := m.enrol(inv, asks[i%len(asks)])
			ends <- end{i % len(asks), a, err}
		}()
	}
	in, news := map[int]int{}, 0
	for range cap(ends) {
		e := <-ends
		switch {
		case e.err == nil:
			in[e.ask]++
			if e.got.New {
				news++
			}
		case refusal.Of(e.err) == nil:
			t.Error(e.err)
		}
	}
	all := must(m.store.Nodes(t.Context()))
	if len(in) != 1 || news != 1 || len(all) != 1 {
		t.Errorf("let in were %v, %d new, the nodes are %+v", in, news, all)
	}
	for i, n := range in {
		if n != 4 || all[0].Key != asks[i].Key {
			t.Errorf("machine %d got %d answers of 4, the node's key is %s", i, n, all[0].Key)
		}
	}
}

// TestAsksHoldUpNobody: who may only ask does not wait for, nor keep, the right to write.
func TestAsksHoldUpNobody(t *testing.T) {
	m := newMesh(t)
	inv, over, a := m.invite("db1"), m.invite("db2"), ask()
	must(m.enrol(inv, a))
	m.ok(m.store.RevokeInvitation(t.Context(), by, over.ID))
	holds, let, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() { done <- m.store.Hold(func() { close(holds); <-let }) }() // ends below
	<-holds
	answers := make(chan error, 2)
	go func() { // ends when nobody writes, at the latest
		answers <- second(m.enrol(inv, a))
		answers <- second(m.enrol(over, ask()))
	}()
	if err := waitfor.Value(t, "the answer while somebody writes", 10*time.Second, answers); err != nil {
		t.Error(err)
	}
	m.refused(waitfor.Value(t, "the refusal while somebody writes", 10*time.Second, answers), "revoked")
	close(let)
	m.ok(<-done)
}

func TestRevokeUsedInvitation(t *testing.T) {
	m := newMesh(t)
	inv := m.invite("db1")
	must(m.enrol(inv, ask()))
	m.refused(m.store.RevokeInvitation(t.Context(), by, inv.ID), "it was used", "node remove db1")
}

// TestNameFreeAgain: a removed node is archived, its name can be taken, and the seqs of the one before
// are never given again.
func TestNameFreeAgain(t *testing.T) {
	m := newMesh(t)
	ctx := t.Context()
	m.node("db1")
	m.module(`{"module":"notes"}`)
	m.ok(m.assign("notes", records.AssignSet{}, "db1"))
	old := must(m.store.Node(ctx, "db1"))
	keep := func(n records.Node, seq uint64) error {
		return m.store.KeepDeclared(ctx, []records.NewDeclared{{Node: n, Seq: seq, Text: records.Pack([]byte("x"))}})
	}
	m.ok(keep(old, 41))
	if err := keep(old, 41); !errors.Is(err, records.ErrStale) {
		t.Errorf("the same seq again: %v", err)
	}
	m.ok(m.store.RemoveNode(ctx, by, "db1"))
	m.node("db1")
	m.ok(keep(old, 42)) // composed before the removal: dropped
	in := must(m.store.Inputs(ctx, "db1"))
	if in.Base != 41 || in.Declared.Seq != 0 || len(in.Placed) != 0 {
		t.Errorf("the new db1 starts with %+v", in)
	}
	if all := must(m.store.AllInputs(ctx)); len(all) != 1 || all[0].Base != 41 {
		t.Errorf("all inputs say %+v", all)
	}
	if gone := must(m.store.Archive(ctx)); len(gone) != 1 || gone[0].Key != old.Key || gone[0].Removed.IsZero() {
		t.Errorf("the archive holds %+v", gone)
	}
}

package records_test

import (
	"slices"
	"testing"

	"mesh/coordinator/records"
	"mesh/shared/subject"
)

// TestTake: what a module takes on a node, and that it comes back, are words of a person with a reason, one a module,
// and only of a module that is, or is no more, assigned there (APP-10, APP-18, CAL-2).
func TestTake(t *testing.T) {
	m := newMesh(t)
	m.node("db1")
	set := records.TakeSet{Things: map[string]string{"file:/etc/x": "aa", "container:x": "bb"}, Replace: []string{"/etc/x", "/etc/x"}, Downgrade: true}
	_, err := m.store.Take(t.Context(), records.By{Who: "operator-anna"}, "db1", "notes", set)
	m.refused(err, "without a reason")
	_, err = m.store.Take(t.Context(), by, "db1", "notes", set)
	m.refused(err, "not assigned")
	m.module(`{"module":"notes","run":{"files":[{"path":"/etc/x","content":"x"}]}}`)
	m.ok(m.assign("notes", records.AssignSet{}, "db1"))
	_, err = m.store.Take(t.Context(), by, "db1", "notes", records.TakeSet{})
	m.refused(err, "things must be given")
	_, err = m.store.GiveBack(t.Context(), by, "db1", "notes")
	m.refused(err, "mesh-coordinator unassign db1 notes")
	w := must(m.store.Take(t.Context(), by, "db1", "notes", set))
	again := must(m.store.Take(t.Context(), by, "db1", "notes", set)) // in the same millisecond
	if w.ID == 0 || again.ID <= w.ID || !slices.Equal(again.Replace, []string{"/etc/x"}) {
		t.Errorf("the words are %+v and %+v", w, again)
	}
	in := must(m.store.Inputs(t.Context(), "db1"))
	if len(in.Node.Takes) != 1 || in.Node.Takes[0].ID != again.ID || in.Node.Takes[0].Declared().Things["container:x"] != "bb" {
		t.Errorf("the inputs say %+v", in.Node.Takes)
	}
	m.ok(m.store.Unassign(t.Context(), by, []subject.Node{"db1"}, "notes"))
	back := must(m.store.GiveBack(t.Context(), by, "db1", "notes"))
	if n := must(m.store.Node(t.Context(), "db1")); len(n.Takes) != 1 || !n.Takes[0].Back || back.ID <= again.ID || len(back.Declared().Things) > 0 {
		t.Errorf("the node has %+v", n.Takes)
	}
	got := m.journal()
	if got[0] != "give back node db1, module notes: what was taken comes back as it was found" ||
		!slices.Contains(got, "take node db1, module notes: container:x, file:/etc/x; an older image is allowed; replaced /etc/x") {
		t.Errorf("the journal says %q", got[:4])
	}
}

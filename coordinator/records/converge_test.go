package records_test

import (
	"slices"
	"testing"
	"time"

	"mesh/coordinator/records"
)

// TestConverge: whose a packet filter is, is a person's word with a reason, in the journal (NET-9).
func TestConverge(t *testing.T) {
	m := newMesh(t)
	m.node("db1", "web1")
	quiet := records.By{Who: "operator-anna"}
	_, err := m.store.Converge(t.Context(), quiet, "db1", []string{"ufw"})
	m.refused(err, "without a reason")
	_, err = m.store.Converge(t.Context(), by, "db1", []string{"-ufw"})
	m.refused(err, "no name of a front end")
	_, err = m.store.Converge(t.Context(), by, "db2", nil)
	m.refused(err, "db2")
	if changed, err := m.store.Unconverge(t.Context(), quiet, "db1"); err != nil || changed {
		t.Errorf("unconverged what never was: %v, %v", changed, err)
	}
	c := must(m.store.Converge(t.Context(), by, "db1", []string{"ufw", "firewalld", "ufw"}))
	if !slices.Equal(c.Retire, []string{"firewalld", "ufw"}) || c.ID == 0 || c.Who != by.Who || c.Why != by.Why {
		t.Errorf("kept %+v", c)
	}
	again := must(m.store.Converge(t.Context(), by, "db1", nil)) // in the same millisecond
	if again.ID <= c.ID {
		t.Errorf("the second word is %d, the first %d", again.ID, c.ID)
	}
	m.clk.Advance(time.Second)
	if in := must(m.store.Inputs(t.Context(), "db1")); in.Node.Converge == nil || in.Node.Converge.ID != again.ID || in.Node.Converge.Declared().Retire == nil {
		t.Errorf("the inputs say %+v", in.Node.Converge)
	}
	if n := must(m.store.Node(t.Context(), "web1")); n.Converge != nil {
		t.Errorf("another node has %+v", n.Converge)
	}
	_, err = m.store.Unconverge(t.Context(), quiet, "db1")
	m.refused(err, "without a reason")
	if changed := must(m.store.Unconverge(t.Context(), by, "db1")); !changed {
		t.Error("nothing was taken back")
	}
	if n := must(m.store.Node(t.Context(), "db1")); n.Converge != nil {
		t.Errorf("taken back, it is %+v", n.Converge)
	}
	want := []string{"unconverge node db1: what filtered before mesh comes back", "converge node db1: the packet filter is mesh's, nothing gives way",
		"converge node db1: the packet filter is mesh's, firewalld, ufw give way"}
	if got := m.journal()[:3]; !slices.Equal(got, want) {
		t.Errorf("the journal says %q", got)
	}
}

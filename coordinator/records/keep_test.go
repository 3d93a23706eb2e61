package records_test

import (
	"testing"
	"time"

	"mesh/coordinator/records"
)

// TestKeep: what was changed by hand stays for a while on a person's word with a reason, and the word ends (APP-19).
func TestKeep(t *testing.T) {
	m := newMesh(t)
	m.node("db1")
	now := m.clk.Now()
	for name, try := range map[string]func() error{
		"without a reason": func() error {
			_, err := m.store.Keep(t.Context(), records.By{Who: "operator-anna"}, "db1", "file:/etc/a", now.Add(time.Hour))
			return err
		},
		"is no thing": func() error {
			_, err := m.store.Keep(t.Context(), by, "db1", "/etc/a", now.Add(time.Hour))
			return err
		},
		"for 100 days": func() error {
			_, err := m.store.Keep(t.Context(), by, "db1", "file:/etc/a", now.AddDate(0, 0, 100))
			return err
		},
	} {
		m.refused(try(), name)
	}
	must(m.store.Keep(t.Context(), by, "db1", "file:/etc/b", now.Add(time.Hour)))
	n := must(m.store.Keep(t.Context(), by, "db1", "file:/etc/a", now.Add(2*time.Hour)))
	if len(n.Keeps) != 2 || n.Keeps[0].Thing != "file:/etc/a" || n.Keeps[0].Declared().Until != now.Add(2*time.Hour).UnixMilli() {
		t.Errorf("kept are %+v", n.Keeps)
	}
	m.clk.Advance(90 * time.Minute) // b's is over
	n = must(m.store.Keep(t.Context(), by, "db1", "file:/etc/c", time.Time{}))
	if in := must(m.store.Inputs(t.Context(), "db1")); len(n.Keeps) != 1 || len(in.Node.Keeps) != 1 || in.Node.Keeps[0].Thing != "file:/etc/a" {
		t.Errorf("kept are %+v, of the inputs %+v", n.Keeps, in.Node.Keeps)
	}
	if got := m.journal()[0]; got != "keep node db1: file:/etc/c as it was changed by hand, ends" {
		t.Errorf("the journal says %q", got)
	}
}

package compose_test

import (
	"testing"
	"time"

	"mesh/coordinator/compose"
	"mesh/coordinator/records"
)

// TestConverge: the word that hands the packet filter to mesh goes with the filter, and a plan names it (NET-9).
func TestConverge(t *testing.T) {
	v := view()
	before, _ := compose.Content(v)
	if before.Filter.Converge != nil {
		t.Error("a node that is not converged is told to")
	}
	v.Converge = &records.Converge{ID: 7, At: time.UnixMilli(7), Who: "operator-anna", Why: "a test", Retire: []string{"firewalld", "ufw"}}
	after, _ := compose.Content(v)
	got := compose.Diff(before, after)
	if len(got) != 1 || got[0].What != "converge" || got[0].From != "" || got[0].To != "firewalld, ufw retired (word 7)" {
		t.Errorf("the plan says %+v", got)
	}
	v.Facts.Uplinks = 0 // a node without a filter is told nothing of whose it is (NET-3)
	if c, left := compose.Content(v); c.Filter != nil || len(left) != 1 {
		t.Errorf("without an uplink: %+v, %v", c.Filter, left)
	}
}

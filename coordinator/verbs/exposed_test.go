package verbs

import (
	"strings"
	"testing"

	"mesh/coordinator/records"
	"mesh/shared/report"
)

// NET-14: on a converged machine a difference between what is declared and what is let in is trouble.
func TestMachinesOpenOtherwise(t *testing.T) {
	word := records.Node{Name: "db1", Converge: &records.Converge{ID: 7}}
	says := func(id int64, state report.ConvergeState, exposed ...string) records.Reported {
		return records.Reported{Report: report.Report{Number: 1, Converge: &report.Converge{ID: id, State: state}, Exposed: exposed}}
	}
	const shut = "443/tcp over eth0: declared, but refused by the policy drop of ip x y"
	for name, tt := range map[string]struct {
		node records.Node
		r    records.Reported
		want string
	}{
		"as declared":         {word, says(7, report.Converged), ""},
		"not as declared":     {word, says(7, report.Converged, shut), "it is not open as declared: " + shut},
		"more than one":       {word, says(7, report.Converged, shut, shut, shut), "; and 2 more"},
		"not converged":       {records.Node{}, says(7, report.Converged, shut), ""},
		"not carried out yet": {word, says(7, report.Converging, shut), ""},
		"an older word":       {word, says(6, report.Converged, shut), ""},
	} {
		if got := openOtherwise(tt.node, tt.r); (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

package verbs

import (
	"fmt"

	"mesh/coordinator/records"
	"mesh/shared/report"
)

// openOtherwise says what of a machine whose filter is mesh's can be reached other than declared, or "" (NET-14).
// On others it is no trouble by itself: their filters have an owner of their own, and node show has the list.
func openOtherwise(n records.Node, r records.Reported) string {
	done := r.Report.Converge
	if n.Converge == nil || done == nil || done.ID != n.Converge.ID || done.State != report.Converged || len(r.Report.Exposed) == 0 {
		return ""
	}
	words := r.Report.Exposed[0]
	if more := len(r.Report.Exposed) - 1; more > 0 {
		words += fmt.Sprintf("; and %d more", more)
	}
	return report.Cut("it is not open as declared: "+words, mostWords)
}

package show_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"mesh/agent/show"
	"mesh/shared/report"
)

// TestRetiredFrontEndsAreNamed: whoever misses ufw on a machine reads who switched it off, and the way back (NET-9).
func TestRetiredFrontEndsAreNamed(t *testing.T) {
	d := well()
	d.Converge = &report.Converge{ID: 5, State: report.Converged, At: ago(2 * time.Hour), Retired: []string{"firewalld", "ufw"}}
	var b bytes.Buffer
	if err := show.RenderFirewall(&b, d, show.Live{}, now); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"retired", "firewalld, ufw", "since 2h", "mesh-coordinator node unconverge db1"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the page does not say %q:\n%s", want, b.String())
		}
	}
}

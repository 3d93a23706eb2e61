package show_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"mesh/agent/show"
	"mesh/shared/report"
)

// APP-7: what failed, what runs in its place and what it said last are on the page; so is what does not answer.
func TestPagesOfWhatIsNotWell(t *testing.T) {
	d := well()
	d.Declaration.Outcome = report.Failed
	d.Modules = []report.Module{
		{Name: "front", Build: "build-1", State: report.Broken, Since: ago(time.Minute), FailedBuild: "build-2", Log: "starting\ncannot open the database",
			Detail: "build-2: it did not get well within 30s: mesh-front-web: it answers 503 Service Unavailable; rolled back to build-1, which runs"},
		{Name: "store", Build: "build-4", State: report.Unwell, Since: ago(time.Minute), Detail: "mesh-store-main: connection refused"},
		{Name: "tries", Build: "build-5", State: report.Pending, Since: ago(time.Second), Detail: "it is given 30s to get well: mesh-tries-main: connection refused"},
	}
	var b bytes.Buffer
	if err := errors.Join(show.Render(&b, d, now), show.RenderModule(&b, d, d.Modules[0], now), show.RenderModule(&b, d, d.Modules[1], now)); err != nil {
		t.Fatal(err)
	}
	golden(t, "health.txt", b.String())
}

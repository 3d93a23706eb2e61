package report_test

import (
	"encoding/json"
	"strings"
	"testing"

	"mesh/shared/report"
)

func TestDecode(t *testing.T) {
	good := report.Report{Format: 1, Mesh: "m", Node: "db1", Number: 3, Apply: report.Apply{Seq: 2, Outcome: report.Applied},
		Modules: []report.Module{{Name: "notes", Build: "b", State: report.Running}}}
	text, err := json.Marshal(good)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := report.Decode(text, "db1"); err != nil || r.Modules[0].Name != "notes" {
		t.Fatalf("Decode = %+v, %v", r, err)
	}
	for name, tt := range map[string]struct{ from, to, says string }{
		"a neighbour's name": {`"node":"db1"`, `"node":"db2"`, "names db2"},
		"an unknown field":   {`"number":3`, `"number":3,"x":1`, "x: unknown field"},
		"no number":          {`"number":3`, `"number":0`, "no number"},
		"a newer format":     {`"format":1`, `"format":2`, "format 2"},
		"an odd outcome":     {`"applied"`, `"fine"`, "outcome"},
	} {
		_, err := report.Decode([]byte(strings.Replace(string(text), tt.from, tt.to, 1)), "db1")
		if err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"format":1,"mesh":"m","node":"db1","number":1,"at":0,"agent":{"version":"1"},"apply":{"seq":1,"outcome":"applied"}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := report.Decode(b, "db1"); err == nil && r.Node != "db1" {
			t.Errorf("took %+v", r)
		}
	})
}

func FuzzHeartbeat(f *testing.F) {
	f.Add([]byte(`{"at":1,"seq":2}`))
	f.Fuzz(func(t *testing.T, b []byte) { _, _ = report.DecodeHeartbeat(b) })
}

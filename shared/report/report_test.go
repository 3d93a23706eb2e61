package report_test

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"mesh/shared/refusal"
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

// TestDecodeBounds: one node's word cannot fill the lists that show many nodes, nor the columns of a store.
func TestDecodeBounds(t *testing.T) {
	long := strings.Repeat("é", 3000)
	read := func(change func(*report.Report)) (*report.Report, error) {
		r := report.Report{Format: report.Format, Mesh: "m", Node: "db1", Number: 1, Apply: report.Apply{Outcome: report.None}}
		change(&r)
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return report.Decode(b, "db1")
	}
	for name, change := range map[string]func(*report.Report){
		"seq":     func(r *report.Report) { r.Apply.Seq = report.MaxCount + 1 },
		"number":  func(r *report.Report) { r.Number = math.MaxUint64 },
		"version": func(r *report.Report) { r.Agent.Version = long },
		"tunnel":  func(r *report.Report) { r.Tunnel = long },
		"profile": func(r *report.Report) { r.Profile = &report.Profile{Capabilities: []string{long}} },
	} {
		if _, err := read(change); err == nil {
			t.Errorf("a %s past its bound was taken", name)
		}
	}
	r, err := read(func(r *report.Report) {
		r.Number = report.MaxCount
		r.Apply.Refused = &refusal.Refusal{What: "x", Why: long, Do: "y"}
		r.Modules = []report.Module{{Name: "notes", Detail: long}}
		r.Problems = []report.Problem{{Text: long}}
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{r.Apply.Refused.Why, r.Modules[0].Detail, r.Problems[0].Text} {
		if len(text) > 2048 || len(text) < 2040 || !utf8.ValidString(text) || !strings.HasSuffix(text, "é…") {
			t.Errorf("a text was cut to %d bytes, ending in %q", len(text), text[len(text)-8:])
		}
	}
}

package report_test

import (
	"bytes"
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

func TestWordsOfANodeDoNotDriveATerminal(t *testing.T) {
	evil := "a\x1b[2Jb\rc\bd\x7fe\u009b31mf\u202eg\u2028h\x00i"
	good := "Grüße, 日本\n\tend \\\\u \\ \"x\""
	for name, tt := range map[string]struct{ in, want string }{
		"evil": {evil, "a�[2Jb�c�d�e�31mf�g�h�i"},
		"good": {good, good},
	} {
		r := report.Report{Format: 1, Mesh: "m", Node: "db1", Number: 3, Apply: report.Apply{Outcome: report.Failed, Refused: &refusal.Refusal{What: tt.in, Why: "x", Do: "y"}},
			Profile: &report.Profile{Hostname: tt.in, Capabilities: []string{tt.in}}, Problems: []report.Problem{{Text: tt.in}}, Modules: []report.Module{{Name: "notes", Detail: tt.in}}}
		for _, escaped := range []bool{true, false} { // by encoding/json, and raw where JSON allows it
			var b bytes.Buffer
			e := json.NewEncoder(&b)
			e.SetEscapeHTML(escaped)
			if err := e.Encode(r); err != nil {
				t.Fatal(err)
			}
			text := b.String()
			if !escaped {
				text = strings.ReplaceAll(strings.ReplaceAll(text, `\u007f`, "\x7f"), `\u2028`, "\u2028")
			}
			got, err := report.Decode([]byte(text), "db1")
			if err != nil {
				t.Fatal(err)
			}
			for where, have := range map[string]string{"a refusal": got.Apply.Refused.What, "the host name": got.Profile.Hostname, "a list": got.Profile.Capabilities[0], "a problem": got.Problems[0].Text, "a detail": got.Modules[0].Detail} {
				if have != tt.want {
					t.Errorf("%s in %s: %q, want %q", name, where, have, tt.want)
				}
			}
		}
	}
	if h, err := report.DecodeHeartbeat([]byte(`{"at":1,"seq":2,"leaving":"\u001b[31m"}`)); err != nil || h.Leaving != "�[31m" {
		t.Errorf("a heartbeat: %q, %v", h.Leaving, err)
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

package enrol_test

import (
	"crypto/rand"
	"encoding/json"
	"strings"
	"testing"

	"mesh/shared/credential"
	"mesh/shared/enrol"
	"mesh/shared/refusal"
	"mesh/shared/report"
)

func ask(t testing.TB) enrol.Ask {
	t.Helper()
	user, err := credential.NewUser(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	curve, err := credential.NewCurve(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := enrol.Ask{Node: "db1", MachineID: "0123456789abcdef0123456789abcdef", Profile: report.Profile{OS: "debian"}, Agent: "0.1.0", At: 1}
	if a.Key, err = user.Public(); err != nil {
		t.Fatal(err)
	}
	if a.Curve, err = curve.Public(); err != nil {
		t.Fatal(err)
	}
	return a
}

func TestDecodeAsk(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*enrol.Ask)
		says   string
	}{
		{"whole", func(*enrol.Ask) {}, ""},
		{"a node name with a dot", func(a *enrol.Ask) { a.Node = "db.1" }, "dot"},
		{"a curve key for a bus key", func(a *enrol.Ask) { a.Key = a.Curve }, "bus key"},
		{"a bus key for a curve key", func(a *enrol.Ask) { a.Curve = a.Key }, "curve key"},
		{"no machine id", func(a *enrol.Ask) { a.MachineID = "" }, "machine id"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := ask(t)
			tt.change(&a)
			b, err := json.Marshal(a)
			if err != nil {
				t.Fatal(err)
			}
			_, err = enrol.DecodeAsk(b)
			if tt.says == "" {
				if err != nil {
					t.Errorf("refused: %v", err)
				}
				return
			}
			if refusal.Of(err) == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v, want a refusal that says %q", err, tt.says)
			}
		})
	}
	if _, err := enrol.DecodeAsk([]byte(`{"node":"db1","colour":"red"}`)); refusal.Of(err) == nil || !strings.Contains(err.Error(), "colour") {
		t.Errorf("an unknown field: %v", err)
	}
	if _, err := enrol.DecodeAsk(make([]byte, 1<<20)); refusal.Of(err) == nil {
		t.Errorf("a huge ask: %v", err)
	}
	garbage := ask(t)
	garbage.Profile.Kernel = strings.Repeat("x", 60<<10)
	b, err := json.Marshal(garbage)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := enrol.DecodeAsk(b); refusal.Of(err) == nil || len(err.Error()) > 500 {
		t.Errorf("a profile of 60 KiB: %.600v", err)
	}
}

func FuzzDecodeAsk(f *testing.F) {
	b, err := json.Marshal(ask(f))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		if a, err := enrol.DecodeAsk(b); err == nil && a.Check() != nil {
			t.Errorf("took %+v", a)
		}
	})
}

package report_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"mesh/shared/report"
)

// TestRefusalsAreBounded: one node's rule sets, of any size, fill no list of many nodes (NET-8, NET-13).
func TestRefusalsAreBounded(t *testing.T) {
	r := report.Report{Format: report.Format, Mesh: "m", Node: "db1", Number: 1, Apply: report.Apply{Outcome: report.None}, Refusals: &report.Refusals{More: 3}}
	for i := range 5000 {
		r.Refusals.Chains = append(r.Refusals.Chains, report.Chain{Family: "ip", Table: "filter", Chain: fmt.Sprint("c", i, strings.Repeat("x", 200)),
			Owner: []string{"unknown"}, Kind: []string{"unknown"}, Fate: []string{report.FateName}})
	}
	for i := range 500 {
		r.Refusals.NotUnderstood = append(r.Refusals.NotUnderstood, fmt.Sprint("a\u001b[31mthing ", i))
	}
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := report.Decode(b, "db1"); err == nil {
		t.Fatalf("a report past its bound was taken: %d bytes", len(b))
	}
	r.Refusals.Shorten()
	r.Refusals.Shorten() // twice is as once
	if b, err = json.Marshal(r); err != nil || len(b) > 64<<10 {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
	got, err := report.Decode(b, "db1")
	if err != nil {
		t.Fatal(err)
	}
	f := got.Refusals
	if len(f.Chains) != report.MaxChains || f.More != 4903 {
		t.Errorf("%d chains and %d more", len(f.Chains), f.More)
	}
	if n := f.NotUnderstood; len(n) != 20 || n[19] != "… and 481 more" || strings.Contains(n[0], "\x1b") {
		t.Errorf("not understood: %q", n)
	}
}

// TestOthers: what a converged machine is not well for (NET-8).
func TestOthers(t *testing.T) {
	chain := func(owner, fate string) report.Chain {
		return report.Chain{Owner: strings.Split(owner, "+"), Fate: strings.Split(fate, "+")}
	}
	r := &report.Refusals{Chains: []report.Chain{chain("mesh", "keep"), chain("docker", "leave"), chain("fail2ban", "leave")}}
	if got := r.Others(); got != nil {
		t.Errorf("mesh, a runtime and bans: %q", got)
	}
	r.Chains = append(r.Chains, chain("ufw+docker", "retire+leave"), chain("unknown", "leave and name"), chain("ufw", "retire"))
	if got := r.Others(); !slices.Equal(got, []string{"ufw", "unknown"}) {
		t.Errorf("others are %q", got)
	}
	if got := (*report.Refusals)(nil).Others(); got != nil {
		t.Errorf("nothing reported: %q", got)
	}
}

package verbs

import (
	"slices"
	"strings"
	"testing"
	"time"

	"mesh/coordinator/records"
	"mesh/shared/controller"
	"mesh/shared/refusal"
	"mesh/shared/report"
)

// filters is what a machine with three front ends, docker and fail2ban reports.
func filters() *report.Refusals {
	chain := func(table, name, owners, kinds, fates string) report.Chain {
		return report.Chain{Family: "ip", Table: table, Chain: name, How: []string{"drop"}, Owner: strings.Split(owners, ","), Kind: strings.Split(kinds, ","), Fate: strings.Split(fates, ",")}
	}
	return &report.Refusals{
		Chains: []report.Chain{
			chain("own", "in", "unknown", "unknown", "leave and name"),
			chain("filter", "FORWARD", "ufw,docker", "front end,container runtime", "retire,leave"),
			chain("filter", "INPUT", "apf-firewall", "front end", "retire"),
			chain("filter", "f2b-sshd", "fail2ban", "bans", "leave"),
			chain("mesh", "input", "mesh", "mesh", "keep"),
		},
		FrontEnds: []report.FrontEnd{{Name: "apf-firewall", Cannot: "docker"}, {Name: "ufw"}, {Name: "firewalld"}},
	}
}

// TestConvergence: a preview says the fate of each, by what the machine can do (NET-9).
func TestConvergence(t *testing.T) {
	heard := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	r := records.Reported{Report: report.Report{Number: 1, Refusals: filters()}, Heard: heard}
	got := convergence(records.Node{Name: "db1"}, r)
	var fates []string
	for _, f := range got.Fates {
		fates = append(fates, f.Table+" "+f.Chain+" "+f.Owner+": "+f.Says)
	}
	want := []string{
		"own in unknown: left in force, and not mesh's", "filter FORWARD ufw: retired with ufw", "filter FORWARD docker: left as the container runtime's",
		"filter INPUT apf-firewall: left in force, and not mesh's", "filter f2b-sshd fail2ban: left as a ban of fail2ban", "mesh input mesh: stays: it is mesh's own",
	}
	if !slices.Equal(fates, want) {
		t.Errorf("fates\n%s\nwant\n%s", strings.Join(fates, "\n"), strings.Join(want, "\n"))
	}
	if !slices.Equal(got.Retires, []string{"firewalld", "ufw"}) || !got.ReportedAt.Equal(heard) || !slices.Equal(got.Others, []string{"apf-firewall", "ufw", "unknown"}) {
		t.Errorf("retires %q of %q, as of %v", got.Retires, got.Others, got.ReportedAt)
	}
	if got := convergence(records.Node{Name: "db1"}, records.Reported{}); !got.ReportedAt.IsZero() || got.Fates == nil {
		t.Errorf("of a node that said nothing: %+v", got)
	}
}

// TestConvergedMachinesThatOthersFilter: such a machine is not well, whoever else it is (NET-8).
func TestConvergedMachinesThatOthersFilter(t *testing.T) {
	word := records.Node{Name: "db1", Converge: &records.Converge{ID: 7}}
	done := func(id int64, state report.ConvergeState, r *report.Refusals) records.Reported {
		return records.Reported{Report: report.Report{Number: 1, Refusals: r, Converge: &report.Converge{ID: id, State: state}}}
	}
	well := &report.Refusals{Chains: filters().Chains[3:]}
	for name, tt := range map[string]struct {
		node records.Node
		r    records.Reported
		says string
	}{
		"not converged":                {records.Node{}, done(7, report.Converged, filters()), ""},
		"mesh and bans":                {word, done(7, report.Converged, well), ""},
		"others":                       {word, done(7, report.Converged, filters()), "others filter packets on it: apf-firewall, ufw, unknown"},
		"an older word is carried out": {word, done(6, report.Converged, filters()), ""},
		"not carried out yet":          {word, done(7, report.Converging, filters()), ""},
		"nothing reported":             {word, done(7, report.Converged, nil), "cannot be seen"},
		"unreadable":                   {word, done(7, report.Converged, &report.Refusals{Why: "no"}), "cannot be seen"},
	} {
		if got := filteredByOthers(tt.node, tt.r); (got == "") != (tt.says == "") || !strings.Contains(got, tt.says) {
			t.Errorf("%s: %q, want %q", name, got, tt.says)
		}
	}
	lost := done(7, report.Converged, well)
	lost.Report.Converge.Lost = []string{"ip nat DOCKER of docker"}
	if got := filteredByOthers(word, lost); !strings.Contains(got, "ip nat DOCKER") {
		t.Errorf("docker's rules are gone, and it says %q", got)
	}
}

// TestConvergeIsRefused: a machine whose filters are not known, or that is sent none of mesh's, is not converged.
func TestConvergeIsRefused(t *testing.T) {
	s, keys := server(t)
	_, err := asks(t, s, keys[records.RoleAdmin], "node-converge", `{"node":"db1","why":"x"}`)
	if refusal.Of(err) == nil {
		t.Errorf("an unknown node: %v", err)
	}
	alone, admin := enrolled(t, "db1")
	if _, err := asks(t, alone, admin, "node-converge", `{"node":"db1","why":"x"}`); refusal.Of(err) == nil || !strings.Contains(err.Error(), "no uplink") {
		t.Errorf("a node without an uplink: %v", err)
	}
	if got, err := asks(t, alone, admin, "node-unconverge", `{"node":"db1","why":"x"}`); err != nil || got.(controller.NodeUnconvergeAnswer).Changed {
		t.Errorf("a node that is not converged: %+v, %v", got, err)
	}
	if _, err := asks(t, s, keys[records.RoleRead], "node-unconverge", `{"node":"db1","why":"x"}`); refusal.Of(err) == nil || !strings.Contains(err.Error(), "it takes operator") {
		t.Errorf("a viewer: %v", err)
	}
}

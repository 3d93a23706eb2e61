package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"mesh/shared/controller"
	"mesh/shared/report"
)

// TestConvergeTables: what filters packets on a node, and what becomes of each (NET-8, NET-9).
func TestConvergeTables(t *testing.T) {
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	var b bytes.Buffer
	show := func(title string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", title, err)
		}
		fmt.Fprintf(&b, "---- %s\n", title)
	}
	fate := func(chain, owner, says string) controller.ChainFate {
		return controller.ChainFate{Family: "ip", Table: "filter", Chain: chain, Hooks: []string{"input"}, How: []string{"policy drop"}, Owner: owner, Says: says}
	}
	preview := controller.Convergence{Node: "db1", ReportedAt: now.Add(-2 * time.Minute), Retires: []string{"ufw"}, Others: []string{"apf-firewall", "ufw"}, Other: 2, More: 4,
		Fates: []controller.ChainFate{fate("INPUT", "ufw", "retired with ufw"), fate("FORWARD", "docker", "left as the container runtime's"),
			fate("f2b-sshd", "fail2ban", "left as a ban of fail2ban"), fate("IN_SANITY", "apf-firewall", "left in force, and not mesh's")},
		FrontEnds: []report.FrontEnd{{Name: "apf-firewall", State: "apf-firewall.service enabled, running", How: "x", Cannot: "its own way off removes the rules of docker, too"},
			{Name: "ufw", State: "ufw.service enabled, running", How: `"ufw disable", and its service is disabled`, Notes: []string{"bans go with it"}}},
		Bypass: []string{"macvlan mv0: what it carries passes by"}, NotUnderstood: []string{"a rule of a kind that is not known"}}
	show("converge, a preview", writeConvergence(&b, preview, now, true))
	show("converge, nothing reported", writeConvergence(&b, controller.Convergence{Node: "db2"}, now, true))
	done := preview
	done.Word = &controller.ConvergeWord{ID: 7, At: now.Add(-time.Minute), By: "operator-anna", Why: "mesh filters here"}
	done.Outcome = &report.Converge{ID: 7, State: report.Converged, At: now.Add(-time.Minute).UnixMilli(), Retired: []string{"ufw"}, Left: []string{"apf-firewall: its own way off …"}, Lost: []string{"ip nat DOCKER of docker"}}
	done.Fates, done.FrontEnds, done.More = done.Fates[1:], done.FrontEnds[:1], 0
	show("converge, done", writeConvergence(&b, done, now, false))
	prio := int32(-1)
	node := controller.NodeAnswer{Node: controller.Node{Name: "db1", State: controller.NodeFailed, Why: "it is converged, and others filter packets on it: ufw"}, Enrolled: now,
		Settings: controller.NodeSettings{Converge: done.Word}, ReportedAt: now,
		Report: &report.Report{Uplinks: []string{"eth0"}, Converge: done.Outcome, Refusals: &report.Refusals{More: 3, NotUnderstood: []string{"one thing"}, Chains: []report.Chain{
			{Family: "inet", Table: "f2b-table", Chain: "f2b-chain", Hooks: []string{"input"}, Priority: &prio, Policy: "accept", How: []string{"drop"}, Owner: []string{"fail2ban"}, Fate: []string{"leave"}},
			{Family: "ip", Table: "filter", Chain: "INPUT", Legacy: true, How: []string{"policy drop"}, Owner: []string{"ufw", "docker"}, Fate: []string{"retire", "leave"}}}}}}
	show("node show", writeNode(&b, node, now))
	golden(t, "converge.txt", b.Bytes())
}

// TestConvergeTakesAReason: what reaches a machine is written down with why.
func TestConvergeTakesAReason(t *testing.T) {
	if _, said, code := try(t, &app{}, "node", "converge", "db1", "--yes"); code != exitNotWell || !strings.Contains(said, "do: say why") {
		t.Errorf("a converge without a reason: exit %d, %q", code, said)
	}
}

package coordinator_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"mesh/coordinator/client"
	"mesh/shared/controller"
	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/subject"
	"mesh/shared/waitfor"
)

// claims publishes a report of m as a program would that is not mesh's agent.
func (m *machine) claims(t *testing.T, change func(*report.Report)) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.number++
	r := report.Report{Format: report.Format, Mesh: m.answer.Mesh, Node: subject.Node(m.name), Number: m.number, At: m.clk.Now().UnixMilli(),
		Agent: report.Agent{Version: "0.1.0"}, Uplinks: []string{"eth0"}, Apply: report.Apply{Outcome: report.None}}
	change(&r)
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	if err := m.conn.Publish(ctx, subject.Report(subject.Node(m.name)), b, fmt.Sprintf("claim-%s-%d", m.id, m.number)); err != nil {
		t.Fatal(err)
	}
}

// TestACompromisedNodeHarmsItselfOnly has a node report what no agent does; the others are shown and sent
// as if it were not there (design §10, promise 7).
func TestACompromisedNodeHarmsItselfOnly(t *testing.T) {
	t.Parallel()
	m := startMesh(t)
	c := m.client(t, m.operator)
	good := newMachine(t, "good")
	good.join(t, c)
	bad := make([]*machine, 5) // more than one message takes
	for n := range bad {
		bad[n] = newMachine(t, fmt.Sprintf("bad%d", n))
		bad[n].join(t, c)
	}
	ask[controller.Push](t, c, controller.PushSend, controller.PushAsk{All: true, Why: "first"})
	for _, tt := range []struct {
		name string
		lie  func(*report.Report)
	}{
		{"a seq past all", func(r *report.Report) { r.Apply = report.Apply{Seq: math.MaxUint64, Outcome: report.Applied} }},
		{"a seq at the end of what is stored", func(r *report.Report) { r.Apply = report.Apply{Seq: math.MaxInt64, Outcome: report.Applied} }},
		{"a number past all", func(r *report.Report) { r.Number = math.MaxUint64 }},
		{"reasons without end", func(r *report.Report) {
			r.Apply = report.Apply{Seq: 1, Outcome: report.Refused, Refused: &refusal.Refusal{What: "x", Why: strings.Repeat("no ", 300_000), Do: strings.Repeat("y", 80_000)}}
		}},
		{"a module's detail without end", func(r *report.Report) {
			r.Modules = []report.Module{{Name: "a", State: report.Broken, Detail: strings.Repeat("no ", 300_000)}}
		}},
		{"an agent's version without end", func(r *report.Report) { r.Agent.Version = strings.Repeat("9", 900_000) }},
		{"a tunnel's name without end", func(r *report.Report) { r.Tunnel = strings.Repeat("t", 900_000) }},
		{"a processor without end", func(r *report.Report) { r.Profile = &report.Profile{Arch: strings.Repeat("a", 900_000)} }},
		{"before the beginning of time", func(r *report.Report) { r.At = math.MinInt64 }},
		{"twenty thousand modules", func(r *report.Report) {
			for n := range 20_000 {
				r.Modules = append(r.Modules, report.Module{Name: subject.Module(fmt.Sprint("m", n)), Build: "b", State: report.Running})
			}
		}},
	} {
		if !t.Run(tt.name, func(t *testing.T) {
			for _, x := range bad {
				x.claims(t, tt.lie)
			}
			s := ask[controller.StatusAnswer](t, c, controller.Status, controller.Nothing{})
			if s.Counts.Nodes != 6 {
				t.Errorf("the status counts %d nodes", s.Counts.Nodes)
			}
			ask[controller.NodesAnswer](t, c, controller.Nodes, controller.Nothing{})
			p := ask[controller.Push](t, c, controller.PushSend, controller.PushAsk{All: true, Why: "after the lies"})
			// A report after the lies is heard: they hold nothing up.
			waitfor.True(t, "the good one to have applied its own", soon, func() (bool, any) {
				p, err := client.Ask[controller.Push](t.Context(), c, controller.PushShow, controller.PushShowAsk{ID: p.ID})
				done := slices.ContainsFunc(p.Nodes, func(n controller.PushNode) bool { return n.Node == "good" && n.State == controller.PushApplied })
				return err == nil && len(p.Nodes) == 6 && done, fmt.Sprint(p.Counts, err)
			})
			ask[controller.StatusAnswer](t, c, controller.Status, controller.Nothing{})
		}) {
			return
		}
	}
}

package verbs

import (
	"context"
	"slices"
	"strings"

	"mesh/coordinator/records"
	"mesh/shared/controller"
	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/subject"
)

func (s *Server) convergence(ctx context.Context, _ records.By, ask controller.NodeAsk) (controller.Convergence, error) {
	n, err := s.cfg.Records.Node(ctx, ask.Node)
	if err != nil {
		return controller.Convergence{}, err
	}
	reported, err := s.cfg.Records.Report(ctx, ask.Node)
	if err != nil {
		return controller.Convergence{}, err
	}
	out := convergence(n, reported)
	if plans, err := s.cfg.Composer.Plan(ctx, []subject.Node{ask.Node}); err != nil {
		return out, err
	} else if len(plans) == 1 {
		for _, c := range plans[0].Changes {
			if c.What != "converge" {
				out.Other++
			}
		}
	}
	return out, nil
}

// convergence is what n's report says of its packet filters, and what a converge makes of them.
func convergence(n records.Node, reported records.Reported) controller.Convergence {
	out := controller.Convergence{Node: n.Name, Word: word(n), Fates: []controller.ChainFate{}, Outcome: reported.Report.Converge}
	r := reported.Report.Refusals
	if r == nil {
		return out
	}
	out.ReportedAt = reported.Heard.UTC()
	out.More, out.FrontEnds, out.Others, out.Unseen = r.More, r.FrontEnds, r.Others(), r.Why
	out.Bypass, out.Legacy, out.NotUnderstood = r.Bypass, r.Legacy, r.NotUnderstood
	cannot := map[string]string{}
	for _, f := range r.FrontEnds {
		if cannot[f.Name] = f.Cannot; f.Cannot == "" {
			out.Retires = append(out.Retires, f.Name)
		}
	}
	slices.Sort(out.Retires)
	for _, c := range r.Chains {
		for i := range min(len(c.Owner), len(c.Kind), len(c.Fate)) {
			f := controller.ChainFate{Family: c.Family, Table: c.Table, Chain: c.Chain, Legacy: c.Legacy, Hooks: c.Hooks, How: c.How,
				Owner: c.Owner[i], Kind: c.Kind[i], Fate: c.Fate[i]}
			why, known := cannot[f.Owner]
			if f.Fate == report.FateRetire && (!known || why != "") {
				f.Fate = report.FateName
			}
			f.Says = says(f)
			out.Fates = append(out.Fates, f)
		}
	}
	return out
}

// says is a fate in a sentence.
func says(f controller.ChainFate) string {
	switch {
	case f.Fate == report.FateKeep:
		return "stays: it is mesh's own"
	case f.Fate == report.FateRetire:
		return "retired with " + f.Owner
	case f.Fate == report.FateLeave && f.Kind == "bans":
		return "left as a ban of " + f.Owner
	case f.Fate == report.FateLeave:
		return "left as the " + f.Kind + "'s"
	}
	return "left in force, and not mesh's"
}

func word(n records.Node) *controller.ConvergeWord {
	c := n.Converge
	if c == nil {
		return nil
	}
	return &controller.ConvergeWord{ID: c.ID, At: c.At, By: c.Who, Why: c.Why, Retire: append([]string{}, c.Retire...)}
}

func (s *Server) converge(ctx context.Context, who records.By, ask controller.NodeConvergeAsk) (controller.NodeConvergeAnswer, error) {
	what := "converge " + string(ask.Node)
	in, err := s.cfg.Records.Inputs(ctx, ask.Node)
	if err != nil {
		return controller.NodeConvergeAnswer{}, err
	}
	reported, err := s.cfg.Records.Report(ctx, ask.Node)
	if err != nil {
		return controller.NodeConvergeAnswer{}, err
	}
	found := convergence(in.Node, reported)
	switch {
	case in.Facts.Uplinks == 0:
		return controller.NodeConvergeAnswer{}, refusal.New(what, "it has reported no uplink, so it is sent no packet filter of mesh's that could take over", "converge it when it has an uplink")
	case found.ReportedAt.IsZero():
		return controller.NodeConvergeAnswer{}, refusal.New(what, "it has not said yet what filters packets on it", "wait for its next report, or upgrade its agent")
	case found.Unseen != "":
		return controller.NodeConvergeAnswer{}, refusal.New(what, found.Unseen, "look at the machine: sudo mesh-agent firewall read")
	}
	c, err := s.cfg.Records.Converge(ctx, by(who, ask.Why), ask.Node, found.Retires)
	if err != nil {
		return controller.NodeConvergeAnswer{}, err
	}
	push, err := s.start(ctx, by(who, ask.Why), "node "+string(ask.Node)+", to converge", []subject.Node{ask.Node})
	return controller.NodeConvergeAnswer{Retire: append([]string{}, c.Retire...), Push: push}, err
}

func (s *Server) unconverge(ctx context.Context, who records.By, ask controller.NodeUnconvergeAsk) (controller.NodeUnconvergeAnswer, error) {
	changed, err := s.cfg.Records.Unconverge(ctx, by(who, ask.Why), ask.Node)
	if err != nil || !changed {
		return controller.NodeUnconvergeAnswer{}, err
	}
	push, err := s.start(ctx, by(who, ask.Why), "node "+string(ask.Node)+", to unconverge", []subject.Node{ask.Node})
	return controller.NodeUnconvergeAnswer{Changed: true, Push: &push}, err
}

// filteredByOthers says what filters packets on a machine whose filter is mesh's, or "" (NET-8). While the
// word is not carried out the machine is behind with it.
func filteredByOthers(n records.Node, r records.Reported) string {
	done := r.Report.Converge
	switch {
	case n.Converge == nil || done == nil || done.ID != n.Converge.ID || done.State != report.Converged:
		return ""
	case r.Report.Refusals == nil || r.Report.Refusals.Why != "":
		return "it is converged, and what filters packets on it cannot be seen"
	case len(done.Lost) > 0:
		return report.Cut("its converge took more than the front ends: "+strings.Join(done.Lost, "; "), mostWords)
	}
	others := r.Report.Refusals.Others()
	if len(others) == 0 {
		return ""
	}
	return report.Cut("it is converged, and others filter packets on it: "+strings.Join(others, ", "), mostWords)
}

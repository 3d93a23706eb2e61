package verbs

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"mesh/coordinator/records"
	"mesh/shared/controller"
	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/subject"
)

// held is what of a module is held on a node, and how the last word about it stands (APP-9).
func (s *Server) held(ctx context.Context, _ records.By, ask controller.HeldAsk) (controller.HeldAnswer, error) {
	in, err := s.cfg.Records.Inputs(ctx, ask.Node)
	if err != nil {
		return controller.HeldAnswer{}, err
	}
	reported, err := s.cfg.Records.Report(ctx, ask.Node)
	if err != nil {
		return controller.HeldAnswer{}, err
	}
	out := controller.HeldAnswer{Node: ask.Node, Module: ask.Module, Held: []report.Held{},
		Assigned: slices.ContainsFunc(in.Placed, func(p records.Placed) bool { return p.Module == ask.Module })}
	if reported.Report.Number > 0 {
		out.ReportedAt = reported.Heard.UTC()
	}
	for _, h := range reported.Report.Held {
		if h.Module == ask.Module {
			out.Held = append(out.Held, h)
		}
	}
	for _, t := range reported.Report.Taken {
		if t.Module == ask.Module {
			out.Outcome = &t
		}
	}
	for _, t := range in.Node.Takes {
		if t.Module == ask.Module {
			w := takeWord(t)
			out.Word = &w
		}
	}
	if !out.Assigned && out.Word == nil && out.Outcome == nil {
		return out, refusal.Newf(fmt.Sprintf("what %s holds for %s", ask.Node, ask.Module), fmt.Sprintf("mesh-coordinator assign %s %s, and push: what is there is reported and left alone", ask.Node, ask.Module),
			"%s is not assigned to %s, so nothing of it is declared there", ask.Module, ask.Node)
	}
	plans, err := s.cfg.Composer.Plan(ctx, []subject.Node{ask.Node})
	if err == nil && len(plans) == 1 {
		out.Other = len(plans[0].Changes)
	}
	return out, err
}

func takeWord(t records.Take) controller.TakeWord {
	return controller.TakeWord{ID: t.ID, At: t.At, By: t.Who, Why: t.Why, Back: t.Back, Things: slices.Sorted(maps.Keys(t.Things)), Downgrade: t.Downgrade, Replace: t.Replace}
}

// take keeps the word that a module has what is held of it, and tells the node (APP-10).
func (s *Server) take(ctx context.Context, who records.By, ask controller.TakeAsk) (controller.TakeAnswer, error) {
	found, err := s.held(ctx, who, controller.HeldAsk{Node: ask.Node, Module: ask.Module})
	if err != nil {
		return controller.TakeAnswer{}, err
	}
	if err := mayTake(found, ask); err != nil {
		return controller.TakeAnswer{}, err
	}
	w, err := s.cfg.Records.Take(ctx, by(who, ask.Why), ask.Node, ask.Module, records.TakeSet{Things: ask.Things, Downgrade: ask.Downgrade, Replace: ask.Replace})
	if err != nil {
		return controller.TakeAnswer{}, err
	}
	push, err := s.start(ctx, by(who, ask.Why), "node "+string(ask.Node)+", to take for "+string(ask.Module), []subject.Node{ask.Node})
	return controller.TakeAnswer{Word: takeWord(w), Push: push}, err
}

// mayTake refuses a take that the node would refuse, as far as its report tells.
func mayTake(found controller.HeldAnswer, ask controller.TakeAsk) error {
	what := fmt.Sprintf("the take for %s on %s", ask.Module, ask.Node)
	compare := fmt.Sprintf("mesh-coordinator take %s %s", ask.Node, ask.Module)
	if len(found.Held) == 0 {
		if o := found.Outcome; o != nil && o.State == report.Taken {
			return refusal.New(what, "nothing is held: "+strings.Join(o.Things, ", ")+" are mesh's already", "nothing; to undo it: "+strings.Replace(compare, " take ", " give-back ", 1))
		}
		return refusal.New(what, "nothing of it is held there, by the node's last report", "nothing; see mesh-coordinator node show "+string(ask.Node))
	}
	var files []string
	for _, h := range found.Held {
		path, isFile := strings.CutPrefix(h.Thing, "file:")
		if isFile {
			files = append(files, path)
		}
		switch seen, named := ask.Things[h.Thing]; {
		case !named:
			return refusal.New(what, h.Thing+" is held too", "compare again: "+compare)
		case seen != h.Seen:
			return refusal.New(what, h.Thing+" is another than when it was compared", "compare again: "+compare)
		case h.Cannot != "":
			return refusal.New(what, h.Thing+": "+h.Cannot, "do that first, then compare again: "+compare)
		case h.Needs == report.NeedsDowngrade && !ask.Downgrade:
			return refusal.New(what, h.Thing+": the declared image is older than the one that runs", "register a newer image, or allow it: --downgrade")
		case h.Needs == report.NeedsReplace && !slices.Contains(ask.Replace, path):
			return refusal.New(what, h.Thing+": its content differs from the declared one", "declare what is there, or allow it: --replace "+path)
		}
	}
	for _, p := range ask.Replace {
		if !slices.Contains(files, p) {
			return refusal.New(what, "no file "+p+" is held there", "leave that --replace out")
		}
	}
	return nil
}

// giveBack keeps the word that what was taken comes back, and tells the node (APP-18).
func (s *Server) giveBack(ctx context.Context, who records.By, ask controller.GiveBackAsk) (controller.TakeAnswer, error) {
	what := fmt.Sprintf("giving back what was taken for %s on %s", ask.Module, ask.Node)
	reported, err := s.cfg.Records.Report(ctx, ask.Node)
	if err != nil {
		return controller.TakeAnswer{}, err
	}
	i := slices.IndexFunc(reported.Report.Taken, func(t report.Take) bool { return t.Module == ask.Module })
	if i < 0 || reported.Report.Taken[i].State == report.GivenBack {
		return controller.TakeAnswer{}, refusal.New(what, "nothing is taken for it there, by the node's last report", "nothing; see mesh-coordinator node show "+string(ask.Node))
	}
	w, err := s.cfg.Records.GiveBack(ctx, by(who, ask.Why), ask.Node, ask.Module)
	if err != nil {
		return controller.TakeAnswer{}, err
	}
	push, err := s.start(ctx, by(who, ask.Why), "node "+string(ask.Node)+", to give back what was taken for "+string(ask.Module), []subject.Node{ask.Node})
	return controller.TakeAnswer{Word: takeWord(w), Push: push}, err
}

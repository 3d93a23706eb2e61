package verbs

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"mesh/coordinator/compose"
	"mesh/coordinator/issue"
	"mesh/coordinator/push"
	"mesh/coordinator/records"
	"mesh/shared/controller"
	"mesh/shared/declaration"
	"mesh/shared/refusal"
	"mesh/shared/subject"
)

func (s *Server) plan(ctx context.Context, _ records.By, ask controller.PlanAsk) (controller.PlanAnswer, error) {
	out := controller.PlanAnswer{Nodes: []controller.NodePlan{}}
	names := ask.Nodes
	if names != nil && len(names) == 0 {
		return out, refusal.New("a plan for nobody", "nodes: an empty selection never means all", "name nodes, or leave nodes out for all of them")
	}
	if len(names) == 0 { // a plan touches nothing: no word of nodes means all
		var err error
		if names, err = s.cfg.Composer.Names(ctx); err != nil || len(names) == 0 {
			return out, err
		}
	}
	plans, err := s.cfg.Composer.Plan(ctx, names)
	if err != nil {
		return out, err
	}
	for _, p := range plans {
		n := controller.NodePlan{Node: p.Node, Seq: p.Seq, Unsent: p.Unsent, Changes: make([]controller.PlanChange, len(p.Changes)), Notes: notes(p.Left)}
		for i, c := range p.Changes {
			n.Changes[i] = controller.PlanChange{Module: c.Module, What: c.What, From: c.From, To: c.To, Why: c.Why}
		}
		if p.Err != nil {
			n.Refused = refused(p.Node, p.Err)
		}
		if len(n.Changes) == 0 && !n.Unsent && n.Refused == nil {
			out.Unchanged++
			if len(n.Notes) == 0 {
				continue
			}
		}
		if len(out.Nodes) == controller.MaxPlanned {
			if len(n.Changes) > 0 || n.Unsent || n.Refused != nil {
				out.More++
			}
			continue
		}
		out.Nodes = append(out.Nodes, n)
	}
	return out, nil
}

func notes(left []compose.Left) (all []string) {
	for _, l := range left {
		all = append(all, l.String())
	}
	return all
}

func refused(n subject.Node, err error) *refusal.Refusal {
	if r := refusal.Of(err); r != nil {
		return r
	}
	return &refusal.Refusal{What: "the declaration of " + string(n), Why: err.Error(), Do: "see mesh-coordinator node show " + string(n)}
}

// push resolves each machine once, keeps what is new, and answers before it sends (PSH-2, MEM-6).
func (s *Server) push(ctx context.Context, who records.By, ask controller.PushAsk) (controller.Push, error) {
	if strings.TrimSpace(ask.Why) == "" {
		return controller.Push{}, refusal.New("a push without a reason", "it is kept in the journal, for whoever looks later", `say why: --why "new greeting"`)
	}
	names, object, err := s.selection(ctx, ask)
	if err != nil {
		return controller.Push{}, err
	}
	if ask.Prune {
		if err := s.prune(ctx, by(who, ask.Why), names); err != nil {
			return controller.Push{}, err
		}
	}
	return s.start(ctx, by(who, ask.Why), object, names)
}

// prune has the strays removed that the nodes named last (APP-11): those and no others.
func (s *Server) prune(ctx context.Context, who records.By, names []subject.Node) error {
	for _, n := range names {
		last, err := s.cfg.Records.Report(ctx, n)
		if err != nil {
			return err
		}
		strays := slices.DeleteFunc(slices.Clone(last.Report.Strays), func(id string) bool { return !declaration.CanPrune(id) })
		if len(strays) == 0 {
			continue
		}
		if err := s.cfg.Records.Prune(ctx, who, n, strays); err != nil {
			return err
		}
	}
	return nil
}

// start composes and hands over to be sent, one push at a time: an older declaration of a node is never
// handed over after a newer one.
func (s *Server) start(ctx context.Context, who records.By, object string, names []subject.Node) (controller.Push, error) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return controller.Push{}, ctx.Err()
	}
	items, err := s.items(ctx, names)
	if err != nil {
		return controller.Push{}, err
	}
	// What a machine may fetch comes before the word to fetch it.
	if err := s.cfg.Users.Now(ctx); err != nil {
		s.cfg.Log.Warn("push: the user list is not in force yet, the push stands", "err", err)
	}
	unissued := s.issueTo(ctx, items)
	// Nothing is sent that the journal does not know: records that cannot be written stop a push, and so do
	// those in which its asker was revoked while it waited for its turn.
	id, only := s.cfg.Push.NewID(), subject.Node("")
	if len(names) == 1 {
		only = names[0]
	}
	if err := s.cfg.Records.Note(ctx, who, "push", object+" as push "+id, only, ""); err != nil {
		return controller.Push{}, err
	}
	p := s.cfg.Push.StartAs(id, who.Who, who.Why, items)
	p.Unissued = unissued
	return p, nil
}

// issueTo puts the memberships of the items' nodes on the bus, and returns how many it could not (MEM-5): the
// push stands, for they travel in the declaration too.
func (s *Server) issueTo(ctx context.Context, items []push.Item) int {
	names := make([]subject.Node, len(items))
	at := make(map[subject.Node]int, len(items))
	for i, it := range items {
		names[i], at[it.Node] = it.Node, i
	}
	all, err := s.cfg.Composer.Memberships(ctx, names)
	var failed []issue.Failed
	if err == nil {
		failed, err = s.cfg.Issuer.Issue(ctx, all)
	}
	if err != nil {
		s.cfg.Log.Warn("push: memberships are not on the bus, the push stands", "err", err)
		n := 0
		for _, of := range all {
			n += len(of)
		}
		return n
	}
	for _, f := range failed {
		it := &items[at[f.Node]]
		it.Note = strings.TrimPrefix(it.Note+fmt.Sprintf("; the membership of %s is not on the bus: %v", f.Module, f.Err), "; ")
	}
	return len(failed)
}

// selection names the nodes of a push: exactly one way of choosing, and nothing is never all (PSH-11).
func (s *Server) selection(ctx context.Context, ask controller.PushAsk) (names []subject.Node, object string, err error) {
	ways := 0
	for _, chosen := range []bool{len(ask.Nodes) > 0, ask.All, ask.Behind} {
		if chosen {
			ways++
		}
	}
	const do = "name nodes, or say --all or --behind, one of the three"
	switch {
	case ways == 0:
		return nil, "", refusal.New("a push to nobody", "an empty selection never means all", do)
	case ways > 1:
		return nil, "", refusal.New("a push with several selections", "nodes, all and behind exclude each other", do)
	case ask.All:
		names, err = s.cfg.Composer.Names(ctx)
		object = fmt.Sprintf("all %d nodes", len(names))
		if err == nil && len(names) == 0 {
			err = refusal.New("a push to all", "no node is enrolled", "invite one: mesh-coordinator node invite <name>")
		}
	case ask.Behind:
		var behind map[subject.Node]string
		behind, err = s.cfg.Composer.Behind(ctx)
		names = slices.Sorted(maps.Keys(behind))
		object = fmt.Sprintf("%d nodes that are behind", len(names))
	default:
		names = slices.Compact(slices.Sorted(slices.Values(ask.Nodes)))
		object = "nodes " + list(names)
	}
	return names, object, err
}

// list names a few and counts the rest.
func list(names []subject.Node) string {
	const most = 8
	words := make([]string, 0, most)
	for _, n := range names[:min(most, len(names))] {
		words = append(words, string(n))
	}
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(words, ", "), len(names)-most)
	}
	return strings.Join(words, ", ")
}

// items composes what is to be sent. A node that nothing can be made for is shown as refused.
func (s *Server) items(ctx context.Context, names []subject.Node) ([]push.Item, error) {
	if len(names) == 0 {
		return nil, nil
	}
	all := make([]push.Item, 0, len(names))
	unchanged := map[subject.Node]int{}
	err := s.cfg.Composer.Nodes(ctx, names, func(batch []compose.Composed) error {
		for _, d := range batch {
			it := push.Item{Node: d.Node, Seq: d.Seq, Builds: d.Builds, Note: strings.Join(notes(d.Left), "; ")}
			switch {
			case d.Err != nil:
				it.Refused = refused(d.Node, d.Err)
			case d.Changed:
				signed, err := s.cfg.Composer.Text(ctx, d)
				if err != nil {
					return err
				}
				it.Signed = signed
			default:
				unchanged[d.Node] = len(all)
			}
			all = append(all, it)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := s.texts(ctx, all, unchanged); err != nil {
		return nil, err
	}
	return all, nil
}

// texts fills in the declarations that are the same as before, in one read.
func (s *Server) texts(ctx context.Context, all []push.Item, unchanged map[subject.Node]int) error {
	if len(unchanged) == 0 {
		return nil
	}
	err := s.cfg.Records.DeclaredTexts(ctx, slices.Collect(maps.Keys(unchanged)), func(n subject.Node, seq uint64, signed declaration.Signed) error {
		if it := &all[unchanged[n]]; it.Seq == seq {
			it.Signed = signed
		}
		return nil
	})
	if err != nil {
		return err
	}
	for n, i := range unchanged {
		if all[i].Signed == nil && all[i].Refused == nil {
			all[i].Refused = &refusal.Refusal{What: "the declaration of " + string(n), Why: "another push made a newer one meanwhile", Do: "push again"}
		}
	}
	return nil
}

func (s *Server) pushShow(ctx context.Context, _ records.By, ask controller.PushShowAsk) (controller.Push, error) {
	if ask.WaitMS < 0 || ask.WaitMS > controller.MaxPushWait.Milliseconds() {
		return controller.Push{}, refusal.Newf("the arguments", "ask again for longer", "wait_ms: %d is not between 0 and %d", ask.WaitMS, controller.MaxPushWait.Milliseconds())
	}
	return s.cfg.Push.Show(ctx, ask.ID, ask.After, time.Duration(ask.WaitMS)*time.Millisecond)
}

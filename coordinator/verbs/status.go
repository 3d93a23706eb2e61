package verbs

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"mesh/coordinator/records"
	"mesh/shared/controller"
	"mesh/shared/declaration"
	"mesh/shared/subject"
)

func (s *Server) status(ctx context.Context, _ records.By, _ controller.Nothing) (controller.StatusAnswer, error) {
	began := s.cfg.Clock.Now()
	mesh, err := s.cfg.Records.Mesh(ctx)
	if err != nil {
		return controller.StatusAnswer{}, err
	}
	out := controller.StatusAnswer{Mesh: mesh.ID, Name: mesh.Name, Version: s.cfg.Version, At: began.UTC(), Bus: mesh.Bus.Addresses, Problems: []controller.Problem{}}
	nodes, err := s.all(ctx)
	if err != nil {
		return out, err
	}
	if err := s.count(ctx, &out.Counts, nodes, began); err != nil {
		return out, err
	}
	out.Problems, out.NewestAgent = problems(nodes)
	out.Notes = notesOf(nodes)
	lost, err := s.lost(ctx)
	if err != nil {
		return out, err
	}
	out.Problems = append(out.Problems, lost...)
	out.Well = len(out.Problems) == 0
	out.TookMS = s.cfg.Clock.Now().Sub(began).Milliseconds()
	return out, nil
}

// problems are what is wrong with nodes, which come the worst first, and the newest agent among them.
func problems(nodes []controller.Node) (all []controller.Problem, newest string) {
	all = []controller.Problem{}
	for _, n := range nodes {
		if n.Agent != "" && (newest == "" || older(newest, n.Agent)) {
			newest = n.Agent
		}
		if n.State == controller.NodeWell && n.Why == "" || n.State == controller.NodeAsleep || n.State == controller.NodeNew {
			continue
		}
		what := string(n.State)
		if n.State == controller.NodeWell {
			what = ""
		} else if n.Why != "" {
			what += ": "
		}
		show := "mesh-coordinator node show " + string(n.Name)
		if n.State == controller.NodeBehind {
			show = "mesh-coordinator plan " + string(n.Name)
		}
		all = append(all, controller.Problem{Node: n.Name, What: what + n.Why, Show: show})
	}
	for _, n := range nodes {
		if n.Agent != "" && older(n.Agent, newest) {
			all = append(all, controller.Problem{Node: n.Name, What: fmt.Sprintf("it runs agent %s, another node runs %s", n.Agent, newest), Show: "mesh-coordinator node list"})
		}
	}
	return all, newest
}

// lost are the assigned modules whose bundle or image the bus does not hold any more: no machine could fetch
// it. An artifact whose first chunk is there came whole.
func (s *Server) lost(ctx context.Context) (all []controller.Problem, err error) {
	builds, err := s.cfg.Records.Modules(ctx)
	if err != nil {
		return nil, err
	}
	builds = slices.DeleteFunc(builds, func(b *records.Build) bool { return b.Artifact == nil && len(b.Images) == 0 })
	if len(builds) == 0 {
		return nil, nil
	}
	stream, err := s.js.Stream(ctx, string(subject.Artifacts))
	if err != nil {
		return nil, fmt.Errorf("look for the bundles: %w", err)
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(subject.Chunk("*", 0)))
	if err != nil {
		return nil, fmt.Errorf("look for the bundles: %w", err)
	}
	for _, b := range builds {
		there := func(a declaration.Artifact) bool { return info.State.Subjects[subject.Chunk(a.Digest, 0)] > 0 }
		if all := b.Artifacts(""); !slices.ContainsFunc(all, func(a declaration.Artifact) bool { return !there(a) }) {
			continue
		}
		what := "bundle"
		if b.Artifact == nil || there(*b.Artifact) {
			what = "images"
		}
		nodes, err := s.nodesOf(ctx, b.Module)
		if err != nil {
			return nil, err
		}
		if len(nodes) > 0 {
			all = append(all, controller.Problem{What: fmt.Sprintf("the bus does not hold the %s of module %s any more, which %s fetch", what, b.Module, list(nodes)),
				Show: "mesh-coordinator module register <folder of " + string(b.Module) + ">"})
		}
	}
	return all, nil
}

// notesOf are the machines that wait for their first push: whoever let them in knows, and is reminded.
func notesOf(nodes []controller.Node) (all []controller.Problem) {
	for _, n := range nodes {
		if n.State == controller.NodeNew {
			all = append(all, controller.Problem{Node: n.Name, What: string(n.State) + ": " + n.Why, Show: "mesh-coordinator plan " + string(n.Name)})
		}
	}
	return all
}

func (s *Server) count(ctx context.Context, c *controller.Counts, nodes []controller.Node, now time.Time) error {
	c.Nodes = len(nodes)
	for _, n := range nodes {
		c.Assignments += n.Modules
		switch n.State {
		case controller.NodeWell:
			c.Well++
		case controller.NodeBehind:
			c.Behind++
		case controller.NodeNew:
			c.New++
		case controller.NodeSilent, controller.NodeUnknown:
			c.Silent++
		case controller.NodeFailed, controller.NodeRefused:
			c.Failed++
		}
	}
	modules, err := s.cfg.Records.Modules(ctx)
	if err != nil {
		return err
	}
	c.Modules = len(modules)
	operators, err := s.cfg.Records.Operators(ctx)
	if err != nil {
		return err
	}
	for _, o := range operators {
		if o.Revoked.IsZero() {
			c.Operators++
		}
	}
	invitations, err := s.cfg.Records.Invitations(ctx)
	if err != nil {
		return err
	}
	for _, in := range invitations {
		if invitationState(in, now) == controller.InvitationOpen {
			c.Invitations++
		}
	}
	return nil
}

func invitationState(in records.Invitation, now time.Time) controller.InvitationState {
	switch {
	case !in.Used.IsZero():
		return controller.InvitationUsed
	case !in.Revoked.IsZero():
		return controller.InvitationRevoked
	case !now.Before(in.Expires):
		return controller.InvitationExpired
	}
	return controller.InvitationOpen
}

func (s *Server) seats(ctx context.Context, _ records.By, _ controller.Nothing) (controller.SeatsAnswer, error) {
	names, err := s.cfg.Composer.Names(ctx)
	if err != nil {
		return controller.SeatsAnswer{}, err
	}
	verbs := make([]subject.Verb, 0, len(s.tools))
	ofNodes := make([]subject.Verb, 0, len(s.tools))
	ofPrevention := make([]subject.Verb, 0, 1)
	for _, t := range s.tools {
		switch t.Seat {
		case subject.Controller:
			verbs = append(verbs, t.Verb)
		case subject.NodeEngine:
			ofNodes = append(ofNodes, t.Verb)
		case subject.NodePrevention:
			ofPrevention = append(ofPrevention, t.Verb)
		}
	}
	engines := ""
	if len(names) > 0 {
		engines = fmt.Sprintf("every node (%d)", len(names))
	}
	return controller.SeatsAnswer{Seats: []controller.Seat{
		{Name: subject.Controller, Scope: "mesh", Description: "keeps the records, composes and sends declarations, hears reports", Holder: "the coordinator", Verbs: verbs},
		{Name: subject.Broker, Scope: "mesh", Description: "runs the bus", Holder: "the coordinator, embedded", Verbs: []subject.Verb{}},
		{Name: subject.NodeEngine, Scope: "node", Description: "keeps its machine as it is declared", Holder: engines, Verbs: ofNodes},
		{Name: subject.NodePrevention, Scope: "node", Description: "says who is banned on its machine", Holder: engines, Verbs: ofPrevention},
	}}, nil
}

func (s *Server) listTools(ctx context.Context, _ records.By, _ controller.Nothing) (controller.ToolsAnswer, error) {
	more, err := s.moduleTools(ctx)
	return controller.ToolsAnswer{Tools: append(slices.Clone(s.tools), more...)}, err
}

func (s *Server) changes(ctx context.Context, _ records.By, ask controller.ChangesAsk) (controller.ChangesAnswer, error) {
	limit := ask.Limit
	if limit <= 0 {
		limit = 50
	}
	all, err := s.cfg.Records.Changes(ctx, ask.Node, ask.Module, min(limit, 1000))
	out := controller.ChangesAnswer{Changes: make([]controller.Change, 0, len(all))}
	size := 0
	for _, c := range all {
		if size += len(c.Object) + len(c.Why); size > mostJournal {
			break // an answer has to fit one message
		}
		out.Changes = append(out.Changes, controller.Change{ID: c.ID, At: c.At, Who: c.Who, What: c.What, Object: c.Object, Node: c.Node, Module: c.Module, Why: c.Why})
	}
	return out, err
}

// mostJournal bounds in bytes what one answer shows of the journal; JSON writes a letter with six at most.
const mostJournal = 512 << 10

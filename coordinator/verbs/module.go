package verbs

import (
	"context"
	"mesh/coordinator/records"
	"mesh/shared/controller"
	"mesh/shared/declaration"
	"mesh/shared/subject"
)

func (s *Server) modules(ctx context.Context, _ records.By, _ controller.Nothing) (controller.ModulesAnswer, error) {
	builds, err := s.cfg.Records.Modules(ctx)
	if err != nil {
		return controller.ModulesAnswer{}, err
	}
	out := controller.ModulesAnswer{Modules: make([]controller.Module, len(builds))}
	for i, b := range builds {
		if out.Modules[i], err = s.moduleLine(ctx, b); err != nil {
			return out, err
		}
	}
	shortenNodes(out.Modules)
	return out, nil
}

// mostNames bounds how many nodes are named in one answer, over all modules.
const mostNames = 50_000

// shortenNodes counts nodes instead of naming them where the names would not fit one message.
func shortenNodes(all []controller.Module) {
	names := 0
	for _, m := range all {
		names += len(m.Nodes)
	}
	if names <= mostNames {
		return
	}
	for i := range all {
		if keep := mostNames / len(all); len(all[i].Nodes) > keep {
			all[i].More = len(all[i].Nodes) - keep
			all[i].Nodes = all[i].Nodes[:keep]
		}
	}
}

func (s *Server) moduleLine(ctx context.Context, b *records.Build) (controller.Module, error) {
	m := controller.Module{Name: b.Module, Description: b.Manifest.Description, Build: b.ID, Registered: b.At, Artifact: b.Artifact, Images: imagesOf(b)}
	var err error
	m.Nodes, err = s.nodesOf(ctx, b.Module)
	return m, err
}

func (s *Server) nodesOf(ctx context.Context, m subject.Module) ([]subject.Node, error) {
	all, err := s.cfg.Records.AssignmentsOf(ctx, m)
	nodes := make([]subject.Node, len(all))
	for i, a := range all {
		nodes[i] = a.Node
	}
	return nodes, err
}

func (s *Server) module(ctx context.Context, _ records.By, ask controller.ModuleAsk) (controller.ModuleAnswer, error) {
	var out controller.ModuleAnswer
	b, err := s.cfg.Records.Module(ctx, ask.Module)
	if err != nil {
		return out, err
	}
	if out.Module, err = s.moduleLine(ctx, b); err != nil {
		return out, err
	}
	out.Manifest = b.Text
	builds, err := s.cfg.Records.Builds(ctx, ask.Module)
	for _, b := range builds[:min(len(builds), mostListed)] {
		out.Builds = append(out.Builds, controller.Build{ID: b.ID, Registered: b.At, Source: b.Source, Artifact: b.Artifact, Images: imagesOf(b)})
	}
	return out, err
}

// imagesOf are b's images in a few words.
func imagesOf(b *records.Build) []controller.ModuleImage {
	var all []controller.ModuleImage
	for _, i := range b.Images {
		m := controller.ModuleImage{Name: i.Name, Arch: i.Arch, ID: i.ID, Layers: len(i.Blobs) - 2}
		for _, blob := range i.Blobs {
			m.Size += blob.Size
		}
		all = append(all, m)
	}
	return all
}

func (s *Server) register(ctx context.Context, who records.By, ask controller.RegisterAsk) (controller.RegisterAnswer, error) {
	var out controller.RegisterAnswer
	m := declaration.Module{Artifact: ask.Artifact, Images: ask.Images}
	if all := m.Artifacts(); len(all) > 0 {
		give, err := s.cfg.Artifacts.Hold(ctx)
		if err != nil {
			return out, err
		}
		defer give()
		if err := s.onBus(ctx, all); err != nil {
			return out, err
		}
	}
	b, news, err := s.cfg.Records.Register(ctx, by(who, ask.Why), records.Registration{Manifest: ask.Manifest, Artifact: ask.Artifact, Images: ask.Images, Source: ask.Source})
	if err != nil {
		return out, err
	}
	out = controller.RegisterAnswer{Module: b.Module, Build: b.ID, Changed: news}
	out.Nodes, err = s.nodesOf(ctx, b.Module)
	return out, err
}

func (s *Server) assign(ctx context.Context, who records.By, ask controller.AssignAsk) (controller.AssignAnswer, error) {
	did, err := s.cfg.Records.Assign(ctx, by(who, ask.Why), []subject.Node{ask.Node}, ask.Module, records.AssignSet{Set: ask.Settings, Unset: ask.Unset, Sealed: ask.Secrets})
	if err != nil {
		return controller.AssignAnswer{}, err
	}
	b, err := s.cfg.Records.Module(ctx, ask.Module)
	if err != nil {
		return controller.AssignAnswer{}, err
	}
	return controller.AssignAnswer{Changed: did[0].Changed, Build: b.ID}, nil
}

func (s *Server) unassign(ctx context.Context, who records.By, ask controller.UnassignAsk) (controller.Done, error) {
	err := s.cfg.Records.Unassign(ctx, by(who, ask.Why), []subject.Node{ask.Node}, ask.Module)
	return controller.Done{Changed: err == nil}, err
}

// unassignWithData keeps the word; the node deletes when it is pushed to, and only what is that module's (APP-11).
func (s *Server) unassignWithData(ctx context.Context, who records.By, ask controller.UnassignWithDataAsk) (controller.Done, error) {
	err := s.cfg.Records.UnassignWithData(ctx, by(who, ask.Why), ask.Node, ask.Module, ask.Things)
	return controller.Done{Changed: err == nil}, err
}

package verbs

import (
	"context"
	"encoding/json"
	"maps"
	"slices"

	"mesh/coordinator/records"
	"mesh/shared/controller"
	"mesh/shared/manifest"
	"mesh/shared/subject"
)

func (s *Server) calls(ctx context.Context, _ records.By, ask controller.CallsAsk) (controller.CallsAnswer, error) {
	limit := ask.Limit
	if limit <= 0 {
		limit = 50
	}
	if err := s.cfg.Calls.Flush(ctx); err != nil {
		return controller.CallsAnswer{}, err
	}
	all, err := s.cfg.Records.Calls(ctx, string(ask.Verb), ask.Caller, min(limit, 1000))
	out := controller.CallsAnswer{Calls: make([]controller.Call, len(all))}
	for i, c := range all {
		out.Calls[i] = callOf(c)
	}
	return out, err
}

// callShow shows one to who asked it, or who might have: an answer tells what its verb does.
func (s *Server) callShow(ctx context.Context, who records.By, ask controller.CallShowAsk) (controller.Call, error) {
	c, err := s.cfg.Calls.Find(ctx, ask.ID)
	if err != nil {
		return controller.Call{}, err
	}
	line, known := controller.Find(subject.Verb(c.Verb))
	if c.Caller != who.Who && known {
		if _, err := s.authorize(ctx, who.Key, line); err != nil {
			return controller.Call{}, err
		}
	}
	return callOf(c), nil
}

func callOf(c records.Call) controller.Call {
	out := controller.Call{ID: c.ID, Caller: c.Caller, Verb: subject.Verb(c.Verb), State: c.State, Began: c.Began, Ended: c.Ended, Args: json.RawMessage(c.Args), Answer: json.RawMessage(c.Answer), Bytes: c.Bytes}
	if !c.Ended.IsZero() {
		out.TookMS = c.Ended.Sub(c.Began).Milliseconds()
	}
	return out
}

// moduleTools are the verbs of the modules that are assigned somewhere or not, by module.
func (s *Server) moduleTools(ctx context.Context) (all []controller.Tool, err error) {
	builds, err := s.cfg.Records.Modules(ctx)
	for _, b := range builds {
		for _, name := range slices.Sorted(maps.Keys(b.Manifest.Tools)) {
			t := b.Manifest.Tools[name]
			tool := controller.Tool{Module: b.Module, Verb: subject.Verb(name), Description: t.Description, Level: controller.Level(t.Asking()), Role: controller.Operator, Schema: json.RawMessage(`{"type":"object"}`)}
			if t.Asking() == manifest.LevelRead {
				tool.Role = controller.Viewer
			}
			if !t.Schema.IsZero() {
				tool.Schema = json.RawMessage(t.Schema.String())
			}
			all = append(all, tool)
		}
	}
	return all, err
}

package serve

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"mesh/shared/clock"
	"mesh/shared/controller"
	"mesh/shared/engine"
	"mesh/shared/refusal"
	"mesh/shared/subject"
	"mesh/shared/verb"
)

func restart(context.Context, verb.Caller, engine.RestartAsk) (engine.RestartAnswer, error) {
	return engine.RestartAnswer{}, nil
}

func server(t *testing.T, verbs ...Verb) (*Server, error) {
	t.Helper()
	return New(Config{Node: "n1", Verbs: verbs, Version: "1.2.3 (abc)", Clock: clock.Real(), Log: slog.New(slog.DiscardHandler)})
}

func TestWhatIsNotInTheTableIsNotServed(t *testing.T) {
	for says, verbs := range map[string][]Verb{
		"is in no table":                     {Bind(subject.NodeEngine, "dance", restart)},
		"does not have the types":            {Bind(subject.NodeEngine, engine.Show, restart)},
		"is bound twice":                     {Bind(subject.NodeEngine, engine.Restart, restart), Bind(subject.NodeEngine, engine.Restart, restart)},
		"the verb restart of node-elsewhere": {Bind("node-elsewhere", engine.Restart, restart)},
	} {
		if _, err := server(t, verbs...); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want it to say %q", err, says)
		}
	}
}

func TestAnAskIsBounded(t *testing.T) {
	large := false
	s, err := server(t, Bind(subject.NodeEngine, engine.Show, func(context.Context, verb.Caller, controller.Nothing) (json.RawMessage, error) {
		if large {
			return json.RawMessage(`"` + strings.Repeat("x", MostAnswer) + `"`), nil
		}
		return json.RawMessage(`{"a":1}`), nil
	}), Bind(subject.NodeEngine, engine.Restart, restart))
	if err != nil {
		t.Fatal(err)
	}
	ask := func(at, args string) (string, error) {
		t.Helper()
		v, err := s.route(at)(t.Context(), verb.Caller{}, []byte(args))
		b, _ := v.(json.RawMessage)
		return string(b), err
	}
	if got, err := ask(subject.NodeTool(subject.NodeEngine, engine.Show, "n1"), ""); got != `{"a":1}` || err != nil {
		t.Errorf("%s, %v", got, err)
	}
	large = true
	for at, args := range map[string]string{
		subject.NodeTool(subject.NodeEngine, engine.Show, "n1"):           "{}",
		subject.NodeTool(subject.NodeEngine, engine.Restart, "n1"):        `{"module":"a","why":"` + strings.Repeat("y", MostArguments) + `"}`,
		subject.NodeTool(subject.NodeEngine, "dance", "n1"):               "{}",
		"mesh.seat.node-engine.tool.show":                                 "{}",
		subject.NodeTool("node-build-agent", engine.Restart, "n1"):        "{}",
		subject.NodeTool(subject.NodeEngine, engine.Restart, "n1") + ".x": "{}",
	} {
		if got, err := ask(at, args); refusal.Of(err) == nil {
			t.Errorf("%s: %.50s, %v", at, got, err)
		}
	}
	var asks, errs float64
	for _, m := range s.Metrics() {
		for _, x := range m.Samples {
			switch m.Name {
			case "mesh_verb_asks_total":
				asks += x.Value
			case "mesh_verb_errors_total":
				errs += x.Value
			}
		}
	}
	if asks != 3 || errs != 2 {
		t.Errorf("%v asks and %v errors are counted", asks, errs)
	}
}

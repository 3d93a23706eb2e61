package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"mesh/shared/bus"
	"mesh/shared/controller"
	"mesh/shared/engine"
	"mesh/shared/grant"
	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/subject"
	"mesh/shared/verb"
	"mesh/shared/waitfor"
	"mesh/testbus"
)

// asker is an operator, ada, who may ask every verb of node-engine, and one of tomorrow.
func asker() grant.Principal {
	all := []subject.Verb{"dance"}
	for _, v := range engine.Table() {
		all = append(all, v.Name)
	}
	p := testbus.NodeAsker("ada", all...)
	for _, v := range engine.Prevention() {
		p.OnNodes = append(p.OnNodes, grant.OnNode{Seat: subject.NodePrevention, Verb: v.Name})
	}
	return p
}

// ask asks n1 and waits until it answers at all.
func ask[R any](r *rig, c *bus.Conn, v subject.Verb, args any) (R, error) {
	r.t.Helper()
	var got R
	var err error
	waitfor.True(r.t, "an answer to "+string(v), soon, func() (bool, any) {
		ctx, cancel := context.WithTimeout(r.t.Context(), soon)
		defer cancel()
		err = verb.CallNode(ctx, c, subject.NodeEngine, v, "n1", args, &got)
		return !errors.Is(err, nats.ErrNoResponders), err
	})
	return got, err
}

func TestTheAgentAnswersItsVerbs(t *testing.T) {
	r := newRig(t).start()
	r.report()
	ada := r.bus.Connect(t, "operator-ada")
	r.push(r.sign(1, mod("notes", "one", "web")))
	r.applied(1)

	page, err := ask[json.RawMessage](r, ada, engine.Show, controller.Nothing{})
	var shown struct {
		Node        subject.Node
		Declaration struct{ Seq uint64 }
		Modules     []struct{ Name string }
	}
	if err == nil {
		err = json.Unmarshal(page, &shown)
	}
	if err != nil || shown.Node != "n1" || shown.Declaration.Seq != 1 || len(shown.Modules) != 1 {
		t.Errorf("show: %s, %v", page, err)
	}

	said, err := ask[engine.ReportAnswer](r, ada, engine.Report, controller.Nothing{})
	if p := r.report(); err != nil || p.Apply.Seq != 1 || said.Number != p.Number {
		t.Errorf("report: %+v, %v; came %+v", said, err, p)
	}

	must(t, os.WriteFile(r.root("/etc/notes.conf"), []byte("by hand"), 0o644))
	done, err := ask[engine.ApplyAnswer](r, ada, engine.ApplyNow, controller.Nothing{})
	if err != nil || done.Running || done.Seq != 1 || done.Outcome != report.Applied || done.Steps == 0 || len(done.Differed) != 1 || !done.Differed[0].Repaired {
		t.Errorf("apply-now: %+v, %v", done, err)
	}
	r.report()
	if done, err = ask[engine.ApplyAnswer](r, ada, engine.ApplyNow, controller.Nothing{}); err != nil || done.Steps != 0 || len(done.Differed) != 0 {
		t.Errorf("apply-now with nothing to do: %+v, %v (APP-3)", done, err)
	}

	if _, err := ask[engine.FactsAnswer](r, ada, engine.Facts, controller.Nothing{}); err != nil {
		t.Errorf("facts: %v", err)
	}

	for name, tt := range map[string]struct {
		v    subject.Verb
		args any
		says string
	}{
		"an argument nobody knows (SEA-10)": {engine.Show, map[string]int{"colour": 1}, "colour"},
		"one that is missing":               {engine.Restart, map[string]string{"why": "x"}, "module: is missing"},
		"one of the wrong type":             {engine.LogsNext, map[string]any{"read": 5, "batch": 0}, "read"},
		"a bad name":                        {engine.Restart, map[string]string{"module": "a.b", "why": "x"}, "module"},
		"no reason":                         {engine.Restart, engine.RestartAsk{Module: "notes"}, "why"},
		"a module that is not here":         {engine.Restart, engine.RestartAsk{Module: "other", Why: "x"}, "nothing of it runs"},
		"a process it lacks":                {engine.Restart, engine.RestartAsk{Module: "notes", Process: "x", Why: "x"}, "has no service"},
		"lines of no module":                {engine.Logs, engine.LogsAsk{Module: "other"}, "nothing of it runs"},
		"a read that is over":               {engine.LogsNext, engine.LogsNextAsk{Read: "x"}, "not open"},
		"arguments without end":             {engine.Show, map[string]string{"x": strings.Repeat("y", 100_000)}, "at most"},
	} {
		if _, err := ask[json.RawMessage](r, ada, tt.v, tt.args); refusal.Of(err) == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v", name, err)
		}
	}

	lives := func() (n int) {
		r.units.set("mesh-notes-web.service", func(u *deskUnit) { n = u.lives })
		return n
	}
	before := lives()
	restarted, err := ask[engine.RestartAnswer](r, ada, engine.Restart, engine.RestartAsk{Module: "notes", Why: "it hangs"})
	if err != nil || len(restarted.Units) != 1 || restarted.Units[0].State != "active" || restarted.Units[0].Why != "" || lives() != before+1 {
		t.Errorf("restart: %+v, %v; %d lives", restarted, err, lives())
	}
	if r.log.count("INFO services are restarted because somebody asked") != 1 || !strings.Contains(r.log.text(), "why=it hangs") {
		t.Errorf("nobody wrote down the restart: %s", r.log.text())
	}

	// A verb of tomorrow is refused by name, at once.
	if _, err := ask[json.RawMessage](r, ada, "dance", controller.Nothing{}); refusal.Of(err) == nil || !strings.Contains(err.Error(), "does not have it") {
		t.Errorf("a verb it does not have: %v", err)
	}
}

// NET-11, NET-14: what can be reached, what this machine reaches, and who is banned, over the bus. The rules
// are those of the machine the test runs on, which it only reads.
func TestTheAgentAnswersAboutTheOutside(t *testing.T) {
	r := newRig(t).start()
	r.report()
	ada := r.bus.Connect(t, "operator-ada")
	if e, err := ask[report.Exposure](r, ada, engine.Exposure, controller.Nothing{}); err != nil || e.Why != "" {
		t.Errorf("exposure: %+v, %v", e, err)
	}
	_, err := ask[engine.ProbeAnswer](r, ada, engine.Probe, engine.ProbeAsk{Targets: []string{"127.0.0.1:1"}})
	if refusal.Of(err) == nil || !strings.Contains(err.Error(), "no address of another machine") {
		t.Errorf("a probe of itself: %v", err)
	}
	var banned engine.BannedAnswer
	waitfor.True(t, "who is banned", soon, func() (bool, any) {
		ctx, cancel := context.WithTimeout(t.Context(), soon)
		defer cancel()
		err := verb.CallNode(ctx, ada, subject.NodePrevention, engine.Banned, "n1", engine.BannedAsk{}, &banned)
		return err == nil, err
	})
	if banned.Node != "n1" || banned.Bans == nil {
		t.Errorf("banned: %+v", banned)
	}
}

// Discovery is answered in the NATS services format (SEA-8), across the accounts.
func TestTheAgentAnswersDiscovery(t *testing.T) {
	r := newRig(t).start()
	r.report()
	ada := r.bus.Connect(t, "operator-ada")
	if _, err := ask[json.RawMessage](r, ada, engine.Show, controller.Nothing{}); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{"", ".node-engine", ".node-engine.n1"} {
		var info micro.Info
		find := func(what string, v any) {
			t.Helper()
			var got *nats.Msg
			var err error
			waitfor.True(t, "the answer to "+what+at, soon, func() (bool, any) {
				got, err = ada.Ask(t.Context(), nats.NewMsg("$SRV."+what+at))
				return err == nil, err
			})
			if err := json.Unmarshal(got.Data, v); err != nil {
				t.Errorf("%s%s: %v", what, at, err)
			}
		}
		find("INFO", &info)
		if info.Name != "node-engine" || info.ID != "n1" || info.Type != micro.InfoResponseType || len(info.Endpoints) != len(r.agentVerbs())+len(engine.Prevention()) {
			t.Errorf("info%s: %+v", at, info)
		}
		for _, e := range info.Endpoints {
			if !json.Valid([]byte(e.Metadata["schema"])) || e.Metadata["description"] == "" || e.Metadata["level"] == "" || e.Subject != "mesh.seat."+e.Metadata["seat"]+".tool."+e.Name+".n1" {
				t.Errorf("endpoint %+v", e)
			}
		}
		var ping micro.Ping
		if find("PING", &ping); ping.Type != micro.PingResponseType || ping.ID != "n1" {
			t.Errorf("ping%s: %+v", at, ping)
		}
		var stats micro.Stats
		if find("STATS", &stats); stats.Type != micro.StatsResponseType || len(stats.Endpoints) != len(info.Endpoints) || stats.Endpoints[0].NumRequests == 0 {
			t.Errorf("stats%s: %+v", at, stats)
		}
	}
}

// agentVerbs are those of the table that the agent answers.
func (r *rig) agentVerbs() (out []subject.Verb) {
	for _, v := range engine.Table() {
		out = append(out, v.Name)
	}
	return out
}

// A stop does not wait for an ask that waits, and leaves none without an answer.
func TestAStopAnswersWhoWaits(t *testing.T) {
	r := newRig(t).start()
	r.report()
	ada := r.bus.Connect(t, "operator-ada")
	r.push(r.sign(1, mod("notes", "one", "web")))
	r.applied(1)
	block := make(chan struct{})
	r.units.mu.Lock()
	r.units.block = block
	r.units.mu.Unlock()
	answered := make(chan error, 1)
	go func() {
		var got engine.ApplyAnswer
		ctx, cancel := context.WithTimeout(t.Context(), soon)
		defer cancel()
		err := verb.CallNode(ctx, ada, subject.NodeEngine, engine.ApplyNow, "n1", controller.Nothing{}, &got)
		if err == nil && !got.Running {
			err = errors.New("it says that the pass is over")
		}
		answered <- err
	}()
	waitfor.True(t, "the ask to be taken", soon, func() (bool, any) { return r.log.count("INFO asked to act") == 1, r.log.text() })
	r.stop()
	if err := waitfor.Value(t, "an answer", soon, answered); err != nil {
		t.Error(err)
	}
	close(block)
}

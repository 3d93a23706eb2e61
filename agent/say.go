package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"mesh/agent/filter"
	"mesh/agent/show"
	"mesh/agent/state"
	"mesh/shared/report"
	"mesh/shared/subject"
)

// report makes a report and puts it into the outbox when it is news, when an hour has passed, or when
// answer says that somebody waits for it.
func (a *Agent) report(ctx context.Context, answer bool) error {
	r := a.compose(ctx)
	key, err := newsKey(r)
	if err != nil {
		return err
	}
	now := a.cfg.Clock.Now()
	if !answer && key == a.said && now.Sub(a.saidAt) < fullEvery {
		return nil
	}
	if r.Number, err = a.store.NextReportNumber(ctx); err != nil {
		return fmt.Errorf("number a report: %w", err)
	}
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode report: %w", err)
	}
	if _, err := a.store.Put(ctx, state.Out{Subject: subject.Report(a.node), Kind: state.KindReport, Body: b}); err != nil {
		return err
	}
	a.said, a.saidAt, a.drift = key, now, nil
	a.link.Kick()
	return nil
}

// compose is what the node says of itself now.
func (a *Agent) compose(ctx context.Context) report.Report {
	r := report.Report{
		Format: report.Format, Mesh: a.cfg.Credential.Mesh, Node: a.node, Boot: a.boot, At: a.cfg.Clock.Now().UnixMilli(), Agent: a.agentWords(),
		Apply:   report.Apply{Seq: a.last.Seq, Outcome: a.last.Outcome, Refused: a.last.Refused, TookMS: a.last.Took.Milliseconds()},
		Modules: a.store.Modules(), Profile: a.profile, Drift: a.drift, Strays: a.last.Strays, FreeDisk: freeDisk(a.cfg.Dir),
	}
	if r.Apply.Outcome == "" {
		r.Apply.Outcome = report.None
	}
	if a.last.RefusedSeq > 0 {
		r.Apply.Seq = a.last.RefusedSeq
	}
	s := a.filterState()
	r.Uplinks, r.Tunnel = s.Uplinks, strings.Join(s.Tunnel, ",")
	r.Filter = a.filterReport(s)
	var err error
	if r.Dropped, err = a.store.Dropped(ctx); err == nil {
		r.Problems, err = a.store.Problems(ctx, lastProblems)
	}
	if err != nil {
		a.cfg.Log.Error("a report lacks what the store would not tell", "err", err)
	}
	return r
}

func (a *Agent) filterState() filter.State {
	if a.machine.Filter == nil {
		return filter.State{}
	}
	return a.machine.Filter.State()
}

func (a *Agent) filterReport(s filter.State) *report.Filter {
	if d := a.engine.Declared(); d != nil {
		return filterWords(d.Filter, s)
	}
	return filterWords(nil, s)
}

// status lays down what show reads.
func (a *Agent) status(ctx context.Context) {
	if a.cfg.Run == "" {
		return
	}
	d, err := show.Gather(ctx, a.store, a.runtime())
	if err == nil {
		err = d.Write(filepath.Join(a.cfg.Run, StatusFile))
	}
	if err != nil && ctx.Err() == nil {
		a.cfg.Log.Error("status could not be written", "err", err)
	}
}

func (a *Agent) runtime() show.Runtime {
	up, since, why := a.conn.State()
	s := a.filterState()
	r := show.Runtime{
		Node: a.node, Mesh: a.cfg.Credential.Mesh, Agent: a.agentWords(), Daemon: a.self, At: a.cfg.Clock.Now().UnixMilli(),
		Bus:     show.Bus{Up: up, Since: since.UnixMilli(), Address: strings.Join(a.cfg.Credential.Bus.Addresses, ", ")},
		Uplinks: s.Uplinks, Tunnel: strings.Join(s.Tunnel, ","), Filter: a.filterReport(s), Strays: a.last.Strays,
		FreeDisk: freeDisk(a.cfg.Dir), Profile: a.profile,
		Declaration: show.Declaration{Outcome: a.last.Outcome, Refused: a.last.Refused, RefusedSeq: a.last.RefusedSeq, TookMS: a.last.Took.Milliseconds()},
	}
	if at := a.conn.NATS().ConnectedAddr(); at != "" {
		r.Bus.Address = at
	}
	if why != nil && !up {
		r.Bus.Why = why.Error()
	}
	if d := a.engine.Declared(); d != nil {
		r.Declaration.Seq, r.Declaration.Drift = d.Seq, string(d.Drift)
	}
	if at := a.store.NewestAt(); !at.IsZero() {
		r.Declaration.Accepted = at.UnixMilli()
	}
	return r
}

func (a *Agent) readProfile(ctx context.Context) {
	if a.machine.Profile != nil {
		a.profile = a.machine.Profile(ctx)
	}
}

// bootID names this boot of the kernel (random(4)); empty when it cannot be told.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"mesh/agent/diagnose"
	"mesh/agent/host/systemd"
	"mesh/agent/journal"
	"mesh/agent/serve"
	"mesh/agent/show"
	"mesh/agent/state"
	"mesh/shared/controller"
	"mesh/shared/engine"
	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/subject"
	"mesh/shared/verb"
)

// actBound is how long an act may take before its answer says that it goes on: less than what an ask may
// take at all.
const actBound = verb.Bound - 2*time.Second

// answers makes what answers the verbs of this machine.
func (a *Agent) answers() (err error) {
	a.journal = journal.New(journal.Config{Clock: a.cfg.Clock, Rand: a.cfg.Rand, Log: a.cfg.Log})
	a.pieces = diagnose.NewPieces(diagnose.PiecesConfig{File: filepath.Join(a.cfg.Dir, diagnosisFile), Make: a.diagnosis, Clock: a.cfg.Clock, Rand: a.cfg.Rand})
	if profile := a.machine.Profile; profile != nil {
		var one sync.Mutex // the worker reads it too
		a.machine.Profile = func(ctx context.Context) *report.Profile {
			one.Lock()
			defer one.Unlock()
			return profile(ctx)
		}
	}
	a.serve, err = serve.New(serve.Config{Node: a.node, Conn: a.conn, Version: a.me.Version, Clock: a.cfg.Clock, Log: a.cfg.Log, Verbs: []serve.Verb{
		serve.Bind(subject.NodeEngine, engine.Show, a.showVerb),
		serve.Bind(subject.NodeEngine, engine.Facts, a.factsVerb),
		serve.Bind(subject.NodeEngine, engine.Report, a.reportVerb),
		serve.Bind(subject.NodeEngine, engine.ApplyNow, a.applyVerb),
		serve.Bind(subject.NodeEngine, engine.Restart, a.restartVerb),
		serve.Bind(subject.NodeEngine, engine.Logs, a.logsVerb),
		serve.Bind(subject.NodeEngine, engine.LogsNext, a.logsNextVerb),
		serve.Bind(subject.NodeEngine, engine.Diagnose, a.diagnoseVerb),
		serve.Bind(subject.NodeEngine, engine.Data, a.dataVerb),
		serve.Bind(subject.NodeEngine, engine.Exposure, a.exposureVerb),
		serve.Bind(subject.NodeEngine, engine.Probe, a.probeVerb),
		serve.Bind(subject.NodePrevention, engine.Banned, a.bannedVerb),
	}})
	return err
}

// onLoop has the loop's goroutine do fn, which must not block, and waits for it.
func (a *Agent) onLoop(ctx context.Context, fn func(*waiting)) error {
	ran := make(chan struct{})
	select {
	case a.calls <- func(w *waiting) { fn(w); close(ran) }:
	case <-a.resting:
		return refusal.New("the ask", "the agent is stopping", "ask again in a moment")
	case <-ctx.Done():
		return ctx.Err()
	}
	<-ran
	return nil
}

// showVerb is what "mesh-agent show --json" says.
func (a *Agent) showVerb(ctx context.Context, _ verb.Caller, _ controller.Nothing) (json.RawMessage, error) {
	var d *show.Document
	var errGather error
	if err := a.onLoop(ctx, func(*waiting) { d, errGather = a.document(ctx) }); err != nil {
		return nil, err
	}
	if errGather != nil {
		return nil, errGather
	}
	b, err := json.Marshal(d.Page())
	if err != nil {
		return nil, fmt.Errorf("encode what show says: %w", err)
	}
	return b, nil
}

func (a *Agent) factsVerb(ctx context.Context, _ verb.Caller, _ controller.Nothing) (engine.FactsAnswer, error) {
	out := engine.FactsAnswer{Node: a.node, At: a.cfg.Clock.Now().UTC()}
	if a.machine.Profile != nil {
		out.Profile = a.machine.Profile(ctx)
	}
	return out, nil
}

// reportVerb has a report made, news or not.
func (a *Agent) reportVerb(ctx context.Context, _ verb.Caller, _ controller.Nothing) (out engine.ReportAnswer, err error) {
	err = a.onLoop(ctx, func(*waiting) {
		out.Waits = a.say(ctx, true)
		out.Number = a.made.Load()
	})
	return out, err
}

// applyVerb has everything on the machine looked at, now or right after the pass under way.
func (a *Agent) applyVerb(ctx context.Context, _ verb.Caller, _ controller.Nothing) (engine.ApplyAnswer, error) {
	over := make(chan done, 1)
	err := a.onLoop(ctx, func(w *waiting) {
		w.ask()
		w.asked = append(w.asked, over)
	})
	if err != nil {
		return engine.ApplyAnswer{}, err
	}
	select {
	case d := <-over:
		if d.err != nil {
			return engine.ApplyAnswer{}, d.err
		}
		r := d.result
		return engine.ApplyAnswer{Seq: r.Seq, Outcome: r.Outcome, Steps: r.Steps, TookMS: r.Took.Milliseconds(), Refused: r.Refused, Differed: r.Drift}, nil
	case <-a.cfg.Clock.After(actBound):
	case <-a.resting:
	case <-ctx.Done():
	}
	seq, _ := a.store.Newest()
	return engine.ApplyAnswer{Running: true, Seq: seq}, nil
}

// restartVerb restarts the services of a module that run or should, side by side.
func (a *Agent) restartVerb(ctx context.Context, _ verb.Caller, ask engine.RestartAsk) (engine.RestartAnswer, error) {
	what := "the restart of " + string(ask.Module)
	if strings.TrimSpace(ask.Why) == "" {
		return engine.RestartAnswer{}, refusal.New(what, "it does not say why", `say it: --why "it hangs"`)
	}
	units, err := a.unitsOf(ctx, ask.Module)
	if err != nil {
		return engine.RestartAnswer{}, err
	}
	manager := a.machine.Host.Units
	if manager == nil {
		return engine.RestartAnswer{}, refusal.New(what, "there is no systemd to ask on this machine", "restart it there by hand")
	}
	if units = slices.DeleteFunc(units, func(u string) bool { return !strings.HasSuffix(u, ".service") }); ask.Process != "" {
		one := fmt.Sprintf("mesh-%s-%s.service", ask.Module, ask.Process)
		if !slices.Contains(units, one) {
			return engine.RestartAnswer{}, refusal.Newf(what, "name one of these: "+strings.Join(units, " "), "it has no service %s here", one)
		}
		units = []string{one}
	} else if units, err = running(ctx, manager.List, units); err != nil {
		return engine.RestartAnswer{}, err
	}
	if len(units) == 0 {
		return engine.RestartAnswer{}, refusal.New(what, "none of its services runs here", "see how it is: mesh-coordinator node show "+string(a.node))
	}
	a.cfg.Log.Info("services are restarted because somebody asked", "module", ask.Module, "units", units, "why", ask.Why)
	ctx, cancel := context.WithTimeout(ctx, actBound)
	defer cancel()
	out := engine.RestartAnswer{Units: make([]engine.UnitRestart, len(units))}
	var wg sync.WaitGroup
	for i, u := range units {
		wg.Go(func() { // ends with ctx
			r, err := manager.Restart(ctx, u)
			out.Units[i] = engine.UnitRestart{Unit: u, State: r.State.Active}
			switch {
			case ctx.Err() != nil:
				out.Units[i].Why = fmt.Sprintf("it is not over after %v, and goes on", actBound)
			case err != nil:
				out.Units[i].Why = err.Error()
			}
		})
	}
	wg.Wait()
	return out, nil
}

// running are those of units that are up, come up, or failed: a restart starts nothing that rests.
func running(ctx context.Context, list func(context.Context, []string) (map[string]systemd.UnitState, error), units []string) ([]string, error) {
	states, err := list(ctx, units)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(units, func(u string) bool {
		active := states[u].Active
		return !states[u].Running() && active != "activating" && active != "failed"
	}), nil
}

// unitsOf are the units that mesh put on this machine for a module, sorted.
func (a *Agent) unitsOf(ctx context.Context, m subject.Module) ([]string, error) {
	rows, err := a.store.Ledger(ctx)
	if err != nil {
		return nil, err
	}
	units := unitsOf(rows, m)
	if len(units) == 0 {
		return nil, refusal.Newf("the module "+string(m), "see what runs there: mesh-coordinator node show "+string(a.node), "nothing of it runs on %s", a.node)
	}
	return units, nil
}

func unitsOf(rows []state.Row, m subject.Module) (units []string) {
	for _, r := range rows {
		if name, ok := strings.CutPrefix(r.ID, "unit:"); ok && r.Module == string(m) {
			units = append(units, name)
		}
	}
	slices.Sort(units)
	return units
}

// linesBound is how long the last lines of a module may take to be read.
const linesBound = 5 * time.Second

// lastLines are at most n of the last lines that units said since a time.
func (a *Agent) lastLines(ctx context.Context, units []string, since time.Time, n int) (lines []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, linesBound)
	defer cancel()
	// Not with a since: journalctl would begin there, and end after n lines.
	answer, err := a.journal.Begin(ctx, journal.Ask{Units: units, LogsAsk: engine.LogsAsk{Lines: n}})
	for {
		for _, l := range answer.Lines {
			if l.AtMS >= since.UnixMilli() {
				lines = append(lines, l.Text)
			}
		}
		if err != nil || answer.Done || ctx.Err() != nil {
			return lines, err
		}
		answer, err = a.journal.Next(ctx, engine.LogsNextAsk{Read: answer.Read, Batch: answer.Next, WaitMS: engine.MaxLogsWait.Milliseconds()})
	}
}

func (a *Agent) logsVerb(ctx context.Context, _ verb.Caller, ask engine.LogsAsk) (engine.LogsAnswer, error) {
	units, err := a.unitsOf(ctx, ask.Module)
	if err != nil {
		return engine.LogsAnswer{}, err
	}
	return a.journal.Begin(ctx, journal.Ask{Units: units, LogsAsk: ask})
}

func (a *Agent) logsNextVerb(ctx context.Context, _ verb.Caller, ask engine.LogsNextAsk) (engine.LogsAnswer, error) {
	return a.journal.Next(ctx, ask)
}

// diagnosisFile is where a diagnosis is while somebody asks for it, below the state directory.
const diagnosisFile = "diagnosis.tar.gz"

func (a *Agent) diagnosis(ctx context.Context, file string) error {
	if a.cfg.Diagnose == nil {
		return refusal.New("a diagnosis", "this agent cannot make one", "run it on the machine: sudo mesh-agent diagnose")
	}
	return a.cfg.Diagnose(ctx, file)
}

func (a *Agent) diagnoseVerb(ctx context.Context, _ verb.Caller, ask engine.DiagnoseAsk) (engine.DiagnoseAnswer, error) {
	return a.pieces.Ask(ctx, ask)
}

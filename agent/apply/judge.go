package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"mesh/agent/host/systemd"
	"mesh/agent/plan"
	"mesh/agent/resource"
	"mesh/agent/state"
	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/subject"
)

// carry acts the plan out and says how it went.
func (e *Engine) carry(ctx context.Context, w *work) (Result, error) {
	e.fast = nil
	if w.cause == Boot {
		e.sweepBundles(w)
	}
	paused := e.dropPaused(w)
	r := &run{Engine: e, w: w, slots: make(chan struct{}, e.cfg.Workers), until: e.cfg.Clock.Now().Add(e.cfg.Wait), filtered: make(chan struct{}),
		failed: map[subject.Module]error{}, late: map[subject.Module]*late{}, started: map[string]systemd.Verdict{}, begun: map[string]bool{}}
	var filterErr error
	go func() { // ends when the filter is in force or refused, or with ctx; the wait below is for it
		defer close(r.filtered)
		filterErr = e.filter(ctx, w)
	}()
	r.act(ctx)
	<-r.filtered
	if err := ctx.Err(); err != nil { // what was done is kept all the same; the next pass goes on
		return Result{}, errors.Join(err, e.cfg.Store.Done(context.WithoutCancel(ctx), r.outcome))
	}
	if !e.booted {
		if err := e.rememberBoot(ctx); err != nil {
			return Result{}, state.Named(err, "to remember what was done")
		}
		e.booted = true
	}
	states := e.after(ctx, r)
	r.live(ctx, states)
	result := Result{Seq: w.d.Seq, Outcome: report.Applied, Steps: r.steps, Modules: r.modules(states, paused), Strays: e.strays(w)}
	r.outcome.Good = r.prove(ctx, result.Modules, states, paused)
	result.Drift, result.Left = e.drift(r)
	if len(e.health.due) > 0 { // it goes on with what is due
		r.outcome.Drift = result.Drift
		e.cfg.Store.Stage(r.outcome)
		result.Took = e.cfg.Clock.Now().Sub(w.start)
		return result, nil
	}
	r.watch(states)
	e.blame(r, &result, filterErr)
	result.NextTry = r.nextTry(paused)
	e.sayHands(ctx, r, &result)
	result.Took = e.cfg.Clock.Now().Sub(w.start)
	if err := e.record(ctx, r, result); err != nil {
		return Result{}, state.Named(err, "to remember what was done")
	}
	result.Modules = e.cfg.Store.Modules()
	if result.Outcome == report.Applied && result.Steps == 0 && len(w.plan.Found) == 0 && len(w.plan.Adopt)+len(w.plan.Forget) == 0 && !e.hand.owed {
		e.remember(w)
	}
	return e.keep(result), nil
}

// record takes the outcome down; it is written with the report about it, or by the store's Flush. Where
// nothing is new nothing is.
func (e *Engine) record(ctx context.Context, r *run, result Result) error {
	b := r.outcome
	b.Modules, b.Drift = result.Modules, result.Drift
	last := e.Last()
	if r.w.accepted || result.Steps > 0 || result.Outcome != last.Outcome || result.Seq != last.Seq {
		why := ""
		if result.Refused != nil {
			why = oneLine(result.Refused)
		}
		b.Past = &state.Past{Seq: result.Seq, Outcome: result.Outcome, Why: why, Steps: result.Steps, Took: result.Took}
	}
	e.cfg.FailPoint(beforeOutcome)
	e.cfg.Store.Stage(b)
	e.cfg.FailPoint(afterOutcome)
	if result.Refused == nil || last.Refused != nil && *last.Refused == *result.Refused {
		return nil
	}
	e.cfg.Log.Warn("the machine is not as declared; it is tried again", "seq", result.Seq, "err", oneLine(result.Refused))
	return e.cfg.Store.AddProblem(ctx, oneLine(result.Refused))
}

// filter puts the packet filter in force, unless it is.
func (e *Engine) filter(ctx context.Context, w *work) error {
	if e.cfg.Filter == nil || e.filterOK {
		return nil
	}
	err := e.cfg.Filter.Apply(ctx, w.d)
	e.filterOK = err == nil
	return err
}

// dropPaused takes the steps of modules that failed a moment ago out of the plan, but not repairs; it
// returns the modules that wait so, and why.
func (e *Engine) dropPaused(w *work) map[subject.Module]string {
	paused := map[subject.Module]string{}
	now := e.cfg.Clock.Now()
	w.plan.Steps = slices.DeleteFunc(w.plan.Steps, func(s plan.Step) bool {
		p := e.pauses[s.Module]
		if p == nil || !now.Before(p.next) || s.Drift && !s.Retry {
			return false
		}
		paused[s.Module] = p.why
		return true
	})
	return paused
}

// after is how the declared units are once all is done.
func (e *Engine) after(ctx context.Context, r *run) map[string]plan.Unit {
	if r.w.see.UnitsError != nil || len(r.w.see.Units) == 0 || !touchesUnits(r.w.plan.Steps) {
		return r.w.see.Units
	}
	var names []string
	for _, res := range r.w.resources {
		if res.Kind == resource.KindUnit {
			names = append(names, res.Unit.Name)
		}
	}
	states, err := e.units(ctx, names)
	if err != nil {
		e.cfg.Log.Warn("systemd could not be asked how the units are", "err", err)
		r.w.see.UnitsError = err
	}
	return states
}

func touchesUnits(steps []plan.Step) bool {
	return slices.ContainsFunc(steps, func(s plan.Step) bool {
		switch s.Op {
		case plan.WriteUnit, plan.RemoveUnit, plan.Stop, plan.Disable, plan.Enable, plan.Reload, plan.Start, plan.Restart:
			return true
		}
		return false
	})
}

// modules says how each declared module is, and sets the pauses of those that failed.
func (r *run) modules(states map[string]plan.Unit, paused map[subject.Module]string) []report.Module {
	out := make([]report.Module, 0, len(r.w.d.Modules))
	for _, m := range r.w.d.Modules {
		mod := report.Module{Name: m.Name, Build: m.Build, State: report.Running}
		u := r.unitsOf(m.Name, states)
		mod.Restarts = u.restarts
		err := r.why(m.Name)
		switch {
		case err != nil:
			mod.State, mod.Detail = report.Broken, oneLine(err)
		case r.w.plan.Unknown[m.Name] != nil:
			mod.State, mod.Detail = report.Unknown, "systemd cannot be asked: "+oneLine(r.w.plan.Unknown[m.Name])
		case r.w.see.UnitsError != nil && r.hasUnits(m.Name):
			mod.State, mod.Detail = report.Unknown, "systemd cannot be asked: "+oneLine(r.w.see.UnitsError)
		case paused[m.Name] != "":
			mod.State, mod.Detail = report.Broken, paused[m.Name]
		case r.late[m.Name] != nil: // what comes after it was not begun
			mod.State, mod.Detail = report.Pending, r.late[m.Name].what
		case u.down != "":
			mod.State, mod.Detail = report.Broken, u.down
		case u.shaky != "":
			mod.State, mod.Detail = report.Broken, u.shaky
		case u.moving != "":
			mod.State, mod.Detail = report.Pending, u.moving
			r.waits(m.Name, &late{u.moving, lookAgain, true})
		}
		r.setPause(m.Name, mod, r.failed[m.Name] != nil || u.retried || err == nil && mod.State == report.Broken && u.shaky != mod.Detail, paused)
		out = append(out, mod)
	}
	return out
}

// why is what kept a module from being brought in order.
func (r *run) why(m subject.Module) error {
	return cmp.Or(r.w.unreadable[m], r.w.plan.Failed[m], r.failed[m])
}

// setPause lets a module that failed wait longer each time, and forgets the pause of one that is well.
func (r *run) setPause(m subject.Module, mod report.Module, failed bool, paused map[subject.Module]string) {
	if paused[m] != "" {
		return
	}
	if !failed {
		if mod.State == report.Running || r.w.plan.Failed[m] != nil {
			delete(r.pauses, m)
		}
		return // what is not proved to stay up keeps its pause
	}
	p := r.pauses[m]
	if p == nil {
		p = &pause{length: pauseMin / 2}
		r.pauses[m] = p
	}
	p.why = mod.Detail
	if now := r.cfg.Clock.Now(); !now.Before(p.next) {
		p.length = min(2*p.length, pauseMax)
		p.next = now.Add(p.length)
	}
}

// nextTry is when the first of the modules that failed is to be tried again, or one that waits for
// something is to be looked at.
func (r *run) nextTry(paused map[subject.Module]string) (next time.Time) {
	now := r.cfg.Clock.Now()
	sooner := func(at time.Time) {
		if at.After(now) && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	for m, p := range r.pauses {
		sooner(p.next)
		if paused[m] != "" && !p.next.After(now) { // its pause ended during this pass, which did nothing for it
			sooner(now.Add(time.Millisecond))
		}
	}
	for _, l := range r.late {
		sooner(now.Add(l.again))
	}
	for _, t := range r.health.trials {
		sooner(t.Ends())
	}
	for _, l := range r.lives {
		if at := l.died.Add(steady); !l.died.IsZero() && at.After(now) {
			sooner(at)
		} else if !l.died.IsZero() { // it proved itself during this pass
			sooner(now.Add(time.Millisecond))
		}
	}
	return next
}

func (r *run) hasUnits(m subject.Module) bool {
	return slices.ContainsFunc(r.w.resources, func(res resource.Resource) bool {
		return res.Module == m && res.Kind == resource.KindUnit
	})
}

// shape is how the units of a module are, in words: what is down, what came back and has not proved that
// it stays, what is on its way; and how often they were started again.
type shape struct {
	down, shaky, moving string
	restarts            int
	retried             bool // one was started because it had failed
}

func (r *run) unitsOf(m subject.Module, states map[string]plan.Unit) (h shape) {
	var down, shaky, moving []string
	for _, res := range r.w.resources {
		if res.Module != m || res.Kind != resource.KindUnit {
			continue
		}
		name, have := res.Unit.Name, states[res.Unit.Name]
		h.restarts += have.Restarts
		if !res.Unit.Started {
			continue
		}
		life := r.lives[name]
		if fresh, begun := r.begun[name]; begun && !fresh {
			h.retried = true
		}
		switch v, ok := r.started[name]; {
		case ok && !v.OK && life.why == "" && !(res.Unit.Ends && have.Active == "inactive" && have.Result == "success"):
			down = append(down, name+": "+v.Why)
		case life.why != "" && (have.Running() || have.Moving()):
			shaky = append(shaky, name+": "+life.why)
		case res.Unit.Ends && have.Active == "activating": // it does what it is for
		case have.Moving():
			moving = append(moving, name+" is "+have.Active)
		default:
			w := unwell(res.Unit, have)
			if strings.HasPrefix(life.why, w) { // with what the engine said
				w = life.why
			}
			if w != "" {
				down = append(down, name+": "+w)
			}
		}
	}
	h.down, h.shaky, h.moving = strings.Join(down, "; "), strings.Join(shaky, "; "), strings.Join(moving, "; ")
	return h
}

// unwell says in words how a unit that should run does not.
func unwell(u *resource.Unit, have plan.Unit) string {
	switch {
	case have.Active == "failed":
		return ended(have)
	case have.Running() || u.Ends:
		return ""
	case have.Active == "":
		return "it is not there"
	}
	return "it is " + have.Active
}

// drift is what was found changed by hand, each once, and what of it stays as it is.
func (e *Engine) drift(r *run) (found, left []report.Drift) {
	still, who := map[string]report.Drift{}, sync.OnceValue(e.witness)
	for _, f := range r.w.plan.Found {
		repaired := f.Repaired && r.failed[f.Module] == nil && r.late[f.Module] == nil
		d := report.Drift{Module: f.Module, Thing: f.ID, What: f.What, Repaired: repaired, At: e.cfg.Clock.Now().UnixMilli()}
		if !repaired {
			key := f.ID + " " + f.What // there may be several of one thing
			old, said := e.said[key]
			if said {
				d = old
			}
			still[key] = d
			left = append(left, d)
			if said {
				continue
			}
		}
		if d.Who = who(); !repaired {
			still[f.ID+" "+f.What] = d
			left[len(left)-1] = d
		}
		found = append(found, d)
		e.cfg.Log.Warn("something was changed by hand", "module", f.Module, "thing", f.ID, "what", f.What, "repaired", repaired, "who", d.Who)
	}
	e.said = still
	return found, left
}

// witness says who may have changed something by hand a moment ago, or "" (APP-19).
func (e *Engine) witness() string {
	if e.cfg.Host.Witness == nil {
		return ""
	}
	return strings.Join(e.cfg.Host.Witness(e.cfg.Clock.Now()), "; ")
}

// blame settles the outcome and, if something failed, says what came first.
func (e *Engine) blame(r *run, result *Result, filterErr error) {
	failed := func(what, why, do string) {
		result.Outcome = report.Failed
		if result.Refused == nil {
			result.Refused = &refusal.Refusal{What: what, Why: why, Do: do}
		}
	}
	if filterErr != nil {
		result.Outcome, result.Refused = report.Failed, refusalOf(filterErr, fmt.Sprintf("the packet filter of declaration %d", r.w.d.Seq))
	}
	declared, pending := map[subject.Module]bool{}, false
	for _, m := range result.Modules {
		declared[m.Name] = true
		switch m.State {
		case report.Running:
		case report.Pending:
			pending = true
		default:
			if r := refusal.Of(r.why(m.Name)); r != nil {
				failed(r.What, r.Why, r.Do)
			}
			do := "see mesh-agent show " + string(m.Name) + "; it is tried again by itself"
			if p := r.w.back[m.Name]; p != nil {
				do = fmt.Sprintf("correct it and push a new build; it is not tried again until then, or until somebody asks: mesh-coordinator node apply-now %s", r.cfg.Node)
			}
			failed("module "+string(m.Name), m.Detail, do)
		}
	}
	// What an unassigned module left, and could not be removed.
	for _, errs := range []map[subject.Module]error{r.failed, r.w.plan.Unknown, r.w.unreadable} {
		for _, m := range slices.Sorted(maps.Keys(errs)) {
			if !declared[m] {
				failed("the end of module "+string(m), oneLine(errs[m]), "look at the machine; it is tried again by itself")
			}
		}
	}
	if (pending || len(r.late) > 0) && result.Outcome == report.Applied {
		result.Outcome = report.Applying
	}
}

// oneLine is an error as one line.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

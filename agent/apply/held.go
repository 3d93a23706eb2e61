package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"mesh/agent/host/engine"
	"mesh/agent/host/user"
	"mesh/agent/plan"
	"mesh/agent/resource"
	"mesh/agent/state"
	"mesh/agent/take"
	"mesh/shared/declaration"
	"mesh/shared/diagnosis"
	"mesh/shared/manifest"
	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/subject"
)

// hand is what people decided about things that are not mesh's, as far as it is carried out.
type hand struct {
	desk *take.Desk
	// failed are words that could not be carried out for a reason that passes, by module: the module is left alone.
	failed map[subject.Module]error
	// again is when those are tried again, pause how long after the last time.
	again time.Time
	pause time.Duration
	// owed: a word waits for what this pass does, and is carried out by the next.
	owed bool
}

func (e *Engine) newDesk() *take.Desk {
	mask := func(s string) string { return diagnosis.NewMask().Text(s) } // its rules are made when they are needed, which is seldom
	return take.New(take.Config{Store: e.cfg.Store, Files: e.root, Units: e.deskUnits(), Engine: func() *engine.Engine { return e.container() },
		Accounts: func() user.Accounts { return e.accounts }, Mask: mask, Clock: e.cfg.Clock, Log: e.cfg.Log, FailPoint: e.cfg.FailPoint})
}

// deskUnits is nil, and not an interface with nothing in it, where there is no systemd.
func (e *Engine) deskUnits() take.Units {
	if e.cfg.Host.Units == nil {
		return nil
	}
	return e.cfg.Host.Units
}

// hands carries out what people said about things that are not mesh's (APP-10, APP-18), and looks again when it did
// something. The declaration is accepted.
func (e *Engine) hands(ctx context.Context, w *work, manifests []manifest.Manifest) (*work, error) {
	h := &e.hand
	h.owed = false
	due, err := h.desk.Due(ctx, w.d.Takes)
	if err != nil {
		return w, err
	}
	now := e.cfg.Clock.Now()
	if len(due) == 0 {
		h.failed, h.pause = nil, 0
		return w, nil
	}
	acted := false
	if w.accepted || w.cause == Boot || !now.Before(h.again) {
		acted = e.carryOut(ctx, w, due)
		if err := ctx.Err(); err != nil {
			return w, err
		}
	}
	if acted {
		next := &work{start: w.start, cause: w.cause, accepted: w.accepted, d: w.whole}
		if err := e.look(ctx, next, manifests); err != nil {
			return w, fmt.Errorf("look at the machine: %w", err)
		}
		w = next
	}
	for m, err := range h.failed { // half of it may be taken: nobody touches it until the rest is
		leave(&w.plan, m, err)
	}
	if acted && w.accepted {
		if err := e.cfg.Store.Intend(ctx, w.plan.Intents()); err != nil {
			return w, state.Named(err, "to begin what is to be done")
		}
	}
	return w, nil
}

// keptNow are the things that stay as somebody changed them, and until when, in words (APP-19).
func keptNow(all []declaration.Keep, now time.Time) map[string]string {
	kept := map[string]string{}
	for _, k := range all {
		if until := time.UnixMilli(k.Until).UTC(); now.Before(until) {
			kept[k.Thing] = "kept until " + until.Format("2006-01-02 15:04 UTC")
		}
	}
	return kept
}

// leave takes all of a module out of a plan, but repairs.
func leave(p *plan.Plan, m subject.Module, why error) {
	p.Failed[m] = why
	p.Held = slices.DeleteFunc(p.Held, func(r *resource.Resource) bool { return r.Module == m })
	p.Steps = slices.DeleteFunc(p.Steps, func(s plan.Step) bool { return s.Module == m && !s.Drift })
	p.Adopt = slices.DeleteFunc(p.Adopt, func(r state.Row) bool { return r.Module == string(m) })
}

// carryOut does what is due and can be done now, and reports whether the machine is another since.
func (e *Engine) carryOut(ctx context.Context, w *work, due []declaration.Take) (acted bool) {
	h := &e.hand
	h.failed = map[subject.Module]error{}
	for _, word := range due {
		var err error
		switch assigned := slices.ContainsFunc(w.d.Modules, func(m declaration.Module) bool { return m.Name == word.Module }); {
		case assigned == word.Back: // it would be held again, or is to be declared first
			continue
		case word.Back && e.stillOurs(w, word.Module):
			h.owed = true // this pass removes it
			continue
		case word.Back:
			if err = e.cfg.Store.Flush(ctx); err == nil { // what was removed must not be found in the ledger again
				err = h.desk.GiveBack(ctx, word.Module, word.ID)
			}
		case w.plan.Stuck[word.Module] || w.unreadable[word.Module] != nil || w.plan.Unknown[word.Module] != nil:
			continue // what is set aside would have nothing in its place
		case e.imagesToCome(w, word.Module):
			h.owed = true
			continue
		default:
			err = h.desk.Take(ctx, word, heldOf(w, word.Module))
		}
		acted = true
		if err != nil && !take.Refused(err) {
			h.failed[word.Module] = state.Named(err, "what was said of things of "+string(word.Module))
		}
	}
	if len(h.failed) == 0 {
		h.pause = 0
		return acted
	}
	h.pause = min(max(2*h.pause, pauseMin), pauseMax)
	h.again = e.cfg.Clock.Now().Add(h.pause)
	return acted
}

func heldOf(w *work, m subject.Module) (all []*resource.Resource) {
	for _, r := range w.plan.Held {
		if r.Module == m {
			all = append(all, r)
		}
	}
	return all
}

// stillOurs reports whether mesh's own things stand where those that were taken shall be again.
func (e *Engine) stillOurs(w *work, m subject.Module) bool {
	took := e.hand.desk.Took(m)
	return slices.ContainsFunc(w.ledger, func(r state.Row) bool {
		return slices.Contains(took, r.ID) || r.Module == string(m) && r.Kind == string(resource.KindUnit)
	})
}

// imagesToCome reports whether the pass fetches an image of the module.
func (e *Engine) imagesToCome(w *work, m subject.Module) bool {
	return slices.ContainsFunc(w.plan.Steps, func(s plan.Step) bool { return s.Op == plan.Pull && s.Module == m })
}

// sayHands adds to a result what is held and how takes stand, and when to go on.
func (e *Engine) sayHands(ctx context.Context, r *run, result *Result) {
	h := &e.hand
	h.desk.Forget(r.w.plan.Held)
	for _, thing := range r.w.plan.Held {
		said, err := h.desk.Look(ctx, thing)
		if err != nil {
			said = report.Held{Module: thing.Module, Thing: thing.ID, Facts: []report.HeldFact{}, Cannot: "it cannot be looked at: " + oneLine(err)}
		}
		result.Held = append(result.Held, said)
	}
	result.Taken = h.desk.Status()
	for m, err := range h.failed { // a declared module says so itself
		if result.Refused == nil {
			result.Outcome, result.Refused = report.Failed, refusalOf(err, "module "+string(m))
		}
	}
	next := h.again
	switch {
	case h.owed && result.Steps > 0:
		next = e.cfg.Clock.Now().Add(time.Millisecond)
	case h.owed:
		next = e.cfg.Clock.Now().Add(pauseMin)
	case len(h.failed) == 0:
		return
	}
	if result.NextTry.IsZero() || next.Before(result.NextTry) {
		result.NextTry = next
	}
}

// GiveBack ends a module on this machine and puts back what was taken for it, on a person's word at the machine and
// without the mesh (APP-18). It returns the ids of what is back. As long as the module is declared here, its things
// are held from the next pass on.
func (e *Engine) GiveBack(ctx context.Context, m subject.Module) (things []string, err error) {
	give, err := e.take(ctx)
	if err != nil {
		return nil, err
	}
	defer give()
	what := "giving back what was taken for " + string(m)
	held, ok, err := e.cfg.Store.Current(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the declaration held: %w", err)
	}
	if _, err := e.hand.desk.Due(ctx, nil); err != nil {
		return nil, err
	}
	if things = e.hand.desk.Took(m); len(things) == 0 {
		return nil, refusal.New(what, "nothing was taken for it here, or it was given back", "nothing; see mesh-agent show")
	}
	last := int64(0)
	if ok {
		if last, err = e.without(ctx, declaration.Signed(held.Signed), m); err != nil {
			return nil, err
		}
	}
	if err := e.cfg.Store.Flush(ctx); err != nil {
		return nil, err
	}
	return things, e.hand.desk.GiveBack(ctx, m, last)
}

// without carries the declaration held out as if m were not in it, and returns the last word about things for m.
func (e *Engine) without(ctx context.Context, signed declaration.Signed, m subject.Module) (word int64, err error) {
	d, manifests, err := e.read(signed)
	if err != nil {
		return 0, err
	}
	less := *d
	less.Modules, less.Takes = nil, nil
	var rest []manifest.Manifest
	for i, mod := range d.Modules {
		if mod.Name != m {
			less.Modules, rest = append(less.Modules, mod), append(rest, manifests[i])
		}
	}
	for _, t := range d.Takes {
		if t.Module == m {
			word = t.ID
		}
	}
	w := &work{start: e.cfg.Clock.Now(), cause: Reconcile, d: &less}
	if err := e.look(ctx, w, rest); err != nil {
		return 0, fmt.Errorf("look at the machine: %w", err)
	}
	// What other modules lack waits for the agent.
	w.plan.Steps = slices.DeleteFunc(w.plan.Steps, func(s plan.Step) bool { return s.Module != m && s.Op != plan.Reload })
	if err := e.cfg.Store.Intend(ctx, w.plan.Intents()); err != nil {
		return 0, state.Named(err, "to begin what is to be done")
	}
	result, err := e.carry(ctx, w)
	if err != nil {
		return 0, err
	}
	if w.ledger, err = e.cfg.Store.Ledger(ctx); err != nil {
		return 0, err
	}
	if e.stillOurs(w, m) {
		why := error(errors.New("its own things could not be removed"))
		if result.Refused != nil {
			why = result.Refused
		}
		return 0, refusal.New("giving back what was taken for "+string(m), oneLine(why), "look at the machine, then do this again")
	}
	return word, nil
}

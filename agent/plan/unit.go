package plan

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"strings"

	"mesh/agent/host/file"
	"mesh/agent/resource"
	"mesh/agent/state"
	"mesh/shared/order"
	"mesh/shared/refusal"
)

// ErrBadUnit is met by errors.Is when systemd cannot load a unit as it is declared.
var ErrBadUnit = errors.New("systemd cannot load the unit")

// unitMode is how the files of units are.
const unitMode = 0o644

// unit plans one systemd unit: its file, whether it starts at boot, whether it runs. The ledger's row is
// settled by the last of its steps.
func (p *planner) unit(r *resource.Resource) {
	if err := p.in.Observed.UnitsError; err != nil {
		p.out.Unknown[r.Module] = err
		return
	}
	u, have := r.Unit, p.in.Observed.Units[r.Unit.Name]
	old, held := p.ledger[r.ID]
	st := p.in.Observed.Paths[u.Path()]
	if takeable, err := p.unitHeld(r, st, have, held); err != nil {
		if takeable {
			p.hold(r, err)
		} else {
			p.fail(r.Module, err)
		}
		return
	}
	text := p.unitText(r, st)
	if text == "" && !have.NeedReload && (have.Load == "bad-setting" || have.Load == "error") {
		p.fail(r.Module, refusal.Because(ErrBadUnit, p.what(r), "systemd cannot load it: "+have.Load, "see systemd-analyze verify "+u.Path()+", correct the unit in the module and register it again"))
		return
	}
	p.dropIns(r, have)
	made := !st.Exists || held && old.Made || p.in.Observed.Marked[u.Path()]
	done := p.row(r, made)
	var steps []Step
	add := func(op Op, why string, drift bool) {
		if drift && !p.find(r, why) {
			return
		}
		steps = append(steps, Step{Op: op, ID: r.ID, Module: r.Module, Reason: why, Want: r, Drift: p.drifted(r) && old.Trigger == u.Trigger})
	}
	drifted := p.drifted(r)
	if text != "" {
		add(WriteUnit, text, drifted)
		if len(steps) > 0 {
			steps[0].New = !st.Exists
		}
	}
	writes := len(steps) > 0
	switch {
	case u.Enabled && (have.Enabled != "enabled" && enableable(have.Enabled) || writes):
		// A written unit is enabled anew: its [Install] may be another. That alone is no finding.
		why, drift := "declared to start at boot", drifted && !writes
		if drift {
			why = "it does not start at boot any more"
		}
		add(Enable, why, drift)
	case !u.Enabled && have.Enabled == "enabled" && strings.Contains(old.Sum, "enabled=true"):
		add(Disable, "not declared to start at boot any more", false)
	}
	if len(steps) > 0 || have.NeedReload && text == "" {
		p.reload[u.Name] = r.Module
	}
	op, why, drift := p.activity(r, have, old, held, writes)
	if op != "" {
		before := len(steps)
		add(op, why, drift && drifted)
		if len(steps) > before {
			steps[before].Retry, steps[before].Fresh = have.Active == "failed", old.Trigger != u.Trigger
		}
	}
	order.Sort(steps, func(a, b Step) int { return cmp.Compare(a.Op.Phase(), b.Op.Phase()) })
	p.settle(r, steps, done, made)
}

// dropIns says that somebody changed the unit from beside it. They are not mesh's to remove.
func (p *planner) dropIns(r *resource.Resource, have Unit) {
	for _, d := range have.DropIns {
		if path.Base(path.Dir(d)) == r.Unit.Name+".d" { // not one for all units of a kind
			p.out.Found = append(p.out.Found, Finding{Module: r.Module, ID: r.ID, What: "a drop-in changes it: " + d})
		}
	}
}

// settle gives the first step the intent and the last one the outcome, or adopts what needs no step.
func (p *planner) settle(r *resource.Resource, steps []Step, done state.Row, made bool) {
	old, held := p.ledger[r.ID]
	if len(steps) == 0 {
		p.inOrder(r, made)
		return
	}
	first := intent(old, held, done)
	if held && first == nil && old.Trigger != done.Trigger { // a restart for a new trigger only
		row := done
		row.Phase, row.Sum, row.Want, row.Trigger, row.WantTrigger, row.At = state.Intended, old.Sum, done.Sum, old.Trigger, done.Trigger, old.At
		if row != old {
			first = &row
		}
	}
	steps[0].Intent, steps[len(steps)-1].Done = first, &done
	p.out.Steps = append(p.out.Steps, steps...)
}

// unitHeld refuses to touch a unit that is not mesh's, and says whether it could be taken.
func (p *planner) unitHeld(r *resource.Resource, st file.State, have Unit, held bool) (takeable bool, err error) {
	u := r.Unit
	switch {
	case have.Load == "masked":
		return false, refusal.New(p.what(r), "somebody masked it", "systemctl unmask "+u.Name)
	case st.Exists && st.Kind != file.File:
		return false, p.held(r, st)
	case held:
		row := p.ledger[r.ID]
		if st.Exists && !p.in.Observed.Marked[u.Path()] && !p.ours(row, held, sumOf(st)) {
			return true, p.held(r, st)
		}
	case st.Exists && sumOf(st) != u.Sum && !p.in.Observed.Marked[u.Path()]:
		return true, p.held(r, st)
	case have.Load == "loaded" && have.Fragment != "" && have.Fragment != u.Path():
		return true, refusal.New(p.what(r), "the machine has a unit of this name, "+have.Fragment, p.takeIt(r)+", or choose another name")
	}
	return false, nil
}

// unitText says how the unit's file differs.
func (p *planner) unitText(r *resource.Resource, st file.State) string {
	if !st.Exists {
		return missing(p.drifted(r))
	}
	what := ""
	if sumOf(st) != r.Unit.Sum {
		what = "content differs"
	}
	if attr := p.attributes(st, unitMode, "root", "root"); attr != "" {
		what = strings.TrimPrefix(what+", "+attr, ", ")
	}
	return what
}

// enableable are the states that enabling changes. "static" has no [Install] and "indirect" nothing but
// Also= in it, and they stay so.
func enableable(state string) bool {
	switch state {
	case "", "disabled", "enabled-runtime", "linked", "linked-runtime":
		return true
	}
	return false
}

// activity decides whether the unit has to be started, restarted or stopped, and whether that undoes a
// change by hand.
func (p *planner) activity(r *resource.Resource, have Unit, old state.Row, held, writes bool) (op Op, why string, drift bool) {
	u := r.Unit
	if !u.Started {
		if old.Trigger != "" && have.Running() {
			return Stop, "not declared to run any more", false
		}
		return "", "", false
	}
	if why := p.stopped[u.Name]; why != "" {
		return Start, why, false
	}
	stale := old.Trigger != u.Trigger
	if stale && have.Active == "active" && !writes && !p.changed[r.Module] {
		// It runs and nothing on the machine changes: it was started by an apply that was cut short, or
		// before the ledger was lost.
		cut := held && old.Phase == state.Intended && old.Sum == "" && old.WantTrigger == u.Trigger
		stale = held && !cut
	}
	switch {
	case stale && have.Running():
		if held && old.Sum != "" {
			return Restart, p.whyRestart(old, u, writes), false
		}
		return Restart, "it ran before its files were as declared", false
	case stale:
		return Start, "declared to run", false
	case have.Running() && writes && p.drifted(r) && !have.NeedReload:
		// systemd has read the text that somebody changed, so the unit may run with it.
		return Restart, "it may run with the text that was changed", false
	case have.Running() && p.altered[r.Module]:
		return Restart, "it may run what was changed in its bundle", false
	case have.Running(), have.Moving(): // a stop or a start that takes its time
		return "", "", false
	case have.Active == "failed" && u.Once:
		return "", "", false
	case have.Active == "failed":
		return Start, fmt.Sprintf("it failed (%s, status %d)", have.Result, have.Status), false
	case u.Ends:
		return "", "", false
	case p.in.Boot:
		return Start, "it does not run", false
	}
	return Start, "it was stopped", true
}

func (p *planner) whyRestart(old state.Row, u *resource.Unit, writes bool) string {
	if sum, _, _ := strings.Cut(old.Sum, " "); writes || sum != u.Sum {
		return "its unit changed"
	}
	return "its bundle, files or settings changed"
}

func sumOf(st file.State) string { return fmt.Sprintf("%x", st.Sum) }

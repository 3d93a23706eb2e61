package apply

import (
	"context"
	"fmt"
	"time"

	"mesh/agent/host/engine"
	"mesh/agent/plan"
	"mesh/agent/resource"
)

// steady is how long a unit that ended by itself has to stay up before its module is called well again. A
// program that dies some seconds after each start is failing all the time, not now and then: it is said
// once, and the pauses between the agent's own starts go on growing.
const steady = time.Minute

// life is what passes saw of a unit that should run.
type life struct {
	restarts int
	died     time.Time // when it was last seen to have ended; zero for never
	why      string
}

// live takes in how the units are now, and forgets those that are not declared any more.
func (r *run) live(ctx context.Context, states map[string]plan.Unit) {
	now := r.cfg.Clock.Now()
	next := make(map[string]life, len(r.lives))
	for _, res := range r.w.resources {
		if res.Kind != resource.KindUnit || !res.Unit.Started {
			continue
		}
		have := states[res.Unit.Name]
		l, known := r.lives[res.Unit.Name]
		fresh, begun := r.begun[res.Unit.Name]
		if begun && fresh { // another life, for a reason of its own
			l, known = life{}, false
		}
		v, proved := r.started[res.Unit.Name]
		switch {
		case have.Sub == "auto-restart" && have.Result == "success" && l.why != "":
			l.died = now // systemd forgets the result for a moment when it starts a unit
		case have.Active == "failed" || have.Sub == "auto-restart":
			l.died, l.why = now, r.endedAs(ctx, res.Unit.Name, have, l.why)
		case proved && !v.OK && have.Running():
			l.died, l.why = now, v.Why
		case begun && !fresh && l.why == "":
			l.died, l.why = now, "it had failed and was started again"
		case begun && !fresh:
			l.died = now
		case known && have.Restarts > l.restarts && l.why == "":
			l.died, l.why = now, "it ended and was started again"
		case known && have.Restarts > l.restarts:
			l.died = now
		case now.Sub(l.died) >= steady:
			l.died, l.why = time.Time{}, ""
		}
		l.restarts = have.Restarts
		next[res.Unit.Name] = l
	}
	r.lives = next
}

// ended says in words how a unit ended that systemd starts again: the same words while it waits to be
// started, while it starts and while it runs, until it has proved that it stays.
func ended(have plan.Unit) string {
	how := fmt.Sprintf("%s, status %d", have.Result, have.Status)
	if words := engine.Status(have.Status); have.Container && words != "" {
		how += ": " + words
	}
	if have.Active == "failed" {
		return "it failed (" + how + ")"
	}
	return "it ended (" + how + ") and is started again"
}

package filter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"mesh/firewall"
)

// Run keeps the table as it should be until ctx ends: it writes it anew when the links change
// (NET-5), and repairs it when somebody else touched it (NET-6), at once by the kernel's word, by a look
// each second where that may not do, and every minute in any case. What others put into the table three
// times in a minute is named and left there; other damage is repaired for ever, from then on twice a second at most.
func (f *Filter) Run(ctx context.Context) error {
	f.begin(ctx)
	ticks, stop := f.cfg.Clock.Every(lookEvery)
	defer stop()
	events := f.watch(ctx)
	poll, stopPoll := f.poll(events)
	defer func() { stopPoll() }()
	f.look(ctx, firewall.Event{}, false) // what happened unwatched
	var settled <-chan time.Time
	for {
		ready, due := events, poll
		if settled != nil {
			ready, due = nil, nil // events wait, and become one
		}
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-ready:
			if !ok {
				events = nil
				stopPoll()
				poll, stopPoll = f.poll(events)
			}
			settled = f.cfg.Clock.After(f.look(ctx, e, false))
		case <-due:
			var e firewall.Event
			select {
			case e = <-events: // it says who did what the look may find
			default:
			}
			if pause := f.look(ctx, e, false); pause > settle {
				settled = f.cfg.Clock.After(pause)
			}
		case <-settled:
			settled = nil
		case <-f.cfg.LinksChanged:
			f.relink(ctx)
			f.begin(ctx)
		case <-ticks:
			if events == nil {
				events = f.watch(ctx)
				stopPoll()
				poll, stopPoll = f.poll(events)
			}
			f.relink(ctx)
			f.begin(ctx)
			f.look(ctx, firewall.Event{}, true)
		}
	}
}

// poll has a look made each second where others can touch the table, and where the kernel's word does not
// come. A look at what nobody changed is one question of some microseconds.
func (f *Filter) poll(events <-chan firewall.Event) (<-chan time.Time, func()) {
	if events != nil && f.cfg.Kernel.Owned() {
		return nil, func() {}
	}
	return f.cfg.Clock.Every(pollEvery)
}

// begin is Start unless an Apply is at it: that may take a window's time, and repairs go on meanwhile. What
// is kept for the next start and boot follows the links.
func (f *Filter) begin(ctx context.Context) {
	select {
	case <-f.applying:
		defer func() { f.applying <- struct{}{} }()
		err := f.start(ctx)
		if err == nil {
			err = f.keepLinks(ctx, false)
			f.keepBoot() // that somebody removed
		}
		if err != nil && ctx.Err() == nil {
			f.cfg.Log.Error("packet filter not started", "err", err) // the next tick tries again
		}
	default:
	}
}

// watch asks for events. Without them, or when they end, the ticks have to do.
func (f *Filter) watch(ctx context.Context) <-chan firewall.Event {
	events, err := f.cfg.Kernel.Watch(ctx)
	if err != nil && ctx.Err() == nil {
		f.cfg.Log.Warn("packet filter is not watched", "err", err)
	}
	return events
}

// relink writes the table anew when the links are others, and the trial beside it.
func (f *Filter) relink(ctx context.Context) {
	give, err := take(ctx, f.turn)
	if err != nil {
		return
	}
	defer give()
	if !f.findLinks(ctx) {
		return
	}
	f.mu.Lock()
	now, held, trial := f.now, f.table.Digest() != "", f.trial
	f.mu.Unlock()
	if trial != nil {
		err = f.tryAgain(ctx, *trial)
	}
	if held {
		err = errors.Join(err, f.follow(ctx, now))
	}
	if err != nil {
		f.cfg.Log.Error("packet filter does not follow the links", "err", err)
	}
}

// tryAgain writes the trial anew around the links of now. It has the token turn.
func (f *Filter) tryAgain(ctx context.Context, r rules) error {
	a, err := f.around(r)
	if err != nil {
		return err
	}
	return f.cfg.Kernel.Try(ctx, a.table)
}

// follow writes the table anew around the links of now. It has the token turn.
func (f *Filter) follow(ctx context.Context, now rules) error {
	a, err := f.around(now)
	if err != nil {
		return err
	}
	f.hold(a)
	if err := f.ensure(ctx, a.table); err != nil {
		return err
	}
	f.cfg.Log.Info("packet filter follows the links", "outside", a.outside)
	return nil
}

// look compares the kernel's table with what should be, and repairs it. It says how long not to look
// again.
func (f *Filter) look(ctx context.Context, e firewall.Event, tick bool) (pause time.Duration) {
	give, err := take(ctx, f.turn)
	if err != nil {
		return settle
	}
	defer give()
	f.mu.Lock()
	table := f.table
	f.mu.Unlock()
	if table.Digest() == "" {
		return settle
	}
	drift, err := f.cfg.Kernel.Drift(ctx, table)
	if err == nil && tick {
		err = f.cfg.Kernel.DropBoot(ctx) // that somebody loaded while the agent runs
	}
	if err != nil {
		f.set(func(s *State) { s.Loaded = false }) // what cannot be seen is not called well
		if ctx.Err() == nil {
			f.cfg.Log.Error("packet filter unreadable", "err", err)
		}
		return settle
	}
	if drift.What == "" {
		f.set(func(s *State) {
			s.Loaded, s.Conceded = true, ""
			s.Fought = s.Fought && !tick
			if s.LastRepairBy == unknown && e.Process != "" { // the repair was quicker than the word
				s.LastRepairBy = who(e)
			}
		})
		return settle
	}
	return f.repair(ctx, table, drift, e)
}

// repair has the token turn.
func (f *Filter) repair(ctx context.Context, table firewall.Table, drift firewall.Drift, e firewall.Event) (pause time.Duration) {
	by := who(e)
	// What others add is one fight for each thing added; the rest is one in all.
	fight := ""
	if drift.Added {
		fight = drift.What
	}
	f.mu.Lock()
	before := f.lately(fight)
	conceded := drift.Added && before >= brakeAfter
	fought := !drift.Added && before >= brakeAfter-1
	news := conceded && f.state.Conceded != drift.What || fought && !f.state.Fought
	f.state.LastDrift, f.state.LastRepairBy, f.state.Loaded, f.state.Fought = drift.What, by, false, fought
	if conceded {
		f.state.Conceded = drift.What
	} else {
		f.repairs[fight] = append(f.repairs[fight], f.cfg.Clock.Now())
	}
	f.mu.Unlock()
	switch {
	case conceded:
		if news {
			f.cfg.Log.Warn("packet filter is left with what others put in", "what", drift.What, "by", by)
		}
		return settle
	case news:
		f.cfg.Log.Warn("packet filter is fought over", "what", drift.What, "by", by, "next", "two repairs a second at most")
	}
	pause = settle
	if fought {
		pause = fightPause
	}
	if err := f.cfg.Kernel.Load(ctx, table); err != nil {
		f.cfg.Log.Error("packet filter not repaired", "what", drift.What, "by", by, "err", err)
		return pause
	}
	f.set(func(s *State) { s.Loaded, s.Repairs, s.Conceded = true, s.Repairs+1, "" })
	if !fought || news {
		f.cfg.Log.Warn("packet filter repaired", "what", drift.What, "by", by)
	}
	return pause
}

// unknown is who made a change that the kernel said nothing of.
const unknown = "unknown"

// who made the change that e tells of.
func who(e firewall.Event) string {
	if e.Process == "" {
		return unknown
	}
	return fmt.Sprintf("%s (pid %d)", e.Process, e.PID)
}

// lately is how many repairs of one kind were made in the last minute; a conceded one stays so as long as
// it is there. It holds mu.
func (f *Filter) lately(fight string) int {
	now := f.cfg.Clock.Now()
	for kind, times := range f.repairs {
		if kind != "" && kind == f.state.Conceded {
			continue
		}
		for len(times) > 0 && now.Sub(times[0]) >= time.Minute {
			times = times[1:]
		}
		if f.repairs[kind] = times; len(times) == 0 {
			delete(f.repairs, kind)
		}
	}
	return len(f.repairs[fight])
}

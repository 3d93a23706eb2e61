package filter

import (
	"context"
	"time"

	"mesh/firewall"
)

// Run keeps the table as it should be until ctx ends: it writes it anew when the links change
// (NET-5), and repairs it when somebody else touched it (NET-6), at once by the kernel's word and
// every minute without. Three repairs in a minute are a fight: then it says so and repairs once a
// minute.
func (f *Filter) Run(ctx context.Context) error {
	f.begin(ctx)
	ticks, stop := f.cfg.Clock.Every(lookEvery)
	defer stop()
	events := f.watch(ctx)
	f.look(ctx, firewall.Event{}, false) // what happened unwatched
	var settled <-chan time.Time
	for {
		ready := events
		if settled != nil {
			ready = nil // events wait, and become one
		}
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-ready:
			if !ok {
				events = nil
			}
			f.look(ctx, e, false)
			settled = f.cfg.Clock.After(settle)
		case <-settled:
			settled = nil
		case <-f.cfg.LinksChanged:
			f.relink(ctx)
		case <-ticks:
			if events == nil {
				events = f.watch(ctx)
			}
			f.begin(ctx)
			f.relink(ctx)
			f.look(ctx, firewall.Event{}, true)
		}
	}
}

// begin is Start unless an Apply is at it: that may take a window's time, and repairs go on meanwhile.
func (f *Filter) begin(ctx context.Context) {
	select {
	case <-f.applying:
		defer func() { f.applying <- struct{}{} }()
		if err := f.start(ctx); err != nil && ctx.Err() == nil {
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

// relink writes the table anew when the links are others.
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
	now, held := f.now, f.table.Digest() != ""
	f.mu.Unlock()
	if !held {
		return
	}
	table, now, err := f.compile(now)
	if err != nil {
		f.cfg.Log.Error("packet filter does not follow the links", "err", err)
		return
	}
	f.hold(now, table, nil)
	if err := f.ensure(ctx, table); err != nil {
		f.cfg.Log.Error("packet filter does not follow the links", "err", err)
		return
	}
	f.cfg.Log.Info("packet filter follows the links", "outside", now.Outside)
}

// look compares the kernel's table with what should be, and repairs it. After brakeAfter repairs in a
// minute only a tick does.
func (f *Filter) look(ctx context.Context, e firewall.Event, tick bool) {
	give, err := take(ctx, f.turn)
	if err != nil {
		return
	}
	defer give()
	f.mu.Lock()
	table := f.table
	f.mu.Unlock()
	if table.Digest() == "" {
		return
	}
	why, err := f.cfg.Kernel.Differs(ctx, table)
	if err != nil {
		f.set(func(s *State) { s.Loaded = false }) // what cannot be seen is not called well
		if ctx.Err() == nil {
			f.cfg.Log.Error("packet filter unreadable", "err", err)
		}
		return
	}
	if why == "" {
		f.set(func(s *State) {
			s.Loaded = true
			if tick {
				s.Fought = false
			}
		})
		return
	}
	f.repair(ctx, table, why, e, tick)
}

// repair has the token turn.
func (f *Filter) repair(ctx context.Context, table firewall.Table, why string, e firewall.Event, tick bool) {
	by := e.Process
	if by == "" {
		by = "unknown"
	}
	now := f.cfg.Clock.Now()
	f.mu.Lock()
	for len(f.repairs) > 0 && now.Sub(f.repairs[0]) >= time.Minute {
		f.repairs = f.repairs[1:]
	}
	braked := len(f.repairs) >= brakeAfter && !tick
	news := braked && !f.state.Fought
	f.state.LastDrift, f.state.Loaded = why, false
	if e.Process != "" || f.state.LastRepairBy == "" {
		f.state.LastRepairBy = by
	}
	if braked {
		f.state.Fought = true
	} else {
		f.repairs = append(f.repairs, now)
	}
	f.mu.Unlock()
	if braked {
		if news {
			f.cfg.Log.Warn("packet filter is fought over", "why", why, "by", by, "next", "a repair every minute")
		}
		return
	}
	if err := f.cfg.Kernel.Load(ctx, table); err != nil {
		f.cfg.Log.Error("packet filter not repaired", "why", why, "by", by, "err", err)
		return
	}
	f.set(func(s *State) { s.Loaded, s.Repairs = true, s.Repairs+1 })
	f.cfg.Log.Warn("packet filter repaired", "why", why, "by", by)
}

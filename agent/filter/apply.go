package filter

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"mesh/firewall"
	"mesh/shared/refusal"
)

// Start puts in force what was confirmed last, without a window, and restores it when the agent died
// inside one. Apply and Run call it when nobody did.
func (f *Filter) Start(ctx context.Context) error {
	give, err := take(ctx, f.applying)
	if err != nil {
		return err
	}
	defer give()
	return f.start(ctx)
}

// start has the token applying.
func (f *Filter) start(ctx context.Context) error {
	if f.started {
		return nil
	}
	if err := f.recall(ctx); err != nil {
		return fmt.Errorf("start packet filter: %w", err)
	}
	if c := f.memory.Confirmed; c != nil {
		f.mu.Lock()
		f.links = Links{Outside: c.Filter.Outside, Bridges: c.Filter.Bridges} // until better ones are found
		f.mu.Unlock()
	}
	f.findLinks(ctx)
	if r := f.memory.Refused; r != nil {
		f.set(func(s *State) { s.LastRefusal = &r.Refusal })
	}
	if f.memory.Pending != nil {
		f.cfg.Log.Warn("packet filter restored", "why", "the agent ended before the last change was confirmed")
	}
	if err := f.backToConfirmed(ctx); err != nil {
		return fmt.Errorf("start packet filter: %w", err)
	}
	f.started = true
	return nil
}

// backToConfirmed puts the rules confirmed last in force; without any it removes a table that a
// change left pending, and leaves one of unknown origin alone.
func (f *Filter) backToConfirmed(ctx context.Context) error {
	give, err := take(ctx, f.turn)
	if err != nil {
		return err
	}
	defer give()
	switch c := f.memory.Confirmed; {
	case c != nil:
		table, now, err := f.compile(c.Filter)
		if err != nil {
			return err
		}
		f.hold(now, table, c)
		if err := f.ensure(ctx, table); err != nil {
			return err
		}
	case f.memory.Pending != nil:
		f.hold(firewall.Filter{}, firewall.Table{}, nil)
		if err := f.cfg.Kernel.Delete(ctx); err != nil {
			return err
		}
	}
	if f.memory.Pending == nil {
		return nil
	}
	return f.keep(ctx, func(m *memory) { m.Pending = nil })
}

// compile makes the table for the rules of want around the links of now.
func (f *Filter) compile(want firewall.Filter) (firewall.Table, firewall.Filter, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := firewall.Filter{Outside: f.links.Outside, Bridges: f.links.Bridges, Tunnel: want.Tunnel, Allow: want.Allow}
	table, err := firewall.Compile(now)
	return table, now, err
}

// hold makes table what should be in force. since is nil for nothing, and for a change pending.
func (f *Filter) hold(now firewall.Filter, table firewall.Table, since *kept) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now, f.table = now, table
	f.state.Rules, f.state.Tunnel, f.state.Digest = now.Allow, now.Tunnel, table.Digest()
	f.state.Outside = now.Outside
	f.state.Loaded = false
	if since != nil {
		f.state.Since = since.since()
	}
}

// ensure loads table unless the kernel has exactly it. It has the token turn.
func (f *Filter) ensure(ctx context.Context, table firewall.Table) error {
	why, err := f.cfg.Kernel.Differs(ctx, table)
	if err == nil && why != "" {
		err = f.cfg.Kernel.Load(ctx, table)
	}
	if err != nil {
		return err
	}
	f.set(func(s *State) { s.Loaded = true })
	return nil
}

// Apply puts want in force and returns when that is confirmed, or undone: after Window and a little
// at the most. An error that is a refusal says what a person can do. Asking twice is safe.
func (f *Filter) Apply(ctx context.Context, want Wanted) (Outcome, error) {
	give, err := take(ctx, f.applying)
	if err != nil {
		return Failed, err
	}
	defer give()
	if err := f.start(ctx); err != nil {
		return Failed, err
	}
	f.relink(ctx)
	outcome, err := f.apply(ctx, want)
	f.set(func(s *State) {
		switch r := refusal.Of(err); {
		case r != nil:
			s.LastRefusal = r
		case err == nil:
			s.LastRefusal = nil
		}
	})
	return outcome, err
}

func (f *Filter) apply(ctx context.Context, want Wanted) (Outcome, error) {
	if len(f.known().Outside) == 0 {
		return Kept, refusal.New("a packet filter for this machine", "no uplink is known: there is no default route over any link",
			"nothing: it is put in force when the machine has one; until then the filter stays as it is")
	}
	if _, _, err := f.compile(firewall.Filter{Allow: want.Allow, Tunnel: want.Tunnel}); err != nil {
		return Refused, err
	}
	wanted := key(want.Allow, want.Tunnel)
	switch r := f.memory.Refused; {
	case f.memory.confirmed(wanted):
		return f.again(ctx)
	case r != nil && r.Key == wanted && r.Seq == want.Seq && !want.ByHand:
		return Refused, &r.Refusal
	case want.ByHand || f.cfg.Probe == nil:
		return f.unconfirmed(ctx, want)
	}
	if err := f.try(ctx); err != nil {
		if ctx.Err() != nil {
			return Failed, ctx.Err()
		}
		return Waiting, refusal.New("a change of the packet filter", fmt.Sprintf("the bus cannot be reached (%v), so nothing could confirm the change; the rules before it stay in force", err),
			"nothing: it is put in force when the bus is back; a person at the machine can apply it by hand")
	}
	return f.change(ctx, want)
}

// again makes sure that the rules confirmed are in force. What was refused is wanted no more, and the
// links of now are what a start without an uplink will know.
func (f *Filter) again(ctx context.Context) (Outcome, error) {
	links, c := f.known(), *f.memory.Confirmed
	if f.memory.Refused != nil || !slices.Equal(links.Outside, c.Filter.Outside) || !slices.Equal(links.Bridges, c.Filter.Bridges) {
		c.Filter.Outside, c.Filter.Bridges = links.Outside, links.Bridges
		if err := f.keep(ctx, func(m *memory) { m.Confirmed, m.Refused = &c, nil }); err != nil {
			return Failed, err
		}
	}
	if err := f.backToConfirmed(ctx); err != nil {
		return Failed, err
	}
	return Unchanged, nil
}

// unconfirmed puts want in force on a person's word.
func (f *Filter) unconfirmed(ctx context.Context, want Wanted) (Outcome, error) {
	now, err := f.load(ctx, want)
	if err != nil {
		return Failed, errors.Join(err, f.backToConfirmed(ctx))
	}
	return f.confirmed(ctx, now)
}

// load puts want in force around the links of this moment. On an error what was before is still what
// should be.
func (f *Filter) load(ctx context.Context, want Wanted) (firewall.Filter, error) {
	give, err := take(ctx, f.turn)
	if err != nil {
		return firewall.Filter{}, err
	}
	defer give()
	table, now, err := f.compile(firewall.Filter{Allow: want.Allow, Tunnel: want.Tunnel})
	if err != nil {
		return now, err
	}
	if err := f.cfg.Kernel.Load(ctx, table); err != nil {
		return now, err
	}
	f.hold(now, table, nil)
	f.set(func(s *State) { s.Loaded = true })
	return now, nil
}

// confirmed keeps now as the rules to fall back to.
func (f *Filter) confirmed(ctx context.Context, now firewall.Filter) (Outcome, error) {
	c := f.keptNow(now)
	if err := f.keep(ctx, func(m *memory) { *m = memory{Confirmed: c} }); err != nil {
		return Failed, errors.Join(err, f.backToConfirmed(ctx))
	}
	f.set(func(s *State) { s.Since = c.since() })
	f.cfg.Log.Info("packet filter changed", "rules", len(now.Allow), "outside", now.Outside, "tunnel", now.Tunnel)
	return Applied, nil
}

// Remove takes mesh's table off the machine and forgets its rules, for a node that leaves.
func (f *Filter) Remove(ctx context.Context) error {
	give, err := take(ctx, f.applying)
	if err != nil {
		return err
	}
	defer give()
	giveTurn, err := take(ctx, f.turn)
	if err != nil {
		return err
	}
	defer giveTurn()
	f.hold(firewall.Filter{}, firewall.Table{}, nil)
	if err := f.keep(ctx, func(m *memory) { *m = memory{} }); err != nil {
		return err
	}
	return f.cfg.Kernel.Delete(ctx)
}

// known are the links the filter is written around.
func (f *Filter) known() Links {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.links
}

// findLinks takes the links of now; a machine that has no uplink at this moment keeps those known
// last (NET-3). It reports whether the table has to be written anew.
func (f *Filter) findLinks(ctx context.Context) (changed bool) {
	links, err := f.cfg.Links(ctx)
	if err != nil {
		f.cfg.Log.Warn("links are unknown", "err", err)
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state.Uplinks = links.Uplinks
	if len(links.Uplinks) == 0 {
		return false
	}
	changed = !slices.Equal(links.Outside, f.links.Outside) || !slices.Equal(links.Bridges, f.links.Bridges)
	f.links = links
	return changed
}

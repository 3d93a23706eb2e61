package filter

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"mesh/firewall"
	"mesh/shared/refusal"
)

// Start puts in force what was confirmed last, without a window, and ends what an agent that died inside
// one left behind. Apply and Run call it when nobody did.
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
		f.links = c.links() // until better ones are found
		f.mu.Unlock()
	}
	f.findLinks(ctx)
	if r := f.memory.Refused; r != nil {
		f.set(func(s *State) { s.LastRefusal = &r.Refusal })
	}
	if err := f.backToConfirmed(ctx); err != nil {
		return fmt.Errorf("start packet filter: %w", err)
	}
	if err := f.cfg.Kernel.EndTrial(ctx); err != nil {
		return fmt.Errorf("start packet filter: %w", err)
	}
	f.keepBoot()
	f.started = true
	return nil
}

// backToConfirmed puts the rules confirmed last in force. Without any it leaves the kernel as it is: a
// table of unknown origin is better than none, and takes part in every trial.
func (f *Filter) backToConfirmed(ctx context.Context) error {
	c := f.memory.Confirmed
	if c == nil {
		return nil
	}
	give, err := take(ctx, f.turn)
	if err != nil {
		return err
	}
	defer give()
	a, err := f.around(c.rules())
	if err != nil {
		return err
	}
	f.hold(a)
	f.set(func(s *State) { s.Since = c.since() })
	return f.ensure(ctx, a.table)
}

// arranged is rules around links, compiled.
type arranged struct {
	rules     rules
	table     firewall.Table
	outside   []string
	notInside []string
}

// around compiles r around the links of now.
func (f *Filter) around(r rules) (arranged, error) {
	links := f.known()
	table, a, err := compile(r, links)
	a.rules, a.table = r, table
	return a, err
}

// Compile makes the table that want is around links. It refuses what firewall.Compile does.
func Compile(want Wanted, links Links) (firewall.Table, error) {
	table, _, err := compile(want.rules(), links)
	return table, err
}

// compile makes the table for r around links. A link that a person declared inside is none of those
// outside, unless the default route leaves over it or it is the tunnel: opening that opens everything.
func compile(r rules, links Links) (firewall.Table, arranged, error) {
	var a arranged
	var inside []string
	for _, name := range r.inside {
		if slices.Contains(links.Uplinks, name) || slices.Contains(r.tunnel, name) {
			a.notInside = append(a.notInside, name)
		} else {
			inside = append(inside, name)
		}
	}
	isInside := func(name string) bool { return slices.Contains(inside, name) }
	a.outside = slices.DeleteFunc(slices.Clone(links.Outside), isInside)
	bridges := slices.DeleteFunc(slices.Clone(links.Bridges), isInside)
	table, err := firewall.Compile(firewall.Filter{Outside: a.outside, Inside: inside, Bridges: bridges, Tunnel: r.tunnel, Allow: r.allow})
	return table, a, err
}

// hold makes a what should be in force.
func (f *Filter) hold(a arranged) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now, f.table = a.rules, a.table
	f.state.Rules, f.state.Tunnel, f.state.Digest = a.rules.allow, a.rules.tunnel, a.table.Digest()
	f.state.Outside, f.state.NotInside = a.outside, a.notInside
	f.state.Loaded = false
}

// ensure loads table unless the kernel has exactly it; what stood since boot has done its part then. It
// has the token turn.
func (f *Filter) ensure(ctx context.Context, table firewall.Table) error {
	drift, err := f.cfg.Kernel.Drift(ctx, table)
	if err == nil && drift.What != "" {
		err = f.cfg.Kernel.Load(ctx, table)
	}
	if err != nil {
		return err
	}
	f.set(func(s *State) { s.Loaded = true })
	return f.cfg.Kernel.DropBoot(ctx)
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
	r := want.rules()
	if _, err := f.around(r); err != nil {
		return Refused, err
	}
	switch old := f.memory.Refused; {
	case f.memory.confirmed(r.key()):
		return f.again(ctx)
	case old != nil && old.Key == r.key() && old.Seq == want.Seq:
		return Refused, &old.Refusal
	case f.cfg.Probe == nil:
		return f.confirm(ctx, r)
	}
	if err := f.try(ctx); err != nil {
		if ctx.Err() != nil {
			return Failed, ctx.Err()
		}
		return Waiting, refusal.New("a change of the packet filter", fmt.Sprintf("the bus cannot be reached (%v), so nothing could confirm the change; the rules before it stay in force", err),
			"nothing: it is put in force when the bus is back")
	}
	return f.change(ctx, want)
}

func (w Wanted) rules() rules { return rules{allow: w.Allow, tunnel: w.Tunnel, inside: w.Inside} }

// again makes sure that the rules confirmed are in force. What was refused is wanted no more.
func (f *Filter) again(ctx context.Context) (Outcome, error) {
	if err := f.backToConfirmed(ctx); err != nil {
		return Failed, err
	}
	if err := f.keepLinks(ctx, true); err != nil {
		return Failed, err
	}
	return Unchanged, nil
}

// keepLinks keeps the links of now with the rules confirmed: a start without an uplink, and the next boot,
// know no others. It has the token applying.
func (f *Filter) keepLinks(ctx context.Context, forget bool) error {
	c := f.memory.Confirmed
	if c == nil {
		return nil
	}
	links, old := f.known(), c.links()
	if same := slices.Equal(links.Uplinks, old.Uplinks) && slices.Equal(links.Outside, old.Outside) && slices.Equal(links.Bridges, old.Bridges); same && !(forget && f.memory.Refused != nil) {
		return nil
	}
	now := *c
	now.Filter.Uplinks, now.Filter.Outside, now.Filter.Bridges = links.Uplinks, links.Outside, links.Bridges
	if err := f.keep(ctx, func(m *memory) {
		m.Confirmed = &now
		if forget {
			m.Refused = nil
		}
	}); err != nil {
		return err
	}
	f.keepBoot()
	return nil
}

// confirm puts r in force and keeps it as what to fall back to: the bus was reached through it, or nobody
// can tell.
func (f *Filter) confirm(ctx context.Context, r rules) (Outcome, error) {
	if err := f.load(ctx, r, false); err != nil {
		return Failed, errors.Join(err, f.backToConfirmed(ctx))
	}
	c := f.keptNow()
	if err := f.keep(ctx, func(m *memory) { *m = memory{Confirmed: c} }); err != nil {
		return Failed, errors.Join(err, f.backToConfirmed(ctx))
	}
	f.keepBoot()
	f.set(func(s *State) { s.Since = c.since() })
	f.cfg.Log.Info("packet filter changed", "rules", len(r.allow), "outside", c.Filter.Outside, "tunnel", r.tunnel, "inside", r.inside)
	return Applied, nil
}

// load puts r in force around the links of this moment, or on trial beside what is. On an error what was
// before is still what should be.
func (f *Filter) load(ctx context.Context, r rules, trial bool) error {
	give, err := take(ctx, f.turn)
	if err != nil {
		return err
	}
	defer give()
	a, err := f.around(r)
	if err != nil {
		return err
	}
	if trial {
		if err := f.cfg.Kernel.Try(ctx, a.table); err != nil {
			return err
		}
		f.mu.Lock()
		f.trial = &r
		f.mu.Unlock()
		return nil
	}
	if err := f.cfg.Kernel.Load(ctx, a.table); err != nil {
		return err
	}
	f.hold(a)
	f.set(func(s *State) { s.Loaded = true })
	return f.cfg.Kernel.DropBoot(ctx)
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
	f.hold(arranged{})
	if f.cfg.Boot != nil {
		if err := f.cfg.Boot.Remove(); err != nil {
			return err
		}
	}
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
	changed = !slices.Equal(links.Outside, f.links.Outside) || !slices.Equal(links.Bridges, f.links.Bridges) || !slices.Equal(links.Uplinks, f.links.Uplinks)
	f.links = links
	return changed
}

package filter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"mesh/firewall"
	"mesh/shared/refusal"
)

// errWindow says that the window ended before the bus was reached.
var errWindow = errors.New("no answer")

// change puts new rules in force and waits for the bus to be reached anew. The store knows of it
// before the kernel does: whatever ends the agent, the next start restores.
func (f *Filter) change(ctx context.Context, want Wanted) (Outcome, error) {
	pending := firewall.Filter{Allow: want.Allow, Tunnel: want.Tunnel}
	if err := f.keep(ctx, func(m *memory) { m.Pending = f.keptNow(pending) }); err != nil {
		return Failed, err
	}
	now, err := f.load(ctx, want)
	if err != nil {
		return Failed, errors.Join(err, f.undo(ctx))
	}
	f.set(func(s *State) { s.Confirming = true })
	defer f.set(func(s *State) { s.Confirming = false })
	err = f.reach(ctx)
	if err == nil {
		// The links may have changed meanwhile; the rules in force are the same.
		f.mu.Lock()
		now = f.now
		f.mu.Unlock()
		return f.confirmed(ctx, now)
	}
	if undone := f.undo(ctx); undone != nil {
		f.cfg.Log.Error("packet filter not restored", "err", undone)
		return Failed, undone
	}
	if ctx.Err() != nil {
		return Failed, ctx.Err() // the agent stops: nobody's fault
	}
	f.cfg.Log.Warn("packet filter restored", "why", err)
	r := &refusal.Refusal{
		What: fmt.Sprintf("the new packet filter (%d rules)", len(now.Allow)),
		Why:  fmt.Sprintf("the bus could not be reached within %v after the change (%v); the rules before it are in force again", Window, err),
		Do:   "correct the rules of the modules on this node, or what else keeps it from the bus, and push again",
	}
	if err := f.keep(ctx, func(m *memory) {
		m.Refused = &refused{Key: key(want.Allow, want.Tunnel), Seq: want.Seq, Refusal: *r}
	}); err != nil {
		return Failed, errors.Join(r, err)
	}
	return Refused, r
}

// undo restores, also when ctx has ended.
func (f *Filter) undo(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer cancel()
	return f.backToConfirmed(ctx)
}

// reach tries to reach the bus until the window ends, and returns why it could not.
func (f *Filter) reach(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	end := f.cfg.Clock.After(Window)
	done := make(chan struct{})
	watched := make(chan struct{})
	go func() { // ends with this call
		defer close(watched)
		select {
		case <-end:
			cancel(errWindow)
		case <-done:
		}
	}()
	defer func() { close(done); <-watched }()
	last := errWindow
	for {
		err := f.try(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || !errors.Is(err, context.Canceled) {
			last = err
		}
		select {
		case <-f.cfg.Clock.After(tryEvery):
		case <-ctx.Done():
			if !errors.Is(context.Cause(ctx), errWindow) {
				return ctx.Err()
			}
			return last
		}
	}
}

// try reaches the bus once, in a bounded time.
func (f *Filter) try(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	result := make(chan error, 1)
	go func() { result <- f.cfg.Probe(ctx) }() // returns when ctx ends
	select {
	case err := <-result:
		return err
	case <-f.cfg.Clock.After(tryFor):
		cancel()
		if err := <-result; err == nil {
			return nil // in the last moment
		}
		return fmt.Errorf("no answer within %v", tryFor.Round(time.Second))
	}
}

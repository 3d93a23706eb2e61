package filter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"mesh/shared/refusal"
)

// errWindow says that the window ended before the bus was reached.
var errWindow = errors.New("no answer")

// change tries new rules and waits for the bus to be reached anew through them; then they are put in
// force. Whatever ends the agent in between ends the trial, and the rules before it stand alone again.
func (f *Filter) change(ctx context.Context, want Wanted) (Outcome, error) {
	r := want.rules()
	if err := f.load(ctx, r, true); err != nil {
		return Failed, errors.Join(err, f.endTrial(ctx))
	}
	f.set(func(s *State) { s.Confirming = true })
	defer f.set(func(s *State) { s.Confirming = false })
	err := f.reach(ctx, r)
	if err == nil {
		outcome, err := f.confirm(ctx, r)
		return outcome, errors.Join(err, f.endTrial(ctx))
	}
	if undone := f.endTrial(ctx); undone != nil {
		f.cfg.Log.Error("packet filter not restored", "err", undone)
		return Failed, undone
	}
	if ctx.Err() != nil {
		return Failed, ctx.Err() // the agent stops: nobody's fault
	}
	f.cfg.Log.Warn("packet filter restored", "why", err)
	no := &refusal.Refusal{
		What: fmt.Sprintf("the new packet filter (%d rules)", len(want.Allow)),
		Why:  fmt.Sprintf("the bus could not be reached within %v after the change (%v); the rules before it are in force again", f.cfg.Window, err),
		Do:   "correct the rules of the modules on this node, or what else keeps it from the bus, and push again",
	}
	if err := f.keep(ctx, func(m *memory) {
		m.Refused = &refused{Key: r.key(), Seq: want.Seq, Refusal: *no}
	}); err != nil {
		return Failed, errors.Join(no, err)
	}
	return Refused, no
}

// endTrial ends the trial, also when ctx has ended.
func (f *Filter) endTrial(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer cancel()
	give, err := take(ctx, f.turn)
	if err != nil {
		return err
	}
	defer give()
	f.mu.Lock()
	f.trial = nil
	f.mu.Unlock()
	return f.cfg.Kernel.EndTrial(ctx)
}

// reach tries to reach the bus through r until the window ends, and returns why it could not.
func (f *Filter) reach(ctx context.Context, r rules) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	end := f.cfg.Clock.After(f.cfg.Window)
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
			if err = f.tried(ctx, r); err == nil {
				return nil
			}
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

// errTrialGone says that others removed the trial, so the bus was reached without it.
var errTrialGone = errors.New("somebody removed the rules that were being tried")

// tried makes sure that it was the trial through which the bus was reached.
func (f *Filter) tried(ctx context.Context, r rules) error {
	is, err := f.cfg.Kernel.Trying(ctx)
	if err != nil || is {
		return err
	}
	return errors.Join(errTrialGone, f.load(ctx, r, true))
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

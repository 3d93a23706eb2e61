package filter_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"mesh/agent/filter"
	"mesh/shared/clock"
	"mesh/shared/waitfor"
)

// TestReach: a change that is not the filter's own has the same window (NET-7, NET-9).
func TestReach(t *testing.T) {
	clk := clock.NewFake(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	answer := errors.New("no way")
	tries := make(chan struct{}, 1000)
	f := filter.New(filter.Config{Clock: clk, Probe: func(context.Context) error { tries <- struct{}{}; return answer }})
	if err := f.Reachable(t.Context()); err == nil {
		t.Error("a bus that does not answer is reachable")
	}
	reach := func() (chan error, time.Time) {
		done := make(chan error, 1)
		go func() { done <- f.Reach(t.Context()) }()
		return done, clk.Now()
	}
	done, began := reach()
	var err error
	waitfor.True(t, "the window to end", soon, func() (bool, any) {
		clk.Advance(100 * time.Millisecond)
		select {
		case err = <-done:
			return true, nil
		default:
			return false, clk.Now().Sub(began)
		}
	})
	if !errors.Is(err, answer) || clk.Now().Sub(began) < filter.Window || len(tries) < 5 {
		t.Errorf("after %v and %d tries: %v", clk.Now().Sub(began), len(tries), err)
	}
	answer = nil
	if done, _ = reach(); <-done != nil {
		t.Error("a bus that answers is not reached")
	}
	if f := filter.New(filter.Config{Clock: clk}); f.Reach(t.Context()) != nil || f.Reachable(t.Context()) != nil {
		t.Error("without a probe there is nothing to confirm by")
	}
}

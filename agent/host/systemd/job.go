package systemd

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// JobResult is how a start, stop or restart went.
type JobResult struct {
	// Result is systemd's word for the job: "done", "failed", "canceled", "timeout", "dependency",
	// "skipped" …, or "unknown" when the connection broke or the wait ended before it was said.
	Result string
	// State is the unit's afterwards; it, not Result, is to be judged.
	State UnitState
}

const (
	unknown = "unknown"
	// jobTimeout bounds the wait for a job if the caller's context does not: systemd's own start timeout is 90 s,
	// and units may raise it.
	jobTimeout = 10 * time.Minute
	// lastLook bounds the look at the state after a wait that was ended.
	lastLook = 5 * time.Second
	// jobLook is how often a job is looked for whose end could have been missed.
	jobLook = 250 * time.Millisecond
)

// Start starts the unit and waits until systemd is done with it, at most until ctx ends. It may be
// repeated; a running unit is left as it is.
func (c *Conn) Start(ctx context.Context, unit string) (JobResult, error) {
	return c.job(ctx, "start", unit, func(ctx context.Context, s *session, done chan<- string) error {
		_, err := s.StartUnitContext(ctx, unit, "replace", done)
		return err
	})
}

// Stop stops the unit and waits for its end. ErrNoUnit: there is nothing to stop.
func (c *Conn) Stop(ctx context.Context, unit string) (JobResult, error) {
	return c.job(ctx, "stop", unit, func(ctx context.Context, s *session, done chan<- string) error {
		_, err := s.StopUnitContext(ctx, unit, "replace", done)
		return err
	})
}

// Restart stops and starts the unit, or starts it. After a change of its file a Reload comes first, else
// the old definition is started again.
func (c *Conn) Restart(ctx context.Context, unit string) (JobResult, error) {
	return c.job(ctx, "restart", unit, func(ctx context.Context, s *session, done chan<- string) error {
		_, err := s.RestartUnitContext(ctx, unit, "replace", done)
		return err
	})
}

func (c *Conn) job(ctx context.Context, op, unit string, submit func(context.Context, *session, chan<- string) error) (JobResult, error) {
	// Referred to, the unit is not forgotten before its state was read. Without a bus systemd takes no
	// references, and Judge makes do.
	c.refer(ctx, "RefUnit", unit)
	defer c.refer(context.WithoutCancel(ctx), "UnrefUnit", unit)
	result, waitErr := c.await(ctx, op+" "+unit, unit, submit)
	if result == "" {
		return JobResult{}, waitErr // it was never taken
	}
	look, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastLook)
	defer cancel()
	state, err := c.state(look, unit)
	return JobResult{Result: result, State: state}, errors.Join(waitErr, err)
}

// refer calls RefUnit or UnrefUnit. A failure costs at most a detail: an unknown unit fails to start as
// well, and references end with the connection.
func (c *Conn) refer(ctx context.Context, method, unit string) {
	_ = c.do(ctx, method, lastLook, func(ctx context.Context, s *session) error {
		if !s.onBus {
			return nil
		}
		return s.calls.Object(busName, managerPath).CallWithContext(ctx, manager+"."+method, 0, unit).Err
	})
}

// await submits a job and returns its result; "" if it was not accepted.
func (c *Conn) await(ctx context.Context, what, unit string, submit func(context.Context, *session, chan<- string) error) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, jobTimeout)
	defer cancel()
	var done chan string
	var on *session
	err := c.do(ctx, what, callTimeout, func(ctx context.Context, s *session) error {
		done, on = make(chan string, 1), s
		return submit(ctx, s, done)
	})
	if err != nil {
		return "", err
	}
	select {
	case result := <-done:
		return result, nil
	case <-ctx.Done():
		return unknown, fmt.Errorf("%s: waited for the job: %w", what, ctx.Err())
	case <-on.calls.Context().Done():
	case <-on.signals.Context().Done():
	}
	// The connection broke, and with it the word that the job is done. Look until it has no job any more.
	if err := c.untilIdle(ctx, unit); err != nil {
		return unknown, fmt.Errorf("%s: the connection broke: %w", what, err)
	}
	return unknown, nil
}

// untilIdle waits until no job is queued or running for the unit.
func (c *Conn) untilIdle(ctx context.Context, unit string) error {
	ticks, stop := c.clock.Every(jobLook)
	defer stop()
	for {
		var job job
		err := c.do(ctx, "job of "+unit, callTimeout, func(ctx context.Context, s *session) error {
			return s.get(ctx, unit, map[string][]property{"Unit": {{"Job", &job}}})
		})
		if err == nil && job.ID == 0 {
			return nil
		}
		// systemd may be re-executing itself: the state afterwards tells.
		if err != nil && !errors.Is(err, ErrUnavailable) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticks:
		}
	}
}

package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// nobodyPauses are those before an ask that nobody heard is said again; 0 ends them. While the server
// puts a new user list in force it has, for some 0.3 ms, no way from one account to the other, and says
// that nobody is there (MEM-6). Nobody has heard the ask then, so that saying it again does nothing twice.
var nobodyPauses = [...]time.Duration{10 * time.Millisecond, 40 * time.Millisecond, 100 * time.Millisecond, 0}

// Ask publishes m and waits for one answer, bounded by ctx. A refusal by the bus is noticed at once, and
// so is the loss of the connection: whether m was heard is not known then. That nobody is there takes a
// sixth of a second to be believed.
func (c *Conn) Ask(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	if !c.isUp() || !c.nc.IsConnected() {
		return nil, fmt.Errorf("ask %s: %w", m.Subject, ErrAway)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	leave, err := c.await(m.Subject, cancel)
	if err != nil {
		c.mend()
		return nil, fmt.Errorf("ask %s: %w", m.Subject, err)
	}
	defer leave()
	for _, pause := range nobodyPauses {
		answer, err := c.nc.RequestMsgWithContext(ctx, m)
		if err == nil {
			return answer, nil
		}
		if pause == 0 || !errors.Is(err, nats.ErrNoResponders) {
			return nil, fmt.Errorf("ask %s: %w", m.Subject, c.why(ctx, err))
		}
		again := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			again.Stop()
			return nil, fmt.Errorf("ask %s: %w", m.Subject, c.why(ctx, err))
		case <-again.C:
		}
	}
	return nil, fmt.Errorf("ask %s: %w", m.Subject, nats.ErrNoResponders)
}

// await has cancel called with the reason when the bus refuses sub, until leave.
func (c *Conn) await(sub string, cancel context.CancelCauseFunc) (leave func(), err error) {
	w := &waiter{cancel}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.deaf != nil {
		return nil, c.deaf
	}
	if c.waiters[sub] == nil {
		c.waiters[sub] = map[*waiter]struct{}{}
	}
	c.waiters[sub][w] = struct{}{}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.waiters[sub], w)
		if len(c.waiters[sub]) == 0 {
			delete(c.waiters, sub)
		}
	}, nil
}

// mend makes a new connection for one that is deaf: the list may have changed since, which the client
// does not notice.
func (c *Conn) mend() {
	c.mu.Lock()
	now := c.clk.Now()
	due := c.deaf != nil && !c.once && now.Sub(c.deafAt) >= followPause
	if due {
		c.deafAt = now
	}
	c.mu.Unlock()
	if due {
		c.log.Info("bus: connecting again to hear answers")
		if err := c.nc.ForceReconnect(); err != nil {
			c.log.Debug("bus: connecting again", "err", err)
		}
	}
}

// why is the reason behind err: that of ctx when it has one, ErrAway when the connection is gone.
func (c *Conn) why(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && cause != ctx.Err() {
		if errors.Is(cause, ErrRefused) || errors.Is(cause, ErrAway) {
			return cause
		}
		return fmt.Errorf("%w: %w", cause, err)
	}
	return away(err)
}

// away makes ErrAway of what the client says without a connection.
func away(err error) error {
	for _, gone := range []error{nats.ErrConnectionClosed, nats.ErrConnectionReconnecting, nats.ErrReconnectBufExceeded, nats.ErrDisconnected, nats.ErrStaleConnection} {
		if errors.Is(err, gone) {
			return fmt.Errorf("%w: %w", ErrAway, err)
		}
	}
	return err
}

// Say publishes without waiting; it fails when there is no connection. A refusal by the bus is logged.
func (c *Conn) Say(subject string, data []byte) error {
	if !c.isUp() || !c.nc.IsConnected() {
		return fmt.Errorf("say %s: %w", subject, ErrAway)
	}
	if err := c.nc.Publish(subject, data); err != nil {
		return fmt.Errorf("say %s: %w", subject, away(err))
	}
	return nil
}

// cancelWaiters ends the asks at sub, all when it is empty, and says how many. It holds mu.
func (c *Conn) cancelWaiters(sub string, why error) (n int) {
	for s, ws := range c.waiters {
		if sub != "" && s != sub {
			continue
		}
		for w := range ws {
			w.cancel(why)
			n++
		}
	}
	return n
}

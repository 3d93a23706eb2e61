package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// followPause bounds the pause before a refused subscription is tried again: the user list that grants
// it is composed within seconds.
const followPause = 5 * time.Second

// leaveBound is how long the end of a subscription may take.
const leaveBound = time.Second

// follow is a subscription that outlives refusals and reconnects.
type follow struct {
	sub, queue string
	h          nats.MsgHandler
	// drain hands over what has come already when the subscription ends.
	drain bool
	look  chan struct{} // capacity 1: one look pending is enough

	// Guarded by Conn.mu; both are of the subscription that is being made or in place.
	denied bool // the bus refused it
	behind bool // it waits until asyncError has heard what the client has
}

func (f *follow) kick() {
	select {
	case f.look <- struct{}{}:
	default:
	}
}

func (c *Conn) kickAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for f := range c.follows {
		f.kick()
	}
}

// Handler takes one message; it runs on the subscription's own goroutine.
type Handler func(*nats.Msg)

// Follow subscribes sub (in queue, unless it is empty) and keeps it subscribed until ctx ends. A
// subscription the bus refuses is retried until it holds, said once, and once when it holds (BUS-9).
// subscribed, when not nil, is called each time it is in place, also after a reconnect: what was said
// meanwhile is the caller's to fetch. No handler runs any more when Follow returns, unless one takes
// longer than a second. A connection that was closed ends it with ErrAway.
func (c *Conn) Follow(ctx context.Context, sub, queue string, h Handler, subscribed func()) error {
	return c.keep(ctx, &follow{sub: sub, queue: queue, h: nats.MsgHandler(h), look: make(chan struct{}, 1)}, subscribed)
}

// Answer is Follow for asks: when ctx ends it takes no new ones, and hands over those that have come, so
// that none is left without an answer. h must not block.
func (c *Conn) Answer(ctx context.Context, sub, queue string, h Handler, subscribed func()) error {
	return c.keep(ctx, &follow{sub: sub, queue: queue, h: nats.MsgHandler(h), drain: true, look: make(chan struct{}, 1)}, subscribed)
}

func (c *Conn) keep(ctx context.Context, f *follow, subscribed func()) error {
	defer c.OnUp(f.kick)()
	said := false
	for tries := 1; ; tries++ {
		refused, err := c.hold(ctx, f, func() {
			if said {
				c.log.Info("bus granted the subscription", "subject", f.sub)
				said = false
			}
			tries = 0
			if subscribed != nil {
				subscribed()
			}
		})
		if err != nil || !refused {
			return err
		}
		if !said {
			c.log.Warn("bus refused a subscription, trying again until it holds", "subject", f.sub)
			said = true
		}
		select {
		case <-ctx.Done():
			return nil
		case <-c.clk.After(min(Pause(tries), followPause)):
		}
	}
}

// hold keeps one subscription until ctx ends or the bus refuses it.
func (c *Conn) hold(ctx context.Context, f *follow, inPlace func()) (refused bool, err error) {
	c.mu.Lock() // before the subscription: its refusal may come at once
	f.denied, f.behind = false, false
	c.follows[f] = struct{}{}
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.follows, f)
	}()
	s, err := c.nc.QueueSubscribe(f.sub, f.queue, f.h)
	if err != nil {
		if ctx.Err() != nil {
			return false, nil
		}
		return false, fmt.Errorf("follow %s: %w", f.sub, away(err))
	}
	done := make(chan struct{})
	s.SetClosedHandler(func(string) { close(done) })
	defer func() {
		if e := c.leave(ctx, f, s, done); err == nil {
			err = e
		}
	}()
	f.kick()
	for {
		select {
		case <-ctx.Done():
			return false, nil
		case <-f.look:
		}
		switch {
		case c.nc.IsClosed() && ctx.Err() == nil:
			return false, fmt.Errorf("follow %s: %w: the connection was closed", f.sub, ErrAway)
		case !c.nc.IsConnected():
			continue // the reconnect kicks
		}
		// The bus sends a refusal before it answers a later ping.
		fctx, cancel := context.WithTimeout(ctx, c.bound)
		err := c.nc.FlushWithContext(fctx)
		cancel()
		switch denied, known := c.standing(f); {
		case denied:
			return true, nil
		case err != nil: // a bus that is busy, or gone, of which a kick tells
			c.again(ctx, f)
		case known:
			inPlace()
		}
	}
}

// again has f looked at in a moment, or as soon as something is known of it: until then nobody knows that it is
// in place, and what was said before is not fetched.
func (c *Conn) again(ctx context.Context, f *follow) {
	select {
	case <-ctx.Done():
	case <-f.look:
	case <-c.clk.After(Pause(1)):
	}
	f.kick()
}

// standing says whether the bus refused f's subscription, and whether that is known: the client tells
// asyncError of a refusal a moment after it has it, and that one kicks f then.
func (c *Conn) standing(f *follow) (denied, known bool) {
	last := c.nc.LastError()
	c.mu.Lock()
	defer c.mu.Unlock()
	f.behind = !f.denied && last != nil && last != c.heard && errors.Is(last, nats.ErrPermissionViolation)
	return f.denied, !f.behind
}

// leave ends the subscription. The bus knows before Follow returns: who asks now hears "nobody" at once.
// Away, it knows already.
func (c *Conn) leave(ctx context.Context, f *follow, s *nats.Subscription, done <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveBound)
	defer cancel()
	end := s.Unsubscribe
	if f.drain && c.nc.IsConnected() {
		end = s.Drain
	}
	if err := end(); err != nil && !errors.Is(err, nats.ErrBadSubscription) && !errors.Is(err, nats.ErrConnectionClosed) {
		return fmt.Errorf("leave %s: %w", f.sub, away(err))
	}
	if err := c.nc.FlushWithContext(ctx); err != nil && c.nc.IsConnected() {
		c.log.Debug("bus: leaving a subscription", "subject", f.sub, "err", err)
	}
	select {
	case <-done:
	case <-ctx.Done():
		c.log.Debug("bus: a handler is late", "subject", f.sub)
	}
	return nil
}

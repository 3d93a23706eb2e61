package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// follow is a subscription that outlives refusals.
type follow struct {
	again chan struct{} // capacity 1: one retry pending is enough
}

// Handler takes one message; it runs on the subscription's own goroutine.
type Handler func(*nats.Msg)

// Follow subscribes sub (in queue, unless it is empty) and keeps it subscribed until ctx ends. A
// subscription the bus refuses is retried until it holds, said once, and once when it holds: the user
// list that grants it may still be on its way (BUS-9). subscribed, when not nil, is called each time it
// is in place, also after a reconnect.
func (c *Conn) Follow(ctx context.Context, sub, queue string, h Handler, subscribed func()) error {
	f := &follow{again: make(chan struct{}, 1)}
	if subscribed != nil {
		c.OnUp(f.kick) // the client subscribes again by itself; what was missed is the caller's to fetch
	}
	for tries := 0; ; tries++ {
		s, err := c.nc.QueueSubscribe(sub, queue, nats.MsgHandler(h))
		if err != nil {
			return fmt.Errorf("follow %s: %w", sub, err)
		}
		c.mu.Lock()
		c.follows[s] = f
		c.mu.Unlock()
		refused, err := c.hold(ctx, f, s, subscribed)
		c.mu.Lock()
		delete(c.follows, s)
		c.mu.Unlock()
		if e := s.Unsubscribe(); e != nil && !errors.Is(e, nats.ErrBadSubscription) && !errors.Is(e, nats.ErrConnectionClosed) && err == nil {
			err = e
		}
		if err != nil || !refused {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-c.clk.After(min(Pause(tries+1), 5*time.Second)):
		}
	}
}

// hold waits on one subscription until ctx ends or the bus refuses it.
func (c *Conn) hold(ctx context.Context, f *follow, s *nats.Subscription, subscribed func()) (refused bool, err error) {
	said := false
	for {
		if c.nc.IsConnected() {
			fctx, cancel := context.WithTimeout(ctx, PublishBound)
			ferr := c.nc.FlushWithContext(fctx) // after its answer a refusal is known
			cancel()
			if c.isDenied(s.Subject) {
				return true, nil
			}
			if ferr == nil && !said {
				said = subscribed == nil
				if subscribed != nil {
					subscribed()
				}
			}
		}
		select {
		case <-ctx.Done():
			return false, nil
		case <-f.again:
			if c.isDenied(s.Subject) {
				return true, nil
			}
		}
	}
}

func (f *follow) kick() {
	select {
	case f.again <- struct{}{}:
	default:
	}
}

func (c *Conn) isDenied(sub string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.denied[sub]
	delete(c.denied, sub)
	return d
}

// refusedSubscription notes the refusal; after a narrowing reload the client still takes the
// subscription for valid, so this word is its end.
func (c *Conn) refusedSubscription(s *nats.Subscription, sub string) {
	c.mu.Lock()
	c.denied[sub] = true
	f := c.follows[s]
	if f == nil {
		for other, g := range c.follows {
			if other.Subject == sub {
				f = g
			}
		}
	}
	c.mu.Unlock()
	c.log.Warn("bus refused a subscription, trying again", "subject", sub)
	if f != nil {
		f.kick()
	}
}

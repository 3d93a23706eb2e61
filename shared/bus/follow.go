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
	look chan struct{} // capacity 1: one look pending is enough
}

func (f *follow) kick() {
	select {
	case f.look <- struct{}{}:
	default:
	}
}

// Handler takes one message; it runs on the subscription's own goroutine.
type Handler func(*nats.Msg)

// Follow subscribes sub (in queue, unless it is empty) and keeps it subscribed until ctx ends. A
// subscription the bus refuses is retried until it holds, said once, and once when it holds (BUS-9).
// subscribed, when not nil, is called each time it is in place, also after a reconnect: what was said
// meanwhile is the caller's to fetch.
func (c *Conn) Follow(ctx context.Context, sub, queue string, h Handler, subscribed func()) error {
	f := &follow{look: make(chan struct{}, 1)}
	defer c.OnUp(f.kick)()
	said := false
	for tries := 1; ; tries++ {
		refused, err := c.hold(ctx, f, sub, queue, h, func() {
			if said {
				c.log.Info("bus granted the subscription", "subject", sub)
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
			c.log.Warn("bus refused a subscription, trying again until it holds", "subject", sub)
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
func (c *Conn) hold(ctx context.Context, f *follow, sub, queue string, h Handler, inPlace func()) (refused bool, err error) {
	before := c.nc.LastError()
	s, err := c.nc.QueueSubscribe(sub, queue, nats.MsgHandler(h))
	if err != nil {
		if ctx.Err() != nil {
			return false, nil
		}
		return false, fmt.Errorf("follow %s: %w", sub, err)
	}
	c.mu.Lock()
	c.follows[s] = f
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.follows, s)
		delete(c.denied, s)
		c.mu.Unlock()
		if e := s.Unsubscribe(); e != nil && !errors.Is(e, nats.ErrBadSubscription) && !errors.Is(e, nats.ErrConnectionClosed) && err == nil {
			err = e
		}
		// The bus knows before Follow returns: who asks now hears "nobody" at once. Away, it knows already.
		if e := c.nc.FlushTimeout(leaveBound); e != nil && c.nc.IsConnected() {
			c.log.Debug("bus: leaving a subscription", "subject", sub, "err", e)
		}
	}()
	f.kick()
	for {
		select {
		case <-ctx.Done():
			return false, nil
		case <-f.look:
		}
		if !c.nc.IsConnected() {
			continue // the reconnect kicks
		}
		// The bus sends a refusal before it answers a later ping.
		fctx, cancel := context.WithTimeout(ctx, PublishBound)
		err := c.nc.FlushWithContext(fctx)
		cancel()
		if c.isDenied(s, before) {
			return true, nil
		}
		if err == nil {
			inPlace()
		}
	}
}

// isDenied looks at the client's last error too: the callback that fills denied runs a moment later.
func (c *Conn) isDenied(s *nats.Subscription, before error) bool {
	c.mu.Lock()
	denied := c.denied[s]
	c.mu.Unlock()
	if last := c.nc.LastError(); last != nil && last != before {
		m := deniedSubscribe.FindStringSubmatch(last.Error())
		denied = denied || m != nil && m[1] == s.Subject
	}
	return denied
}

// refusedSubscription notes the refusal; after a narrowing reload the client still takes the
// subscription for valid, so this word is its end.
func (c *Conn) refusedSubscription(s *nats.Subscription, sub string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for other, f := range c.follows {
		if other == s || s == nil && other.Subject == sub {
			c.denied[other] = true
			f.kick()
		}
	}
}

package testbus_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"mesh/shared/bus"
	"mesh/shared/grant"
	"mesh/testbus"
)

// MEM-7 on the real server: a mesh made at random, with every principal doing all it needs, and refused all that
// is its neighbours'; what was tried is printed as a table.
func TestTheTableOfPrincipals(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	m := testbus.RandomMesh(r)
	b := testbus.Start(t, m.Principals[1:]...)
	b.Serve(m.Seats...)
	b.Add(t)
	var table strings.Builder
	fmt.Fprintf(&table, "%-22s %-8s %-9s %s\n", "PRINCIPAL", "ALLOWED", "REFUSED", "for example")
	for _, p := range m.Principals {
		c := b.Connect(t, p.Label())
		own, ownHears := testbus.Needs(p)
		allowed, refused, example := 0, 0, ""
		for _, s := range own {
			if s == "_R_.x" { // the bus takes one for each ask only
				continue
			}
			if err := publishes(t, c, s); err != nil {
				t.Errorf("%s needs to publish %s: %v", p.Label(), s, err)
			}
			allowed++
		}
		for _, s := range ownHears {
			if err := hears(t, c, s); err != nil {
				t.Errorf("%s needs to hear %s: %v", p.Label(), s, err)
			}
			allowed++
		}
		for _, q := range m.Principals {
			if q.Label() == p.Label() || p.Kind == grant.Coordinator {
				continue
			}
			publish, hear := testbus.Theirs(q)
			for _, s := range publish {
				if slices.Contains(own, s) {
					continue
				}
				if err := publishes(t, c, s); !errors.Is(err, bus.ErrRefused) {
					t.Errorf("%s publishes %s of %s: %v", p.Label(), s, q.Label(), err)
				}
				refused, example = refused+1, s
			}
			for _, s := range hear {
				if slices.Contains(ownHears, s) {
					continue
				}
				if err := hears(t, c, s); err == nil {
					t.Errorf("%s hears %s of %s", p.Label(), s, q.Label())
				}
				refused++
			}
		}
		fmt.Fprintf(&table, "%-22s %-8d %-9d %s\n", p.Label(), allowed, refused, example)
	}
	t.Logf("\n%s", table.String())
}

// publishes says whether the bus lets c publish s; what it would do there is not waited for.
func publishes(t *testing.T, c *bus.Conn, s string) error {
	t.Helper()
	before := c.NATS().LastError()
	if err := c.NATS().Publish(s, nil); err != nil {
		return err
	}
	return barrier(t, c, before)
}

func hears(t *testing.T, c *bus.Conn, s string) error {
	t.Helper()
	before := c.NATS().LastError()
	at, queue, _ := strings.Cut(s, " ")
	sub, err := c.NATS().QueueSubscribe(at, queue, func(*nats.Msg) {})
	if err != nil {
		return err
	}
	err = barrier(t, c, before)
	_ = sub.Unsubscribe() // a refused one the server has dropped already
	return err
}

// barrier is what the server said of what went before it (facts/bus.md §3.3).
func barrier(t *testing.T, c *bus.Conn, before error) error {
	t.Helper()
	if err := c.NATS().FlushWithContext(bounded(t)); err != nil {
		return err
	}
	if now := c.NATS().LastError(); now != nil && now != before {
		return fmt.Errorf("%w: %w", bus.ErrRefused, now)
	}
	return nil
}

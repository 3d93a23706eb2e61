package bus_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"mesh/shared/bus"
	"mesh/shared/waitfor"
	"mesh/testbus"
)

// silent takes connections and says nothing, as a black hole with an open door does.
func silent(t *testing.T) (address string, taken <-chan struct{}) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	came := make(chan struct{}, 64)
	var wg sync.WaitGroup
	wg.Go(func() { // ends with the listener
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			came <- struct{}{}
			wg.Go(func() { // ends when the peer leaves
				_, _ = io.Copy(io.Discard, c)
				_ = c.Close()
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return l.Addr().String(), came
}

// The client holds its lock while it waits for a peer, 20 s here. Nobody who uses the connection may.
func TestASilentBusHoldsUpNobody(t *testing.T) {
	b := testbus.Bare(t, testbus.Node("n1"))
	o := b.Options("node-n1")
	var taken <-chan struct{}
	o.Bus.Addresses = make([]string, 1)
	o.Bus.Addresses[0], taken = silent(t)
	o.Lazy = true
	done := make(chan error, 1)
	go func() {
		c, err := bus.Connect(t.Context(), o)
		if err != nil {
			done <- err
			return
		}
		<-taken // it is in the middle of a try now
		if up, _, _ := c.State(); up {
			err = errors.New("it is up")
		}
		if e := c.Say("x", nil); !errors.Is(e, bus.ErrAway) {
			err = errors.Join(err, e)
		}
		if e := c.Publish(t.Context(), "x", nil, ""); !errors.Is(e, bus.ErrAway) {
			err = errors.Join(err, e)
		}
		c.Close()
		done <- err
	}()
	if err := waitfor.Value(t, "the end of everything", 10*time.Second, done); err != nil {
		t.Error(err)
	}
}

func TestConnectingEndsWithItsContext(t *testing.T) {
	b := testbus.Bare(t, testbus.Node("n1"))
	o := b.Options("node-n1")
	var taken <-chan struct{}
	o.Bus.Addresses = make([]string, 1)
	o.Bus.Addresses[0], taken = silent(t)
	o.Once = true
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := bus.Connect(ctx, o)
		done <- err
	}()
	waitfor.Value(t, "the try", 10*time.Second, taken)
	cancel()
	if err := waitfor.Value(t, "the end of the try", 10*time.Second, done); !errors.Is(err, context.Canceled) {
		t.Errorf("Connect returned %v", err)
	}
}

func TestALazyConnectionComesUpAtOnce(t *testing.T) {
	b := testbus.Bare(t, testbus.Node("n1"))
	o := b.Options("node-n1")
	o.Lazy = true
	c, err := bus.Connect(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	up := make(chan struct{}, 1)
	defer c.OnUp(func() { up <- struct{}{} })()
	waitfor.Value(t, "the connection", 10*time.Second, up)
}

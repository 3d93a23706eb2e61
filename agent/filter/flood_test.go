package filter_test

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mesh/agent/filter"
	"mesh/shared/clock"
	"mesh/testbus/netlab"
)

// NET-6: under a flood to a closed port no packet comes through while rules are tried and changed hundreds of
// times, no connection is cut, and none that is allowed is kept waiting.
func TestChangesUnderAFlood(t *testing.T) {
	const changes = 300
	r := makeRig(t)
	r.clk = clock.Real()
	r.setProbe(func(context.Context) error { return nil })
	r.restart()
	r.apply(want("22/tcp", "4222/tcp"), filter.Applied)

	var through, sent atomic.Int64
	var closed net.PacketConn
	var err error
	r.lab.Host.Do(func() { closed, err = net.ListenPacket("udp", "[::]:9999") })
	if err != nil {
		t.Fatal(err)
	}
	flow, err := r.lab.Outside.Dial("tcp", busPort, soon)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		b := make([]byte, 64)
		for {
			if _, _, err := closed.ReadFrom(b); err != nil {
				return // closed
			}
			through.Add(1)
		}
	})
	for _, address := range []string{netlab.HostOutside4 + ":9999", "[" + netlab.HostOutside6 + "]:9999"} {
		c, err := r.lab.Outside.Dial("udp", address, soon)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			defer c.Close()
			for n := 0; ctx.Err() == nil; n++ {
				if _, err := c.Write([]byte("x")); err == nil {
					sent.Add(1)
				}
				if n%128 == 0 { // leave the other core to the rest
					<-clock.Real().After(time.Millisecond)
				}
			}
		})
	}
	for n := range changes {
		w := want("22/tcp", "4222/tcp")
		if n%2 == 0 {
			w = want("22/tcp", "80/tcp", "4222/tcp", "5000-5100/udp")
		}
		r.apply(w, filter.Applied)
		if n%20 != 0 {
			continue
		}
		if err := netlab.Echo(flow, soon); err != nil {
			t.Fatalf("change %d cut the connection: %v", n, err)
		}
		// A SYN that is dropped is sent again after a second.
		if c, err := r.lab.Outside.Dial("tcp", netlab.HostOutside4+":22", 900*time.Millisecond); err != nil {
			t.Errorf("change %d: a port that is always declared: %v", n, err)
		} else if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	stop()
	if err := closed.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
	if err := flow.Close(); err != nil {
		t.Error(err)
	}
	t.Logf("%d of %d packets of the flood came through %d changes", through.Load(), sent.Load(), changes)
	if through.Load() != 0 || sent.Load() < changes {
		t.Error("want none of many")
	}
}

package exposure

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"mesh/shared/clock"
	"mesh/shared/engine"
	"mesh/shared/refusal"
)

// together is how many targets are tried at once.
const together = 16

// Probe tries to reach each target by TCP, and closes at once what came about (NET-14). It waits for its
// goroutines, which end with ctx and the bound of each try.
func Probe(ctx context.Context, clk clock.Clock, ask engine.ProbeAsk) ([]engine.ProbeResult, error) {
	if len(ask.Targets) > engine.MostProbes {
		return nil, refusal.Newf("the probe", "ask in parts", "it has %d targets, the bound is %d", len(ask.Targets), engine.MostProbes)
	}
	for _, target := range ask.Targets {
		a, err := netip.ParseAddrPort(target)
		if err != nil || a.Port() == 0 || a.Addr().IsMulticast() || a.Addr().IsUnspecified() || a.Addr().IsLoopback() {
			return nil, refusal.Newf("the probe", "write each target as 192.0.2.1:22 or [2001:db8::1]:22", "%.60q is no address of another machine with a port", target)
		}
	}
	results := make([]engine.ProbeResult, len(ask.Targets))
	room := make(chan struct{}, together)
	var wait sync.WaitGroup
	for i, target := range ask.Targets {
		wait.Go(func() {
			room <- struct{}{}
			defer func() { <-room }()
			results[i] = probe(ctx, clk, target)
		})
	}
	wait.Wait()
	return results, ctx.Err()
}

func probe(ctx context.Context, clk clock.Clock, target string) engine.ProbeResult {
	r := engine.ProbeResult{Target: target}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	over := make(chan struct{})
	go func() { // ends with over
		select {
		case <-clk.After(engine.ProbeBound * time.Millisecond):
			cancel()
		case <-over:
		}
	}()
	defer close(over)
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", target)
	switch {
	case err == nil:
		r.Reached = true
		_ = c.Close() // nothing was said on it
	case errors.Is(err, unix.ECONNREFUSED):
		r.Refused, r.Why = true, "refused at once"
	case errors.Is(err, context.Canceled):
		r.Why = "no answer"
	default:
		r.Why = err.Error()
	}
	return r
}

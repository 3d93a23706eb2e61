package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"mesh/coordinator"
	"mesh/coordinator/client"
	"mesh/shared/clock"
	"mesh/shared/controller"
	"mesh/shared/credential"
)

// daemonStart says which coordinator a child is.
type daemonStart struct{ Dir, Listen string }

// daemonCounts are what the coordinator's log tells.
type daemonCounts struct{ Reloads int64 }

// coordinatorPart is the child "mesh-coordinator": the daemon whole, with its bus inside, as the program
// of that name runs it.
func coordinatorPart(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	counts := &counting{Handler: slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}), reloads: new(atomic.Int64)}
	ended := make(chan error, 1)
	running := false
	err := serve(ctx, handlers{
		"start": on(func(ctx context.Context, a daemonStart) (any, error) {
			ready := make(chan string, 1)
			d := coordinator.New(coordinator.Config{Dir: a.Dir, Listen: a.Listen, Version: "bench", Ready: func(at string) { ready <- at },
				Clock: clock.Real(), Rand: rand.Reader, Log: slog.New(counts)})
			go func() { ended <- d.Run(ctx) }() // ends with ctx; waited for below
			select {
			case <-ready:
				running = true
				return nil, nil
			case err := <-ended:
				return nil, fmt.Errorf("the coordinator ended: %w", err)
			}
		}),
		"counts": on(func(context.Context, nothing) (any, error) { return daemonCounts{Reloads: counts.reloads.Load()}, nil }),
	})
	cancel()
	if running {
		err = errors.Join(err, <-ended)
	}
	return err
}

// counting passes warnings on and counts the reloads of the bus's user list, which the server tells at
// a lower level.
type counting struct {
	slog.Handler
	reloads *atomic.Int64
}

// Enabled takes everything, so that Handle sees it.
func (c *counting) Enabled(context.Context, slog.Level) bool { return true }

// Handle counts and passes on.
func (c *counting) Handle(ctx context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "says" && strings.Contains(a.Value.String(), "Reloaded: authorization nkey") {
			c.reloads.Add(1)
		}
		return true
	})
	if !c.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return c.Handler.Handle(ctx, r)
}

// startDaemon starts the coordinator of m in a process of its own and waits until it serves.
func (b *bench) startDaemon(ctx context.Context, m *mesh) (*child, error) {
	c, err := start(ctx, "mesh-coordinator")
	if err != nil {
		return nil, err
	}
	if err := c.ask("start", daemonStart{m.Dir, m.Listen}, nil); err != nil {
		c.leave()
		return nil, err
	}
	return c, nil
}

// profiled has children write processor profiles while fn runs, when --profile asks for them.
func (b *bench) profiled(name string, fn func() error, children ...*child) error {
	if b.profiles == "" {
		return fn()
	}
	if err := os.MkdirAll(b.profiles, 0o755); err != nil {
		return err
	}
	for i, c := range children {
		if err := c.ask("profile", filepath.Join(b.profiles, fmt.Sprintf("%s-%s-%d.pprof", name, c.name, i)), nil); err != nil {
			return err
		}
	}
	err := fn()
	for _, c := range children {
		err = errors.Join(err, c.ask("profile", "", nil))
	}
	return err
}

// operator asks the coordinator's seat, as the command line does.
func operator(ctx context.Context, f credential.File) (*client.Client, error) {
	return client.Connect(ctx, f, client.Options{Clock: clock.Real(), Rand: rand.Reader, Log: slog.New(slog.DiscardHandler)})
}

// pushAll pushes and waits until every node has said how it went. That each applied it is checked.
func pushAll(ctx context.Context, c *client.Client, ask controller.PushAsk, bound time.Duration) (controller.Push, error) {
	p, err := client.Ask[controller.Push](ctx, c, controller.PushSend, ask)
	if err != nil {
		return p, err
	}
	if p, err = c.Watch(ctx, p, bound, nil); err != nil {
		return p, err
	}
	if n := p.Counts[controller.PushApplied]; n != len(p.Nodes) || n == 0 {
		return p, fmt.Errorf("of %d nodes only %d applied within %v: %v, such as %v", len(p.Nodes), n, bound, p.Counts, behind(p.Nodes))
	}
	return p, nil
}

// behind are a few of those that did not apply, and how they stand.
func behind(nodes []controller.PushNode) (few []string) {
	for _, n := range nodes {
		if n.State != controller.PushApplied && len(few) < 5 {
			few = append(few, fmt.Sprintf("%s is %s at %d (%s, %v)", n.Node, n.State, n.Seq, n.Note, n.Why))
		}
	}
	return few
}

package coordinator

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"mesh/shared/bus"
	"mesh/shared/refusal"
)

// part is something that runs until its context ends.
type part struct {
	name string
	run  func(context.Context) error
}

// stages are the parts in the order of their start; they stop in the reverse order.
func (c *Coordinator) stages() [][]part {
	n := notifier{c.cfg.Notify}
	all := [][]part{
		{{"memory", c.spend}, {"watchdog", func(ctx context.Context) error { return n.watch(ctx, c.cfg.Clock, c.cfg.Watchdog, c.well) }}, {"user list", c.users.run}},
		{{"hear", c.hear.Run}, {"artifacts", c.keeper.Run}, {"calls", c.calls.Run}},
		// Together: an answer that waits for news of a push ends with the pushes.
		{{"push", c.push.Run}, {"enrol", c.door.Run}, {"verbs", c.verbs.Run}, {"remind", c.remind}},
	}
	if c.cfg.Metrics != "" {
		all = append(all, []part{{"metrics", c.serveMetrics}})
	}
	return all
}

// ended is how a part ended.
type ended struct {
	part part
	err  error
}

// running is one stage under way.
type running struct {
	parts  []part
	cancel context.CancelFunc
	left   int
	ends   chan ended // capacity: one for each part, so that no part waits
}

// work runs the parts until ctx ends or one of them does.
func (c *Coordinator) work(ctx context.Context) error {
	n := notifier{c.cfg.Notify}
	stages := c.stages()
	var all []*running
	first := make(chan ended, 16) // more than there are parts
	for _, parts := range stages {
		// Parts end when their stage is cancelled, not with ctx: the order counts.
		sctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		r := &running{parts: parts, cancel: cancel, left: len(parts), ends: make(chan ended, len(parts))}
		all = append(all, r)
		for _, p := range parts {
			go func() { // ends with its stage; stop waits for it
				e := ended{p, p.run(sctx)}
				first <- e
				r.ends <- e
			}()
		}
	}
	c.users.Kick()
	err := c.watch(ctx, first)
	if e := n.say("STOPPING=1"); e != nil {
		c.cfg.Log.Warn("systemd does not hear", "err", e)
	}
	c.stop(all)
	return err
}

// watch says once that all is served, and returns when ctx or a part ends.
func (c *Coordinator) watch(ctx context.Context, first <-chan ended) error {
	waiting := map[string]bool{"enrol": true, "verbs": true}
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-first:
			return fmt.Errorf("%s ended: %w", e.part.name, orUnexpected(e.err))
		case who := <-c.served:
			if !waiting[who] {
				continue
			}
			if delete(waiting, who); len(waiting) > 0 {
				continue
			}
			if err := (notifier{c.cfg.Notify}).say("READY=1"); err != nil {
				c.cfg.Log.Warn("systemd does not hear", "err", err)
			}
			if c.cfg.Ready != nil {
				c.cfg.Ready(c.broker.Address())
			}
		}
	}
}

func orUnexpected(err error) error {
	if err == nil {
		return fmt.Errorf("it was not told to")
	}
	return err
}

// stop ends the stages, last first, each within its bound.
func (c *Coordinator) stop(all []*running) {
	for i := len(all) - 1; i >= 0; i-- {
		r := all[i]
		r.cancel()
		late := c.cfg.Clock.After(stopBound)
		done := map[string]bool{}
		for waiting := true; waiting && r.left > 0; {
			select {
			case e := <-r.ends:
				r.left--
				done[e.part.name] = true
				if e.err != nil {
					c.cfg.Log.Warn("a part ended badly", "part", e.part.name, "err", e.err)
				}
			case <-late:
				waiting = false
				for _, p := range r.parts {
					if !done[p.name] {
						c.cfg.Log.Error("a part was late to stop", "part", p.name, "took", stopBound)
					}
				}
			}
		}
	}
}

// well says whether the daemon can do its work.
func (c *Coordinator) well(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if up, _, _ := c.conn.State(); !up {
		return bus.ErrAway
	}
	_, err := c.records.Mesh(ctx)
	return err
}

// listenAt is every address of the machine at the port of the mesh's first address.
func listenAt(addresses []string) (string, error) {
	if len(addresses) == 0 {
		return "", refusal.New("to listen", "the mesh has no address", "name one with --listen")
	}
	_, port, err := net.SplitHostPort(addresses[0])
	if err != nil {
		return "", fmt.Errorf("the mesh's address %s: %w", addresses[0], err)
	}
	return net.JoinHostPort("::", port), nil
}

// listenFile holds where the bus listens, when a person said so.
const listenFile = "listen"

// SetListen keeps where the bus of the mesh in dir listens.
func SetListen(dir, listen string) error {
	if _, _, err := net.SplitHostPort(listen); err != nil {
		return refusal.New("to listen at "+strconv.Quote(listen), "it is not host:port", `write it as "[::]:4222" or "192.0.2.1:4222"`)
	}
	path := filepath.Join(dir, listenFile)
	if err := os.WriteFile(path+".new", []byte(listen+"\n"), 0o600); err != nil {
		return fmt.Errorf("keep where the bus listens: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("keep where the bus listens: %w", err)
	}
	return nil
}

// listen is where the bus listens: as configured, as SetListen kept it, or by the mesh's address.
func (c *Coordinator) listen(addresses []string) (string, error) {
	if c.cfg.Listen != "" {
		return c.cfg.Listen, nil
	}
	b, err := os.ReadFile(filepath.Join(c.cfg.Dir, listenFile))
	if errors.Is(err, os.ErrNotExist) {
		return listenAt(addresses)
	}
	if err != nil {
		return "", fmt.Errorf("read where the bus listens: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

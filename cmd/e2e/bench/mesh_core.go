package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"mesh/coordinator/compose"
	"mesh/coordinator/keys"
	"mesh/coordinator/push"
	"mesh/coordinator/records"
	"mesh/coordinator/verbs"
	"mesh/shared/broker"
	"mesh/shared/bus"
	"mesh/shared/clock"
	"mesh/shared/controller"
	"mesh/shared/declaration"
	"mesh/shared/grant"
	"mesh/shared/subject"
)

// took is what a child measured of itself.
type took struct {
	WallMS, CPUMS float64
	// Changed counts declarations that were new, Bytes what was made of all, RecordedMS when what was
	// published stood in the records too.
	Changed, Bytes int
	RecordedMS     float64
	// Parts are the steps one after the other, in milliseconds.
	Parts []float64
}

func (t took) sample() sample {
	return sample{time.Duration(t.WallMS * float64(time.Millisecond)), time.Duration(t.CPUMS * float64(time.Millisecond))}
}

// afresh is measured without what came before to clean up. It is for long steps: after a short one the
// sweeping would be felt.
func afresh(fn func() error) (took, error) {
	runtime.GC()
	return measured(fn)
}

// measured runs fn and says what it took this process.
func measured(fn func() error) (took, error) {
	c, t := cpuOf(0), time.Now()
	err := fn()
	return took{WallMS: millis(time.Since(t)), CPUMS: millis(cpuOf(0) - c)}, err
}

// core is the inner part of a coordinator: records, composing and sending on a bus of its own, driven
// step by step, so that one step can be measured alone.
type core struct {
	store  *records.Store
	keys   *keys.Keys
	broker *broker.Broker
	conn   *bus.Conn
	comp   *compose.Composer
	sends  *countedSends
	push   *push.Engine
	round  int
	items  []push.Item
	ended  chan error
}

// countedSends counts what the records have of the sends.
type countedSends struct {
	*records.Store
	n atomic.Int64
}

// RecordSends counts and passes on.
func (c *countedSends) RecordSends(ctx context.Context, all []records.Send) error {
	err := c.Store.RecordSends(ctx, all)
	c.n.Add(int64(len(all)))
	return err
}

// corePart is the child "mesh-core".
func corePart(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := &core{ended: make(chan error, 1)}
	err := serve(ctx, handlers{
		"start":   on(func(_ context.Context, a daemonStart) (any, error) { return nil, c.start(ctx, a) }),
		"compose": on(func(ctx context.Context, _ nothing) (any, error) { return c.composeAll(ctx) }),
		"warm":    on(func(ctx context.Context, _ nothing) (any, error) { return c.warm(ctx) }),
		"move":    on(func(ctx context.Context, _ nothing) (any, error) { return nil, c.move(ctx) }),
		"set":     on(func(ctx context.Context, node int) (any, error) { return c.set(ctx, node) }),
		"load":    on(func(ctx context.Context, _ nothing) (any, error) { return c.load(ctx) }),
		"join":    on(func(ctx context.Context, _ nothing) (any, error) { return c.join(ctx) }),
		"publish": on(func(ctx context.Context, _ nothing) (any, error) { return c.publish(ctx) }),
	})
	cancel()
	return errors.Join(err, c.close())
}

func (c *core) start(ctx context.Context, a daemonStart) (err error) {
	if c.keys, err = keys.Load(a.Dir, clock.Real().Now(), rand.Reader); err != nil {
		return err
	}
	if c.store, err = records.Open(ctx, filepath.Join(a.Dir, keys.RecordsFile), records.Options{Clock: clock.Real(), Rand: rand.Reader}); err != nil {
		return err
	}
	if err := c.fresh(); err != nil {
		return err
	}
	people, _, err := c.comp.Principals(ctx)
	if err != nil {
		return err
	}
	list, _, err := grant.Compose(people)
	if err != nil {
		return err
	}
	c.broker, err = broker.Start(ctx, broker.Config{Listen: a.Listen, Store: filepath.Join(a.Dir, keys.BusFolder), Certificate: &c.keys.Certificate}, list)
	if err != nil {
		return err
	}
	own := c.keys.Coordinator
	c.conn, err = bus.Connect(ctx, bus.Options{Bus: own.Bus, Seed: own.Seed, Principal: own.Principal(), Name: "bench", InProcess: c.broker.InProcess()})
	if err != nil {
		return err
	}
	js, err := jetstream.New(c.conn.NATS())
	if err != nil {
		return err
	}
	if err := bus.Assert(ctx, js, bus.Streams(1)); err != nil {
		return err
	}
	c.sends = &countedSends{Store: c.store}
	if c.push, err = push.New(push.Config{Conn: c.conn, Records: c.sends, Clock: clock.Real(), Log: slog.New(slog.DiscardHandler)}); err != nil {
		return err
	}
	go func() { c.ended <- c.push.Run(ctx) }() // ends with ctx; close waits for it
	return nil
}

// fresh makes a composer that has read nothing yet, as after a start of the coordinator.
func (c *core) fresh() error {
	own, err := c.keys.Coordinator.Seed.Public()
	if err != nil {
		return err
	}
	c.comp = compose.New(c.store, compose.Options{Signer: c.keys.Signer, Coordinator: own, Rights: verbs.Rights, OnNodes: verbs.OnNodes, Clock: clock.Real()})
	return nil
}

func (c *core) close() error {
	var errs []error
	if c.push != nil {
		errs = append(errs, <-c.ended)
	}
	if c.conn != nil {
		c.conn.Close()
	}
	if c.broker != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		errs = append(errs, c.broker.Stop(ctx))
	}
	if c.store != nil {
		errs = append(errs, c.store.Close())
	}
	return errors.Join(errs...)
}

// composeAll is a whole pass: everything is read from the records, every node composed and compared,
// what is new kept.
func (c *core) composeAll(ctx context.Context) (took, error) {
	if err := c.fresh(); err != nil {
		return took{}, err
	}
	return c.warm(ctx)
}

// warm is a pass of a composer that knows the records already.
func (c *core) warm(ctx context.Context) (took, error) {
	changed := 0
	t, err := afresh(func() error {
		return c.comp.All(ctx, func(all []compose.Composed) error {
			for i := range all {
				if all[i].Err != nil {
					return all[i].Err
				}
				if all[i].Changed {
					changed++
				}
			}
			return nil
		})
	})
	t.Changed = changed
	return t, err
}

// move changes the address of the bus, which stands in every declaration.
func (c *core) move(ctx context.Context) error {
	c.round++
	return c.store.SetAddresses(ctx, by(), []string{fmt.Sprintf("192.0.2.1:%d", 4000+c.round)})
}

// set gives one node's module another setting: recorded, composed and kept, and published to the
// acknowledgement.
func (c *core) set(ctx context.Context, node int) (took, error) {
	c.round++
	name, module := nodeName(node), fillerName(node%200)
	var parts []float64
	last := time.Now()
	part := func() {
		now := time.Now()
		parts, last = append(parts, millis(now.Sub(last))), now
	}
	t, err := measured(func() error {
		last = time.Now()
		set := records.AssignSet{Set: map[string]string{"zone": "z" + strconv.Itoa(c.round)}}
		if _, err := c.store.Assign(ctx, by(), []subject.Node{name}, module, set); err != nil {
			return err
		}
		part()
		d, err := c.comp.Node(ctx, name)
		if err != nil {
			return err
		}
		signed, err := c.comp.Text(ctx, d)
		if err != nil {
			return err
		}
		part()
		err = c.sent(ctx, c.push.Start("bench", "bench", []push.Item{{Node: name, Seq: d.Seq, Signed: signed, Builds: d.Builds}}).ID, 1)
		part()
		return err
	})
	t.Parts = parts
	return t, err
}

// sent waits until n declarations of a push are acknowledged.
func (c *core) sent(ctx context.Context, id string, n int) error {
	for {
		p, err := c.push.Show(ctx, id, 1<<60, 0)
		if err != nil || p.Counts[controller.PushSent] >= n {
			return err
		}
		if r := p.Counts[controller.PushRefused]; r > 0 || ctx.Err() != nil {
			return errors.Join(fmt.Errorf("%d declarations were refused", r), ctx.Err())
		}
		pause(ctx, 50*time.Microsecond)
	}
}

// load reads every declaration, so that publishing them can be measured alone.
func (c *core) load(ctx context.Context) (t took, err error) {
	c.items = nil
	names, err := c.comp.Names(ctx)
	if err != nil {
		return t, err
	}
	err = c.store.DeclaredTexts(ctx, names, func(n subject.Node, seq uint64, signed declaration.Signed) error {
		c.items = append(c.items, push.Item{Node: n, Seq: seq, Signed: signed, Builds: map[subject.Module]string{"bench": "build-1"}})
		t.Bytes += len(signed)
		return nil
	})
	t.Changed = len(c.items)
	return t, err
}

// publish sends all of them to the last acknowledgement, and waits for the records beside.
func (c *core) publish(ctx context.Context) (took, error) {
	before, began := c.sends.n.Load(), time.Now()
	t, err := afresh(func() error {
		began = time.Now()
		return c.sent(ctx, c.push.Start("bench", "bench", append([]push.Item(nil), c.items...)).ID, len(c.items))
	})
	if err != nil {
		return t, err
	}
	err = until(ctx, "the records of the sends", time.Millisecond, time.Minute, func() (bool, error) {
		return c.sends.n.Load()-before >= int64(len(c.items)), nil
	})
	t.RecordedMS = millis(time.Since(began))
	return t, err
}

// join enrols one more node and puts it on the list in force.
func (c *core) join(ctx context.Context) (took, error) {
	c.round++
	n, err := newMember(90_000 + c.round)
	if err != nil {
		return took{}, err
	}
	_, err = c.store.AddNode(ctx, by(), n.Name, records.EnrolAsk{Key: n.key, Curve: n.curveKey, MachineID: machineID(90_000 + c.round)})
	if err != nil {
		return took{}, err
	}
	return measured(func() error {
		people, _, err := c.comp.Principals(ctx)
		if err != nil {
			return err
		}
		list, _, err := grant.Compose(people)
		if err != nil {
			return err
		}
		changed, err := c.broker.Apply(list)
		if err == nil && !changed {
			err = errors.New("the list in force is as it was")
		}
		return err
	})
}

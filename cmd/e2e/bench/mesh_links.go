package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"mesh/agent/link"
	"mesh/agent/state"
	"mesh/shared/bus"
	"mesh/shared/clock"
	"mesh/shared/credential"
	"mesh/shared/declaration"
	"mesh/shared/report"
	"mesh/shared/subject"
)

// links are many agents as the bus sees them: each connects, follows its declaration, reads the last one
// back after each connect, beats and empties its outbox, with the agent's own link; it applies nothing.
type links struct {
	all  []*linked
	lost atomic.Int64
	news chan struct{} // capacity 1
	wg   sync.WaitGroup
}

// linked is one of them.
type linked struct {
	cred  credential.File
	conn  *bus.Conn
	out   *lastWord
	reads atomic.Int64 // declarations read back or pushed, and agreed with
	up    atomic.Bool

	mu     sync.Mutex // guards the two below
	digest [32]byte
	seq    uint64
}

// linksPart is the child "mesh-links".
func linksPart(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l := &links{news: make(chan struct{}, 1)}
	err := serve(ctx, handlers{
		"start": on(func(_ context.Context, a agentsStart) (any, error) { return nil, l.start(ctx, a) }),
		// "agreed" waits until each has heard a declaration since the last "forget".
		"forget": on(func(context.Context, nothing) (any, error) { l.forget(); return nil, nil }),
		"agreed": on(func(ctx context.Context, _ nothing) (any, error) {
			return nil, l.until(ctx, func(x *linked) bool { return x.reads.Load() > 0 })
		}),
		"away": on(func(ctx context.Context, _ nothing) (any, error) {
			return nil, l.until(ctx, func(x *linked) bool { return !x.up.Load() })
		}),
		"connected": on(func(ctx context.Context, _ nothing) (any, error) {
			return nil, l.until(ctx, func(x *linked) bool { return x.up.Load() })
		}),
		"lost": on(func(context.Context, nothing) (any, error) { return l.lost.Load(), nil }),
	})
	cancel()
	l.wg.Wait()
	for _, x := range l.all {
		x.conn.Close()
	}
	return err
}

func (l *links) start(ctx context.Context, a agentsStart) error {
	f, err := loadFleet(a.Fleet)
	if err != nil {
		return err
	}
	gate := make(chan struct{}, floorPar)
	l.all = make([]*linked, a.To-a.From)
	errs := make([]error, len(l.all))
	var wg sync.WaitGroup
	for i := range l.all {
		gate <- struct{}{}
		wg.Go(func() {
			defer func() { <-gate }()
			l.all[i], errs[i] = l.one(ctx, f.file(a.From+i))
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (l *links) one(ctx context.Context, f credential.File) (*linked, error) {
	x := &linked{cred: f, out: &lastWord{}}
	log := slog.New(slog.DiscardHandler)
	var err error
	x.conn, err = bus.Connect(ctx, bus.Options{Bus: f.Bus, Seed: f.Seed, Principal: f.Principal(), Name: f.Name, Clock: clock.Real(), Log: log})
	if err != nil {
		return nil, err
	}
	x.conn.OnState(func(up bool) {
		if x.up.Swap(up) && !up {
			l.lost.Add(1)
		}
		l.tell()
	})
	k := link.New(link.Config{Node: subject.Node(f.Name), Conn: x.conn, Outbox: x.out, Clock: clock.Real(), Log: log,
		Alive: func() report.Heartbeat { return report.Heartbeat{At: time.Now().UnixMilli(), Seq: x.holds()} }})
	l.wg.Go(func() { // ends with ctx
		if err := k.Run(ctx); err != nil && ctx.Err() == nil {
			panic(fmt.Sprintf("link %s: %v", f.Name, err))
		}
	})
	l.wg.Go(func() { // ends with ctx
		for {
			select {
			case <-ctx.Done():
				return
			case h := <-k.Heard():
				x.heard(h)
				k.Kick()
				l.tell()
			}
		}
	})
	return x, nil
}

func (x *linked) holds() uint64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.seq
}

// heard is what an agent does with a declaration before anything on the machine is looked at: the one it
// holds is known by its digest; another is verified and decoded whole.
func (x *linked) heard(h link.Heard) {
	sum := sha256.Sum256(h.Signed)
	x.mu.Lock()
	known := sum == x.digest
	x.mu.Unlock()
	if !known {
		d, err := declaration.Signed(h.Signed).Open(x.cred.Signer, x.cred.Mesh, subject.Node(x.cred.Name))
		if err != nil {
			return // what is not agreed with is missed by who waits
		}
		x.mu.Lock()
		x.digest, x.seq = sum, d.Seq
		x.mu.Unlock()
	}
	if h.Pushed || !known {
		x.out.say(x.cred, x.holds())
	}
	x.reads.Add(1)
}

func (l *links) tell() {
	select {
	case l.news <- struct{}{}:
	default:
	}
}

func (l *links) forget() {
	for _, x := range l.all {
		x.reads.Store(0)
	}
}

// until waits for all.
func (l *links) until(ctx context.Context, ok func(*linked) bool) error {
	late := time.NewTimer(3 * time.Minute)
	defer late.Stop()
	next := 0
	for {
		for next < len(l.all) && ok(l.all[next]) {
			next++
		}
		if next == len(l.all) {
			return nil
		}
		select {
		case <-l.news:
		case <-late.C:
			return fmt.Errorf("one at least is not so far: %s", l.all[next].cred.Name)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// lastWord is an outbox that holds the newest report only, in memory.
type lastWord struct {
	mu     sync.Mutex // guards the fields below
	number uint64
	out    *state.Out
}

func (o *lastWord) say(f credential.File, seq uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.number == 0 {
		o.number = uint64(time.Now().UnixMilli())
	}
	o.number++
	r := report.Report{Format: report.Format, Mesh: f.Mesh, Node: subject.Node(f.Name), Number: o.number, At: time.Now().UnixMilli(),
		Boot: "00000000-0000-0000-0000-000000000000", Agent: report.Agent{Version: "bench"}, Apply: report.Apply{Seq: seq, Outcome: report.Applied}, FreeDisk: 1 << 30}
	for i := range 5 {
		r.Modules = append(r.Modules, report.Module{Name: fillerName(i), Build: "build-1700000000000000000", State: report.Running, Since: 1_700_000_000_000})
	}
	b, err := json.Marshal(r)
	if err != nil {
		panic("a report of ours: " + err.Error())
	}
	o.out = &state.Out{ID: fmt.Sprintf("%s-%d", f.Name, o.number), Subject: subject.Report(subject.Node(f.Name)), Kind: state.KindReport, Body: b}
}

// Next is the report that waits.
func (o *lastWord) Next(context.Context, int) ([]state.Out, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.out == nil {
		return nil, nil
	}
	return []state.Out{*o.out}, nil
}

// Acked lets go of what the bus has.
func (o *lastWord) Acked(_ context.Context, all ...state.Out) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.out != nil && len(all) > 0 && all[0].ID == o.out.ID {
		o.out = nil
	}
	return nil
}

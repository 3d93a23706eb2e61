package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// Many of the smallest agents in one process. Each has a connection with TLS and its own key, one
// subscription and, when it applies, a SQLite store with one synced commit and a file that is written,
// synced and renamed.

// floorFleet says which agents a child plays.
type floorFleet struct {
	// Dir is where the seeds are and the agents' folders go.
	Dir, Listen string
	From, To    int
	// Par is how many apply at once.
	Par int
	// Apply: each message is committed and written; otherwise only reported, or, with Mute, not even that.
	Apply, Mute bool
}

// floorPar is how many connect at once in a process.
const floorPar = 64

type floorAgent struct {
	nc   *nats.Conn
	db   *sql.DB
	put  *sql.Stmt
	path string
	n    int
}

type floorAgents struct {
	cfg   floorFleet
	seeds []string
	all   []*floorAgent
	gate  chan struct{}
	lost  atomic.Int64
	apply atomic.Bool
}

// floorAgentsPart is the child "floor-agents".
func floorAgentsPart(ctx context.Context) error {
	f := &floorAgents{}
	err := serve(ctx, handlers{
		"start": on(func(ctx context.Context, a floorFleet) (any, error) { return nil, f.start(ctx, a) }),
		"apply": on(func(_ context.Context, yes bool) (any, error) { f.apply.Store(yes); return nil, nil }),
		"storm": on(func(ctx context.Context, par int) (any, error) { return nil, f.connect(ctx, par) }),
		"drop":  on(func(context.Context, nothing) (any, error) { f.drop(); return nil, nil }),
		"lost":  on(func(context.Context, nothing) (any, error) { return f.lost.Load(), nil }),
	})
	f.drop()
	for _, a := range f.all {
		if a.db != nil {
			err = errors.Join(err, a.db.Close())
		}
	}
	return err
}

// stormPar is how many connect at once after the bus was away, of all processes together.
const stormPar = 512

func (f *floorAgents) start(ctx context.Context, a floorFleet) error {
	f.cfg, f.gate = a, make(chan struct{}, max(a.Par, 1))
	f.apply.Store(a.Apply)
	b, err := os.ReadFile(floorSeeds(a.Dir))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, &f.seeds); err != nil {
		return err
	}
	f.all = make([]*floorAgent, a.To-a.From)
	for i := range f.all {
		f.all[i] = &floorAgent{}
		if a.Apply {
			dir := filepath.Join(a.Dir, "floor-agents", fmt.Sprintf("%05d", a.From+i))
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			if err := f.all[i].open(dir); err != nil {
				return err
			}
		}
	}
	return f.connect(ctx, floorPar)
}

func (a *floorAgent) open(dir string) (err error) {
	a.path = filepath.Join(dir, "file")
	a.db, err = sql.Open("sqlite", "file:"+filepath.Join(dir, "state.db")+"?_pragma=journal_mode(wal)&_pragma=synchronous(full)&_pragma=cache_size(-256)")
	if err != nil {
		return err
	}
	a.db.SetMaxOpenConns(1)
	if _, err := a.db.Exec("create table decl(id integer primary key, body blob)"); err != nil {
		return err
	}
	a.put, err = a.db.Prepare("insert into decl values(?, ?) on conflict(id) do update set body = excluded.body")
	return err
}

// connect connects all who are not, subscribes, and waits until the server knows.
func (f *floorAgents) connect(ctx context.Context, par int) error {
	gate := make(chan struct{}, par)
	errs := make([]error, len(f.all))
	var wg sync.WaitGroup
	for i := range f.all {
		gate <- struct{}{}
		wg.Go(func() {
			defer func() { <-gate }()
			errs[i] = f.one(ctx, i)
		})
	}
	wg.Wait()
	failed := slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(failed) == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d clients do not get in, the first: %w", len(failed), len(f.all), failed[0])
}

// connectTries bounds how often a client that the crowd kept out tries again.
const connectTries = 20

func (f *floorAgents) one(ctx context.Context, i int) error {
	id, a := f.cfg.From+i, f.all[i]
	opts, err := floorClient(f.seeds[id], fmt.Sprintf("node-%05d", id))
	if err != nil {
		return err
	}
	opts = append(opts, nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
		if err != nil {
			f.lost.Add(1)
		}
	}))
	for try := 1; ; try++ {
		if a.nc, err = nats.Connect("tls://"+f.cfg.Listen, opts...); err == nil {
			break
		}
		if try == connectTries || ctx.Err() != nil {
			return err
		}
		pause(ctx, 50*time.Millisecond)
	}
	report := floorReport(id)
	_, err = a.nc.Subscribe(floorSubject(id), func(m *nats.Msg) {
		if f.cfg.Mute {
			return
		}
		state := "ok"
		if f.apply.Load() {
			f.gate <- struct{}{}
			if err := a.do(m.Data); err != nil {
				state = err.Error()
			}
			<-f.gate
		}
		body := fmt.Sprintf(`{"node":"node-%05d","at":%d,"state":%q}`, id, time.Now().UnixMilli(), state)
		_ = a.nc.Publish(report, []byte(body)) // a report that is missing fails the round
	})
	if err != nil {
		return err
	}
	return a.nc.Flush()
}

// do is one apply. The value differs each time: SQLite writes nothing for an equal one.
func (a *floorAgent) do(data []byte) error {
	a.n++
	if _, err := a.put.Exec(a.n%4, append(fmt.Appendf(nil, "%016d", a.n), data[16:]...)); err != nil {
		return err
	}
	f, err := os.Create(a.path + ".new")
	if err != nil {
		return err
	}
	_, err = f.Write(data[:1024])
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(a.path+".new", a.path)
}

func (f *floorAgents) drop() {
	for _, a := range f.all {
		if a.nc != nil {
			a.nc.Close()
		}
	}
}

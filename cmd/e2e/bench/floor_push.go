package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
)

// The floor of a push: one message to each agent, each does what its apply must do (floor_agents.go) and
// reports; the reports are committed to SQLite as they come, all that are there in one synced commit.
// Nothing is composed, nothing signed.

type floorPushHub struct {
	*floorHub
	db      *sql.DB
	reports chan floorWord
	added   []string
}

type floorWord struct {
	node string
	at   time.Time
	body []byte
}

// floorPush says to whom: Count agents from First on.
type floorPush struct{ First, Count, Size int }

// floorBusPart is the child "floor-bus".
func floorBusPart(ctx context.Context) error {
	var h *floorPushHub
	err := serve(ctx, handlers{
		"start": on(func(_ context.Context, a floorStart) (_ any, err error) {
			h, err = startFloorPush(a)
			return nil, err
		}),
		"push":      on(func(ctx context.Context, a floorPush) (any, error) { return nil, h.push(ctx, a) }),
		"fill":      on(func(_ context.Context, a floorLoad) (any, error) { return h.publishAll(a) }),
		"join":      on(func(context.Context, nothing) (any, error) { return h.join() }),
		"connected": on(func(context.Context, nothing) (any, error) { return h.srv.NumClients(), nil }),
	})
	if h != nil {
		h.stop()
		err = errors.Join(err, h.db.Close())
	}
	return err
}

func startFloorPush(a floorStart) (*floorPushHub, error) {
	db, err := sql.Open("sqlite", "file:"+filepath.Join(a.Dir, "floor-reports.db")+"?_pragma=journal_mode(wal)&_pragma=synchronous(full)")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	if _, err := db.Exec("create table if not exists report(node text primary key, at integer, body blob)"); err != nil {
		return nil, err
	}
	hub, err := startFloorHub(a)
	if err != nil {
		return nil, err
	}
	h := &floorPushHub{floorHub: hub, db: db, reports: make(chan floorWord, 1<<16)}
	_, err = h.nc.Subscribe("floor.report.*", func(m *nats.Msg) {
		h.reports <- floorWord{m.Subject[strings.LastIndexByte(m.Subject, '.')+1:], time.Now(), m.Data}
	})
	if err != nil {
		return nil, err
	}
	return h, h.nc.Flush()
}

// push ends when the last report is recorded.
func (h *floorPushHub) push(ctx context.Context, a floorPush) error {
	body := make([]byte, a.Size)
	if _, err := rand.Read(body); err != nil {
		return err
	}
	recorded := make(chan error, 1)
	go func() { recorded <- h.record(ctx, a.Count) }() // ends with the last report, or late
	for i := a.First; i < a.First+a.Count; i++ {
		if _, err := h.js.PublishAsync(floorSubject(i), body, jetstream.WithStallWait(time.Minute)); err != nil {
			return err
		}
	}
	<-h.js.PublishAsyncComplete()
	return <-recorded
}

func (h *floorPushHub) record(ctx context.Context, n int) error {
	late := time.NewTimer(3 * time.Minute)
	defer late.Stop()
	for got := 0; got < n; {
		var batch []floorWord
		select {
		case w := <-h.reports:
			batch = append(batch, w)
		case <-late.C:
			return fmt.Errorf("only %d of %d agents reported", got, n)
		case <-ctx.Done():
			return ctx.Err()
		}
		for more := true; more && len(batch) < 4096; {
			select {
			case w := <-h.reports:
				batch = append(batch, w)
			default:
				more = false
			}
		}
		if err := h.commit(batch); err != nil {
			return err
		}
		got += len(batch)
	}
	return nil
}

func (h *floorPushHub) commit(batch []floorWord) error {
	tx, err := h.db.Begin()
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it has nothing to do
	put, err := tx.Prepare("insert into report values(?, ?, ?) on conflict(node) do update set at = excluded.at, body = excluded.body")
	if err != nil {
		return err
	}
	for _, w := range batch {
		if _, err := put.Exec(w.node, w.at.UnixNano(), w.body); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// join puts one more user on the list: the server is handed all of it as values.
func (h *floorPushHub) join() (took, error) {
	kp, err := nkeys.CreateUser()
	if err != nil {
		return took{}, err
	}
	public, err := kp.PublicKey()
	if err != nil {
		return took{}, err
	}
	h.added = append(h.added, public)
	opts, err := h.options()
	if err != nil {
		return took{}, err
	}
	for i, key := range h.added {
		opts.Nkeys = append(opts.Nkeys, &server.NkeyUser{Nkey: key, Permissions: floorRights(1_000_000+i, h.cfg.Subjects)})
	}
	return measured(func() error { return h.srv.ReloadOptions(opts) })
}

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

// The floor of composing: texts are read from SQLite, made into one JSON a node, hashed and compared
// with the last hash, and what is new is committed, in one commit that is synced.

// floorLines makes a text as long as what mesh says of a module beside its file.
const floorLines = 10

type floorRecords struct {
	db           *sql.DB
	nodes, kinds int
}

type floorResource struct {
	Kind     string            `json:"kind"`
	Name     string            `json:"name"`
	Path     string            `json:"path"`
	Mode     string            `json:"mode"`
	Content  string            `json:"content"`
	Settings map[string]string `json:"settings"`
	Needs    []string          `json:"needs"`
}

type floorDeclaration struct {
	Node      string          `json:"node"`
	Round     int             `json:"round"`
	Modules   []string        `json:"modules"`
	Resources []floorResource `json:"resources"`
}

type floorPlaced struct {
	module   int
	settings string
}

func openFloorRecords(dir string, s shape) (*floorRecords, error) {
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "floor.db")+"?_pragma=journal_mode(wal)&_pragma=synchronous(full)")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	r := &floorRecords{db: db, nodes: s.Nodes, kinds: s.Kinds}
	return r, r.seed(s)
}

func (r *floorRecords) seed(s shape) error {
	for _, q := range []string{
		"create table module(id integer primary key, body text)",
		"create table assignment(node int, module int, settings text, primary key(node, module)) without rowid",
		"create table declaration(node integer primary key, hash blob, body blob)",
	} {
		if _, err := r.db.Exec(q); err != nil {
			return err
		}
	}
	tx, err := r.db.Begin()
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it has nothing to do
	for i := range s.Kinds {
		if _, err := tx.Exec("insert into module values(?, ?)", i, strings.Repeat("setting = value\n", s.Lines+floorLines)); err != nil {
			return err
		}
	}
	place, err := tx.Prepare("insert into assignment values(?, ?, ?)")
	if err != nil {
		return err
	}
	for n := range s.Nodes {
		for k := range s.Each {
			if _, err := place.Exec(n, (n+k*7)%s.Kinds, fillerSettings(n, k)); err != nil {
				return err
			}
		}
	}
	return tx.Commit()
}

// composeAll composes every node; another round is another content for all.
func (r *floorRecords) composeAll(round int) (changed, size int, err error) {
	bodies, placed, err := r.read()
	if err != nil {
		return 0, 0, err
	}
	texts, hashes := make([][]byte, r.nodes), make([][32]byte, r.nodes)
	var wg sync.WaitGroup
	workers := runtime.GOMAXPROCS(0)
	errs := make([]error, workers)
	for w := range workers {
		wg.Go(func() {
			for n := w; n < r.nodes && errs[w] == nil; n += workers {
				if texts[n], errs[w] = floorText(n, round, placed[n], bodies); errs[w] == nil {
					hashes[n] = sha256.Sum256(texts[n])
				}
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return 0, 0, err
	}
	for _, t := range texts {
		size += len(t)
	}
	changed, err = r.keep(texts, hashes)
	return changed, size, err
}

func (r *floorRecords) read() (bodies []string, placed [][]floorPlaced, err error) {
	bodies, placed = make([]string, r.kinds), make([][]floorPlaced, r.nodes)
	err = eachRow(r.db, func(rows *sql.Rows) error {
		var i int
		var body string
		err := rows.Scan(&i, &body)
		bodies[i] = body
		return err
	}, "select id, body from module")
	if err != nil {
		return nil, nil, err
	}
	err = eachRow(r.db, func(rows *sql.Rows) error {
		var n int
		var p floorPlaced
		err := rows.Scan(&n, &p.module, &p.settings)
		placed[n] = append(placed[n], p)
		return err
	}, "select node, module, settings from assignment")
	return bodies, placed, err
}

func eachRow(db *sql.DB, fn func(*sql.Rows) error, query string, args ...any) (err error) {
	rows, err := db.Query(query, args...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := fn(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

func floorText(node, round int, placed []floorPlaced, bodies []string) ([]byte, error) {
	d := floorDeclaration{Node: "node-" + strconv.Itoa(node), Round: round}
	for _, p := range placed {
		name := fmt.Sprintf("module-%03d", p.module)
		var settings map[string]string
		if err := json.Unmarshal([]byte(p.settings), &settings); err != nil {
			return nil, err
		}
		d.Modules = append(d.Modules, name)
		d.Resources = append(d.Resources, floorResource{Kind: "file", Name: name + ".conf", Path: "/etc/bench/" + name + ".conf", Mode: "0644",
			Content: bodies[p.module], Settings: settings, Needs: []string{"unit/" + name}})
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(&d)
	return b.Bytes(), err
}

// keep commits what differs from the last hashes.
func (r *floorRecords) keep(texts [][]byte, hashes [][32]byte) (changed int, err error) {
	old := make(map[int][]byte, r.nodes)
	err = eachRow(r.db, func(rows *sql.Rows) error {
		var n int
		var h []byte
		err := rows.Scan(&n, &h)
		old[n] = h
		return err
	}, "select node, hash from declaration")
	if err != nil {
		return 0, err
	}
	tx, err := r.db.Begin()
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it has nothing to do
	put, err := tx.Prepare("insert into declaration values(?, ?, ?) on conflict(node) do update set hash = excluded.hash, body = excluded.body")
	if err != nil {
		return 0, err
	}
	for n := range texts {
		if bytes.Equal(old[n], hashes[n][:]) {
			continue
		}
		changed++
		if _, err := put.Exec(n, hashes[n][:], texts[n]); err != nil {
			return 0, err
		}
	}
	return changed, tx.Commit()
}

// setOne records another setting of one node, then composes that node and keeps what came of it. These
// are two acts of a person, each of which must last when it is answered, so two commits.
func (r *floorRecords) setOne(node, round int) (text []byte, err error) {
	settings := fmt.Sprintf(`{"address":"10.0.0.1","port":"8000","zone":"z%d"}`, round)
	if _, err := r.db.Exec("update assignment set settings = ? where node = ? and module = ?", settings, node, node%r.kinds); err != nil {
		return nil, err
	}
	bodies := make([]string, r.kinds)
	var placed []floorPlaced
	err = eachRow(r.db, func(rows *sql.Rows) error {
		var p floorPlaced
		var body string
		err := rows.Scan(&p.module, &p.settings, &body)
		placed, bodies[p.module] = append(placed, p), body
		return err
	}, "select a.module, a.settings, m.body from assignment a join module m on m.id = a.module where a.node = ?", node)
	if err != nil {
		return nil, err
	}
	if text, err = floorText(node, 0, placed, bodies); err != nil {
		return nil, err
	}
	hash := sha256.Sum256(text)
	_, err = r.db.Exec("insert into declaration values(?, ?, ?) on conflict(node) do update set hash = excluded.hash, body = excluded.body", node, hash[:], text)
	return text, err
}

// floorCorePart is the child "floor-core": composing, keeping and publishing without mesh.
func floorCorePart(ctx context.Context) error {
	var r *floorRecords
	var hub *floorHub
	round := 0
	err := serve(ctx, handlers{
		"start": on(func(_ context.Context, a floorStart) (any, error) {
			var err error
			if r, err = openFloorRecords(a.Dir, a.Shape); err != nil {
				return nil, err
			}
			hub, err = startFloorHub(a)
			return nil, err
		}),
		"compose": on(func(_ context.Context, again bool) (any, error) {
			if !again {
				round++
			}
			var changed, size int
			t, err := afresh(func() (err error) { changed, size, err = r.composeAll(round); return err })
			t.Changed, t.Bytes = changed, size
			return t, err
		}),
		"set": on(func(ctx context.Context, node int) (any, error) {
			round++
			return measured(func() error {
				text, err := r.setOne(node, round)
				if err != nil {
					return err
				}
				return hub.publishOne(ctx, floorSubject(node), text)
			})
		}),
		"publish": on(func(_ context.Context, a floorLoad) (any, error) { return hub.publishAll(a) }),
		"raw":     on(func(_ context.Context, a floorLoad) (any, error) { return rawWrite(a) }),
	})
	if hub != nil {
		hub.stop()
	}
	if r != nil {
		err = errors.Join(err, r.db.Close())
	}
	return err
}

package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"mesh/coordinator/keys"
	"mesh/coordinator/records"
	"mesh/shared/clock"
	"mesh/shared/credential"
	"mesh/shared/manifest"
	"mesh/shared/subject"
)

// shape is how large a mesh is made.
type shape struct {
	Nodes int
	// Each node has Each of Kinds modules, each with Files files (0: one) of Lines lines, besides the module
	// "change" when Change is set.
	Each, Kinds, Files, Lines int
	Change                    bool
}

// mesh is a mesh that was made for one row: the coordinator's folder with everything in it, and the
// credentials of all nodes, as if each had been enrolled.
type mesh struct {
	Dir string
	// Listen is where its bus listens.
	Listen   string
	Operator credential.File
	// Nodes is the file of the nodes' credentials.
	Nodes string
	store *records.Store // open only while it is being made
}

// fleet is the file of the nodes' credentials.
type fleet struct {
	Mesh   string
	Signer credential.Verifier
	Bus    credential.Bus
	Nodes  []member
}

type member struct {
	Name        subject.Node
	Seed, Curve credential.Seed
	key         string
	curveKey    string
}

// file is the credential of node i.
func (f *fleet) file(i int) credential.File {
	n := f.Nodes[i]
	return credential.File{Format: credential.Format, Mesh: f.Mesh, Kind: credential.KindNode, Name: string(n.Name), Seed: n.Seed, Curve: n.Curve, Signer: f.Signer, Bus: f.Bus}
}

func loadFleet(path string) (*fleet, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var f fleet
	return &f, json.Unmarshal(b, &f)
}

// changeModule is the module that rows 1 to 3 change.
const changeModule subject.Module = "change"

// by is who acts in the journal.
func by() records.By { return records.By{Who: "operator-bench", Why: "bench"} }

// makeMesh makes a mesh in dir. Modules come in by the records' own methods; nodes and assignments are
// written beside them in one transaction, since a journalled one each would take longer than the row.
func makeMesh(ctx context.Context, dir string, s shape) (m *mesh, err error) {
	m = &mesh{Dir: filepath.Join(dir, "coordinator"), Nodes: filepath.Join(dir, "nodes.json")}
	if m.Listen, err = freeAddress(); err != nil {
		return nil, err
	}
	made, err := keys.Init(ctx, m.Dir, keys.InitOptions{Mesh: "bench", Addresses: []string{m.Listen}, Operator: "bench", Clock: clock.Real(), Rand: rand.Reader})
	if err != nil {
		return nil, err
	}
	m.Operator = made.Operator
	if err := m.open(ctx); err != nil {
		return nil, err
	}
	f, err := m.modules(ctx, s)
	if err = errors.Join(err, m.store.Close()); err != nil {
		return nil, err
	}
	if err := m.seed(ctx, s, f); err != nil {
		return nil, fmt.Errorf("make %d nodes: %w", s.Nodes, err)
	}
	b, err := json.Marshal(f)
	if err != nil {
		return nil, err
	}
	return m, os.WriteFile(m.Nodes, b, 0o600)
}

func (m *mesh) open(ctx context.Context) (err error) {
	m.store, err = records.Open(ctx, filepath.Join(m.Dir, keys.RecordsFile), records.Options{Clock: clock.Real(), Rand: rand.Reader})
	return err
}

// modules registers the modules and enrols the first node, whose row the others are copied from.
func (m *mesh) modules(ctx context.Context, s shape) (*fleet, error) {
	for i := range s.Kinds {
		if err := register(ctx, m.store, fillerManifest(i, max(s.Files, 1), s.Lines)); err != nil {
			return nil, err
		}
	}
	if s.Change {
		if err := register(ctx, m.store, changeManifest(0)); err != nil {
			return nil, err
		}
	}
	info, err := m.store.Mesh(ctx)
	if err != nil {
		return nil, err
	}
	f := &fleet{Mesh: info.ID, Signer: info.Signer, Bus: info.Bus, Nodes: make([]member, s.Nodes)}
	for i := range f.Nodes {
		if f.Nodes[i], err = newMember(i); err != nil {
			return nil, err
		}
	}
	_, err = m.store.AddNode(ctx, by(), f.Nodes[0].Name, records.EnrolAsk{Key: f.Nodes[0].key, Curve: f.Nodes[0].curveKey, MachineID: machineID(0)})
	return f, err
}

func newMember(i int) (n member, err error) {
	n.Name = nodeName(i)
	var errs [4]error
	n.Seed, errs[0] = credential.NewUser(rand.Reader)
	n.Curve, errs[1] = credential.NewCurve(rand.Reader)
	n.key, errs[2] = n.Seed.Public()
	n.curveKey, errs[3] = n.Curve.Public()
	return n, errors.Join(errs[:]...)
}

func nodeName(i int) subject.Node { return subject.Node(fmt.Sprintf("node-%05d", i)) }

func machineID(i int) string { return fmt.Sprintf("%032x", i+1) }

func fillerName(i int) subject.Module { return subject.Module(fmt.Sprintf("module-%03d", i)) }

func fillerManifest(i, files, lines int) *manifest.Manifest {
	name := fillerName(i)
	text := "address = ${setting:address}\nport = ${setting:port}\nzone = ${setting:zone}\n" + strings.Repeat("setting = value\n", lines)
	m := &manifest.Manifest{Module: name, Description: "one of many", Settings: map[string]manifest.Setting{"address": {}, "port": {}, "zone": {}}}
	for k := range files {
		m.Run.Files = append(m.Run.Files, manifest.File{Path: fmt.Sprintf("/etc/bench/%s-%02d.conf", name, k), Content: text})
	}
	return m
}

// fillerSettings are what node n gives module number k of it, as the records hold settings.
func fillerSettings(n, k int) string {
	return fmt.Sprintf(`{"address":"10.0.%d.%d","port":"%d","zone":"a"}`, n>>8&255, n&255, 8000+k)
}

// changeManifest is build number version of the module that changes: one file of 1 KiB.
func changeManifest(version int) *manifest.Manifest {
	none := "none"
	text := fmt.Sprintf("version = %08d\nvalue = ${setting:value}\n", version) + strings.Repeat("setting = value\n", 61)
	return &manifest.Manifest{Module: changeModule, Description: "what changes", Settings: map[string]manifest.Setting{"value": {Default: &none}},
		Run: manifest.Run{Files: []manifest.File{{Path: "/etc/bench/change.conf", Content: text}}}}
}

func register(ctx context.Context, s *records.Store, m *manifest.Manifest) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	_, _, err = s.Register(ctx, by(), records.Registration{Manifest: b, Source: "bench"})
	return err
}

// seed writes the other nodes and all assignments.
func (m *mesh) seed(ctx context.Context, s shape, f *fleet) (err error) {
	db, err := sql.Open("sqlite", "file:"+filepath.Join(m.Dir, keys.RecordsFile)+"?_pragma=journal_mode(wal)&_pragma=synchronous(normal)&_pragma=foreign_keys(on)")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	db.SetMaxOpenConns(1)
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it has nothing to do
	node, err := tx.PrepareContext(ctx, `INSERT INTO node (id, name, key, curve, machine_id, enrolled, drift, tunnel, inside, admin, asleep_ok)
		SELECT ?, ?, ?, ?, ?, enrolled, drift, tunnel, inside, admin, asleep_ok FROM node WHERE id = 1`)
	if err != nil {
		return err
	}
	place, err := tx.PrepareContext(ctx, `INSERT INTO assignment (node, module, settings, secrets) VALUES (?, ?, ?, '{}')`)
	if err != nil {
		return err
	}
	for i, n := range f.Nodes {
		id := i + 1
		if i > 0 {
			if _, err := node.ExecContext(ctx, id, string(n.Name), n.key, n.curveKey, machineID(i)); err != nil {
				return err
			}
		}
		for k := range s.Each {
			if _, err := place.ExecContext(ctx, id, string(fillerName((i+k*7)%s.Kinds)), fillerSettings(i, k)); err != nil {
				return err
			}
		}
		if s.Change {
			if _, err := place.ExecContext(ctx, id, string(changeModule), `{}`); err != nil {
				return err
			}
		}
	}
	return tx.Commit()
}

// freeAddress is a loopback address nobody listens on now.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

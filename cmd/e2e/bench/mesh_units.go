package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"

	"mesh/agent/apply"
	"mesh/agent/host/systemd"
	"mesh/agent/state"
	"mesh/shared/clock"
	"mesh/shared/credential"
	"mesh/shared/declaration"
	"mesh/shared/manifest"
	"mesh/shared/report"
	"mesh/shared/subject"
)

// unitsRun says what row 11 does in the host.
type unitsRun struct {
	Dir           string
	Rounds, Units int
	// Files and Services are those of a first apply.
	Files, Services int
}

// unitsSeen are the figures, in milliseconds, and how often systemd read its files anew.
type unitsSeen struct {
	FloorChange, MeshChange, FloorRestart, MeshRestart, FloorFirst, MeshFirst []float64
	// Reloads are those of a push that changes units, and of one that changes a file of theirs only.
	Reloads, ReloadsOfFiles []int64
}

// countingUnits counts the daemon-reloads.
type countingUnits struct {
	*systemd.Conn
	reloads atomic.Int64
}

// Reload counts.
func (c *countingUnits) Reload(ctx context.Context) error {
	c.reloads.Add(1)
	return c.Conn.Reload(ctx)
}

// unitsPart is the child "units-inside", which runs in a booted host as root.
func unitsPart(ctx context.Context) error {
	return serve(ctx, handlers{"run": on(func(ctx context.Context, r unitsRun) (any, error) { return r.run(ctx) })})
}

// unitsMesh is an engine over the host itself.
type unitsMesh struct {
	signer *credential.Signer
	engine *apply.Engine
	units  *countingUnits
	seq    uint64
	close  func() error
}

func newUnitsMesh(ctx context.Context, dir string) (*unitsMesh, error) {
	signer, err := credential.NewSigner(rand.Reader)
	if err != nil {
		return nil, err
	}
	log := slog.New(slog.DiscardHandler)
	store, err := state.Open(ctx, state.Config{Path: filepath.Join(dir, "state", "state.db"), Clock: clock.Real(), Rand: rand.Reader, Log: log})
	if err != nil {
		return nil, err
	}
	m := &unitsMesh{signer: signer, units: &countingUnits{Conn: systemd.New(clock.Real())}}
	m.engine, err = apply.New(apply.Config{Store: store, Node: "bench", Mesh: "bench", Verifier: signer.Verifier(), Root: "/", BundleDir: filepath.Join(dir, "state", "bundles"),
		Host: apply.Host{Units: m.units, Runner: m.units.Conn}, Clock: clock.Real(), Rand: rand.Reader, Log: log, Settle: time.Millisecond})
	m.close = func() error {
		m.units.Close()
		return errors.Join(m.engine.Close(), store.Close())
	}
	return m, err
}

// accept takes a declaration in, which has to come out right.
func (m *unitsMesh) accept(ctx context.Context, mods []manifest.Manifest) error {
	m.seq++
	d := declaration.Declaration{Head: declaration.Head{Format: declaration.Format, Mesh: "bench", Node: "bench", Seq: m.seq},
		Content: declaration.Content{Bus: credential.Bus{Addresses: []string{"192.0.2.1:4222"}, Pin: strings.Repeat("00", 32)}, Drift: declaration.Repair, Modules: []declaration.Module{}}}
	for i := range mods {
		text, err := json.Marshal(&mods[i])
		if err != nil {
			return err
		}
		d.Modules = append(d.Modules, declaration.Module{Name: mods[i].Module, Build: "build-1", Manifest: text})
	}
	body, err := json.Marshal(&d)
	if err != nil {
		return err
	}
	signed, err := declaration.Sign(m.signer, body)
	if err != nil {
		return err
	}
	r, err := m.engine.Accept(ctx, signed)
	if err == nil && r.Outcome != report.Applied {
		err = fmt.Errorf("declaration %d came to %s: %v", m.seq, r.Outcome, r.Refused)
	}
	return err
}

// services are n modules with a process each; version is in their units, text in a file of theirs.
func services(n, version, text int) (all []manifest.Manifest) {
	for i := range n {
		m := manifest.Manifest{Module: subject.Module(fmt.Sprintf("unit-%02d", i))}
		m.Run.Files = []manifest.File{{Path: fmt.Sprintf("/etc/bench-mesh/u%02d", i), Content: fmt.Sprintf("%d\n", text)}}
		m.Run.Processes = map[string]manifest.Process{"p": {Exec: []string{"/usr/bin/sleep", "infinity"}, Env: map[string]string{"VERSION": fmt.Sprint(version)}}}
		all = append(all, m)
	}
	return all
}

// firsts are the modules of a first apply: twenty services with five files each, when it is 100 and 20.
func firsts(files, units int) (all []manifest.Manifest) {
	for i := range units {
		m := manifest.Manifest{Module: subject.Module(fmt.Sprintf("first-%02d", i))}
		for k := i; k < files; k += units {
			m.Run.Files = append(m.Run.Files, manifest.File{Path: fmt.Sprintf("/etc/bench-first/f%03d", k), Content: passContent(k)})
		}
		m.Run.Processes = map[string]manifest.Process{"p": {Exec: []string{"/usr/bin/sleep", "infinity"}}}
		all = append(all, m)
	}
	return all
}

func (r unitsRun) run(ctx context.Context) (*unitsSeen, error) {
	m, err := newUnitsMesh(ctx, r.Dir)
	if err != nil {
		return nil, err
	}
	conn, err := dbus.NewSystemdConnectionContext(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	f := &floorUnits{conn}
	apply, undo, err := f.script(filepath.Join(r.Dir, "script"), r.Files, r.Services)
	if err != nil {
		return nil, err
	}
	seen := &unitsSeen{}
	for round := range r.Rounds + 1 {
		if err := r.round(ctx, round, m, f, apply, undo, seen); err != nil {
			return nil, errors.Join(err, m.close())
		}
	}
	return seen, m.close()
}

// round is one of each; the first is to warm up, and dropped.
func (r unitsRun) round(ctx context.Context, round int, m *unitsMesh, f *floorUnits, apply, undo string, seen *unitsSeen) error {
	keep := func(into *[]float64, fn func() error) error {
		began := time.Now()
		err := fn()
		if round > 0 {
			*into = append(*into, millis(time.Since(began)))
		}
		return err
	}
	reloads := func(into *[]int64, fn func() error) error {
		before := m.units.reloads.Load()
		err := fn()
		if round > 0 {
			*into = append(*into, m.units.reloads.Load()-before)
		}
		return err
	}
	for _, step := range []func() error{
		func() error { return keep(&seen.FloorFirst, func() error { return runScript(ctx, apply) }) },
		func() error { return runScript(ctx, undo) },
		func() error {
			return keep(&seen.MeshFirst, func() error { return m.accept(ctx, firsts(r.Files, r.Services)) })
		},
		func() error { return m.accept(ctx, services(r.Units, round, 0)) }, // and the first ones go
		func() error { return f.change(ctx, r.Units, -1-round) },
		func() error {
			return keep(&seen.FloorChange, func() error { return f.change(ctx, r.Units, round) })
		},
		func() error {
			return reloads(&seen.Reloads, func() error {
				return keep(&seen.MeshChange, func() error { return m.accept(ctx, services(r.Units, 1000+round, 0)) })
			})
		},
		func() error { return keep(&seen.FloorRestart, func() error { return f.restart(ctx, r.Units) }) },
		func() error {
			return reloads(&seen.ReloadsOfFiles, func() error {
				return keep(&seen.MeshRestart, func() error { return m.accept(ctx, services(r.Units, 1000+round, 1)) })
			})
		},
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

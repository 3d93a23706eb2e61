package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"mesh/agent/apply"
	"mesh/agent/link"
	"mesh/agent/state"
	"mesh/shared/bus"
	"mesh/shared/clock"
	"mesh/shared/credential"
	"mesh/shared/declaration"
	"mesh/shared/manifest"
	"mesh/shared/report"
	"mesh/shared/subject"
)

// bundleModule is the module whose bundle row 15 brings to a machine.
const bundleModule subject.Module = "bundle"

func bundleManifest() *manifest.Manifest {
	return &manifest.Manifest{Module: bundleModule, Build: manifest.Build{Bundle: &manifest.Bundle{Output: "dist"}}}
}

// bundleStart says whose agent the child is, and which artifact it is to be told of.
type bundleStart struct {
	Dir      string
	Fleet    string
	Artifact declaration.Artifact
}

// bundler is an agent's engine with the agent's own link, and a coordinator's signature of its own.
type bundler struct {
	store    *state.Store
	engine   *apply.Engine
	conn     *bus.Conn
	signer   *credential.Signer
	artifact declaration.Artifact
	seq      uint64
	folder   string
}

// bundlePart is the child "mesh-bundle".
func bundlePart(ctx context.Context) error {
	debug.SetGCPercent(50) // as the agent does
	b := &bundler{}
	defer b.end()
	return serve(ctx, handlers{
		"start": on(func(ctx context.Context, a bundleStart) (any, error) { return nil, b.start(ctx, a) }),
		// "bring" takes a declaration with the bundle, "drop" one without it.
		"bring": on(func(ctx context.Context, _ nothing) (any, error) {
			return measured(func() error { return b.apply(ctx, true) })
		}),
		"drop": on(func(ctx context.Context, _ nothing) (any, error) { return nil, b.apply(ctx, false) }),
	})
}

func (b *bundler) start(ctx context.Context, a bundleStart) error {
	f, err := loadFleet(a.Fleet)
	if err != nil {
		return err
	}
	cred, log, clk := f.file(0), slog.New(slog.DiscardHandler), clock.Real()
	if b.conn, err = bus.Connect(ctx, bus.Options{Bus: cred.Bus, Seed: cred.Seed, Principal: cred.Principal(), Name: cred.Name, Clock: clk, Log: log}); err != nil {
		return err
	}
	k := link.New(link.Config{Node: subject.Node(cred.Name), Conn: b.conn, Outbox: &lastWord{}, Clock: clk, Log: log, Alive: func() report.Heartbeat { return report.Heartbeat{} }})
	if b.signer, err = credential.NewSigner(rand.Reader); err != nil {
		return err
	}
	root := filepath.Join(a.Dir, "root")
	if err := makeRoot(root); err != nil {
		return err
	}
	if b.store, err = state.Open(ctx, state.Config{Path: filepath.Join(a.Dir, "state", "state.db"), Clock: clk, Rand: rand.Reader, Log: log}); err != nil {
		return err
	}
	b.artifact, b.folder = a.Artifact, filepath.Join(a.Dir, "state", "bundles", a.Artifact.Digest)
	b.engine, err = apply.New(apply.Config{Store: b.store, Node: "bench", Mesh: "bench", Verifier: b.signer.Verifier(), Root: root, BundleDir: filepath.Dir(b.folder),
		Fetch: k.Fetch, Clock: clk, Rand: rand.Reader, Log: log, Wait: 5 * time.Minute})
	return err
}

func (b *bundler) end() {
	if b.engine != nil {
		_ = b.engine.Close() // the child ends
	}
	if b.store != nil {
		_ = b.store.Close() // the child ends
	}
	if b.conn != nil {
		b.conn.Close()
	}
}

// apply carries out a declaration with or without the bundle, and checks that it is there, or not.
func (b *bundler) apply(ctx context.Context, with bool) error {
	b.seq++
	d := declaration.Declaration{Head: declaration.Head{Format: declaration.Format, Mesh: "bench", Node: "bench", Seq: b.seq},
		Content: declaration.Content{Bus: credential.Bus{Addresses: []string{"192.0.2.1:4222"}, Pin: strings.Repeat("00", 32)}, Drift: declaration.Repair}}
	if with {
		text, err := json.Marshal(bundleManifest())
		if err != nil {
			return err
		}
		d.Modules = []declaration.Module{{Name: bundleModule, Build: "build-1", Artifact: &b.artifact, Manifest: text}}
	}
	body, err := json.Marshal(&d)
	if err != nil {
		return err
	}
	signed, err := declaration.Sign(b.signer, body)
	if err != nil {
		return err
	}
	r, err := b.engine.Accept(ctx, signed)
	if err != nil {
		return err
	}
	if _, err := os.Stat(b.folder); r.Outcome != report.Applied || with != (err == nil) {
		return fmt.Errorf("the bundle, declared %v: %s %v %+v, %v", with, r.Outcome, r.Refused, r.Modules, err)
	}
	return nil
}

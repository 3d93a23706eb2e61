package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"mesh/agent/apply"
	"mesh/agent/link"
	"mesh/agent/registry"
	"mesh/agent/state"
	"mesh/shared/bundle"
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
	images   *registry.Registry
	has      map[string]bool // blobs that were pulled
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
		// "pull" brings an image as an engine does that has the layers it was given before, and says how many
		// bytes of messages came.
		"pull": on(func(ctx context.Context, i declaration.Image) (any, error) { return b.pull(ctx, &i) }),
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
	b.images = registry.New(registry.Config{Fetch: k.Fetch, Clock: clk, Log: log})
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

func (b *bundler) pull(ctx context.Context, i *declaration.Image) (int64, error) {
	if b.has == nil {
		b.has = map[string]bool{}
	}
	before := b.conn.NATS().Stats().InBytes
	offer, err := b.images.Offer(ctx, "mesh/bench", i)
	if err != nil {
		return 0, err
	}
	for n, blob := range i.Blobs {
		kind := "blobs"
		if n == 0 {
			kind = "manifests"
		}
		if b.has[blob.Digest] {
			continue
		}
		if err = get(ctx, "http://"+offer.Address()+"/v2/mesh/bench/"+kind+"/sha256:"+blob.Digest, blob.Size); err != nil {
			break
		}
		b.has[blob.Digest] = true
	}
	return int64(b.conn.NATS().Stats().InBytes - before), errors.Join(err, offer.Err(), offer.Close())
}

// get reads an answer of size bytes.
func get(ctx context.Context, url string, size int64) error {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(q)
	if err != nil {
		return err
	}
	n, err := io.Copy(io.Discard, resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err == nil && (n != size || resp.StatusCode != http.StatusOK) {
		err = fmt.Errorf("%s: %s, %d bytes of %d", url, resp.Status, n, size)
	}
	return err
}

// artifactOf is an artifact of that digest and size.
func artifactOf(digest string, size int64) declaration.Artifact {
	return declaration.Artifact{Digest: digest, Size: size, Chunks: bundle.Chunks(size)}
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

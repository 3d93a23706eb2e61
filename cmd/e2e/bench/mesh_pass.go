package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"mesh/agent"
	"mesh/agent/apply"
	"mesh/agent/show"
	"mesh/agent/state"
	"mesh/shared/clock"
	"mesh/shared/credential"
	"mesh/shared/declaration"
	"mesh/shared/manifest"
	"mesh/shared/report"
	"mesh/shared/subject"
)

// passFiles is how many files a pass looks at, passSize how long each is.
const (
	passFiles = 200
	passSize  = 1024
)

// passer is an agent's engine over a folder with files, without daemon and bus.
type passer struct {
	store  *state.Store
	cfg    apply.Config
	engine *apply.Engine
}

// passPart is the child "mesh-pass".
func passPart(ctx context.Context) error {
	p := &passer{}
	err := serve(ctx, handlers{
		"start":  on(func(ctx context.Context, dir string) (any, error) { return nil, p.start(ctx, dir) }),
		"status": on(func(ctx context.Context, dir string) (any, error) { return nil, p.status(ctx, dir) }),
		// "quick" is the pass of each minute, "whole" the first one of a daemon that came up.
		"quick": on(func(ctx context.Context, n int) (any, error) {
			return many(n, func() error { return p.pass(ctx, apply.Reconcile) })
		}),
		"whole": on(func(ctx context.Context, n int) (any, error) {
			return many(n, func() error {
				var err error
				if p.engine, err = apply.New(p.cfg); err != nil {
					return err
				}
				return errors.Join(p.pass(ctx, apply.Boot), p.engine.Close())
			})
		}),
	})
	if p.store != nil {
		err = errors.Join(err, p.store.Close())
	}
	return err
}

// many is what fn takes, the mean of n.
func many(n int, fn func() error) (took, error) {
	t, err := measured(func() error {
		for range n {
			if err := fn(); err != nil {
				return err
			}
		}
		return nil
	})
	t.WallMS, t.CPUMS = t.WallMS/float64(n), t.CPUMS/float64(n)
	return t, err
}

func (p *passer) start(ctx context.Context, dir string) (err error) {
	root := filepath.Join(dir, "root")
	if err := makeRoot(root); err != nil {
		return err
	}
	log := slog.New(slog.DiscardHandler)
	p.store, err = state.Open(ctx, state.Config{Path: filepath.Join(dir, "state", "state.db"), Clock: clock.Real(), Rand: rand.Reader, Log: log})
	if err != nil {
		return err
	}
	signer, err := credential.NewSigner(rand.Reader)
	if err != nil {
		return err
	}
	signed, err := passDeclaration(signer)
	if err != nil {
		return err
	}
	p.cfg = apply.Config{Store: p.store, Node: "bench", Mesh: "bench", Verifier: signer.Verifier(), Root: root, BundleDir: filepath.Join(dir, "state", "bundles"),
		Clock: clock.Real(), Rand: rand.Reader, Log: log}
	if p.engine, err = apply.New(p.cfg); err != nil {
		return err
	}
	r, err := p.engine.Accept(ctx, signed)
	if err == nil && r.Outcome != report.Applied {
		err = fmt.Errorf("the files were not made: %s, %v", r.Outcome, r.Refused)
	}
	return err
}

func (p *passer) pass(ctx context.Context, cause apply.Cause) error {
	r, err := p.engine.Pass(ctx, cause)
	if err == nil && (r.Outcome != report.Applied || r.Steps > 0) {
		err = fmt.Errorf("a pass that had nothing to do came to %s with %d steps", r.Outcome, r.Steps)
	}
	return err
}

// status is a daemon for show: it answers, and lays down what it says last.
func (p *passer) status(ctx context.Context, dir string) error {
	d, err := p.document(ctx)
	if err != nil {
		return err
	}
	// The command reads whose machine it is from the credential.
	credential := []byte(`{"name":"bench","mesh":"bench"}`)
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "state", agent.CredentialFile), credential, 0o600), d.Write(filepath.Join(dir, agent.StatusFile))); err != nil {
		return err
	}
	l, err := show.Listen(filepath.Join(dir, show.Socket))
	if err != nil {
		return err
	}
	go func() { // ends with this process, or with what it cannot answer
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if d, err := p.document(ctx); err != nil || show.Answer(ctx, conn, d) != nil {
				return
			}
		}
	}()
	return nil
}

func (p *passer) document(ctx context.Context) (*show.Document, error) {
	self, err := show.Self()
	if err != nil {
		return nil, err
	}
	now := time.Now().UnixMilli()
	return show.Gather(ctx, p.store, show.Runtime{Node: "bench", Mesh: "bench", Agent: report.Agent{Version: "bench"}, Daemon: self, At: now,
		Bus: show.Bus{Up: true, Address: "192.0.2.1:4222", Since: now}, Declaration: show.Declaration{Seq: 1, Accepted: now, Outcome: report.Applied},
		Uplinks: []string{"eth0"}, FreeDisk: 1 << 30})
}

// passDeclaration is ten modules of twenty files each.
func passDeclaration(s *credential.Signer) (declaration.Signed, error) {
	const modules = 10
	d := declaration.Declaration{Head: declaration.Head{Format: declaration.Format, Mesh: "bench", Node: "bench", Seq: 1},
		Content: declaration.Content{Bus: credential.Bus{Addresses: []string{"192.0.2.1:4222"}, Pin: strings.Repeat("00", 32)}, Drift: declaration.Repair}}
	for i := range modules {
		m := manifest.Manifest{Module: subject.Module(fmt.Sprintf("module-%02d", i))}
		for k := range passFiles / modules {
			n := i*passFiles/modules + k
			m.Run.Files = append(m.Run.Files, manifest.File{Path: fmt.Sprintf("/etc/bench/f%04d", n), Content: passContent(n)})
		}
		text, err := json.Marshal(&m)
		if err != nil {
			return nil, err
		}
		d.Modules = append(d.Modules, declaration.Module{Name: m.Module, Build: "build-1", Manifest: text})
	}
	body, err := json.Marshal(&d)
	if err != nil {
		return nil, err
	}
	return declaration.Sign(s, body)
}

// passContent is the text of file n.
func passContent(n int) string {
	return fmt.Sprintf("%08d", n) + strings.Repeat("content ", passSize/8-1)
}

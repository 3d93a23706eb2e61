package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"mesh/agent/apply"
	"mesh/agent/host/file"
	"mesh/agent/host/systemd"
	"mesh/agent/resource"
	"mesh/agent/state"
	"mesh/agent/take"
	"mesh/shared/clock"
	"mesh/shared/credential"
	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/subject"
)

// Taken is what was taken on this machine, by the store in dir, which is only read.
func Taken(ctx context.Context, dir string) (all []report.Take, err error) {
	s, err := state.OpenReadOnly(ctx, filepath.Join(dir, StateFile), clock.Real())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return take.Receipts(ctx, s)
}

// GiveBackThings ends a module on this machine and puts back what was taken for it, without the mesh (APP-18). It
// returns the ids of what is back. The daemon must not run.
func GiveBackThings(ctx context.Context, cred credential.File, dir, root string, m subject.Module, log *slog.Logger) (things []string, err error) {
	what, path := "giving back what was taken for "+string(m), filepath.Join(dir, StateFile)
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return nil, refusal.New(what, "there is no store of an agent in "+dir, "nothing: mesh took nothing here, or what it wrote down is lost")
	}
	release, err := lock(dir)
	if r := refusal.Of(err); r != nil {
		return nil, refusal.New(what, "the agent runs, and would hold it again",
			"mesh-coordinator give-back <node> "+string(m)+"; without the mesh: systemctl disable --now mesh-agent, then this again")
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, release()) }()
	clk := clock.Real()
	store, err := state.Open(ctx, state.Config{Path: path, Clock: clk, Rand: rand.Reader, Log: log})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	files, err := file.OpenRoot(root)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", root, err)
	}
	defer func() { err = errors.Join(err, files.Close()) }()
	units := systemd.New(clk)
	defer units.Close()
	engine, err := apply.New(apply.Config{Store: store, Node: subject.Node(cred.Name), Mesh: cred.Mesh, Verifier: cred.Signer, Curve: cred.Curve,
		Root: root, BundleDir: filepath.Join(dir, "bundles"), Clock: clk, Rand: rand.Reader, Log: log,
		Host: apply.Host{Files: files, Units: units, Runner: units, Machine: resource.Machine{}}})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	return engine.GiveBack(ctx, m)
}

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"

	"mesh/agent/apply"
	"mesh/agent/host/file"
	"mesh/agent/host/profile"
	"mesh/agent/host/systemd"
	"mesh/agent/plan"
	"mesh/agent/resource"
	"mesh/agent/state"
	"mesh/shared/clock"
	"mesh/shared/credential"
	"mesh/shared/declaration"
	"mesh/shared/refusal"
	"mesh/shared/subject"
)

// Preview is the plan that signed would be carried out by on this machine, or, when it is empty, the one of the
// next look at the declaration held. The store may be one that is only read. It changes nothing (APP-15).
func Preview(ctx context.Context, cred credential.File, s *state.Store, dir, root string, signed declaration.Signed) (p plan.Plan, err error) {
	if len(signed) == 0 {
		held, ok, err := s.Current(ctx)
		if err != nil {
			return p, fmt.Errorf("read the declaration held: %w", err)
		}
		if !ok {
			return p, refusal.New("a plan", "this machine holds no declaration yet", "hand one in with --file, or push from the coordinator")
		}
		signed = declaration.Signed(held.Signed)
	}
	files, err := file.OpenRoot(root)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, files.Close()) }()
	units := systemd.New(clock.Real())
	defer units.Close()
	now := profile.Detect(ctx, profile.Source{Root: root, BusNames: units.BusNames})
	engine, err := apply.New(apply.Config{Store: s, Node: subject.Node(cred.Name), Mesh: cred.Mesh, Verifier: cred.Signer, Curve: cred.Curve,
		Root: root, BundleDir: filepath.Join(dir, "bundles"), Clock: clock.Real(), Log: slog.New(slog.DiscardHandler),
		Host: apply.Host{Files: files, Units: units, Runner: units, Machine: resource.Machine{Arch: now.Arch, OS: now.OS, Engine: now.Engine != ""}}})
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	return engine.Preview(ctx, signed)
}

package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"mesh/agent"
	"mesh/agent/apply"
	"mesh/agent/host/file"
	"mesh/agent/state"
	"mesh/shared/clock"
)

// agentsStart says which agents a child plays: those of a fleet's file from From up to To.
type agentsStart struct {
	Fleet, Dir string
	// Run is where status files go, a memory file system as /run is one.
	Run      string
	From, To int
	// Par is how many carry something out at once: they share one machine, as no agents do, and all of
	// them under way together would each take as long as all.
	Par int
}

// agentsPart is the child "mesh-agents": many whole agents in one process. Their machine is a folder:
// files only, no systemd, no packet filter.
func agentsPart(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	failed := make(chan error, 1)
	err := serve(ctx, handlers{
		"start": on(func(_ context.Context, a agentsStart) (any, error) {
			f, err := loadFleet(a.Fleet)
			if err != nil {
				return nil, err
			}
			turns := make(chan struct{}, max(a.Par, 1))
			for i := a.From; i < a.To; i++ {
				cfg, err := folderAgent(f, i, a)
				if err != nil {
					return nil, err
				}
				cfg.FailPoint = turn(ctx, turns)
				wg.Go(func() { // ends with ctx
					if err := agent.Run(ctx, cfg); err != nil && ctx.Err() == nil {
						select {
						case failed <- fmt.Errorf("agent %s: %w", cfg.Credential.Name, err):
						default: // one is enough
						}
					}
				})
			}
			return nil, nil
		}),
		"check": on(func(context.Context, nothing) (any, error) {
			select {
			case err := <-failed:
				return nil, err
			default:
				return nil, nil
			}
		}),
	})
	cancel()
	wg.Wait()
	return err
}

// turn makes one of many agents wait for its turn before it accepts a declaration, and give it back when
// the outcome is known. The engine names these instants for tests that kill it there.
func turn(ctx context.Context, turns chan struct{}) func(at string) {
	has := false // a pass of this agent has a turn; its passes run one at a time
	return func(at string) {
		switch {
		case at == "before accept" && !has:
			select {
			case turns <- struct{}{}:
				has = true
			case <-ctx.Done():
			}
		case at == "after outcome" && has:
			has = false
			<-turns
		}
	}
}

// folderAgent is agent i with a folder for a machine.
func folderAgent(f *fleet, i int, a agentsStart) (agent.Config, error) {
	name := fmt.Sprintf("%05d", i)
	root, run, dir := filepath.Join(a.Dir, name, "root"), filepath.Join(a.Run, name), filepath.Join(a.Dir, name, "state")
	if err := makeRoot(root); err != nil {
		return agent.Config{}, err
	}
	for _, d := range []string{run, dir} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return agent.Config{}, err
		}
	}
	return agent.Config{Credential: f.file(i), Dir: dir, Run: run, Root: root, Clock: clock.Real(), Rand: rand.Reader,
		Log:     slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Machine: folderMachine(root)}, nil
}

// makeRoot makes a folder that is enough of a machine for modules of files.
func makeRoot(root string) error {
	if err := os.MkdirAll(filepath.Join(root, "etc"), 0o755); err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(root, "etc/passwd"), []byte("root:x:0:0:root:/root:/bin/sh\n"), 0o644),
		os.WriteFile(filepath.Join(root, "etc/group"), []byte("root:x:0:\n"), 0o644))
}

func folderMachine(root string) func(context.Context, *state.Store, func(context.Context) error) (agent.Machine, error) {
	return func(context.Context, *state.Store, func(context.Context) error) (agent.Machine, error) {
		files, err := file.OpenRoot(root)
		if err != nil {
			return agent.Machine{}, err
		}
		return agent.Machine{Host: apply.Host{Files: files}, Close: files.Close}, nil
	}
}

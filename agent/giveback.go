package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"mesh/agent/host/file"
	"mesh/agent/host/systemd"
	"mesh/agent/state"
	"mesh/shared/clock"
	"mesh/shared/refusal"
)

// GiveBack puts back the front ends of the packet filter that a converge retired, without the mesh: for a
// machine that leaves, or has lost it (NET-9). It returns their names. The daemon must not run.
func GiveBack(ctx context.Context, dir, root string, random io.Reader, log *slog.Logger) (names []string, err error) {
	path := filepath.Join(dir, StateFile)
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return nil, refusal.New("giving the packet filter back", "there is no store of an agent in "+dir, "nothing: mesh retired nothing here, or what it wrote down is lost")
	}
	release, err := lock(dir)
	if r := refusal.Of(err); r != nil {
		return nil, refusal.New("giving the packet filter back", "the agent runs, and would retire the front ends again",
			"mesh-coordinator node unconverge <node>; without the mesh: systemctl disable --now mesh-agent, then this again")
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, release()) }()
	clk := clock.Real()
	store, err := state.Open(ctx, state.Config{Path: path, Clock: clk, Rand: random, Log: log})
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
	c := converger(store, units, files, nil, log)
	c.Use(dir, nil)
	return c.GiveBack(ctx)
}

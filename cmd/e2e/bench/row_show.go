package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"mesh/agent"
)

// showRounds is how often each command is started: a start is short, and noisy.
const showRounds = 60

// showRows is row 6.
func showRows(b *bench, ctx context.Context) ([]score, error) {
	dir, err := b.folder("show")
	if err != nil {
		return nil, err
	}
	b.say("row 6: building mesh-agent")
	if err := b.build(ctx, dir, "./cmd/mesh-agent", "./cmd/e2e/bench/floorshow"); err != nil {
		return nil, err
	}
	floor := []string{filepath.Join(dir, "floorshow"), filepath.Join(dir, "floor.db")}
	if out, err := exec.CommandContext(ctx, floor[0], "-make", floor[1]).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("floorshow: %w\n%s", err, out)
	}
	daemon, err := start(ctx, "mesh-pass")
	if err != nil {
		return nil, err
	}
	defer func() { daemon.leave() }()
	if err := daemon.ask("start", dir, nil); err != nil {
		return nil, err
	}
	if err := daemon.ask("status", dir, nil); err != nil {
		return nil, err
	}
	mesh := []string{filepath.Join(dir, "mesh-agent"), "--state-dir", filepath.Join(dir, "state"), "--run-dir", dir, "show"}
	up, err := b.startsBeside(ctx, "mesh-agent show", floor, mesh)
	if err != nil {
		return nil, err
	}
	daemon.leave()
	down, err := b.startsBeside(ctx, "mesh-agent show, the daemon is down", floor, mesh)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(filepath.Join(dir, agent.StatusFile)); err != nil {
		return nil, err
	}
	fresh, err := b.startsBeside(ctx, "the same, and it was not up since the boot", floor, mesh)
	if err != nil {
		return nil, err
	}
	fresh.Aim = "<= 1.3x"
	return []score{
		up.within(1.5, "<= 1.3x").note("whole processes; the floor is a static Go program that reads 200 rows from SQLite and prints them"),
		down.within(1.5, "<= 1.3x").note("with the daemon down the command reads what that said last; where it said nothing since the boot it opens the store"),
		fresh,
	}, nil
}

// startsBeside starts two commands in turn.
func (b *bench) startsBeside(ctx context.Context, work string, floor, mesh []string) (score, error) {
	f, m, err := inTurn(ctx, showRounds, func(int) (sample, error) { return process(ctx, floor) }, func(int) (sample, error) { return process(ctx, mesh) })
	if err != nil {
		return score{}, err
	}
	return compare(6, work, f, m), nil
}

// process is the life of a command: its time, and its processor time as the kernel counted it. Exit 1 is
// a verdict about the machine, and no failure.
func process(ctx context.Context, argv []string) (sample, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdout = io.Discard
	t := time.Now()
	err := cmd.Run()
	took := time.Since(t)
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		return sample{}, fmt.Errorf("%v: %w", argv, err)
	}
	u, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		return sample{}, errors.New("this system does not count a process's time")
	}
	return sample{wall: took, cpu: time.Duration(u.Utime.Nano() + u.Stime.Nano())}, nil
}

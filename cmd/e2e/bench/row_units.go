package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"mesh/testbus/hosts"
)

const (
	changedUnits  = 20
	firstFiles    = 100
	firstServices = 20
)

// unitsRows are row 11, K units changed in one push, and row 17, a first apply, in a booted host: both sides talk to
// the same systemd there.
func unitsRows(b *bench, ctx context.Context) (_ []score, err error) {
	dir, err := b.folder("units")
	if err != nil {
		return nil, err
	}
	if err := b.build(ctx, dir, "./cmd/e2e/bench"); err != nil {
		return nil, err
	}
	state := os.Getenv(hosts.StateEnv)
	if state == "" {
		state = "/var/tmp" // a host's disk must not lie on an overlay
	}
	bedDir, err := os.MkdirTemp(state, "mesh-bench-bed-")
	if err != nil {
		return nil, err
	}
	bed, err := hosts.Start(ctx, bedDir, 1, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("row 11 boots a host: %w", err), os.RemoveAll(bedDir))
	}
	defer func() {
		err = errors.Join(err, bed.Down(context.WithoutCancel(ctx)), os.RemoveAll(bedDir))
	}()
	seen, err := unitsInside(ctx, bed.Host(1), filepath.Join(dir, "bench"), unitsRun{Dir: "/root/bench-units", Rounds: min(b.rounds, 3), Units: changedUnits, Files: firstFiles, Services: firstServices})
	if err != nil {
		return nil, err
	}
	line := func(row int, what string, floor, mesh []float64) score { return figures(row, what, "ms", floor, mesh) }
	changed := line(11, fmt.Sprintf("%d units changed in one push", changedUnits), seen.FloorChange, seen.MeshChange).within(1.5, "<= 1.15x")
	changed = changed.note("daemon-reloads a push: %s; of one that changes only files: %s", each(seen.Reloads, 1), each(seen.ReloadsOfFiles, 0))
	changed = changed.note("the floor writes the files, reloads once and starts all at once over the same D-Bus, and syncs nothing; the 1.5 s that each service has to stay up come on top of mesh's")
	if each(seen.Reloads, 1) != "1" || each(seen.ReloadsOfFiles, 0) != "0" {
		*changed.Met = false
	}
	return []score{
		changed,
		line(11, fmt.Sprintf("%d services whose files changed in one push, and no unit", changedUnits), seen.FloorRestart, seen.MeshRestart).note("the floor only starts them anew, side by side"),
		line(17, fmt.Sprintf("first apply of %d files and %d services", firstFiles, firstServices), seen.FloorFirst, seen.MeshFirst).within(1.3, "<= 1.3x").
			note("the floor is a shell script with install and one systemctl enable --now; mesh syncs each file, and the script none"),
	}, nil
}

// each is the one number that all are, or all of them.
func each(all []int64, want int64) string {
	if !slices.ContainsFunc(all, func(n int64) bool { return n != want }) {
		return fmt.Sprint(want)
	}
	return fmt.Sprint(all)
}

// unitsInside has this program run in the host.
func unitsInside(ctx context.Context, h *hosts.Host, program string, r unitsRun) (*unitsSeen, error) {
	if err := h.CopyErr(ctx, program, "/root/bench", 0o755); err != nil {
		return nil, err
	}
	arg, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	ask, err := json.Marshal(question{"run", arg})
	if err != nil {
		return nil, err
	}
	out, err := h.Exec(ctx, hosts.Command{Args: []string{"/root/bench", "units-inside"}, Stdin: strings.NewReader(string(ask) + "\n")})
	if err = errors.Join(err, out.Failed()); err != nil {
		return nil, err
	}
	var answer reply
	if err := json.Unmarshal([]byte(out.Stdout), &answer); err != nil {
		return nil, fmt.Errorf("the host's answer: %w", err)
	}
	if answer.Err != "" {
		return nil, errors.New(answer.Err)
	}
	var seen unitsSeen
	return &seen, json.Unmarshal(answer.Answer, &seen)
}

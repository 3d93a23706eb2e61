package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// floorBundle does with an archive that is here already what has to be done: read it against its digest,
// unpack it, bring it to the disk. The distribution's own programs do it, one after the other.
func floorBundle(ctx context.Context, archive, dir string) (sample, error) {
	out := filepath.Join(dir, "out")
	if err := os.Mkdir(out, 0o755); err != nil {
		return sample{}, err
	}
	var s sample
	began := time.Now()
	for _, line := range [][]string{
		{"sh", "-c", `cat "$0" | sha256sum`, archive},
		{"tar", "-xzf", archive, "-C", out},
		{"sync", "-f", out},
	} {
		cmd := exec.CommandContext(ctx, line[0], line[1:]...)
		if said, err := cmd.CombinedOutput(); err != nil {
			return s, fmt.Errorf("%v: %w: %s", line, err, said)
		}
		s.cpu += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	s.wall = time.Since(began)
	return s, os.RemoveAll(out)
}

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// build builds programs of this module as they are shipped, static and stripped, into dir.
func (b *bench) build(ctx context.Context, dir string, programs ...string) error {
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return fmt.Errorf("find the module (run this inside the repository): %w", err)
	}
	args := append([]string{"build", "-trimpath", "-ldflags", "-s -w", "-o", dir + string(filepath.Separator)}, programs...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = strings.TrimSpace(string(root)), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", strings.Join(programs, ", "), err, out)
	}
	return nil
}

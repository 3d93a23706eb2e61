package hosts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cgroupMount is the folder in the state folder where cgroup2 is mounted on a machine without one.
const cgroupMount = "cgroup"

// pollEvery is how often a state of a host is looked at while waiting for it.
const pollEvery = 20 * time.Millisecond

// killTimeout bounds the wait for processes that were sent SIGKILL.
const killTimeout = 30 * time.Second

// cgroupRoot is where the machine has its cgroup2 hierarchy mounted, if it has.
func cgroupRoot() (root string, mounted bool, err error) {
	raw, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return "", false, err
	}
	for line := range strings.Lines(string(raw)) {
		f := strings.Fields(line)
		if len(f) > 3 && f[2] == "cgroup2" && unix.Access(f[1], unix.W_OK) == nil {
			return f[1], true, nil
		}
	}
	return "", false, nil
}

// mountCgroup mounts the hierarchy for one bed.
func mountCgroup(point string) error {
	if err := os.Mkdir(point, 0o700); err != nil {
		return err
	}
	if err := unix.Mount("cgroup2", point, "cgroup2", 0, ""); err != nil {
		return fmt.Errorf("mount cgroup2 on %s: %w", point, err)
	}
	return nil
}

// makeCgroup makes the bed's directory and hands down the controllers that the machine has to give; a
// hybrid machine keeps them in v1 and gives none.
func makeCgroup(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return fmt.Errorf("make cgroup: %w", err)
	}
	given, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, c := range strings.Fields(string(given)) {
		err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0o644)
		if err != nil {
			return fmt.Errorf("hand cgroup controller %s down: %w", c, err)
		}
	}
	return nil
}

// populated reports whether a process lives at or below the cgroup.
func populated(dir string) (bool, error) {
	raw, err := os.ReadFile(filepath.Join(dir, "cgroup.events"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return false, nil
	}
	return bytes.Contains(raw, []byte("populated 1")), err
}

// waitEmpty waits until no process lives at or below the cgroup.
func waitEmpty(ctx context.Context, dir string) error {
	return poll(ctx, pollEvery, func() (bool, error) {
		full, err := populated(dir)
		return !full, err
	})
}

// killCgroup ends every process at or below the cgroup at once and removes the whole tree.
func killCgroup(ctx context.Context, dir string) error {
	err := os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("kill cgroup: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	if err := waitEmpty(ctx, dir); err != nil {
		return fmt.Errorf("wait for the processes of %s to end: %w", dir, err)
	}
	return removeCgroup(ctx, dir)
}

// removeCgroup removes an empty tree. A directory may be busy for a moment after its last process.
func removeCgroup(ctx context.Context, dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeCgroup(ctx, filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return poll(ctx, pollEvery, func() (bool, error) {
		err := unix.Rmdir(dir)
		switch {
		case err == nil, errors.Is(err, unix.ENOENT):
			return true, nil
		case errors.Is(err, unix.EBUSY):
			return false, nil
		}
		return false, fmt.Errorf("remove cgroup %s: %w", dir, err)
	})
}

// killAll ends every process of the bed.
func (b *Bed) killAll(ctx context.Context) error {
	if b.state.Cgroup == "" {
		return nil
	}
	return killCgroup(ctx, b.state.Cgroup)
}

// poll asks, with a pause of every, until the answer is yes, an error, or the end of ctx.
func poll(ctx context.Context, every time.Duration, ask func() (bool, error)) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if ok, err := ask(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

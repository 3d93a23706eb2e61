package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"mesh/shared/refusal"
)

// lockFile keeps a second agent off a machine. Two would undo each other's work.
const lockFile = "lock"

// lock takes the state directory for this process, until release or its death.
func lock(dir string) (release func() error, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = refusal.New("a second agent on this machine", "one works with "+dir+" already", `see "systemctl status mesh-agent" and "mesh-agent show"`)
		} else {
			err = fmt.Errorf("lock %s: %w", dir, err)
		}
		return nil, errors.Join(err, f.Close())
	}
	return f.Close, nil
}

package broker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// roomIn is how much the streams in folder may hold. The server's own bound is three quarters of what is
// free when it starts, and forgets what the streams hold already: after a restart on a disk that is half
// full of them it would refuse everything.
func roomIn(folder string) (int64, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return 0, fmt.Errorf("the folder of the streams (JetStream): %w", err)
	}
	var st syscall.Statfs_t
	if err := syscall.Statfs(folder, &st); err != nil {
		return 0, fmt.Errorf("the disk of %s: %w", folder, err)
	}
	var held int64
	err := filepath.WalkDir(folder, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return ignoreGone(err)
		}
		in, err := d.Info()
		if err != nil {
			return ignoreGone(err)
		}
		held += in.Size()
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("what the streams hold: %w", err)
	}
	return room(int64(st.Bavail)*int64(st.Bsize), held), nil
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// room is three quarters of what would be free without the streams, and never less than they hold and a
// little: what is kept stays usable on a disk that others filled.
func room(free, held int64) int64 {
	return max((free+held)/4*3, held+min(free, 16<<20))
}

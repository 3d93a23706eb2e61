package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// The floor of a pass that changes nothing: each file is looked at by stat alone, or read and hashed.

type floorFiles struct {
	paths []string
	want  [][32]byte
	stats []unix.Stat_t
	buf   []byte
}

// floorPassPart is the child "floor-pass".
func floorPassPart(ctx context.Context) error {
	f := &floorFiles{buf: make([]byte, passSize+1)}
	return serve(ctx, handlers{
		"start": on(func(_ context.Context, dir string) (any, error) { return nil, f.start(dir) }),
		"quick": on(func(_ context.Context, n int) (any, error) { return many(n, f.stat) }),
		"whole": on(func(_ context.Context, n int) (any, error) { return many(n, f.hash) }),
	})
}

func (f *floorFiles) start(dir string) error {
	dir = filepath.Join(dir, "floor-files")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for i := range passFiles {
		path, text := filepath.Join(dir, fmt.Sprintf("f%04d", i)), []byte(passContent(i))
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		f.paths, f.want, f.stats = append(f.paths, path), append(f.want, sha256.Sum256(text)), append(f.stats, st)
	}
	return nil
}

func (f *floorFiles) stat() error {
	var st unix.Stat_t
	for i, p := range f.paths {
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		if st.Ctim != f.stats[i].Ctim || st.Size != f.stats[i].Size || st.Ino != f.stats[i].Ino {
			return fmt.Errorf("%s changed", p)
		}
	}
	return nil
}

func (f *floorFiles) hash() error {
	var st unix.Stat_t
	for i, p := range f.paths {
		fd, err := unix.Open(p, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		n, err := unix.Read(fd, f.buf)
		if err != nil {
			return err
		}
		if err := unix.Close(fd); err != nil {
			return err
		}
		if sha256.Sum256(f.buf[:n]) != f.want[i] {
			return fmt.Errorf("%s changed", p)
		}
	}
	return nil
}

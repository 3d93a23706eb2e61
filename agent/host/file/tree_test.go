package file_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"mesh/agent/host/file"
)

// tree makes a folder with some of everything below dir, and a place outside that it points to.
func tree(t *testing.T, dir string) (outside string) {
	t.Helper()
	outside = filepath.Join(dir, "outside")
	for p, text := range map[string]string{"outside/precious": "x", "srv/notes/data.db": "12345", "srv/notes/a/b/c/deep": "y", "srv/notes/.hidden": "z"} {
		p = filepath.Join(dir, p)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 700 {
		if err := os.WriteFile(filepath.Join(dir, "srv/notes/a", fmt.Sprint("many", i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink(outside, filepath.Join(dir, "srv/notes/link")), os.Symlink(filepath.Join(outside, "precious"), filepath.Join(dir, "srv/notes/a/link")),
		unix.Mkfifo(filepath.Join(dir, "srv/notes/pipe"), 0o600), os.Chmod(filepath.Join(dir, "srv/notes/a/b"), 0o500)); err != nil {
		t.Fatal(err)
	}
	return outside
}

func there(t *testing.T, p string) bool {
	t.Helper()
	_, err := os.Lstat(p)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

// TestRemoveTree: all of it goes and nothing else (APP-11).
func TestRemoveTree(t *testing.T) {
	dir := t.TempDir()
	outside := tree(t, dir)
	r, err := file.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	size, err := r.TreeSize(t.Context(), "/srv/notes")
	if err != nil || size.Files != 706 || size.Bytes < 5 {
		t.Errorf("%+v, %v", size, err)
	}
	if err := r.RemoveTree(t.Context(), "/srv/notes"); err != nil {
		t.Fatal(err)
	}
	if there(t, filepath.Join(dir, "srv/notes")) || there(t, filepath.Join(dir, "srv/.mesh-deleted-notes")) {
		t.Error("some of it is there")
	}
	if !there(t, filepath.Join(outside, "precious")) {
		t.Error("what a symlink points to is gone")
	}
	if err := r.RemoveTree(t.Context(), "/srv/notes"); err != nil {
		t.Errorf("twice: %v", err)
	}
	if err := r.RemoveTree(t.Context(), "/nowhere/at/all"); err != nil {
		t.Errorf("nothing there: %v", err)
	}
}

// over is a context that has ended once is says so.
type over struct {
	context.Context
	is func() bool
}

func (o over) Err() error {
	if o.is() {
		return context.Canceled
	}
	return nil
}

// TestRemoveTreeGoesOn: what a kill left half done is finished, and is in its place no more.
func TestRemoveTreeGoesOn(t *testing.T) {
	dir := t.TempDir()
	tree(t, dir)
	r, err := file.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx := over{t.Context(), func() bool { return there(t, filepath.Join(dir, "srv/.mesh-deleted-notes")) }}
	if err := r.RemoveTree(ctx, "/srv/notes"); err == nil || there(t, filepath.Join(dir, "srv/notes")) || !there(t, filepath.Join(dir, "srv/.mesh-deleted-notes")) {
		t.Fatalf("interrupted: %v", err)
	}
	if err := r.RemoveTree(t.Context(), "/srv/notes"); err != nil || there(t, filepath.Join(dir, "srv/.mesh-deleted-notes")) {
		t.Errorf("again: %v", err)
	}
}

// TestRemoveTreeRefuses: each before anything goes.
func TestRemoveTreeRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		make func(t *testing.T, dir, outside string) error
		want error
	}{
		"a symlink in its place": {func(t *testing.T, dir, outside string) error {
			return errors.Join(os.Rename(filepath.Join(dir, "srv/notes"), filepath.Join(dir, "srv/moved")), os.Symlink(filepath.Join(dir, "srv/moved"), filepath.Join(dir, "srv/notes")))
		}, file.ErrOccupied},
		"a file in its place": {func(t *testing.T, dir, outside string) error {
			return errors.Join(os.Rename(filepath.Join(dir, "srv/notes"), filepath.Join(dir, "srv/moved")), os.WriteFile(filepath.Join(dir, "srv/notes"), nil, 0o600))
		}, file.ErrOccupied},
		"a mount below it": {func(t *testing.T, dir, outside string) error {
			at := filepath.Join(dir, "srv/notes/a/b")
			t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
			return unix.Mount(outside, at, "", unix.MS_BIND, "")
		}, file.ErrMountPoint},
		"a mount over a file in it": {func(t *testing.T, dir, outside string) error {
			at := filepath.Join(dir, "srv/notes/a/b/c/deep")
			t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
			return unix.Mount(filepath.Join(outside, "precious"), at, "", unix.MS_BIND, "")
		}, file.ErrMountPoint},
		"a mount in its place": {func(t *testing.T, dir, outside string) error {
			at := filepath.Join(dir, "srv/notes")
			t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
			return unix.Mount(outside, at, "", unix.MS_BIND, "")
		}, file.ErrMountPoint},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			outside := tree(t, dir)
			if err := tt.make(t, dir, outside); err != nil {
				t.Fatal(err)
			}
			r, err := file.OpenRoot(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			if err := r.RemoveTree(t.Context(), "/srv/notes"); !errors.Is(err, tt.want) {
				t.Errorf("%v, not %v", err, tt.want)
			}
			if !there(t, filepath.Join(outside, "precious")) || there(t, filepath.Join(dir, "srv/.mesh-deleted-notes")) {
				t.Error("something went")
			}
		})
	}
}

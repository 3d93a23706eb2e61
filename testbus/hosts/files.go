package hosts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// CopyErr puts a file of this machine into the host, which may be up or down. It goes to a temporary
// name, is synced and renamed into place, so that a running program may be replaced. Missing folders
// are made with mode 0755.
func (h *Host) CopyErr(ctx context.Context, from, to string, mode fs.FileMode) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	return h.put(src, to, mode)
}

// WriteFileErr is CopyErr with the content at hand.
func (h *Host) WriteFileErr(ctx context.Context, to string, content io.Reader, mode fs.FileMode) error {
	return h.put(content, to, mode)
}

// CopyDirErr copies the files, folders and symlinks below from into the folder to, modes kept, owner root.
func (h *Host) CopyDirErr(ctx context.Context, from, to string) error {
	return filepath.WalkDir(from, func(p string, d fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, p)
		if err != nil {
			return err
		}
		dest := path.Join(to, filepath.ToSlash(rel))
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch {
		case d.IsDir():
			return h.mkdir(dest, info.Mode().Perm())
		case d.Type() == fs.ModeSymlink:
			return h.symlink(p, dest)
		case d.Type().IsRegular():
			return h.CopyErr(ctx, p, dest, info.Mode().Perm())
		}
		return fmt.Errorf("copy %s: neither file, folder nor symlink", p)
	})
}

// ReadFileErr reads a file of the host, which may be up or down.
func (h *Host) ReadFileErr(name string) ([]byte, error) {
	root, err := h.openRoot()
	if err != nil {
		return nil, err
	}
	defer unix.Close(root)
	fd, err := openIn(root, name, unix.O_RDONLY)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", h.Name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	return io.ReadAll(f)
}

func (h *Host) put(src io.Reader, to string, mode fs.FileMode) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: write %s: %w", h.Name, to, err)
		}
	}()
	dir, base, err := h.openParent(to)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	temp := "." + base + ".new"
	fd, err := unix.Openat(dir, temp, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), temp)
	_, copyErr := io.Copy(f, src)
	if err := errors.Join(copyErr, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return errors.Join(err, unix.Unlinkat(dir, temp, 0))
	}
	if err := unix.Renameat(dir, temp, dir, base); err != nil {
		return err
	}
	return unix.Fsync(dir)
}

func (h *Host) symlink(from, to string) error {
	target, err := os.Readlink(from)
	if err != nil {
		return err
	}
	dir, base, err := h.openParent(to)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if err := unix.Unlinkat(dir, base, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return unix.Symlinkat(target, dir, base)
}

// openParent opens the folder that holds name, which it makes if need be.
func (h *Host) openParent(name string) (dir int, base string, err error) {
	name = path.Clean("/" + name)
	root, err := h.openRoot()
	if err != nil {
		return 0, "", err
	}
	defer unix.Close(root)
	dir, err = mkdirAll(root, path.Dir(name), 0o755)
	return dir, path.Base(name), err
}

func (h *Host) mkdir(name string, mode fs.FileMode) error {
	root, err := h.openRoot()
	if err != nil {
		return err
	}
	defer unix.Close(root)
	fd, err := mkdirAll(root, path.Clean("/"+name), mode)
	if err != nil {
		return fmt.Errorf("%s: make %s: %w", h.Name, name, err)
	}
	return unix.Close(fd)
}

// mkdirAll opens the folder name below root and makes what is missing of it.
func mkdirAll(root int, name string, mode fs.FileMode) (int, error) {
	fd, err := openIn(root, name, unix.O_RDONLY|unix.O_DIRECTORY)
	if !errors.Is(err, unix.ENOENT) || name == "/" {
		return fd, err
	}
	parent, err := mkdirAll(root, path.Dir(name), 0o755)
	if err != nil {
		return -1, err
	}
	defer unix.Close(parent)
	if err := unix.Mkdirat(parent, path.Base(name), uint32(mode)); err != nil && !errors.Is(err, unix.EEXIST) {
		return -1, err
	}
	return openIn(root, name, unix.O_RDONLY|unix.O_DIRECTORY)
}

// openRoot opens the host's root: as its own processes see it while it is up, with /run and /tmp, and
// else the overlay.
func (h *Host) openRoot() (int, error) {
	root := h.root()
	if pid, err := h.leader(); err == nil {
		root = fmt.Sprintf("/proc/%d/root", pid)
	}
	fd, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open the root of %s: %w", h.Name, err)
	}
	return fd, nil
}

// openIn opens a path of the host. The kernel resolves it with root as "/", so an absolute symlink of
// the host leads to the host's file and never to this machine's.
func openIn(root int, name string, flags int) (int, error) {
	fd, err := unix.Openat2(root, name, &unix.OpenHow{
		Flags:   uint64(flags | unix.O_CLOEXEC),
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return fd, nil
}

package file

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// trashPrefix begins the name that a folder has while what is in it goes: a kill in between leaves no half of it
// where it was.
const trashPrefix = ".mesh-deleted-"

// RemoveTree removes the folder at path with all that is in it, and what an earlier try left; a folder that is not
// there is no error. It goes from its place in one step. Nothing is followed: a symlink in it goes and what it
// points to stays; one in its place, or a mount at or below it (ErrMountPoint), is refused before anything goes.
func (r *Root) RemoveTree(ctx context.Context, path string) error {
	const op = "delete folder"
	dir, name, err := r.parent(op, path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer closeFD(dir)
	trash := trashPrefix + name
	var st unix.Stat_t
	switch err := statAt(dir, name, &st); {
	case errors.Is(err, unix.ENOENT):
	case err != nil:
		return fail(op, path, err)
	case kindOf(st.Mode) != Dir:
		return occupied(op, path, kindOf(st.Mode))
	default:
		if err := errors.Join(emptyOfMounts(dir, name), sameMount(ctx, dir, name)); err != nil {
			return fail(op, path, err)
		}
		if err := removeTree(ctx, dir, trash); err != nil { // of an earlier one of that name
			return fail(op, path, err)
		}
		if err := rename(dir, name, trash, false); err != nil {
			return fail(op, path, err)
		}
		if err := unix.Fsync(dir); err != nil {
			return fail("sync the folder of", path, err)
		}
	}
	if err := removeTree(ctx, dir, trash); err != nil {
		return fail(op, path, err)
	}
	return nil
}

// emptyOfMounts reads the process's own list of mounts (proc_pid_mountinfo(5)).
func emptyOfMounts(dir int, name string) error {
	fd, err := openAt(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	real, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return err
	}
	all, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for line := range strings.Lines(string(all)) {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		at := unescape.Replace(f[4])
		if at == real || strings.HasPrefix(at, real+"/") {
			return fmt.Errorf("%s: %w", at, ErrMountPoint)
		}
	}
	return nil
}

// sameMount looks at every name itself: the list of mounts is read in pieces, and one may be missing from it while
// others on the machine come and go.
func sameMount(ctx context.Context, dir int, name string) error {
	return eachIn(ctx, dir, name, func(fd int, below string, st *unix.Stat_t) error {
		if kindOf(st.Mode) == Dir {
			return sameMount(ctx, fd, below)
		}
		var above, here unix.Statx_t
		err := errors.Join(unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &above), unix.Statx(fd, below, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_MNT_ID, &here))
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err == nil && here.Mask&unix.STATX_MNT_ID != 0 && above.Mnt_id != here.Mnt_id {
			err = fmt.Errorf("%s: %w", below, ErrMountPoint)
		}
		return err
	})
}

// removeTree removes what is called name in the folder dir, whatever it is; nothing there is no error.
func removeTree(ctx context.Context, dir int, name string) error {
	err := ignoringEINTR(func() error { return unix.Unlinkat(dir, name, 0) })
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) { // POSIX says the latter of a folder
		return err
	}
	for range 3 { // what is read while it changes may skip a name
		if err = eachIn(ctx, dir, name, func(fd int, below string, _ *unix.Stat_t) error { return removeTree(ctx, fd, below) }); err != nil {
			return err
		}
		if err = ignoringEINTR(func() error { return unix.Unlinkat(dir, name, unix.AT_REMOVEDIR) }); !errors.Is(err, unix.ENOTEMPTY) {
			return err
		}
	}
	return err
}

// eachIn calls do with each name in the folder name of dir, which is not followed, nor crossed into another mount.
func eachIn(ctx context.Context, dir int, name string, do func(fd int, below string, st *unix.Stat_t) error) error {
	fd, err := openAt(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	folder := os.NewFile(uintptr(fd), name)
	defer folder.Close() // only read
	var above, here unix.Statx_t
	if err := errors.Join(unix.Statx(dir, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &above), unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &here)); err != nil {
		return err
	}
	other := above.Mnt_id != here.Mnt_id
	if here.Mask&unix.STATX_MNT_ID == 0 { // before Linux 5.8
		other = above.Dev_major != here.Dev_major || above.Dev_minor != here.Dev_minor
	}
	if other {
		return fmt.Errorf("%s: %w", name, ErrMountPoint)
	}
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		names, err := folder.Readdirnames(256)
		for _, below := range names {
			var st unix.Stat_t
			if err := statAt(fd, below, &st); errors.Is(err, unix.ENOENT) {
				continue
			} else if err != nil {
				return err
			}
			if err := do(fd, below, &st); err != nil {
				return err
			}
		}
		if len(names) == 0 {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

// Size is what is in a folder.
type Size struct {
	// Bytes are those that it takes on the disk.
	Bytes int64
	Files int
}

// TreeSize says how much is in the folder at path: what RemoveTree would remove. A folder that is not there has
// nothing in it.
func (r *Root) TreeSize(ctx context.Context, path string) (s Size, err error) {
	dir, name, err := r.parent("measure", path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	defer closeFD(dir)
	var measure func(fd int, below string, st *unix.Stat_t) error
	measure = func(fd int, below string, st *unix.Stat_t) error {
		s.Bytes += st.Blocks * 512
		if kindOf(st.Mode) != Dir {
			s.Files++
			return nil
		}
		return eachIn(ctx, fd, below, measure)
	}
	err = eachIn(ctx, dir, name, measure)
	if errors.Is(err, unix.ENOENT) {
		return s, nil
	}
	if err != nil {
		return s, fail("measure", filepath.Clean(path), err)
	}
	return s, nil
}

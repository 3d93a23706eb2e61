package file

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// DirSpec is a folder as it shall be; what is in it is not its business.
type DirSpec struct {
	Path     string
	Mode     fs.FileMode
	UID, GID int
	// Parents makes missing folders above it too, owned by root, 0755.
	Parents bool
}

// MakeDir makes s so and reports whether anything had to change. What stands there and is no folder is
// refused.
func (r *Root) MakeDir(s DirSpec) (changed bool, err error) {
	dir, name, err := r.parent("make folder", s.Path)
	if errors.Is(err, unix.ENOENT) && s.Parents {
		above := DirSpec{Path: filepath.Dir(filepath.Clean(s.Path)), Mode: 0o755, Parents: true}
		if r.uid != 0 { // a root in a test of an ordinary user
			above.UID, above.GID = int(r.uid), os.Getegid()
		}
		if _, err := r.MakeDir(above); err != nil {
			return false, err
		}
		dir, name, err = r.parent("make folder", s.Path)
	}
	if err != nil {
		return false, err
	}
	defer closeFD(dir)
	made, err := r.makeWhole(dir, name, s)
	if err != nil {
		return false, fail("make folder", s.Path, err)
	}
	fd, err := r.step(dir, name)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		var st unix.Stat_t
		if err := statAt(dir, name, &st); err != nil {
			return made, fail("make folder", s.Path, err)
		}
		return false, occupied("make folder", s.Path, kindOf(st.Mode))
	}
	if err != nil {
		return made, fail("make folder", s.Path, err)
	}
	defer closeFD(fd)
	set, err := own(fd, s)
	if err != nil {
		return made, fail("make folder", s.Path, err)
	}
	if made {
		if err := unix.Fsync(dir); err != nil {
			return true, fail("sync the folder of", s.Path, err)
		}
	}
	return made || set, nil
}

// makeWhole makes the folder under another name, and gives it its own once owner and mode are right: one that a
// kill left without them would be taken for somebody's. made is false when something is there.
func (r *Root) makeWhole(dir int, name string, s DirSpec) (made bool, err error) {
	var st unix.Stat_t
	if err := statAt(dir, name, &st); !errors.Is(err, unix.ENOENT) {
		return false, err
	}
	tmp := tempName()
	if err := unix.Mkdirat(dir, tmp, 0o700); err != nil {
		return false, err
	}
	fd, err := r.step(dir, tmp)
	if err == nil {
		_, err = own(fd, s)
		closeFD(fd)
	}
	if err == nil {
		err = unix.Renameat2(dir, tmp, dir, name, unix.RENAME_NOREPLACE)
	}
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) { // it replaces nothing but an empty folder either
		err = unix.Renameat(dir, tmp, dir, name)
	}
	if err == nil {
		return true, nil
	}
	if e := unix.Unlinkat(dir, tmp, unix.AT_REMOVEDIR); e != nil {
		return false, errors.Join(err, e)
	}
	if errors.Is(err, unix.EEXIST) { // somebody made one meanwhile
		err = nil
	}
	return false, err
}

// own gives the open folder its owner and mode, and reports whether it had another.
func own(fd int, s DirSpec) (changed bool, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return false, err
	}
	if st.Uid == uint32(s.UID) && st.Gid == uint32(s.GID) && fileMode(st.Mode) == s.Mode {
		return false, nil
	}
	if err := unix.Fchown(fd, s.UID, s.GID); err != nil {
		return false, err
	}
	if err := unix.Fchmod(fd, unixMode(s.Mode)); err != nil {
		return true, err
	}
	return true, unix.Fsync(fd)
}

// RemoveDir removes the folder at path if it is empty and reports whether one was there. ErrNotEmpty:
// somebody has put something into it.
func (r *Root) RemoveDir(path string) (removed bool, err error) {
	dir, name, err := r.parent("remove folder", path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer closeFD(dir)
	switch err := unix.Unlinkat(dir, name, unix.AT_REMOVEDIR); {
	case errors.Is(err, unix.ENOENT):
		return false, nil
	case errors.Is(err, unix.ENOTDIR):
		var st unix.Stat_t
		if err := statAt(dir, name, &st); err != nil {
			return false, fail("remove folder", path, err)
		}
		return false, occupied("remove folder", path, kindOf(st.Mode))
	case err != nil:
		return false, fail("remove folder", path, err)
	}
	if err := unix.Fsync(dir); err != nil {
		return true, fail("sync the folder of", path, err)
	}
	return true, nil
}

// SyncFS makes everything written to the file system of the folder at path last. For a tree of files
// it costs a tenth of one sync each (500 files: 0.28 s against 2.5 s).
func (r *Root) SyncFS(path string) error {
	fd, err := r.openDir("sync the file system of", path)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	if err := unix.Syncfs(fd); err != nil {
		return fail("sync the file system of", path, err)
	}
	return nil
}

// SweepTemp removes the temporary files and folders that a kill left in the folder at path, and says how many. Call
// it before the first Write into that folder, never beside one. A missing folder has none.
func (r *Root) SweepTemp(path string) (removed int, err error) {
	fd, err := r.openDir("sweep", path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	folder := os.NewFile(uintptr(fd), path)
	defer folder.Close() // only read
	for {
		names, err := folder.Readdirnames(256)
		for _, name := range names {
			if !isTemp(name) {
				continue
			}
			err := discard(fd, name)
			if errors.Is(err, unix.EISDIR) {
				if err = unix.Unlinkat(fd, name, unix.AT_REMOVEDIR); errors.Is(err, unix.ENOTEMPTY) {
					continue // no folder of MakeDir's
				}
			}
			if err != nil {
				return removed, fail("sweep", path, err)
			}
			removed++
		}
		if len(names) == 0 {
			if err != nil && !errors.Is(err, io.EOF) {
				return removed, fail("sweep", path, err)
			}
			return removed, nil
		}
	}
}

func (r *Root) openDir(op, path string) (int, error) {
	rel, err := clean(path)
	if err != nil {
		return -1, fail(op, path, err)
	}
	fd, err := r.open(rel)
	if err != nil {
		return -1, fail(op, path, err)
	}
	return fd, nil
}

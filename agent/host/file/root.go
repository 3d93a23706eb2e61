package file

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"mesh/shared/refusal"
)

// Root is the folder below which all paths are meant; "/" on a machine, another in tests and images.
type Root struct {
	fd   int
	path string
	// uid is whose folders are trusted beside root's: the agent's own.
	uid uint32

	mu    sync.Mutex // guards owing
	owing map[string]struct{}
}

// OpenRoot opens dir. Close gives its descriptor back.
func OpenRoot(dir string) (*Root, error) {
	fd, err := openAt(unix.AT_FDCWD, dir, unix.O_DIRECTORY|unix.O_PATH, 0)
	if err != nil {
		return nil, fail("open root", dir, err)
	}
	return &Root{fd: fd, path: dir, uid: uint32(os.Geteuid())}, nil
}

// Close ends the use of r.
func (r *Root) Close() error { return unix.Close(r.fd) }

// late notes a folder whose names are to be synced.
func (r *Root) late(folder string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.owing == nil {
		r.owing = map[string]struct{}{}
	}
	r.owing[folder] = struct{}{}
}

// SyncFolders makes the names last that files written with LateFolder were given: one sync a folder, however
// many they are. A folder that is gone has none. What could not be synced is owed still.
func (r *Root) SyncFolders() error {
	r.mu.Lock()
	owing := r.owing
	r.owing = nil
	r.mu.Unlock()
	var errs []error
	for folder := range owing {
		if err := r.syncFolder(folder); err != nil {
			r.late(folder)
			errs = append(errs, fail("sync", folder, err))
		}
	}
	return errors.Join(errs...)
}

func (r *Root) syncFolder(folder string) error {
	dir, _, err := r.parent("sync", folder+"/x")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(unix.Fsync(dir), unix.Close(dir))
}

// Path is the folder r was opened at.
func (r *Root) Path() string { return r.path }

// clean makes path relative to the root; ".." stops at the root as in the kernel.
func clean(path string) (string, error) {
	if !strings.HasPrefix(path, "/") || strings.IndexByte(path, 0) >= 0 {
		return "", refusal.New(fmt.Sprintf("the path %q", path), "it is not absolute", "declare it from /")
	}
	rel := filepath.Clean(path)[1:]
	if rel == "" {
		rel = "."
	}
	return rel, nil
}

// parent opens the folder that path stands in, fit for fsync, and returns the last name.
func (r *Root) parent(op, path string) (dir int, name string, err error) {
	rel, err := clean(path)
	if err != nil {
		return -1, "", fail(op, path, err)
	}
	if rel == "." {
		return -1, "", occupied(op, path, Dir)
	}
	folder, name := filepath.Split(rel)
	dir, err = r.open(strings.TrimSuffix(folder, "/"))
	if err != nil {
		return -1, "", fail(op, path, fmt.Errorf("its folder: %w", err))
	}
	return dir, name, nil
}

// open opens the folder rel. The usual case is one call that follows no link; only where there is one
// (or on a kernel or sandbox without openat2) the way is walked step by step.
func (r *Root) open(rel string) (int, error) {
	if rel == "" {
		rel = "."
	}
	fd, err := r.openBeneath(rel, unix.O_DIRECTORY)
	switch err {
	case unix.ELOOP, unix.ENOSYS, unix.EPERM, unix.EAGAIN, unix.EINTR:
		return r.walk(rel)
	}
	return fd, err
}

// openBeneath opens rel for reading if no symlink is on the way or at its end.
func (r *Root) openBeneath(rel string, flags uint64) (int, error) {
	return unix.Openat2(r.fd, rel, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_CLOEXEC | flags, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
}

// maxLinks bounds the symlinks on one way, as the kernel does (path_resolution(7)).
const maxLinks = 40

// walk opens the folder rel one name at a time and follows trusted links itself, within the root.
func (r *Root) walk(rel string) (int, error) {
	todo := strings.Split(rel, "/")
	var done []string // free of links and dots
	dir, err := r.step(r.fd, ".")
	if err != nil {
		return -1, err
	}
	for links := 0; len(todo) > 0; {
		name := todo[0]
		todo = todo[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			done = done[:max(0, len(done)-1)]
			closeFD(dir)
			if dir, err = r.again(done); err != nil {
				return -1, err
			}
			continue
		}
		next, err := r.step(dir, name)
		if err == nil {
			closeFD(dir)
			dir, done = next, append(done, name)
			continue
		}
		target, linkErr := r.trustedLink(dir, name, done)
		if linkErr != nil {
			closeFD(dir)
			if errors.Is(linkErr, unix.EINVAL) { // no link: what step said
				return -1, err
			}
			return -1, linkErr
		}
		if links++; links > maxLinks {
			closeFD(dir)
			return -1, unix.ELOOP
		}
		todo = append(strings.Split(target, "/"), todo...)
		if strings.HasPrefix(target, "/") {
			done = done[:0]
			closeFD(dir)
			if dir, err = r.step(r.fd, "."); err != nil {
				return -1, err
			}
		}
	}
	return dir, nil
}

func (r *Root) step(dir int, name string) (int, error) {
	return openAt(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
}

// again opens names from the root: the way back over "..", which the kernel would take out of the root.
func (r *Root) again(names []string) (int, error) {
	dir, err := r.step(r.fd, ".")
	for _, name := range names {
		if err != nil {
			return -1, err
		}
		var next int
		next, err = r.step(dir, name)
		closeFD(dir)
		dir = next
	}
	return dir, err
}

// trustedLink reads the link name in dir, unless somebody else than root or the agent could have made
// it. EINVAL: it is no link.
func (r *Root) trustedLink(dir int, name string, done []string) (string, error) {
	target, err := readLink(dir, name)
	if err != nil {
		return "", err
	}
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return "", err
	}
	if (st.Uid != 0 && st.Uid != r.uid) || st.Mode&0o022 != 0 {
		at := "/" + strings.Join(append(done[:len(done):len(done)], name), "/")
		return "", fmt.Errorf("%w: %w", ErrUntrustedLink, refusal.Newf("the way over the symlink "+at,
			"declare the path it leads to ("+target+"), or let only root write to the folder it is in",
			"uid %d may change the folder it is in (%v)", st.Uid, fileMode(st.Mode)))
	}
	return target, nil
}

func readLink(dir int, name string) (string, error) {
	for size := 256; ; size *= 2 {
		buf := make([]byte, size)
		n, err := unix.Readlinkat(dir, name, buf)
		if err != nil || n < size {
			return string(buf[:max(n, 0)]), err
		}
	}
}

// openTarget opens what stands at name without following it: a file for reading, all else only as a
// handle, since opening a device can set it going. st is from before the opening, so that a fingerprint
// never claims a content newer than it.
func openTarget(dir int, name string) (fd int, st unix.Stat_t, err error) {
	if err = statAt(dir, name, &st); err != nil {
		return -1, st, err
	}
	flags := unix.O_PATH | unix.O_NOFOLLOW
	if kindOf(st.Mode) == File {
		flags = unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY
	}
	fd, err = openAt(dir, name, flags, 0)
	return fd, st, err
}

func openAt(dir int, name string, flags int, mode uint32) (fd int, err error) {
	err = ignoringEINTR(func() error {
		fd, err = unix.Openat(dir, name, flags|unix.O_CLOEXEC, mode)
		return err
	})
	return fd, err
}

func statAt(dir int, name string, st *unix.Stat_t) error {
	return unix.Fstatat(dir, name, st, unix.AT_SYMLINK_NOFOLLOW)
}

func ignoringEINTR(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}

// closeFD closes what was only read or was already given up: there is nothing left to lose.
func closeFD(fd int) {
	if fd >= 0 {
		_ = unix.Close(fd)
	}
}

// fileMode and unixMode translate the twelve bits between Go's and the kernel's places.
func fileMode(mode uint32) fs.FileMode {
	m := fs.FileMode(mode & 0o777)
	for _, b := range modeBits {
		if mode&b.unix != 0 {
			m |= b.mode
		}
	}
	return m
}

func unixMode(mode fs.FileMode) uint32 {
	m := uint32(mode.Perm())
	for _, b := range modeBits {
		if mode&b.mode != 0 {
			m |= b.unix
		}
	}
	return m
}

var modeBits = [...]struct {
	unix uint32
	mode fs.FileMode
}{{unix.S_ISUID, fs.ModeSetuid}, {unix.S_ISGID, fs.ModeSetgid}, {unix.S_ISVTX, fs.ModeSticky}}

// Package file changes files, folders and links on a machine so that each change is whole or not
// there at all, and lasts once it was reported done, through a power cut too. It decides nothing: what
// a file should be comes in as a Spec, what is there goes out as a State.
//
// Write puts the content into a temporary file beside the target, gives it owner, attributes and mode,
// syncs it, renames it over the target and syncs the folder; leaving out any of these lost or emptied
// files in measured power cuts. What is equal already is not touched: no write, no new mtime.
//
// Every path is below a Root, normally "/", and cannot climb out of it. No symlink on the way is
// followed, with one exception: a link in a folder that root (or the agent's own user) owns and nobody
// else may write to, such as /var/run. So the link farms of a distribution work, while a user cannot
// turn a declared path in their home into one in /etc. A link or folder at the target itself is refused.
//
// The package starts no goroutine and keeps one descriptor per Root open. Methods may be called from
// several goroutines at once for different paths.
package file

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Spec is a file as it shall be.
type Spec struct {
	// Path is absolute, below the Root.
	Path    string
	Content []byte
	// Mode holds the permission bits and, where wanted, fs.ModeSetuid, ModeSetgid and ModeSticky.
	Mode     fs.FileMode
	UID, GID int
	// MustNotExist refuses with ErrExists whatever is there, also a file in order.
	MustNotExist bool
	// OverLink replaces a symlink that stands there, which is refused otherwise; it is never followed.
	OverLink bool
	// NoSync leaves out both syncs, for trees that end in one SyncFS.
	NoSync bool
	// LateFolder leaves the sync of the folder to SyncFolders: until then a power cut may leave the file as it
	// was before, whole.
	LateFolder bool
}

// Write makes s so and reports whether anything had to change. After an error the file is as it was.
// The errors are those of this package (errors.Is), all wrapped in *Error.
func (r *Root) Write(s Spec) (changed bool, err error) {
	dir, name, err := r.parent("write", s.Path)
	if err != nil {
		return false, err
	}
	defer closeFD(dir)
	old, st, err := openTarget(dir, name)
	absent := errors.Is(err, unix.ENOENT)
	switch {
	case absent:
		old = -1
	case err != nil:
		return false, fail("write", s.Path, err)
	default:
		defer closeFD(old)
		if s.MustNotExist {
			return false, fail("write", s.Path, ErrExists)
		}
		kind := kindOf(st.Mode)
		if kind == Symlink && s.OverLink {
			old = -1 // it has nothing to carry over
			break
		}
		if kind != File {
			return false, occupied("write", s.Path, kind)
		}
		if st.Uid == uint32(s.UID) && st.Gid == uint32(s.GID) && fileMode(st.Mode) == s.Mode {
			same, err := sameContent(old, st.Size, s.Content)
			if err != nil {
				return false, fail("write", s.Path, err)
			}
			if same {
				return false, nil
			}
		}
	}
	tmp, err := stage(dir, old, s)
	if err != nil {
		return false, fail("write", s.Path, err)
	}
	// What was absent a moment ago must still be: a file that somebody made meanwhile is not overwritten.
	if err := rename(dir, tmp, name, absent); err != nil {
		return false, fail("write", s.Path, errors.Join(err, discard(dir, tmp)))
	}
	switch {
	case s.NoSync:
	case s.LateFolder:
		r.late(filepath.Dir(s.Path))
	default:
		if err := unix.Fsync(dir); err != nil {
			return true, fail("sync the folder of", s.Path, err)
		}
	}
	return true, nil
}

// stage makes the finished temporary file and returns its name; after an error there is none.
func stage(dir, old int, s Spec) (name string, err error) {
	fd, tmp, err := createTemp(dir)
	if err != nil {
		return "", err
	}
	closed := false
	defer func() {
		if !closed {
			closeFD(fd)
		}
		if err != nil {
			err = errors.Join(err, discard(dir, tmp))
		}
	}()
	if err := writeAll(fd, s.Content); err != nil {
		return "", err
	}
	// chown clears setuid bits and file capabilities, so it comes first; chmod sets the mask of a copied
	// access list, so it comes last.
	if err := unix.Fchown(fd, s.UID, s.GID); err != nil {
		return "", fmt.Errorf("chown %d:%d: %w", s.UID, s.GID, setting(err))
	}
	if old >= 0 {
		if err := copyAttributes(old, fd); err != nil {
			return "", err
		}
	}
	if err := unix.Fchmod(fd, unixMode(s.Mode)); err != nil {
		return "", fmt.Errorf("chmod %v: %w", s.Mode, setting(err))
	}
	if !s.NoSync {
		if err := unix.Fsync(fd); err != nil {
			return "", err
		}
	}
	// Some file systems say only now that the disk is full.
	closed = true
	return tmp, unix.Close(fd)
}

// Remove unlinks the file or symlink at path and reports whether one was there. A folder is refused.
func (r *Root) Remove(path string) (removed bool, err error) {
	dir, name, err := r.parent("remove", path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer closeFD(dir)
	switch err := unix.Unlinkat(dir, name, 0); {
	case errors.Is(err, unix.ENOENT):
		return false, nil
	case errors.Is(err, unix.EISDIR):
		return false, occupied("remove", path, Dir)
	case err != nil:
		return false, fail("remove", path, err)
	}
	if err := unix.Fsync(dir); err != nil {
		return true, fail("sync the folder of", path, err)
	}
	return true, nil
}

// Link makes the symlink at path point to target, switching an older link in one step, and reports
// whether it had to. Anything else at path is refused.
func (r *Root) Link(path, target string) (changed bool, err error) {
	dir, name, err := r.parent("link", path)
	if err != nil {
		return false, err
	}
	defer closeFD(dir)
	var st unix.Stat_t
	err = statAt(dir, name, &st)
	exists := err == nil
	switch {
	case exists && kindOf(st.Mode) != Symlink:
		return false, occupied("link", path, kindOf(st.Mode))
	case exists:
		if have, err := readLink(dir, name); err == nil && have == target {
			return false, nil
		}
	case !errors.Is(err, unix.ENOENT):
		return false, fail("link", path, err)
	}
	tmp := tempName()
	if err := unix.Symlinkat(target, dir, tmp); err != nil {
		return false, fail("link", path, err)
	}
	if err := rename(dir, tmp, name, !exists); err != nil {
		return false, fail("link", path, errors.Join(err, discard(dir, tmp)))
	}
	if err := unix.Fsync(dir); err != nil {
		return true, fail("sync the folder of", path, err)
	}
	return true, nil
}

const (
	tempPrefix = ".mesh-"
	tempDigits = 16
)

func tempName() string { return fmt.Sprintf("%s%0*x", tempPrefix, tempDigits, rand.Uint64()) }

// isTemp is strict, so that a sweep takes nothing but what createTemp and Link left behind.
func isTemp(name string) bool {
	digits, ok := strings.CutPrefix(name, tempPrefix)
	return ok && len(digits) == tempDigits && strings.Trim(digits, "0123456789abcdef") == ""
}

func createTemp(dir int) (fd int, name string, err error) {
	for range 10 {
		name = tempName()
		fd, err = openAt(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
		if !errors.Is(err, unix.EEXIST) {
			return fd, name, err
		}
	}
	return -1, "", err
}

func discard(dir int, tmp string) error {
	if err := unix.Unlinkat(dir, tmp, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove the temporary file %s: %w", tmp, err)
	}
	return nil
}

func rename(dir int, from, to string, mustNotExist bool) error {
	if !mustNotExist {
		return ignoringEINTR(func() error { return unix.Renameat(dir, from, dir, to) })
	}
	err := unix.Renameat2(dir, from, dir, to, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		// A file system without the flag: a hard link refuses an existing name as well.
		if err = unix.Linkat(dir, from, dir, to, 0); err == nil {
			err = unix.Unlinkat(dir, from, 0)
		}
	}
	return err
}

func writeAll(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := unix.Write(fd, b)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// sameContent compares in pieces, so that a large file costs no memory.
func sameContent(fd int, size int64, want []byte) (bool, error) {
	if size != int64(len(want)) {
		return false, nil
	}
	buf := buffers.Get().(*[bufferSize]byte)
	defer buffers.Put(buf)
	for off := 0; ; {
		n, err := unix.Pread(fd, buf[:], int64(off))
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return false, err
		case n == 0:
			return off == len(want), nil
		case off+n > len(want) || !bytes.Equal(buf[:n], want[off:off+n]):
			return false, nil
		}
		off += n
	}
}

// copyAttributes carries labels, user attributes and the access list of the old file over. Not the
// integrity hashes: they belong to the old content. A file system without attributes has none to lose.
func copyAttributes(from, to int) error {
	var list [4096]byte
	names := list[:]
	n, err := unix.Flistxattr(from, names)
	if errors.Is(err, unix.ERANGE) {
		if n, err = unix.Flistxattr(from, nil); err == nil {
			names = make([]byte, n+1024)
			n, err = unix.Flistxattr(from, names)
		}
	}
	if errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list attributes: %w", err)
	}
	for name := range strings.SplitSeq(string(names[:n]), "\x00") {
		if !carried(name) {
			continue
		}
		if err := copyAttribute(from, to, name); err != nil {
			return fmt.Errorf("carry attribute %s over: %w", name, setting(err))
		}
	}
	return nil
}

func carried(name string) bool {
	switch name {
	case "security.ima", "security.evm":
		return false
	case "system.posix_acl_access":
		return true
	}
	return strings.HasPrefix(name, "security.") || strings.HasPrefix(name, "user.")
}

func copyAttribute(from, to int, name string) error {
	size, err := unix.Fgetxattr(from, name, nil)
	if err == nil {
		value := make([]byte, size)
		if size, err = unix.Fgetxattr(from, name, value); err == nil {
			err = unix.Fsetxattr(to, name, value[:size], 0)
		}
	}
	if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.ENODATA) {
		return nil
	}
	return err
}

package apply

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// indexPrefix begins the name, beside the folder of a bundle, of the file that says what is in it.
const indexPrefix = ".index-"

// index is what a bundle's folder held when it was unpacked. The kernel changes Ctime with every change of
// content, mode or owner, and nobody can set it back, so a stat for each file tells whether one was touched;
// only what was touched is read again. What somebody put beside the bundle's own files is not in it: a
// program may write into its folder.
type index struct {
	Entries []indexed `json:"entries"` // a folder before what is in it
}

type indexed struct {
	Name  string `json:"n"`
	Mode  uint32 `json:"m"` // with the kind, as stat has it
	Size  int64  `json:"s,omitempty"`
	Ctime int64  `json:"c,omitempty"` // of files; folders change with what else is put into them
	Sum   string `json:"d,omitempty"` // of a file's content; a link's target
}

// scan makes the index of folder. sums are of the content of files where that is known; the others are read.
func scan(folder string, sums map[string]string) (*index, error) {
	ix := &index{}
	err := filepath.WalkDir(folder, func(p string, _ fs.DirEntry, err error) error {
		if err != nil || p == folder {
			return err
		}
		name, err := filepath.Rel(folder, p)
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return fmt.Errorf("look at %s: %w", p, err)
		}
		e := indexed{Name: name, Mode: st.Mode}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			e.Size, e.Ctime = st.Size, st.Ctim.Nano()
			if e.Sum = sums[name]; e.Sum == "" {
				e.Sum, err = sumFile(p)
			}
		case unix.S_IFLNK:
			e.Sum, err = os.Readlink(p)
		}
		ix.Entries = append(ix.Entries, e)
		return err
	})
	return ix, err
}

func sumFile(p string) (string, error) {
	f, err := os.OpenFile(p, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // only read
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// differing are the places in folder, of the index, that are not as they were; what says of the first how.
func (ix *index) differing(folder string) (at []int, what string, err error) {
	dir, err := unix.Open(folder, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = unix.Close(dir) }()
	lost := "" // a folder that is not there any more, and nothing of the bundle below it
	for i := range ix.Entries {
		e := &ix.Entries[i]
		if lost != "" && strings.HasPrefix(e.Name, lost) {
			at = append(at, i)
			continue
		}
		how, err := e.differs(dir, folder)
		if err != nil {
			return nil, "", err
		}
		if how == "" {
			continue
		}
		if at = append(at, i); what == "" {
			what = e.Name + " in it " + how
		}
		if e.Mode&unix.S_IFMT == unix.S_IFDIR && (how == isGone || how == isOther) {
			lost = e.Name + "/"
		}
	}
	return at, what, nil
}

const isGone, isOther = "is gone", "is of another kind"

// differs says how the entry is not as it was. Owners are compared with the agent's own user.
func (e *indexed) differs(dir int, folder string) (string, error) {
	var st unix.Stat_t
	err := unix.Fstatat(dir, e.Name, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP):
		return isGone, nil
	case err != nil:
		return "", fmt.Errorf("look at %s: %w", filepath.Join(folder, e.Name), err)
	case st.Mode&unix.S_IFMT != e.Mode&unix.S_IFMT:
		return isOther, nil
	case e.Mode&unix.S_IFMT == unix.S_IFLNK:
		if target, err := os.Readlink(filepath.Join(folder, e.Name)); err != nil || target != e.Sum {
			return "leads elsewhere", err
		}
		return "", nil
	case st.Mode != e.Mode:
		return fmt.Sprintf("has mode %04o, had %04o", st.Mode&0o7777, e.Mode&0o7777), nil
	case int(st.Uid) != os.Geteuid():
		return fmt.Sprintf("belongs to uid %d", st.Uid), nil
	case e.Mode&unix.S_IFMT != unix.S_IFREG || st.Ctim.Nano() == e.Ctime && st.Size == e.Size:
		return "", nil
	case st.Size != e.Size:
		return "has other content", nil
	}
	sum, err := sumFile(filepath.Join(folder, e.Name))
	if err != nil {
		return "", err
	}
	if sum != e.Sum {
		return "has other content", nil
	}
	e.Ctime = st.Ctim.Nano() // touched, or linked to, and nothing else
	return "", nil
}

func indexPath(folder string) string {
	return filepath.Join(filepath.Dir(folder), indexPrefix+filepath.Base(folder))
}

func (ix *index) save(folder string) error {
	b, err := json.Marshal(ix)
	if err != nil {
		return err
	}
	tmp := indexPath(folder) + ".new"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return os.Rename(tmp, indexPath(folder))
}

// indexOf is the index of a bundle that is there. One that has none was unpacked by an earlier agent, and
// is taken as it is.
func (e *Engine) indexOf(folder string) (*index, error) {
	if ix := e.indexes[folder]; ix != nil {
		return ix, nil
	}
	ix := &index{}
	b, err := os.ReadFile(indexPath(folder))
	if err == nil {
		err = json.Unmarshal(b, ix)
	}
	if err != nil {
		if ix, err = scan(folder, nil); err == nil {
			err = ix.save(folder)
		}
	}
	if err == nil {
		e.indexes[folder] = ix
	}
	return ix, err
}

// mend puts those entries of folder right from the same bundle unpacked at fresh. What is right stays in
// place, for programs may be at work in it.
func (ix *index) mend(folder, fresh string, at []int) error {
	for _, i := range at {
		e := ix.Entries[i]
		from, to := filepath.Join(fresh, e.Name), filepath.Join(folder, e.Name)
		isDir := e.Mode&unix.S_IFMT == unix.S_IFDIR
		if st, err := os.Lstat(to); err == nil && (!isDir || !st.IsDir()) {
			if err := os.RemoveAll(to); err != nil {
				return err
			}
		}
		if !isDir {
			if err := os.Rename(from, to); err != nil {
				return err
			}
			continue
		}
		if err := os.Mkdir(to, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := errors.Join(os.Chown(to, os.Geteuid(), os.Getegid()), os.Chmod(to, fs.FileMode(e.Mode&0o777))); err != nil {
			return err
		}
	}
	return nil
}

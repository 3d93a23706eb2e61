package file

import (
	"errors"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// Stat is Observe without the content: Sum stays zero. It is for files too large to be read for a look.
func (r *Root) Stat(path string) (State, error) {
	dir, name, err := r.parent("stat", path)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return State{}, nil
	}
	if err != nil {
		return State{}, err
	}
	defer closeFD(dir)
	var st unix.Stat_t
	err = statAt(dir, name, &st)
	if errors.Is(err, unix.ENOENT) {
		return State{}, nil
	}
	if err != nil {
		return State{}, fail("stat", path, err)
	}
	return stateOf(&st), nil
}

// List is the names in the folder at path, sorted. A folder that is not there is an error: fs.ErrNotExist.
func (r *Root) List(path string) ([]string, error) {
	fd, err := r.openDir("list", path)
	if err != nil {
		return nil, err
	}
	// The same folder with an offset of its own; openDir's may be for its path only.
	f, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	closeFD(fd)
	if err != nil {
		return nil, fail("list", path, err)
	}
	folder := os.NewFile(uintptr(f), path)
	names, err := folder.Readdirnames(-1)
	if err = errors.Join(err, folder.Close()); err != nil {
		return nil, fail("list", path, err)
	}
	slices.Sort(names)
	return names, nil
}

package file

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// maxAttributes bounds in bytes what Attributes reads of one file.
const maxAttributes = 256 << 10

// Attributes are the extended attributes of the file at path that Write carries over: labels, user attributes and
// the access list. A file system without any has none to tell.
func (r *Root) Attributes(path string) (all map[string][]byte, err error) {
	err = r.onFile("read the attributes of", path, func(fd int) error {
		all, err = attributesOf(fd)
		return err
	})
	return all, err
}

func attributesOf(fd int) (map[string][]byte, error) {
	names := make([]byte, 64<<10) // XATTR_LIST_MAX
	n, err := unix.Flistxattr(fd, names)
	if errors.Is(err, unix.ENOTSUP) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all map[string][]byte
	size := 0
	for name := range strings.SplitSeq(string(names[:n]), "\x00") {
		if !carried(name) {
			continue
		}
		value := make([]byte, 64<<10) // XATTR_SIZE_MAX
		n, err := unix.Fgetxattr(fd, name, value)
		if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOTSUP) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("attribute %s: %w", name, err)
		}
		if size += n; size > maxAttributes {
			return nil, fmt.Errorf("its attributes have more than %d bytes", maxAttributes)
		}
		if all == nil {
			all = map[string][]byte{}
		}
		all[name] = value[:n:n]
	}
	return all, nil
}

// SetAttributes gives the file at path these extended attributes, beside those it has. Those that only the kernel's
// security module may set are left out where it says no.
func (r *Root) SetAttributes(path string, all map[string][]byte) error {
	if len(all) == 0 {
		return nil
	}
	return r.onFile("set the attributes of", path, func(fd int) error {
		for _, name := range slices.Sorted(maps.Keys(all)) {
			err := unix.Fsetxattr(fd, name, all[name], 0)
			if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EPERM) && strings.HasPrefix(name, "security.") {
				continue
			}
			if err != nil {
				return fmt.Errorf("attribute %s: %w", name, setting(err))
			}
		}
		return unix.Fsync(fd)
	})
}

// onFile opens the file at path for reading and has fn work on it.
func (r *Root) onFile(op, path string, fn func(fd int) error) error {
	dir, name, err := r.parent(op, path)
	if err != nil {
		return err
	}
	defer closeFD(dir)
	fd, st, err := openTarget(dir, name)
	if errors.Is(err, unix.ENOENT) {
		return fail(op, path, fs.ErrNotExist)
	}
	if err != nil {
		return fail(op, path, err)
	}
	defer closeFD(fd)
	if kind := kindOf(st.Mode); kind != File {
		return occupied(op, path, kind)
	}
	if err := fn(fd); err != nil {
		return fail(op, path, err)
	}
	return nil
}

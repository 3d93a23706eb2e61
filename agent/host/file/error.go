package file

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"mesh/shared/refusal"
)

// The classes of what can go wrong, for errors.Is. A missing folder on the way is fs.ErrNotExist.
var (
	// ErrNoSpace: the disk or the quota is full. Wait and try again.
	ErrNoSpace = errors.New("no space left")
	// ErrReadOnly: the file system is mounted read-only. Often a broken disk.
	ErrReadOnly = errors.New("the file system is read-only")
	// ErrImmutable: the kernel forbids the change to root too, as for files with chattr +i or +a.
	ErrImmutable = errors.New("the file or its folder is immutable")
	// ErrForbidden: the agent may not give a file this owner or attribute; it lacks a capability.
	ErrForbidden = errors.New("the agent may not set this owner or attribute")
	// ErrMountPoint: the target is a mount point, such as a bind-mounted file, and cannot be replaced.
	ErrMountPoint = errors.New("the target is a mount point")
	// ErrExists: something is there that must not be.
	ErrExists = errors.New("something is there already")
	// ErrOccupied: a thing of another kind stands at the path. It comes with a refusal.
	ErrOccupied = errors.New("something of another kind is there")
	// ErrNotEmpty: the folder to remove holds something.
	ErrNotEmpty = errors.New("the folder is not empty")
	// ErrUntrustedLink: a symlink on the way stands in a folder that others may write to. It comes with a refusal.
	ErrUntrustedLink = errors.New("a symlink on the way could have been planted")
)

// Error says what was done to which path and how it failed.
type Error struct {
	Op, Path string
	// Class is one of the sentinels of this package, or nil.
	Class error
	Err   error
}

// Error is one line, the class before the system's own words.
func (e *Error) Error() string {
	if e.Class == nil || errors.Is(e.Err, e.Class) {
		return fmt.Sprintf("%s %s: %v", e.Op, e.Path, e.Err)
	}
	return fmt.Sprintf("%s %s: %v: %v", e.Op, e.Path, e.Class, e.Err)
}

// Unwrap gives both the class and the cause.
func (e *Error) Unwrap() []error {
	if e.Class == nil {
		return []error{e.Err}
	}
	return []error{e.Class, e.Err}
}

func fail(op, path string, err error) error {
	return &Error{Op: op, Path: path, Class: classOf(err), Err: err}
}

func classOf(err error) error {
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return ErrNoSpace
	case errors.Is(err, unix.EROFS):
		return ErrReadOnly
	case errors.Is(err, ErrForbidden):
		return ErrForbidden
	case errors.Is(err, ErrUntrustedLink):
		return ErrUntrustedLink
	case errors.Is(err, unix.EPERM):
		return ErrImmutable
	case errors.Is(err, unix.EXDEV), errors.Is(err, unix.EBUSY):
		return ErrMountPoint
	case errors.Is(err, unix.EEXIST):
		return ErrExists
	case errors.Is(err, unix.ENOTEMPTY):
		return ErrNotEmpty
	case errors.Is(err, unix.ENOENT):
		return fs.ErrNotExist
	}
	return nil
}

// setting marks a refused change of owner or attribute; the same errno from a rename means immutable.
func setting(err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: %w", ErrForbidden, err)
	}
	return err
}

func occupied(op, path string, kind Kind) error {
	return &Error{Op: op, Path: path, Class: ErrOccupied, Err: refusal.Newf(op+" "+path,
		"move it away, or declare another path", "a %s stands there, and mesh replaces only its like", kind)}
}

package file

import (
	"crypto/sha256"
	"errors"
	"io/fs"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Kind is what stands at a path.
type Kind string

// The kinds.
const (
	File    Kind = "file"
	Dir     Kind = "folder"
	Symlink Kind = "symlink"
	Other   Kind = "device, socket or pipe"
)

// State is what stands at a path.
type State struct {
	Exists bool
	Kind   Kind
	// Sum is the SHA-256 of a file's content; zero for other kinds.
	Sum [sha256.Size]byte
	// Target is where a symlink points.
	Target   string
	Mode     fs.FileMode
	UID, GID int
	Fingerprint
}

// Fingerprint tells a file from what it was without reading it. It is kept by callers and compared by
// Unchanged.
type Fingerprint struct {
	Size int64
	// Mtime and Ctime are Unix nanoseconds. The kernel sets Ctime on any change of content, mode, owner
	// or attributes, and nobody can set it back.
	Mtime, Ctime int64
	Inode, Dev   uint64
}

// Settled reports whether f is old enough at now to be trusted: kernels stamp changes with a clock of
// some milliseconds' grain (10 ms at most), so a second change right after the first may not show.
func (f Fingerprint) Settled(now time.Time) bool {
	return f.Ctime != 0 && now.UnixNano()-f.Ctime > int64(50*time.Millisecond)
}

const bufferSize = 64 << 10

var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// Observe looks at path. That it, or a folder on the way, is missing is a State, not an error.
func (r *Root) Observe(path string) (State, error) {
	if s, ok := r.observeFile(path); ok {
		return s, nil
	}
	dir, name, err := r.parent("observe", path)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return State{}, nil
	}
	if err != nil {
		return State{}, err
	}
	defer closeFD(dir)
	fd, st, err := openTarget(dir, name)
	if errors.Is(err, unix.ENOENT) {
		return State{}, nil
	}
	if err != nil {
		return State{}, fail("observe", path, err)
	}
	defer closeFD(fd)
	s := stateOf(&st)
	switch s.Kind {
	case File:
		s.Sum, err = sum(fd, st.Size)
	case Symlink:
		s.Target, err = readLink(fd, "")
	}
	if err != nil {
		return State{}, fail("observe", path, err)
	}
	return s, nil
}

// observeFile is Observe for what is nearly always there, a file with no symlink on the way, in four
// system calls; ok is false for all else. The stat comes first: only then is it known not to be a device.
func (r *Root) observeFile(path string) (s State, ok bool) {
	rel, err := clean(path)
	if err != nil {
		return State{}, false
	}
	var st unix.Stat_t
	if statAt(r.fd, rel, &st) != nil || kindOf(st.Mode) != File {
		return State{}, false
	}
	fd, err := r.openBeneath(rel, unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return State{}, false
	}
	defer closeFD(fd)
	s = stateOf(&st)
	s.Sum, err = sum(fd, st.Size)
	return s, err == nil
}

func stateOf(st *unix.Stat_t) State {
	return State{
		Exists: true, Kind: kindOf(st.Mode), Mode: fileMode(st.Mode),
		UID: int(st.Uid), GID: int(st.Gid), Fingerprint: fingerprint(st),
	}
}

// Unchanged reports whether what stands at path is the very file that f was taken of, unchanged since.
// It costs one system call and reads nothing; false means: Observe it.
func (r *Root) Unchanged(path string, f Fingerprint) bool {
	rel, err := clean(path)
	if err != nil || f == (Fingerprint{}) {
		return false
	}
	var st unix.Stat_t
	return statAt(r.fd, rel, &st) == nil && fingerprint(&st) == f
}

// Read returns the content of the file at path, at most limit bytes; a longer one is an error.
func (r *Root) Read(path string, limit int64) ([]byte, error) {
	dir, name, err := r.parent("read", path)
	if err != nil {
		return nil, err
	}
	defer closeFD(dir)
	fd, st, err := openTarget(dir, name)
	if err != nil {
		return nil, fail("read", path, err)
	}
	defer closeFD(fd)
	if kind := kindOf(st.Mode); kind != File {
		return nil, occupied("read", path, kind)
	}
	out := make([]byte, 0, min(st.Size, limit)+1)
	for {
		if int64(len(out)) > limit {
			return nil, fail("read", path, unix.EFBIG)
		}
		if len(out) == cap(out) {
			out = append(out, 0)[:len(out)]
		}
		n, err := unix.Read(fd, out[len(out):cap(out)])
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return nil, fail("read", path, err)
		case n == 0:
			return out, nil
		default:
			out = out[:len(out)+n]
		}
	}
}

// sum hashes the file behind fd. size spares the read that would find the end; a file that grew since
// it was measured has another fingerprint as well.
func sum(fd int, size int64) (out [sha256.Size]byte, err error) {
	buf := buffers.Get().(*[bufferSize]byte)
	defer buffers.Put(buf)
	if size <= 0 || size >= bufferSize { // files of /proc say 0
		size = bufferSize
	}
	n, err := readFull(fd, buf[:size])
	if err != nil {
		return out, err
	}
	if n < len(buf) { // most files: one hash of what is in hand, nothing allocated
		return sha256.Sum256(buf[:n]), nil
	}
	h := sha256.New()
	for n > 0 {
		h.Write(buf[:n])
		if n, err = readFull(fd, buf[:]); err != nil {
			return out, err
		}
	}
	h.Sum(out[:0])
	return out, nil
}

// readFull reads until b is full or the file ends.
func readFull(fd int, b []byte) (n int, err error) {
	for n < len(b) {
		m, err := unix.Read(fd, b[n:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return n, err
		}
		if m == 0 {
			break
		}
		n += m
	}
	return n, nil
}

func fingerprint(st *unix.Stat_t) Fingerprint {
	return Fingerprint{
		Size: st.Size, Mtime: st.Mtim.Nano(), Ctime: st.Ctim.Nano(), Inode: st.Ino, Dev: uint64(st.Dev),
	}
}

func kindOf(mode uint32) Kind {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return File
	case unix.S_IFDIR:
		return Dir
	case unix.S_IFLNK:
		return Symlink
	}
	return Other
}

package bundle

import (
	"archive/tar"
	"bufio"
	"compress/flate"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	// It unpacks a third faster than the standard library's, and its errors are the same values.
	"github.com/klauspost/compress/gzip"

	"mesh/shared/refusal"
)

// copySize is the size of the one buffer that contents go through.
const copySize = 128 << 10

// Hooks are told what Unpack does; each may be nil.
type Hooks struct {
	// File hears of every plain file once it is whole, with the SHA-256 of its content.
	File func(name, sum string)
	// Room is asked before some more bytes are written, every roomEvery of them, and ends it with its error.
	Room func(n int64) error
}

// roomEvery is how many bytes are written between two questions for room.
const roomEvery = 8 << 20

// Unpack writes what r holds into root, which should be a new and empty folder: a name that is there
// already is an error. It stops at the first entry that is refused, and what was written until then
// stays, so the caller unpacks beside the final place and renames (facts/host.md §1.4). Nothing is
// synced. An error of the disk is in the error's chain as it came.
func Unpack(ctx context.Context, r io.Reader, root *os.Root, limits Limits, hooks ...Hooks) error {
	u := unpacker{root: root, buf: make([]byte, copySize)}
	for _, h := range hooks {
		u.hooks = h
	}
	_, _, err := each(ctx, r, limits, func(name string, h *tar.Header, content io.Reader) error {
		if err := u.write(name, h, content); err != nil {
			return fmt.Errorf("unpack %s: %w", name, err)
		}
		return nil
	})
	return err
}

// Inspect reads a bundle to its end, holds it against the rules of Unpack, and says how many entries
// it has and how many bytes its files will take.
func Inspect(ctx context.Context, r io.Reader, limits Limits) (files int, bytes int64, err error) {
	return each(ctx, r, limits, func(string, *tar.Header, io.Reader) error { return nil })
}

type unpacker struct {
	root  *os.Root
	hooks Hooks
	buf   []byte
	owed  int64  // bytes that may be written before the next question for room
	made  string // the folder that is known to be there
}

// write makes one entry. The guard has judged it; root holds even if the guard is wrong.
func (u *unpacker) write(name string, h *tar.Header, content io.Reader) error {
	if up := path.Dir(name); up != "." && up != u.made {
		if _, err := u.root.Lstat(up); errors.Is(err, os.ErrNotExist) {
			if err := u.root.MkdirAll(up, 0o755); err != nil {
				return err
			}
		}
		u.made = up
	}
	switch h.Typeflag {
	case tar.TypeDir:
		if err := u.root.MkdirAll(name, 0o755); err != nil {
			return err
		}
		return u.root.Chmod(name, 0o755) // whatever the umask
	case tar.TypeSymlink:
		return u.root.Symlink(h.Linkname, name)
	}
	mode := os.FileMode(0o644)
	if h.Mode&0o111 != 0 {
		mode = 0o755
	}
	f, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	sum, err := u.fill(f, h.Size, content)
	if err = errors.Join(err, f.Chmod(mode), f.Close()); err == nil && u.hooks.File != nil {
		u.hooks.File(name, hex.EncodeToString(sum))
	}
	return err
}

// fill writes a file's content, and hashes it when somebody wants to know.
func (u *unpacker) fill(f *os.File, size int64, content io.Reader) ([]byte, error) {
	sum := sha256.New()
	for left := size; left > 0; {
		if u.hooks.Room != nil && u.owed <= 0 {
			if err := u.hooks.Room(min(left, roomEvery)); err != nil {
				return nil, err
			}
			u.owed = roomEvery
		}
		n, err := io.ReadFull(content, u.buf[:min(left, copySize)])
		if err != nil {
			return nil, err
		}
		if u.hooks.File != nil {
			sum.Write(u.buf[:n]) // a hash never fails
		}
		if _, err := f.Write(u.buf[:n]); err != nil {
			return nil, err
		}
		left, u.owed = left-int64(n), u.owed-int64(n)
	}
	return sum.Sum(nil), nil
}

// each calls visit for every entry that the rules admit, and reads r to its very end.
func each(ctx context.Context, r io.Reader, limits Limits, visit func(string, *tar.Header, io.Reader) error) (files int, bytes int64, err error) {
	packed := bufio.NewReaderSize(readerFunc(func(b []byte) (int, error) {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		return r.Read(b)
	}), 64<<10)
	gz, err := gzip.NewReader(packed)
	if err != nil {
		return 0, 0, broken(err)
	}
	gz.Multistream(false) // what follows is looked at below, not taken for more of the archive
	plain := bounded(gz, limits)
	g, tr := newGuard(limits), tar.NewReader(plain)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, 0, broken(err)
		}
		name, err := g.admit(h)
		if err != nil {
			return 0, 0, err
		}
		if err := visit(name, h, tr); err != nil {
			return 0, 0, broken(err)
		}
	}
	if err := rest(plain, packed); err != nil {
		return 0, 0, broken(err)
	}
	return len(g.kinds), g.bytes, nil
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

var (
	errTooLarge = errors.New("it unpacks to more than it may")
	errMore     = errors.New("something follows after its end")
)

// bounded ends r with errTooLarge past what entries within the limits can take: their bytes, and for
// each a header, its padding and a long name.
func bounded(r io.Reader, l Limits) io.Reader {
	left := l.MaxBytes + int64(l.MaxFiles)*int64(4096+2*l.MaxPath) + 64<<10
	return readerFunc(func(b []byte) (int, error) {
		n, err := r.Read(b)
		if left -= int64(n); left < 0 {
			return 0, errTooLarge
		}
		return n, err
	})
}

// rest holds what follows the archive's end mark: zeros to fill a block, the checksum, nothing.
func rest(plain io.Reader, packed *bufio.Reader) error {
	buf := make([]byte, 4096)
	for {
		n, err := plain.Read(buf)
		for _, b := range buf[:n] {
			if b != 0 {
				return errMore
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	switch _, err := packed.ReadByte(); {
	case err == nil:
		return errMore
	case !errors.Is(err, io.EOF):
		return err
	}
	return nil
}

// broken turns the errors of a damaged archive into a refusal. Those of the disk, the reader and the
// context stay what they are.
func broken(err error) error {
	var corrupt flate.CorruptInputError
	why := ""
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF):
		why = "it is cut short"
	case errors.As(err, &corrupt) || errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum):
		why = "it is damaged, or no gzip"
	case errors.Is(err, tar.ErrHeader) || errors.Is(err, tar.ErrFieldTooLong):
		why = "what it holds is no tar"
	case errors.Is(err, errTooLarge) || errors.Is(err, errMore):
		why = err.Error()
	case refusal.Of(err) != nil:
		return err
	default:
		return fmt.Errorf("bundle: %w", err)
	}
	return refusal.New("the bundle", why, "fetch it again; if it stays so, register the module again")
}

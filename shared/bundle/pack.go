package bundle

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"mesh/shared/refusal"
)

// Pack writes the folder dir to w as a bundle, and returns its digest and its size in bytes. Names
// are in order; times, owners and all permission but "may be run" are left out, so the same files make
// the same bytes wherever and by whomever they are packed.
func Pack(w io.Writer, dir string) (digest string, size int64, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", 0, fmt.Errorf("pack bundle: %w", err)
	}
	defer root.Close() // only read
	sum := sha256.New()
	counted := &counter{w: io.MultiWriter(w, sum)}
	gz := gzip.NewWriter(counted) // its header has no name and no time
	p := packer{root: root, out: tar.NewWriter(gz), guard: newGuard(Default())}
	if err := fs.WalkDir(root.FS(), ".", p.add); err != nil {
		return "", 0, fmt.Errorf("pack bundle %s: %w", dir, err)
	}
	if len(p.guard.kinds) == 0 {
		return "", 0, refusal.New("an empty bundle", dir+" has nothing in it", "build the module first")
	}
	if err := errors.Join(p.out.Close(), gz.Close()); err != nil {
		return "", 0, fmt.Errorf("pack bundle %s: %w", dir, err)
	}
	return hex.EncodeToString(sum.Sum(nil)), counted.n, nil
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

type packer struct {
	root  *os.Root
	out   *tar.Writer
	guard *guard
}

// add is called for each entry, in the order of names, a folder before what is in it.
func (p *packer) add(name string, d fs.DirEntry, err error) error {
	if err != nil || name == "." {
		return err
	}
	info, err := d.Info()
	if err != nil {
		return err
	}
	h := &tar.Header{Name: name, ModTime: time.Unix(0, 0), Mode: 0o644}
	switch {
	case info.Mode().IsRegular():
		h.Typeflag, h.Size = tar.TypeReg, info.Size()
		if info.Mode()&0o111 != 0 {
			h.Mode = 0o755
		}
	case info.IsDir():
		h.Typeflag, h.Name, h.Mode = tar.TypeDir, name+"/", 0o755
	case info.Mode()&fs.ModeSymlink != 0:
		h.Typeflag, h.Mode = tar.TypeSymlink, 0o777
		if h.Linkname, err = p.root.Readlink(name); err != nil {
			return err
		}
	case info.Mode()&fs.ModeDevice != 0:
		h.Typeflag = tar.TypeBlock
	default:
		h.Typeflag = tar.TypeFifo // or a socket: refused alike
	}
	if _, err := p.guard.admit(h); err != nil {
		return err
	}
	if err := p.out.WriteHeader(h); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if h.Typeflag != tar.TypeReg {
		return nil
	}
	return p.content(name, h.Size)
}

func (p *packer) content(name string, size int64) error {
	f, err := p.root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close() // only read
	n, err := io.Copy(p.out, io.LimitReader(f, size))
	if err == nil && n != size {
		err = fmt.Errorf("it became shorter while it was packed: %w", io.ErrUnexpectedEOF)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

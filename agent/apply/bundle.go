package apply

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"mesh/agent/host/file"
	"mesh/agent/plan"
	"mesh/agent/resource"
	"mesh/shared/bundle"
	"mesh/shared/declaration"
	"mesh/shared/refusal"
)

// Names in the bundle folder that are not bundles.
const (
	partPrefix   = ".part-"   // bytes that came so far
	unpackPrefix = ".unpack-" // an archive being unpacked
)

// fetchBundle brings a bundle to its folder: its bytes chunk by chunk into a file beside it, resumed where
// they broke off; checked; unpacked under another name; synced; renamed. The folder is whole or not there.
func (r *run) fetchBundle(ctx context.Context, b *resource.Bundle) error {
	if err := r.bundleDir(); err != nil {
		return err
	}
	if there, err := isFolder(b.Folder); err != nil || there { // another module has the same one
		return err
	}
	digest := b.Artifact.Digest
	part := filepath.Join(r.cfg.BundleDir, partPrefix+digest)
	err := r.download(ctx, b.Artifact, part)
	if err == nil {
		r.cfg.FailPoint(bundleFetched)
		err = r.unpack(ctx, part, b)
	}
	// On a full disk the bytes are given back, and a bundle that was refused is not kept. All else may be
	// resumed.
	if err == nil || noSpace(err) || refusal.Of(err) != nil {
		if e := os.Remove(part); e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// bundleDir makes the folder of bundles. Programs in it run as other users, so the way there has to be
// open, while what else is beside it is not.
func (r *run) bundleDir() error {
	if err := os.MkdirAll(r.cfg.BundleDir, 0o711); err != nil {
		return err
	}
	for _, p := range []string{r.cfg.BundleDir, filepath.Dir(r.cfg.BundleDir)} {
		st, err := os.Stat(p)
		if err != nil {
			return err
		}
		if mode := st.Mode().Perm(); mode&0o011 != 0o011 {
			if err := os.Chmod(p, mode|0o011); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *run) download(ctx context.Context, a declaration.Artifact, part string) error {
	f, err := os.OpenFile(part, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	from, err := r.resume(f, a)
	if err == nil && from < a.Chunks {
		at, _ := bundle.Span(from, a.Size)
		if err = r.room(a.Size - at); err == nil {
			err = r.cfg.Fetch(ctx, a, from, &chunkWriter{f: f, r: r})
		}
	}
	if err == nil {
		if _, err = f.Seek(0, io.SeekStart); err == nil {
			err = bundle.Verify(f, a.Digest)
		}
	}
	return errors.Join(err, f.Close())
}

// resume cuts f to whole chunks and says which comes next.
func (r *run) resume(f *os.File, a declaration.Artifact) (from int, err error) {
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if a.Chunks == bundle.Chunks(a.Size) && st.Size() < a.Size {
		from = int(st.Size() / bundle.ChunkSize)
	} else if st.Size() == a.Size {
		from = a.Chunks
	}
	if from < a.Chunks {
		if err := f.Truncate(int64(from) * bundle.ChunkSize); err != nil {
			return 0, err
		}
	}
	_, err = f.Seek(0, io.SeekEnd)
	return from, err
}

// chunkWriter tells the fail point of each chunk.
type chunkWriter struct {
	f *os.File
	r *run
}

func (w *chunkWriter) Write(b []byte) (int, error) {
	n, err := w.f.Write(b)
	w.r.cfg.FailPoint(chunkWritten)
	return n, err
}

// room refuses what would not leave the reserve.
func (r *run) room(need int64) error {
	var s unix.Statfs_t
	if err := unix.Statfs(r.cfg.BundleDir, &s); err != nil {
		return err
	}
	if free := int64(s.Bavail) * s.Bsize; free < need+r.cfg.Reserve {
		return fmt.Errorf("%w: %d MiB are free, the bundle needs %d and leaves %d", file.ErrNoSpace, free>>20, (need+1<<20-1)>>20, r.cfg.Reserve>>20)
	}
	return nil
}

func (r *run) unpack(ctx context.Context, part string, b *resource.Bundle) (err error) {
	f, err := os.Open(part)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // only read
	_, size, err := bundle.Inspect(ctx, f, bundle.Default())
	if err != nil {
		return err
	}
	if err := r.room(size + size/10); err != nil {
		return err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	tmp := filepath.Join(r.cfg.BundleDir, unpackPrefix+b.Artifact.Digest)
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	if err := os.Mkdir(tmp, 0o755); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(tmp))
		}
	}()
	if err := unpackInto(ctx, f, tmp); err != nil {
		return err
	}
	r.cfg.FailPoint(bundleOpened)
	if err := syncFS(tmp); err != nil {
		return err
	}
	r.cfg.FailPoint(bundleSynced)
	if err := os.Rename(tmp, b.Folder); err != nil {
		return err
	}
	r.cfg.FailPoint(bundleNamed)
	return syncDir(r.cfg.BundleDir)
}

func unpackInto(ctx context.Context, f io.Reader, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	err = bundle.Unpack(ctx, f, root, bundle.Default())
	return errors.Join(err, root.Close(), os.Chmod(dir, 0o755)) // whatever the umask
}

func syncFS(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(d.Fd())), d.Close())
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// removeBundle removes the folder of a bundle's id. The name goes first, so that no half folder bears it.
func (r *run) removeBundle(id string) error {
	digest := id[strings.LastIndexByte(id, '/')+1:]
	if err := bundle.CheckDigest(digest); err != nil {
		return err
	}
	tmp := filepath.Join(r.cfg.BundleDir, unpackPrefix+digest)
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	err := os.Rename(filepath.Join(r.cfg.BundleDir, digest), tmp)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return errors.Join(err, os.RemoveAll(tmp))
}

// sweepBundles removes what a kill left behind, and the bytes of bundles that nothing declares.
func (e *Engine) sweepBundles(wanted []resource.Resource) {
	entries, err := os.ReadDir(e.cfg.BundleDir)
	if err != nil {
		return // nothing was ever fetched
	}
	digests := map[string]bool{}
	for _, r := range wanted {
		if r.Kind == resource.KindBundle {
			digests[r.Bundle.Artifact.Digest] = true
		}
	}
	for _, entry := range entries {
		part, isPart := strings.CutPrefix(entry.Name(), partPrefix)
		if isPart && digests[part] {
			if there, err := isFolder(filepath.Join(e.cfg.BundleDir, part)); err != nil || !there {
				continue // it is resumed
			}
		} else if !isPart && !strings.HasPrefix(entry.Name(), unpackPrefix) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(e.cfg.BundleDir, entry.Name())); err != nil {
			e.cfg.Log.Warn("a rest of a bundle could not be removed", "err", err)
		}
	}
}

func noSpace(err error) bool {
	return errors.Is(err, file.ErrNoSpace) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}

// named puts the classes a person has to know by name before an error (APP-14).
func named(err error, s plan.Step) error {
	what := fmt.Sprintf("%s of module %s", s.ID, s.Module)
	switch {
	case refusal.Of(err) != nil:
		return err
	case noSpace(err):
		return fmt.Errorf("%w: %w", refusal.New(what, "disk full: "+err.Error(), "free some space; it is tried again by itself"), err)
	case errors.Is(err, file.ErrReadOnly) || errors.Is(err, unix.EROFS):
		return fmt.Errorf("%w: %w", refusal.New(what, "read-only file system: "+err.Error(), "look at the disk (dmesg) and mount it writable; it is tried again by itself"), err)
	case errors.Is(err, file.ErrImmutable):
		return fmt.Errorf("%w: %w", refusal.New(what, err.Error(), "see lsattr, and chattr -i if nobody means it"), err)
	}
	return err
}

package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

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
	there, err := isFolder(b.Folder)
	if err != nil {
		return err
	}
	if there {
		ix, err := r.index(b.Folder)
		if err != nil {
			return err
		}
		if at, _, err := ix.differing(b.Folder); err != nil || len(at) == 0 { // another module has the same one
			return err
		}
	}
	digest := b.Artifact.Digest
	part := filepath.Join(r.cfg.BundleDir, partPrefix+digest)
	err = r.download(ctx, b.Artifact, part)
	if err == nil {
		r.cfg.FailPoint(bundleFetched)
		err = r.unpack(ctx, part, b, there)
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
			w := &chunkWriter{f: f, r: r, size: a.Size, until: r.until}
			err = r.cfg.Fetch(ctx, a, from, w)
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

// chunkWriter tells the fail point of each chunk, and ends the fetch after a chunk once the pass has waited
// long enough: what came stays, and the next pass goes on.
type chunkWriter struct {
	f     *os.File
	r     *run
	size  int64
	until time.Time
}

func (w *chunkWriter) Write(b []byte) (int, error) {
	n, err := w.f.Write(b)
	w.r.cfg.FailPoint(chunkWritten)
	if err != nil || w.r.cfg.Clock.Now().Before(w.until) {
		return n, err
	}
	at, err := w.f.Seek(0, io.SeekCurrent)
	if err != nil || at >= w.size {
		return n, err
	}
	// In coarse steps, for each is news to who waits.
	return n, &late{fmt.Sprintf("its bundle is on its way, about %d %% of %d MiB are here", at*10/w.size*10, (w.size+1<<20-1)>>20), fetchOn, false}
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

func (r *run) unpack(ctx context.Context, part string, b *resource.Bundle, there bool) (err error) {
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
	if there {
		return errors.Join(r.putRight(b.Folder, tmp), os.RemoveAll(tmp))
	}
	ix, err := scan(tmp)
	if err == nil {
		err = ix.save(b.Folder)
	}
	if err == nil {
		err = syncFS(tmp)
	}
	if err != nil {
		return errors.Join(err, dropIndex(b.Folder))
	}
	r.cfg.FailPoint(bundleSynced)
	if err := os.Rename(tmp, b.Folder); err != nil {
		return err
	}
	r.cfg.FailPoint(bundleNamed)
	r.know(b.Folder, ix)
	return syncDir(r.cfg.BundleDir)
}

// putRight brings what was altered in folder back from the same bundle unpacked at fresh.
func (r *run) putRight(folder, fresh string) error {
	ix, err := r.index(folder)
	if err != nil {
		return err
	}
	at, _, err := ix.differing(folder)
	if err == nil {
		err = ix.mend(folder, fresh, at)
	}
	if err != nil {
		return err
	}
	if at, what, err := ix.differing(folder); err != nil || len(at) > 0 {
		return cmp.Or(err, fmt.Errorf("%s after it was put right", what))
	}
	r.mu.Lock()
	r.mended[folder] = r.cfg.Clock.Now()
	r.mu.Unlock()
	return errors.Join(ix.save(folder), syncFS(folder))
}

// index is indexOf for those who fetch side by side.
func (r *run) index(folder string) (*index, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.indexOf(folder)
}

func (r *run) know(folder string, ix *index) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.indexes[folder] = ix
}

func dropIndex(folder string) error {
	if err := os.Remove(indexPath(folder)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
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
	folder := filepath.Join(r.cfg.BundleDir, digest)
	err := os.Rename(folder, tmp)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	r.mu.Lock()
	delete(r.indexes, folder)
	delete(r.mended, folder)
	r.mu.Unlock()
	return errors.Join(err, os.RemoveAll(tmp), dropIndex(folder))
}

// sweepBundles removes what a kill left behind, the bytes of bundles that nothing declares, and bundles that
// neither the declaration nor the ledger knows: those of a store that was lost.
func (e *Engine) sweepBundles(w *work) {
	entries, err := os.ReadDir(e.cfg.BundleDir)
	if err != nil {
		return // nothing was ever fetched
	}
	wanted, known := map[string]bool{}, map[string]bool{}
	for _, r := range w.resources {
		if r.Kind == resource.KindBundle {
			wanted[r.Bundle.Artifact.Digest], known[r.Bundle.Artifact.Digest] = true, true
		}
	}
	for _, row := range w.ledger {
		if row.Kind == string(resource.KindBundle) {
			known[row.ID[strings.LastIndexByte(row.ID, '/')+1:]] = true
		}
	}
	there := func(digest string) bool {
		is, err := isFolder(filepath.Join(e.cfg.BundleDir, digest))
		return err != nil || is
	}
	stays := func(name string) bool {
		if digest, ok := strings.CutPrefix(name, partPrefix); ok {
			return wanted[digest] && !there(digest) // it is resumed
		}
		if digest, ok := strings.CutPrefix(name, indexPrefix); ok {
			return there(digest)
		}
		if strings.HasPrefix(name, unpackPrefix) {
			return false
		}
		// What a module has that cannot be read now is not known to be its.
		return bundle.CheckDigest(name) != nil || known[name] || len(w.unreadable) > 0
	}
	slices.Reverse(entries) // an index comes before its folder, and goes after it
	for _, entry := range entries {
		if stays(entry.Name()) {
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
		return refusal.Because(err, what, "disk full: "+err.Error(), "free some space; it is tried again by itself")
	case errors.Is(err, file.ErrReadOnly) || errors.Is(err, unix.EROFS):
		return refusal.Because(err, what, "read-only file system: "+err.Error(), "look at the disk (dmesg) and mount it writable; it is tried again by itself")
	case errors.Is(err, file.ErrImmutable):
		return refusal.Because(err, what, err.Error(), "see lsattr, and chattr -i if nobody means it")
	}
	return err
}

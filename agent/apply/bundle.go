package apply

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
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
// they broke off; unpacked under another name, while they come; checked; synced; renamed. The folder is whole
// and of the right bytes, or not there.
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
	part := filepath.Join(r.cfg.BundleDir, partPrefix+b.Artifact.Digest)
	tmp := filepath.Join(r.cfg.BundleDir, unpackPrefix+b.Artifact.Digest)
	sums, err := r.open(ctx, b.Artifact, part, tmp)
	if err == nil {
		r.cfg.FailPoint(bundleOpened)
		err = r.place(b.Folder, tmp, sums, there)
	}
	if e := os.RemoveAll(tmp); e != nil { // it is in its place, or of no use
		err = errors.Join(err, e)
	}
	// On a full disk the bytes are given back, and a bundle that was refused is not kept. All else may be
	// resumed.
	if err == nil || noSpace(err) || refusal.Of(err) != nil {
		err = errors.Join(err, removeFile(part))
	}
	return err
}

func removeFile(at string) error {
	if err := os.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
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

// open has the bundle's bytes fetched into part and unpacked in tmp, and returns the sums of its files, once
// its digest is right. From the start both is done side by side; what was begun before is fetched first.
func (r *run) open(ctx context.Context, a declaration.Artifact, part, tmp string) (sums map[string]string, err error) {
	f, err := os.OpenFile(part, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := os.RemoveAll(tmp); err != nil {
		return nil, err
	}
	if err := os.Mkdir(tmp, 0o700); err != nil { // nobody looks in before the digest is right
		return nil, err
	}
	from, err := r.resume(f, a)
	if err != nil {
		return nil, err
	}
	// What is still to come, and what it unpacks to, which is hardly ever less.
	at, _ := bundle.Span(from, a.Size)
	if err := r.room(2*a.Size - at); err != nil {
		return nil, err
	}
	u := &unpacking{r: r, tmp: tmp, sum: sha256.New(), sums: map[string]string{}}
	if from == 0 {
		return u.sums, r.stream(ctx, a, f, u)
	}
	if from < a.Chunks {
		if err := r.cfg.Fetch(ctx, a, from, &chunkWriter{f: f, r: r, size: a.Size, until: r.until}); err != nil {
			return nil, err
		}
	}
	r.cfg.FailPoint(bundleFetched)
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	return u.sums, u.all(ctx, f, a.Digest)
}

// stream fetches and unpacks side by side.
func (r *run) stream(ctx context.Context, a declaration.Artifact, f *os.File, u *unpacking) error {
	chunks, opened := make(chan []byte, ahead), make(chan error, 1)
	u.gone = make(chan struct{})
	go func() { // ends when chunks is closed
		opened <- u.all(ctx, &chunkReader{chunks: chunks}, a.Digest)
		close(u.gone)
		for range chunks { // what comes after it gave up
		}
	}()
	err := r.cfg.Fetch(ctx, a, 0, &chunkWriter{f: f, r: r, size: a.Size, until: r.until, pass: chunks, gone: u.gone})
	if err == nil {
		r.cfg.FailPoint(bundleFetched)
	}
	close(chunks)
	if failed := <-opened; failed != nil && (err == nil || errors.Is(err, errGaveUp)) {
		return failed // else the bytes ended in the middle
	}
	return err
}

// ahead is how many chunks may have come that are not unpacked yet.
const ahead = 4

// unpacking is one bundle being opened.
type unpacking struct {
	r    *run
	tmp  string
	sum  hash.Hash
	sums map[string]string // of the files' content, by name
	gone chan struct{}     // closed when it takes no more chunks; nil when it reads a file
}

// all unpacks what in has to its very end, and refuses other bytes than digest says: that is said first,
// whatever they made of the archive.
func (u *unpacking) all(ctx context.Context, in io.Reader, digest string) error {
	in = io.TeeReader(in, u.sum)
	err := unpackInto(ctx, in, u.tmp, bundle.Hooks{
		File: func(name, sum string) { u.sums[name] = sum },
		Room: u.r.room,
	})
	if err != nil && refusal.Of(err) == nil {
		return err
	}
	if _, e := io.Copy(io.Discard, in); e != nil { // only after a refusal is there anything left
		return e
	}
	if got := hex.EncodeToString(u.sum.Sum(nil)); got != digest {
		return bundle.Differs(digest, got)
	}
	return err
}

// chunkReader reads chunks one after the other.
type chunkReader struct {
	chunks <-chan []byte
	now    []byte
}

func (c *chunkReader) Read(b []byte) (int, error) {
	for len(c.now) == 0 {
		next, more := <-c.chunks
		if !more {
			return 0, io.EOF
		}
		c.now = next
	}
	n := copy(b, c.now)
	c.now = c.now[n:]
	return n, nil
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

// chunkWriter keeps each chunk and passes it on, tells its fail point, and ends the fetch after a chunk once
// the pass has waited long enough: what came stays, and the next pass goes on.
type chunkWriter struct {
	f     *os.File
	r     *run
	size  int64
	until time.Time
	pass  chan<- []byte   // nil: nobody unpacks meanwhile
	gone  <-chan struct{} // who unpacks takes no more
}

// errGaveUp ends a fetch whose bytes nobody takes: why is said by who gave up.
var errGaveUp = errors.New("what came could not be unpacked")

func (w *chunkWriter) Write(b []byte) (int, error) {
	n, err := w.f.Write(b)
	if err == nil && w.pass != nil {
		select {
		case w.pass <- b: // the fetch makes a new one for each chunk
		case <-w.gone:
			err = errGaveUp
		}
	}
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

// room refuses what would not leave the reserve. When it does not fit, bundles that are to go anyway go
// first (APP-13).
func (r *run) room(need int64) error {
	err := r.fits(need)
	if err == nil {
		return nil
	}
	for _, s := range r.w.plan.Steps {
		if s.Op != plan.RemoveBundle {
			continue
		}
		if e := r.removeBundle(s.ID); e != nil {
			return errors.Join(err, e)
		}
		if err = r.fits(need); err == nil {
			return nil
		}
	}
	return err
}

func (r *run) fits(need int64) error {
	var s unix.Statfs_t
	if err := unix.Statfs(r.cfg.BundleDir, &s); err != nil {
		return err
	}
	if free := int64(s.Bavail) * s.Bsize; free < need+r.cfg.Reserve {
		return fmt.Errorf("%w: %d MiB are free, the bundle needs %d and leaves %d", file.ErrNoSpace, free>>20, (need+1<<20-1)>>20, r.cfg.Reserve>>20)
	}
	return nil
}

// place syncs what was unpacked in tmp and puts it to folder, or mends what was altered there.
func (r *run) place(folder, tmp string, sums map[string]string, there bool) error {
	if there {
		return r.putRight(folder, tmp)
	}
	ix, err := scan(tmp, sums)
	if err == nil {
		err = ix.save(folder)
	}
	if err == nil {
		err = os.Chmod(tmp, 0o755) // its programs run as other users
	}
	if err == nil {
		// What came is not needed any more, and would be written to the disk with the rest.
		err = removeFile(filepath.Join(r.cfg.BundleDir, partPrefix+filepath.Base(folder)))
	}
	if err == nil {
		err = syncFS(tmp)
	}
	if err != nil {
		return errors.Join(err, dropIndex(folder))
	}
	r.cfg.FailPoint(bundleSynced)
	if err := os.Rename(tmp, folder); err != nil {
		return err
	}
	r.cfg.FailPoint(bundleNamed)
	r.know(folder, ix)
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

func unpackInto(ctx context.Context, in io.Reader, dir string, hooks bundle.Hooks) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	err = bundle.Unpack(ctx, in, root, bundle.Default(), hooks)
	return errors.Join(err, root.Close())
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

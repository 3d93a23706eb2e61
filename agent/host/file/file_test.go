package file

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mesh/shared/refusal"
	"mesh/shared/waitfor"
)

// These tests need root: they change owners, attributes and mounts.

func open(t testing.TB, dir string) *Root {
	t.Helper()
	r, err := OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func content(t testing.TB, path string) string {
	t.Helper()
	return string(must[[]byte](t)(os.ReadFile(path)))
}

// tidy fails the test if a temporary file is left below dir.
func tidy(t testing.TB, dir string) {
	t.Helper()
	must[any](t)(nil, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasPrefix(d.Name(), tempPrefix) {
			t.Errorf("left behind: %s", p)
		}
		return err
	}))
}

func TestWriteMakesWhatIsAskedAndNothingMore(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir)
	spec := Spec{Path: "/motd", Content: []byte("hi\n"), Mode: 0o644}
	for _, tt := range []struct {
		name    string
		spec    func(s *Spec)
		changed bool
	}{
		{"absent", func(*Spec) {}, true},
		{"in order", func(*Spec) {}, false},
		{"other content of the same length", func(s *Spec) { s.Content = []byte("ho\n") }, true},
		{"shorter content", func(s *Spec) { s.Content = nil }, true},
		{"large content", func(s *Spec) { s.Content = bytes.Repeat([]byte("x"), 3*bufferSize+5) }, true},
		{"large content in order", func(s *Spec) { s.Content = bytes.Repeat([]byte("x"), 3*bufferSize+5) }, false},
		{"mode", func(s *Spec) { s.Mode = 0o600 }, true},
		{"owner", func(s *Spec) { s.UID, s.GID = 65534, 65533 }, true},
		{"setuid with an owner", func(s *Spec) { s.UID = 65534; s.Mode = fs.ModeSetuid | 0o755 }, true},
	} {
		s := spec
		tt.spec(&s)
		before := must[State](t)(r.Observe(s.Path))
		changed, err := r.Write(s)
		if err != nil || changed != tt.changed {
			t.Fatalf("%s: Write = %v, %v; want %v", tt.name, changed, err, tt.changed)
		}
		after := must[State](t)(r.Observe(s.Path))
		if !changed && after != before {
			t.Errorf("%s: nothing to do, and yet %+v became %+v", tt.name, before, after)
		}
		if after.Kind != File || after.Sum != sha256.Sum256(s.Content) || after.Mode != s.Mode || after.UID != s.UID || after.GID != s.GID {
			t.Errorf("%s: asked for %v %d:%d, got %+v", tt.name, s.Mode, s.UID, s.GID, after)
		}
		if !r.Unchanged(s.Path, after.Fingerprint) || (changed && r.Unchanged(s.Path, before.Fingerprint)) {
			t.Errorf("%s: Unchanged does not tell the file before from the file after", tt.name)
		}
	}
	tidy(t, dir)
}

func TestWriteCarriesAttributesAndAccessListOver(t *testing.T) {
	dir := t.TempDir()
	r, path := open(t, dir), filepath.Join(dir, "f")
	must[bool](t)(r.Write(Spec{Path: "/f", Content: []byte("a"), Mode: 0o640}))
	// user::rw- user:65534:r-- group::r-- mask::r-- other::---
	acl := []byte{2, 0, 0, 0,
		1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 4, 0, 254, 255, 0, 0, 4, 0, 4, 0, 255, 255, 255, 255,
		16, 0, 4, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255}
	for name, value := range map[string][]byte{
		"user.note": []byte("kept"), "system.posix_acl_access": acl, "security.label": []byte("etc_t"),
		"trusted.other": []byte("not ours"),
	} {
		if err := unix.Setxattr(path, name, value, 0); err != nil {
			t.Fatalf("setxattr %s: %v", name, err)
		}
	}
	must[bool](t)(r.Write(Spec{Path: "/f", Content: []byte("b"), Mode: 0o640}))
	for name, want := range map[string][]byte{"user.note": []byte("kept"), "system.posix_acl_access": acl, "security.label": []byte("etc_t")} {
		got := make([]byte, 256)
		n, err := unix.Getxattr(path, name, got)
		if err != nil || !bytes.Equal(got[:n], want) {
			t.Errorf("%s = %v, %v; want %v", name, got[:max(n, 0)], err, want)
		}
	}
	if _, err := unix.Getxattr(path, "trusted.other", nil); err != unix.ENODATA {
		t.Errorf("trusted.other: %v, want it left behind", err)
	}
	if s := must[State](t)(r.Observe("/f")); s.Mode != 0o640 {
		t.Errorf("mode %v after the access list, want 0640", s.Mode)
	}
}

func TestWhatIsRefused(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir)
	os.Mkdir(filepath.Join(dir, "folder"), 0o755)
	os.WriteFile(filepath.Join(dir, "file"), []byte("old"), 0o644)
	os.Symlink("file", filepath.Join(dir, "link"))
	unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600)
	os.Mkdir(filepath.Join(dir, "home"), 0o755)
	os.Chown(filepath.Join(dir, "home"), 1000, 1000)
	os.Symlink("../folder", filepath.Join(dir, "home", "planted"))
	spec := func(path string) Spec { return Spec{Path: path, Content: []byte("new"), Mode: 0o644} }
	for _, tt := range []struct {
		name string
		do   func() error
		want error
	}{
		{"a folder at the target", func() error { _, err := r.Write(spec("/folder")); return err }, ErrOccupied},
		{"a symlink at the target", func() error { _, err := r.Write(spec("/link")); return err }, ErrOccupied},
		{"a pipe at the target", func() error { _, err := r.Write(spec("/pipe")); return err }, ErrOccupied},
		{"the root itself", func() error { _, err := r.Write(spec("/..")); return err }, ErrOccupied},
		{"a planted symlink on the way", func() error { _, err := r.Write(spec("/home/planted/f")); return err }, ErrUntrustedLink},
		{"a link where a file is", func() error { _, err := r.Link("/file", "elsewhere"); return err }, ErrOccupied},
		{"a folder where a file is", func() error { _, err := r.MakeDir(DirSpec{Path: "/file", Mode: 0o755}); return err }, ErrOccupied},
		{"a folder where a link to a folder is", func() error {
			_, err := r.MakeDir(DirSpec{Path: "/home/planted", Mode: 0o755})
			return err
		}, ErrOccupied},
		{"unlinking a folder", func() error { _, err := r.Remove("/folder"); return err }, ErrOccupied},
		{"removing a file as a folder", func() error { _, err := r.RemoveDir("/file"); return err }, ErrOccupied},
		{"reading a pipe", func() error { _, err := r.Read("/pipe", 10); return err }, ErrOccupied},
	} {
		err := tt.do()
		if !errors.Is(err, tt.want) || refusal.Of(err) == nil {
			t.Errorf("%s: %v, want a refusal that is %v", tt.name, err, tt.want)
		}
	}
	s := spec("/file")
	s.MustNotExist = true
	if _, err := r.Write(s); !errors.Is(err, ErrExists) {
		t.Errorf("must not exist: %v, want ErrExists", err)
	}
	if _, err := r.Write(spec("relative")); refusal.Of(err) == nil {
		t.Errorf("a relative path: %v, want a refusal", err)
	}
	if _, err := r.Write(spec("/none/f")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no folder: %v, want ErrNotExist", err)
	}
	if _, err := r.Write(spec("/file/f")); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("a file as folder: %v, want ENOTDIR", err)
	}
	if _, err := r.Read("/file", 2); !errors.Is(err, unix.EFBIG) {
		t.Errorf("a file past the limit: %v", err)
	}
	if got := content(t, filepath.Join(dir, "file")); got != "old" {
		t.Errorf("the refused file now says %q", got)
	}
	tidy(t, dir)
}

func TestARaceForANewNameIsLost(t *testing.T) {
	dir := t.TempDir()
	fd := must[int](t)(openAt(unix.AT_FDCWD, dir, unix.O_DIRECTORY, 0))
	defer closeFD(fd)
	os.WriteFile(filepath.Join(dir, "theirs"), []byte("theirs"), 0o644)
	os.WriteFile(filepath.Join(dir, "ours"), []byte("ours"), 0o644)
	if err := rename(fd, "ours", "theirs", true); !errors.Is(err, unix.EEXIST) {
		t.Errorf("rename over a file that came meanwhile: %v", err)
	}
	if got := content(t, filepath.Join(dir, "theirs")); got != "theirs" {
		t.Errorf("it now says %q", got)
	}
}

func TestPathsStayBelowTheRoot(t *testing.T) {
	outer := t.TempDir()
	root := filepath.Join(outer, "root")
	for _, d := range []string{"root/run/lock", "root/usr/lib", "root/a/b", "run"} {
		os.MkdirAll(filepath.Join(outer, d), 0o755)
	}
	for link, target := range map[string]string{
		"var-run": "/run", "lib": "usr/lib", "climb": "../../../run", "twice": "var-run", "a/up": "../run/./lock",
		"up-again": "a/up/..", "self": "self",
	} {
		os.Symlink(target, filepath.Join(root, link))
	}
	r := open(t, root)
	for path, lands := range map[string]string{
		"/var-run/x1": "run/x1", "/lib/x2": "usr/lib/x2", "/climb/x3": "run/x3", "/twice/x4": "run/x4",
		"/a/up/x5": "run/lock/x5", "/up-again/x6": "run/x6", "/a/b/../../../../x7": "x7", "//a/./b//x8": "a/b/x8",
	} {
		if _, err := r.Write(Spec{Path: path, Content: []byte(path), Mode: 0o644}); err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if got := content(t, filepath.Join(root, lands)); got != path {
			t.Errorf("%s: %s says %q", path, lands, got)
		}
		if s := must[State](t)(r.Observe(path)); !s.Exists || s.Sum != sha256.Sum256([]byte(path)) {
			t.Errorf("%s: observed %+v", path, s)
		}
	}
	if _, err := r.Write(Spec{Path: "/self/x", Mode: 0o644}); !errors.Is(err, unix.ELOOP) {
		t.Errorf("a link to itself: %v, want ELOOP", err)
	}
	if left := must[[]os.DirEntry](t)(os.ReadDir(filepath.Join(outer, "run"))); len(left) != 0 {
		t.Errorf("something climbed out: %v", left)
	}
}

func TestFoldersLinksAndSweep(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir)
	deep := DirSpec{Path: "/srv/app/data", Mode: fs.ModeSticky | 0o750, UID: 65534, GID: 65534, Parents: true}
	for i, want := range []bool{true, false} {
		if changed, err := r.MakeDir(deep); err != nil || changed != want {
			t.Fatalf("MakeDir %d = %v, %v", i, changed, err)
		}
	}
	if s := must[State](t)(r.Observe("/srv/app/data")); s.Kind != Dir || s.Mode != deep.Mode || s.UID != 65534 {
		t.Errorf("folder: %+v", s)
	}
	if s := must[State](t)(r.Observe("/srv/app")); s.Mode != 0o755 || s.UID != 0 {
		t.Errorf("folder above: %+v", s)
	}
	for i, tt := range []struct {
		target  string
		changed bool
	}{{"one", true}, {"one", false}, {"two", true}} {
		if changed, err := r.Link("/srv/current", tt.target); err != nil || changed != tt.changed {
			t.Errorf("Link %d = %v, %v", i, changed, err)
		}
		if s := must[State](t)(r.Observe("/srv/current")); s.Kind != Symlink || s.Target != tt.target {
			t.Errorf("link: %+v", s)
		}
	}
	if _, err := r.RemoveDir("/srv/app"); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("a full folder: %v", err)
	}
	for _, name := range []string{tempName(), tempName(), ".mesh-mine", ".mesh-0123456789ABCDEF", "keep"} {
		os.WriteFile(filepath.Join(dir, "srv", name), nil, 0o600)
	}
	if n, err := r.SweepTemp("/srv"); n != 2 || err != nil {
		t.Errorf("SweepTemp = %d, %v", n, err)
	}
	if n, err := r.SweepTemp("/nowhere"); n != 0 || err != nil {
		t.Errorf("SweepTemp of nothing = %d, %v", n, err)
	}
	must[any](t)(nil, r.SyncFS("/srv/app"))
	for _, tt := range []struct {
		remove func(string) (bool, error)
		path   string
		want   bool
	}{
		{r.Remove, "/srv/keep", true}, {r.Remove, "/srv/keep", false}, {r.Remove, "/no/where", false},
		{r.Remove, "/srv/current", true}, {r.RemoveDir, "/srv/app/data", true}, {r.RemoveDir, "/srv/app/data", false},
		{r.RemoveDir, "/no/where", false},
	} {
		if got, err := tt.remove(tt.path); got != tt.want || err != nil {
			t.Errorf("remove %s = %v, %v; want %v", tt.path, got, err, tt.want)
		}
	}
	if s := must[State](t)(r.Observe("/srv/app/data/f")); s.Exists {
		t.Errorf("nothing there: %+v", s)
	}
}

// mounted gives the test a mount namespace of its own with a tmpfs of size bytes. What is mounted is
// seen by this goroutine only and ends with it, so no subtests.
func mounted(t *testing.T, options string) string {
	t.Helper()
	dir := t.TempDir()
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		t.Fatalf("this test needs root: %v", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

func TestAFullDiskKeepsTheOldContent(t *testing.T) {
	dir := mounted(t, "size=256k")
	r := open(t, dir)
	must[bool](t)(r.Write(Spec{Path: "/f", Content: []byte("old"), Mode: 0o644}))
	_, err := r.Write(Spec{Path: "/f", Content: make([]byte, 1<<20), Mode: 0o644})
	if !errors.Is(err, ErrNoSpace) || !errors.Is(err, unix.ENOSPC) {
		t.Errorf("Write on a full disk: %v, want ErrNoSpace", err)
	}
	if got := content(t, filepath.Join(dir, "f")); got != "old" {
		t.Errorf("the file says %.20q", got)
	}
	tidy(t, dir)
	if _, err := r.Write(Spec{Path: "/f", Content: []byte("new"), Mode: 0o644}); err != nil {
		t.Errorf("a small write after: %v", err)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"write":  second(r.Write(Spec{Path: "/f", Content: []byte("x"), Mode: 0o644})),
		"remove": second(r.Remove("/f")),
		"folder": second(r.MakeDir(DirSpec{Path: "/d", Mode: 0o755})),
		"link":   second(r.Link("/l", "f")),
	} {
		if !errors.Is(err, ErrReadOnly) {
			t.Errorf("%s on a read-only file system: %v", what, err)
		}
	}
	if changed, err := r.Write(Spec{Path: "/f", Content: []byte("new"), Mode: 0o644}); changed || err != nil {
		t.Errorf("a file in order on a read-only file system: %v, %v", changed, err)
	}
}

func second(_ bool, err error) error { return err }

func TestAMountedFileIsNamedAsSuch(t *testing.T) {
	dir := mounted(t, "size=1m")
	r := open(t, dir)
	for _, name := range []string{"source", "target"} {
		os.WriteFile(filepath.Join(dir, name), []byte(name), 0o644)
	}
	if err := unix.Mount(filepath.Join(dir, "source"), filepath.Join(dir, "target"), "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(filepath.Join(dir, "target"), unix.MNT_DETACH) }()
	if _, err := r.Write(Spec{Path: "/target", Content: []byte("x"), Mode: 0o644}); !errors.Is(err, ErrMountPoint) {
		t.Errorf("Write to a bind-mounted file: %v, want ErrMountPoint", err)
	}
	if got := content(t, filepath.Join(dir, "target")); got != "source" {
		t.Errorf("it says %q", got)
	}
	tidy(t, dir)
}

func TestAnImmutableFileIsNamedAsSuch(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir)
	must[bool](t)(r.Write(Spec{Path: "/f", Content: []byte("old"), Mode: 0o644}))
	flag := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("chattr", append(args, filepath.Join(dir, "f"))...).CombinedOutput(); err != nil {
			t.Fatalf("chattr: %v: %s", err, out)
		}
	}
	flag("+i")
	defer flag("-i")
	for what, err := range map[string]error{
		"write":  second(r.Write(Spec{Path: "/f", Content: []byte("new"), Mode: 0o644})),
		"remove": second(r.Remove("/f")),
	} {
		if !errors.Is(err, ErrImmutable) {
			t.Errorf("%s: %v, want ErrImmutable", what, err)
		}
	}
	if got := content(t, filepath.Join(dir, "f")); got != "old" {
		t.Errorf("it says %q", got)
	}
	tidy(t, dir)
}

// TestKilledAtAnyTime kills a process that writes two contents in turn: the file is always one of the
// two, whole, and a sweep clears what is left. (A kill, not a power cut: the page cache lives on.)
func TestKilledAtAnyTime(t *testing.T) {
	contents := [][]byte{bytes.Repeat([]byte("a"), 300_000), bytes.Repeat([]byte("b"), 200_000)}
	if dir := os.Getenv("MESH_TEST_WRITE_FOREVER"); dir != "" {
		r := open(t, dir)
		for i := 0; ; i++ {
			must[bool](t)(r.Write(Spec{Path: "/f", Content: contents[i%2], Mode: 0o644}))
		}
	}
	dir := t.TempDir()
	r := open(t, dir)
	for range 15 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestKilledAtAnyTime$")
		cmd.Env = append(os.Environ(), "MESH_TEST_WRITE_FOREVER="+dir)
		must[any](t)(nil, cmd.Start())
		first := must[State](t)(r.Observe("/f"))
		waitfor.True(t, "the first writes", 20*time.Second, func() (bool, any) {
			s, err := r.Observe("/f")
			return err == nil && s.Exists && s.Inode != first.Inode, err
		})
		must[any](t)(nil, cmd.Process.Kill())
		_ = cmd.Wait() // killed, as asked
		got := must[[]byte](t)(r.Read("/f", 1<<20))
		if !slices.ContainsFunc(contents, func(c []byte) bool { return bytes.Equal(c, got) }) {
			t.Fatalf("the file has %d bytes, neither content", len(got))
		}
		must[int](t)(r.SweepTemp("/"))
		tidy(t, dir)
	}
}

func TestSettled(t *testing.T) {
	at := time.Unix(1000, 0)
	f := Fingerprint{Ctime: at.UnixNano()}
	for _, tt := range []struct {
		now  time.Time
		want bool
	}{{at, false}, {at.Add(50 * time.Millisecond), false}, {at.Add(51 * time.Millisecond), true}, {at.Add(-time.Hour), false}} {
		if got := f.Settled(tt.now); got != tt.want {
			t.Errorf("Settled(%v) = %v", tt.now, got)
		}
	}
}

func BenchmarkWrite(b *testing.B) {
	r := open(b, b.TempDir())
	s := Spec{Path: "/f", Content: bytes.Repeat([]byte("setting = value\n"), 64), Mode: 0o644}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		copy(s.Content, fmt.Sprintf("%08d", i))
		if changed, err := r.Write(s); err != nil || !changed {
			b.Fatal(changed, err)
		}
	}
}

// BenchmarkWriteFloor is the least a lasting write can cost: the same syncs with nothing around them.
func BenchmarkWriteFloor(b *testing.B) {
	dir := b.TempDir()
	content := bytes.Repeat([]byte("setting = value\n"), 64)
	d := must[*os.File](b)(os.Open(dir))
	defer d.Close()
	for i := 0; b.Loop(); i++ {
		copy(content, fmt.Sprintf("%08d", i))
		f := must[*os.File](b)(os.Create(filepath.Join(dir, "tmp")))
		f.Write(content)
		must[any](b)(nil, f.Sync())
		f.Close()
		must[any](b)(nil, os.Rename(filepath.Join(dir, "tmp"), filepath.Join(dir, "f")))
		must[any](b)(nil, d.Sync())
	}
}

func many(b *testing.B) (*Root, []string, []Fingerprint) {
	r := open(b, b.TempDir())
	var paths []string
	var prints []Fingerprint
	for i := range 200 {
		s := Spec{Path: fmt.Sprintf("/etc/app%d/conf.d/setting", i%20), Content: bytes.Repeat([]byte("setting = value\n"), 64), Mode: 0o644, NoSync: true}
		must[bool](b)(r.MakeDir(DirSpec{Path: filepath.Dir(s.Path), Mode: 0o755, Parents: true}))
		s.Path += fmt.Sprint(i)
		must[bool](b)(r.Write(s))
		paths = append(paths, s.Path)
		prints = append(prints, must[State](b)(r.Observe(s.Path)).Fingerprint)
	}
	return r, paths, prints
}

func BenchmarkObserve200(b *testing.B) {
	r, paths, _ := many(b)
	b.ReportAllocs()
	for b.Loop() {
		for _, p := range paths {
			if s, err := r.Observe(p); err != nil || !s.Exists {
				b.Fatal(s, err)
			}
		}
	}
}

func BenchmarkUnchanged200(b *testing.B) {
	r, paths, prints := many(b)
	b.ReportAllocs()
	for b.Loop() {
		for i, p := range paths {
			if !r.Unchanged(p, prints[i]) {
				b.Fatal(p)
			}
		}
	}
}

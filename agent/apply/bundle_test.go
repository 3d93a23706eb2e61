package apply_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mesh/agent/apply"
	"mesh/shared/bundle"
	"mesh/shared/declaration"
	"mesh/shared/manifest"
	"mesh/shared/report"
)

// noise is n bytes that no archive makes smaller.
func noise(n int) string {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(b) // it never fails
	return string(b)
}

func bundled(b *bed, t *testing.T, content string) mod {
	return module("big", manifest.Run{Files: []manifest.File{file("/etc/big", "x")}, Processes: map[string]manifest.Process{"p": {Exec: []string{"bin/p"}}}}).
		with(b.artifact(t, map[string]string{"bin/p": content}))
}

// APP-13: what came stays, and the rest is fetched.
func TestFetchIsResumed(t *testing.T) {
	b := newBed(t)
	m := bundled(b, t, noise(5*bundle.ChunkSize))
	part := b.path("state/bundles/.part-" + m.artifact.Digest)
	var asked []int
	b.fetched = func(a declaration.Artifact, from int) error {
		asked = append(asked, from)
		if from > 0 {
			return nil
		}
		content, err := os.ReadFile(b.path("artifacts/" + a.Digest))
		must(t, err)
		must(t, os.WriteFile(part, content[:3*bundle.ChunkSize+100], 0o600)) // the link breaks in a chunk
		return errors.New("the link broke")
	}
	r := b.accept(t, 1, m)
	if r.Outcome != report.Failed || !strings.Contains(r.Modules[0].Detail, "the link broke") || b.read(t, "/etc/big") != "(absent)" {
		t.Fatalf("%+v", r)
	}
	b.restart(t)
	applied(t, b.pass(t, apply.Boot))
	if !slices.Equal(asked, []int{0, 3}) {
		t.Errorf("fetched from chunks %v, want 0, 3", asked)
	}
	if names := dirNames(t, b.path("state/bundles")); !slices.Equal(names, []string{m.artifact.Digest}) {
		t.Errorf("in the folder of bundles: %v", names)
	}
	if got, err := os.ReadFile(b.path("state/bundles/" + m.artifact.Digest + "/bin/p")); err != nil || len(got) != 5*bundle.ChunkSize {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	// Programs run as other users: the way to them is open, what is beside them is not.
	for p, want := range map[string]os.FileMode{"state": 0o711, "state/bundles": 0o711, "state/state.db": 0o600} {
		if st, err := os.Stat(b.path(p)); err != nil || st.Mode().Perm() != want {
			t.Errorf("%s has mode %v, want %v (%v)", p, st.Mode().Perm(), want, err)
		}
	}
}

func TestWrongBytesAreRefused(t *testing.T) {
	b := newBed(t)
	m := bundled(b, t, "program")
	right := b.path("artifacts/" + m.artifact.Digest)
	content, err := os.ReadFile(right)
	must(t, err)
	must(t, os.WriteFile(right, append([]byte("x"), content[1:]...), 0o644))
	r := b.accept(t, 1, m)
	if r.Outcome != report.Failed || !strings.Contains(r.Modules[0].Detail, "its bytes have the digest") || b.units.get(t, "mesh-big-p.service").Starts > 0 {
		t.Fatalf("%+v", r)
	}
	if names := dirNames(t, b.path("state/bundles")); len(names) > 0 {
		t.Errorf("kept: %v", names)
	}
	must(t, os.WriteFile(right, content, 0o644))
	b.clock.Advance(time.Minute)
	applied(t, b.pass(t, apply.Reconcile))
}

func TestTwoModulesWithOneBundle(t *testing.T) {
	b := newBed(t)
	one, two := bundled(b, t, "program"), bundled(b, t, "program")
	two.Module, two.Run.Files = "two", nil
	applied(t, b.accept(t, 1, one, two))
	applied(t, b.accept(t, 2, two))
	if names := dirNames(t, b.path("state/bundles")); len(names) != 1 {
		t.Errorf("bundles %v", names)
	}
	applied(t, b.accept(t, 3))
	if names := dirNames(t, b.path("state/bundles")); len(names) != 0 {
		t.Errorf("bundles %v", names)
	}
}

// dirNames are the names in the folder of bundles, without the index that belongs to each of them.
func dirNames(t testing.TB, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		if of, ok := strings.CutPrefix(e.Name(), ".index-"); ok {
			if _, err := os.Stat(dir + "/" + of); err == nil {
				continue
			}
		}
		names = append(names, e.Name())
	}
	return names
}

// small mounts a file system of size bytes. It needs root.
func small(t *testing.T, dir string, size int) {
	t.Helper()
	must(t, os.MkdirAll(dir, 0o755))
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0755", size)); err != nil {
		t.Fatalf("mount a small file system (root is needed): %v", err)
	}
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
}

// APP-14: a full disk while a bundle arrives.
func TestDiskFullWhileABundleArrives(t *testing.T) {
	for _, tt := range []struct {
		name    string
		content string
		reserve int64
	}{
		{"too large to fetch", noise(3 << 20), 64 << 10},
		{"too large to unpack", strings.Repeat("x", 3<<20), 64 << 10},
		{"the disk fills while it is fetched", noise(3 << 20), -1 << 40},
		{"the disk fills while it is unpacked", strings.Repeat("x", 3<<20), -1 << 40},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, err := makeBed(t.TempDir())
			must(t, err)
			b.reserve = tt.reserve
			small(t, b.path("state/bundles"), 2<<20)
			b.open(t)
			m := bundled(b, t, tt.content)
			other := module("other", files(file("/etc/other", "x")))
			r := b.accept(t, 1, m, other)
			if r.Outcome != report.Failed || !strings.Contains(r.Modules[0].Detail, "disk full") || !strings.Contains(r.Modules[0].Detail, "free some space") {
				t.Errorf("%+v", r)
			}
			if r.Modules[1].State != report.Running || b.read(t, "/etc/other") != "x" {
				t.Errorf("the other module: %+v", r.Modules[1])
			}
			if b.read(t, "/etc/big") != "(absent)" || b.units.get(t, "mesh-big-p.service").Starts > 0 {
				t.Error("half of the module was applied")
			}
			if names := dirNames(t, b.path("state/bundles")); len(names) > 0 {
				t.Errorf("left on the full disk: %v", names)
			}
			first := r.NextTry
			if wait := first.Sub(b.clock.Now()); wait < time.Second || wait > time.Minute {
				t.Errorf("tried again in %v", wait)
			}
			b.clock.Advance(first.Sub(b.clock.Now()))
			if r = b.pass(t, apply.Reconcile); r.Outcome != report.Failed || r.NextTry.Sub(b.clock.Now()) <= first.Sub(b.clock.Now()) {
				t.Errorf("the pause does not grow: %+v", r)
			}
			must(t, unix.Mount("tmpfs", b.path("state/bundles"), "tmpfs", unix.MS_REMOUNT, "size=16m"))
			b.clock.Advance(r.NextTry.Sub(b.clock.Now()))
			applied(t, b.pass(t, apply.Reconcile))
		})
	}
}

// APP-14: a full and then a read-only disk under declared files.
func TestDiskThatTakesNoFile(t *testing.T) {
	b, err := makeBed(t.TempDir())
	must(t, err)
	small(t, b.root("/srv"), 256<<10)
	b.open(t)
	applied(t, b.accept(t, 1, module("notes", files(file("/srv/a", "old"), file("/srv/b", "old")))))
	must(t, os.WriteFile(b.root("/srv/filler"), []byte(noise(230<<10)), 0o644))
	big := module("notes", files(file("/srv/a", strings.Repeat("new", 30<<10)), file("/srv/b", "new")))
	r := b.accept(t, 2, big)
	if r.Outcome != report.Failed || !strings.Contains(r.Modules[0].Detail, "disk full") || r.Seq != 2 {
		t.Errorf("%+v", r)
	}
	if b.read(t, "/srv/a") != "old" || b.read(t, "/srv/b") != "old" || len(dirNames(t, b.root("/srv"))) != 3 {
		t.Errorf("half done: %v", dirNames(t, b.root("/srv")))
	}
	must(t, os.Remove(b.root("/srv/filler")))
	must(t, unix.Mount("tmpfs", b.root("/srv"), "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	b.clock.Advance(time.Minute)
	if r = b.pass(t, apply.Reconcile); !strings.Contains(r.Modules[0].Detail, "read-only file system") {
		t.Errorf("%+v", r)
	}
	must(t, unix.Mount("tmpfs", b.root("/srv"), "tmpfs", unix.MS_REMOUNT, ""))
	b.clock.Advance(time.Minute)
	applied(t, b.pass(t, apply.Reconcile))
	if b.read(t, "/srv/b") != "new" {
		t.Error("it did not go on")
	}
}

func TestSlowBundleHoldsUpNobodyForLong(t *testing.T) {
	b := newBed(t)
	slow := bundled(b, t, "slow")
	gate := make(chan struct{})
	b.fetched = func(declaration.Artifact, int) error { <-gate; return nil }
	done := make(chan apply.Result, 1)
	signed := b.sign(t, 1, b.content(t, slow, module("fast", manifest.Run{Processes: map[string]manifest.Process{"p": {Exec: []string{"/bin/p"}}}})))
	go func() {
		r, err := b.engine.Accept(t.Context(), signed)
		if err != nil {
			t.Error(err)
		}
		done <- r
	}()
	waitUntil(t, "the wait for the bundle", func() bool { return b.clock.Waiting() > 0 })
	b.clock.Advance(5 * time.Second)
	waitUntil(t, "the other module", func() bool { return b.units.get(t, "mesh-fast-p.service").Active == "active" })
	if b.units.get(t, "mesh-big-p.service").Active != "" {
		t.Error("the slow module came first")
	}
	close(gate)
	applied(t, <-done)
	if b.units.get(t, "mesh-big-p.service").Active != "active" {
		t.Error("the slow module never came")
	}
}

// APP-13: the last two builds stay; an older one goes first when the disk has no room for the next.
func TestOlderBundlesMakeRoom(t *testing.T) {
	b, err := makeBed(t.TempDir())
	must(t, err)
	b.reserve = 64 << 10
	const each = 2 << 20
	small(t, b.path("state/bundles"), 7*each/2) // one that is there, the next, and the bytes it comes as
	b.open(t)
	var digests []string
	for n := range 4 {
		content := []byte(noise(each))
		content[0] = byte(n)
		m := bundled(b, t, string(content))
		r := b.accept(t, uint64(n+1), m)
		if r.Outcome != report.Applied {
			t.Fatalf("build %d: %+v", n, r)
		}
		digests = append(digests, m.artifact.Digest)
		b.clock.Advance(time.Minute)
	}
	want := slices.Sorted(slices.Values(digests[2:]))
	if got := dirNames(t, b.path("state/bundles")); !slices.Equal(got, want) {
		t.Errorf("there are %v, want the last two %v", got, want)
	}
}

// APP-14: bundles on a file system that cannot be written are named so, and come once it can.
func TestReadOnlyUnderBundles(t *testing.T) {
	b, err := makeBed(t.TempDir())
	must(t, err)
	b.reserve = 64 << 10
	small(t, b.path("state/bundles"), 8<<20)
	b.open(t)
	must(t, unix.Mount("tmpfs", b.path("state/bundles"), "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	r := b.accept(t, 1, bundled(b, t, "program"))
	if r.Outcome != report.Failed || !strings.Contains(r.Modules[0].Detail, "read-only file system") || !strings.Contains(r.Modules[0].Detail, "mount it writable") || r.NextTry.IsZero() {
		t.Errorf("%+v", r)
	}
	if b.read(t, "/etc/big") != "(absent)" || b.units.get(t, "mesh-big-p.service").Starts > 0 {
		t.Error("half of the module was applied")
	}
	must(t, unix.Mount("tmpfs", b.path("state/bundles"), "tmpfs", unix.MS_REMOUNT, "size=8m"))
	b.clock.Advance(time.Minute)
	applied(t, b.pass(t, apply.Reconcile))
}

// APP-13: what unpacks badly is told apart from what came wrong, and neither is kept.
func TestABundleThatIsNone(t *testing.T) {
	b := newBed(t)
	m := bundled(b, t, "program")
	rubbish := []byte(noise(3*bundle.ChunkSize + 5))
	sum := sha256.Sum256(rubbish)
	m.artifact = &declaration.Artifact{Digest: hex.EncodeToString(sum[:]), Size: int64(len(rubbish)), Chunks: bundle.Chunks(int64(len(rubbish)))}
	must(t, os.WriteFile(b.path("artifacts/"+m.artifact.Digest), rubbish, 0o644))
	r := b.accept(t, 1, m)
	if r.Outcome != report.Failed || !strings.Contains(r.Modules[0].Detail, "damaged, or no gzip") {
		t.Errorf("%+v", r)
	}
	if names := dirNames(t, b.path("state/bundles")); len(names) > 0 {
		t.Errorf("kept: %v", names)
	}
}

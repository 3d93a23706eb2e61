package artifact_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mesh/coordinator/artifact"
	"mesh/coordinator/records"
	"mesh/shared/bundle"
	"mesh/shared/bus"
	"mesh/shared/clock"
	"mesh/shared/controller"
	"mesh/shared/credential"
	"mesh/shared/declaration"
	"mesh/shared/refusal"
	"mesh/shared/subject"
	"mesh/shared/waitfor"
	"mesh/testbus"
)

const soon = 10 * time.Second

var by = records.By{Who: "test"}

// bed is a keeper on a real bus, and an operator who uploads.
type bed struct {
	*testing.T
	keeper *artifact.Keeper
	store  *records.Store
	clock  *clock.Fake
	ada    *bus.Conn
	core   *bus.Conn
	runs   func() // starts the keeper
}

func begin(t *testing.T) *bed {
	t.Helper()
	// Chunks carry the real time of the server.
	b := &bed{T: t, clock: clock.NewFake(clock.Real().Now())}
	server := testbus.Start(t, testbus.Operator("ada", controller.Status))
	b.core, b.ada = server.Connect(t, "coordinator"), server.Connect(t, "operator-ada")
	var err error
	b.store, err = records.Open(t.Context(), filepath.Join(t.TempDir(), "records.db"), records.Options{Clock: b.clock, Rand: rand.Reader})
	b.ok(err)
	t.Cleanup(func() { b.ok(b.store.Close()) })
	signer, err := credential.NewSigner(rand.Reader)
	b.ok(err)
	key, err := server.Seed("operator-ada").Public()
	b.ok(err)
	b.ok(b.store.CreateMesh(t.Context(), by, records.Mesh{ID: "m", Name: "m", Signer: signer.Verifier(), Bus: server.Where()}, records.Operator{Name: "ada", Key: key, Role: records.RoleAdmin}))
	b.keeper, err = artifact.New(artifact.Config{Conn: b.core, Records: b.store, Clock: b.clock, Log: slog.New(slog.DiscardHandler)})
	b.ok(err)
	b.runs = func() {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- b.keeper.Run(ctx) }()
		t.Cleanup(func() {
			cancel()
			b.ok(waitfor.Value(t, "the keeper to stop", soon, done))
		})
	}
	return b
}

func (b *bed) ok(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func noise(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // it never fails
	return b
}

func named(content []byte) declaration.Artifact {
	sum := sha256.Sum256(content)
	return declaration.Artifact{Digest: hex.EncodeToString(sum[:]), Size: int64(len(content)), Chunks: bundle.Chunks(int64(len(content)))}
}

// put uploads content under a's name, chunks from..to.
func (b *bed) put(a declaration.Artifact, content []byte, from, to int) {
	b.Helper()
	for n := from; n < to; n++ {
		at, length := bundle.Span(n, a.Size)
		if err := b.ada.Publish(b.Context(), subject.Chunk(a.Digest, n), content[at:at+length], ""); err != nil && !bus.AlreadyThere(err) {
			b.Fatal(err)
		}
	}
}

// lacking asks until nothing is being read any more.
func (b *bed) lacking(all ...declaration.Artifact) string {
	b.Helper()
	lacking, checking, err := b.keeper.Ready(b.Context(), all, time.Hour) // of a clock that stands
	b.ok(err)
	if len(checking) > 0 {
		b.Fatalf("still checking %v", checking)
	}
	var words []string
	for _, l := range lacking {
		words = append(words, fmt.Sprintf("%.4s after %d", l.Digest, l.Have))
	}
	return strings.Join(words, ", ")
}

func (b *bed) register(a declaration.Artifact) *records.Build {
	b.Helper()
	build, _, err := b.store.Register(b.Context(), by, records.Registration{Manifest: json.RawMessage(`{"module":"web","build":{"bundle":{"output":"dist"}}}`), Artifact: &a})
	b.ok(err)
	return build
}

func (b *bed) there(a declaration.Artifact) bool {
	b.Helper()
	_, err := b.core.Last(b.Context(), subject.Artifacts, subject.Chunk(a.Digest, 0))
	return err == nil
}

// What is put on the bus is read before it is believed; what is wrong goes, and can be put there again.
func TestReady(t *testing.T) {
	b := begin(t)
	b.runs()
	content := noise(3*bundle.ChunkSize + 10)
	a := named(content)
	if got, want := b.lacking(a), fmt.Sprintf("%.4s after 0", a.Digest); got != want {
		t.Errorf("of nothing: %q, want %q", got, want)
	}
	b.put(a, content, 0, 2)
	if got, want := b.lacking(a), fmt.Sprintf("%.4s after 2", a.Digest); got != want {
		t.Errorf("of half: %q, want %q", got, want)
	}
	b.put(a, content, 3, 4)
	if got, want := b.lacking(a), fmt.Sprintf("%.4s after 2", a.Digest); got != want {
		t.Errorf("with a hole: %q, want %q", got, want)
	}
	b.put(a, content, 2, 3)
	if got := b.lacking(a); got != "" {
		t.Errorf("of all: %q", got)
	}
	if known, err := b.store.Verified(t.Context(), []declaration.Artifact{a}); err != nil || !known[a.Digest] {
		t.Errorf("it is not remembered: %v, %v", known, err)
	}

	// Somebody was there first with other bytes of the same length.
	other := noise(2*bundle.ChunkSize + 7)
	w := named(other)
	wrong := bytes.Clone(other)
	wrong[bundle.ChunkSize] ^= 1
	b.put(w, wrong, 0, w.Chunks)
	if got, want := b.lacking(w, a), fmt.Sprintf("%.4s after 0", w.Digest); got != want {
		t.Errorf("of wrong bytes: %q, want %q", got, want)
	}
	if b.there(w) {
		t.Error("the wrong bytes are still there")
	}
	b.put(w, other, 0, w.Chunks)
	if got := b.lacking(w, a); got != "" {
		t.Errorf("put there again: %q", got)
	}
}

// Whoever asks with other numbers takes nothing away from anybody.
func TestOtherNumbersTakeNothingAway(t *testing.T) {
	b := begin(t)
	b.runs()
	content := noise(2 * bundle.ChunkSize)
	a := named(content)
	b.put(a, content, 0, a.Chunks)
	fewer, more := a, a
	fewer.Size, fewer.Chunks = 5, 1
	more.Size, more.Chunks = a.Size+1, 3
	for _, x := range []declaration.Artifact{fewer, more} {
		if got := b.lacking(x); got == "" {
			t.Errorf("%+v is whole", x)
		}
	}
	if got := b.lacking(a); got != "" {
		t.Errorf("afterwards it lacks %q", got)
	}
	for _, x := range []declaration.Artifact{fewer, more} {
		if _, _, err := b.keeper.Ready(t.Context(), []declaration.Artifact{x}, 0); refusal.Of(err) == nil {
			t.Errorf("once it is known, %+v: %v", x, err)
		}
	}
	if !b.there(a) {
		t.Error("it is gone")
	}
}

// A chunk past the end, put there by mistake or on purpose, keeps nobody from registering.
func TestChunksPastTheEnd(t *testing.T) {
	b := begin(t)
	b.runs()
	content := noise(2 * bundle.ChunkSize)
	a := named(content)
	b.put(a, content, 0, a.Chunks)
	extra := subject.Chunk(a.Digest, 77)
	b.ok(b.ada.Publish(t.Context(), extra, []byte("x"), ""))
	if got := b.lacking(a); got != "" {
		t.Errorf("lacking %q", got)
	}
	if _, err := b.core.Last(t.Context(), subject.Artifacts, extra); err == nil {
		t.Error("the chunk past the end is still there")
	}
	// Wrong bytes and one too many: once nobody uploads any more, all of it goes.
	wrong := noise(2 * bundle.ChunkSize)
	w := named(wrong)
	b.put(w, content, 0, w.Chunks)
	b.ok(b.ada.Publish(t.Context(), subject.Chunk(w.Digest, 77), []byte("x"), ""))
	if got := b.lacking(w); got == "" || !b.there(w) {
		t.Errorf("while somebody may upload: lacking %q, there %v", got, b.there(w))
	}
	b.clock.Advance(2 * time.Minute)
	if got := b.lacking(w); got == "" || b.there(w) {
		t.Errorf("later: lacking %q, there %v", got, b.there(w))
	}
	b.put(w, wrong, 0, w.Chunks)
	if got := b.lacking(w); got != "" {
		t.Errorf("put there again: lacking %q", got)
	}
}

// While what came is being read, who asks is told so.
func TestCheckingIsSaid(t *testing.T) {
	b := begin(t) // nobody reads
	content := noise(10)
	a := named(content)
	b.put(a, content, 0, 1)
	lacking, checking, err := b.keeper.Ready(t.Context(), []declaration.Artifact{a}, 0)
	if err != nil || len(lacking) != 0 || len(checking) != 1 || checking[0] != a.Digest {
		t.Errorf("lacking %v, checking %v, %v", lacking, checking, err)
	}
	b.runs()
	if got := b.lacking(a); got != "" {
		t.Errorf("lacking %q", got)
	}
}

// Verify reads again what was right once: disks rot.
func TestVerify(t *testing.T) {
	b := begin(t)
	b.runs()
	good, rotten := noise(100), noise(bundle.ChunkSize+1)
	g, r := named(good), named(rotten)
	b.put(g, good, 0, 1)
	b.put(r, rotten, 0, 2)
	if got := b.lacking(g, r); got != "" {
		t.Fatalf("lacking %q", got)
	}
	b.register(g)
	b.register(r)
	p, err := b.keeper.Verify(t.Context(), time.Hour)
	if err != nil || p.Running || p.Done != 2 || p.Of != 2 || len(p.Wrong)+len(p.Failed) > 0 {
		t.Errorf("%+v, %v", p, err)
	}
	// The same names with other bytes, as a disk that rots leaves them.
	b.rot(r, 1)
	p, err = b.keeper.Verify(t.Context(), time.Hour)
	if err != nil || p.Done != 2 || len(p.Wrong) != 1 || p.Wrong[0] != r.Digest {
		t.Errorf("%+v, %v", p, err)
	}
	if got, want := b.lacking(g, r), fmt.Sprintf("%.4s after 0", r.Digest); got != want {
		t.Errorf("lacking %q, want %q", got, want)
	}
}

// rot exchanges a chunk, as only who runs the bus can.
func (b *bed) rot(a declaration.Artifact, n int) {
	b.Helper()
	b.ok(b.keeper.Forget(b.Context(), subject.Chunk(a.Digest, n)))
	_, length := bundle.Span(n, a.Size)
	b.ok(b.ada.Publish(b.Context(), subject.Chunk(a.Digest, n), make([]byte, length), ""))
}

// What no kept build needs goes after a day, and nothing else.
func TestSweep(t *testing.T) {
	b := begin(t)
	b.runs()
	var all []declaration.Artifact
	for range artifact.KeptBuilds + 2 {
		content := noise(50)
		a := named(content)
		b.put(a, content, 0, 1)
		b.lacking(a)
		b.register(a)
		b.clock.Advance(time.Millisecond)
		all = append(all, a)
	}
	upload := noise(70)
	early := named(upload)
	b.put(early, upload, 0, 1)
	if n, err := b.keeper.Sweep(t.Context()); err != nil || n != 0 {
		t.Errorf("at once %d are removed, %v", n, err)
	}
	lines, err := b.keeper.List(t.Context())
	b.ok(err)
	unneeded := 0
	for _, l := range lines {
		if !l.Needed {
			unneeded++
		} else if l.Build == "" || l.Size != 50 || l.Have != 1 || l.Checked.IsZero() {
			t.Errorf("%+v", l)
		}
	}
	if len(lines) != len(all)+1 || unneeded != 3 {
		t.Errorf("%d artifacts, %d not needed", len(lines), unneeded)
	}
	b.clock.Advance(artifact.Grace + time.Hour)
	if n, err := b.keeper.Sweep(t.Context()); err != nil || n != 3 {
		t.Errorf("a day later %d are removed, %v", n, err)
	}
	for i, a := range all {
		if want := i >= 2; b.there(a) != want {
			t.Errorf("the artifact of build %d is there: %v", i, !want)
		}
	}
	if b.there(early) {
		t.Error("an upload that never was registered is still there")
	}
}

// A module that is being registered holds the sweep up.
func TestHold(t *testing.T) {
	b := begin(t)
	content := noise(10)
	a := named(content)
	b.put(a, content, 0, 1)
	b.clock.Advance(artifact.Grace + time.Hour)
	give, err := b.keeper.Hold(t.Context())
	b.ok(err)
	swept := make(chan int, 1)
	go func() {
		n, err := b.keeper.Sweep(context.Background())
		if err != nil {
			n = -1
		}
		swept <- n
	}()
	b.register(a)
	give()
	if n := waitfor.Value(t, "the sweep", soon, swept); n != 0 || !b.there(a) {
		t.Errorf("%d are removed", n)
	}
}

package coordinator_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mesh/coordinator/client"
	"mesh/shared/bundle"
	"mesh/shared/bus"
	"mesh/shared/controller"
	"mesh/shared/declaration"
	"mesh/shared/refusal"
	"mesh/shared/subject"
	"mesh/shared/waitfor"
	"mesh/testbus/images"
)

// imageModule writes the folder of a module whose image has these layers.
func imageModule(t *testing.T, dir string, layers []string) []declaration.Artifact {
	t.Helper()
	i := images.Image{Command: []string{"/bin/web"}}
	for n, content := range layers {
		i.Layers = append(i.Layers, images.Layer{fmt.Sprintf("layer%d", n): content})
	}
	at := filepath.Join(dir, "image")
	if err := os.RemoveAll(at); err != nil {
		t.Fatal(err)
	}
	digests, err := images.Write(at, i)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "module.yaml"), []byte("module: web\nbuild: {images: {web: {from: image}}}\n"), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	var blobs []declaration.Artifact
	for _, d := range digests[0] {
		st, err := os.Stat(filepath.Join(at, "blobs/sha256", d))
		if err != nil {
			t.Fatal(err)
		}
		blobs = append(blobs, declaration.Artifact{Digest: d, Size: st.Size(), Chunks: bundle.Chunks(st.Size())})
	}
	return blobs
}

// travelled counts the bytes of chunks that the operator sends while fn runs.
func travelled(t *testing.T, c *client.Client, fn func()) (bytes int64) {
	t.Helper()
	before := c.Sent()
	fn()
	return int64(c.Sent() - before)
}

// Of an image with five layers, one of them changed, that layer travels and nothing else but the image's own
// manifest and config; and the node is told of all blobs, and may fetch them.
func TestOnlyWhatChangedTravels(t *testing.T) {
	t.Parallel()
	m := startMesh(t)
	c := m.client(t, m.operator)
	db1, db2 := newMachine(t, "db1"), newMachine(t, "db2")
	db1.join(t, c)
	db2.join(t, c)
	dir := t.TempDir()
	layers := make([]string, 5)
	for n := range layers {
		layers[n] = images.Noise(600<<10, byte(n))
	}
	first := imageModule(t, dir, layers)
	register := func() controller.RegisterAnswer {
		t.Helper()
		r, err := c.Register(t.Context(), dir, "x", nil)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	var whole, changed int64
	for _, b := range first {
		whole += b.Size
	}
	const words = 20_000 // questions, acknowledgements, subjects
	if n := travelled(t, c, func() { register() }); n < whole || n > whole+words {
		t.Errorf("the whole image is %d bytes, and %d travelled", whole, n)
	}
	if n := travelled(t, c, func() {
		if r := register(); r.Changed {
			t.Errorf("the same again is %+v", r)
		}
	}); n > words {
		t.Errorf("the same again: %d bytes travelled", n)
	}
	layers[2] = images.Noise(600<<10, 99)
	second := imageModule(t, dir, layers)
	for _, b := range second {
		if !slices.Contains(first, b) {
			changed += b.Size
		}
	}
	if n := travelled(t, c, func() { register() }); n < changed || n > changed+words {
		t.Errorf("one layer of five changed, with manifest and config %d bytes, and %d travelled", changed, n)
	}
	if changed > whole/4 {
		t.Errorf("one layer is %d bytes of %d", changed, whole)
	}

	if _, err := c.Assign(t.Context(), controller.AssignAsk{Node: "db1", Module: "web"}, nil); err != nil {
		t.Fatal(err)
	}
	ask[controller.Push](t, c, controller.PushSend, controller.PushAsk{Nodes: []subject.Node{"db1"}, Why: "x"})
	d := waitfor.Value(t, "the declaration", soon, db1.decisions)
	if len(d.Modules) != 1 || len(d.Modules[0].Images) != 1 || !slices.Equal(d.Modules[0].Images[0].Blobs, second) {
		t.Fatalf("declared is %+v", d.Modules)
	}
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	for _, b := range second {
		if got, err := db1.conn.Last(ctx, subject.Artifacts, subject.Chunk(b.Digest, 0)); err != nil || int64(len(got)) != min(b.Size, bundle.ChunkSize) {
			t.Errorf("db1 fetches %d bytes of %.12s, %v", len(got), b.Digest, err)
		}
	}
	if _, err := db2.conn.Last(ctx, subject.Artifacts, subject.Chunk(second[0].Digest, 0)); err == nil {
		t.Error("db2 fetches an image of db1's")
	}
	show := ask[controller.ModuleAnswer](t, c, controller.ModuleShow, controller.ModuleAsk{Module: "web"})
	if len(show.Images) != 1 || show.Images[0].Layers != 5 || show.Images[0].ID != second[1].Digest || len(show.Builds) != 2 {
		t.Errorf("shown is %+v", show)
	}
}

// Other bytes under the digest of what is to be registered, put there by whom it may: they are found, taken
// off, and replaced in the same registration; nobody is ever sent them.
func TestWrongBytesOnTheBusAreReplaced(t *testing.T) {
	t.Parallel()
	m := startMesh(t)
	c := m.client(t, m.operator)
	dir := t.TempDir()
	blobs := imageModule(t, dir, []string{images.Noise(600<<10, 7)})
	layer := blobs[2]
	eve, err := bus.Connect(t.Context(), bus.Options{Bus: m.operator.Bus, Seed: m.operator.Seed, Principal: m.operator.Principal(), Name: "eve", Once: true, Clock: m.clk, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(eve.Close)
	for n := range layer.Chunks {
		_, length := bundle.Span(n, layer.Size)
		if err := eve.Publish(t.Context(), subject.Chunk(layer.Digest, n), make([]byte, length), ""); err != nil {
			t.Fatal(err)
		}
	}
	said := ask[controller.ArtifactReadyAnswer](t, c, controller.ArtifactReady, controller.ArtifactReadyAsk{Artifacts: blobs[:1]})
	if len(said.Lacking) != 1 || said.Lacking[0].Digest != blobs[0].Digest {
		t.Errorf("of the manifest it says %+v", said)
	}
	if r, err := c.Register(t.Context(), dir, "x", nil); err != nil || !r.Changed {
		t.Fatalf("%+v, %v", r, err)
	}
	list := ask[controller.ArtifactsAnswer](t, c, controller.Artifacts, controller.Nothing{})
	if len(list.Artifacts) != 3 {
		t.Errorf("on the bus are %+v", list)
	}
	for _, a := range list.Artifacts {
		if !a.Needed || a.Checked.IsZero() || a.Have != a.Chunks || !strings.HasPrefix(a.Build, "build-") {
			t.Errorf("%+v", a)
		}
	}
	v := ask[controller.ArtifactVerifyAnswer](t, c, controller.ArtifactVerify, controller.Nothing{})
	if v.Running || v.Done != 3 || v.Of != 3 || len(v.Wrong)+len(v.Failed) > 0 {
		t.Errorf("verified: %+v", v)
	}
	// What was never put there is not registered.
	_, err = client.Ask[controller.RegisterAnswer](t.Context(), c, controller.ModuleRegister, controller.RegisterAsk{Manifest: []byte(`{"module":"other","build":{"bundle":{"output":"dist"}}}`),
		Artifact: &declaration.Artifact{Digest: strings.Repeat("ab", 32), Size: 5, Chunks: 1}})
	if refusal.Of(err) == nil || !strings.Contains(err.Error(), "holds 0 of its 1 chunks") {
		t.Errorf("an artifact that is not there: %v", err)
	}
}

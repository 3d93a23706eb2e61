package image_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mesh/coordinator/image"
	"mesh/shared/declaration"
	"mesh/shared/refusal"
	"mesh/testbus/images"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func sample(arch string) images.Image {
	return images.Image{Arch: arch, Command: []string{"/bin/web"}, Layers: []images.Layer{{"bin/web": "program " + arch}, {"etc/web.conf": "x"}, {"etc/web.conf": "x"}}}
}

func write(t testing.TB, all ...images.Image) (dir string, digests [][]string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "layout")
	digests, err := images.Write(dir, all...)
	must(t, err)
	return dir, digests
}

func open(t testing.TB, path string) (*image.Image, error) {
	t.Helper()
	i, err := image.Open(t.Context(), path, "web", t.TempDir())
	if err == nil {
		t.Cleanup(func() { must(t, i.Close()) })
	}
	return i, err
}

// whole reads every blob and holds it against its digest.
func whole(t testing.TB, i *image.Image) {
	t.Helper()
	for _, a := range i.Blobs() {
		must(t, i.Verify(a))
	}
	for k := range i.Parts {
		must(t, i.Parts[k].Check())
	}
}

func TestALayoutAndItsArchiveAreTheSame(t *testing.T) {
	dir, digests := write(t, sample("amd64"), sample("arm64"))
	tarred := filepath.Join(t.TempDir(), "web.tar")
	must(t, images.Archive(dir, tarred))
	for _, path := range []string{dir, tarred} {
		i, err := open(t, path)
		must(t, err)
		whole(t, i)
		if len(i.Parts) != 2 || i.Parts[0].Arch != "amd64" || i.Parts[1].Arch != "arm64" {
			t.Fatalf("%s: %+v", path, i.Parts)
		}
		for k, p := range i.Parts {
			var got []string
			for _, b := range p.Blobs {
				got = append(got, b.Digest)
			}
			// Two layers with the same bytes are one blob.
			if want := digests[k][:4]; !slices.Equal(got, want) || p.ID != want[1] || p.Digest() != want[0] || p.Type != declaration.OCIManifest {
				t.Errorf("%s %s: blobs %v, want %v", path, p.Arch, got, want)
			}
		}
		if len(i.Blobs()) != 7 { // one layer is in both
			t.Errorf("%s: %d blobs", path, len(i.Blobs()))
		}
	}
}

// Docker's archive has plain layers and no manifest: what is made of it has the same id, and the same bytes
// each time.
func TestDockersArchive(t *testing.T) {
	dir, digests := write(t, sample("amd64"))
	at := filepath.Join(t.TempDir(), "web.tar")
	must(t, images.DockerArchive(dir, digests[0], at))
	first, err := open(t, at)
	must(t, err)
	whole(t, first)
	again, err := open(t, at)
	must(t, err)
	p := first.Parts[0]
	if p.ID != digests[0][1] || p.Arch != "amd64" || p.Digest() != again.Parts[0].Digest() || len(p.Blobs) != 4 {
		t.Errorf("%+v", p)
	}
	r, err := first.Content(p.Blobs[0])
	must(t, err)
	var m struct {
		Config struct{ Digest string }
		Layers []struct{ Digest string }
	}
	b := make([]byte, p.Blobs[0].Size)
	if _, err := r.ReadAt(b, 0); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	must(t, json.Unmarshal(b, &m))
	if m.Config.Digest != "sha256:"+p.ID || len(m.Layers) != 3 || m.Layers[0].Digest != "sha256:"+p.Blobs[2].Digest {
		t.Errorf("its manifest is %s", b)
	}
}

func TestWhatIsRefused(t *testing.T) {
	edit := func(name string, change func([]byte) []byte) func(t *testing.T) string {
		return func(t *testing.T) string {
			dir, digests := write(t, sample("amd64"))
			name := strings.NewReplacer("MANIFEST", "blobs/sha256/"+digests[0][0], "CONFIG", "blobs/sha256/"+digests[0][1], "LAYER", "blobs/sha256/"+digests[0][2]).Replace(name)
			at := filepath.Join(dir, name)
			b, err := os.ReadFile(at)
			must(t, err)
			if b = change(b); b == nil {
				must(t, os.Remove(at))
			} else {
				must(t, os.WriteFile(at, b, 0o644))
			}
			return dir
		}
	}
	replace := func(old, new string) func([]byte) []byte {
		return func(b []byte) []byte { return bytes.ReplaceAll(b, []byte(old), []byte(new)) }
	}
	gone := func([]byte) []byte { return nil }
	file := func(content string) func(t *testing.T) string {
		return func(t *testing.T) string {
			at := filepath.Join(t.TempDir(), "x")
			must(t, os.WriteFile(at, []byte(content), 0o644))
			return at
		}
	}
	for name, tt := range map[string]struct {
		path func(t *testing.T) string
		says string
	}{
		"nothing":               {func(t *testing.T) string { return filepath.Join(t.TempDir(), "none") }, "there is nothing at"},
		"an empty folder":       {func(t *testing.T) string { return t.TempDir() }, "neither an OCI layout nor an archive"},
		"no archive":            {file("hello, I am no tar"), "no tar archive"},
		"a packed archive":      {file("\x1f\x8b\x08 and more, to be sure that it is long enough for a header"), "no tar archive"},
		"no index":              {edit("index.json", gone), "neither an OCI layout"},
		"an index of nothing":   {edit("index.json", func([]byte) []byte { return []byte(`{}`) }), "no image for Linux"},
		"an index that is none": {edit("index.json", func([]byte) []byte { return []byte(`[`) }), "not what it should be"},
		"a digest out of it":    {edit("index.json", replace(`"sha256:`, `"sha256:../../../`)), "which is no digest"},
		"another digest's kind": {edit("index.json", replace(`"sha256:`, `"sha512:`)), "only SHA-256"},
		"a changed manifest":    {edit("MANIFEST", replace("layers", "Layers")), "other bytes than its name says"},
		"no manifest":           {edit("MANIFEST", gone), "it has no"},
		"a changed config":      {edit("CONFIG", replace("linux", "Linux")), "other bytes than its name says"},
		"no layer":              {edit("LAYER", gone), "it has no"},
		"a layer that was cut":  {edit("LAYER", func(b []byte) []byte { return b[:len(b)-1] }), "cut or damaged"},
		"two for one machine": {func(t *testing.T) string {
			dir, _ := write(t, sample("amd64"), images.Image{Layers: []images.Layer{{"x": "y"}}})
			return dir
		}, "several in it for amd64"},
		"an architecture of sorts": {func(t *testing.T) string { dir, _ := write(t, sample("../etc")); return dir }, "architecture"},
	} {
		t.Run(name, func(t *testing.T) {
			i, err := open(t, tt.path(t))
			if err == nil || refusal.Of(err) == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%+v, %v, want %q", i, err, tt.says)
			}
		})
	}
	// Same length, other bytes: only reading it shows.
	i, err := open(t, edit("LAYER", func(b []byte) []byte { b[len(b)-1] ^= 1; return b })(t))
	must(t, err)
	if err := i.Verify(i.Parts[0].Blobs[2]); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("a layer with other bytes: %v", err)
	}
}

// Words about an image, as build tools add them, are no image; of several variants the lowest runs everywhere.
func TestAttestationsAndVariants(t *testing.T) {
	dir, digests := write(t, sample("arm"))
	config := func(variant string) (text []byte) {
		return []byte(fmt.Sprintf(`{"architecture":"arm","os":"linux","variant":%q}`, variant))
	}
	put := func(b []byte) string {
		d := sum(b)
		must(t, os.WriteFile(filepath.Join(dir, "blobs/sha256", d), b, 0o644))
		return fmt.Sprintf(`"digest":"sha256:%s","size":%d`, d, len(b))
	}
	var entries, ids []string
	for _, v := range []string{"v7", "v6"} {
		ids = append(ids, sum(config(v)))
		m := `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json",` + put(config(v)) + `},"layers":[]}`
		entries = append(entries, `{"mediaType":"application/vnd.oci.image.manifest.v1+json",`+put([]byte(m))+`}`)
	}
	entries = append(entries, `{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:`+digests[0][0]+`","size":1,"annotations":{"vnd.docker.reference.type":"attestation-manifest"}}`)
	nested := `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[` + strings.Join(entries, ",") + `]}`
	index := `{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.index.v1+json",` + put([]byte(nested)) + `}]}`
	must(t, os.WriteFile(filepath.Join(dir, "index.json"), []byte(index), 0o644))
	i, err := open(t, dir)
	must(t, err)
	if len(i.Parts) != 1 || i.Parts[0].ID != ids[1] {
		t.Errorf("%+v, want the one of v6, %s", i.Parts, ids[1])
	}
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

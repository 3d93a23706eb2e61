package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"testing"

	"mesh/shared/refusal"
)

// memory is files that are there.
type memory map[string][]byte

func (m memory) has(name string) bool { return m[name] != nil }
func (m memory) close() error         { return nil }
func (m memory) open(name string) (io.ReaderAt, int64, error) {
	b, ok := m[name]
	if !ok {
		return nil, 0, missing(name)
	}
	return bytes.NewReader(b), int64(len(b)), nil
}

func (m memory) put(b []byte) string {
	s := sha256.Sum256(b)
	d := hex.EncodeToString(s[:])
	m[blobPath(d)] = b
	return d
}

// judged is what has to hold of whatever was read: a refusal, or an image that keeps the rules.
func judged(t *testing.T, i *Image, err error) {
	t.Helper()
	if err != nil && refusal.Of(err) == nil {
		t.Fatalf("no refusal: %v", err)
	}
	if err != nil {
		return
	}
	for _, a := range i.Blobs() {
		if _, err := i.Content(a); err != nil {
			t.Fatalf("blob %s cannot be read: %v", a.Digest, err)
		}
	}
}

const config = `{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":[]}}`

// FuzzLayout: an index and a manifest that say what they like, the manifest under its right digest.
func FuzzLayout(f *testing.F) {
	m := memory{}
	id, layer := m.put([]byte(config)), m.put([]byte("layer"))
	manifest := fmt.Sprintf(`{"schemaVersion":2,"config":{"mediaType":%q,"digest":"sha256:%s","size":%d},"layers":[{"mediaType":"x","digest":"sha256:%s","size":5}]}`, ociConfig, id, len(config), layer)
	f.Add([]byte(`{"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:THIS"}]}`), []byte(manifest))
	f.Add([]byte(`{"manifests":[{"mediaType":"application/vnd.oci.image.index.v1+json","digest":"sha256:THIS"}]}`), []byte(`{"manifests":[{"digest":"sha256:THIS"}]}`))
	f.Fuzz(func(t *testing.T, index, manifest []byte) {
		files := memory{}
		files.put([]byte(config))
		files.put([]byte("layer"))
		d := files.put(manifest)
		files["index.json"] = bytes.ReplaceAll(index, []byte("THIS"), []byte(d))
		i := &Image{files: files}
		err := i.readLayout("web")
		if err == nil {
			for k := range i.Parts {
				if len(i.Parts[k].Blobs) < 2 || i.Parts[k].ID == "" {
					t.Fatalf("%+v", i.Parts[k])
				}
			}
		}
		judged(t, i, err)
	})
}

// FuzzDocker: docker's archive with a list and a config that say what they like.
func FuzzDocker(f *testing.F) {
	f.Add([]byte(`[{"Config":"c","Layers":[]}]`), []byte(config))
	f.Add([]byte(`[{"Config":"c","Layers":["l","../l"]}]`), []byte(`{"rootfs":{"diff_ids":["sha256:x","y"]}}`))
	f.Fuzz(func(t *testing.T, list, config []byte) {
		i := &Image{files: memory{"manifest.json": list, "c": config, "l": []byte("plain")}, made: map[string]io.ReaderAt{}}
		err := i.readDocker(t.Context(), "web", t.TempDir())
		judged(t, i, err)
		if err := i.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzArchive: whatever a tar says, its entries lie inside it or cannot be read.
func FuzzArchive(f *testing.F) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []tar.Header{{Name: "a", Size: 3, Typeflag: tar.TypeReg}, {Name: "d/l", Linkname: "../a", Typeflag: tar.TypeSymlink}, {Name: "h", Linkname: "a", Typeflag: tar.TypeLink}} {
		if err := w.WriteHeader(&h); err != nil {
			f.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := w.Write([]byte("abc")); err != nil {
				f.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add(b.Bytes()[:700])
	f.Fuzz(func(t *testing.T, b []byte) {
		spans, err := index(bytes.NewReader(b))
		if err != nil && refusal.Of(err) == nil {
			t.Fatalf("no refusal: %v", err)
		}
		for name, s := range spans {
			if s.at < 0 || s.size < 0 || s.at > int64(len(b)) {
				t.Errorf("%q lies at %d, %d bytes long, in %d", name, s.at, s.size, len(b))
			}
		}
	})
}

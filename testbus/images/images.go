// Package images makes small container images for tests, in the OCI image layout, without an engine: layers
// of files around static programs, the same bytes each time.
package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Layer is files by their path in the image; those below bin may be run.
type Layer map[string]string

// Image is what an image is made of.
type Image struct {
	Arch string // "amd64" when it is empty
	// Layers are from the lowest to the topmost.
	Layers []Layer
	// Entrypoint and Command are what a container of it runs.
	Entrypoint, Command []string
}

// Noise is n bytes that nothing packs smaller, the same ones for a seed.
func Noise(n int, seed byte) string {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b) // it never fails
	return string(b)
}

type descriptor struct {
	MediaType string    `json:"mediaType"`
	Digest    string    `json:"digest"`
	Size      int       `json:"size"`
	Platform  *platform `json:"platform,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

// Write writes an OCI image layout of the images, one for each architecture, to the folder dir and returns
// the digests of their blobs in the order manifest, config, layers.
func Write(dir string, all ...Image) (digests [][]string, err error) {
	blobs := filepath.Join(dir, "blobs", "sha256")
	if err := os.MkdirAll(blobs, 0o755); err != nil {
		return nil, err
	}
	put := func(b []byte) (string, error) {
		sum := sha256.Sum256(b)
		digest := hex.EncodeToString(sum[:])
		return digest, os.WriteFile(filepath.Join(blobs, digest), b, 0o644)
	}
	var index struct {
		SchemaVersion int          `json:"schemaVersion"`
		Manifests     []descriptor `json:"manifests"`
	}
	index.SchemaVersion = 2
	for _, i := range all {
		if i.Arch == "" {
			i.Arch = "amd64"
		}
		names, manifest, err := i.write(put)
		if err != nil {
			return nil, err
		}
		manifest.Platform = &platform{i.Arch, "linux"}
		index.Manifests = append(index.Manifests, manifest)
		digests = append(digests, names)
	}
	b, err := json.Marshal(index)
	if err != nil {
		return nil, err
	}
	return digests, errors.Join(os.WriteFile(filepath.Join(dir, "index.json"), b, 0o644),
		os.WriteFile(filepath.Join(dir, "oci-layout"), []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o644))
}

func (i *Image) write(put func([]byte) (string, error)) (digests []string, manifest descriptor, err error) {
	var layers []descriptor
	var diffs []string
	for _, l := range i.Layers {
		plain, err := l.tar()
		if err != nil {
			return nil, manifest, err
		}
		sum := sha256.Sum256(plain)
		diffs = append(diffs, "sha256:"+hex.EncodeToString(sum[:]))
		packed, err := pack(plain)
		if err != nil {
			return nil, manifest, err
		}
		digest, err := put(packed)
		if err != nil {
			return nil, manifest, err
		}
		layers = append(layers, descriptor{MediaType: "application/vnd.oci.image.layer.v1.tar+gzip", Digest: "sha256:" + digest, Size: len(packed)})
		digests = append(digests, digest)
	}
	config, err := json.Marshal(map[string]any{"architecture": i.Arch, "os": "linux", "created": "2020-01-01T00:00:00Z",
		"config": map[string]any{"Entrypoint": i.Entrypoint, "Cmd": i.Command}, "rootfs": map[string]any{"type": "layers", "diff_ids": diffs}})
	if err != nil {
		return nil, manifest, err
	}
	id, err := put(config)
	if err != nil {
		return nil, manifest, err
	}
	b, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "layers": layers,
		"config": descriptor{MediaType: "application/vnd.oci.image.config.v1+json", Digest: "sha256:" + id, Size: len(config)}})
	if err != nil {
		return nil, manifest, err
	}
	sum, err := put(b)
	return append([]string{sum, id}, digests...), descriptor{MediaType: "application/vnd.oci.image.manifest.v1+json", Digest: "sha256:" + sum, Size: len(b)}, err
}

func (l Layer) tar() ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	names := make([]string, 0, len(l))
	folders := map[string]bool{}
	for name := range l {
		names = append(names, name)
		for up := filepath.Dir(name); up != "."; up = filepath.Dir(up) {
			folders[up+"/"] = true
		}
	}
	for name := range folders {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		h := &tar.Header{Name: name, Mode: 0o644, Typeflag: tar.TypeReg, Size: int64(len(l[name]))}
		if strings.HasPrefix(name, "bin/") {
			h.Mode = 0o755
		}
		if folders[name] {
			h.Mode, h.Typeflag = 0o755, tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := io.WriteString(w, l[name]); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return b.Bytes(), err
}

func pack(b []byte) ([]byte, error) {
	var out bytes.Buffer
	gz := gzip.NewWriter(&out)
	_, err := gz.Write(b)
	err = errors.Join(err, gz.Close())
	return out.Bytes(), err
}

// Archive writes the files of dir as a tar to the file at: an oci-archive of a layout.
func Archive(dir, at string) (err error) {
	f, err := os.Create(at)
	if err != nil {
		return err
	}
	w := tar.NewWriter(f)
	err = errors.Join(w.AddFS(os.DirFS(dir)), w.Close(), f.Close())
	return err
}

// DockerArchive writes the one image of a layout in dir as docker's own archive to the file at.
func DockerArchive(dir string, digests []string, at string) error {
	read := func(digest string) ([]byte, error) {
		return os.ReadFile(filepath.Join(dir, "blobs", "sha256", digest))
	}
	config, err := read(digests[1])
	if err != nil {
		return err
	}
	files := map[string][]byte{digests[1] + ".json": config}
	var layers []string
	for _, d := range digests[2:] {
		packed, err := read(d)
		if err != nil {
			return err
		}
		gz, err := gzip.NewReader(bytes.NewReader(packed))
		if err != nil {
			return err
		}
		name := d + ".tar"
		if files[name], err = io.ReadAll(gz); err != nil {
			return err
		}
		layers = append(layers, name)
	}
	if files["manifest.json"], err = json.Marshal([]map[string]any{{"Config": digests[1] + ".json", "Layers": layers, "RepoTags": []string{"localhost/x:latest"}}}); err != nil {
		return err
	}
	temp, err := os.MkdirTemp(filepath.Dir(at), "docker-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(temp) }() // a test's folder goes anyway
	for name, b := range files {
		if err := os.WriteFile(filepath.Join(temp, name), b, fs.FileMode(0o644)); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	return Archive(temp, at)
}

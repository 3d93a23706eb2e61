package image

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	"mesh/shared/declaration"
)

// The media types of what is made of docker's archive.
const ociLayer = "application/vnd.oci.image.layer.v1.tar+gzip"

// readDocker reads docker's own archive, which has a config and plain layers, and no manifest. The layers
// are compressed, the same bytes each time; the config stays as it is, and with it the image's id.
func (i *Image) readDocker(ctx context.Context, name, temp string) error {
	b, err := i.readWhole("manifest.json", maxIndex, "")
	if err != nil {
		return err
	}
	var list []struct {
		Config string
		Layers []string
	}
	if err := decode("manifest.json", b, &list); err != nil {
		return err
	}
	if len(list) != 1 {
		return wrong(fmt.Sprintf("there are %d images in the archive", len(list)), "save one image alone")
	}
	text, err := i.readWhole(list[0].Config, maxConfig, "")
	if err != nil {
		return err
	}
	var config struct {
		Rootfs struct {
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
	}
	if err := decode(list[0].Config, text, &config); err != nil {
		return err
	}
	arch, _, isLinux, err := machineOf(list[0].Config, text)
	if err != nil {
		return err
	}
	if !isLinux || len(config.Rootfs.DiffIDs) != len(list[0].Layers) || len(list[0].Layers) > declaration.MaxBlobs {
		return wrong(fmt.Sprintf("it is not for Linux, or has %d layers where its config names %d", len(list[0].Layers), len(config.Rootfs.DiffIDs)), "save the image anew")
	}
	part := declaration.Image{Name: name, Arch: arch, Type: declaration.OCIManifest}
	made := map[string]any{"schemaVersion": 2, "mediaType": declaration.OCIManifest}
	blob := func(content []byte) declaration.Artifact {
		sum := sha256.Sum256(content)
		a := artifact(hex.EncodeToString(sum[:]), int64(len(content)))
		i.made[a.Digest] = bytes.NewReader(content)
		return a
	}
	own := blob(text)
	part.ID, made["config"] = own.Digest, describe(own, ociConfig)
	layers, seen := []any{}, map[string]bool{}
	blobs := []declaration.Artifact{own}
	for k, at := range list[0].Layers {
		a, err := i.compress(ctx, at, config.Rootfs.DiffIDs[k], temp)
		if err != nil {
			return err
		}
		layers = append(layers, describe(a, ociLayer))
		if !seen[a.Digest] {
			blobs, seen[a.Digest] = append(blobs, a), true
		}
	}
	made["layers"] = layers
	manifest, err := json.Marshal(made) // with its keys sorted: the same bytes each time
	if err != nil {
		return err
	}
	part.Blobs = append([]declaration.Artifact{blob(manifest)}, blobs...)
	i.Parts = []declaration.Image{part}
	return nil
}

func describe(a declaration.Artifact, kind string) map[string]any {
	return map[string]any{"mediaType": kind, "digest": "sha256:" + a.Digest, "size": a.Size}
}

// compress makes the blob of a layer, in a file without a name below temp. One that is compressed already
// stays as it is.
func (i *Image) compress(ctx context.Context, at, diffID, temp string) (declaration.Artifact, error) {
	r, size, err := i.files.open(path.Clean(at))
	if err != nil {
		return declaration.Artifact{}, err
	}
	f, err := os.CreateTemp(temp, "mesh-layer-")
	if err != nil {
		return declaration.Artifact{}, err
	}
	i.closers = append(i.closers, f.Close)
	if err := os.Remove(f.Name()); err != nil {
		return declaration.Artifact{}, err
	}
	var head [2]byte
	if n, err := r.ReadAt(head[:], 0); n == len(head) && head == [2]byte{0x1f, 0x8b} {
		return declaration.Artifact{}, wrong("its layers are compressed in docker's archive", `save it with "podman save --format oci-archive"`)
	} else if err != nil && !errors.Is(err, io.EOF) {
		return declaration.Artifact{}, err
	}
	plain, packed := sha256.New(), sha256.New()
	counted := &counter{w: io.MultiWriter(f, packed)}
	gz := gzip.NewWriter(counted) // its header has no name and no time
	_, err = io.Copy(io.MultiWriter(gz, plain), &stoppable{ctx, io.NewSectionReader(r, 0, size)})
	if err = errors.Join(err, gz.Close()); err != nil {
		return declaration.Artifact{}, fmt.Errorf("compress layer %s: %w", clip(at), err)
	}
	if got := "sha256:" + hex.EncodeToString(plain.Sum(nil)); got != diffID {
		return declaration.Artifact{}, wrong(fmt.Sprintf("its layer %s has other bytes than its config says: the file is damaged", clip(at)), "save the image anew")
	}
	a := artifact(hex.EncodeToString(packed.Sum(nil)), counted.n)
	i.made[a.Digest] = f
	return a, nil
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

// stoppable ends a long read with its context.
type stoppable struct {
	ctx context.Context
	r   io.Reader
}

func (s *stoppable) Read(b []byte) (int, error) {
	if err := s.ctx.Err(); err != nil {
		return 0, err
	}
	return s.r.Read(b)
}

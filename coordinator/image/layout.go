package image

import (
	"encoding/json"
	"fmt"
	"strings"

	"mesh/shared/bundle"
	"mesh/shared/declaration"
)

// The media types that are known (OCI image-spec v1.1, and docker's schema 2).
const (
	ociIndex     = "application/vnd.oci.image.index.v1+json"
	dockerList   = "application/vnd.docker.distribution.manifest.list.v2+json"
	ociConfig    = "application/vnd.oci.image.config.v1+json"
	dockerConfig = "application/vnd.docker.container.image.v1+json"
)

// descriptor names content (image-spec, descriptor.md).
type descriptor struct {
	MediaType string   `json:"mediaType"`
	Digest    string   `json:"digest"`
	Size      int64    `json:"size"`
	URLs      []string `json:"urls"`
	Platform  *struct {
		Architecture string `json:"architecture"`
		OS           string `json:"os"`
		Variant      string `json:"variant"`
	} `json:"platform"`
	Annotations map[string]string `json:"annotations"`
}

// sum is the digest in lower-case hex.
func (d *descriptor) sum() (string, error) {
	hex, ok := strings.CutPrefix(d.Digest, "sha256:")
	if !ok {
		return "", wrong(fmt.Sprintf("it names content by %s; only SHA-256 is known here", clip(d.Digest)), "build the image with SHA-256")
	}
	if err := bundle.CheckDigest(hex); err != nil {
		return "", wrong(fmt.Sprintf("it names content by %s, which is no digest", clip(d.Digest)), "build the image anew")
	}
	return hex, nil
}

// about is what a descriptor stands for: not the image, but a word about it.
func (d *descriptor) about() bool {
	return d.Annotations["vnd.docker.reference.type"] != "" || d.Platform != nil && d.Platform.OS == "unknown"
}

// readLayout reads an OCI image layout.
func (i *Image) readLayout(name string) error {
	b, err := i.readWhole("index.json", maxIndex, "")
	if err != nil {
		return err
	}
	left, variants := maxVariants, map[string]string{}
	if err := i.readIndex("index.json", b, name, 0, &left, variants); err != nil {
		return err
	}
	if len(i.Parts) == 0 {
		return wrong("there is no image for Linux in it", "build it for Linux")
	}
	return nil
}

func (i *Image) readIndex(at string, b []byte, name string, depth int, left *int, variants map[string]string) error {
	var index struct {
		Manifests []descriptor `json:"manifests"`
	}
	if err := decode(at, b, &index); err != nil {
		return err
	}
	for k := range index.Manifests {
		d := &index.Manifests[k]
		if d.about() {
			continue
		}
		if *left--; *left < 0 || depth > maxDepth {
			return wrong("it holds too many manifests", "save one image alone")
		}
		sum, err := d.sum()
		if err != nil {
			return err
		}
		b, err := i.readWhole(blobPath(sum), maxManifest, sum)
		if err != nil {
			return err
		}
		switch kind := kindOf(d.MediaType, b); kind {
		case ociIndex, dockerList:
			err = i.readIndex(blobPath(sum), b, name, depth+1, left, variants)
		case declaration.OCIManifest, declaration.DockerManifest:
			err = i.readManifest(sum, b, kind, name, variants)
		default:
			err = wrong(fmt.Sprintf("a manifest in it has the type %s, which is not known here", clip(kind)), "save the image in the OCI format")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// kindOf is the media type of a manifest or index: its own word, else the descriptor's.
func kindOf(said string, b []byte) string {
	var own struct {
		MediaType string `json:"mediaType"`
	}
	if json.Unmarshal(b, &own) == nil && own.MediaType != "" {
		return own.MediaType
	}
	return said
}

// readManifest takes in the image for one architecture.
func (i *Image) readManifest(sum string, b []byte, kind, name string, variants map[string]string) error {
	var m struct {
		Config descriptor   `json:"config"`
		Layers []descriptor `json:"layers"`
	}
	if err := decode(blobPath(sum), b, &m); err != nil {
		return err
	}
	if m.Config.MediaType != ociConfig && m.Config.MediaType != dockerConfig {
		return wrong(fmt.Sprintf("it holds %s, which is no container image", clip(m.Config.MediaType)), "name an image")
	}
	id, err := m.Config.sum()
	if err != nil {
		return err
	}
	text, err := i.readWhole(blobPath(id), maxConfig, id)
	if err != nil {
		return err
	}
	arch, variant, isLinux, err := machineOf(blobPath(id), text)
	if err != nil || !isLinux {
		return err
	}
	part := declaration.Image{Name: name, Arch: arch, ID: id, Type: kind, Blobs: []declaration.Artifact{artifact(sum, int64(len(b))), artifact(id, int64(len(text)))}}
	seen := map[string]bool{sum: true, id: true}
	for k := range m.Layers {
		layer, err := i.layer(&m.Layers[k])
		if err != nil {
			return err
		}
		if !seen[layer.Digest] { // an empty one may come several times
			part.Blobs, seen[layer.Digest] = append(part.Blobs, layer), true
		}
	}
	return i.add(part, variant, variants)
}

func (i *Image) layer(d *descriptor) (declaration.Artifact, error) {
	sum, err := d.sum()
	if err != nil {
		return declaration.Artifact{}, err
	}
	_, size, err := i.files.open(blobPath(sum))
	switch {
	case err != nil && len(d.URLs) > 0:
		return declaration.Artifact{}, wrong("a layer of it lies elsewhere, at "+clip(d.URLs[0]), "build the image from a base that may be copied")
	case err != nil:
		return declaration.Artifact{}, err
	case size != d.Size:
		return declaration.Artifact{}, wrong(fmt.Sprintf("layer %.12s has %d bytes, and %d are announced: the file is cut or damaged", sum, size, d.Size), "build or save the image anew")
	}
	return artifact(sum, size), nil
}

// machineOf reads what a config says of the machine it is for.
func machineOf(at string, text []byte) (arch, variant string, isLinux bool, err error) {
	var c struct {
		Architecture string `json:"architecture"`
		OS           string `json:"os"`
		Variant      string `json:"variant"`
	}
	if err := decode(at, text, &c); err != nil {
		return "", "", false, err
	}
	return c.Architecture, c.Variant, c.OS == "linux" || c.OS == "", nil
}

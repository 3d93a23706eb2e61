package declaration

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"mesh/shared/order"
	"mesh/shared/subject"
)

// Image is one container image of a module for one architecture, as OCI content: every blob of it is an
// artifact in the stream ARTIFACTS, so that a node fetches what it lacks only.
type Image struct {
	// Name is its name in the manifest's build.images.
	Name string `json:"name"`
	// Arch is the processor architecture it is for, in Go's words.
	Arch string `json:"arch"`
	// ID is the SHA-256 of its config, lower-case hex. That is the image's identity on a machine: it stays
	// the same over save and load, which the manifest's digest does not (facts/host.md §4.4).
	ID string `json:"id"`
	// Type is the media type of its manifest.
	Type string `json:"type"`
	// Blobs are the manifest, the config, and the layers from the lowest to the topmost, each once.
	Blobs []Artifact `json:"blobs"`
}

// The media types a manifest of one image can have: OCI's and docker's.
const (
	OCIManifest    = "application/vnd.oci.image.manifest.v1+json"
	DockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
)

// MaxBlobs is how many blobs an image may have: an engine takes 127 layers.
const MaxBlobs = 129

// Digest is the SHA-256 of the image's manifest: what an engine asks a registry for.
func (i *Image) Digest() string { return i.Blobs[0].Digest }

// Check refuses an image that could not exist.
func (i *Image) Check() error {
	if err := subject.Check("image", i.Name); err != nil {
		return err
	}
	switch {
	case i.Arch == "" || len(i.Arch) > 32 || strings.ContainsFunc(i.Arch, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') }):
		return fmt.Errorf("image %s is for the architecture %q", i.Name, i.Arch)
	case i.Type != OCIManifest && i.Type != DockerManifest:
		return fmt.Errorf("the manifest of image %s has the type %q", i.Name, i.Type)
	case len(i.Blobs) < 2 || len(i.Blobs) > MaxBlobs:
		return fmt.Errorf("image %s has %d blobs, expected 2 to %d", i.Name, len(i.Blobs), MaxBlobs)
	}
	seen := make(map[string]bool, len(i.Blobs))
	var errs []error
	for _, b := range i.Blobs {
		if seen[b.Digest] {
			errs = append(errs, fmt.Errorf("blob %.12s is named twice", b.Digest))
		}
		seen[b.Digest] = true
		errs = append(errs, b.Check())
	}
	if b, err := hex.DecodeString(i.ID); err != nil || len(b) != 32 || strings.ToLower(i.ID) != i.ID || !seen[i.ID] {
		errs = append(errs, fmt.Errorf("its id %q is no blob of it", i.ID))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("image %s: %w", i.Name, err)
	}
	return nil
}

// CompareImages orders images by name and architecture.
func CompareImages(a, b Image) int {
	return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Arch, b.Arch))
}

func checkImages(all []Image) error {
	for i := range all {
		if err := all[i].Check(); err != nil {
			return err
		}
		if i > 0 && CompareImages(all[i-1], all[i]) >= 0 {
			return fmt.Errorf("images are sorted by name and architecture, each once; %s for %s is not", all[i].Name, all[i].Arch)
		}
	}
	return nil
}

// ImageFor is the image of that name for the architecture.
func (m *Module) ImageFor(name, arch string) (*Image, bool) {
	i := slices.IndexFunc(m.Images, func(i Image) bool { return i.Name == name && i.Arch == arch })
	if i < 0 {
		return nil, false
	}
	return &m.Images[i], true
}

// Artifacts are all the module needs from the bus: its bundle and the blobs of its images, each once.
func (m *Module) Artifacts() []Artifact {
	var all []Artifact
	if m.Artifact != nil {
		all = append(all, *m.Artifact)
	}
	for i := range m.Images {
		all = append(all, m.Images[i].Blobs...)
	}
	order.Sort(all, func(a, b Artifact) int { return cmp.Compare(a.Digest, b.Digest) })
	return slices.CompactFunc(all, func(a, b Artifact) bool { return a.Digest == b.Digest })
}

func appendImages(dst []byte, all []Image) []byte {
	if len(all) == 0 {
		return dst
	}
	dst = append(dst, `,"images":[`...)
	for i := range all {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"name":`...)
		dst = appendString(dst, all[i].Name)
		dst = append(dst, `,"arch":`...)
		dst = appendString(dst, all[i].Arch)
		dst = append(dst, `,"id":`...)
		dst = appendString(dst, all[i].ID)
		dst = append(dst, `,"type":`...)
		dst = appendString(dst, all[i].Type)
		dst = append(dst, `,"blobs":[`...)
		for k := range all[i].Blobs {
			if k > 0 {
				dst = append(dst, ',')
			}
			dst = appendArtifact(dst, &all[i].Blobs[k])
		}
		dst = append(dst, `]}`...)
	}
	return append(dst, ']')
}

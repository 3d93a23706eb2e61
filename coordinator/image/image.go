// Package image reads a container image that was built before, as its module's folder has it, and takes it
// apart into the blobs that travel: the manifest, the config and each layer, named by their digests
// (design §5, Artifacts). It takes a folder in the OCI image layout, an archive of one
// ("podman save --format oci-archive", newer "docker save"), and docker's own archive ("podman save"),
// whose layers it compresses, since they lie in it as they are.
//
// What is read is held against its digest before it is believed; nothing is unpacked. The package starts no
// goroutine; an Image keeps its files open until Close.
package image

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"mesh/shared/bundle"
	"mesh/shared/declaration"
	"mesh/shared/refusal"
)

// The bounds of what is read whole.
const (
	maxManifest = 4 << 20 // as engines take it
	maxConfig   = 8 << 20
	maxIndex    = 4 << 20
	maxEntries  = 10_000 // of an archive
	maxDepth    = 3      // of indexes in indexes
	maxVariants = 64     // manifests in all indexes together
)

// Image is an image for one architecture or for several, with its blobs' content.
type Image struct {
	// Parts are the image for each architecture, sorted.
	Parts []declaration.Image

	files   files
	made    map[string]io.ReaderAt // blobs that were made here, by digest
	closers []func() error
}

// Open reads the image at path and calls it name. temp is where layers are compressed.
func Open(ctx context.Context, path, name, temp string) (_ *Image, err error) {
	i := &Image{made: map[string]io.ReaderAt{}}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("image %s: %w", name, err), i.Close())
		}
	}()
	st, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, refusal.New("the image "+name, "there is nothing at "+path, "build it first, or correct build.images."+name+".from")
	}
	if err != nil {
		return nil, err
	}
	if st.IsDir() {
		i.files, err = openFolder(path)
	} else {
		i.files, err = openArchive(path)
	}
	if err != nil {
		return nil, err
	}
	i.closers = append(i.closers, i.files.close)
	switch {
	case i.files.has("oci-layout") && i.files.has("index.json"):
		err = i.readLayout(name)
	case i.files.has("manifest.json"):
		err = i.readDocker(ctx, name, temp)
	default:
		err = wrong("it is neither an OCI layout nor an archive of an image", `write it with "podman save --format oci-archive -o image.tar <image>" or "docker save -o image.tar <image>"`)
	}
	if err != nil {
		return nil, err
	}
	slices.SortFunc(i.Parts, declaration.CompareImages)
	for k := range i.Parts {
		if err := i.Parts[k].Check(); err != nil {
			return nil, wrong(err.Error(), "build the image anew")
		}
	}
	return i, nil
}

// Close closes its files.
func (i *Image) Close() error {
	var errs []error
	for _, c := range slices.Backward(i.closers) {
		errs = append(errs, c())
	}
	i.closers = nil
	return errors.Join(errs...)
}

// Blobs are all that is to travel, each once, sorted by digest.
func (i *Image) Blobs() []declaration.Artifact {
	m := declaration.Module{Images: i.Parts}
	return m.Artifacts()
}

// Content is a blob's bytes. They are not held against the digest yet: Verify does that.
func (i *Image) Content(a declaration.Artifact) (io.ReaderAt, error) {
	if r, ok := i.made[a.Digest]; ok {
		return r, nil
	}
	r, _, err := i.files.open(blobPath(a.Digest))
	return r, err
}

// Verify refuses a blob whose bytes have another digest.
func (i *Image) Verify(a declaration.Artifact) error {
	r, err := i.Content(a)
	if err != nil {
		return err
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(r, 0, a.Size)); err != nil {
		return fmt.Errorf("read blob %.12s: %w", a.Digest, err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != a.Digest {
		return wrong(fmt.Sprintf("its blob %.12s has the digest %.12s: the file is damaged", a.Digest, got), "build or save the image anew")
	}
	return nil
}

func wrong(why, do string) error { return refusal.New("the image", why, do) }

func blobPath(digest string) string { return "blobs/sha256/" + digest }

func artifact(digest string, size int64) declaration.Artifact {
	return declaration.Artifact{Digest: digest, Size: size, Chunks: bundle.Chunks(size)}
}

// readWhole reads a small file, and holds it against a digest when one is given.
func (i *Image) readWhole(name string, most int64, digest string) ([]byte, error) {
	r, size, err := i.files.open(name)
	if err != nil {
		return nil, err
	}
	if size > most {
		return nil, wrong(fmt.Sprintf("%s has %d bytes, at most %d are read", clip(name), size, most), "build the image anew")
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(io.NewSectionReader(r, 0, size), b); err != nil {
		return nil, fmt.Errorf("read %s: %w", clip(name), err)
	}
	if sum := sha256.Sum256(b); digest != "" && hex.EncodeToString(sum[:]) != digest {
		return nil, wrong(fmt.Sprintf("%s has other bytes than its name says", clip(name)), "build or save the image anew")
	}
	return b, nil
}

// decode reads JSON that somebody else's program wrote: fields mesh does not know are of no concern.
func decode(name string, b []byte, v any) error {
	if err := json.Unmarshal(b, v); err != nil {
		return wrong(fmt.Sprintf("%s is not what it should be: %v", clip(name), err), "build or save the image anew")
	}
	return nil
}

func clip(s string) string { return fmt.Sprintf("%.100q", s) }

// add takes in the image for one architecture. Of variants of one the plain one is taken, else the lowest,
// which runs everywhere.
func (i *Image) add(part declaration.Image, variant string, variants map[string]string) error {
	for k, have := range i.Parts {
		if have.Arch != part.Arch {
			continue
		}
		had := variants[part.Arch]
		switch {
		case have.Digest() == part.Digest():
		case had == variant:
			return wrong("there are several in it for "+part.Arch, "save one image alone")
		case variant == "" || had != "" && cmp.Less(variant, had):
			i.Parts[k], variants[part.Arch] = part, variant
		}
		return nil
	}
	i.Parts, variants[part.Arch] = append(i.Parts, part), variant
	return nil
}

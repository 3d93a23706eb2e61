package records

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"mesh/shared/declaration"
	"mesh/shared/manifest"
	"mesh/shared/refusal"
)

// Artifacts are all that b needs from the bus: its bundle and the blobs of its images, each once. arch, when
// not empty, leaves out images for other architectures.
func (b *Build) Artifacts(arch string) []declaration.Artifact {
	m := declaration.Module{Artifact: b.Artifact, Images: b.ImagesFor(arch)}
	return m.Artifacts()
}

// ImagesFor are b's images for an architecture; all of them when it is not known.
func (b *Build) ImagesFor(arch string) []declaration.Image {
	other := func(i declaration.Image) bool { return arch != "" && i.Arch != arch }
	if !slices.ContainsFunc(b.Images, other) {
		return b.Images
	}
	return slices.DeleteFunc(slices.Clone(b.Images), other)
}

// checkImages holds the images that came against those the manifest names.
func (r Registration) checkImages(m *manifest.Manifest) error {
	what := "the registration of " + string(m.Module)
	named := map[string]bool{}
	for i := range r.Images {
		if err := r.Images[i].Check(); err != nil {
			return refusal.New(what, err.Error(), "register the folder again: mesh-coordinator module register <dir>")
		}
		if i > 0 && declaration.CompareImages(r.Images[i-1], r.Images[i]) >= 0 {
			return refusal.New(what, "its images are not in order, each once", "register the folder again: mesh-coordinator module register <dir>")
		}
		named[r.Images[i].Name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(named)) {
		if _, ok := m.Build.Images[name]; !ok {
			return refusal.New(what, "the image "+name+" came with it, and its manifest has none of that name", "add it to build.images in the manifest")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.Build.Images)) {
		if !named[name] {
			return refusal.New(what, "its manifest has the image "+name+", and none came with it", "put the image on the bus first")
		}
	}
	return nil
}

func sameImages(a, b []declaration.Image) bool {
	return slices.EqualFunc(a, b, func(x, y declaration.Image) bool {
		return x.Name == y.Name && x.Arch == y.Arch && x.ID == y.ID && x.Type == y.Type && slices.Equal(x.Blobs, y.Blobs)
	})
}

func encodeImages(all []declaration.Image) string {
	if len(all) == 0 {
		return "[]"
	}
	return encode(all)
}

func decodeImages(text string) (all []declaration.Image, err error) {
	if text == "[]" {
		return nil, nil
	}
	return all, decode(text, &all)
}

// Verified are those of the artifacts whose bytes on the bus were read and had the digest.
func (s *Store) Verified(ctx context.Context, all []declaration.Artifact) (map[string]bool, error) {
	out := make(map[string]bool, len(all))
	for _, a := range all {
		var size int64
		var chunks int
		err := s.db.Read().QueryRowContext(ctx, `SELECT size, chunks FROM artifact WHERE digest = ?`, a.Digest).Scan(&size, &chunks)
		switch {
		case errors.Is(err, sql.ErrNoRows):
		case err != nil:
			return nil, fmt.Errorf("read what is known of artifact %.12s: %w", a.Digest, err)
		default:
			out[a.Digest] = size == a.Size && chunks == a.Chunks
		}
	}
	return out, nil
}

// Checked is an artifact that was read from the bus and had its digest, and when.
type Checked struct {
	declaration.Artifact
	At time.Time
}

// AllChecked are all of them, by digest.
func (s *Store) AllChecked(ctx context.Context) (map[string]Checked, error) {
	all := map[string]Checked{}
	err := each(ctx, s.db.Read(), func(r *sql.Rows) error {
		var c Checked
		var ms int64
		err := r.Scan(&c.Digest, &c.Size, &c.Chunks, &ms)
		c.At = at(ms)
		all[c.Digest] = c
		return err
	}, `SELECT digest, size, chunks, verified FROM artifact`)
	if err != nil {
		return nil, fmt.Errorf("read what is known of the artifacts: %w", err)
	}
	return all, nil
}

// SetVerified notes that the bytes of a on the bus have its digest, or that they are not known to. It costs
// no sync: what a power cut takes is read again.
func (s *Store) SetVerified(ctx context.Context, a declaration.Artifact, right bool) error {
	err := s.db.WriteLazy(ctx, func(t *sql.Tx) error {
		if !right {
			_, err := t.ExecContext(ctx, `DELETE FROM artifact WHERE digest = ?`, a.Digest)
			return err
		}
		_, err := t.ExecContext(ctx, `INSERT INTO artifact (digest, size, chunks, verified) VALUES (?, ?, ?, ?)
			ON CONFLICT (digest) DO UPDATE SET size = excluded.size, chunks = excluded.chunks, verified = excluded.verified`,
			a.Digest, a.Size, a.Chunks, s.clk.Now().UnixMilli())
		return err
	})
	if err != nil {
		return fmt.Errorf("note that artifact %.12s was checked: %w", a.Digest, err)
	}
	return nil
}

// Needed are the digests that may not leave the bus: those of each module's current build and of its last
// builds, and what the last declarations of the nodes name, which they may be applying or run still. The
// value is one of the builds that need it, "" for none.
func (s *Store) Needed(ctx context.Context, last int) (map[string]string, error) {
	needed := map[string]string{}
	ids, err := texts(ctx, s.db.Read(), `SELECT build FROM module UNION
		SELECT id FROM (SELECT id, row_number() OVER (PARTITION BY module ORDER BY at DESC, id DESC) AS n FROM build) WHERE n <= ?`, last)
	if err != nil {
		return nil, fmt.Errorf("read which builds are kept: %w", err)
	}
	for _, id := range ids {
		b, err := s.Build(ctx, id)
		if err != nil {
			return nil, err
		}
		for _, a := range b.Artifacts("") {
			needed[a.Digest] = id
		}
	}
	err = each(ctx, s.db.Read(), func(r *sql.Rows) error {
		var artifacts, before string
		if err := r.Scan(&artifacts, &before); err != nil {
			return err
		}
		for _, text := range []string{artifacts, before} {
			var list []string
			if err := decodeList(text, &list); err != nil {
				return err
			}
			for _, d := range list {
				if _, known := needed[d]; !known {
					needed[d] = ""
				}
			}
		}
		return nil
	}, `SELECT DISTINCT d.artifacts, d.before FROM declaration d JOIN node n ON n.id = d.node WHERE n.removed IS NULL`)
	if err != nil {
		return nil, fmt.Errorf("read which artifacts are declared: %w", err)
	}
	return needed, nil
}

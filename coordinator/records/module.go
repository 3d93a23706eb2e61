package records

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"mesh/shared/declaration"
	"mesh/shared/manifest"
	"mesh/shared/refusal"
	"mesh/shared/strict"
	"mesh/shared/subject"
)

// Build is one build or registration of a module. It never changes, so it is shared: do not write to it.
type Build struct {
	// ID is build-<unix nanoseconds>.
	ID     string
	Module subject.Module
	// Manifest is decoded, Text its JSON as it is spliced into declarations.
	Manifest *manifest.Manifest
	Text     json.RawMessage
	Artifact *declaration.Artifact
	// Images are its container images, sorted by name and architecture.
	Images []declaration.Image
	// Source says where it came from, for people.
	Source string
	At     time.Time
}

// Registration is a module that is registered by hand.
type Registration struct {
	// Manifest is its JSON form.
	Manifest json.RawMessage
	// Artifact is the bundle that was put on the bus, nil for a module without one.
	Artifact *declaration.Artifact
	// Images are those of build.images, their blobs on the bus, sorted by name and architecture.
	Images []declaration.Image
	Source string
}

// Register makes the registration the module's current build. The very same again is the build there
// is and no news.
func (s *Store) Register(ctx context.Context, by By, r Registration) (b *Build, news bool, err error) {
	m, text, err := r.check()
	if err != nil {
		return nil, false, err
	}
	err = s.act(ctx, by, "register module "+string(m.Module), func(t *tx) error {
		current, err := s.current(ctx, t, m.Module)
		if err != nil && !errors.Is(err, ErrUnknown) {
			return err
		}
		if current != nil && string(current.Text) == string(text) && sameArtifact(current.Artifact, r.Artifact) && sameImages(current.Images, r.Images) {
			b = current
			return nil
		}
		if err := s.fits(t, m); err != nil {
			return err
		}
		b, news = &Build{Module: m.Module, Manifest: m, Text: text, Artifact: r.Artifact, Images: r.Images, Source: r.Source, At: at(t.now.UnixMilli())}, true
		if b.ID, err = t.newBuildID(); err != nil {
			return err
		}
		t.after = append(t.after, func() { s.remember(b) })
		return t.insertBuild(b)
	})
	if err != nil {
		return nil, false, err
	}
	return b, news, nil
}

func (r Registration) check() (*manifest.Manifest, json.RawMessage, error) {
	var m manifest.Manifest
	if err := strict.Decode(r.Manifest, &m); err != nil {
		return nil, nil, refusal.New("the manifest", err.Error(), "check it: mesh-coordinator module check <folder>")
	}
	if err := m.Check(); err != nil {
		return nil, nil, refusal.New("the manifest of "+string(m.Module), err.Error(), "check it: mesh-coordinator module check <folder>")
	}
	what := "the registration of " + string(m.Module)
	switch {
	case m.Module == AdminOwner || m.Module == BusOwner:
		return nil, nil, refusal.Newf(what, "give the module another name", "openings of a node's own are shown under the name %s", m.Module)
	case m.Build.Bundle != nil && r.Artifact == nil:
		return nil, nil, refusal.New(what, "its manifest has a bundle, and none came with it", "put the bundle on the bus first")
	case m.Build.Bundle == nil && r.Artifact != nil:
		return nil, nil, refusal.New(what, "a bundle came with it, and its manifest has none", "add build.bundle to the manifest")
	case r.Artifact != nil:
		if err := r.Artifact.Check(); err != nil {
			return nil, nil, refusal.New(what, err.Error(), "pack and upload the bundle again")
		}
	}
	if err := checkBus(&m); err != nil {
		return nil, nil, err
	}
	if err := r.checkImages(&m); err != nil {
		return nil, nil, err
	}
	text, err := json.Marshal(&m)
	if err != nil {
		return nil, nil, fmt.Errorf("encode the manifest of %s: %w", m.Module, err)
	}
	return &m, text, nil
}

func sameArtifact(a, b *declaration.Artifact) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// fits refuses a manifest that the assignments there are could not run with, so that registering a
// build never takes a module off a machine.
func (s *Store) fits(t *tx, m *manifest.Manifest) error {
	what := "the registration of " + string(m.Module)
	var lacking []string
	var nodesOf []int64
	err := each(t.ctx, t, func(r *sql.Rows) error {
		var a Assignment
		var id int64
		var settings, secrets string
		if err := r.Scan(&id, &a.Node, &settings, &secrets); err != nil {
			return err
		}
		nodesOf = append(nodesOf, id)
		if err := errors.Join(decode(settings, &a.Settings), decode(secrets, &a.Secrets)); err != nil {
			return err
		}
		if missing := Missing(m, a.Settings, a.Secrets); len(missing) > 0 {
			lacking = append(lacking, fmt.Sprintf("%s lacks %s", a.Node, strings.Join(missing, ", ")))
		}
		return nil
	}, `SELECT n.id, n.name, a.settings, a.secrets FROM assignment a JOIN node n ON n.id = a.node WHERE a.module = ? AND n.removed IS NULL ORDER BY n.name`, string(m.Module))
	if err != nil {
		return err
	}
	if len(lacking) > 0 {
		return refusal.New(what, "assignments do not give what it needs: "+some(lacking), "give it a default in the manifest, register, assign the values, then drop the default")
	}
	for _, id := range nodesOf {
		if err := s.claimsFree(t, id, m); err != nil {
			return err
		}
	}
	return nil
}

// some lists the first of many.
func some(all []string) string {
	const most = 5
	if len(all) > most {
		return strings.Join(all[:most], "; ") + fmt.Sprintf(" and %d more", len(all)-most)
	}
	return strings.Join(all, "; ")
}

// Missing names the settings and secrets that m needs and the assignment does not give, sorted.
func Missing[S ~string](m *manifest.Manifest, settings map[string]string, secrets map[string]S) (all []string) {
	for k, def := range m.Settings {
		if _, set := settings[k]; !set && def.Default == nil {
			all = append(all, "the setting "+k)
		}
	}
	for k := range m.Secrets {
		if _, set := secrets[k]; !set {
			all = append(all, "the secret "+k)
		}
	}
	slices.Sort(all)
	return all
}

func (t *tx) newBuildID() (string, error) {
	for ns := t.now.UnixNano(); ; ns++ {
		id := "build-" + strconv.FormatInt(ns, 10)
		var n int
		if err := t.QueryRowContext(t.ctx, `SELECT count(*) FROM build WHERE id = ?`, id).Scan(&n); err != nil || n == 0 {
			return id, err
		}
	}
}

func (t *tx) insertBuild(b *Build) error {
	var a declaration.Artifact
	if b.Artifact != nil {
		a = *b.Artifact
	}
	if err := t.exec(`INSERT INTO module (name, build) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET build = excluded.build`,
		string(b.Module), b.ID); err != nil {
		return err
	}
	if err := t.exec(`INSERT INTO build (id, module, manifest, digest, size, chunks, images, source, at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		b.ID, string(b.Module), string(b.Text), a.Digest, a.Size, a.Chunks, encodeImages(b.Images), b.Source, t.now.UnixMilli()); err != nil {
		return err
	}
	t.touch(touch{module: b.Module})
	return t.note("register", fmt.Sprintf("module %s as %s", b.Module, b.ID), "", b.Module)
}

// UseBuild makes an earlier build of a module its current one.
func (s *Store) UseBuild(ctx context.Context, by By, id string) (*Build, error) {
	var b *Build
	err := s.act(ctx, by, "use "+id, func(t *tx) (err error) {
		if b, err = s.build(ctx, t, id); err != nil {
			return err
		}
		now, err := s.current(ctx, t, b.Module)
		if err != nil || now.ID == id {
			return err
		}
		if err := s.fits(t, b.Manifest); err != nil {
			return err
		}
		t.touch(touch{module: b.Module})
		if err := t.exec(`UPDATE module SET build = ? WHERE name = ?`, id, string(b.Module)); err != nil {
			return err
		}
		return t.note("use", fmt.Sprintf("module %s: %s instead of %s", b.Module, id, now.ID), "", b.Module)
	})
	return b, err
}

// Module returns the current build of a module; an unknown one is refused with the one probably meant.
func (s *Store) Module(ctx context.Context, name subject.Module) (*Build, error) {
	return s.current(ctx, s.db.Read(), name)
}

// Modules are the current builds, by module.
func (s *Store) Modules(ctx context.Context) ([]*Build, error) {
	return s.listBuilds(ctx, `SELECT build FROM module ORDER BY name`)
}

// Builds are all builds of a module, the newest first.
func (s *Store) Builds(ctx context.Context, name subject.Module) ([]*Build, error) {
	if _, err := s.Module(ctx, name); err != nil {
		return nil, err
	}
	return s.listBuilds(ctx, `SELECT id FROM build WHERE module = ? ORDER BY at DESC, id DESC`, string(name))
}

func (s *Store) listBuilds(ctx context.Context, query string, args ...any) ([]*Build, error) {
	ids, err := texts(ctx, s.db.Read(), query, args...)
	if err != nil {
		return nil, fmt.Errorf("read the builds: %w", err)
	}
	all := make([]*Build, len(ids))
	for i, id := range ids {
		if all[i], err = s.Build(ctx, id); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Build returns one build.
func (s *Store) Build(ctx context.Context, id string) (*Build, error) {
	return s.build(ctx, s.db.Read(), id)
}

func (s *Store) current(ctx context.Context, q querier, name subject.Module) (*Build, error) {
	var id string
	err := q.QueryRowContext(ctx, `SELECT build FROM module WHERE name = ?`, string(name)).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		known, err := texts(ctx, q, `SELECT name FROM module`)
		if err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("%w: %w", refusal.New("the module "+string(name), "it is not registered",
			didYouMean(string(name), known, "register it: mesh-coordinator module register <folder>")), ErrUnknown)
	}
	if err != nil {
		return nil, fmt.Errorf("read module %s: %w", name, err)
	}
	return s.build(ctx, q, id)
}

func (s *Store) build(ctx context.Context, q querier, id string) (*Build, error) {
	s.mu.Lock()
	b := s.builds[id]
	s.mu.Unlock()
	if b != nil {
		return b, nil
	}
	b = &Build{ID: id}
	var text, images string
	var a declaration.Artifact
	var ms int64
	err := q.QueryRowContext(ctx, `SELECT module, manifest, digest, size, chunks, images, source, at FROM build WHERE id = ?`, id).
		Scan(&b.Module, &text, &a.Digest, &a.Size, &a.Chunks, &images, &b.Source, &ms)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, fmt.Errorf("%w: %w", refusal.New("the build "+id, "there is none with this id", "list them: mesh-coordinator module show <module>"), ErrUnknown)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", id, err)
	}
	b.Text, b.At = json.RawMessage(text), at(ms)
	if a.Digest != "" {
		b.Artifact = &a
	}
	if b.Images, err = decodeImages(images); err != nil {
		return nil, fmt.Errorf("images of %s: %w", id, err)
	}
	b.Manifest = new(manifest.Manifest)
	if err := decode(text, b.Manifest); err != nil {
		return nil, fmt.Errorf("manifest of %s: %w", id, err)
	}
	s.remember(b)
	return b, nil
}

// remember keeps a decoded build. A build that is read inside a transaction is committed already, one
// that is made there is kept after the commit only.
func (s *Store) remember(b *Build) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.builds[b.ID] = b
}

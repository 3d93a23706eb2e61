package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"mesh/coordinator/image"
	"mesh/shared/bundle"
	"mesh/shared/bus"
	"mesh/shared/controller"
	"mesh/shared/declaration"
	"mesh/shared/manifest"
	"mesh/shared/refusal"
	"mesh/shared/subject"
)

const (
	// inFlight is how many chunks are under way at once: four of 256 KiB go through within the bound of a
	// publish down to about 1 Mbit/s.
	inFlight = 4
	// chunkTries is how often a chunk is tried that the bus did not acknowledge in time.
	chunkTries = 3
	// loadTries is how often what is lacking is put on the bus: once, and again when what lay there was wrong
	// and was taken off.
	loadTries = 3
	// checkTries bounds the questions while the coordinator reads what came; each waits for seconds.
	checkTries = 200
)

// cargo is what a module brings to the bus.
type cargo struct {
	parts   []part
	closers []func() error
}

// part is one artifact and where its bytes are.
type part struct {
	declaration.Artifact
	content io.ReaderAt
	// verify refuses bytes that have another digest; nil: they were hashed when they were made.
	verify func() error
}

func (l *cargo) close() error {
	var errs []error
	for _, c := range slices.Backward(l.closers) {
		errs = append(errs, c())
	}
	return errors.Join(errs...)
}

// pack packs the folder into a file without a name.
func (l *cargo) pack(folder string) (*declaration.Artifact, error) {
	f, err := os.CreateTemp("", "mesh-bundle-")
	if err != nil {
		return nil, fmt.Errorf("pack %s: %w", folder, err)
	}
	l.closers = append(l.closers, f.Close)
	if err := os.Remove(f.Name()); err != nil {
		return nil, fmt.Errorf("pack %s: %w", folder, err)
	}
	digest, size, err := bundle.Pack(f, folder)
	if err != nil {
		return nil, fmt.Errorf("pack %s: %w", folder, err)
	}
	a := &declaration.Artifact{Digest: digest, Size: size, Chunks: bundle.Chunks(size)}
	l.parts = append(l.parts, part{*a, f, nil})
	return a, nil
}

// images takes the module's images apart.
func (l *cargo) images(ctx context.Context, dir string, m *manifest.Manifest) (all []declaration.Image, err error) {
	seen := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(m.Build.Images)) {
		i, err := image.Open(ctx, filepath.Join(dir, m.Build.Images[name].From), name, "")
		if err != nil {
			return nil, err
		}
		l.closers = append(l.closers, i.Close)
		all = append(all, i.Parts...)
		for _, a := range i.Blobs() {
			if seen[a.Digest] {
				continue // images share their lower layers
			}
			seen[a.Digest] = true
			content, err := i.Content(a)
			if err != nil {
				return nil, err
			}
			l.parts = append(l.parts, part{a, content, func() error { return i.Verify(a) }})
		}
	}
	return all, nil
}

// deliver puts on the bus what it lacks, until the coordinator has found all of it there and right.
func (c *Client) deliver(ctx context.Context, l *cargo, said func(done, of int)) error {
	if len(l.parts) == 0 {
		return nil
	}
	for range loadTries {
		lacking, err := c.lacking(ctx, l)
		if err != nil || len(lacking) == 0 {
			return err
		}
		if err := c.upload(ctx, lacking, said); err != nil {
			return err
		}
	}
	lacking, err := c.lacking(ctx, l)
	if err != nil || len(lacking) == 0 {
		return err
	}
	return refusal.Newf("the artifact "+lacking[0].Digest, "look at mesh-coordinator changes for who else uploads, and register again", "it was put on the bus %d times, and each time the bus held other bytes or not all", loadTries)
}

// Sent is how many bytes of messages this client has put on the bus so far.
func (c *Client) Sent() uint64 { return c.conn.NATS().Stats().OutBytes }

// missing is a part from a chunk on.
type missing struct {
	part
	from int
}

// lacking asks until the coordinator has read what there is.
func (c *Client) lacking(ctx context.Context, l *cargo) (all []missing, err error) {
	ask := controller.ArtifactReadyAsk{}
	parts := map[string]part{}
	for _, p := range l.parts {
		ask.Artifacts = append(ask.Artifacts, p.Artifact)
		parts[p.Digest] = p
	}
	for range checkTries {
		answer, err := Ask[controller.ArtifactReadyAnswer](ctx, c, controller.ArtifactReady, ask)
		if err != nil {
			return nil, err
		}
		if len(answer.Checking) > 0 {
			continue
		}
		for _, lack := range answer.Lacking {
			if p, ok := parts[lack.Digest]; ok {
				all = append(all, missing{p, min(max(lack.Have, 0), p.Chunks)})
			}
		}
		return all, nil
	}
	return nil, fmt.Errorf("%w: the coordinator still reads what is on the bus", ErrNoAnswer)
}

// upload puts the chunks that lack on the bus, a few at once. A chunk that is there already is as good as done.
func (c *Client) upload(ctx context.Context, all []missing, said func(done, of int)) error {
	of := 0
	for _, m := range all {
		of += m.Chunks - m.from
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(inFlight)
	var arrived atomic.Int64
	for _, m := range all {
		if m.verify != nil {
			if err := m.verify(); err != nil {
				return errors.Join(err, g.Wait())
			}
		}
		for n := m.from; n < m.Chunks; n++ {
			g.Go(func() error {
				defer arrived.Add(1)
				if err := c.chunk(ctx, m.content, m.Artifact, n); err != nil {
					return fmt.Errorf("upload the artifact %.12s: %w", m.Digest, err)
				}
				return nil
			})
			if said != nil {
				said(int(arrived.Load()), of)
			}
		}
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if said != nil {
		said(of, of)
	}
	return nil
}

func (c *Client) chunk(ctx context.Context, content io.ReaderAt, a declaration.Artifact, n int) error {
	offset, length := bundle.Span(n, a.Size)
	b := make([]byte, length)
	if got, err := content.ReadAt(b, offset); int64(got) < length {
		return fmt.Errorf("read chunk %d: %w", n, err)
	}
	for try := 1; ; try++ {
		err := c.conn.Publish(ctx, subject.Chunk(a.Digest, n), b, "")
		switch {
		case err == nil || bus.AlreadyThere(err):
			return nil
		case bus.Full(err):
			return refusal.Because(err, "a chunk of the artifact "+a.Digest, "the bus has no room for more artifacts",
				"make room on the disk of the coordinator's machine and restart the coordinator; what lies there: mesh-coordinator artifact list")
		case try == chunkTries || ctx.Err() != nil || errors.Is(err, bus.ErrRefused) || errors.Is(err, bus.ErrAway):
			return err
		}
	}
}

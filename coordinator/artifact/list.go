package artifact

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"mesh/shared/bundle"
	"mesh/shared/declaration"
	"mesh/shared/subject"
)

// Line is one artifact on the bus.
type Line struct {
	declaration.Artifact
	// Have is how many chunks are there; Artifact's numbers are 0 when no build names it.
	Have int
	// Needed: a build that is kept or a declaration names it; Build is that build, when it is one.
	Needed bool
	Build  string
	// Checked is when its bytes were read and had the digest; zero: not yet.
	Checked time.Time
}

// List is every artifact on the bus, by digest.
func (k *Keeper) List(ctx context.Context) ([]Line, error) {
	stream, err := k.js.Stream(ctx, string(subject.Artifacts))
	if err != nil {
		return nil, fmt.Errorf("list the artifacts: %w", err)
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(subject.Chunks("*")))
	if err != nil {
		return nil, fmt.Errorf("list the artifacts: %w", err)
	}
	have := map[string]int{}
	for at := range info.State.Subjects {
		if digest, n, ok := parse(at); ok && n >= 0 {
			have[digest]++
		}
	}
	needed, err := k.cfg.Records.Needed(ctx, KeptBuilds)
	if err != nil {
		return nil, err
	}
	checked, err := k.cfg.Records.AllChecked(ctx)
	if err != nil {
		return nil, err
	}
	sizes, err := k.sizes(ctx, needed)
	if err != nil {
		return nil, err
	}
	all := make([]Line, 0, len(have))
	for digest, n := range have {
		l := Line{Artifact: declaration.Artifact{Digest: digest}, Have: n}
		l.Build, l.Needed = needed[digest]
		if a, ok := sizes[digest]; ok {
			l.Artifact = a
		}
		if c, ok := checked[digest]; ok {
			l.Artifact, l.Checked = c.Artifact, c.At
		}
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b Line) int { return cmp.Compare(a.Digest, b.Digest) })
	return all, nil
}

// sizes are the artifacts that the needed builds name.
func (k *Keeper) sizes(ctx context.Context, needed map[string]string) (map[string]declaration.Artifact, error) {
	builds := map[string]bool{}
	for _, id := range needed {
		builds[id] = id != ""
	}
	sizes := map[string]declaration.Artifact{}
	for id, is := range builds {
		if !is {
			continue
		}
		b, err := k.cfg.Records.Build(ctx, id)
		if err != nil {
			return nil, err
		}
		for _, a := range b.Artifacts("") {
			sizes[a.Digest] = a
		}
	}
	return sizes, nil
}

// parse reads the subject of a chunk.
func parse(at string) (digest string, n int, ok bool) {
	rest, ok := strings.CutPrefix(at, "mesh.artifact.")
	digest, number, dot := strings.Cut(rest, ".")
	n, err := strconv.Atoi(number)
	return digest, n, ok && dot && err == nil && bundle.CheckDigest(digest) == nil
}

// Progress is how reading everything again goes.
type Progress struct {
	Running  bool
	Done, Of int
	// Wrong were taken off the bus; Failed could not be read.
	Wrong, Failed []string
}

// Verify has every artifact that a build needs read again, unless that is under way, and says how it goes
// once it is over or wait has passed.
func (k *Keeper) Verify(ctx context.Context, wait time.Duration) (Progress, error) {
	if !k.verifying() {
		if err := k.verifyAll(ctx); err != nil {
			return Progress{}, err
		}
	}
	late := k.cfg.Clock.After(wait)
	for {
		k.mu.Lock()
		p, news := k.verify, k.news
		p.Running = p.Done < p.Of
		p.Wrong, p.Failed = slices.Clone(p.Wrong), slices.Clone(p.Failed)
		k.mu.Unlock()
		if !p.Running {
			return p, nil
		}
		select {
		case <-news:
		case <-late:
			return p, nil
		case <-ctx.Done():
			return p, ctx.Err()
		}
	}
}

func (k *Keeper) verifying() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.verify.Done < k.verify.Of
}

func (k *Keeper) verifyAll(ctx context.Context) error {
	lines, err := k.List(ctx)
	if err != nil {
		return err
	}
	// What nobody knows the size of, no build needs. What lacks chunks is not wrong, it is not there.
	lines = slices.DeleteFunc(lines, func(l Line) bool { return l.Chunks == 0 || l.Have < l.Chunks })
	k.mu.Lock()
	k.verify = Progress{Of: len(lines)}
	k.mu.Unlock()
	for _, l := range lines {
		if j := k.ask(l.Artifact, false, true); !j.all { // it is being read for somebody else
			k.mu.Lock()
			k.verify.Done++
			k.mu.Unlock()
		}
	}
	return nil
}

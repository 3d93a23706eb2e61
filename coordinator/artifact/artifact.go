// Package artifact looks after the stream ARTIFACTS, where bundles and images' blobs lie in chunks by their
// digest. Whoever may upload writes there, and the first writer of a chunk wins, so nothing in it is
// believed before it was read: Ready says which artifacts the bus holds whole and right, and has what is
// wrong taken off, so that it can be put there again. What no build needs any more is removed after a day
// (APP-13).
//
// Which artifacts were found right is remembered in the records; chunks cannot be exchanged, only taken off,
// so once is enough, unless a person asks for all to be read again (Verify).
//
// Run owns the one goroutine that reads and the one that sweeps.
package artifact

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"mesh/coordinator/records"
	"mesh/shared/bundle"
	"mesh/shared/bus"
	"mesh/shared/clock"
	"mesh/shared/declaration"
	"mesh/shared/refusal"
	"mesh/shared/subject"
)

const (
	// KeptBuilds is of how many builds of each module the artifacts stay.
	KeptBuilds = 5
	// Grace is how long what no build needs stays: it may be an upload whose module is not registered yet.
	Grace = 24 * time.Hour
	// sweepFirst and sweepEvery are when what nobody needs is looked for.
	sweepFirst, sweepEvery = 10 * time.Minute, 6 * time.Hour
	// chunkBound is for one chunk to be read, from a bus in this process.
	chunkBound = 10 * time.Second
)

// Config is what a Keeper works with.
type Config struct {
	Conn    *bus.Conn
	Records *records.Store
	Clock   clock.Clock
	Log     *slog.Logger
}

// Keeper looks after ARTIFACTS. Make it with New.
type Keeper struct {
	cfg Config
	js  jetstream.JetStream

	mu     sync.Mutex // guards the fields below
	queue  []*job
	jobs   map[string]*job // by digest: waiting and under way
	verify Progress
	news   chan struct{} // closed when a job is over, then a new one
	wake   chan struct{} // capacity 1

	turn chan struct{} // capacity 1: whose turn it is to register or to sweep
}

// job is one artifact to be read.
type job struct {
	a    declaration.Artifact
	done chan struct{}
	// right and err are set before done is closed.
	right bool
	err   error
	all   bool // it is one of a Verify
}

// New makes a Keeper; Run starts it.
func New(c Config) (*Keeper, error) {
	js, err := jetstream.New(c.Conn.NATS())
	if err != nil {
		return nil, fmt.Errorf("look after the artifacts: %w", err)
	}
	return &Keeper{cfg: c, js: js, jobs: map[string]*job{}, news: make(chan struct{}), wake: make(chan struct{}, 1), turn: make(chan struct{}, 1)}, nil
}

// Run reads and sweeps until ctx ends.
func (k *Keeper) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { k.sweeping(ctx) }) // ends with ctx
	for {
		j := k.next()
		if j == nil {
			select {
			case <-ctx.Done():
				return nil
			case <-k.wake:
			}
			continue
		}
		j.right, j.err = k.read(ctx, j.a)
		k.over(j)
		if ctx.Err() != nil {
			return nil
		}
	}
}

func (k *Keeper) next() *job {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.queue) == 0 {
		return nil
	}
	j := k.queue[0]
	k.queue = k.queue[1:]
	return j
}

func (k *Keeper) over(j *job) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.jobs, j.a.Digest)
	if j.all {
		k.verify.Done++
		switch {
		case j.err != nil:
			k.verify.Failed = append(k.verify.Failed, j.a.Digest)
		case !j.right:
			k.verify.Wrong = append(k.verify.Wrong, j.a.Digest)
		}
	}
	close(j.done)
	close(k.news)
	k.news = make(chan struct{})
}

// ask has an artifact read, after those that wait already; first: before them.
func (k *Keeper) ask(a declaration.Artifact, first, all bool) *job {
	k.mu.Lock()
	defer k.mu.Unlock()
	if j := k.jobs[a.Digest]; j != nil && j.a == a {
		return j
	}
	j := &job{a: a, done: make(chan struct{}), all: all}
	k.jobs[a.Digest] = j
	if first {
		k.queue = slices.Insert(k.queue, 0, j)
	} else {
		k.queue = append(k.queue, j)
	}
	select {
	case k.wake <- struct{}{}:
	default:
	}
	return j
}

// Lack is an artifact that the bus does not hold whole.
type Lack struct {
	Digest string
	// Have is how many of its first chunks are there.
	Have int
}

// Ready says which of the artifacts are not whole on the bus, and which are still being read, having waited
// for those up to wait. What is in neither list is there, and right.
func (k *Keeper) Ready(ctx context.Context, all []declaration.Artifact, wait time.Duration) (lacking []Lack, checking []string, err error) {
	known, err := k.cfg.Records.Verified(ctx, all)
	if err != nil {
		return nil, nil, err
	}
	stream, err := k.js.Stream(ctx, string(subject.Artifacts))
	if err != nil {
		return nil, nil, fmt.Errorf("look for the artifacts: %w", err)
	}
	var jobs []*job
	for _, a := range all {
		if right, seen := known[a.Digest]; seen && !right {
			return nil, nil, refusal.Newf("the artifact "+a.Digest, "pack and register the folder again: mesh-coordinator module register <dir>", "it is known with another size than %d bytes in %d chunks", a.Size, a.Chunks)
		}
		have, more, err := chunksOf(ctx, stream, a)
		if err != nil {
			return nil, nil, err
		}
		switch {
		case have < a.Chunks:
			lacking = append(lacking, Lack{a.Digest, have})
			if known[a.Digest] { // the bus lost it, and what comes now is somebody's word again
				if err := k.cfg.Records.SetVerified(ctx, a, false); err != nil {
					return nil, nil, err
				}
			}
		case !known[a.Digest] || more: // what stands past its end is somebody's mistake, or worse
			jobs = append(jobs, k.ask(a, true, false))
		}
	}
	late := k.cfg.Clock.After(wait)
	for i, j := range jobs {
		select {
		case <-j.done:
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-late:
			for _, j := range jobs[i:] {
				checking = append(checking, j.a.Digest)
			}
			return lacking, checking, nil
		}
		if j.err != nil {
			return nil, nil, j.err
		}
		if !j.right {
			lacking = append(lacking, Lack{Digest: j.a.Digest})
		}
	}
	return lacking, nil, nil
}

// chunksOf is how many of a's first chunks the stream has, and whether it has any past its end.
func chunksOf(ctx context.Context, stream jetstream.Stream, a declaration.Artifact) (have int, more bool, err error) {
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(subject.Chunks(a.Digest)))
	if err != nil {
		return 0, false, fmt.Errorf("look for artifact %.12s: %w", a.Digest, err)
	}
	there := 0
	for n := range a.Chunks {
		if info.State.Subjects[subject.Chunk(a.Digest, n)] == 0 {
			continue
		}
		if there++; have == n {
			have++
		}
	}
	return have, there < len(info.State.Subjects), nil
}

// read reads an artifact from the bus. One that is wrong is taken off, so that it can be put there again.
func (k *Keeper) read(ctx context.Context, a declaration.Artifact) (right bool, err error) {
	why, err := k.judge(ctx, a)
	if err != nil {
		return false, err
	}
	if err := k.cfg.Records.SetVerified(ctx, a, why == ""); err != nil {
		return false, err
	}
	if why == "" {
		return true, k.trim(ctx, a)
	}
	if busy, err := k.busy(ctx, a); err != nil || busy {
		return false, err
	}
	k.cfg.Log.Error("an artifact on the bus is not what its name says: it is taken off, and has to be registered again", "artifact", a.Digest, "why", why)
	return false, k.remove(ctx, a.Digest)
}

// busy says that more chunks lie under the digest than a has, and that some came a moment ago: whoever asked
// with these numbers may be wrong, and another one's upload under way.
func (k *Keeper) busy(ctx context.Context, a declaration.Artifact) (bool, error) {
	stream, err := k.js.Stream(ctx, string(subject.Artifacts))
	if err != nil {
		return false, fmt.Errorf("look for artifact %.12s: %w", a.Digest, err)
	}
	_, more, err := chunksOf(ctx, stream, a)
	if err != nil || !more {
		return false, err
	}
	newest, err := newestChunk(ctx, stream, a.Digest)
	return k.cfg.Clock.Now().Sub(newest) < quiet, err
}

// quiet is how long after its last chunk an upload counts as over.
const quiet = time.Minute

// trim takes off what stands past the end of an artifact that was found right.
func (k *Keeper) trim(ctx context.Context, a declaration.Artifact) error {
	stream, err := k.js.Stream(ctx, string(subject.Artifacts))
	if err != nil {
		return fmt.Errorf("look for artifact %.12s: %w", a.Digest, err)
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(subject.Chunks(a.Digest)))
	if err != nil {
		return fmt.Errorf("look for artifact %.12s: %w", a.Digest, err)
	}
	for n := range a.Chunks {
		delete(info.State.Subjects, subject.Chunk(a.Digest, n))
	}
	for extra := range info.State.Subjects {
		if err := stream.Purge(ctx, jetstream.WithPurgeSubject(extra)); err != nil {
			return fmt.Errorf("take %s off the bus: %w", extra, err)
		}
	}
	return nil
}

// judge says what is wrong with an artifact's bytes, or "".
func (k *Keeper) judge(ctx context.Context, a declaration.Artifact) (why string, err error) {
	sum := sha256.New()
	for n := range a.Chunks {
		b, err := k.chunk(ctx, a, n)
		if err != nil {
			return "", err
		}
		if _, length := bundle.Span(n, a.Size); int64(len(b)) != length {
			return fmt.Sprintf("chunk %d has %d bytes instead of %d", n, len(b), length), nil
		}
		sum.Write(b) // a hash never fails
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != a.Digest {
		return "its bytes have the digest " + got, nil
	}
	return "", nil
}

func (k *Keeper) chunk(ctx context.Context, a declaration.Artifact, n int) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, chunkBound)
	defer cancel()
	b, err := k.cfg.Conn.Last(ctx, subject.Artifacts, subject.Chunk(a.Digest, n))
	if err != nil {
		return nil, fmt.Errorf("read chunk %d of artifact %.12s: %w", n, a.Digest, err)
	}
	return b, nil
}

// remove takes every chunk of a digest off the bus.
func (k *Keeper) remove(ctx context.Context, digest string) error {
	stream, err := k.js.Stream(ctx, string(subject.Artifacts))
	if err == nil {
		err = stream.Purge(ctx, jetstream.WithPurgeSubject(subject.Chunks(digest)))
	}
	if err != nil {
		return fmt.Errorf("take artifact %.12s off the bus: %w", digest, err)
	}
	return nil
}

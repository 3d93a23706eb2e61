package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"mesh/shared/bundle"
	"mesh/shared/bus"
	"mesh/shared/declaration"
	"mesh/shared/refusal"
	"mesh/shared/subject"
)

// ahead is how many chunks are asked for before the first has come.
const ahead = 4

// Fetch writes artifact a to w from chunk number from on, in order: a fetch that broke is resumed where
// it stopped (APP-13). The caller checks the digest of the whole.
func (l *Link) Fetch(ctx context.Context, a declaration.Artifact, from int, w io.Writer) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type got struct {
		b   []byte
		err error
	}
	answers := [ahead]chan got{}
	ask := func(n int) {
		if n >= a.Chunks {
			return
		}
		answer := make(chan got, 1)
		answers[n%ahead] = answer
		wg.Add(1)
		go func() { // ends within fetchBound, or with ctx
			defer wg.Done()
			b, err := l.chunk(ctx, a, n)
			answer <- got{b, err}
		}()
	}
	for n := from; n < from+ahead; n++ {
		ask(n)
	}
	for n := from; n < a.Chunks; n++ {
		var g got
		select {
		case g = <-answers[n%ahead]:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if g.err != nil {
			return fmt.Errorf("fetch chunk %d of %d of artifact %.12s: %w", n+1, a.Chunks, a.Digest, g.err)
		}
		ask(n + ahead)
		if _, err := w.Write(g.b); err != nil {
			return err
		}
	}
	return nil
}

func (l *Link) chunk(ctx context.Context, a declaration.Artifact, n int) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchBound)
	defer cancel()
	b, err := l.cfg.Conn.Last(ctx, subject.Artifacts, subject.Chunk(a.Digest, n))
	if errors.Is(err, bus.ErrNone) {
		return nil, fmt.Errorf("%w: %w", bus.ErrNone, refusal.New("the artifact", "the bus does not hold it (any more)", "register the module again: mesh-coordinator module register <dir>"))
	}
	if err != nil {
		return nil, err
	}
	if want := min(int64(bundle.ChunkSize), a.Size-int64(n)*bundle.ChunkSize); int64(len(b)) != want {
		return nil, fmt.Errorf("it has %d bytes, expected %d", len(b), want)
	}
	return b, nil
}

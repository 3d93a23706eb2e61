package artifact

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"mesh/shared/subject"
)

func (k *Keeper) sweeping(ctx context.Context) {
	wait := sweepFirst
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.cfg.Clock.After(wait):
		}
		wait = sweepEvery
		if n, err := k.Sweep(ctx); err != nil && ctx.Err() == nil {
			k.cfg.Log.Warn("what no build needs could not be taken off the bus; it is tried again", "err", err)
		} else if n > 0 {
			k.cfg.Log.Info("artifacts that no build needs were taken off the bus", "artifacts", n)
		}
	}
}

// Sweep removes the artifacts that nothing needs and that were put there longer than Grace ago, and says how
// many.
func (k *Keeper) Sweep(ctx context.Context) (removed int, err error) {
	lines, err := k.List(ctx)
	if err != nil {
		return 0, err
	}
	stream, err := k.js.Stream(ctx, string(subject.Artifacts))
	if err != nil {
		return 0, fmt.Errorf("sweep the artifacts: %w", err)
	}
	for _, l := range lines {
		if l.Needed {
			continue
		}
		newest, err := newestChunk(ctx, stream, l.Digest)
		if err != nil {
			return removed, err
		}
		if k.cfg.Clock.Now().Sub(newest) < Grace {
			continue
		}
		gone, err := k.drop(ctx, l)
		if err != nil {
			return removed, err
		}
		if gone {
			removed++
		}
	}
	return removed, nil
}

// drop removes one artifact, unless a module was registered meanwhile that needs it.
func (k *Keeper) drop(ctx context.Context, l Line) (gone bool, err error) {
	give, err := k.Hold(ctx)
	if err != nil {
		return false, err
	}
	defer give()
	needed, err := k.cfg.Records.Needed(ctx, KeptBuilds)
	if err != nil {
		return false, err
	}
	if _, is := needed[l.Digest]; is {
		return false, nil
	}
	err = k.cfg.Records.SetVerified(ctx, l.Artifact, false)
	return true, errors.Join(err, k.remove(ctx, l.Digest))
}

// Hold keeps artifacts from being swept until give is called: a module is registered between a look at the
// bus and a note in the records.
func (k *Keeper) Hold(ctx context.Context) (give func(), err error) {
	select {
	case k.turn <- struct{}{}:
		return func() { <-k.turn }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// newestChunk is when the last of an artifact's chunks was put on the bus.
func newestChunk(ctx context.Context, stream jetstream.Stream, digest string) (time.Time, error) {
	m, err := stream.GetLastMsgForSubject(ctx, subject.Chunks(digest))
	if err != nil {
		return time.Time{}, fmt.Errorf("look at artifact %.12s: %w", digest, err)
	}
	return m.Time, nil
}

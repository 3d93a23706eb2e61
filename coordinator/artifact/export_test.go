package artifact

import (
	"context"

	"github.com/nats-io/nats.go/jetstream"

	"mesh/shared/subject"
)

// Forget takes one chunk off the bus.
func (k *Keeper) Forget(ctx context.Context, chunk string) error {
	stream, err := k.js.Stream(ctx, string(subject.Artifacts))
	if err != nil {
		return err
	}
	return stream.Purge(ctx, jetstream.WithPurgeSubject(chunk))
}

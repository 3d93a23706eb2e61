package verb

import (
	"context"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"mesh/shared/bus"
)

// ServeWithin is Serve with another Bound.
func ServeWithin(ctx context.Context, c *bus.Conn, at, queue string, workers int, log *slog.Logger, bound time.Duration, h Handler) error {
	s := newServer(workers, log, func(string) Handler { return h })
	s.bound = bound
	defer s.stop()
	return c.Answer(ctx, at, queue, func(m *nats.Msg) { s.take(ctx, m) }, nil)
}

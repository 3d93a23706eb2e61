package enrol

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"mesh/shared/clock"
)

const (
	// spareWindow and spareMost bound what is said of asks that are refused: whoever has an invitation may
	// ask a thousand times a second, and the journal is for more than that.
	spareWindow = time.Minute
	spareMost   = 20
)

// sparing lets spareMost lines through in each spareWindow, and says how many it left out.
type sparing struct {
	slog.Handler
	clk clock.Clock
	*spared
}

type spared struct {
	mu    sync.Mutex // guards the fields below
	since time.Time
	lines int
}

func newSparing(log *slog.Logger, clk clock.Clock) *slog.Logger {
	return slog.New(sparing{log.Handler(), clk, &spared{since: clk.Now()}})
}

// Handle implements slog.Handler.
func (s sparing) Handle(ctx context.Context, r slog.Record) error {
	now := s.clk.Now()
	s.mu.Lock()
	out := 0
	if d := now.Sub(s.since); d >= spareWindow || d < 0 {
		out, s.since, s.lines = max(0, s.lines-spareMost), now, 0
	}
	s.lines++
	pass := s.lines <= spareMost
	s.mu.Unlock()
	if !pass {
		return nil
	}
	if out > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int("left_out_before", out))
	}
	return s.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (s sparing) WithAttrs(attrs []slog.Attr) slog.Handler {
	s.Handler = s.Handler.WithAttrs(attrs)
	return s
}

// WithGroup implements slog.Handler.
func (s sparing) WithGroup(name string) slog.Handler {
	s.Handler = s.Handler.WithGroup(name)
	return s
}

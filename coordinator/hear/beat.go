package hear

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"mesh/shared/bus"
	"mesh/shared/report"
	"mesh/shared/subject"
)

// Beat is the last heartbeat of a node.
type Beat struct {
	Seen time.Time
	// Offset is how far the node's clock is ahead.
	Offset time.Duration
	Seq    uint64
	// Leaving is why it said good-bye, "" when it did not (NOD-11).
	Leaving string
}

// Beats are the last heartbeats, and since when they are listened to: who was not heard since can be
// called silent only after a while.
func (h *Hearer) Beats() (since time.Time, beats map[subject.Node]Beat) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.since, maps.Clone(h.beats)
}

// Forget drops what is remembered of a node that was removed and is off the user list, and what it said and
// nobody read yet: a machine that gets its name later does not answer for it.
func (h *Hearer) Forget(ctx context.Context, n subject.Node) error {
	name, _ := bus.Reports()
	stream, err := h.js.Stream(ctx, string(name))
	if err != nil {
		return fmt.Errorf("forget %s: %w", n, err)
	}
	last := stream.CachedInfo().State.LastSeq
	h.mu.Lock()
	h.floor[n] = last // some may be fetched already
	delete(h.beats, n)
	h.mu.Unlock()
	if err := stream.Purge(ctx, jetstream.WithPurgeSubject(subject.Report(n)), jetstream.WithPurgeSequence(last+1)); err != nil {
		return fmt.Errorf("forget %s: %w", n, err)
	}
	return nil
}

// past reports whether m was said by an earlier machine of its node's name.
func (h *Hearer) past(m jetstream.Msg, n subject.Node) bool {
	h.mu.Lock()
	floor := h.floor[n]
	h.mu.Unlock()
	if floor == 0 {
		return false
	}
	meta, err := m.Metadata()
	return err == nil && meta.Sequence.Stream <= floor
}

// follow listens to heartbeats. The bus lets each node speak on its own subject only.
func (h *Hearer) follow(ctx context.Context) error {
	return h.cfg.Conn.Follow(ctx, subject.Heartbeat(subject.Each), "", func(m *nats.Msg) {
		node, ok := nodeOf(m.Subject, subject.Heartbeat)
		if !ok {
			return
		}
		b, err := report.DecodeHeartbeat(m.Data)
		if err != nil {
			h.complain("heartbeat not understood", string(node), err.Error())
			return
		}
		now := h.cfg.Clock.Now()
		h.mu.Lock()
		h.beats[node] = Beat{Seen: now, Offset: time.UnixMilli(b.At).Sub(now), Seq: b.Seq, Leaving: b.Leaving}
		h.mu.Unlock()
		if h.cfg.Beat != nil {
			h.cfg.Beat(node, b)
		}
	}, nil)
}

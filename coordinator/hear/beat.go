package hear

import (
	"context"
	"maps"
	"time"

	"github.com/nats-io/nats.go"

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

// Forget drops what is remembered of a node that was removed.
func (h *Hearer) Forget(n subject.Node) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.beats, n)
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
			h.complain("heartbeat not understood", string(node), err)
			return
		}
		now := h.cfg.Clock.Now()
		h.mu.Lock()
		defer h.mu.Unlock()
		h.beats[node] = Beat{Seen: now, Offset: time.UnixMilli(b.At).Sub(now), Seq: b.Seq, Leaving: b.Leaving}
	}, nil)
}

package coordinator

import (
	"context"
	"time"

	"mesh/coordinator/hear"
	"mesh/shared/subject"
)

// remindEvery is how often it is looked who missed what was sent: less often than a node says that it is alive would
// tell nothing new of most, and more often nothing at all.
const remindEvery = 20 * time.Second

// remind sends a declaration again to a node that goes on saying that it holds an older one. It may have been sent in
// the moment before the node's subscription was in place, while the stream, which the node reads after that, had not
// kept it yet: a busy stream takes seconds for that (facts/bus.md §1.2).
func (c *Coordinator) remind(ctx context.Context) error {
	tick, stop := c.cfg.Clock.Every(remindEvery)
	defer stop()
	var r reminder
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick:
		}
		if err := c.remindOnce(ctx, &r); err != nil && ctx.Err() == nil {
			c.cfg.Log.Error("it cannot be told who missed its declaration; it is tried again", "err", err)
		}
	}
}

func (c *Coordinator) remindOnce(ctx context.Context, r *reminder) error {
	unheard, err := c.records.Unheard(ctx)
	if err != nil {
		return err
	}
	_, beats := c.hear.Beats()
	items, err := c.items(ctx, r.look(c.cfg.Clock.Now(), unheard, beats))
	if err != nil || len(items) == 0 {
		return err
	}
	p := c.push.Start("coordinator", "they go on saying that they hold an older one", items)
	c.cfg.Log.Info("declarations are sent again that their nodes did not take", "push", p.ID, "nodes", len(items))
	return nil
}

// reminder judges who missed what was sent.
type reminder struct {
	at     time.Time
	lacked map[subject.Node]uint64 // which seq, at the look before
}

// look names those that lacked the same declaration at the look before, and have said since that they still do. One
// that is silent reads it back when it is there again; one whose word is about it has it.
func (r *reminder) look(now time.Time, unheard map[subject.Node]uint64, beats map[subject.Node]hear.Beat) (again []subject.Node) {
	lacked := make(map[subject.Node]uint64, len(unheard))
	for n, seq := range unheard {
		b, ok := beats[n]
		if !ok || b.Leaving != "" || b.Seq >= seq {
			continue
		}
		if r.lacked[n] == seq && b.Seen.After(r.at) {
			again = append(again, n)
			continue // it has until the look after the next
		}
		lacked[n] = seq
	}
	r.at, r.lacked = now, lacked
	return again
}

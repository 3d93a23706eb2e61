package hear

import (
	"time"

	"mesh/shared/report"
)

const (
	// complainFor is how long a complaint counts as said, complainMost how many different ones are said of
	// one node in that time: what a node writes into them is its own choice.
	complainFor  = 10 * time.Minute
	complainMost = 5
	// mostWords bounds in bytes what is said of a message.
	mostWords = 300
)

// complaints are what was said of one node lately.
type complaints struct {
	since time.Time
	said  map[string]bool
}

// complain logs what is wrong with what who says, each complaint once in a while.
func (h *Hearer) complain(what, who, detail string) {
	detail = report.Cut(detail, mostWords)
	now := h.cfg.Clock.Now()
	h.mu.Lock()
	c := h.said[who]
	if d := now.Sub(c.since); c.said == nil || d > complainFor || d < 0 {
		c = complaints{now, map[string]bool{}}
		h.said[who] = c
	}
	text := what + " " + detail
	again := c.said[text] || len(c.said) > complainMost
	if !again {
		c.said[text] = true
	}
	last := !again && len(c.said) > complainMost
	h.mu.Unlock()
	switch {
	case again:
	case last:
		h.cfg.Log.Warn("much is wrong with what a node says, and no more of it is logged for a while", "node", who)
	default:
		h.cfg.Log.Warn(what, "node", who, "err", detail)
	}
}

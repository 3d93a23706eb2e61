package filter

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"mesh/firewall"
	"mesh/shared/refusal"
)

// memoryKey is where the store keeps memory. It need not survive a power cut whole: then the kernel
// has no table either, and the rules confirmed before are put in force.
const memoryKey = "packet-filter"

// memory is what the filter keeps over a restart.
type memory struct {
	// Confirmed are the rules last confirmed, with the links they were written around last.
	Confirmed *kept `json:"confirmed,omitempty"`
	// Pending are rules put in force whose window is open: a start that finds them restores.
	Pending *kept `json:"pending,omitempty"`
	// Refused are rules that cut the bus off: they are not tried again every minute.
	Refused *refused `json:"refused,omitempty"`
}

type kept struct {
	Filter firewall.Filter `json:"filter"`
	Since  int64           `json:"since"` // UTC milliseconds
}

type refused struct {
	Key     string          `json:"key"`
	Seq     uint64          `json:"seq"`
	Refusal refusal.Refusal `json:"refusal"`
}

func (m memory) confirmed(rules string) bool {
	return m.Confirmed != nil && key(m.Confirmed.Filter.Allow, m.Confirmed.Filter.Tunnel) == rules
}

// recall reads memory. What cannot be read is no reason to stand without a filter: it is said and
// forgotten, and the declaration's rules go through a window.
func (f *Filter) recall(ctx context.Context) error {
	b, ok, err := f.cfg.Store.Meta(ctx, memoryKey)
	if err != nil || !ok {
		return err
	}
	var m memory
	if err := json.Unmarshal(b, &m); err != nil {
		f.cfg.Log.Warn("packet filter's memory is unreadable", "err", err)
		return nil
	}
	f.memory = m
	return nil
}

// keep writes memory as change leaves it; on an error it stays as it was.
func (f *Filter) keep(ctx context.Context, change func(*memory)) error {
	m := f.memory
	change(&m)
	b, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("keep packet filter: %w", err)
	}
	if err := f.cfg.Store.SetMeta(ctx, memoryKey, b); err != nil {
		return fmt.Errorf("keep packet filter: %w", err)
	}
	f.memory = m
	return nil
}

func (f *Filter) keptNow(now firewall.Filter) *kept {
	return &kept{Filter: now, Since: f.cfg.Clock.Now().UTC().UnixMilli()}
}

func (k *kept) since() time.Time { return time.UnixMilli(k.Since).UTC() }

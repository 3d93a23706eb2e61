package filter

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"mesh/shared/refusal"
	"mesh/shared/rule"
)

// memoryKey is where the store keeps memory. It need not survive a power cut whole: what was confirmed
// stands beside the boot's table too, synced.
const memoryKey = "packet-filter"

// memory is what the filter keeps over a restart.
type memory struct {
	// Confirmed are the rules last confirmed, with the links they were written around last.
	Confirmed *kept `json:"confirmed,omitempty"`
	// Refused are rules that cut the bus off: they are not tried again every minute.
	Refused *refused `json:"refused,omitempty"`
}

type kept struct {
	Filter keptFilter `json:"filter"`
	Since  int64      `json:"since"` // UTC milliseconds
}

// keptFilter is rules with the links found last, as JSON.
type keptFilter struct {
	Uplinks []string     `json:"uplinks,omitempty"`
	Outside []string     `json:"outside"`
	Bridges []string     `json:"bridges,omitempty"`
	Inside  []string     `json:"inside,omitempty"`
	Tunnel  []string     `json:"tunnel,omitempty"`
	Allow   []rule.Allow `json:"allow"`
}

func (k *kept) rules() rules {
	return rules{allow: k.Filter.Allow, tunnel: k.Filter.Tunnel, inside: k.Filter.Inside}
}

func (k *kept) links() Links {
	return Links{Uplinks: k.Filter.Uplinks, Outside: k.Filter.Outside, Bridges: k.Filter.Bridges}
}

type refused struct {
	Key     string          `json:"key"`
	Seq     uint64          `json:"seq"`
	Refusal refusal.Refusal `json:"refusal"`
}

func (m memory) confirmed(key string) bool {
	return m.Confirmed != nil && m.Confirmed.rules().key() == key
}

// recall reads memory. What cannot be read is no reason to stand without a filter: it is said, and what
// stands at boot is remembered instead. Only when that is gone too nothing is known: then the table in
// the kernel is kept, and the declaration's rules go through a window.
func (f *Filter) recall(ctx context.Context) error {
	b, ok, err := f.cfg.Store.Meta(ctx, memoryKey)
	if err != nil {
		return err
	}
	var m memory
	if ok {
		if err := json.Unmarshal(b, &m); err != nil {
			f.cfg.Log.Warn("packet filter's memory is unreadable", "err", err)
			m = memory{}
		}
	}
	if late := f.recallBoot(); late != nil && (m.Confirmed == nil || late.Since > m.Confirmed.Since) {
		f.cfg.Log.Warn("packet filter remembered by what stands at boot", "why", "the store has none as new")
		m.Confirmed = late
	}
	f.memory = m
	return nil
}

// recallBoot is what was confirmed when the boot's table was written last, or nil.
func (f *Filter) recallBoot() *kept {
	if f.cfg.Boot == nil {
		return nil
	}
	note, err := f.cfg.Boot.Recall()
	var k kept
	if err == nil && note != nil {
		err = json.Unmarshal(note, &k)
	}
	if err != nil {
		f.cfg.Log.Warn("packet filter of the boot is unreadable", "err", err)
	}
	if err != nil || note == nil || len(k.Filter.Outside) == 0 {
		return nil
	}
	return &k
}

// keepBoot has what was confirmed stand at the next boot. A disk that cannot be written is said, and
// tried again every minute: the rules in force are none the worse for it. It has the token applying.
func (f *Filter) keepBoot() {
	c := f.memory.Confirmed
	if f.cfg.Boot == nil || c == nil {
		return
	}
	err := func() error {
		table, _, err := compile(c.rules(), c.links())
		if err != nil {
			return err
		}
		note, err := json.Marshal(c)
		if err != nil {
			return err
		}
		if _, err := f.cfg.Boot.Keep(table, note); err != nil {
			return err
		}
		return f.cfg.Boot.Loaded()
	}()
	why := ""
	if err != nil {
		why = err.Error()
	}
	f.mu.Lock()
	news := f.state.BootWhy != why
	f.state.BootWhy = why
	f.mu.Unlock()
	if news && err != nil {
		f.cfg.Log.Error("packet filter does not stand at the next boot", "err", err)
	}
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

// keptNow is what is in force, to be kept.
func (f *Filter) keptNow() *kept {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &kept{Since: f.cfg.Clock.Now().UTC().UnixMilli(), Filter: keptFilter{
		Uplinks: f.links.Uplinks, Outside: f.links.Outside, Bridges: f.links.Bridges,
		Inside: f.now.inside, Tunnel: f.now.tunnel, Allow: f.now.allow}}
}

func (k *kept) since() time.Time { return time.UnixMilli(k.Since).UTC() }

package converge

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"

	"mesh/firewall/foreign"
	"mesh/shared/refusal"
	"mesh/shared/report"
)

// receiptKey is where the store keeps the receipt. It is synced before each act: what a front end was cannot
// be looked up once it is retired.
const receiptKey = "converge"

// stage is how far an act has come; empty: nothing is retired.
type stage string

const (
	retiring  stage = "retiring"  // front ends are being retired
	retired   stage = "retired"   // all are, and the bus is to be reached anew
	converged stage = "converged" // and it was
	restoring stage = "restoring" // they are being put back
	restored  stage = "restored"  // all are, and the bus is to be reached anew
)

// receipt is what a converge changed on the machine, and all it takes to put back what was.
type receipt struct {
	// ID is the wish under way, or carried out last.
	ID     int64   `json:"id"`
	Stage  stage   `json:"stage,omitempty"`
	At     int64   `json:"at"` // of Stage, Unix milliseconds
	Fronts []front `json:"fronts,omitempty"`
	// Keeps is what was to be left alone, as it stood before.
	Keeps []foreign.Kept `json:"keeps,omitempty"`
	// Left are those that could not be retired, Lost what is missing of Keeps.
	Left    []string `json:"left,omitempty"`
	Lost    []string `json:"lost,omitempty"`
	Refused *refused `json:"refused,omitempty"`
	// Back: the last act put back what was.
	Back bool `json:"back,omitempty"`
}

// refused is a wish that was not carried out, or undone; it is not tried again.
type refused struct {
	ID      int64           `json:"id"` // 0: to go back
	Seq     uint64          `json:"seq"`
	Refusal refusal.Refusal `json:"refusal"`
}

// front is a front end as it was before it was retired.
type front struct {
	Name string `json:"name"`
	// By is the wish that retires it.
	By int64 `json:"by"`
	// Gone: it is retired.
	Gone  bool   `json:"gone,omitempty"`
	Units []unit `json:"units,omitempty"`
	// Also are units that a stop of its units stops, and that run.
	Also []string `json:"also,omitempty"`
	// Files are copies of what configures it, for people: a restore does not write them back.
	Files []copied `json:"files,omitempty"`
	// Rules are what iptables-save and ip6tables-save printed, by the program that takes it back.
	Rules map[string]string `json:"rules,omitempty"`
	// Kill: its service was killed, not stopped.
	Kill bool `json:"kill,omitempty"`
	// Tables are those that were deleted, Text is what nftables.service loaded.
	Text   string   `json:"text,omitempty"`
	Tables []string `json:"tables,omitempty"`
}

// unit is a systemd unit as it was.
type unit struct {
	Name    string `json:"name"`
	File    string `json:"file,omitempty"` // enabled, disabled, …
	Running bool   `json:"running,omitempty"`
}

// copied is a file as it was.
type copied struct {
	Path    string      `json:"path"`
	Mode    fs.FileMode `json:"mode"`
	Content []byte      `json:"content"`
}

// inherit takes over which units started at boot.
func (f *front) inherit(before []unit) {
	for i := range f.Units {
		for _, u := range before {
			if u.Name == f.Units[i].Name && enabled(u.File) {
				f.Units[i].File = u.File
			}
		}
	}
}

// recall reads the receipt, once. One that cannot be read is an error: nothing may be retired over it.
func (c *Converger) recall(ctx context.Context) error {
	if c.recalled {
		return nil
	}
	b, ok, err := c.cfg.Store.Meta(ctx, receiptKey)
	if err != nil {
		return err
	}
	var r receipt
	if ok {
		if err := json.Unmarshal(b, &r); err != nil {
			return fmt.Errorf("the receipt of the last converge is unreadable: %w", err)
		}
	}
	c.recalled = true
	c.set(r)
	return nil
}

// keep writes the receipt as change leaves it; on an error it stays as it was.
func (c *Converger) keep(ctx context.Context, change func(*receipt)) error {
	r := c.now()
	was := r.Stage
	change(&r)
	if r.Stage != was {
		r.At = c.cfg.Clock.Now().UnixMilli()
	}
	b, err := json.Marshal(r)
	if err == nil {
		err = c.cfg.Store.SetMetaSynced(ctx, receiptKey, b)
	}
	if err != nil {
		return fmt.Errorf("keep the receipt of a converge: %w", err)
	}
	c.set(r)
	return nil
}

// keepFront writes one front end as change leaves it.
func (c *Converger) keepFront(ctx context.Context, name string, change func(*front)) error {
	return c.keep(ctx, func(r *receipt) {
		fronts := append([]front(nil), r.Fronts...)
		for i := range fronts {
			if fronts[i].Name == name {
				change(&fronts[i])
			}
		}
		r.Fronts = fronts
	})
}

// status is r in the words of a report; nil when nothing was ever asked.
func (r *receipt) status() *report.Converge {
	out := &report.Converge{ID: r.ID, At: r.At, Left: r.Left, Lost: r.Lost}
	for _, f := range r.Fronts {
		if f.Gone {
			out.Retired = append(out.Retired, f.Name)
		}
	}
	if r.Refused != nil {
		out.Why = r.Refused.Refusal.Error()
	}
	switch {
	case r.Stage == converged:
		out.State = report.Converged
	case r.Stage != "":
		out.State = report.Converging
	case r.Refused != nil:
		out.ID, out.State = r.Refused.ID, report.NotTaken
	case r.Back:
		out.ID, out.State = 0, report.Unconverged
	default:
		return nil
	}
	return out
}

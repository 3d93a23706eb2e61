package take

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"mesh/agent/host/engine"
	"mesh/agent/resource"
	"mesh/agent/state"
	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/subject"
)

// receiptsKey is where the store keeps what was taken, contentKey before the content of a file of it. Both are
// synced before the first act: what a thing was cannot be looked up once it is mesh's.
const (
	receiptsKey = "taken"
	contentKey  = "taken/"
)

// maxContent bounds in bytes what is kept of one file.
const maxContent = 8 << 20

// stage is how far an act has come.
type stage string

const (
	taking stage = "taking" // it is written down, and the things are being taken
	taken  stage = "taken"  // they are mesh's
	giving stage = "giving" // they are being put back
	given  stage = "given"  // they are back, and nothing is written down any more
)

// receipt is what was taken for a module, and all it takes to put it back.
type receipt struct {
	// ID is the word carried out last, or under way.
	ID    int64 `json:"id"`
	Stage stage `json:"stage,omitempty"`
	At    int64 `json:"at,omitempty"` // of Stage, Unix milliseconds
	// Things are as they were found, whichever word took them.
	Things []Found `json:"things,omitempty"`
	// Closed: words up to this one are over; what they took was given back.
	Closed  int64    `json:"closed,omitempty"`
	Refused *refused `json:"refused,omitempty"`
}

// refused is a word that was not carried out; it is not tried again.
type refused struct {
	ID      int64           `json:"id"`
	At      int64           `json:"at"`
	Refusal refusal.Refusal `json:"refusal"`
}

// Found is a thing as it was before it was taken.
type Found struct {
	// ID is the resource's.
	ID        string            `json:"id"`
	File      *FoundFile        `json:"file,omitempty"`
	Unit      *FoundUnit        `json:"unit,omitempty"`
	Container *engine.Container `json:"container,omitempty"`
	// Docker: the container is docker's; Owner is the unit that it is of.
	Docker bool       `json:"docker,omitempty"`
	Owner  *FoundUnit `json:"owner,omitempty"`
}

// FoundFile is a file as it was; its content is kept under a key of its own.
type FoundFile struct {
	Path       string            `json:"path"`
	Sum        string            `json:"sum"`
	Mode       fs.FileMode       `json:"mode"`
	UID        int               `json:"uid"`
	GID        int               `json:"gid"`
	Attributes map[string][]byte `json:"attributes,omitempty"`
}

// FoundUnit is a systemd unit as it was. File is its file in mesh's folder for units, if there was one.
type FoundUnit struct {
	Name    string     `json:"name"`
	Enabled string     `json:"enabled,omitempty"`
	Active  bool       `json:"active,omitempty"`
	File    *FoundFile `json:"file,omitempty"`
}

// row is what the ledger holds of a thing that is mesh's from now on.
func (f Found) row(module subject.Module) state.Row {
	kind := resource.KindContainer
	sum := "declared"
	switch {
	case f.File != nil:
		kind, sum = resource.KindFile, f.File.Sum+" taken"
	case f.Unit != nil:
		kind, sum = resource.KindUnit, "taken"
		if f.Unit.File != nil {
			sum = f.Unit.File.Sum + " taken"
		}
		if f.Unit.Enabled == "enabled" {
			sum += " enabled=true"
		}
	}
	return state.Row{ID: f.ID, Module: string(module), Kind: string(kind), Phase: state.Done, Made: true, Sum: sum}
}

// recall reads what was taken, once. What cannot be read is an error: nothing may be taken over it.
func (d *Desk) recall(ctx context.Context) error {
	if d.receipts != nil {
		return nil
	}
	all, err := read(ctx, d.cfg.Store)
	if err == nil {
		d.receipts = all
	}
	return err
}

func read(ctx context.Context, s interface {
	Meta(ctx context.Context, key string) (value []byte, ok bool, err error)
}) (map[subject.Module]receipt, error) {
	b, ok, err := s.Meta(ctx, receiptsKey)
	if err != nil {
		return nil, err
	}
	all := map[subject.Module]receipt{}
	if ok {
		if err := json.Unmarshal(b, &all); err != nil {
			return nil, fmt.Errorf("the receipts of what was taken are unreadable: %w", err)
		}
	}
	return all, nil
}

// keep writes the receipt of a module as change leaves it; on an error it stays as it was.
func (d *Desk) keep(ctx context.Context, m subject.Module, change func(*receipt)) error {
	r := d.receipts[m]
	r.Things = slices.Clone(r.Things)
	was, id := r.Stage, r.ID
	change(&r)
	if r.Stage != was || r.ID != id {
		r.At = d.cfg.Clock.Now().UnixMilli()
	}
	next := maps.Clone(d.receipts)
	next[m] = r
	b, err := json.Marshal(next)
	if err == nil {
		err = d.cfg.Store.SetMetaSynced(ctx, receiptsKey, b)
	}
	if err != nil {
		return fmt.Errorf("keep the receipt of what was taken for %s: %w", m, err)
	}
	d.receipts = next
	return nil
}

func contentOf(m subject.Module, id string) string { return contentKey + string(m) + "/" + id }

// Status is how the takes stand, by module.
func (d *Desk) Status() []report.Take { return status(d.receipts) }

func status(receipts map[subject.Module]receipt) (all []report.Take) {
	for _, m := range slices.Sorted(maps.Keys(receipts)) {
		r := receipts[m]
		t := report.Take{Module: m, ID: r.ID, At: r.At}
		for _, f := range r.Things {
			t.Things = append(t.Things, f.ID)
		}
		switch r.Stage {
		case taking:
			t.State = report.Taking
		case taken:
			t.State = report.Taken
		case giving:
			t.State = report.GivingOut
		case given:
			t.ID, t.State = r.Closed, report.GivenBack
		}
		if f := r.Refused; f != nil && f.ID > max(r.ID, r.Closed) {
			t.ID, t.State, t.At, t.Why = f.ID, report.TakeNot, f.At, f.Refusal.Error()
		}
		if t.State != "" {
			all = append(all, t)
		}
	}
	return all
}

// Receipts is Status for who only reads the store.
func Receipts(ctx context.Context, s interface {
	Meta(ctx context.Context, key string) (value []byte, ok bool, err error)
}) ([]report.Take, error) {
	all, err := read(ctx, s)
	return status(all), err
}

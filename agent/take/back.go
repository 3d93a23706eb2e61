package take

import (
	"context"
	"errors"
	"fmt"

	"mesh/shared/refusal"
	"mesh/shared/subject"
)

// GiveBack puts back what was taken for a module, as it was found; the module's own things are gone. id is the word;
// 0: a person's at the machine. A refusal ended the word, unless things were being put back already; any other
// error is tried again with the next call.
func (d *Desk) GiveBack(ctx context.Context, m subject.Module, id int64) error {
	if err := d.recall(ctx); err != nil {
		return err
	}
	r := d.receipts[m]
	if r.Stage != giving {
		if len(r.Things) == 0 {
			return d.refuseBack(ctx, m, id, deny("giving back what was taken for "+string(m), "nothing was taken for it here, or it was given back",
				"nothing: see how it is with mesh-agent show"))
		}
		if err := d.free(ctx, r); err != nil {
			return d.refuseBack(ctx, m, id, err)
		}
		if err := d.keep(ctx, m, func(r *receipt) { r.Stage, r.Refused = giving, nil }); err != nil {
			return err
		}
	}
	d.cfg.FailPoint(backNoted)
	for _, f := range r.Things {
		if err := d.restore(ctx, contentOf(m, f.ID), f); err != nil {
			return fmt.Errorf("give %s back: %w", f.ID, err)
		}
	}
	if err := d.keep(ctx, m, func(r *receipt) { *r = receipt{Stage: given, Closed: max(r.Closed, r.ID, id)} }); err != nil {
		return err
	}
	d.cfg.FailPoint(backAll)
	names := make([]string, len(r.Things))
	for i, f := range r.Things { // one that stays after a kill here is written over by the next take
		names[i] = f.ID
		if err := d.cfg.Store.SetMeta(ctx, contentOf(m, f.ID), nil); err != nil {
			return err
		}
	}
	d.cfg.Log.Info("what was taken is given back", "module", m, "what", names)
	return nil
}

// refuseBack ends the word when why is such a reason.
func (d *Desk) refuseBack(ctx context.Context, m subject.Module, id int64, why error) error {
	no := (*denied)(nil)
	if !errors.As(why, &no) {
		return why
	}
	d.cfg.Log.Warn("a give-back was refused", "module", m, "err", why)
	if id == 0 {
		return why
	}
	return errors.Join(why, d.keep(ctx, m, func(r *receipt) {
		r.Refused = &refused{ID: id, At: d.cfg.Clock.Now().UnixMilli(), Refusal: *refusal.Of(why)}
	}))
}

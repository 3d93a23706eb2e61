// Package enrol answers invited machines on mesh.enrol.*: it checks the machine's clock and name, lets
// the records decide, and answers once the machine is on the bus's user list. Who asks is known by the
// invitation's key, from the bus itself. Asking twice is safe (NOD-1).
package enrol

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"mesh/coordinator/records"
	"mesh/shared/bus"
	"mesh/shared/clock"
	words "mesh/shared/enrol"
	"mesh/shared/refusal"
	"mesh/shared/subject"
	"mesh/shared/verb"
)

// workers is how many machines are let in side by side. Nearly all of that time they wait for the user
// list, which follows once a second: too few here would make a crowd come in by many reloads.
const workers = 256

// store is the records' part this package needs.
type store interface {
	InvitationOf(ctx context.Context, key string) (records.Invitation, error)
	Enrol(ctx context.Context, ask records.EnrolAsk) (records.EnrolAnswer, error)
	Report(ctx context.Context, node subject.Node) (records.Reported, error)
}

// Config is what a Door works with.
type Config struct {
	Conn    *bus.Conn
	Records store
	// Clear takes what the bus still holds for an earlier machine of this name off it.
	Clear func(ctx context.Context, node subject.Node) error
	// Admit returns once the user list in force holds everybody the records let in.
	Admit func(ctx context.Context) error
	// Served is called each time the bus hands asks on.
	Served func()
	Clock  clock.Clock
	Log    *slog.Logger
}

// Door lets machines in.
type Door struct{ cfg Config }

// New makes a Door; Run opens it.
func New(c Config) *Door { return &Door{c} }

// Run answers until ctx ends, and waits for answers under way.
func (d *Door) Run(ctx context.Context) error {
	return verb.Serve(ctx, d.cfg.Conn, subject.Enrol("*"), "", workers, newSparing(d.cfg.Log, d.cfg.Clock), d.answer, d.cfg.Served)
}

func (d *Door) answer(ctx context.Context, who verb.Caller, b []byte) (any, error) {
	ask, err := words.DecodeAsk(b)
	if err != nil {
		return nil, err
	}
	in, err := d.cfg.Records.InvitationOf(ctx, who.Key)
	if err != nil {
		return nil, err
	}
	if ask.Node != in.Node {
		return nil, refusal.Newf("the name "+string(ask.Node), fmt.Sprintf("enrol it as %s, or make an invitation for %s", in.Node, ask.Node), "the invitation %s is for %s", in.ID, in.Node)
	}
	if err := d.clock(ask); err != nil {
		return nil, err
	}
	got, err := d.cfg.Records.Enrol(ctx, records.EnrolAsk{Invitation: in.ID, Key: ask.Key, Curve: ask.Curve, MachineID: ask.MachineID, Profile: &ask.Profile})
	if err != nil {
		return nil, records.Told(err)
	}
	if got.New {
		d.cfg.Log.Info("a machine was let in", "node", got.Node, "invitation", in.ID)
	}
	heard, err := d.heard(ctx, got.Node)
	if err != nil {
		return nil, err
	}
	if !heard {
		if err := d.admit(ctx, got); err != nil {
			return nil, err
		}
	}
	return words.Answer{Mesh: got.Mesh, Node: got.Node, Signer: got.Signer, Bus: got.Bus,
		Heard: heard, At: d.cfg.Clock.Now().UnixMilli()}, nil
}

// admit makes ready for a machine that was let in: it must not find the declaration of another one, and
// its key has to be on the user list.
func (d *Door) admit(ctx context.Context, got records.EnrolAnswer) error {
	if got.Namesake {
		if err := d.cfg.Clear(ctx, got.Node); err != nil {
			return err // it asks again
		}
	}
	if err := d.cfg.Admit(ctx); err != nil {
		// It is let in all the same: the list follows, and the machine asks again or connects later.
		d.cfg.Log.Error("a machine was let in and is not on the user list yet", "node", got.Node, "err", err)
	}
	return nil
}

func (d *Door) heard(ctx context.Context, node subject.Node) (bool, error) {
	kept, err := d.cfg.Records.Report(ctx, node)
	return kept.Report.Number > 0, err
}

// clock refuses a machine whose clock is so far off that its certificates and logs would mislead.
func (d *Door) clock(ask words.Ask) error {
	off := time.UnixMilli(ask.At).Sub(d.cfg.Clock.Now()).Round(time.Second)
	way := "ahead of"
	if off < 0 {
		way = "behind"
	}
	if off = off.Abs(); off <= words.MaxSkew { // the least duration has no negative
		return nil
	}
	return refusal.Newf("the machine for "+string(ask.Node), "set its clock (timedatectl set-ntp true, or date -s) and enrol again",
		"its clock is %v %s the coordinator's, at most %v is taken", off, way, words.MaxSkew)
}

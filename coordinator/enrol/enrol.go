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
	Invitations(ctx context.Context) ([]records.Invitation, error)
	Enrol(ctx context.Context, ask records.EnrolAsk) (records.EnrolAnswer, error)
	Report(ctx context.Context, node subject.Node) (records.Reported, error)
}

// Config is what a Door works with.
type Config struct {
	Conn    *bus.Conn
	Records store
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
	return verb.Serve(ctx, d.cfg.Conn, subject.Enrol("*"), "", workers, d.cfg.Log, d.answer, d.cfg.Served)
}

func (d *Door) answer(ctx context.Context, who verb.Caller, b []byte) (any, error) {
	ask, err := words.DecodeAsk(b)
	if err != nil {
		return nil, err
	}
	in, err := d.invitation(ctx, who.Key)
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
		return nil, err
	}
	if err := d.cfg.Admit(ctx); err != nil {
		// It is let in all the same: the list follows, and the machine asks again or connects later.
		d.cfg.Log.Error("a machine was let in and is not on the user list yet", "node", got.Node, "err", err)
	}
	d.cfg.Log.Info("a machine was let in", "node", got.Node, "invitation", in.ID)
	kept, err := d.cfg.Records.Report(ctx, got.Node)
	if err != nil {
		return nil, err
	}
	return words.Answer{Mesh: got.Mesh, Node: got.Node, Signer: got.Signer, Bus: got.Bus,
		Heard: kept.Report.Number > 0, At: d.cfg.Clock.Now().UnixMilli()}, nil
}

// invitation is the one whose key asks.
func (d *Door) invitation(ctx context.Context, key string) (records.Invitation, error) {
	all, err := d.cfg.Records.Invitations(ctx)
	if err != nil {
		return records.Invitation{}, err
	}
	for _, in := range all {
		if in.Key == key && key != "" {
			return in, nil
		}
	}
	return records.Invitation{}, refusal.New("the question to be let in", "its key is of no invitation", "make an invitation: mesh-coordinator node invite <name>")
}

// clock refuses a machine whose clock is so far off that its certificates and logs would mislead.
func (d *Door) clock(ask words.Ask) error {
	off := time.UnixMilli(ask.At).Sub(d.cfg.Clock.Now()).Round(time.Second)
	way := "ahead of"
	if off < 0 {
		off, way = -off, "behind"
	}
	if off <= words.MaxSkew {
		return nil
	}
	return refusal.Newf("the machine for "+string(ask.Node), "set its clock (timedatectl set-ntp true, or date -s) and enrol again",
		"its clock is %v %s the coordinator's, at most %v is taken", off, way, words.MaxSkew)
}

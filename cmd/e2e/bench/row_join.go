package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"mesh/coordinator/client"
	"mesh/shared/bus"
	"mesh/shared/clock"
	"mesh/shared/controller"
	"mesh/shared/credential"
	"mesh/shared/enrol"
	"mesh/shared/report"
	"mesh/shared/subject"
	"mesh/shared/verb"
)

// joinRows is row 13.
func joinRows(b *bench, ctx context.Context) ([]score, error) {
	b.say("row 13: %d users, %d connected, on both sides", b.users, b.connected)
	p, err := b.newLinks(ctx, "join", b.users)
	if err != nil {
		return nil, err
	}
	defer p.leave()
	p.subjects = 12
	one, err := b.joinOne(ctx, p)
	if err != nil {
		return nil, err
	}
	many, err := b.joinMany(ctx, p)
	if err != nil {
		return []score{one}, err
	}
	return []score{one, many}, nil
}

// joinOne puts one node at a time on the list in force.
func (b *bench) joinOne(ctx context.Context, p *linkBed) (s score, err error) {
	if p.mesh, err = start(ctx, "mesh-core"); err != nil {
		return s, err
	}
	if err := p.mesh.ask("start", daemonStart{p.m.Dir, p.m.Listen}, nil); err != nil {
		return s, err
	}
	if err := p.startLinks(ctx, b.connected); err != nil {
		return s, err
	}
	if err := p.startFloor(ctx, b.users, b.connected); err != nil {
		return s, err
	}
	var floor, mesh []sample
	err = b.profiled("row13", func() (err error) {
		floor, mesh, err = inTurn(ctx, 2*b.rounds, told(p.floor, "join", nil), told(p.mesh, "join", nil))
		return err
	}, p.mesh)
	if err != nil {
		return s, err
	}
	gone, err := lost(p.links)
	if err != nil {
		return s, err
	}
	goneFloor, err := lost(p.clients)
	if err != nil {
		return s, err
	}
	s = compare(13, fmt.Sprintf("one node joins, %d users, %d connected", b.users, b.connected), floor, mesh).within(1.5, "<= 1.2x")
	return s.note("the floor hands the server its list again, which is made already; mesh reads the node, composes who may what, and hands it over. Connections lost: mesh %d, floor %d", gone, goneFloor), nil
}

// joins is how many machines are let in at once.
const joins = 100

// joinMany lets many machines in at once through the coordinator itself, and counts reloads and lost
// connections.
func (b *bench) joinMany(ctx context.Context, p *linkBed) (s score, err error) {
	p.mesh.leave()
	if p.mesh, err = b.startDaemon(ctx, p.m); err != nil {
		return s, err
	}
	if err := p.askLinks("connected"); err != nil {
		return s, err
	}
	c, err := operator(ctx, p.m.Operator)
	if err != nil {
		return s, err
	}
	defer c.Close()
	all, err := inviteAll(ctx, c, b.users)
	if err != nil {
		return s, err
	}
	// The list follows the invitations first: their holders are users too. That is over when it stands still.
	before, err := p.quiet(ctx)
	if err != nil {
		return s, err
	}
	gone, err := lost(p.links)
	if err != nil {
		return s, err
	}
	began := time.Now()
	if err := enrolAll(ctx, all); err != nil {
		return s, err
	}
	took := time.Since(began)
	after, err := p.quiet(ctx)
	if err != nil {
		return s, err
	}
	now, err := lost(p.links)
	if err != nil {
		return s, err
	}
	s = score{Row: 13, Work: fmt.Sprintf("%d machines enrol at once: reloads of the list", joins), Unit: "reloads", Mesh: float64(after - before), Bound: "<= 2, none lost", Aim: "<= 2, none lost"}
	met := after-before <= 2 && now == gone
	s.Met = &met
	return s.note("all %d were let in and on the list after %.2f s; connections lost meanwhile: %d", joins, took.Seconds(), now-gone), nil
}

// quiet waits until no reload came for a while and returns how many there were.
func (p *linkBed) quiet(ctx context.Context) (reloads int64, err error) {
	const still = 2500 * time.Millisecond // a reload may wait one second for the one before
	var last daemonCounts
	since := time.Now()
	err = until(ctx, "a list that stands still", 100*time.Millisecond, time.Minute, func() (bool, error) {
		var now daemonCounts
		if err := p.mesh.ask("counts", nil, &now); err != nil {
			return false, err
		}
		if now != last {
			last, since = now, time.Now()
		}
		return time.Since(since) > still, nil
	})
	return last.Reloads, err
}

// lost is how many connections some children lost.
func lost(all []*child) (sum int64, err error) {
	for _, c := range all {
		var n int64
		if err := c.ask("lost", nil, &n); err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// newcomer is an invited machine.
type newcomer struct {
	inv    credential.Invitation
	member member
	id     int
}

func invite(ctx context.Context, c *client.Client, i int) (*newcomer, error) {
	m, err := newMember(i)
	if err != nil {
		return nil, err
	}
	a, err := client.Ask[controller.InviteAnswer](ctx, c, controller.NodeInvite, controller.InviteAsk{Node: m.Name, Why: "bench"})
	if err != nil {
		return nil, err
	}
	inv, err := credential.ParseInvitation(a.Line)
	return &newcomer{inv, m, i}, err
}

// inviteAll invites at once: each invitation waits until its holder is on the list.
func inviteAll(ctx context.Context, c *client.Client, from int) ([]*newcomer, error) {
	all, errs := make([]*newcomer, joins), make([]error, joins)
	var wg sync.WaitGroup
	for i := range all {
		wg.Go(func() { all[i], errs[i] = invite(ctx, c, from+i) })
	}
	wg.Wait()
	return all, errors.Join(errs...)
}

// enrolAll has all connect first, then ask at once.
func enrolAll(ctx context.Context, all []*newcomer) error {
	conns := make([]*bus.Conn, len(all))
	defer func() {
		for _, c := range conns {
			if c != nil {
				c.Close()
			}
		}
	}()
	for i, n := range all {
		var err error
		conns[i], err = bus.Connect(ctx, bus.Options{Bus: n.inv.Bus, Seed: n.inv.Seed, Principal: n.inv.Principal(), Name: "bench", Once: true, Clock: clock.Real()})
		if err != nil {
			return err
		}
	}
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, n := range all {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, enrol.Bound)
			defer cancel()
			ask := enrol.Ask{Node: n.member.Name, Key: n.member.key, Curve: n.member.curveKey, MachineID: machineID(n.id), Profile: report.Profile{OS: "debian", Arch: "amd64"},
				Agent: "bench", At: time.Now().UnixMilli()}
			var answer enrol.Answer
			errs[i] = verb.CallAt(ctx, conns[i], subject.Enrol(n.inv.ID), "the enrolment", ask, &answer)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

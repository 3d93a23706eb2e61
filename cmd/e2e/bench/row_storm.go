package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"mesh/shared/controller"
)

// linkBed is a coordinator with agents as the bus sees them, and a floor of the same size.
type linkBed struct {
	dir            string
	m              *mesh
	nodes          int
	mesh, floor    *child
	links, clients []*child
	floorListen    string
	// subjects are of a user of the floor.
	subjects int
}

func (p *linkBed) leave() {
	for _, c := range append(append([]*child{}, p.links...), p.clients...) {
		c.leave()
	}
	if p.mesh != nil {
		p.mesh.leave()
	}
	if p.floor != nil {
		p.floor.leave()
	}
}

// floorBody is what each client of the floor finds in the stream, in bytes.
const floorBody = 8 << 10

// linkShape is some 8 KiB a declaration.
func linkShape(nodes int) shape { return shape{Nodes: nodes, Each: 5, Kinds: 20, Lines: 62} }

// newLinks makes a mesh of nodes and the floor's list of as many users; nothing runs yet.
func (b *bench) newLinks(ctx context.Context, name string, nodes int) (p *linkBed, err error) {
	p = &linkBed{nodes: nodes, subjects: 6}
	if p.dir, err = b.folder(name); err != nil {
		return nil, err
	}
	if p.floorListen, err = freeAddress(); err != nil {
		return nil, err
	}
	p.m, err = makeMesh(ctx, p.dir, linkShape(nodes))
	return p, err
}

// linkGroups are how many links one process holds.
func linkGroups(n int) [][2]int { return groups(n, max(1, (files()-spare)/5000)) }

// startMesh starts the coordinator and connects count of its nodes.
func (p *linkBed) startMesh(ctx context.Context, b *bench, count int) (err error) {
	if p.mesh, err = b.startDaemon(ctx, p.m); err != nil {
		return err
	}
	return p.startLinks(ctx, count)
}

func (p *linkBed) startLinks(ctx context.Context, count int) (err error) {
	parts := linkGroups(count)
	if p.links, err = startAll(ctx, "mesh-links", len(parts)); err != nil {
		return err
	}
	if err := askAll(p.links, "start", func(i int) any { return agentsStart{Fleet: p.m.Nodes, From: parts[i][0], To: parts[i][1]} }); err != nil {
		return err
	}
	return p.askLinks("connected")
}

// pushLinks pushes to all nodes and waits until the connected ones hold what was sent and the records
// hold their reports.
func (p *linkBed) pushLinks(ctx context.Context) error {
	c, err := operator(ctx, p.m.Operator)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = pushAll(ctx, c, controller.PushAsk{All: true, Why: "bench"}, firstBound)
	return err
}

func (p *linkBed) askLinks(do string) error {
	return askAll(p.links, do, func(int) any { return nil })
}

// startFloor starts the bare server with a declaration for everybody, and connects count clients.
func (p *linkBed) startFloor(ctx context.Context, users, count int) (err error) {
	if err := p.startServer(ctx, users); err != nil {
		return err
	}
	if err := p.floor.ask("fill", floorLoad{N: count, Size: floorBody}, nil); err != nil {
		return err
	}
	parts := linkGroups(count)
	if p.clients, err = startAll(ctx, "floor-agents", len(parts)); err != nil {
		return err
	}
	return askAll(p.clients, "start", func(i int) any {
		return floorFleet{Dir: p.dir, Listen: p.floorListen, From: parts[i][0], To: parts[i][1], Mute: true}
	})
}

func (p *linkBed) startServer(ctx context.Context, users int) (err error) {
	if p.floor, err = start(ctx, "floor-bus"); err != nil {
		return err
	}
	return p.floor.ask("start", floorStart{Dir: p.dir, Listen: p.floorListen, Users: users, Subjects: p.subjects}, nil)
}

// stormRows is row 12.
func stormRows(b *bench, ctx context.Context) ([]score, error) {
	b.say("row 12: connecting %d agents on both sides", b.storm)
	p, err := b.newLinks(ctx, "storm", b.storm)
	if err != nil {
		return nil, err
	}
	defer p.leave()
	if err := p.startMesh(ctx, b, b.storm); err != nil {
		return nil, err
	}
	if err := p.pushLinks(ctx); err != nil {
		return nil, err
	}
	if err := p.startFloor(ctx, b.storm, b.storm); err != nil {
		return nil, err
	}
	var whole []float64
	rounds := max(1, min(b.rounds, 3)) // a round is some twenty seconds
	var floor, mesh []sample
	err = b.profiled("row12", func() (err error) {
		floor, mesh, err = inTurn(ctx, rounds, func(int) (sample, error) { return p.floorStorm(ctx) }, func(round int) (sample, error) {
			s, took, err := p.meshStorm(ctx, b)
			if round > 0 {
				whole = append(whole, millis(took))
			}
			return s, err
		})
		return err
	}, p.links...)
	if err != nil {
		return nil, err
	}
	s := compare(12, fmt.Sprintf("bus killed with %d agents: all back, revisions agreed", b.storm), floor, mesh).within(2, "<= 1.3x")
	return []score{s.note("counted from the moment the bus takes connections again; from the kill it is %.2f s at mesh. The floor's clients stand ready and connect at once, %d at a time",
		median(whole)/1000, stormPar)}, nil
}

// floorStorm kills the server and connects everybody to its successor.
func (p *linkBed) floorStorm(ctx context.Context) (sample, error) {
	p.floor.kill()
	if err := askAll(p.clients, "drop", func(int) any { return nil }); err != nil {
		return sample{}, err
	}
	if err := p.startServer(ctx, p.nodes); err != nil {
		return sample{}, err
	}
	par := max(1, stormPar/len(p.clients))
	return timed(func() error { return askAll(p.clients, "storm", func(int) any { return par }) }, append(p.clients, p.floor)...)
}

// meshStorm kills the coordinator with its bus, starts it again, and waits until every agent has read
// its declaration back; took counts from the kill.
func (p *linkBed) meshStorm(ctx context.Context, b *bench) (s sample, took time.Duration, err error) {
	if err := p.askLinks("forget"); err != nil {
		return s, 0, err
	}
	killed := time.Now()
	p.mesh.kill()
	if err := p.askLinks("away"); err != nil {
		return s, 0, err
	}
	if err := p.askLinks("forget"); err != nil {
		return s, 0, err
	}
	if p.mesh, err = start(ctx, "mesh-coordinator"); err != nil {
		return s, 0, err
	}
	if err := p.mesh.tell("start", daemonStart{p.m.Dir, p.m.Listen}); err != nil {
		return s, 0, err
	}
	// The bus takes connections some time before the coordinator says that all is served.
	err = until(ctx, "the bus", 2*time.Millisecond, time.Minute, func() (bool, error) { return listens(p.m.Listen), nil })
	if err != nil {
		return s, 0, err
	}
	s, err = timed(func() error { return p.askLinks("agreed") }, append(p.links, p.mesh)...)
	took = time.Since(killed)
	return s, took, errors.Join(err, p.mesh.answer("start", nil))
}

func listens(address string) bool {
	c, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return false
	}
	_ = c.Close() // it was only to see whether somebody takes it
	return true
}

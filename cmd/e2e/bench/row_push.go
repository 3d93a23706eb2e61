package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"mesh/coordinator/client"
	"mesh/shared/controller"
	"mesh/shared/subject"
)

const (
	// filesAnAgent is how many files one whole agent holds open.
	filesAnAgent = 12
	// spare files are for the process itself.
	spare = 200
	// firstBound is for agents that come up and apply everything for the first time.
	firstBound = 5 * time.Minute
	pushBound  = 2 * time.Minute
	// applyPar is how many agents carry out an apply at once, of all processes of a side: they share one
	// disk.
	applyPar = 64
)

// pushBed is a coordinator with its agents, and a floor of the same size.
type pushBed struct {
	mesh, floor             *child
	meshAgents, floorAgents []*child
	client                  *client.Client
	run                     string
	agents, size            int
	version                 int
}

func (p *pushBed) leave() {
	if p.client != nil {
		p.client.Close()
	}
	for _, c := range slices.Concat(p.meshAgents, p.floorAgents, []*child{p.mesh, p.floor}) {
		c.leave()
	}
	if p.run != "" {
		_ = os.RemoveAll(p.run) // a memory file system of small files
	}
}

// children are all of them, mesh's first.
func (p *pushBed) children() []*child {
	return slices.Concat(p.meshAgents, []*child{p.mesh}, p.floorAgents, []*child{p.floor})
}

// groups splits n agents over processes so that each can hold its files.
func groups(n, filesEach int) (parts [][2]int) {
	most := max(1, min(500, (files()-spare)/filesEach))
	count := (n + most - 1) / most
	for i := range count {
		parts = append(parts, [2]int{n * i / count, n * (i + 1) / count})
	}
	return parts
}

// startPush starts everything and waits until each agent has applied its first declaration.
func (b *bench) startPush(ctx context.Context) (p *pushBed, err error) {
	p = &pushBed{agents: b.agents, size: 8 << 10}
	defer func(bed *pushBed) { // p is nil when an error is returned
		if err != nil {
			bed.leave()
		}
	}(p)
	dir, err := b.folder("push")
	if err != nil {
		return nil, err
	}
	if p.run, err = os.MkdirTemp(memoryFolder(dir), "mesh-bench-run-"); err != nil {
		return nil, err
	}
	m, err := makeMesh(ctx, dir, shape{Nodes: b.agents, Each: 4, Kinds: 20, Lines: 62, Change: true})
	if err != nil {
		return nil, err
	}
	if p.mesh, err = b.startDaemon(ctx, m); err != nil {
		return nil, err
	}
	if p.client, err = operator(ctx, m.Operator); err != nil {
		return nil, err
	}
	if err := p.startFloor(ctx, dir); err != nil {
		return nil, err
	}
	if p.meshAgents, err = startAll(ctx, "mesh-agents", len(groups(b.agents, filesAnAgent))); err != nil {
		return nil, err
	}
	began := time.Now()
	parts := groups(b.agents, filesAnAgent)
	err = askAll(p.meshAgents, "start", func(i int) any {
		return agentsStart{Fleet: m.Nodes, Dir: filepath.Join(dir, "agents"), Run: p.run, From: parts[i][0], To: parts[i][1], Par: max(1, applyPar/len(parts))}
	})
	if err != nil {
		return nil, err
	}
	if _, err = pushAll(ctx, p.client, controller.PushAsk{All: true, Why: "first"}, firstBound); err != nil {
		return nil, errors.Join(err, askAll(p.meshAgents, "check", func(int) any { return nil }))
	}
	b.say("rows 1 to 3: %d agents came up and applied their first declaration in %.1f s", b.agents, time.Since(began).Seconds())
	return p, nil
}

func (p *pushBed) startFloor(ctx context.Context, dir string) error {
	listen, err := freeAddress()
	if err != nil {
		return err
	}
	if p.floor, err = start(ctx, "floor-bus"); err != nil {
		return err
	}
	if err := p.floor.ask("start", floorStart{Dir: dir, Listen: listen, Users: p.agents, Subjects: 6}, nil); err != nil {
		return err
	}
	parts := groups(p.agents, filesAnAgent)
	if p.floorAgents, err = startAll(ctx, "floor-agents", len(parts)); err != nil {
		return err
	}
	return askAll(p.floorAgents, "start", func(i int) any {
		return floorFleet{Dir: dir, Listen: listen, From: parts[i][0], To: parts[i][1], Apply: true, Par: max(1, applyPar/len(parts))}
	})
}

func startAll(ctx context.Context, name string, n int) (all []*child, err error) {
	for range n {
		c, err := start(ctx, name)
		if err != nil {
			return all, err
		}
		all = append(all, c)
	}
	return all, nil
}

// memoryFolder is a memory file system, as /run is one; without one, other.
func memoryFolder(other string) string {
	const shm = "/dev/shm"
	if st, err := os.Stat(shm); err == nil && st.IsDir() {
		return shm
	}
	return other
}

// pushRows are rows 1 to 3.
func pushRows(b *bench, ctx context.Context) (scores []score, err error) {
	b.say("rows 1 to 3: starting %d agents", b.agents)
	p, err := b.startPush(ctx)
	if err != nil {
		return nil, err
	}
	defer p.leave()
	type line struct {
		row int
		run func(context.Context, *pushBed) ([]score, error)
	}
	for _, l := range []line{{1, b.pushChange}, {2, b.pushSame}, {3, b.pushOne}} {
		if !b.wants(l.row) {
			continue
		}
		s, err := l.run(ctx, p)
		if err != nil {
			return scores, err
		}
		scores = append(scores, s...)
	}
	return scores, nil
}

// floorRound is one push of the floor.
func (p *pushBed) floorRound(first, count int) (sample, error) {
	return timed(func() error { return p.floor.ask("push", floorPush{First: first, Count: count, Size: p.size}, nil) }, append(p.floorAgents, p.floor)...)
}

// meshRound is one push of mesh, as an operator sees it: from the word to the answer that says that all
// have applied it, which the records hold by then.
func (p *pushBed) meshRound(ctx context.Context, ask controller.PushAsk) (sample, error) {
	return timed(func() error {
		_, err := pushAll(ctx, p.client, ask, pushBound)
		return err
	}, append(p.meshAgents, p.mesh)...)
}

// pushChange is row 1: another build of one module, which every node has.
func (b *bench) pushChange(ctx context.Context, p *pushBed) ([]score, error) {
	var floor, mesh []sample
	err := b.profiled("row1", func() (err error) {
		floor, mesh, err = inTurn(ctx, b.rounds, func(int) (sample, error) { return p.floorRound(0, p.agents) }, func(int) (sample, error) {
			if err := p.registerNext(ctx); err != nil {
				return sample{}, err
			}
			return p.meshRound(ctx, controller.PushAsk{All: true, Why: "row 1"})
		})
		return err
	}, p.children()...)
	if err != nil {
		return nil, err
	}
	return []score{compare(1, fmt.Sprintf("push one change to %d agents, last report recorded", p.agents), floor, mesh).within(2, "<= 1.2x the file floor")}, nil
}

// registerNext makes another build of the module that changes the current one.
func (p *pushBed) registerNext(ctx context.Context) error {
	p.version++
	text, err := json.Marshal(changeManifest(p.version))
	if err != nil {
		return err
	}
	_, err = client.Ask[controller.RegisterAnswer](ctx, p.client, controller.ModuleRegister, controller.RegisterAsk{Manifest: text, Source: "bench", Why: "row 1"})
	return err
}

// pushSame is row 2: the same declarations again, so there is nothing to apply.
func (b *bench) pushSame(ctx context.Context, p *pushBed) ([]score, error) {
	if err := askAll(p.floorAgents, "apply", func(int) any { return false }); err != nil {
		return nil, err
	}
	var floor, mesh []sample
	err := b.profiled("row2", func() (err error) {
		floor, mesh, err = inTurn(ctx, b.rounds, func(int) (sample, error) { return p.floorRound(0, p.agents) }, func(int) (sample, error) {
			return p.meshRound(ctx, controller.PushAsk{All: true, Why: "row 2"})
		})
		return err
	}, append(p.meshAgents, p.mesh)...)
	if err == nil {
		err = askAll(p.floorAgents, "apply", func(int) any { return true })
	}
	if err != nil {
		return nil, err
	}
	return []score{compare(2, fmt.Sprintf("push the same again to %d agents", p.agents), floor, mesh).within(2, "<= 1.3x")}, nil
}

// oneRounds is how often one agent is pushed to: a percentile needs many.
const oneRounds = 120

// pushOne is row 3: another setting of one module on one node.
func (b *bench) pushOne(ctx context.Context, p *pushBed) ([]score, error) {
	var floor, mesh []sample
	err := b.profiled("row3", func() (err error) {
		floor, mesh, err = inTurn(ctx, oneRounds, func(round int) (sample, error) { return p.floorRound(round%p.agents, 1) }, func(round int) (sample, error) {
			node := nodeName(round % p.agents)
			ask := controller.AssignAsk{Module: changeModule, Node: node, Settings: map[string]string{"value": fmt.Sprint(round)}, Why: "row 3"}
			if _, err := client.Ask[controller.AssignAnswer](ctx, p.client, controller.Assign, ask); err != nil {
				return sample{}, err
			}
			return p.meshRound(ctx, controller.PushAsk{Nodes: []subject.Node{node}, Why: "row 3"})
		})
		return err
	}, append(p.meshAgents, p.mesh)...)
	if err != nil {
		return nil, err
	}
	p50 := compare(3, "one change to one agent, push to recorded, p50", floor, mesh).within(2.5, "<= 1.5x").
		note("mesh composes, signs and keeps the declaration and writes the journal in this time, and an operator asks over the bus; the floor has its message ready")
	p99 := figures(3, "the same, p99", "ms", []float64{quantile(walls(floor), 0.99)}, []float64{quantile(walls(mesh), 0.99)})
	p99.Aim = "<= 5x"
	return []score{p50, p99}, nil
}

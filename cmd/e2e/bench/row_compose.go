package main

import (
	"context"
	"fmt"
	"path/filepath"
)

// manyModules is the shape that the floors of the facts were taken with: some 8 KiB a declaration.
func manyModules(nodes int) shape { return shape{Nodes: nodes, Each: 20, Kinds: 200, Lines: 1} }

// corePair is a mesh-core and a floor-core of one size.
type corePair struct {
	mesh, floor *child
	dir         string
}

func (p *corePair) leave() {
	p.mesh.leave()
	p.floor.leave()
}

func (b *bench) startCores(ctx context.Context, nodes int) (p *corePair, err error) {
	p = &corePair{}
	if p.dir, err = b.folder(fmt.Sprintf("core-%d", nodes)); err != nil {
		return nil, err
	}
	s := manyModules(nodes)
	m, err := makeMesh(ctx, p.dir, s)
	if err != nil {
		return nil, err
	}
	listen, err := freeAddress()
	if err != nil {
		return nil, err
	}
	if p.mesh, err = start(ctx, "mesh-core"); err != nil {
		return nil, err
	}
	if p.floor, err = start(ctx, "floor-core"); err == nil {
		err = p.mesh.ask("start", daemonStart{m.Dir, m.Listen}, nil)
	}
	if err == nil {
		err = p.floor.ask("start", floorStart{Dir: p.dir, Listen: listen, Shape: s}, nil)
	}
	if err != nil {
		p.leave()
		return nil, err
	}
	return p, nil
}

// told makes a round of a question to a child that measures itself.
func told(c *child, do string, arg any) func(int) (sample, error) {
	return func(int) (sample, error) {
		var t took
		err := c.ask(do, arg, &t)
		return t.sample(), err
	}
}

// composeRows are rows 7 and 8, and 9, which sends what 7 composed.
func composeRows(b *bench, ctx context.Context) (scores []score, err error) {
	b.say("rows 7 to 9: making %d nodes", b.nodes)
	p, err := b.startCores(ctx, b.nodes)
	if err != nil {
		return nil, err
	}
	defer p.leave()
	if b.wants(7) {
		s, err := b.composeAll(ctx, p)
		if err != nil {
			return nil, err
		}
		scores = append(scores, s...)
	}
	if b.wants(8) {
		s, err := b.setOne(ctx, p)
		if err != nil {
			return scores, err
		}
		scores = append(scores, s...)
	}
	if b.wants(9) {
		s, err := b.publishAll(ctx, p)
		if err != nil {
			return scores, err
		}
		scores = append(scores, s...)
	}
	return scores, nil
}

// pass is one way of composing everything, on both sides.
func (b *bench) pass(ctx context.Context, p *corePair, rounds int, all bool) (floor, mesh []sample, err error) {
	want := 0
	check := func(c *child, do string, arg any) (sample, error) {
		var t took
		err := c.ask(do, arg, &t)
		if err == nil && t.Changed != want {
			err = fmt.Errorf("%s composed %d new declarations, expected %d", c.name, t.Changed, want)
		}
		return t.sample(), err
	}
	nodes := b.nodes
	if !all {
		nodes = 0
	}
	want = nodes
	return inTurn(ctx, rounds, func(int) (sample, error) { return check(p.floor, "compose", !all) }, func(int) (sample, error) {
		if all {
			if err := p.mesh.ask("move", nil, nil); err != nil {
				return sample{}, err
			}
		}
		return check(p.mesh, "compose", nil)
	})
}

func (b *bench) composeAll(ctx context.Context, p *corePair) ([]score, error) {
	var floor, mesh []sample
	err := b.profiled("row7-all", func() (err error) { floor, mesh, err = b.pass(ctx, p, b.rounds, true); return err }, p.mesh)
	if err != nil {
		return nil, err
	}
	changed := compare(7, fmt.Sprintf("compose %d nodes x 20 modules, all changed", b.nodes), floor, mesh).within(2, "<= 1.5x")
	err = b.profiled("row7-unchanged", func() (err error) { floor, mesh, err = b.pass(ctx, p, b.rounds, false); return err }, p.mesh)
	if err != nil {
		return nil, err
	}
	same := compare(7, fmt.Sprintf("compose %d nodes x 20 modules, nothing changed", b.nodes), floor, mesh).within(2, "<= 1.5x")
	var warm took
	if err := p.mesh.ask("warm", nil, &warm); err != nil {
		return nil, err
	}
	same = same.note("that is with everything read from the records anew, as the floor does; a coordinator that runs takes %.1f ms", warm.WallMS)
	growth, err := b.growth(ctx, same.Mesh)
	if err != nil {
		return nil, err
	}
	return []score{same, changed, growth}, nil
}

// growth says how a pass grows from a tenth of the nodes to all of them.
func (b *bench) growth(ctx context.Context, whole float64) (score, error) {
	few := max(b.nodes/10, 1)
	p, err := b.startCores(ctx, few)
	if err != nil {
		return score{}, err
	}
	defer p.leave()
	if err := p.mesh.ask("compose", nil, nil); err != nil {
		return score{}, err
	}
	tenth, err := b.alone(ctx, told(p.mesh, "compose", nil))
	if err != nil {
		return score{}, err
	}
	s := figures(7, fmt.Sprintf("the same: %d nodes beside %d (mesh both)", b.nodes, few), "ms", walls(tenth), []float64{whole})
	s.Aim = "<= 10.5x"
	return s, nil
}

// alone runs one side by itself.
func (b *bench) alone(ctx context.Context, run func(int) (sample, error)) (all []sample, err error) {
	for i := range b.rounds + 1 {
		s, err := run(i)
		if err != nil {
			return nil, err
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if i > 0 {
			all = append(all, s)
		}
	}
	return all, nil
}

// setRounds is how often one setting is changed: one change is short.
const setRounds = 60

// setOne is row 8: at all nodes, and at 100.
func (b *bench) setOne(ctx context.Context, p *corePair) ([]score, error) {
	var parts [3][]float64
	both := func(p *corePair, nodes int) (floor, mesh []sample, err error) {
		for _, warm := range []struct {
			c   *child
			do  string
			arg any
		}{{p.floor, "compose", false}, {p.mesh, "compose", nil}} {
			if err := warm.c.ask(warm.do, warm.arg, nil); err != nil {
				return nil, nil, err
			}
		}
		at := func(c *child) func(int) (sample, error) {
			return func(round int) (sample, error) {
				var t took
				err := c.ask("set", (round*37+1)%nodes, &t)
				for i, v := range t.Parts {
					parts[i] = append(parts[i], v)
				}
				return t.sample(), err
			}
		}
		return inTurn(ctx, setRounds, at(p.floor), at(p.mesh))
	}
	var floor, mesh []sample
	err := b.profiled("row8", func() (err error) { floor, mesh, err = both(p, b.nodes); return err }, p.mesh)
	if err != nil {
		return nil, err
	}
	at := fmt.Sprintf("one setting of one node of %d: record, compose, publish", b.nodes)
	large := compare(8, at, floor, mesh).within(2, "<= 2x")
	large = large.note("mesh: recorded %.2f ms, composed and kept %.2f ms, published %.2f ms", median(parts[0]), median(parts[1]), median(parts[2]))
	few, err := b.startCores(ctx, 100)
	if err != nil {
		return nil, err
	}
	defer few.leave()
	_, small, err := both(few, 100)
	if err != nil {
		return nil, err
	}
	growth := figures(8, fmt.Sprintf("the same: %d nodes beside 100 (mesh both)", b.nodes), "ms", walls(small), walls(mesh))
	growth.Aim = "within 20 %"
	return []score{large, growth}, nil
}

// publishAll is row 9.
func (b *bench) publishAll(ctx context.Context, p *corePair) ([]score, error) {
	if err := p.mesh.ask("compose", nil, nil); err != nil {
		return nil, err
	}
	var load took
	if err := p.mesh.ask("load", nil, &load); err != nil {
		return nil, err
	}
	same := floorLoad{Dir: filepath.Clean(p.dir), N: load.Changed, Size: load.Bytes / max(load.Changed, 1)}
	var raw []sample
	var recorded []float64
	var floor, mesh []sample
	err := b.profiled("row9", func() (err error) {
		floor, mesh, err = inTurn(ctx, b.rounds, func(round int) (sample, error) {
			s, err := told(p.floor, "raw", same)(round)
			if err != nil {
				return s, err
			}
			if round > 0 {
				raw = append(raw, s)
			}
			return told(p.floor, "publish", same)(round)
		}, func(round int) (sample, error) {
			var t took
			err := p.mesh.ask("publish", nil, &t)
			if round > 0 {
				recorded = append(recorded, t.RecordedMS)
			}
			return t.sample(), err
		})
		return err
	}, p.mesh)
	if err != nil {
		return nil, err
	}
	work := fmt.Sprintf("publish %d declarations of %.1f KiB to the last ack", same.N, float64(same.Size)/1024)
	first := compare(9, work, floor, mesh).within(1.5, "<= 1.2x").note("the sends stand in the records after %.0f ms", median(recorded))
	second := compare(9, "the same beside a raw write of the same bytes", raw, mesh)
	second.Aim = "<= 2.2x"
	return []score{first, second}, nil
}

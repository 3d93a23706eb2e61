package main

import (
	"context"
	"fmt"
)

// memoryRows is row 14.
func memoryRows(b *bench, ctx context.Context) ([]score, error) {
	few, many := max(b.storm/5, 1), b.storm
	var mesh, floor [2]float64
	var notes []string
	for i, nodes := range []int{few, many} {
		b.say("row 14: %d nodes", nodes)
		f, m, note, err := b.memoryAt(ctx, nodes)
		if err != nil {
			return nil, err
		}
		floor[i], mesh[i] = f, m
		notes = append(notes, note)
	}
	span := float64(many - few)
	s := score{Row: 14, Work: fmt.Sprintf("memory of bus and coordinator a connected node, %d to %d", few, many), Unit: "KiB",
		Floor: (floor[1] - floor[0]) / span, Mesh: (mesh[1] - mesh[0]) / span}
	s.Ratio = ratio(s.Mesh, s.Floor)
	s = s.under(150, "<= 100 KiB")
	s.Notes = append(s.Notes, notes...)
	return []score{s}, nil
}

// memoryAt is what both sides hold with nodes connected, everybody pushed to and heard once.
func (b *bench) memoryAt(ctx context.Context, nodes int) (floor, mesh float64, note string, err error) {
	p, err := b.newLinks(ctx, fmt.Sprintf("memory-%d", nodes), nodes)
	if err != nil {
		return 0, 0, "", err
	}
	defer p.leave()
	if err := p.startMesh(ctx, b, nodes); err != nil {
		return 0, 0, "", err
	}
	if err := p.pushLinks(ctx); err != nil {
		return 0, 0, "", err
	}
	raw := memoryOf(p.mesh.pid())
	m, err := p.mesh.settle()
	if err != nil {
		return 0, 0, "", err
	}
	for _, c := range p.links {
		c.leave()
	}
	p.links = nil
	if err := p.startFloor(ctx, nodes, nodes); err != nil {
		return 0, 0, "", err
	}
	f, err := p.floor.settle()
	if err != nil {
		return 0, 0, "", err
	}
	return f.rss, m.rss, fmt.Sprintf("%d nodes: mesh %.0f MiB at rest (%.0f right after a push to all, peak %.0f), floor %.0f MiB", nodes, m.rss/1024, raw.rss/1024, m.peak/1024, f.rss/1024), nil
}

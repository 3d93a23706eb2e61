package main

import (
	"context"
	"fmt"
	"time"
)

// passRows is row 5.
func passRows(b *bench, ctx context.Context) ([]score, error) {
	dir, err := b.folder("pass")
	if err != nil {
		return nil, err
	}
	floor, err := start(ctx, "floor-pass")
	if err != nil {
		return nil, err
	}
	defer floor.leave()
	mesh, err := start(ctx, "mesh-pass")
	if err != nil {
		return nil, err
	}
	defer mesh.leave()
	for _, c := range []*child{floor, mesh} {
		if err := c.ask("start", dir, nil); err != nil {
			return nil, err
		}
	}
	pause(ctx, 200*time.Millisecond) // files that were only just written are read again, not told by stat
	quick, err := b.passes(ctx, floor, mesh, "quick", 300)
	if err != nil {
		return nil, err
	}
	whole, err := b.passes(ctx, floor, mesh, "whole", 30)
	if err != nil {
		return nil, err
	}
	return []score{
		quick.under(4, "<= 1 ms").note("that is the pass of each minute; the floor asks stat about each file"),
		aimed(whole, "<= 2 ms").note("the first pass after a start is more than a pass of each minute: signature, manifests, ledger, every file read and hashed, plan; the floor only reads and hashes each file"),
	}, nil
}

// passes compares processor time, which is what a pass costs the machine.
func (b *bench) passes(ctx context.Context, floor, mesh *child, do string, n int) (score, error) {
	var f, m []sample
	err := b.profiled("row5-"+do, func() (err error) {
		f, m, err = inTurn(ctx, 2*b.rounds, told(floor, do, n), told(mesh, do, n))
		return err
	}, mesh)
	if err != nil {
		return score{}, err
	}
	words := map[string]string{"quick": "pass over %d files, nothing to change (CPU)", "whole": "the first pass after a start, %d files hashed (CPU)"}
	s := figures(5, fmt.Sprintf(words[do], passFiles), "ms", cpus(f), cpus(m))
	s.CPURatio = s.Ratio
	return s, nil
}

// aimed is a line without a bound.
func aimed(s score, aim string) score {
	s.Aim = aim
	return s
}

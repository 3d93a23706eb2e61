package main

import (
	"context"
	"fmt"
	"path/filepath"
)

// The sizes of row 10.
const (
	filterAddresses = 10_000
	filterForeign   = 10_000
)

// filterRows is row 10. Everything happens in network namespaces of its own.
func filterRows(b *bench, ctx context.Context) (scores []score, err error) {
	floor, err := start(ctx, "floor-filter")
	if err != nil {
		return nil, err
	}
	defer floor.leave()
	mesh, err := start(ctx, "mesh-filter")
	if err != nil {
		return nil, err
	}
	defer mesh.leave()
	peer, err := start(ctx, "floor-nft")
	if err != nil {
		return nil, err
	}
	defer peer.leave()
	for _, size := range []filterSize{{rules: 50, times: 100, peers: 2, least: 30, aim: 30}, {rules: 2000, times: 4, peers: 1, least: 5, aim: 5}} {
		lines, err := b.replaced(ctx, size, floor, mesh, peer)
		if err != nil {
			return scores, err
		}
		scores = append(scores, lines...)
	}
	addresses, err := b.addresses(ctx, mesh)
	if err != nil {
		return scores, err
	}
	strangers, err := b.foreign(ctx, floor)
	return append(append(scores, addresses), strangers...), err
}

// filterSize is a number of rules, how often a round replaces them, and how many times faster than nft that
// has to be and is meant to be.
type filterSize struct{ rules, times, peers, least, aim int }

func (b *bench) replaced(ctx context.Context, size filterSize, floor, mesh, peer *child) (scores []score, err error) {
	var there rawEntry
	if err := floor.ask("rules", size.rules, nil); err != nil {
		return nil, err
	}
	if err := mesh.ask("rules", size.rules, &there); err != nil {
		return nil, err
	}
	var compiled took
	if err := mesh.ask("compile", size.rules, &compiled); err != nil {
		return nil, err
	}
	dir, err := b.folder(fmt.Sprintf("rules-%d", size.rules))
	if err != nil {
		return nil, err
	}
	if err := mesh.ask("texts", dir, nil); err != nil {
		return nil, err
	}
	if err := peer.ask("texts", []string{filepath.Join(dir, "0.nft"), filepath.Join(dir, "1.nft")}, nil); err != nil {
		return nil, err
	}
	// As many rules of the kernel's, which is what nft is given elsewhere.
	if err := peer.ask("lines", size.rules, nil); err != nil {
		return nil, err
	}
	var f, m, p, l []sample
	err = b.profiled(fmt.Sprintf("row10-%d", size.rules), func() (err error) {
		f, m, err = inTurn(ctx, b.rounds, told(floor, "replace", size.times), func(round int) (sample, error) {
			s, err := told(mesh, "replace", size.times)(round)
			if err != nil {
				return s, err
			}
			other, err := told(peer, "nft", size.peers)(round)
			if err != nil {
				return s, err
			}
			linear, err := told(peer, "linear", size.peers)(round)
			if round > 0 {
				p, l = append(p, other), append(l, linear)
			}
			return s, err
		})
		return err
	}, mesh)
	if err != nil {
		return nil, err
	}
	s := compare(10, fmt.Sprintf("%d rules exchanged for others", size.rules), f, m).within(1.5, "<= 1.5x")
	scores = append(scores, s.note("the floor sends bytes made beforehand; making the table of the rules takes mesh %.2f ms more", compiled.WallMS),
		figures(10, fmt.Sprintf("the same, beside nft -f of %d rules", size.rules), "ms", walls(l), walls(m)).
			within(1/float64(size.least), fmt.Sprintf("nft / %d", size.aim)),
		figures(10, "the same, beside nft -f of mesh's own table", "ms", walls(p), walls(m)).
			note("that table has %d elements of sets and few rules: it is what render prints", size.rules))
	again, err := b.unchanged(ctx, size, floor, mesh, there)
	return append(scores, again...), err
}

// unchanged is what it takes to see that nothing changed, beside one reading of the table: a question when nobody
// wrote anything, a reading when somebody did.
func (b *bench) unchanged(ctx context.Context, size filterSize, floor, mesh *child, there rawEntry) ([]score, error) {
	const questions = 200
	f, m, err := inTurn(ctx, b.rounds, told(floor, "ask", questions), told(mesh, "again", questions))
	if err != nil {
		return nil, err
	}
	asked := aimed(compare(10, fmt.Sprintf("%d rules pushed again, beside the question", size.rules), f, m), "").note("the floor asks for the number of the rule set once; so does mesh, when nobody wrote since")
	again := m
	if err := floor.ask("enter", there, nil); err != nil {
		return nil, err
	}
	// Both read as often; mesh looks into nothing unless somebody wrote.
	reads := 20
	once := func(c *child, do string) func(int) (sample, error) {
		return func(round int) (sum sample, err error) {
			for range reads {
				if err := floor.ask("stir", nil, nil); err != nil {
					return sum, err
				}
				s, err := told(c, do, 1)(round)
				if err != nil {
					return sum, err
				}
				sum.wall += s.wall / 20
				sum.cpu += s.cpu / 20
			}
			return sum, nil
		}
	}
	f, m, err = inTurn(ctx, b.rounds, once(floor, "read"), once(mesh, "look"))
	if err != nil {
		return nil, err
	}
	return []score{compare(10, fmt.Sprintf("%d rules pushed again, beside one reading", size.rules), f, again).within(1.2, "<= 1.2x"), asked,
		compare(10, fmt.Sprintf("%d rules read back after others wrote", size.rules), f, m).
			note("mesh first waits for a commit that may be under way: otherwise half of it could be read")}, nil
}

func (b *bench) addresses(ctx context.Context, mesh *child) (score, error) {
	var all []sample
	for range b.rounds {
		var t took
		if err := mesh.ask("addresses", filterAddresses, &t); err != nil {
			return score{}, err
		}
		all = append(all, t.sample())
	}
	s := figures(10, fmt.Sprintf("a rule from %d addresses loaded", filterAddresses), "ms", nil, walls(all))
	s.MeshCPU = median(cpus(all))
	return s.under(200, "< 0.2 s"), ctx.Err()
}

// foreign reads rules of others: the floor receives them and throws them away.
func (b *bench) foreign(ctx context.Context, floor *child) ([]score, error) {
	var space string
	if err := floor.ask("space", nil, &space); err != nil {
		return nil, err
	}
	if err := floor.ask("foreign", filterForeign, nil); err != nil {
		return nil, err
	}
	reader, err := start(ctx, "mesh-foreign")
	if err != nil {
		return nil, err
	}
	defer reader.leave()
	if err := reader.ask("enter", space, nil); err != nil {
		return nil, err
	}
	var peak float64
	if err := reader.ask("weigh", nil, &peak); err != nil {
		return nil, err
	}
	f, m, err := inTurn(ctx, b.rounds, told(floor, "listall", 1), told(reader, "read", 1))
	if err != nil {
		return nil, err
	}
	return []score{
		compare(10, fmt.Sprintf("%d rules of others read and judged", filterForeign), f, m).under(400, "< 0.4 s"),
		figures(10, "memory of that reading", "MiB", nil, []float64{peak / 1024}).under(12, "< 12 MiB"),
	}, nil
}

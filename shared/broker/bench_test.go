package broker_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"mesh/shared/broker"
	"mesh/shared/grant"
)

const tenThousand = 10_000

// BenchmarkApply10kUsers is what a change of one user's rights costs among ten thousand (facts/bus.md §4.2).
func BenchmarkApply10kUsers(b *testing.B) {
	nodes := make([]string, tenThousand)
	for i := range nodes {
		nodes[i] = fmt.Sprintf("n%d", i)
	}
	p := mesh(b, nodes...)
	lists := [2]grant.List{p.list(b)}
	p.all = slices.Clone(p.all)
	p.all[1].Artifacts = []string{strings.Repeat("ab", 32)}
	lists[1] = p.list(b)
	w := run(b, broker.Config{Store: b.TempDir()}, lists[0])
	for i := 1; b.Loop(); i++ {
		if changed, err := w.Apply(lists[i%2]); err != nil || !changed {
			b.Fatal(changed, err)
		}
	}
}

// BenchmarkApplyUnchanged10kUsers is what looking again costs when nothing changed.
func BenchmarkApplyUnchanged10kUsers(b *testing.B) {
	nodes := make([]string, tenThousand)
	for i := range nodes {
		nodes[i] = fmt.Sprintf("n%d", i)
	}
	l := mesh(b, nodes...).list(b)
	w := run(b, broker.Config{Store: b.TempDir()}, l)
	for b.Loop() {
		if changed, err := w.Apply(l); err != nil || changed {
			b.Fatal(changed, err)
		}
	}
}

package apply_test

import (
	"fmt"
	"testing"
	"time"

	"mesh/agent/apply"
	"mesh/shared/manifest"
)

// BenchmarkPassUnchangedContainers is scoreboard row 5's part of containers: a pass over 20 of them, each with a
// network, a volume and an image. The thorough look is in it, once in eleven times.
func BenchmarkPassUnchangedContainers(b *testing.B) {
	bed := newBed(b)
	bed.installPodman(b)
	var mods []mod
	for i := range 20 {
		mods = append(mods, module(fmt.Sprintf("box%02d", i), manifest.Run{Networks: map[string]manifest.Network{"n": {}},
			Containers: map[string]manifest.Container{"c": {Image: oneImage, Networks: []string{"n"}, Volumes: []manifest.Mount{{Name: "v", At: "/v"}}}}}))
	}
	applied(b, bed.accept(b, 1, mods...))
	bed.clock.Advance(time.Minute)
	applied(b, bed.pass(b, apply.Reconcile))
	bed.asked(b)
	b.ReportAllocs()
	report := cpu(b)
	for b.Loop() {
		if r := bed.pass(b, apply.Reconcile); r.Steps > 0 {
			b.Fatal(r)
		}
	}
	report()
	if asked := bed.asked(b); len(asked) > 0 {
		b.Errorf("the engine was asked %q", asked)
	}
}

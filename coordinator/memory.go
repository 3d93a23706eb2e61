package coordinator

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// While little is in use, garbage may lie longer: at a push to thousands a seventh of the coordinator's processor time
// went into reading memory that was in use all along. Past roomy bytes the heap would grow by more than it is worth.
const (
	roomy       = 192 << 20
	gcRoomy     = 200 // percent, as of debug.SetGCPercent
	gcTight     = 100
	memoryEvery = 10 * time.Second
	liveHeap    = "/gc/heap/live:bytes" // runtime/metrics
)

// spend sets how long garbage lies, by what is in use.
func (c *Coordinator) spend(ctx context.Context) error {
	tick, stop := c.cfg.Clock.Every(memoryEvery)
	defer stop()
	live := []metrics.Sample{{Name: liveHeap}}
	for set := 0; ; {
		metrics.Read(live)
		if want := gcPercent(live[0].Value); want != set {
			debug.SetGCPercent(want)
			set = want
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick:
		}
	}
}

func gcPercent(live metrics.Value) int {
	if live.Kind() == metrics.KindUint64 && live.Uint64() < roomy {
		return gcRoomy
	}
	return gcTight
}

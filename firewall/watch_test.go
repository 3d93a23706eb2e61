package firewall_test

import (
	"context"
	"testing"
	"time"

	"mesh/firewall"
	"mesh/shared/waitfor"
	"mesh/testbus/netlab"
)

// TestWatchOutlivesAnOverrun: when the kernel lost count of changes (ENOBUFS) that is an event without a name, and
// the next change is told of as before (NET-6).
func TestWatchOutlivesAnOverrun(t *testing.T) {
	s := netlab.NewSpace(t, "host")
	d, other := open(t, s, firewall.WithoutOwner()), open(t, s, firewall.WithoutOwner())
	one, err := firewall.Compile(firewall.Filter{Outside: []string{"up0"}})
	if err != nil {
		t.Fatal(err)
	}
	two, err := firewall.Compile(firewall.Filter{Outside: []string{"up1"}})
	if err != nil {
		t.Fatal(err)
	}
	var events <-chan firewall.Event
	ctx, cancel := context.WithCancel(t.Context())
	s.Do(func() {
		events, err = firewall.WatchLate(ctx, d, func() {
			for range 50 {
				load(t, other, one)
				load(t, other, two)
			}
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	if e := waitfor.Value(t, "word of what was lost", 5*time.Second, events); e.Process != "" {
		t.Logf("first came %+v", e)
	}
	s.Run("", "nft", "add", "table", "inet", "theirs")
	waitfor.True(t, "word of the next change", 5*time.Second, func() (bool, any) {
		select {
		case e := <-events:
			return e.Process == "nft", e
		default:
			return false, nil
		}
	})
	cancel()
	for range events { // until closed
	}
}

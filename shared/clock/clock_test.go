package clock_test

import (
	"testing"
	"time"

	"mesh/shared/clock"
)

func TestFakeDeliversWhatCameDue(t *testing.T) {
	f := clock.NewFake(time.Unix(1000, 0))
	after := f.After(3 * time.Second)
	ticks, stop := f.Every(2 * time.Second)
	f.Advance(2 * time.Second)
	select {
	case <-after:
		t.Error("After fired early")
	default:
	}
	if len(ticks) != 1 {
		t.Fatalf("ticks = %d, want 1", len(ticks))
	}
	<-ticks
	stop()
	f.Advance(10 * time.Second)
	if len(after) != 1 || len(ticks) != 0 || f.Waiting() != 0 {
		t.Errorf("after %d ticks %d waiting %d, want 1 0 0", len(after), len(ticks), f.Waiting())
	}
	f.Advance(-time.Hour) // a jump back breaks nothing
	if got := f.Now(); !got.Before(time.Unix(1000, 0)) {
		t.Errorf("now = %v", got)
	}
}

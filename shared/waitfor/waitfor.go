// Package waitfor lets a test wait for the state it means, never for a time to pass (BUS-3). On a
// deadline it prints the last state seen.
package waitfor

import (
	"fmt"
	"testing"
	"time"
)

// Poll is how often a state is looked at.
const Poll = 5 * time.Millisecond

// True fails the test unless cond holds within d. state describes what was seen last.
func True(t testing.TB, what string, d time.Duration, cond func() (ok bool, state any)) {
	t.Helper()
	deadline := time.NewTimer(d)
	defer deadline.Stop()
	tick := time.NewTicker(Poll)
	defer tick.Stop()
	var last any
	for {
		ok, state := cond()
		if ok {
			return
		}
		last = state
		select {
		case <-deadline.C:
			t.Fatalf("waited %v for %s; last seen: %s", d, what, describe(last))
		case <-tick.C:
		}
	}
}

// Value receives from c or fails the test after d.
func Value[T any](t testing.TB, what string, d time.Duration, c <-chan T) T {
	t.Helper()
	select {
	case v, ok := <-c:
		if !ok {
			t.Fatalf("waited for %s; the channel closed", what)
		}
		return v
	case <-time.After(d):
		t.Fatalf("waited %v for %s; nothing came", d, what)
	}
	panic("unreachable: Fatalf ends the test")
}

func describe(v any) string {
	if err, ok := v.(error); ok {
		return err.Error()
	}
	return fmt.Sprintf("%+v", v)
}

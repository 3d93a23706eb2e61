package agent

import (
	"context"
	"testing"
	"time"

	"mesh/shared/report"
	"mesh/shared/waitfor"
)

func TestSpreadTellsAllAndEndsWithItsSource(t *testing.T) {
	links, a, b, done := make(chan struct{}), make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{}, 1)
	go func() {
		spread(t.Context(), links, a, b)
		done <- struct{}{}
	}()
	links <- struct{}{}
	links <- struct{}{} // nobody has taken the first word yet
	close(links)        // the kernel tells no more
	waitfor.Value(t, "the end", 5*time.Second, done)
	if len(a) != 1 || len(b) != 1 {
		t.Errorf("%d and %d words, want one each", len(a), len(b))
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		spread(ctx, make(chan struct{}), a)
		done <- struct{}{}
	}()
	cancel()
	waitfor.Value(t, "the end with ctx", 5*time.Second, done)
}

func TestTheFirstProfileIsReadOnce(t *testing.T) {
	asked := 0
	read := after(&report.Profile{Kernel: "first"}, func(context.Context) *report.Profile { asked++; return &report.Profile{Kernel: "later"} })
	if p := read(t.Context()); p.Kernel != "first" || asked != 0 {
		t.Errorf("%+v, asked %d times", p, asked)
	}
	if p := read(t.Context()); p.Kernel != "later" || asked != 1 {
		t.Errorf("%+v, asked %d times", p, asked)
	}
}

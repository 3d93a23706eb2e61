// Package clock is the only place mesh asks what time it is. Code takes a Clock, so a test moves
// the hands itself and no loop, lease or bound depends on the machine's clock being right (NOD-14).
package clock

import (
	"sync"
	"time"
)

// Clock tells the time and waits.
type Clock interface {
	// Now is the present; its monotonic reading makes differences immune to clock jumps.
	Now() time.Time
	// After delivers once, d from now.
	After(d time.Duration) <-chan time.Time
	// Every delivers each d until stop is called; a slow reader misses ticks.
	Every(d time.Duration) (ticks <-chan time.Time, stop func())
}

// Real is the machine's clock.
func Real() Clock { return real{} }

type real struct{}

func (real) Now() time.Time                         { return time.Now() }
func (real) After(d time.Duration) <-chan time.Time { return time.After(d) }

func (real) Every(d time.Duration) (<-chan time.Time, func()) {
	t := time.NewTicker(d)
	return t.C, t.Stop
}

// Fake is a clock that stands still until a test moves it.
type Fake struct {
	mu      sync.Mutex // guards the fields below
	now     time.Time
	waiters []*waiter
}

type waiter struct {
	at    time.Time
	every time.Duration
	c     chan time.Time
	done  bool
}

// NewFake returns a Fake that shows now.
func NewFake(now time.Time) *Fake { return &Fake{now: now} }

// Now is the time the test set.
func (f *Fake) Now() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

// After delivers when Advance has moved the clock by d.
func (f *Fake) After(d time.Duration) <-chan time.Time {
	return f.add(d, 0).c
}

// Every delivers each time Advance passes a multiple of d.
func (f *Fake) Every(d time.Duration) (<-chan time.Time, func()) {
	w := f.add(d, d)
	return w.c, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		w.done = true
	}
}

func (f *Fake) add(d, every time.Duration) *waiter {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := &waiter{at: f.now.Add(d), every: every, c: make(chan time.Time, 1)}
	f.waiters = append(f.waiters, w)
	f.fire()
	return w
}

// Advance moves the clock on by d (or back, when d is negative) and delivers what came due.
func (f *Fake) Advance(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = f.now.Add(d)
	f.fire()
}

// Waiting is how many timers and tickers are pending: a test waits for it before it advances.
func (f *Fake) Waiting() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, w := range f.waiters {
		if !w.done {
			n++
		}
	}
	return n
}

// fire delivers due waiters. It holds mu.
func (f *Fake) fire() {
	keep := f.waiters[:0]
	for _, w := range f.waiters {
		for !w.done && !w.at.After(f.now) {
			select {
			case w.c <- f.now:
			default: // a slow reader misses ticks, as with the real one
			}
			if w.every == 0 {
				w.done = true
				break
			}
			w.at = w.at.Add(w.every)
		}
		if !w.done {
			keep = append(keep, w)
		}
	}
	f.waiters = keep
}

package health

import (
	"context"
	"sync"
	"time"

	"mesh/shared/clock"
)

// side is how many asks may be under way at once; the others wait their turn.
const side = 4

// Config is what a Prober works with.
type Config struct {
	// Run runs a program and returns its exit status and the end of what it printed; when ctx ends first, it
	// kills it with all that it started. nil for nobody.
	Run   func(ctx context.Context, p Program) (exit int, output string, err error)
	Clock clock.Clock
}

// Prober asks. Make it with New.
type Prober struct {
	cfg     Config
	slots   chan struct{} // bounds what is asked side by side
	kick    chan struct{} // capacity 1: what is to be asked changed, or an ask is over
	changed chan struct{} // capacity 1: a standing changed

	mu     sync.Mutex // guards the fields below
	watch  map[string]*watched
	news   uint64        // grows with each change of a standing
	update chan struct{} // closed and made anew at each change
}

// watched is one check and how it stands.
type watched struct {
	Check
	standing Standing
	due      time.Time
	busy     bool
	cancel   context.CancelFunc // of the ask under way
}

// New makes a Prober; Run has to run for anything to be asked.
func New(c Config) *Prober {
	return &Prober{cfg: c, slots: make(chan struct{}, side), kick: make(chan struct{}, 1), changed: make(chan struct{}, 1), watch: map[string]*watched{}, update: make(chan struct{})}
}

// Changed says that a standing changed since it was read last.
func (p *Prober) Changed() <-chan struct{} { return p.changed }

// News grows with each change of a standing.
func (p *Prober) News() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.news
}

// Watch has exactly these checks asked from now on. What is known of those that were asked before stays.
func (p *Prober) Watch(all []Check) {
	p.mu.Lock()
	defer p.mu.Unlock()
	next := make(map[string]*watched, len(all))
	for _, c := range all {
		next[c.Key] = p.add(c)
	}
	for key, w := range p.watch {
		if next[key] == nil && w.cancel != nil {
			w.cancel()
		}
	}
	p.watch = next
	p.poke()
}

// Add has c asked beside the others.
func (p *Prober) Add(c Check) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watch[c.Key] = p.add(c)
	p.poke()
}

// add holds mu.
func (p *Prober) add(c Check) *watched {
	w := p.watch[c.Key]
	if w == nil {
		return &watched{Check: c, due: p.cfg.Clock.Now()}
	}
	w.Check = c
	return w
}

// Standing is what is known of a check; the zero one when nothing is.
func (p *Prober) Standing(key string) Standing {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w := p.watch[key]; w != nil {
		return w.standing
	}
	return Standing{}
}

// Wait waits until all of keys are known, or ctx ends.
func (p *Prober) Wait(ctx context.Context, keys ...string) {
	for {
		p.mu.Lock()
		known, update := true, p.update
		for _, k := range keys {
			w := p.watch[k]
			known = known && (w == nil || w.standing.Known)
		}
		p.mu.Unlock()
		if known {
			return
		}
		select {
		case <-update:
		case <-ctx.Done():
			return
		}
	}
}

func (p *Prober) poke() {
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

// Run asks until ctx ends.
func (p *Prober) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		var later <-chan time.Time
		if pause, some := p.begin(ctx, &wg); some {
			later = p.cfg.Clock.After(pause)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-p.kick:
		case <-later:
		}
	}
}

// begin starts what is due, and says how long it is until something is; some is false when nothing will be.
// What is due within a tenth of its period is asked now: a machine at rest is woken less often.
func (p *Prober) begin(ctx context.Context, wg *sync.WaitGroup) (pause time.Duration, some bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.cfg.Clock.Now()
	for _, w := range p.watch {
		if w.busy {
			continue // its end pokes
		}
		wait := w.due.Sub(now)
		if wait > w.Every/10 || wait > 0 && !w.standing.Well {
			if !some || wait < pause {
				pause, some = wait, true
			}
			continue
		}
		w.busy = true
		var bound context.Context
		bound, w.cancel = context.WithCancel(ctx)
		c := w.Check
		wg.Go(func() { // ends with its timeout, or with ctx
			why, asked := p.ask(bound, c)
			p.over(w, why, asked)
		})
	}
	return pause, some
}

// ask asks once; asked is false when it was broken off.
func (p *Prober) ask(ctx context.Context, c Check) (why string, asked bool) {
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		return "", false
	}
	defer func() { <-p.slots }()
	bound, cancel := context.WithCancel(ctx)
	defer cancel()
	over := make(chan struct{})
	defer close(over)
	late := p.cfg.Clock.After(c.Timeout)
	go func() { // ends with the ask
		select {
		case <-late:
			cancel()
		case <-over:
		}
	}()
	switch {
	case c.URL != "":
		why = get(bound, c.URL)
	case c.Address != "":
		why = tcp(bound, c.Address)
	case c.Program != nil:
		why = p.program(bound, c.Program)
	}
	return why, ctx.Err() == nil
}

// over takes an answer in.
func (p *Prober) over(w *watched, why string, asked bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w.cancel()
	w.busy, w.cancel = false, nil
	p.poke()
	if !asked || p.watch[w.Key] != w { // nobody wants to know any more
		return
	}
	old := w.standing
	w.standing = old.Take(why, w.Retries)
	w.due = p.cfg.Clock.Now().Add(w.standing.pause(w.Every))
	if !w.standing.differs(old) {
		return
	}
	p.news++
	close(p.update)
	p.update = make(chan struct{})
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

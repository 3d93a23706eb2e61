package agent

import (
	"context"
	"time"

	"mesh/agent/apply"
	"mesh/agent/link"
	"mesh/agent/state"
	"mesh/shared/refusal"
	"mesh/shared/report"
)

const (
	// reconcileEvery is how often everything is looked at, whatever the kernel and systemd tell (APP-6).
	reconcileEvery = time.Minute
	// debounce gathers the events of one change on the machine into one look.
	debounce = 200 * time.Millisecond
	// slowPass is when a pass that is not over yet is said to be under way.
	slowPass = 2 * time.Second
	// sentWithin is when a report that is not with the bus yet is said to wait.
	sentWithin = 3 * time.Second
	// againMin and againMax bound the pause before a pass that could not be made is tried again; againSoon
	// is the shortest before a module is.
	againMin, againMax, againSoon = 5 * time.Second, 5 * time.Minute, time.Second
)

// job is one pass over the machine.
type job struct {
	heard *link.Heard // nil: look
	cause apply.Cause
}

type done struct {
	job     job
	result  apply.Result
	err     error
	profile *report.Profile // when it was read anew
	refuses *report.Refusals
	exposed []string
}

// work runs passes one at a time. Whatever may hang on the machine does so here.
func (a *Agent) work(ctx context.Context, jobs <-chan job, results chan<- done) error {
	known := a.machine.Profile == nil
	for {
		select {
		case <-ctx.Done():
			return nil
		case j := <-jobs:
			d := done{job: j}
			if j.heard != nil {
				d.result, d.err = a.engine.Accept(ctx, j.heard.Signed)
			} else {
				d.result, d.err = a.engine.Pass(ctx, j.cause)
			}
			if !known || d.result.News && a.machine.Profile != nil { // by each apply (NOD-5)
				known, d.profile = true, a.machine.Profile(ctx)
			}
			if c := a.machine.Converge; c != nil {
				d.refuses = c.Refusals(ctx)
			}
			if exposed := a.machine.Exposed; exposed != nil {
				d.exposed = exposed(ctx, a.declaredFilter())
			}
			select {
			case results <- d:
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// waiting is what is to be done. One pass is under way at a time; a declaration goes before a look.
type waiting struct {
	busy   bool
	booted bool        // the machine was looked at once
	look   apply.Cause // of the look that is due; "" for none
	// heard could not be taken in, as on a full disk, and is tried again unless a newer one comes.
	heard  *link.Heard
	due    bool      // heard is to be tried now
	failed int       // passes in a row that could not be made
	again  time.Time // when to try again what could not
	// asked want to hear of the next look, looking of the one under way; each has room for one word.
	asked, looking []chan<- done
}

// next is the job to hand over now; ok is false when there is none, or one is under way. At boot the
// machine is put in order before anything is heard.
func (w *waiting) next(heard <-chan link.Heard) (j job, ok bool) {
	if w.busy {
		return job{}, false
	}
	if w.look != apply.Boot {
		select {
		case h := <-heard:
			w.heard, w.due = &h, true
		default:
		}
		if w.due {
			return job{heard: w.heard}, true
		}
	}
	return job{cause: w.look}, w.look != ""
}

// given notes that j is under way.
func (w *waiting) given(j job) {
	w.busy = true
	if j.heard != nil {
		w.heard, w.due = nil, false
		return
	}
	w.look = ""
	w.looking, w.asked = append(w.looking, w.asked...), nil
}

// ask is want, and what failed for good is tried again, too.
func (w *waiting) ask() {
	if w.want(); w.look == apply.Reconcile {
		w.look = apply.Asked
	}
}

// want has a look made when nothing else is under way.
func (w *waiting) want() {
	switch {
	case !w.booted:
		w.look = apply.Boot
	case w.look == "":
		w.look = apply.Reconcile
	}
}

// over takes in how a pass went and says how long to wait before the next try; 0 for nothing to try.
func (w *waiting) over(d done, now time.Time) (pause time.Duration) {
	w.busy = false
	if d.job.heard == nil {
		for _, c := range w.looking {
			c <- d
		}
		w.looking = nil
	}
	if d.err != nil {
		if h := d.job.heard; h != nil {
			w.heard = &link.Heard{Signed: h.Signed} // it is answered by now
		}
		w.again = now.Add(min(againMin<<min(w.failed, 10), againMax))
		w.failed++
	} else if w.booted = true; w.heard == nil {
		w.failed = 0
	}
	if w.failed > 0 {
		return max(w.again.Sub(now), againSoon)
	}
	if next := d.result.NextTry; !next.IsZero() {
		return max(next.Sub(now), againSoon)
	}
	return 0
}

// retry has what failed tried again.
func (w *waiting) retry() {
	if w.heard != nil {
		w.due = true
		return
	}
	w.want()
}

// timers are when the loop wakes up by itself; a nil one is not set.
type timers struct{ later, retry, slow, sent <-chan time.Time }

// loop is the daemon's one goroutine of state.
func (a *Agent) loop(ctx context.Context, jobs chan<- job, results <-chan done, failed <-chan error) error {
	minute, stopMinute := a.cfg.Clock.Every(reconcileEvery)
	defer stopMinute()
	watchdog, stopWatchdog := a.watchdog()
	defer stopWatchdog()
	moved, forget := a.moved()
	defer forget()
	a.layDown(ctx)
	a.cfg.Notify("READY=1")
	defer close(a.resting)
	w, t := waiting{look: apply.Boot}, timers{} // what was declared before comes first
	for {
		var give chan<- job
		var heard <-chan link.Heard
		offer, ok := w.next(a.link.Heard())
		if ok {
			give = jobs
		} else if !w.busy {
			heard = a.link.Heard()
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case <-watchdog:
			a.cfg.Notify("WATCHDOG=1")
		case give <- offer:
			w.given(offer)
			t.slow = a.cfg.Clock.After(slowPass)
		case h := <-heard:
			w.heard, w.due = &h, true
		case d := <-results:
			t.slow, t.retry = nil, nil
			if pause := w.over(d, a.cfg.Clock.Now()); pause > 0 {
				t.retry = a.cfg.Clock.After(pause)
			}
			if sent := a.after(ctx, d); sent {
				t.sent = a.cfg.Clock.After(sentWithin)
			}
		case <-t.sent: // or it was not
			if t.sent = nil; a.store.Depth() > 0 {
				a.remember(ctx)
			}
			a.waits(ctx)
		case <-a.emptied:
			a.waits(ctx)
			a.told()
		case do := <-a.calls:
			do(&w)
		case <-t.slow:
			t.slow = nil
			a.underWay(ctx)
		case <-minute:
			a.layDown(ctx)
			w.want()
		case <-a.engine.Changed():
			w.want()
		case <-a.machine.Changed:
			if t.later == nil {
				t.later = a.cfg.Clock.After(debounce)
			}
		case <-t.later:
			t.later = nil
			w.want()
		case <-t.retry:
			t.retry = nil
			w.retry()
		case <-moved:
			a.remember(ctx)
			a.layDown(ctx)
			if _, account := a.account(); account.Outcome == report.Failed {
				w.want() // it may have been the bus that it lacked
			}
		}
	}
}

// moved says when the bus came or went.
func (a *Agent) moved() (moved <-chan struct{}, forget func()) {
	c := make(chan struct{}, 1) // one look at the state pending is enough
	forget = a.conn.OnState(func(bool) {
		select {
		case c <- struct{}{}:
		default:
		}
	})
	<-c // it was told the state of now, which the caller writes anyway
	return c, forget
}

func (a *Agent) watchdog() (<-chan time.Time, func()) {
	if a.cfg.Watchdog <= 0 {
		return nil, func() {}
	}
	return a.cfg.Clock.Every(a.cfg.Watchdog / 2)
}

// after takes in how a pass went: it is remembered, shown, and reported when it is news.
// It returns whether a report was handed over to be sent.
func (a *Agent) after(ctx context.Context, d done) (sent bool) {
	if ctx.Err() != nil {
		return false // the next life looks again
	}
	a.totals.count(d)
	if d.profile != nil {
		a.profile = d.profile
	}
	a.exposed = d.exposed
	if d.refuses != nil {
		a.refuses = d.refuses
	}
	if d.err != nil {
		a.broken(ctx, d)
	} else {
		a.view.take(d)
		a.looked = true
		a.wantAgent(ctx, d.result)
		a.drift = append(a.drift, d.result.Drift...)
		if n := len(a.drift) - state.MaxDrift; n > 0 { // the store takes no reports
			a.drift = a.drift[n:]
		}
	}
	waits := a.say(ctx, d.job.heard != nil && d.job.heard.Pushed)
	if !waits {
		a.remember(ctx)
	}
	a.sending = 0
	if up, _, _ := a.conn.State(); up && waits {
		a.sending, sent = 1, true
	}
	a.changed(ctx)
	return sent
}

// remember writes what waits in the store's memory: an outcome, and a report that is not with the bus after a
// while. Where all goes well the next write takes it along.
func (a *Agent) remember(ctx context.Context) {
	if err := a.store.Flush(ctx); err != nil && ctx.Err() == nil {
		a.cfg.Log.Error("what was done could not be remembered; it is tried again", "err", state.Named(err, "to remember what was done"))
	}
}

// waits writes the status anew when it says otherwise of what waits to be sent.
func (a *Agent) waits(ctx context.Context) {
	a.sending = 0
	if a.store.Depth() != a.shown {
		a.changed(ctx)
	}
}

// broken is a pass that could not be made at all.
func (a *Agent) broken(ctx context.Context, d done) {
	seq, _ := a.store.Newest()
	r := refusal.Of(d.err)
	if r == nil {
		r = &refusal.Refusal{What: "a pass over this machine", Why: d.err.Error(),
			Do: `it is tried again by itself; look at the disk, and at "journalctl -u mesh-agent"`}
	}
	if !a.view.fail(note{max(seq, d.result.RefusedSeq), r, d.job.heard != nil}) {
		return
	}
	a.cfg.Log.Error("a pass could not be made; it is tried again", "err", d.err)
	if err := a.store.AddProblem(ctx, r.What+": "+r.Why); err != nil {
		a.cfg.Log.Error("a problem could not be remembered", "err", err)
	}
}

// underWay says that a pass takes long, when it is about a declaration that was accepted.
func (a *Agent) underWay(ctx context.Context) {
	a.changed(ctx)
	if _, account := a.account(); account.Outcome == report.Applying {
		a.say(ctx, false)
	}
}

// say reports what is news, or logs what kept it from that.
func (a *Agent) say(ctx context.Context, answer bool) (waits bool) {
	a.owed = a.owed || answer
	waits, err := a.report(ctx)
	if err != nil && ctx.Err() == nil {
		a.cfg.Log.Error("no report could be made; it is tried again", "err", err)
	}
	return waits
}

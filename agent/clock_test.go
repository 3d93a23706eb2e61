package agent_test

import (
	"os"
	"sync"
	"testing"
	"time"

	"mesh/agent"
	"mesh/shared/clock"
	"mesh/shared/controller"
	"mesh/shared/engine"
	"mesh/shared/report"
	"mesh/shared/waitfor"
)

// jumpy is the machine's clock, which somebody sets: what it shows has no monotonic reading, so that
// differences show the jump, too. Waits go on as they do on a machine.
type jumpy struct {
	clock.Clock
	mu sync.Mutex // guards by
	by time.Duration
}

func (j *jumpy) Now() time.Time {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.Clock.Now().Round(0).Add(j.by)
}

func (j *jumpy) jump(by time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.by = by
}

// NOD-14: the clock need not be right to apply, and a jump of it breaks no loop: declarations are taken,
// drift is repaired, asks and reports are answered, heartbeats go on, before and after each.
func TestAJumpOfTheClockBreaksNothing(t *testing.T) {
	r := newRig(t)
	clk := &jumpy{Clock: clock.Real()}
	r.change = func(c *agent.Config, _ *agent.Machine) { c.Clock = clk }
	r.start()
	r.report()
	ada := r.bus.Connect(t, "operator-ada")
	seq := uint64(0)
	const year = 365 * 24 * time.Hour
	for name, by := range map[string]time.Duration{"ten years on": 10 * year, "thirty years back": -30 * year, "two hours on": 2 * time.Hour, "as it was": 0, "a minute back": -time.Minute} {
		clk.jump(by)
		seq++
		r.push(r.sign(seq, mod("notes", name, "web")))
		if p := r.applied(seq); time.UnixMilli(p.At).Sub(clk.Now()).Abs() > time.Minute {
			t.Errorf("%s: the report says it is %v", name, time.UnixMilli(p.At))
		}
		must(t, os.WriteFile(r.root("/etc/notes.conf"), []byte("by hand"), 0o644))
		done, err := ask[engine.ApplyAnswer](r, ada, engine.ApplyNow, controller.Nothing{})
		if err != nil || done.Running || done.Outcome != report.Applied || len(done.Differed) == 0 {
			t.Errorf("%s: apply-now: %+v, %v", name, done, err)
		}
		r.reads("/etc/notes.conf", name)
		if by.Abs() > 24*time.Hour {
			continue // a new connection needs the time that the bus's certificate is valid in
		}
		// Down and up again: what is stored with times to come is read.
		r.stop()
		for len(r.beats) > 0 {
			<-r.beats
		}
		r.start()
		said, err := ask[engine.ReportAnswer](r, ada, engine.Report, controller.Nothing{})
		if err != nil {
			t.Errorf("%s: report: %v", name, err)
		}
		for waitfor.Value(t, "the report that was asked for", soon, r.reports).Number < said.Number {
		}
	}
}

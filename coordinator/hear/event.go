package hear

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"io"
	"sync"
	"time"

	"mesh/coordinator/records"
	"mesh/shared/controller"
	"mesh/shared/subject"
)

// events says what is news under the seat, in order, beside the hearing: a slow stream delays no
// report. What the bus does not take is tried again until it does or the program ends.
type events struct {
	cfg  Config
	kick chan struct{} // capacity 1: one look pending is enough

	mu      sync.Mutex // guards the fields below
	waiting []event
	came    int // ever
}

type event struct {
	subject, id string
	body        []byte
}

// waitingMost bounds what waits while the stream takes nothing; the oldest go first, and that is said.
const waitingMost = 100_000

func newEvents(c Config) *events { return &events{cfg: c, kick: make(chan struct{}, 1)} }

// of queues the events of one report.
func (e *events) of(x records.Heard, now time.Time) {
	for _, r := range x.Runs {
		e.say(controller.NodeRunsEvent, controller.NodeRuns{Node: x.Node, Module: r.Module, Build: r.Build, At: now.UTC()})
	}
	if r := x.Refused; r != nil {
		e.say(controller.NodeRefusedEvent, controller.NodeRefusal{Node: x.Node, Seq: r.Seq, Why: r.Why, At: now.UTC()})
	}
}

// say queues one event. One that cannot be marshalled is said and skipped (BUS-15).
func (e *events) say(name subject.Event, payload any) {
	body, err := json.Marshal(payload)
	var id [16]byte
	if err == nil {
		_, err = io.ReadFull(e.cfg.Rand, id[:])
	}
	if err != nil || len(body) == 0 {
		e.cfg.Log.Error("an event cannot be said", "event", name, "err", err)
		return
	}
	e.mu.Lock()
	if len(e.waiting) >= waitingMost {
		e.cfg.Log.Error("an event is dropped: too many wait for the bus", "subject", e.waiting[0].subject)
		e.waiting = e.waiting[1:]
	}
	e.came++
	e.waiting = append(e.waiting, event{subject.SeatEvent(subject.Controller, name, ""), hex.EncodeToString(id[:]), body})
	e.mu.Unlock()
	select {
	case e.kick <- struct{}{}:
	default:
	}
}

func (e *events) first() (event, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.waiting) == 0 {
		return event{}, false
	}
	return e.waiting[0], true
}

func (e *events) said(x event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.waiting) > 0 && e.waiting[0].id == x.id {
		e.waiting = e.waiting[1:]
	}
}

// calm and calmMost are how long no event must come until a crowd of reports is over, and how long it is
// waited for that.
const calm, calmMost = 100 * time.Millisecond, 2 * time.Second

// settle lets a crowd of reports pass: nobody waits for an event, and somebody for each of the reports. It
// returns whether there was one.
func (e *events) settle(ctx context.Context) bool {
	count := func() (came, waiting int) {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.came, len(e.waiting)
	}
	before, waiting := count()
	if waiting < crowd {
		return false
	}
	for range calmMost / calm {
		select {
		case <-ctx.Done():
			return true
		case <-e.cfg.Clock.After(calm):
		}
		now, _ := count()
		if now == before {
			break
		}
		before = now
	}
	return true
}

func (e *events) run(ctx context.Context) error {
	pause, settled := retryMin, false
	for {
		x, ok := e.first()
		if !ok {
			select {
			case <-ctx.Done():
				return nil
			case <-e.kick:
			}
			settled = false
			continue
		}
		if !settled {
			settled = e.settle(ctx)
		}
		if ctx.Err() != nil {
			e.cfg.Log.Warn("events are left unsaid at the end", "subject", x.subject)
			return nil
		}
		// The id makes a repetition after a lost acknowledgement harmless.
		if err := e.cfg.Conn.Publish(context.WithoutCancel(ctx), x.subject, x.body, x.id); err != nil {
			e.cfg.Log.Warn("an event is not taken, trying again", "subject", x.subject, "err", err)
			select {
			case <-ctx.Done():
			case <-e.cfg.Clock.After(pause):
			}
			pause = min(2*pause, retryMax)
			continue
		}
		pause = retryMin
		e.said(x)
	}
}

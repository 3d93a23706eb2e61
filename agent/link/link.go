// Package link is the agent's side of the bus: it follows the node's declaration, sends what waits in
// the outbox, says that the node is alive, and fetches artifacts. It decides nothing: what it hears it
// hands on, and nothing on the machine waits for it. Run owns its goroutines.
package link

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"mesh/agent/state"
	"mesh/shared/bus"
	"mesh/shared/clock"
	"mesh/shared/declaration"
	"mesh/shared/report"
	"mesh/shared/subject"
)

const (
	// HeartbeatEvery is how often the node says that it is alive (NOD-7).
	HeartbeatEvery = 30 * time.Second
	// fetchBound is for one read from a stream.
	fetchBound = 10 * time.Second
	// sendBatch is how many messages the outbox hands over at once.
	sendBatch = 32
	// retryMin and retryMax bound the pause after a send or a read that failed while the bus is there.
	retryMin = 500 * time.Millisecond
	retryMax = 30 * time.Second
	// looksForFirst is how often a node that was never sent anything, as far as the stream knows, looks for
	// its declaration after a connect: a busy stream takes seconds to keep what was sent before the
	// subscription was in place, and answers meanwhile that there is none.
	looksForFirst = 4
	// firstPause is the pause before the second of those looks; it doubles.
	firstPause = 2 * time.Second
)

// Heard is a declaration that came over the bus.
type Heard struct {
	Signed declaration.Signed
	// Pushed says that it was sent just now; otherwise it was read back after a connect, and the same
	// one as before is no reason to say anything.
	Pushed bool
}

// outbox is the store's part the link needs.
type outbox interface {
	Next(ctx context.Context, n int) ([]state.Out, error)
	Acked(ctx context.Context, all ...state.Out) error
}

// Config is what a Link works with.
type Config struct {
	Node   subject.Node
	Conn   *bus.Conn
	Outbox outbox
	// Alive makes the heartbeat's content.
	Alive func() report.Heartbeat
	// Stands says of a declaration that was sent that the node holds it, and that known is the number of its
	// last report: then a heartbeat is the whole answer. nil for never. It must not block.
	Stands func(signed declaration.Signed, known uint64) bool
	// Emptied is called when all that waited was sent; nil for nobody. It must not block.
	Emptied func()
	Clock   clock.Clock
	Log     *slog.Logger
}

// Link is one node's link to the bus.
type Link struct {
	cfg   Config
	heard *mailbox
	send  chan struct{} // capacity 1: one look at the outbox pending is enough

	mu   sync.Mutex // guards left; held while a heartbeat is handed over
	left bool       // good-bye was said

	answers sync.Mutex // guards answer
	answer  *state.Out // what is said after the outbox, and lost with the process; nil for nothing
}

// New makes a Link; Run starts it.
func New(c Config) *Link {
	return &Link{cfg: c, heard: newMailbox(), send: make(chan struct{}, 1)}
}

// Heard delivers the newest declaration; older ones that nobody took are dropped, since only the newest
// counts.
func (l *Link) Heard() <-chan Heard { return l.heard.out }

// Answer has o sent after all that waits in the outbox, until the bus has it or there is a newer answer. It
// is for what somebody asked for and nobody misses after a restart: it costs the store nothing.
func (l *Link) Answer(o state.Out) {
	l.answers.Lock()
	l.answer = &o
	l.answers.Unlock()
	l.Kick()
}

// sendAnswer sends the answer, if there is one.
func (l *Link) sendAnswer(ctx context.Context) error {
	l.answers.Lock()
	o := l.answer
	l.answers.Unlock()
	if o == nil {
		return nil
	}
	if err := l.cfg.Conn.Publish(ctx, o.Subject, o.Body, o.ID); err != nil {
		return err
	}
	l.answers.Lock()
	defer l.answers.Unlock()
	if l.answer == o {
		l.answer = nil
	}
	return nil
}

// Kick has the outbox looked at now.
func (l *Link) Kick() {
	select {
	case l.send <- struct{}{}:
	default:
	}
}

// Run works until ctx ends.
func (l *Link) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer l.cfg.Conn.OnUp(l.Kick)()
	errs := make(chan error, 3)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, work := range []func(context.Context) error{l.follow, l.beat, l.sendAll} {
		wg.Add(1)
		go func() { // ends with ctx
			defer wg.Done()
			errs <- work(ctx)
		}()
	}
	var first error
	for range cap(errs) {
		if err := <-errs; err != nil && first == nil {
			first = err
			cancel()
		}
	}
	return first
}

// follow hears declarations as they are sent, and reads the last one whenever the subscription is in
// place again: in this order, so that none falls between (facts/bus.md §1.2).
func (l *Link) follow(ctx context.Context) error {
	look := make(chan struct{}, 1)
	var wg sync.WaitGroup
	wg.Add(1)
	go func() { // ends with ctx
		defer wg.Done()
		l.readBack(ctx, look)
	}()
	defer wg.Wait()
	return l.cfg.Conn.Follow(ctx, subject.Declaration(l.cfg.Node), "", func(m *nats.Msg) {
		if bus.Stray(m) {
			return // a neighbour had its answer sent here
		}
		if l.stands(m) {
			if err := l.Beat(l.cfg.Alive()); err == nil {
				return
			}
		}
		l.heard.put(Heard{Signed: m.Data, Pushed: true})
	}, func() {
		l.heard.anew()
		select {
		case look <- struct{}{}:
		default:
		}
	})
}

func (l *Link) stands(m *nats.Msg) bool {
	known, err := strconv.ParseUint(m.Header.Get(report.KnownHeader), 10, 64)
	return err == nil && known > 0 && l.cfg.Stands != nil && l.cfg.Stands(m.Data, known)
}

func (l *Link) readBack(ctx context.Context, look <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-look:
		}
		for pause, looks := retryMin, 1; ; pause, looks = min(2*pause, retryMax), looks+1 {
			rctx, cancel := context.WithTimeout(ctx, fetchBound)
			b, err := l.cfg.Conn.Last(rctx, subject.Declarations, subject.Declaration(l.cfg.Node))
			cancel()
			if err == nil {
				l.heard.put(Heard{Signed: b})
				break
			}
			none := errors.Is(err, bus.ErrNone)
			if none && (looks == looksForFirst || l.cfg.Alive().Seq > 0) || errors.Is(err, bus.ErrAway) || ctx.Err() != nil {
				break // nothing was ever sent, or the next connect looks again
			}
			if none {
				pause = max(pause, firstPause)
			} else {
				l.cfg.Log.Warn("read the declaration, trying again", "err", err)
			}
			select {
			case <-ctx.Done():
				return
			case <-l.cfg.Clock.After(pause):
			}
			if none && l.cfg.Alive().Seq > 0 {
				break // it was sent meanwhile
			}
		}
	}
}

// beat says that the node is alive. The first one comes at a random moment, so that a fleet that
// started together does not speak together.
func (l *Link) beat(ctx context.Context) error {
	wait := l.cfg.Clock.After(rand.N(HeartbeatEvery))
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-wait:
		}
		wait = l.cfg.Clock.After(HeartbeatEvery)
		if err := l.Beat(l.cfg.Alive()); err != nil && !errors.Is(err, bus.ErrAway) {
			l.cfg.Log.Debug("heartbeat", "err", err)
		}
	}
}

// Beat says h now, unless good-bye was said.
func (l *Link) Beat(h report.Heartbeat) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.left {
		return nil
	}
	return l.say(h)
}

// Back says h as the first heartbeat after a good-bye that was not for good.
func (l *Link) Back(h report.Heartbeat) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.left = false
	return l.say(h)
}

// Leave says h as the last heartbeat: one that followed would make it void.
func (l *Link) Leave(h report.Heartbeat) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.left = true
	return l.say(h)
}

func (l *Link) say(h report.Heartbeat) error {
	b, err := json.Marshal(h)
	if err != nil {
		return fmt.Errorf("heartbeat: %w", err)
	}
	return l.cfg.Conn.Say(subject.Heartbeat(l.cfg.Node), b)
}

// sendAll sends what waits, in order, each until the stream has acknowledged it (BUS-12).
func (l *Link) sendAll(ctx context.Context) error {
	pause, said := retryMin, ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.send:
		}
		for {
			more, err := l.sendSome(ctx)
			if err == nil {
				if said != "" {
					l.cfg.Log.Info("what waits is sent again")
				}
				pause, said = retryMin, ""
				if more {
					continue
				}
				if l.cfg.Emptied != nil {
					l.cfg.Emptied()
				}
				break
			}
			if ctx.Err() != nil {
				return nil
			}
			if errors.Is(err, bus.ErrAway) {
				break // the next connect kicks
			}
			if said != err.Error() { // one that repeats is said once
				said = err.Error()
				l.cfg.Log.Warn("send what waits, trying again", "err", err)
			}
			select {
			case <-ctx.Done():
				return nil
			case <-l.cfg.Clock.After(pause):
			}
			pause = min(2*pause, retryMax)
		}
	}
}

func (l *Link) sendSome(ctx context.Context) (more bool, err error) {
	waiting, err := l.cfg.Outbox.Next(ctx, sendBatch)
	if err != nil {
		return false, err
	}
	for _, o := range waiting {
		if err := l.cfg.Conn.Publish(ctx, o.Subject, o.Body, o.ID); err != nil {
			return false, err
		}
		if err := l.cfg.Outbox.Acked(ctx, o); err != nil {
			return false, err
		}
	}
	if len(waiting) > 0 {
		return true, nil
	}
	return false, l.sendAnswer(ctx)
}

// mailbox holds the newest declaration and hands it out; put never blocks. Seqs are taken at their word
// here: they order what comes on two ways, and the engine judges what is taken out.
type mailbox struct {
	mu     sync.Mutex // guards the exchange below
	out    chan Heard // capacity 1
	newest uint64     // of those sent since the subscription is in place
}

func newMailbox() *mailbox { return &mailbox{out: make(chan Heard, 1)} }

// anew notes that the subscription is in place again.
func (m *mailbox) anew() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.newest = 0
}

func (m *mailbox) put(h Heard) {
	seq := h.Signed.Claimed()
	m.mu.Lock()
	defer m.mu.Unlock()
	if h.Pushed {
		m.newest = max(m.newest, seq)
	} else if seq < m.newest {
		return // it was read before the stream had the one that was sent
	}
	select {
	case old := <-m.out:
		if before := old.Signed.Claimed(); before > seq {
			h.Signed = old.Signed
		}
		// One that was sent and not taken yet must still be answered, even when a read-back of the same
		// follows it.
		h.Pushed = h.Pushed || old.Pushed
	default:
	}
	m.out <- h
}

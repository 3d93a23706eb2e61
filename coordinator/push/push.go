// Package push sends declarations and follows each one until its node has spoken: sent, heard, and how
// it ended. What it is handed was composed, signed and kept before, so a seq is never given twice and a
// coordinator that dies in the middle loses nothing: the next start compares the stream with the records
// and sends what is missing (Restore). Publishes run side by side within a bound; one that is refused or
// slow is said and blocks no other.
//
// Run owns the goroutines. How pushes went is kept in memory, the last of them only.
package push

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"mesh/coordinator/records"
	"mesh/shared/bus"
	"mesh/shared/clock"
	"mesh/shared/controller"
	"mesh/shared/declaration"
	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/subject"
)

const (
	// inFlight is how many publishes wait for their acknowledgement at once.
	inFlight = 4096
	// patience is how long a batch waits for stragglers before those that are there are recorded: long
	// enough that a push to ten thousand is on the bus before the records take processor time from it.
	patience = 400 * time.Millisecond
	// again is the pause after the records did not take sends.
	again = 5 * time.Second
	// linger collects news for one answer while a push is under way.
	linger = 20 * time.Millisecond
	// keepPushes and keepNodes bound what is remembered of pushes that are over.
	keepPushes = 64
	keepNodes  = 50_000
)

// Seq is the header that says a declaration's seq, so that it can be compared without reading it.
const Seq = "Mesh-Seq"

// Item is one declaration to send; with Refused it is only shown as not sent.
type Item struct {
	Node   subject.Node
	Seq    uint64
	Signed declaration.Signed
	// Builds are those it carries (PSH-3).
	Builds map[subject.Module]string
	// Note is what a person should know about it, such as a module that was left out.
	Note    string
	Refused *refusal.Refusal
}

// sends is the records' part this package needs.
type sends interface {
	RecordSends(ctx context.Context, all []records.Send) error
}

// Config is what an Engine works with.
type Config struct {
	Conn    *bus.Conn
	Records sends
	// Known is the number of the last report of a node that the records hold, 0 for none; it is said with
	// each declaration, so that a node whose word stands needs not repeat it. nil for none. It must not block.
	Known func(subject.Node) uint64
	Clock clock.Clock
	Log   *slog.Logger
}

// Engine sends and follows.
type Engine struct {
	cfg Config
	js  jetstream.JetStream

	kick chan struct{} // capacity 1: one look at the queue pending is enough

	// gate is held while one declaration is put on the way: who takes it after Gone knows that none of that
	// node's comes any more.
	gate sync.Mutex

	mu     sync.Mutex // guards the fields below
	queue  []*push
	pushes []*push // oldest first
	byNode map[subject.Node][]place
	lastID int64
	news   chan struct{} // closed and made anew at each change
	ending bool          // nobody waits for news any more
}

// push is one push; Engine.mu guards it.
type push struct {
	id, by, why string
	started     time.Time
	version     uint64
	items       []Item // let go once sent
	nodes       []entry
	unrecorded  bool // it was said that the records do not take its sends
	open        int  // nodes that are not final
	counts      map[controller.PushState]int
}

type entry struct {
	controller.PushNode
	version uint64
	sent    time.Time
}

// place is where a node stands in a push that still follows it.
type place struct {
	p *push
	i int
}

// New makes an Engine; Run starts it.
func New(c Config) (*Engine, error) {
	js, err := jetstream.New(c.Conn.NATS(), jetstream.WithPublishAsyncMaxPending(inFlight), jetstream.WithPublishAsyncTimeout(bus.PublishBound))
	if err != nil {
		return nil, fmt.Errorf("push: %w", err)
	}
	return &Engine{cfg: c, js: js, kick: make(chan struct{}, 1), byNode: map[subject.Node][]place{}, news: make(chan struct{})}, nil
}

// Start is StartAs with a new id.
func (e *Engine) Start(by, why string, items []Item) controller.Push {
	return e.StartAs(e.NewID(), by, why, items)
}

// NewID is an id that no push of this engine has.
func (e *Engine) NewID() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lastID = max(e.lastID+1, e.cfg.Clock.Now().UnixMilli())
	return strconv.FormatInt(e.lastID, 36)
}

// StartAs queues a push and returns how it stands: it answers before it sends (MEM-6).
func (e *Engine) StartAs(id, by, why string, items []Item) controller.Push {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.cfg.Clock.Now()
	p := &push{id: id, by: by, why: why, started: now, version: 1, items: items,
		nodes: make([]entry, len(items)), counts: map[controller.PushState]int{}}
	for i, it := range items {
		n := entry{PushNode: controller.PushNode{Node: it.Node, Seq: it.Seq, State: controller.PushWaiting, Note: it.Note}, version: 1}
		if it.Refused != nil {
			n.State, n.Why = controller.PushRefused, it.Refused
		} else {
			p.open++
			e.byNode[it.Node] = append(e.byNode[it.Node], place{p, i})
		}
		p.counts[n.State]++
		p.nodes[i] = n
	}
	e.pushes = append(e.pushes, p)
	e.forget()
	e.queue = append(e.queue, p)
	select {
	case e.kick <- struct{}{}:
	default:
	}
	return p.answer(0)
}

// forget drops the oldest pushes past the bounds, never the newest. It holds mu.
func (e *Engine) forget() {
	nodes := 0
	for i := len(e.pushes) - 1; i >= 0; i-- {
		nodes += len(e.pushes[i].nodes)
		if over := len(e.pushes)-i > keepPushes || nodes > keepNodes; !over || i == len(e.pushes)-1 {
			continue
		}
		for _, old := range e.pushes[:i+1] {
			for _, n := range old.nodes {
				e.unfollow(n.Node, old)
			}
		}
		e.pushes = append([]*push(nil), e.pushes[i+1:]...)
		return
	}
}

func (e *Engine) unfollow(n subject.Node, p *push) {
	keep := e.byNode[n][:0]
	for _, at := range e.byNode[n] {
		if at.p != p {
			keep = append(keep, at)
		}
	}
	if len(keep) == 0 {
		delete(e.byNode, n)
		return
	}
	e.byNode[n] = keep
}

// Run sends what is started until ctx ends, and waits for what is under way.
func (e *Engine) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer e.end()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-e.kick:
		}
		for p := e.next(); p != nil && ctx.Err() == nil; p = e.next() {
			// One goroutine publishes, so that an older declaration never overtakes a newer one; waiting for
			// acknowledgements is done beside it.
			waiting := e.publish(p)
			wg.Add(1)
			go func() { // ends when all are acknowledged or their bound is over, or with ctx
				defer wg.Done()
				e.settle(ctx, p, waiting)
			}()
		}
	}
}

// end answers everybody who waits for news.
func (e *Engine) end() {
	e.mu.Lock()
	e.ending = true
	e.mu.Unlock()
	e.tell()
}

func (e *Engine) next() *push {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.queue) == 0 {
		return nil
	}
	p := e.queue[0]
	e.queue = e.queue[1:]
	return p
}

// pending is one publish that is not acknowledged yet.
type pending struct {
	i   int
	ack jetstream.PubAckFuture
	err error
}

// publish puts every item on the way. Once the bus takes no more, the rest is refused without waiting
// for each.
func (e *Engine) publish(p *push) []pending {
	all := make([]pending, 0, len(p.items))
	var stalled error
	for i := range p.items {
		next := pending{i: i, err: stalled}
		if !e.put(p, i, &next) {
			continue
		}
		if errors.Is(next.err, jetstream.ErrTooManyStalledMsgs) || errors.Is(next.err, nats.ErrConnectionClosed) {
			stalled = next.err
		}
		all = append(all, next)
	}
	return all
}

// put puts one item on the way, unless it was refused or its node removed meanwhile.
func (e *Engine) put(p *push, i int, next *pending) bool {
	e.gate.Lock()
	defer e.gate.Unlock()
	e.mu.Lock()
	refused := p.nodes[i].State == controller.PushRefused
	e.mu.Unlock()
	if refused {
		return false
	}
	if next.err == nil {
		it := p.items[i]
		m := nats.NewMsg(subject.Declaration(it.Node))
		m.Data = it.Signed
		m.Header.Set(Seq, strconv.FormatUint(it.Seq, 10))
		if e.cfg.Known != nil {
			if number := e.cfg.Known(it.Node); number > 0 {
				m.Header.Set(report.KnownHeader, strconv.FormatUint(number, 10))
			}
		}
		next.ack, next.err = e.js.PublishMsgAsync(m, jetstream.WithStallWait(bus.PublishBound))
	}
	return true
}

// settle records acknowledgements as they come, in batches, and says what was refused. Sends that the
// records do not take are recorded with a later batch, or once they take them; the next start finds what
// is left.
func (e *Engine) settle(ctx context.Context, p *push, waiting []pending) {
	items := p.items
	var sent []records.Send
	for len(waiting) > 0 && ctx.Err() == nil {
		var late []pending
		soon := e.cfg.Clock.After(patience)
		for _, w := range waiting {
			err, done := w.outcome(ctx, &soon)
			if !done {
				late = append(late, w)
				continue
			}
			it := items[w.i]
			if err != nil {
				e.refused(p, w.i, err)
				continue
			}
			e.sent(p, w.i)
			sent = append(sent, records.Send{Node: it.Node, Seq: it.Seq, Push: p.id, Builds: it.Builds})
		}
		sent = e.record(ctx, p, sent)
		e.tell()
		waiting = late
	}
	e.mu.Lock()
	p.items = nil
	e.mu.Unlock()
	for len(sent) > 0 {
		select {
		case <-ctx.Done():
			return
		case <-e.cfg.Clock.After(again):
		}
		sent = e.record(ctx, p, sent)
	}
}

// record returns what is still to be recorded.
func (e *Engine) record(ctx context.Context, p *push, sent []records.Send) []records.Send {
	err := e.cfg.Records.RecordSends(context.WithoutCancel(ctx), sent)
	if err == nil {
		return nil
	}
	e.mu.Lock()
	said := p.unrecorded
	p.unrecorded = true
	e.mu.Unlock()
	if !said {
		e.cfg.Log.Error("sends are on the bus and not in the records, trying again", "push", p.id, "err", err)
	}
	return sent
}

// outcome waits for w until soon; once that is over (it is set to nil then) it only looks.
func (w pending) outcome(ctx context.Context, soon *<-chan time.Time) (err error, done bool) {
	if w.err != nil {
		return w.err, true
	}
	if *soon != nil {
		select {
		case <-w.ack.Ok():
			return nil, true
		case err := <-w.ack.Err():
			return err, true
		case <-*soon:
			*soon = nil
		case <-ctx.Done():
			*soon = nil
		}
	}
	select {
	case <-w.ack.Ok():
		return nil, true
	case err := <-w.ack.Err():
		return err, true
	default:
		return nil, false
	}
}

func (e *Engine) refused(p *push, i int, err error) {
	r := refusal.Of(err)
	if r == nil {
		r = &refusal.Refusal{What: "the declaration of " + string(p.nodes[i].Node), Why: "the bus did not take it: " + err.Error(), Do: "push again: mesh-coordinator push --behind"}
	}
	e.cfg.Log.Warn("a declaration was not sent", "node", p.nodes[i].Node, "seq", p.nodes[i].Seq, "err", err)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.set(place{p, i}, controller.PushRefused, r)
}

func (e *Engine) sent(p *push, i int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := &p.nodes[i]
	n.sent = e.cfg.Clock.Now()
	if n.State == controller.PushWaiting { // a fast node was heard before the acknowledgement
		e.set(place{p, i}, controller.PushSent, nil)
	}
}

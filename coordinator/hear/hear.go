// Package hear takes in what nodes say: reports through the durable consumer on CONTROL, each kept in
// the records before it is acknowledged, and heartbeats, kept in memory. Reports are recorded as they
// come, all that is there in one commit. A message that is not understood, carries headers a report has
// no use for, or names another node than its subject is said once and never blocks the next. From what
// the records call news it says the events node-runs and node-refused (NOD-9).
//
// Run owns the goroutines.
package hear

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"mesh/coordinator/records"
	"mesh/shared/bus"
	"mesh/shared/clock"
	"mesh/shared/report"
	"mesh/shared/subject"
)

const (
	// batchMost is how many reports one commit takes at most.
	batchMost = 1024
	// ahead and aheadBytes bound what is fetched and not recorded yet.
	ahead      = 4096
	aheadBytes = 32 << 20
	// crowd is how many reports in one batch say that many more are coming, and gather how long those are
	// waited for: a push to all is answered by thousands, and a commit of few costs as much as one of many.
	crowd  = 4
	gather = 15 * time.Millisecond
	// retryMin and retryMax bound the pause after a commit that failed; the messages are held meanwhile,
	// for less than the acknowledgement window each time.
	retryMin = 250 * time.Millisecond
	retryMax = 10 * time.Second
)

// store is the records' part this package needs.
type store interface {
	RecordReports(ctx context.Context, batch []records.Received) ([]records.Heard, error)
}

// Config is what a Hearer works with.
type Config struct {
	// Mesh is the id reports must name.
	Mesh    string
	Conn    *bus.Conn
	Records store
	// Heard is told of each report of a known node once it is recorded, in order; it must not block.
	Heard func(records.Heard, *report.Report)
	// Beat is told of each heartbeat of a node; nil for nobody. It must not block.
	Beat  func(subject.Node, report.Heartbeat)
	Clock clock.Clock
	Log   *slog.Logger
	// Rand makes the unguessable ids of events.
	Rand io.Reader
}

// Hearer hears.
type Hearer struct {
	cfg    Config
	js     jetstream.JetStream
	events *events

	mu    sync.Mutex // guards the fields below
	since time.Time
	beats map[subject.Node]Beat
	floor map[subject.Node]uint64 // up to which stream sequence CONTROL is an earlier machine's
	said  map[string]complaints   // by node, "" for none
}

// New makes a Hearer; Run starts it.
func New(c Config) (*Hearer, error) {
	js, err := jetstream.New(c.Conn.NATS())
	if err != nil {
		return nil, fmt.Errorf("hear: %w", err)
	}
	h := &Hearer{cfg: c, js: js, since: c.Clock.Now(), beats: map[subject.Node]Beat{}, floor: map[subject.Node]uint64{}, said: map[string]complaints{}}
	h.events = newEvents(c)
	return h, nil
}

// Run hears until ctx ends. What was fetched and not recorded by then comes again at the next start.
func (h *Hearer) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	errs := make(chan error, 3)
	for _, work := range []func(context.Context) error{h.reports, h.follow, h.events.run} {
		wg.Add(1)
		go func() { // ends with ctx
			defer wg.Done()
			errs <- work(ctx)
		}()
	}
	for range cap(errs) {
		if err := <-errs; err != nil {
			return fmt.Errorf("hear: %w", err)
		}
	}
	return nil
}

// reports binds the consumer, again whenever somebody deleted it, and records what comes.
func (h *Hearer) reports(ctx context.Context) error {
	for pause := retryMin; ; pause = min(2*pause, retryMax) {
		err := h.consume(ctx)
		if ctx.Err() != nil {
			return nil
		}
		h.cfg.Log.Warn("reports are not heard, trying again", "err", err)
		select {
		case <-ctx.Done():
			return nil
		case <-h.cfg.Clock.After(pause):
		}
	}
}

func (h *Hearer) consume(ctx context.Context) error {
	stream, cfg := bus.Reports()
	bound, cancel := context.WithTimeout(ctx, bus.PublishBound)
	consumer, err := h.js.CreateOrUpdateConsumer(bound, string(stream), cfg)
	cancel()
	if err != nil {
		return err
	}
	came := make(chan jetstream.Msg, ahead) // full: the bus waits with the rest
	ended := make(chan error, 1)
	consuming, err := consumer.Consume(func(m jetstream.Msg) {
		select {
		case came <- m:
		case <-ctx.Done(): // not acknowledged: it comes again
		}
	}, jetstream.PullMaxMessagesWithBytesLimit(ahead, aheadBytes), jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) {
		if errors.Is(err, jetstream.ErrConsumerDeleted) || errors.Is(err, jetstream.ErrConsumerNotFound) {
			select {
			case ended <- err:
			default:
			}
		}
	}))
	if err != nil {
		return err
	}
	defer consuming.Stop()
	batch := make([]jetstream.Msg, 0, batchMost)
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			return err
		case <-consuming.Closed():
			return errors.New("the consumer closed")
		case m := <-came:
			crowded := len(batch) >= crowd
			batch = drain(append(batch[:0], m), came)
			if crowded {
				batch = h.gather(ctx, batch, came)
			}
			if err := h.take(ctx, batch); err != nil {
				return err
			}
		}
	}
}

// drain adds what is there already, up to a batch.
func drain(batch []jetstream.Msg, came <-chan jetstream.Msg) []jetstream.Msg {
	for len(batch) < batchMost {
		select {
		case m := <-came:
			batch = append(batch, m)
		default:
			return batch
		}
	}
	return batch
}

// gather adds what comes within a moment, up to a batch.
func (h *Hearer) gather(ctx context.Context, batch []jetstream.Msg, came <-chan jetstream.Msg) []jetstream.Msg {
	over := h.cfg.Clock.After(gather)
	for len(batch) < batchMost {
		select {
		case m := <-came:
			batch = append(batch, m)
		case <-over:
			return batch
		case <-ctx.Done():
			return batch
		}
	}
	return batch
}

// take records a batch, acknowledges it, and tells.
func (h *Hearer) take(ctx context.Context, batch []jetstream.Msg) error {
	got := make([]said, 0, len(batch))
	now := h.cfg.Clock.Now()
	for _, m := range batch {
		if r := h.read(m.Subject(), m.Headers(), m.Data()); r != nil {
			got = append(got, said{m, records.Received{Report: r, Heard: now}})
		}
	}
	kept, heard, err := h.record(ctx, batch, got)
	if err != nil {
		return err
	}
	if err := batch[len(batch)-1].Ack(); err != nil { // and with it those before
		return err // they come again, and are no news then
	}
	for i, x := range heard {
		if !x.Known {
			h.complain("report of a node that is not in the mesh", string(x.Node), "")
			continue
		}
		if h.cfg.Heard != nil && !x.Old { // one that comes late undoes nothing
			h.cfg.Heard(x, kept[i].Report)
		}
		h.events.of(x, now)
	}
	return nil
}

// said is a report with the message it came in.
type said struct {
	m jetstream.Msg
	records.Received
}

// record tries until the records take the batch or ctx ends, and holds its messages meanwhile (BUS-7).
func (h *Hearer) record(ctx context.Context, batch []jetstream.Msg, got []said) (kept []records.Received, heard []records.Heard, err error) {
	for pause := retryMin; ; pause = min(2*pause, retryMax) {
		kept = make([]records.Received, 0, len(got))
		for _, x := range got {
			if !h.past(x.m, x.Report.Node) { // its node may have been removed while it waited
				kept = append(kept, x.Received)
			}
		}
		heard, err := h.cfg.Records.RecordReports(ctx, kept)
		if err == nil {
			return kept, heard, nil
		}
		if ctx.Err() != nil {
			return nil, nil, ctx.Err()
		}
		h.complain("reports cannot be recorded, trying again", "", err.Error())
		for _, m := range batch {
			if err := m.InProgress(); err != nil {
				return nil, nil, err
			}
		}
		select {
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-h.cfg.Clock.After(pause):
		}
	}
}

// read decodes one report; nil means that it was said and is dropped.
func (h *Hearer) read(sub string, header nats.Header, data []byte) *report.Report {
	node, ok := nodeOf(sub, subject.Report)
	if !ok {
		h.complain("message on a subject that is no report's", "", sub)
		return nil
	}
	for name := range header {
		// An answer of the bus that was aimed at this subject carries its headers (facts/bus.md §2).
		if name != nats.MsgIdHdr {
			h.complain("report with a header that no agent sends, dropped", string(node), name)
			return nil
		}
	}
	r, err := report.Decode(data, node)
	if err == nil && r.Mesh != h.cfg.Mesh {
		err = fmt.Errorf("it is of mesh %q", r.Mesh)
	}
	if err != nil {
		h.complain("report not understood, dropped", string(node), err.Error())
		return nil
	}
	return r
}

// nodeOf is the node in a subject that of builds.
func nodeOf(sub string, of func(subject.Node) string) (subject.Node, bool) {
	tokens := strings.Split(sub, ".")
	if len(tokens) != 4 {
		return "", false
	}
	n, err := subject.ParseNode(tokens[2])
	return n, err == nil && of(n) == sub
}

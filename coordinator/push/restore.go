package push

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"mesh/shared/subject"
)

// restoreBound is how long one read of the stream may stand still.
const restoreBound = 10 * time.Second

// OnBus reads from the stream which seq of each node's declaration the bus holds. A message that says
// none counts as 0.
func (e *Engine) OnBus(ctx context.Context) (map[subject.Node]uint64, error) {
	seqs, err := e.onBus(ctx)
	if err != nil {
		return nil, fmt.Errorf("read which declarations the bus holds: %w", err)
	}
	return seqs, nil
}

func (e *Engine) onBus(ctx context.Context) (map[subject.Node]uint64, error) {
	stream, err := e.js.Stream(ctx, string(subject.Declarations))
	if err != nil {
		return nil, err
	}
	// Each subject keeps one message, so the headers of all messages are the whole answer.
	c, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{HeadersOnly: true, DeliverPolicy: jetstream.DeliverAllPolicy})
	if err != nil {
		return nil, err
	}
	seqs := map[subject.Node]uint64{}
	if stream.CachedInfo().State.Msgs == 0 {
		return seqs, nil
	}
	msgs, err := c.Messages(jetstream.PullMaxMessages(2048))
	if err != nil {
		return nil, err
	}
	defer msgs.Stop()
	for {
		bound, cancel := context.WithTimeout(ctx, restoreBound)
		m, err := msgs.Next(jetstream.NextContext(bound))
		cancel()
		if err != nil {
			if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) {
				err = fmt.Errorf("nothing came within %v", restoreBound)
			}
			return nil, err
		}
		meta, err := m.Metadata()
		if err != nil {
			return nil, err
		}
		if n, ok := nodeOf(m.Subject()); ok {
			seq, err := strconv.ParseUint(m.Headers().Get(Seq), 10, 64)
			if err != nil {
				seq = 0
			}
			seqs[n] = seq
		}
		if meta.NumPending == 0 {
			return seqs, nil
		}
	}
}

// Purge takes the declaration of a removed node off the bus, after Gone: a machine that gets its name later
// must not find it there.
func (e *Engine) Purge(ctx context.Context, n subject.Node) error {
	e.gate.Lock()
	//lint:ignore SA2001 it waits until the one that is just being sent is on its way
	e.gate.Unlock()
	return e.purge(ctx, n)
}

// Clear takes a declaration off the bus that was of an earlier machine of the name: one older than own(), the
// seq of the node's last declaration, 0 without one.
func (e *Engine) Clear(ctx context.Context, n subject.Node, own func() (uint64, error)) error {
	stream, err := e.js.Stream(ctx, string(subject.Declarations))
	if err != nil {
		return fmt.Errorf("look for an earlier declaration of %s: %w", n, err)
	}
	last, err := stream.GetLastMsgForSubject(ctx, subject.Declaration(n))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for an earlier declaration of %s: %w", n, err)
	}
	// In this order: what is on the bus before the node has one of its own is none of its own.
	seq, err := own()
	if err != nil {
		return err
	}
	if there, err := strconv.ParseUint(last.Header.Get(Seq), 10, 64); err == nil && seq > 0 && there >= seq {
		return nil
	}
	return e.purge(ctx, n, jetstream.WithPurgeSequence(last.Sequence+1)) // a newer one stays
}

func (e *Engine) purge(ctx context.Context, n subject.Node, opts ...jetstream.StreamPurgeOpt) error {
	stream, err := e.js.Stream(ctx, string(subject.Declarations))
	if err == nil {
		err = stream.Purge(ctx, append(opts, jetstream.WithPurgeSubject(subject.Declaration(n)))...)
	}
	if err != nil {
		return fmt.Errorf("take the declaration of %s off the bus: %w", n, err)
	}
	return nil
}

// nodeOf is the node in the subject of a declaration.
func nodeOf(sub string) (subject.Node, bool) {
	tokens := strings.Split(sub, ".")
	if len(tokens) != 4 {
		return "", false
	}
	n, err := subject.ParseNode(tokens[2])
	return n, err == nil && sub == subject.Declaration(n)
}

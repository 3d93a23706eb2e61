// Package issue puts memberships on the bus, each on mesh.assignment.<node>.<module>, where the instance it is
// of reads it (MEM-2). What the bus holds already is not put there again, and what is no instance's any more is
// taken off. Putting one there is bounded; those that the bus did not take are named, and nothing waits for
// them: they also travel in the declaration (MEM-5).
//
// An Issuer starts goroutines only inside a call, which waits for them.
package issue

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"sync"

	"github.com/nats-io/nats.go/jetstream"

	"mesh/coordinator/compose"
	"mesh/shared/bus"
	"mesh/shared/subject"
)

// workers is how many memberships are put on the bus side by side.
const workers = 64

// Failed is a membership that the bus did not take.
type Failed struct {
	Node   subject.Node
	Module subject.Module
	Err    error
}

// Issuer issues. Make it with New.
type Issuer struct {
	conn *bus.Conn
	js   jetstream.JetStream

	turn chan struct{} // capacity 1: who holds it owns what follows
	// there is what the bus holds, once it was read; nil before.
	there map[subject.Node]map[subject.Module][sha256.Size]byte
}

// New makes an Issuer; it reads what the bus holds when it is needed first.
func New(conn *bus.Conn) (*Issuer, error) {
	js, err := jetstream.New(conn.NATS())
	if err != nil {
		return nil, fmt.Errorf("issue memberships: %w", err)
	}
	return &Issuer{conn: conn, js: js, turn: make(chan struct{}, 1)}, nil
}

// Issue makes the memberships of the nodes in want those the bus holds of them. A node with none has what the
// bus still holds of it taken off.
func (i *Issuer) Issue(ctx context.Context, want map[subject.Node][]compose.Membership) ([]Failed, error) {
	select {
	case i.turn <- struct{}{}:
		defer func() { <-i.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := i.read(ctx); err != nil {
		return nil, err
	}
	var fresh []compose.Membership
	for n, all := range want {
		have := i.there[n]
		now := make(map[subject.Module]bool, len(all))
		for _, m := range all {
			now[m.Module] = true
			if sum, ok := have[m.Module]; !ok || sum != sha256.Sum256(m.Text) {
				fresh = append(fresh, m)
			}
		}
		for m := range have {
			if now[m] {
				continue
			}
			if err := i.take(ctx, subject.Membership(n, m)); err != nil {
				return nil, err
			}
			delete(have, m)
		}
	}
	return i.put(ctx, fresh), nil
}

// put publishes, and notes what the bus took.
func (i *Issuer) put(ctx context.Context, fresh []compose.Membership) (failed []Failed) {
	next := make(chan compose.Membership)
	var mu sync.Mutex // guards failed and there
	var wg sync.WaitGroup
	for range min(workers, len(fresh)) {
		wg.Go(func() { // ends when next is closed
			for m := range next {
				err := i.conn.Publish(ctx, subject.Membership(m.Node, m.Module), m.Text, "")
				mu.Lock()
				if err != nil {
					failed = append(failed, Failed{m.Node, m.Module, err})
				} else {
					i.note(m.Node, m.Module, sha256.Sum256(m.Text))
				}
				mu.Unlock()
			}
		})
	}
	for _, m := range fresh {
		next <- m
	}
	close(next)
	wg.Wait()
	return failed
}

func (i *Issuer) note(n subject.Node, m subject.Module, sum [sha256.Size]byte) {
	if i.there[n] == nil {
		i.there[n] = map[subject.Module][sha256.Size]byte{}
	}
	i.there[n][m] = sum
}

// take takes the membership on sub off the bus.
func (i *Issuer) take(ctx context.Context, sub string) error {
	ctx, cancel := context.WithTimeout(ctx, bus.PublishBound)
	defer cancel()
	s, err := i.js.Stream(ctx, string(subject.Assignments))
	if err == nil {
		err = s.Purge(ctx, jetstream.WithPurgeSubject(sub))
	}
	if err != nil {
		return fmt.Errorf("take %s off the bus: %w", sub, err)
	}
	return nil
}

// read learns what the bus holds.
func (i *Issuer) read(ctx context.Context) error {
	if i.there != nil {
		return nil
	}
	fail := func(err error) error {
		i.there = nil
		return fmt.Errorf("read the memberships on the bus: %w", err)
	}
	i.there = map[subject.Node]map[subject.Module][sha256.Size]byte{}
	s, err := i.js.Stream(ctx, string(subject.Assignments))
	if err != nil {
		return fail(err)
	}
	left := s.CachedInfo().State.Msgs
	if left == 0 {
		return nil
	}
	all, err := s.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return fail(err)
	}
	for left > 0 {
		batch, err := all.Fetch(int(min(left, 1000)), jetstream.FetchMaxWait(bus.PublishBound))
		if err != nil {
			return fail(err)
		}
		got := uint64(0)
		for m := range batch.Messages() {
			got++
			if tokens := strings.Split(m.Subject(), "."); len(tokens) == 4 {
				i.note(subject.Node(tokens[2]), subject.Module(tokens[3]), sha256.Sum256(m.Data()))
			}
		}
		if err := batch.Error(); err != nil || got == 0 {
			return fail(fmt.Errorf("%d are missing: %w", left, err))
		}
		left -= min(left, got)
	}
	return nil
}

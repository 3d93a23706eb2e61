package push_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"mesh/coordinator/push"
	"mesh/coordinator/records"
	"mesh/shared/bus"
	"mesh/shared/clock"
	"mesh/shared/controller"
	"mesh/shared/declaration"
	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/subject"
	"mesh/shared/waitfor"
	"mesh/testbus"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const soon = 20 * time.Second

// book keeps what was recorded as sent.
type book struct {
	mu   sync.Mutex
	sent []records.Send
	err  error
}

func (b *book) RecordSends(_ context.Context, all []records.Send) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sent = append(b.sent, all...)
	return b.err
}

func (b *book) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.sent)
}

// start runs an engine on conn and stops it with the test.
func start(t *testing.T, conn *bus.Conn, b *book) *push.Engine {
	t.Helper()
	e, err := push.New(push.Config{Conn: conn, Records: b, Clock: clock.Real(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := waitfor.Value(t, "the engine to stop", soon, done); err != nil {
			t.Error(err)
		}
	})
	return e
}

func item(name string, seq uint64) push.Item {
	return push.Item{Node: subject.Node(name), Seq: seq, Signed: declaration.Signed(fmt.Sprintf("declaration %d of %s", seq, name)), Builds: map[subject.Module]string{"notes": "build-1"}}
}

func account(seq uint64, o report.Outcome, why *refusal.Refusal) report.Apply {
	return report.Apply{Seq: seq, Outcome: o, Refused: why}
}

// states are how each node of a push stands.
func states(t *testing.T, e *push.Engine, id string) map[subject.Node]controller.PushState {
	t.Helper()
	p, err := e.Show(t.Context(), id, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	out := map[subject.Node]controller.PushState{}
	for _, n := range p.Nodes {
		out[n.Node] = n.State
	}
	return out
}

func waitState(t *testing.T, e *push.Engine, id string, n subject.Node, want controller.PushState) {
	t.Helper()
	waitfor.True(t, fmt.Sprintf("%s to be %s", n, want), soon, func() (bool, any) {
		s := states(t, e, id)
		return s[n] == want, s
	})
}

func TestAPushIsSentRecordedAndFollowed(t *testing.T) {
	b := testbus.Start(t, testbus.Node("n1"), testbus.Node("n2"))
	kept := &book{}
	e := start(t, b.Connect(t, "coordinator"), kept)
	p := e.Start("operator-ada", "because", []push.Item{item("n1", 3), item("n2", 5)})
	if p.Done || p.Counts[controller.PushWaiting] != 2 || len(p.Nodes) != 2 {
		t.Errorf("Start answers %+v, expected two that wait", p)
	}
	waitState(t, e, p.ID, "n1", controller.PushSent)
	waitState(t, e, p.ID, "n2", controller.PushSent)
	waitfor.True(t, "both recorded as sent", soon, func() (bool, any) { return kept.count() == 2, kept.count() })
	got, err := b.Connect(t, "node-n1").Last(t.Context(), subject.Declarations, subject.Declaration("n1"))
	if err != nil || string(got) != "declaration 3 of n1" {
		t.Errorf("the bus holds %q, %v", got, err)
	}
	e.Heard("n1", account(2, report.Applied, nil))
	if s := states(t, e, p.ID)["n1"]; s != controller.PushSent {
		t.Errorf("a report about an older declaration made it %s", s)
	}
	e.Heard("n1", account(3, report.Applying, nil))
	waitState(t, e, p.ID, "n1", controller.PushHeard)
	e.Heard("n1", account(3, report.Failed, &refusal.Refusal{What: "module notes"}))
	waitState(t, e, p.ID, "n1", controller.PushFailed)
	e.Heard("n1", account(3, report.Applied, nil))
	waitState(t, e, p.ID, "n1", controller.PushApplied)
	e.Heard("n2", account(5, report.Refused, &refusal.Refusal{What: "a declaration", Why: "unknown field", Do: "upgrade"}))
	last, err := e.Show(t.Context(), p.ID, p.Version, time.Second)
	if err != nil || !last.Done || last.Counts[controller.PushApplied] != 1 || last.Counts[controller.PushRefused] != 1 {
		t.Fatalf("the end is %+v, %v", last, err)
	}
	for _, n := range last.Nodes {
		if n.Node == "n2" && (n.Why == nil || n.Why.Why != "unknown field") {
			t.Errorf("n2 does not say why: %+v", n)
		}
	}
}

// TestANodeRemovedWhileItsDeclarationWaits: nothing of it is on the bus for whoever gets its name.
func TestANodeRemovedWhileItsDeclarationWaits(t *testing.T) {
	b := testbus.Start(t, testbus.Node("n1"), testbus.Node("n2"))
	conn := b.Connect(t, "coordinator")
	e, err := push.New(push.Config{Conn: conn, Records: &book{}, Clock: clock.Real(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	p := e.Start("a", "b", []push.Item{item("n1", 3), item("n2", 5)}) // nobody sends yet
	e.Gone("n1")
	if err := e.Purge(t.Context(), "n1"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	waitState(t, e, p.ID, "n2", controller.PushSent)
	cancel()
	if err := waitfor.Value(t, "the engine to stop", soon, done); err != nil {
		t.Error(err)
	}
	if got, err := b.Connect(t, "node-n1").Last(t.Context(), subject.Declarations, subject.Declaration("n1")); !errors.Is(err, bus.ErrNone) {
		t.Errorf("the bus holds %q, %v", got, err)
	}
	if s := states(t, e, p.ID)["n1"]; s != controller.PushRefused {
		t.Errorf("n1 is %s", s)
	}
}

// TestClearTakesAnEarlierMachinesDeclarationOnly whatever the seqs.
func TestClearTakesAnEarlierMachinesDeclarationOnly(t *testing.T) {
	b := testbus.Start(t, testbus.Node("n1"))
	n1 := b.Connect(t, "node-n1")
	e := start(t, b.Connect(t, "coordinator"), &book{})
	for _, tt := range []struct {
		name       string
		there, own uint64
		stays      bool
	}{
		{"an earlier machine's", 3, 0, false},
		{"an earlier machine's, and one of its own that is not sent yet", 3, 4, false},
		{"its own", 4, 4, true},
		{"nothing", 0, 0, false},
	} {
		if tt.there > 0 {
			p := e.Start("a", "b", []push.Item{item("n1", tt.there)})
			waitState(t, e, p.ID, "n1", controller.PushSent)
		}
		if err := e.Clear(t.Context(), "n1", func() (uint64, error) { return tt.own, nil }); err != nil {
			t.Fatal(err)
		}
		_, err := n1.Last(t.Context(), subject.Declarations, subject.Declaration("n1"))
		if stays := err == nil; stays != tt.stays || err != nil && !errors.Is(err, bus.ErrNone) {
			t.Errorf("%s: %v", tt.name, err)
		}
		if err := e.Purge(t.Context(), "n1"); err != nil {
			t.Fatal(err)
		}
	}
}

// hasty is the machine's clock, but for waiting.
type hasty struct{ clock.Clock }

func (h hasty) After(time.Duration) <-chan time.Time { return h.Clock.After(10 * time.Millisecond) }

// TestSendsAreRecordedOnceTheRecordsTakeThem, and that they do not is said once.
func TestSendsAreRecordedOnceTheRecordsTakeThem(t *testing.T) {
	b := testbus.Start(t, testbus.Node("n1"))
	kept := &book{err: errors.New("database or disk is full")}
	var out bytes.Buffer
	e, err := push.New(push.Config{Conn: b.Connect(t, "coordinator"), Records: kept, Clock: hasty{clock.Real()}, Log: slog.New(slog.NewTextHandler(&out, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	p := e.Start("a", "b", []push.Item{item("n1", 1)})
	waitState(t, e, p.ID, "n1", controller.PushSent)
	waitfor.True(t, "several tries", soon, func() (bool, any) { return kept.count() > 3, kept.count() })
	kept.mu.Lock()
	kept.sent, kept.err = nil, nil
	kept.mu.Unlock()
	waitfor.True(t, "the send to be recorded", soon, func() (bool, any) { return kept.count() == 1, kept.count() })
	cancel()
	if err := waitfor.Value(t, "the engine to stop", soon, done); err != nil {
		t.Error(err)
	}
	if n := strings.Count(out.String(), "not in the records"); n != 1 || kept.count() != 1 {
		t.Errorf("said %d times, recorded %d times", n, kept.count())
	}
}

func TestANodeThatMovedOnIsDone(t *testing.T) {
	b := testbus.Start(t)
	e := start(t, b.Connect(t, "coordinator"), &book{})
	p := e.Start("a", "b", []push.Item{item("n1", 3)})
	waitState(t, e, p.ID, "n1", controller.PushSent)
	e.Heard("n1", account(7, report.Applied, nil))
	waitState(t, e, p.ID, "n1", controller.PushApplied)
}

func TestARefusedItemBlocksNoOther(t *testing.T) {
	b := testbus.Start(t)
	kept := &book{}
	e := start(t, b.Connect(t, "coordinator"), kept)
	no := push.Item{Node: "n0", Refused: &refusal.Refusal{What: "the declaration of n0", Why: "too large"}}
	huge := item("n1", 1)
	huge.Signed = make([]byte, 32<<20) // more than the bus takes: refused by the client
	p := e.Start("a", "b", []push.Item{no, huge, item("n2", 1)})
	waitState(t, e, p.ID, "n2", controller.PushSent)
	waitState(t, e, p.ID, "n1", controller.PushRefused)
	waitState(t, e, p.ID, "n0", controller.PushRefused)
	waitfor.True(t, "n2 recorded", soon, func() (bool, any) { return kept.count() == 1, kept.count() })
	if e.Gone("n2"); !show(t, e, p.ID).Done {
		t.Error("a push whose last node was removed is not over")
	}
}

func show(t *testing.T, e *push.Engine, id string) controller.Push {
	t.Helper()
	p, err := e.Show(t.Context(), id, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestShowWaitsForNewsOnly(t *testing.T) {
	b := testbus.Start(t)
	e := start(t, b.Connect(t, "coordinator"), &book{})
	p := e.Start("a", "b", []push.Item{item("n1", 1), item("n2", 1)})
	waitState(t, e, p.ID, "n1", controller.PushSent)
	waitState(t, e, p.ID, "n2", controller.PushSent)
	now := show(t, e, p.ID)
	got := make(chan controller.Push, 1)
	go func() {
		p, err := e.Show(context.WithoutCancel(t.Context()), p.ID, now.Version, controller.MaxPushWait)
		if err != nil {
			t.Error(err)
		}
		got <- p
	}()
	e.Heard("n2", account(1, report.Applied, nil))
	news := waitfor.Value(t, "news of the push", soon, got)
	if len(news.Nodes) != 1 || news.Nodes[0].Node != "n2" || news.Version <= now.Version {
		t.Errorf("the news is %+v, expected n2 alone", news)
	}
	if _, err := e.Show(t.Context(), "nope", 0, 0); refusal.Of(err) == nil {
		t.Errorf("an unknown push: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := e.Show(ctx, p.ID, news.Version, time.Minute); !errors.Is(err, context.Canceled) {
		t.Errorf("a wait whose caller went: %v", err)
	}
}

func TestManyAreSentInOrderAndReadBack(t *testing.T) {
	b := testbus.Start(t)
	kept := &book{}
	e := start(t, b.Connect(t, "coordinator"), kept)
	const nodes = 3000
	for seq := uint64(1); seq <= 2; seq++ {
		items := make([]push.Item, nodes)
		for i := range items {
			items[i] = item(fmt.Sprintf("n%d", i), seq)
		}
		e.Start("a", "b", items)
	}
	waitfor.True(t, "all recorded as sent", soon, func() (bool, any) { return kept.count() == 2*nodes, kept.count() })
	seqs, err := e.OnBus(t.Context())
	if err != nil || len(seqs) != nodes {
		t.Fatalf("OnBus = %d nodes, %v", len(seqs), err)
	}
	for n, seq := range seqs {
		if seq != 2 {
			t.Fatalf("the bus holds declaration %d of %s: an older one overtook", seq, n)
		}
	}
}

func TestOnBusOfAnEmptyStream(t *testing.T) {
	b := testbus.Start(t)
	e := start(t, b.Connect(t, "coordinator"), &book{})
	seqs, err := e.OnBus(t.Context())
	if err != nil || len(seqs) != 0 {
		t.Errorf("OnBus = %v, %v", seqs, err)
	}
}

func TestOldPushesAreForgotten(t *testing.T) {
	b := testbus.Start(t)
	e := start(t, b.Connect(t, "coordinator"), &book{})
	var ids []string
	for range 80 {
		ids = append(ids, e.Start("a", "b", []push.Item{item("n1", 1)}).ID)
	}
	if !slices.IsSorted(ids) || len(slices.Compact(slices.Clone(ids))) != len(ids) {
		t.Errorf("ids do not grow: %v", ids)
	}
	if _, err := e.Show(t.Context(), ids[0], 0, 0); refusal.Of(err) == nil {
		t.Errorf("the first of many is remembered for ever: %v", err)
	}
	if _, err := e.Show(t.Context(), ids[len(ids)-1], 0, 0); err != nil {
		t.Error(err)
	}
}

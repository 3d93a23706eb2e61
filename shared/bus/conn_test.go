package bus_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"mesh/shared/bus"
	"mesh/shared/clock"
	"mesh/shared/credential"
	"mesh/shared/grant"
	"mesh/shared/refusal"
	"mesh/shared/subject"
	"mesh/shared/waitfor"
	"mesh/testbus"
)

// atOnce bounds what must not be waited out: far below any bound of the package.
const atOnce = 5 * time.Second

func bounded(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// long connects for ever, as a daemon does.
func long(t *testing.T, b *testbus.Bus, label string, edit func(*bus.Options)) *bus.Conn {
	t.Helper()
	o := b.Options(label)
	if edit != nil {
		edit(&o)
	}
	c, err := bus.Connect(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	isUp(t, c, true)
	return c
}

func isUp(t *testing.T, c *bus.Conn, want bool) {
	t.Helper()
	waitfor.True(t, map[bool]string{true: "the bus to come", false: "the bus to go"}[want], 30*time.Second, func() (bool, any) {
		up, _, err := c.State()
		return up == want, err
	})
}

func TestARefusedAskIsNoticedAtOnceByAllWhoWait(t *testing.T) {
	b := testbus.Start(t, testbus.Node("n1"), testbus.Node("n2"))
	n1 := b.Connect(t, "node-n1")
	ctx := bounded(t, atOnce)
	errs := make(chan error)
	for range 8 {
		go func() { errs <- n1.Publish(ctx, subject.Report("n2"), []byte("{}"), "") }()
		go func() {
			_, err := n1.Last(ctx, subject.Declarations, subject.Declaration("n2"))
			errs <- err
		}()
	}
	for range 16 {
		if err := waitfor.Value(t, "an answer", atOnce, errs); !errors.Is(err, bus.ErrRefused) || !strings.Contains(err.Error(), "n2") {
			t.Errorf("got %v, want a refusal that names the subject", err)
		}
	}
	// One refusal does not spoil the connection.
	if err := n1.Publish(ctx, subject.Report("n1"), []byte("{}"), ""); err != nil {
		t.Errorf("its own report after it: %v", err)
	}
}

func TestAPublishIsBounded(t *testing.T) {
	b := testbus.Start(t, testbus.Node("n1"))
	core, n1 := b.Connect(t, "coordinator"), b.Connect(t, "node-n1")
	// A heartbeat is heard, and nobody acknowledges it.
	if _, err := core.NATS().Subscribe(subject.Heartbeat("*"), func(*nats.Msg) {}); err != nil {
		t.Fatal(err)
	}
	if err := core.NATS().FlushTimeout(atOnce); err != nil {
		t.Fatal(err)
	}
	n1.SetPublishBound(50 * time.Millisecond)
	err := n1.Publish(bounded(t, time.Minute), subject.Heartbeat("n1"), []byte("{}"), "")
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no acknowledgement within 50ms") {
		t.Errorf("a publish that nobody acknowledges: %v", err)
	}
	err = n1.Publish(bounded(t, 50*time.Millisecond), subject.Heartbeat("n1"), []byte("{}"), "")
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with the caller's bound: %v", err)
	}
}

func TestAMissingStreamIsNoticedAtOnce(t *testing.T) {
	b := testbus.Bare(t, testbus.Node("n1"))
	core, n1 := b.Connect(t, "coordinator"), b.Connect(t, "node-n1")
	ctx := bounded(t, atOnce)
	for name, err := range map[string]error{
		"a node's publish":       n1.Publish(ctx, subject.Report("n1"), []byte("{}"), ""),
		"the coordinator's":      core.Publish(ctx, subject.Declaration("n1"), []byte("{}"), ""),
		"a node's read":          last(ctx, n1, "n1"),
		"the coordinator's read": last(ctx, core, "n1"),
	} {
		if !errors.Is(err, nats.ErrNoResponders) {
			t.Errorf("%s: %v, want no responders", name, err)
		}
	}
	if ctx.Err() != nil {
		t.Error("it was waited out")
	}
}

func last(ctx context.Context, c *bus.Conn, n subject.Node) error {
	_, err := c.Last(ctx, subject.Declarations, subject.Declaration(n))
	return err
}

func TestLastTellsNothingFromNoRight(t *testing.T) {
	b := testbus.Start(t, testbus.Node("n1"))
	n1 := b.Connect(t, "node-n1")
	ctx := bounded(t, atOnce)
	if err := last(ctx, n1, "n1"); !errors.Is(err, bus.ErrNone) {
		t.Errorf("nothing there: %v", err)
	}
	if err := last(ctx, n1, "n2"); !errors.Is(err, bus.ErrRefused) || errors.Is(err, bus.ErrNone) {
		t.Errorf("not its own: %v", err)
	}
}

func TestAlreadyThereIsOneErrorOnly(t *testing.T) {
	b := testbus.Start(t, testbus.Operator("ada"))
	ada := b.Connect(t, "operator-ada")
	ctx := bounded(t, atOnce)
	chunk := subject.Chunk(strings.Repeat("ab", 32), 0)
	if err := ada.Publish(ctx, chunk, []byte("1"), ""); err != nil || bus.AlreadyThere(err) {
		t.Errorf("the first: %v", err)
	}
	if err := ada.Publish(ctx, chunk, []byte("2"), ""); !bus.AlreadyThere(err) {
		t.Errorf("the second: %v", err)
	}
	if err := ada.Publish(ctx, "mesh.artifact.x", nil, ""); err == nil || bus.AlreadyThere(err) {
		t.Errorf("another refusal: %v", err)
	}
}

// The connection's answers come below its own inbox; a credential that names somebody else hears none.
func TestAWrongPrincipalIsNoticedAtOnceAndMended(t *testing.T) {
	b := testbus.Start(t, testbus.Node("n1"))
	var log logged
	clk := clock.NewFake(clock.Real().Now())
	n1 := long(t, b, "node-n1", func(o *bus.Options) { o.Principal, o.Log, o.Clock = "node-other", log.logger(), clk })
	ctx := bounded(t, atOnce)
	for i := range 2 {
		err := last(ctx, n1, "n1")
		if r := refusal.Of(err); !errors.Is(err, bus.ErrRefused) || r == nil || !strings.Contains(r.Why, "_INBOX.node-other") {
			t.Fatalf("ask %d: %v, want a refusal that names the inbox", i, err)
		}
	}
	// The server reads its options in a direct get without a lock: those two are over when one behind them is.
	if err := last(ctx, b.Connect(t, "coordinator"), "n1"); !errors.Is(err, bus.ErrNone) {
		t.Fatal(err)
	}
	// The list changes so that the key is that principal's: the connection finds out by itself.
	b.Edit(t, func(u *grant.User) {
		if u.Principal == "node-n1" {
			u.Subscribe = append(u.Subscribe, "_INBOX.node-other.>")
		}
	})
	if err := last(ctx, n1, "n1"); !errors.Is(err, bus.ErrRefused) {
		t.Errorf("at once: %v, want it to connect again after a while only", err)
	}
	clk.Advance(5 * time.Second)
	waitfor.True(t, "an answer", 30*time.Second, func() (bool, any) {
		err := last(bounded(t, atOnce), n1, "n1")
		return errors.Is(err, bus.ErrNone), err
	})
}

func TestWhatNobodyWaitsForIsLoggedOnce(t *testing.T) {
	b := testbus.Start(t, testbus.Node("n1"))
	var log logged
	n1 := long(t, b, "node-n1", func(o *bus.Options) { o.Log = log.logger() })
	for range 20 {
		if err := n1.Say(subject.Heartbeat("n2"), []byte("{}")); err != nil {
			t.Fatal(err)
		}
		if _, err := n1.NATS().SubscribeSync("mesh.node.n2.declaration"); err != nil {
			t.Fatal(err)
		}
	}
	if err := n1.NATS().FlushTimeout(atOnce); err != nil {
		t.Fatal(err)
	}
	waitfor.True(t, "both in the log", atOnce, func() (bool, any) {
		return log.count("mesh.control.n2.heartbeat") > 0 && log.count("mesh.node.n2.declaration") > 0, log.text()
	})
	if n := log.count("level=WARN"); n != 2 {
		t.Errorf("%d warnings for two kinds of refusals:\n%s", n, log.text())
	}
}

func TestALostConnectionEndsAsksAtOnce(t *testing.T) {
	b := testbus.Start(t, testbus.Node("n1"))
	p := newProxy(t, b.Broker.Address())
	core := b.Connect(t, "coordinator")
	heard := make(chan struct{}, 8)
	if _, err := core.NATS().Subscribe(subject.Heartbeat("*"), func(*nats.Msg) { heard <- struct{}{} }); err != nil {
		t.Fatal(err)
	}
	if err := core.NATS().FlushTimeout(atOnce); err != nil {
		t.Fatal(err)
	}
	n1 := long(t, b, "node-n1", func(o *bus.Options) { o.Bus.Addresses = []string{p.address()} })
	got := make(chan error, 1)
	go func() {
		_, err := n1.Ask(bounded(t, time.Minute), nats.NewMsg(subject.Heartbeat("n1"))) // nobody answers
		got <- err
	}()
	waitfor.Value(t, "the ask", atOnce, heard)
	p.setCut(true)
	if err := waitfor.Value(t, "the end of the ask", atOnce, got); !errors.Is(err, bus.ErrAway) {
		t.Errorf("an ask whose connection went: %v", err)
	}
	isUp(t, n1, false)
	if err := n1.Say(subject.Heartbeat("n1"), nil); !errors.Is(err, bus.ErrAway) {
		t.Errorf("say without a connection: %v", err)
	}
	if err := n1.Publish(bounded(t, atOnce), subject.Report("n1"), nil, ""); !errors.Is(err, bus.ErrAway) {
		t.Errorf("publish without a connection: %v", err)
	}
	p.setCut(false)
	isUp(t, n1, true)
	if err := n1.Publish(bounded(t, atOnce), subject.Report("n1"), []byte("{}"), ""); err != nil {
		t.Errorf("after the return: %v", err)
	}
}

func TestStatesComeInOrder(t *testing.T) {
	b := testbus.Start(t, testbus.Node("n1"))
	p := newProxy(t, b.Broker.Address())
	n1 := long(t, b, "node-n1", func(o *bus.Options) { o.Bus.Addresses = []string{p.address()} })
	states, ups := make(chan bool, 16), make(chan struct{}, 16)
	remove := n1.OnState(func(up bool) { states <- up })
	defer n1.OnUp(func() { ups <- struct{}{} })()
	for _, cut := range []bool{true, false, true, false} {
		p.setCut(cut)
		isUp(t, n1, !cut)
	}
	for i, want := range []bool{true, false, true, false, true} {
		if got := waitfor.Value(t, "a state", atOnce, states); got != want {
			t.Errorf("state %d is %v", i, got)
		}
	}
	for range 3 {
		waitfor.Value(t, "a connect", atOnce, ups)
	}
	remove()
	p.setCut(true)
	isUp(t, n1, false)
	if len(states) > 0 || len(ups) > 0 {
		t.Errorf("%d states after remove, %d connects too many", len(states), len(ups))
	}
}

func TestOnceGivesUpAtOnce(t *testing.T) {
	b := testbus.Bare(t, testbus.Node("n1"))
	stranger, err := credential.NewUser(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	o := b.Options("node-n1")
	o.Once, o.Seed = true, stranger
	if _, err := bus.Connect(t.Context(), o); !errors.Is(err, bus.ErrRefused) || refusal.Of(err) == nil {
		t.Errorf("a key the bus does not know: %v", err)
	}
	o = b.Options("node-n1")
	o.Once, o.Bus.Addresses = true, []string{"127.0.0.1:1"}
	if _, err := bus.Connect(t.Context(), o); !errors.Is(err, bus.ErrAway) || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("nobody there: %v", err)
	}
	o.Seed = "rubbish"
	if _, err := bus.Connect(t.Context(), o); err == nil || strings.Contains(err.Error(), "rubbish") {
		t.Errorf("a bad seed: %v", err)
	}
	if err := bus.Probe(bounded(t, atOnce), b.Options("node-n1")); err != nil {
		t.Errorf("probe: %v", err)
	}
}

// A machine that was removed, or comes to another mesh, can say why it is alone.
func TestAStrangerKnowsWhyTheBusIsAway(t *testing.T) {
	b := testbus.Bare(t, testbus.Node("n1"))
	stranger, err := credential.NewUser(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	o := b.Options("node-n1")
	o.Seed = stranger
	c, err := bus.Connect(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	waitfor.True(t, "the reason", 30*time.Second, func() (bool, any) {
		_, _, err := c.State()
		return errors.Is(err, bus.ErrRefused), err
	})
}

// BUS-11: the pauses grow, stay within their bounds, and are spread.
func TestPause(t *testing.T) {
	for attempt, most := range map[int]time.Duration{-1: 250 * time.Millisecond, 0: 250 * time.Millisecond, 1: 250 * time.Millisecond, 2: 500 * time.Millisecond,
		4: 2 * time.Second, 7: 16 * time.Second, 8: 30 * time.Second, 9: 30 * time.Second, 1 << 30: 30 * time.Second} {
		seen := map[time.Duration]bool{}
		for range 200 {
			d := bus.Pause(attempt)
			if d < most/2 || d > most {
				t.Fatalf("Pause(%d) = %v, want %v to %v", attempt, d, most/2, most)
			}
			seen[d.Truncate(most/16)] = true
		}
		if len(seen) < 4 {
			t.Errorf("Pause(%d) is not spread: %v", attempt, seen)
		}
	}
}

func TestNothingOutlivesClose(t *testing.T) {
	b := testbus.Start(t, testbus.Node("n1"))
	p := newProxy(t, b.Broker.Address())
	before := goleak.IgnoreCurrent()
	for _, cut := range []bool{false, true} {
		o := b.Options("node-n1")
		o.Bus.Addresses = []string{p.address()}
		c, err := bus.Connect(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		isUp(t, c, true)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for _, sub := range []string{subject.Declaration("n1"), subject.Declaration("n2")} { // one holds, one is refused
			wg.Add(1)
			go func() {
				defer wg.Done()
				if err := c.Follow(ctx, sub, "", func(*nats.Msg) {}, nil); err != nil {
					t.Error(err)
				}
			}()
		}
		if err := c.Publish(ctx, subject.Report("n1"), []byte("{}"), ""); err != nil {
			t.Error(err)
		}
		if cut {
			p.setCut(true)
			isUp(t, c, false)
		}
		cancel()
		wg.Wait()
		c.Close()
	}
	goleak.VerifyNone(t, before)
}

// logged is a log that a test can read.
type logged struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *logged) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func (l *logged) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *logged) count(what string) int { return strings.Count(l.text(), what) }

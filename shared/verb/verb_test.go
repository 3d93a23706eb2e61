package verb_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"mesh/shared/broker"
	"mesh/shared/bus"
	"mesh/shared/refusal"
	"mesh/shared/subject"
	"mesh/shared/verb"
	"mesh/shared/waitfor"
	"mesh/testbus"
)

const (
	status = subject.Verb("status")
	atOnce = 5 * time.Second
)

var at = subject.Tool(subject.Controller, status)

func bounded(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// holder is a seat's holder under test.
type holder struct {
	stop  context.CancelFunc
	ended chan error
	log   logged
}

// hold serves h at the seat until the test ends, within bound.
func hold(t testing.TB, b *testbus.Bus, workers int, bound time.Duration, h verb.Handler) *holder {
	t.Helper()
	core := b.Connect(t, "coordinator")
	ctx, cancel := context.WithCancel(t.Context())
	out := &holder{stop: cancel, ended: make(chan error, 1)}
	go func() {
		out.ended <- verb.ServeWithin(ctx, core, at, string(subject.Controller), workers, slog.New(slog.NewTextHandler(&out.log, nil)), bound, h)
	}()
	t.Cleanup(cancel)
	waitfor.True(t, "the seat to be held", atOnce, func() (bool, any) {
		n := core.NATS().NumSubscriptions()
		return n == 1 && core.NATS().FlushTimeout(atOnce) == nil, n
	})
	return out
}

type greet struct {
	Name  string `json:"name"`
	Times int    `json:"times,omitempty"`
}

func call(t testing.TB, c *bus.Conn, args, answer any) error {
	t.Helper()
	return verb.Call(bounded(t, 20*time.Second), c, subject.Controller, status, args, answer)
}

func TestAnswersRefusalsAndFailuresReachTheCaller(t *testing.T) {
	b := testbus.Start(t, testbus.Operator("ada", status))
	h := hold(t, b, 4, verb.Bound, verb.Typed(func(ctx context.Context, _ verb.Caller, g greet) (string, error) {
		switch g.Name {
		case "refused":
			return "", fmt.Errorf("greet: %w", refusal.New("a greeting", "nobody is there", "come later"))
		case "broken":
			return "", errors.New("the disk is gone")
		case "panic":
			panic("boom")
		case "goexit":
			panic(nil)
		}
		if _, ok := ctx.Deadline(); !ok {
			t.Error("a verb has no bound")
		}
		return "hello " + g.Name, nil
	}))
	ada := b.Connect(t, "operator-ada")
	var got string
	if err := call(t, ada, greet{Name: "bob"}, &got); err != nil || got != "hello bob" {
		t.Errorf("got %q, %v", got, err)
	}
	if err := call(t, ada, greet{Name: "bob"}, nil); err != nil {
		t.Errorf("an answer nobody wants: %v", err)
	}
	err := call(t, ada, greet{Name: "refused"}, nil)
	if r := refusal.Of(err); r == nil || *r != (refusal.Refusal{What: "a greeting", Why: "nobody is there", Do: "come later"}) {
		t.Errorf("a refusal: %v", err)
	}
	if err := call(t, ada, greet{Name: "broken"}, nil); !errors.Is(err, verb.ErrFailed) || !strings.Contains(err.Error(), "the disk is gone") {
		t.Errorf("a failure: %v", err)
	}
	// A fault in one verb costs neither the caller its answer nor the process its life.
	for _, name := range []string{"panic", "goexit"} {
		if err := call(t, ada, greet{Name: name}, nil); !errors.Is(err, verb.ErrFailed) || strings.Contains(err.Error(), "boom") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := h.log.count("level=ERROR"); n != 2 || h.log.count("boom") == 0 || h.log.count("verb_test.go") == 0 {
		t.Errorf("%d errors in the log:\n%s", n, h.log.text())
	}
	if err := call(t, ada, greet{Name: "bob"}, &got); err != nil {
		t.Errorf("after the faults: %v", err)
	}
}

// SEA-10: arguments are checked before anything runs, and the refusal names the field.
func TestArgumentsAreStrict(t *testing.T) {
	b := testbus.Start(t, testbus.Operator("ada", status))
	var ran atomic.Int32
	hold(t, b, 4, verb.Bound, verb.Typed(func(_ context.Context, _ verb.Caller, g greet) (greet, error) {
		ran.Add(1)
		return g, nil
	}))
	ada := b.Connect(t, "operator-ada")
	for name, tt := range map[string]struct {
		args json.RawMessage
		says string
	}{
		"an unknown field": {json.RawMessage(`{"nmae":"x"}`), "nmae"},
		"the wrong case":   {json.RawMessage(`{"Name":"x"}`), `"name"`},
		"the wrong type":   {json.RawMessage(`{"times":"x"}`), "times"},
		"twice":            {json.RawMessage(`{"name":"x","name":"y"}`), "name: given twice"},
		"an array":         {json.RawMessage(`[1]`), "array"},
	} {
		err := call(t, ada, tt.args, nil)
		if r := refusal.Of(err); r == nil || r.What != "the arguments" || !strings.Contains(r.Why, tt.says) || r.Do == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	m := nats.NewMsg(at)
	m.Data = []byte(`{"name":`) // no program of ours says it
	if answer, err := ada.Ask(bounded(t, atOnce), m); err != nil || !strings.Contains(string(answer.Data), "not JSON") {
		t.Errorf("cut arguments: %v, %v", answer, err)
	}
	if n := ran.Load(); n != 0 {
		t.Errorf("the verb ran %d times on bad arguments", n)
	}
	m = nats.NewMsg(at)
	if answer, err := ada.Ask(bounded(t, atOnce), m); err != nil || !strings.Contains(string(answer.Data), `"answer"`) || ran.Load() != 1 {
		t.Errorf("no arguments at all are the empty ones: %v, %v", answer, err)
	}
}

func TestASlowVerbIsBounded(t *testing.T) {
	b := testbus.Start(t, testbus.Operator("ada", status))
	goOn := make(chan struct{})
	h := hold(t, b, 1, 200*time.Millisecond, verb.Typed(func(ctx context.Context, _ verb.Caller, g greet) (string, error) {
		if g.Name == "deaf" {
			<-goOn // a handler that does not look at its ctx
			return "late", nil
		}
		<-ctx.Done()
		return "", ctx.Err()
	}))
	ada := b.Connect(t, "operator-ada")
	for _, name := range []string{"obedient", "deaf"} {
		if err := call(t, ada, greet{Name: name}, nil); !errors.Is(err, verb.ErrFailed) {
			t.Errorf("the %s one: %v", name, err)
		}
	}
	// The deaf one has the only place until it ends; who waits longer than the bound hears so.
	if err := call(t, ada, greet{}, nil); refusal.Of(err) == nil || !strings.Contains(err.Error(), "too many") {
		t.Errorf("no place: %v", err)
	}
	h.stop()
	select {
	case <-h.ended:
		t.Error("Serve left a handler behind")
	default:
	}
	close(goOn)
	if err := waitfor.Value(t, "the end", atOnce, h.ended); err != nil {
		t.Error(err)
	}
}

func TestWorkersAreBoundedAndAFullHouseSaysSo(t *testing.T) {
	b := testbus.Start(t, testbus.Operator("ada", status))
	const workers = 2
	var now, most atomic.Int32
	goOn := make(chan struct{})
	hold(t, b, workers, time.Minute, func(context.Context, verb.Caller, []byte) (any, error) {
		n := now.Add(1)
		defer now.Add(-1)
		for {
			m := most.Load()
			if n <= m || most.CompareAndSwap(m, n) {
				break
			}
		}
		<-goOn
		return "done", nil
	})
	ada := b.Connect(t, "operator-ada")
	const asks, room = 100, workers * 17
	errs := make(chan error, asks)
	for range asks {
		go func() { errs <- call(t, ada, greet{}, nil) }()
	}
	for range asks - room { // they do not wait for those who have a place
		if err := waitfor.Value(t, "a refusal", atOnce, errs); refusal.Of(err) == nil || !strings.Contains(err.Error(), "too many") {
			t.Errorf("a full house: %v", err)
		}
	}
	waitfor.True(t, "all workers to be at work", atOnce, func() (bool, any) { return now.Load() == workers, now.Load() })
	close(goOn)
	for range room {
		if err := waitfor.Value(t, "an answer", atOnce, errs); err != nil {
			t.Error(err)
		}
	}
	if m := most.Load(); m != workers {
		t.Errorf("%d ran side by side, want %d", m, workers)
	}
}

// SEA-11: who stops answers what has come, and is then nobody at once.
func TestAStoppedHolderLeavesNobodyWaiting(t *testing.T) {
	b := testbus.Start(t, testbus.Operator("ada", status))
	begun, goOn := make(chan struct{}, 64), make(chan struct{})
	h := hold(t, b, 1, time.Minute, func(context.Context, verb.Caller, []byte) (any, error) {
		begun <- struct{}{}
		<-goOn
		return "done", nil
	})
	ada := b.Connect(t, "operator-ada")
	const asks = 8
	errs := make(chan error, asks)
	for range asks {
		go func() { errs <- call(t, ada, greet{}, nil) }()
	}
	waitfor.Value(t, "one under way", atOnce, begun)
	h.stop()
	for range asks - 1 {
		err := waitfor.Value(t, "a refusal", atOnce, errs)
		if !errors.Is(err, nats.ErrNoResponders) && (refusal.Of(err) == nil || !strings.Contains(err.Error(), "stopping")) {
			t.Errorf("one that waited: %v", err)
		}
	}
	err := call(t, ada, greet{}, nil)
	if r := refusal.Of(err); !errors.Is(err, nats.ErrNoResponders) || r == nil || r.Why != "nobody holds mesh-controller now" {
		t.Errorf("a seat that is being left: %v", err)
	}
	close(goOn)
	if err := waitfor.Value(t, "the one under way", atOnce, errs); err != nil {
		t.Errorf("the one under way: %v", err)
	}
	if err := waitfor.Value(t, "the end", atOnce, h.ended); err != nil {
		t.Error(err)
	}
}

func TestACredentialThatMayNotAskIsToldAtOnce(t *testing.T) {
	b := testbus.Start(t, testbus.Operator("ada", status))
	ada := b.Connect(t, "operator-ada")
	err := verb.Call(bounded(t, atOnce), ada, subject.Controller, "push", struct{}{}, nil)
	if r := refusal.Of(err); !errors.Is(err, bus.ErrRefused) || r == nil || r.Do == "" {
		t.Errorf("got %v", err)
	}
}

func TestAnAnswerTooLargeForTheBusIsSaid(t *testing.T) {
	b := testbus.Start(t, testbus.Operator("ada", status))
	hold(t, b, 1, verb.Bound, func(context.Context, verb.Caller, []byte) (any, error) {
		return strings.Repeat("x", broker.MaxPayload), nil
	})
	if err := call(t, b.Connect(t, "operator-ada"), greet{}, nil); !errors.Is(err, verb.ErrFailed) || !strings.Contains(err.Error(), "bytes") {
		t.Errorf("got %v", err)
	}
}

// MEM-6: reloads of the user list while calls are under way lose no answer, neither of those that work
// nor of those that begin meanwhile.
func TestNoAnswerIsLostToAReload(t *testing.T) {
	b := testbus.Start(t, testbus.Operator("ada", status), testbus.Operator("eve", status))
	begun, goOn := make(chan struct{}, 64), make(chan struct{})
	hold(t, b, 16, time.Minute, verb.Typed(func(_ context.Context, _ verb.Caller, g greet) (string, error) {
		if g.Name == "slow" {
			begun <- struct{}{}
			<-goOn
		}
		return g.Name, nil
	}))
	ada, eve := b.Connect(t, "operator-ada"), b.Connect(t, "operator-eve")
	slow := make(chan error, 4)
	for range cap(slow) {
		go func() { slow <- call(t, ada, greet{Name: "slow"}, nil) }()
	}
	for range cap(slow) {
		waitfor.Value(t, "the slow ones", atOnce, begun)
	}
	stop := make(chan struct{})
	var others sync.WaitGroup
	var calls atomic.Int32
	for range 4 {
		others.Add(1)
		go func() {
			defer others.Done()
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := call(t, eve, greet{Name: "quick"}, nil); err != nil {
					t.Errorf("a call beside a reload: %v", err)
					return
				}
				calls.Add(1)
			}
		}()
	}
	const reloads = 100
	for i := range reloads {
		b.Replace(t, fmt.Sprintf("node-n%d", i-1), testbus.Node(fmt.Sprintf("n%d", i)))
	}
	waitfor.True(t, "calls beside the reloads", atOnce, func() (bool, any) { n := calls.Load(); return n > reloads, n })
	close(stop)
	others.Wait()
	close(goOn)
	for range cap(slow) {
		if err := waitfor.Value(t, "a slow answer", atOnce, slow); err != nil {
			t.Errorf("a call under way through the reloads: %v", err)
		}
	}
}

// BUS-14: two holders answer each ask once.
func TestTwoHoldersAnswerOnce(t *testing.T) {
	b := testbus.Start(t, testbus.Operator("ada", status))
	var ran atomic.Int32
	for range 2 {
		hold(t, b, 4, verb.Bound, func(context.Context, verb.Caller, []byte) (any, error) { return ran.Add(1), nil })
	}
	ada := b.Connect(t, "operator-ada")
	for range 50 {
		if err := call(t, ada, greet{}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if n := ran.Load(); n != 50 {
		t.Errorf("50 asks ran %d times", n)
	}
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

func (l *logged) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *logged) count(what string) int { return strings.Count(l.text(), what) }

func BenchmarkCall(b *testing.B) {
	bus := testbus.Start(b, testbus.Operator("ada", status))
	hold(b, bus, 16, verb.Bound, verb.Typed(func(_ context.Context, _ verb.Caller, g greet) (string, error) { return g.Name, nil }))
	ada := bus.Connect(b, "operator-ada")
	var got string
	for b.Loop() {
		if err := verb.Call(b.Context(), ada, subject.Controller, status, greet{Name: "x"}, &got); err != nil {
			b.Fatal(err)
		}
	}
}

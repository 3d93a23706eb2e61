package calls_test

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"mesh/coordinator/calls"
	"mesh/coordinator/records"
	"mesh/shared/clock"
	"mesh/shared/refusal"
	"mesh/shared/verb"
	"mesh/shared/waitfor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type bed struct {
	*testing.T
	path  string
	store *records.Store
	keep  *calls.Keeper
	stop  func()
}

func newBed(t *testing.T) *bed {
	b := &bed{T: t, path: filepath.Join(t.TempDir(), "records.db")}
	b.start()
	t.Cleanup(func() { b.stop() })
	return b
}

func (b *bed) start() {
	b.Helper()
	var err error
	if b.store, err = records.Open(b.Context(), b.path, records.Options{Clock: clock.Real(), Rand: rand.Reader, Own: "own"}); err != nil {
		b.Fatal(err)
	}
	if b.keep, err = calls.New(b.Context(), calls.Config{Records: b.store, Clock: clock.Real(), Rand: rand.Reader, Log: slog.New(slog.DiscardHandler), Within: 50 * time.Millisecond}); err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	keep, store := b.keep, b.store
	go func() { done <- keep.Run(ctx) }()
	stopped := false
	b.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := waitfor.Value(b.T, "the end", 10*time.Second, done); err != nil {
			b.Error(err)
		}
		if err := store.Close(); err != nil {
			b.Error(err)
		}
	}
}

func (b *bed) find(id string) records.Call {
	b.Helper()
	c, err := b.keep.Find(b.Context(), id)
	if err != nil {
		b.Fatal(err)
	}
	return c
}

// CAL-1: a call that takes long is answered as running, with its id; it goes on, and its answer is read by the id,
// also after a restart.
func TestALongCallGoesOn(t *testing.T) {
	b := newBed(t)
	let := make(chan struct{})
	_, err := b.keep.Do(t.Context(), calls.Ask{Caller: "operator-ada", Verb: "push", Args: []byte(`{"all":true}`), Acts: true}, func(ctx context.Context) (any, error) {
		<-let
		return map[string]int{"n": 1}, ctx.Err()
	})
	var on verb.Running
	if !errors.As(err, &on) || on.Call == "" {
		t.Fatalf("got %v, want a call that runs", err)
	}
	if c := b.find(on.Call); c.State != records.CallRunning || c.Caller != "operator-ada" || c.Args != `{"all":true}` {
		t.Errorf("%+v", c)
	}
	waitfor.True(t, "an act to be in the records before it ends", 5*time.Second, func() (bool, any) {
		kept, err := b.store.Call(t.Context(), on.Call)
		return err == nil && kept.State == records.CallRunning, err
	})
	close(let)
	waitfor.True(t, "the answer", 5*time.Second, func() (bool, any) { c := b.find(on.Call); return c.State == records.CallAnswered, c })
	b.stop()
	b.start()
	if c := b.find(on.Call); c.State != records.CallAnswered || c.Answer != `{"n":1}` || c.Ended.IsZero() {
		t.Errorf("after a restart: %+v", c)
	}
}

// What a coordinator had under way when it was killed is abandoned; one that is stopped ends its calls.
func TestCallsOfAStoppedCoordinator(t *testing.T) {
	b := newBed(t)
	if err := b.store.KeepCalls(t.Context(), []records.Call{{ID: "call-killed", Caller: "operator-ada", Verb: "push", Began: clock.Real().Now(), State: records.CallRunning}}); err != nil {
		t.Fatal(err)
	}
	_, err := b.keep.Do(t.Context(), calls.Ask{Verb: "push", Acts: true}, func(ctx context.Context) (any, error) { <-ctx.Done(); return nil, ctx.Err() })
	var on verb.Running
	if !errors.As(err, &on) {
		t.Fatal(err)
	}
	b.stop()
	b.start()
	if c := b.find("call-killed"); c.State != records.CallAbandoned || c.Ended.IsZero() {
		t.Errorf("%+v", c)
	}
	if c := b.find(on.Call); c.State != records.CallFailed {
		t.Errorf("%+v", c)
	}
	if _, err := b.keep.Find(t.Context(), "call-none"); !errors.Is(err, records.ErrUnknown) {
		t.Errorf("an unknown call: %v", err)
	}
}

func TestWhatIsKept(t *testing.T) {
	b := newBed(t)
	ask := func(a calls.Ask, answer any, err error) {
		t.Helper()
		_, got := b.keep.Do(t.Context(), a, func(context.Context) (any, error) {
			if a.Verb == "panic" {
				panic("a bug")
			}
			return answer, err
		})
		if (got == nil) != (err == nil && a.Verb != "panic") {
			t.Errorf("%s: %v", a.Verb, got)
		}
	}
	ask(calls.Ask{Verb: "refused"}, nil, refusal.New("x", "y", "z"))
	ask(calls.Ask{Verb: "long"}, strings.Repeat("x", 100_000), nil)
	ask(calls.Ask{Verb: "secret", Secret: true}, "mesh1-line", nil)
	ask(calls.Ask{Verb: "panic"}, nil, nil)
	ask(calls.Ask{Verb: "args", Args: []byte(`"` + strings.Repeat("a", 10_000) + `"`)}, 1, nil)
	b.keep.Refused(calls.Ask{Verb: "stranger", Caller: "key UX"}, refusal.New("x", "y", "z"))
	if err := b.keep.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	for verb, check := range map[string]func(records.Call) bool{
		"refused": func(c records.Call) bool { return c.State == records.CallRefused && strings.Contains(c.Answer, `"y"`) },
		"long": func(c records.Call) bool {
			return c.State == records.CallAnswered && c.Answer == "" && c.Bytes == 100_002
		},
		"secret":   func(c records.Call) bool { return c.State == records.CallAnswered && c.Answer == "" },
		"panic":    func(c records.Call) bool { return c.State == records.CallFailed },
		"args":     func(c records.Call) bool { return len(c.Args) < 100 },
		"stranger": func(c records.Call) bool { return c.State == records.CallRefused && c.Caller == "key UX" },
	} {
		all, err := b.store.Calls(t.Context(), verb, "", 10)
		if err != nil || len(all) != 1 {
			t.Errorf("%s: %v, %v", verb, all, err)
			continue
		}
		if c := b.find(all[0].ID); !check(c) {
			t.Errorf("%s: %+v", verb, c)
		}
	}
	// The last thousand are kept.
	many := make([]records.Call, 1200)
	for i := range many {
		many[i] = records.Call{ID: "call-" + strings.Repeat("x", i+1), Verb: "many", Began: clock.Real().Now().Add(time.Duration(i) * time.Millisecond), Ended: clock.Real().Now(), State: records.CallAnswered}
	}
	many = append(many, records.Call{ID: "call-old", Verb: "old", Began: clock.Real().Now().Add(-15 * 24 * time.Hour), State: records.CallAnswered})
	if err := b.store.KeepCalls(t.Context(), many); err != nil {
		t.Fatal(err)
	}
	if all, err := b.store.Calls(t.Context(), "", "", 5000); err != nil || len(all) != 1000 || all[0].ID != many[1199].ID {
		t.Errorf("%d are kept, %v", len(all), err)
	}
}

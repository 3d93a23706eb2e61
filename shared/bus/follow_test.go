package bus_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"mesh/shared/bus"
	"mesh/shared/grant"
	"mesh/shared/subject"
	"mesh/shared/waitfor"
	"mesh/testbus"
)

// mayHear changes whether node n1 may hear sub, and nothing else.
func mayHear(t *testing.T, b *testbus.Bus, sub string, may bool) {
	t.Helper()
	b.Edit(t, func(u *grant.User) {
		if u.Principal != "node-n1" {
			return
		}
		u.Subscribe = slices.DeleteFunc(slices.Clone(u.Subscribe), func(s string) bool { return s == sub })
		if may {
			u.Subscribe = append(u.Subscribe, sub)
		}
	})
}

// BUS-9: the server drops a subscription that a reload forbids, and the client does not notice; it has to
// come back when it is allowed again, and each is said once.
func TestAFollowerComesBackAfterItsRightsWereNarrowed(t *testing.T) {
	b := testbus.Start(t, testbus.Node("n1"))
	core := b.Connect(t, "coordinator")
	var log logged
	n1 := long(t, b, "node-n1", func(o *bus.Options) { o.Log = log.logger() })
	sub := subject.Declaration("n1")
	got, subscribed := make(chan string, 64), make(chan struct{}, 64)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- n1.Follow(ctx, sub, "", func(m *nats.Msg) { got <- string(m.Data) }, func() { subscribed <- struct{}{} })
	}()
	say := func(text string) {
		t.Helper()
		if err := core.Publish(bounded(t, atOnce), sub, []byte(text), ""); err != nil {
			t.Fatal(err)
		}
		if d := waitfor.Value(t, text, atOnce, got); d != text {
			t.Errorf("heard %q, want %q", d, text)
		}
	}
	waitfor.Value(t, "the subscription", atOnce, subscribed)
	say("before")
	for round := range 2 {
		mayHear(t, b, sub, false)
		waitfor.True(t, "the refusal", atOnce, func() (bool, any) { return log.count("bus refused a subscription") == round+1, log.text() })
		mayHear(t, b, sub, true)
		waitfor.Value(t, "the subscription again", 15*time.Second, subscribed)
		say("after")
	}
	cancel()
	if err := waitfor.Value(t, "the end", atOnce, ended); err != nil {
		t.Error(err)
	}
	for what, want := range map[string]int{"bus refused a subscription": 2, "bus granted the subscription": 2} {
		if n := log.count(what); n != want {
			t.Errorf("%q is %d times in the log, want %d:\n%s", what, n, want, log.text())
		}
	}
	if len(subscribed) > 0 {
		t.Errorf("subscribed was called %d times too often", len(subscribed))
	}
}

// Narrowed and widened in one breath, before the client can have tried again.
func TestAFollowerComesBackAfterAShortNarrowing(t *testing.T) {
	b := testbus.Start(t, testbus.Node("n1"))
	core := b.Connect(t, "coordinator")
	n1 := long(t, b, "node-n1", nil)
	sub := subject.Declaration("n1")
	got, subscribed := make(chan string, 64), make(chan struct{}, 64)
	go func() {
		if err := n1.Follow(t.Context(), sub, "", func(m *nats.Msg) { got <- string(m.Data) }, func() { subscribed <- struct{}{} }); err != nil {
			t.Error(err)
		}
	}()
	waitfor.Value(t, "the subscription", atOnce, subscribed)
	mayHear(t, b, sub, false)
	mayHear(t, b, sub, true)
	waitfor.Value(t, "the subscription again", 15*time.Second, subscribed)
	if err := core.Publish(bounded(t, atOnce), sub, []byte("after"), ""); err != nil {
		t.Fatal(err)
	}
	waitfor.Value(t, "a message", atOnce, got)
}

// Several refused at once: none is taken for one that holds while its refusal is on its way.
func TestManyRefusedFollowersAreNeverCalledSubscribed(t *testing.T) {
	b := testbus.Start(t, testbus.Node("n1"))
	var log logged
	n1 := long(t, b, "node-n1", func(o *bus.Options) { o.Log = log.logger() })
	ctx := bounded(t, 2*time.Second)
	ended := make(chan error)
	var wrong atomic.Int32
	const many = 64
	for i := range many {
		go func() {
			ended <- n1.Follow(ctx, subject.Declaration(subject.Node("x"+string(rune('a'+i%26))+string(rune('a'+i/26)))), "", func(*nats.Msg) {}, func() { wrong.Add(1) })
		}()
	}
	for range many {
		if err := waitfor.Value(t, "the end", 15*time.Second, ended); err != nil {
			t.Error(err)
		}
	}
	if n := wrong.Load(); n != 0 {
		t.Errorf("%d refused subscriptions were taken for ones that hold", n)
	}
	if n := log.count("bus refused a subscription"); n != many {
		t.Errorf("%d of %d refusals were said, each once", n, many)
	}
}

func TestAQueueIsNotRefusedForItsNeighbour(t *testing.T) {
	b := testbus.Start(t)
	core := b.Connect(t, "coordinator")
	sub := "mesh.seat.elsewhere.tool.x"
	b.Edit(t, func(u *grant.User) { u.Subscribe = append(u.Subscribe, sub+" mine") })
	ctx := bounded(t, 3*time.Second)
	subscribed, ended := make(chan string, 64), make(chan error, 2)
	for _, queue := range []string{"mine", "other"} {
		go func() { ended <- core.Follow(ctx, sub, queue, func(*nats.Msg) {}, func() { subscribed <- queue }) }()
	}
	for range 2 {
		if err := waitfor.Value(t, "the end", 15*time.Second, ended); err != nil {
			t.Error(err)
		}
	}
	close(subscribed)
	n := 0
	for q := range subscribed {
		n++
		if q != "mine" {
			t.Errorf("the queue %s is subscribed", q)
		}
	}
	if n != 1 {
		t.Errorf("the allowed queue was subscribed %d times: refusals of the other one end it", n)
	}
}

func TestAReconnectIsTheFollowersToo(t *testing.T) {
	b := testbus.Start(t, testbus.Node("n1"))
	p := newProxy(t, b.Broker.Address())
	core := b.Connect(t, "coordinator")
	n1 := long(t, b, "node-n1", func(o *bus.Options) { o.Bus.Addresses = []string{p.address()} })
	got, subscribed := make(chan string, 64), make(chan struct{}, 64)
	go func() {
		if err := n1.Follow(t.Context(), subject.Declaration("n1"), "", func(m *nats.Msg) { got <- string(m.Data) }, func() { subscribed <- struct{}{} }); err != nil {
			t.Error(err)
		}
	}()
	waitfor.Value(t, "the subscription", atOnce, subscribed)
	for range 2 {
		p.setCut(true)
		isUp(t, n1, false)
		p.setCut(false)
		waitfor.Value(t, "the subscription after a reconnect", 30*time.Second, subscribed)
		if err := core.Publish(bounded(t, atOnce), subject.Declaration("n1"), []byte("x"), ""); err != nil {
			t.Fatal(err)
		}
		waitfor.Value(t, "a message", atOnce, got)
	}
	if len(subscribed) > 0 {
		t.Errorf("subscribed was called %d times too often", len(subscribed))
	}
}

func TestAFollowerOfAClosedConnectionEnds(t *testing.T) {
	b := testbus.Start(t, testbus.Node("n1"))
	ended := make(chan error, 1)
	for _, sub := range []string{subject.Declaration("n1"), subject.Declaration("n2")} { // one that holds, one that is refused
		n1 := long(t, b, "node-n1", nil)
		subscribed := make(chan struct{}, 1)
		go func() {
			ended <- n1.Follow(t.Context(), sub, "", func(*nats.Msg) {}, func() { subscribed <- struct{}{} })
		}()
		if sub == subject.Declaration("n1") {
			waitfor.Value(t, "the subscription", atOnce, subscribed)
		} else {
			waitfor.True(t, "the refusal", atOnce, func() (bool, any) { e := n1.NATS().LastError(); return e != nil, e })
		}
		n1.Close()
		if err := waitfor.Value(t, "the end", 10*time.Second, ended); !errors.Is(err, bus.ErrAway) {
			t.Errorf("follow %s on a closed connection: %v", sub, err)
		}
	}
}

func TestNoHandlerRunsAfterFollow(t *testing.T) {
	b := testbus.Start(t, testbus.Node("n1"))
	core, n1 := b.Connect(t, "coordinator"), b.Connect(t, "node-n1")
	ctx, cancel := context.WithCancel(t.Context())
	begun, goOn := make(chan struct{}, 1), make(chan struct{})
	var finished atomic.Bool
	ended := make(chan bool, 1)
	subscribed := make(chan struct{}, 1)
	go func() {
		err := n1.Follow(ctx, subject.Declaration("n1"), "", func(*nats.Msg) {
			begun <- struct{}{}
			<-goOn
			finished.Store(true)
		}, func() { subscribed <- struct{}{} })
		if err != nil {
			t.Error(err)
		}
		ended <- finished.Load()
	}()
	waitfor.Value(t, "the subscription", atOnce, subscribed)
	if err := core.Publish(bounded(t, atOnce), subject.Declaration("n1"), []byte("x"), ""); err != nil {
		t.Fatal(err)
	}
	waitfor.Value(t, "the handler", atOnce, begun)
	cancel()
	// The subscription is gone at the server while the handler still runs.
	waitfor.True(t, "the subscription to go", atOnce, func() (bool, any) { n := n1.NATS().NumSubscriptions(); return n == 0, n })
	close(goOn)
	if !waitfor.Value(t, "the end", atOnce, ended) {
		t.Error("Follow returned while its handler was running")
	}
}

// What has come when the time is up is handed over: an ask among it waits for an answer.
func TestAnswerHandsOverWhatHasCome(t *testing.T) {
	b := testbus.Start(t)
	core, other := b.Connect(t, "coordinator"), b.Connect(t, "coordinator")
	b.Edit(t, func(u *grant.User) {
		u.Publish, u.Subscribe = append(u.Publish, "test.x"), append(u.Subscribe, "test.x q")
	})
	ctx, cancel := context.WithCancel(t.Context())
	begun, goOn := make(chan struct{}, 16), make(chan struct{})
	subscribed, ended := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		ended <- core.Answer(ctx, "test.x", "q", func(*nats.Msg) {
			begun <- struct{}{}
			<-goOn
		}, func() { subscribed <- struct{}{} })
	}()
	waitfor.Value(t, "the subscription", atOnce, subscribed)
	for range 4 {
		if err := core.Say("test.x", nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := core.NATS().FlushTimeout(atOnce); err != nil {
		t.Fatal(err)
	}
	waitfor.Value(t, "the first", atOnce, begun)
	cancel()
	come := 3
	waitfor.True(t, "the bus to know that nobody is there", atOnce, func() (bool, any) {
		_, err := other.NATS().Request("test.x", nil, 20*time.Millisecond)
		if errors.Is(err, nats.ErrNoResponders) {
			return true, nil
		}
		come++ // it came in time
		return false, err
	})
	close(goOn)
	if err := waitfor.Value(t, "the end", atOnce, ended); err != nil {
		t.Error(err)
	}
	if n := len(begun); n != come {
		t.Errorf("%d of the %d that had come were handed over", n, come)
	}
}

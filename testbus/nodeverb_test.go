package testbus_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"mesh/shared/bus"
	"mesh/shared/clock"
	"mesh/shared/grant"
	"mesh/shared/refusal"
	"mesh/shared/subject"
	"mesh/shared/verb"
	"mesh/shared/waitfor"
	"mesh/testbus"
)

// serveNode answers every verb of node-engine of node with the key of who asked, until the test ends.
func serveNode(t *testing.T, c *bus.Conn, node subject.Node) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	ended, served := make(chan error, 1), make(chan struct{}, 8)
	go func() {
		ended <- verb.ServeAll(ctx, c, subject.NodeTool(subject.NodeEngine, "*", node), "", 4, slog.New(slog.DiscardHandler), func(at string) verb.Handler {
			return func(_ context.Context, who verb.Caller, _ []byte) (any, error) {
				return map[string]string{"at": at, "caller": who.Key}, nil
			}
		}, func() { served <- struct{}{} })
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	waitfor.Value(t, "the subscription", 10*time.Second, served)
}

// A machine answers whoever may ask it, across the accounts, knows who asked (CAL-0), and nobody else is
// asked in its place. One that is away or unknown is said to be at once (SEA-11).
func TestAMachineAnswersItsVerbs(t *testing.T) {
	b := testbus.Start(t, testbus.Node("n1"), testbus.Node("n2"), testbus.NodeAsker("ada", "show"))
	n1, n2 := b.Connect(t, "node-n1"), b.Connect(t, "node-n2")
	serveNode(t, n1, "n1")
	serveNode(t, n2, "n2")
	for _, label := range []string{"operator-ada", "coordinator"} {
		c := b.Connect(t, label)
		var got struct{ At, Caller string }
		if err := verb.CallNode(bounded(t), c, subject.NodeEngine, "show", "n2", struct{}{}, &got); err != nil {
			t.Fatalf("%s: %v", label, err)
		}
		if want, _ := b.Seed(label).Public(); label != "coordinator" && got.Caller != want || got.At != subject.NodeTool(subject.NodeEngine, "show", "n2") {
			t.Errorf("%s: answered %+v, want the caller %s", label, got, want)
		}
		began := clock.Real().Now()
		err := verb.CallNode(bounded(t), c, subject.NodeEngine, "show", "n3", struct{}{}, nil)
		if took := clock.Real().Now().Sub(began); !errors.Is(err, nats.ErrNoResponders) || refusal.Of(err) == nil || took > 2*time.Second {
			t.Errorf("%s asks a machine nobody knows: %v after %v", label, err, took)
		}
	}
	ada := b.Connect(t, "operator-ada")
	if err := verb.CallNode(bounded(t), ada, subject.NodeEngine, "restart", "n1", struct{}{}, nil); !errors.Is(err, bus.ErrRefused) {
		t.Errorf("a verb the role lacks: %v", err)
	}
	// A caller that forges who it is: the bus overwrites it.
	m := nats.NewMsg(subject.NodeTool(subject.NodeEngine, "show", "n1"))
	m.Header.Set("Nats-Request-Info", `{"user":"somebody"}`)
	got, err := ada.Ask(bounded(t), m)
	want, _ := b.Seed("operator-ada").Public()
	if err != nil || !contains(got.Data, want) || contains(got.Data, "somebody") {
		t.Errorf("forged: %s, %v", got.Data, err)
	}
	// While the list changes, answers arrive (MEM-6).
	for i := range 5 {
		b.Add(t, testbus.Invitation(string(rune('a'+i))))
		if err := verb.CallNode(bounded(t), ada, subject.NodeEngine, "show", "n1", struct{}{}, nil); err != nil {
			t.Errorf("after reload %d: %v", i, err)
		}
	}
}

// What a machine answers reaches who asked and nobody else: an ask whose answer is aimed elsewhere in the
// same account is dropped before anything runs, and so is one that says who asks by itself.
func TestAnAimedAskIsNotCarriedOut(t *testing.T) {
	b := testbus.Start(t, testbus.Node("n1"), testbus.Node("n2"))
	n1 := b.Connect(t, "node-n1")
	ran := make(chan string, 8)
	ctx, stop := context.WithCancel(t.Context())
	ended, served := make(chan error, 1), make(chan struct{}, 8)
	at := subject.NodeTool(subject.NodeEngine, "show", "n1")
	go func() {
		ended <- verb.Serve(ctx, n1, at, "", 4, slog.New(slog.DiscardHandler), func(_ context.Context, who verb.Caller, args []byte) (any, error) {
			ran <- string(args) + who.Key
			return "done", nil
		}, func() { served <- struct{}{} })
	}()
	waitfor.Value(t, "the subscription", 10*time.Second, served)
	// An insider of FLEET, with rights no composition gives.
	key, err := b.Seed("node-n2").Public()
	if err != nil {
		t.Fatal(err)
	}
	editFleet(b, t, key, at)
	n2 := b.Connect(t, "node-n2")
	for _, reply := range []string{"mesh.control.n1.report", "mesh.node.n2.declaration", "$SRV.PING", ""} {
		if err := n2.NATS().PublishMsg(&nats.Msg{Subject: at, Reply: reply, Data: []byte("aimed at " + reply)}); err != nil {
			t.Fatal(err)
		}
	}
	m := nats.NewMsg(at)
	m.Reply, m.Data = n2.NATS().NewInbox(), []byte("fair ")
	m.Header.Set("Nats-Request-Info", `{"user":"forged"}`)
	if err := n2.NATS().PublishMsg(m); err != nil {
		t.Fatal(err)
	}
	if got := waitfor.Value(t, "the fair ask", 10*time.Second, ran); got != "fair " {
		t.Errorf("ran %q", got)
	}
	stop()
	if err := <-ended; err != nil || len(ran) > 0 {
		t.Errorf("ended with %v, and %d more asks ran", err, len(ran))
	}
}

// editFleet lets the user with this key publish at.
func editFleet(b *testbus.Bus, t *testing.T, key, at string) {
	t.Helper()
	b.Edit(t, func(u *grant.User) {
		if u.Key == key {
			u.Publish = append(u.Publish, at)
		}
	})
}

func contains(b []byte, s string) bool { return strings.Contains(string(b), s) }

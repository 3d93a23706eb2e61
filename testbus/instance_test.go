package testbus_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"

	"mesh/shared/bus"
	"mesh/shared/grant"
	"mesh/shared/membership"
	"mesh/shared/subject"
	"mesh/shared/verb"
	"mesh/shared/waitfor"
	"mesh/testbus"
)

// serveAs answers v with the key of who asks.
func serveAs(t *testing.T, c *bus.Conn, at, queue string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done, up := make(chan error, 1), make(chan struct{}, 1)
	go func() {
		done <- verb.Serve(ctx, c, at, queue, 2, slog.New(slog.DiscardHandler), func(_ context.Context, who verb.Caller, _ []byte) (any, error) { return who.Key, nil },
			func() {
				select {
				case up <- struct{}{}:
				default:
				}
			})
	}()
	t.Cleanup(func() { cancel(); waitfor.Value(t, "the end of a server", 5*time.Second, done) })
	waitfor.Value(t, at, 5*time.Second, up)
}

// MEM-1, MEM-2, MEM-7, CAL-0: an instance answers where its membership says, says its events, asks what it may,
// knows who asks it, reads its own membership, and nothing else.
func TestAnInstanceDoesWhatItsMembershipSays(t *testing.T) {
	seat := membership.Seat{Name: "notes-store", Verbs: []subject.Verb{"get"}, Events: []subject.Event{"stored"}}
	nodeSeat := membership.Seat{Name: "node-clock", PerNode: true, Verbs: []subject.Verb{"read"}, Events: []subject.Event{"ticked"}}
	store := membership.Make(membership.Of{Mesh: "m", Node: "n2", Module: "store", Tools: []subject.Verb{"put"}, Events: []subject.Event{"kept"}, Plain: true, Holds: []membership.Seat{seat, nodeSeat}})
	notes := membership.Make(membership.Of{Mesh: "m", Node: "n1", Module: "notes", Tools: []subject.Verb{"list"},
		Invokes: []membership.Reach{"module:store.*", "seat:notes-store.get", "seat:mesh-controller.status"}})
	ada := testbus.Operator("ada")
	ada.EveryTool, ada.OnNodes = true, []grant.OnNode{{Seat: "node-clock", Verb: "read"}}
	b := testbus.Start(t, testbus.Node("n1"), testbus.Node("n2"), ada, testbus.Instance(notes))
	b.Serve(grant.Seat{Name: "node-clock", PerNode: true}, grant.Seat{Name: "notes-store"})
	b.Add(t, testbus.Instance(store))
	core, s, n, a := b.Connect(t, "coordinator"), b.Connect(t, "instance-n2.store"), b.Connect(t, "instance-n1.notes"), b.Connect(t, "operator-ada")
	ctx := bounded(t)
	for _, v := range store.Serves {
		if v.At != "" {
			serveAs(t, s, v.At, "")
		}
		if v.Plain != "" {
			serveAs(t, s, v.Plain, v.Queue)
		}
	}
	serveAs(t, core, subject.Tool(subject.Controller, "*"), string(subject.Controller))
	for _, x := range []struct {
		c    *bus.Conn
		as   string
		asks []string
	}{
		{n, "instance-n1.notes", []string{"mesh.module.store.tool.put", "mesh.module.store.tool.put.n2", "mesh.seat.notes-store.tool.get", "mesh.seat.mesh-controller.tool.status"}},
		{a, "operator-ada", []string{"mesh.module.store.tool.put", "mesh.module.store.tool.put.n2", "mesh.seat.node-clock.tool.read.n2"}},
		{core, "coordinator", []string{"mesh.module.store.tool.put", "mesh.module.store.tool.put.n2", "mesh.seat.node-clock.tool.read.n2"}},
	} {
		want, err := b.Seed(x.as).Public()
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range x.asks {
			var caller string
			if err := verb.CallAt(ctx, x.c, at, at, struct{}{}, &caller); err != nil || caller != want {
				t.Errorf("%s asks %s: seen as %q, %v", x.as, at, caller, err)
			}
		}
	}
	for _, e := range store.Says {
		if err := s.Publish(ctx, e.At, []byte(`{}`), ""); err != nil {
			t.Errorf("event %s: %v", e.At, err)
		}
	}
	js, err := jetstream.New(core.NATS())
	if err != nil {
		t.Fatal(err)
	}
	events, err := js.Stream(ctx, string(subject.Events))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range store.Says {
		if _, err := events.GetLastMsgForSubject(ctx, e.At); err != nil {
			t.Errorf("the event %s is not in EVENTS: %v", e.At, err)
		}
	}
	// Its own membership, read and followed; nobody else's.
	got := make(chan string, 2)
	if _, err := n.NATS().Subscribe(notes.Self, func(m *nats.Msg) { got <- string(m.Data) }); err != nil {
		t.Fatal(err)
	}
	if err := n.NATS().FlushWithContext(ctx); err != nil {
		t.Fatal(err)
	}
	if err := core.Publish(ctx, notes.Self, []byte("mine"), ""); err != nil {
		t.Fatal(err)
	}
	if s := waitfor.Value(t, "the membership", 5*time.Second, got); s != "mine" {
		t.Error(s)
	}
	if m, err := n.Last(ctx, subject.Assignments, notes.Self); err != nil || string(m) != "mine" {
		t.Errorf("its own membership: %q, %v", m, err)
	}
	refusedTo(t, n, []string{store.Self, subject.DirectGet(subject.Assignments, store.Self), "mesh.module.notes.event.added.n1", "mesh.module.store.event.kept.n2", "mesh.seat.mesh-controller.tool.push",
		"mesh.seat.node-clock.tool.read.n2", "mesh.seat.node-engine.tool.show.n1", "mesh.serve.module.store.tool.put.n2", "mesh.control.n1.report", "mesh.node.n1.declaration", "$SRV.PING", "_INBOX.instance-n2.store.x",
		subject.DirectGet(subject.Declarations, subject.Declaration("n1")), "$JS.API.INFO", "$JS.API.STREAM.DELETE.EVENTS"},
		[]string{">", store.Self, "mesh.assignment.>", "mesh.assignment.n1.*", "mesh.serve.module.store.tool.put.n2", "mesh.serve.module.notes.tool.list", "mesh.serve.>", "mesh.module.>", "mesh.node.n1.declaration",
			"_INBOX.>", "_INBOX.instance-n2.store.>", "_INBOX.instance-n1.>", "$SRV.PING.store", "$SRV.PING.mesh-controller", "mesh.module.store.event.kept.n2"})
}

// refusedTo checks that c may neither publish nor hear these.
func refusedTo(t *testing.T, c *bus.Conn, publish, hear []string) {
	t.Helper()
	for _, sub := range publish {
		if _, err := c.Ask(bounded(t), nats.NewMsg(sub)); !errors.Is(err, bus.ErrRefused) {
			t.Errorf("%s publishes %s: %v, want a refusal", c.Principal(), sub, err)
		}
	}
	for _, sub := range hear {
		s, err := c.NATS().SubscribeSync(sub)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.NATS().FlushWithContext(bounded(t)); err != nil {
			t.Fatal(err)
		}
		if err := c.NATS().LastError(); err == nil || !strings.Contains(err.Error(), `Subscription to "`+sub+`"`) {
			t.Errorf("%s hears %s: %v, want a refusal", c.Principal(), sub, err)
		}
		_ = s.Unsubscribe() // the server has dropped it already
	}
}

// SEA-8: a module that serves with NATS' own services library is found as such, by people.
func TestAModuleIsFoundByNATSOwnServices(t *testing.T) {
	m := membership.Make(membership.Of{Mesh: "m", Node: "n1", Module: "notes", Tools: []subject.Verb{"list"}, Plain: true})
	b := testbus.Start(t, testbus.Operator("ada"), testbus.Instance(m))
	n, a := b.Connect(t, "instance-n1.notes"), b.Connect(t, "operator-ada")
	svc, err := micro.AddService(n.NATS(), micro.Config{Name: "notes", Version: "1.0.0"})
	if err != nil {
		t.Fatal(err)
	}
	if err := svc.AddEndpoint("list", micro.HandlerFunc(func(r micro.Request) { _ = r.Respond([]byte("{}")) }), micro.WithEndpointSubject(m.Serves[0].At), micro.WithEndpointQueueGroup("")); err != nil {
		t.Fatal(err)
	}
	if err := n.NATS().FlushWithContext(bounded(t)); err != nil {
		t.Fatal(err)
	}
	for _, sub := range []string{"$SRV.INFO.notes", "$SRV.PING.notes." + svc.Info().ID} {
		if answer, err := a.Ask(bounded(t), nats.NewMsg(sub)); err != nil || !strings.Contains(string(answer.Data), `"name":"notes"`) {
			t.Errorf("%s: %v, %v", sub, answer, err)
		}
	}
}

package testbus_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"mesh/shared/bus"
	"mesh/shared/grant"
	"mesh/shared/subject"
	"mesh/shared/verb"
	"mesh/shared/waitfor"
	"mesh/testbus"
)

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func putDeclaration(t *testing.T, core *bus.Conn, node subject.Node, text string) {
	t.Helper()
	if err := core.Publish(bounded(t), subject.Declaration(node), []byte(text), ""); err != nil {
		t.Fatal(err)
	}
}

func TestANodeDoesWhatItNeeds(t *testing.T) {
	digest := strings.Repeat("ab", 32)
	b := testbus.Start(t, testbus.Node("n1", digest), testbus.Operator("ada", "status"))
	core, n1, ada := b.Connect(t, "coordinator"), b.Connect(t, "node-n1"), b.Connect(t, "operator-ada")
	ctx := bounded(t)

	got := make(chan string, 4)
	go func() {
		if err := n1.Follow(ctx, subject.Declaration("n1"), "", func(m *nats.Msg) { got <- string(m.Data) }, func() { got <- "subscribed" }); err != nil {
			t.Error(err)
		}
	}()
	if s := waitfor.Value(t, "subscription", 5*time.Second, got); s != "subscribed" {
		t.Fatal(s)
	}
	if _, err := n1.Last(ctx, subject.Declarations, subject.Declaration("n1")); !errors.Is(err, bus.ErrNone) {
		t.Errorf("no declaration yet: %v", err)
	}
	putDeclaration(t, core, "n1", "first")
	if s := waitfor.Value(t, "declaration", 5*time.Second, got); s != "first" {
		t.Errorf("followed %q", s)
	}
	if d, err := n1.Last(ctx, subject.Declarations, subject.Declaration("n1")); err != nil || string(d) != "first" {
		t.Errorf("Last = %q, %v", d, err)
	}
	if err := n1.Publish(ctx, subject.Report("n1"), []byte("{}"), "id-1"); err != nil {
		t.Errorf("report: %v", err)
	}
	if err := ada.Publish(ctx, subject.Chunk(digest, 0), []byte("bytes"), ""); err != nil {
		t.Errorf("upload: %v", err)
	}
	if err := ada.Publish(ctx, subject.Chunk(digest, 0), []byte("other"), ""); !bus.AlreadyThere(err) {
		t.Errorf("a chunk under a digest in use was exchanged: %v", err)
	}
	if d, err := n1.Last(ctx, subject.Artifacts, subject.Chunk(digest, 0)); err != nil || string(d) != "bytes" {
		t.Errorf("chunk = %q, %v", d, err)
	}
	beat := make(chan string, 1)
	sub, err := core.NATS().Subscribe(subject.Heartbeat(subject.Each), func(m *nats.Msg) { beat <- m.Subject })
	if err != nil {
		t.Fatal(err)
	}
	if err := core.NATS().FlushWithContext(ctx); err != nil {
		t.Fatal(err)
	}
	if err := n1.Say(subject.Heartbeat("n1"), []byte("{}")); err != nil {
		t.Fatal(err)
	}
	if s := waitfor.Value(t, "heartbeat", 5*time.Second, beat); s != subject.Heartbeat("n1") {
		t.Error(s)
	}
	if err := sub.Unsubscribe(); err != nil {
		t.Error(err)
	}
}

func TestTheCoordinatorReadsReportsAndAnswersVerbs(t *testing.T) {
	b := testbus.Start(t, testbus.Node("n1"), testbus.Operator("ada", "status"), testbus.Invitation("inv1"))
	core, n1, ada := b.Connect(t, "coordinator"), b.Connect(t, "node-n1"), b.Connect(t, "operator-ada")
	ctx := bounded(t)
	js, err := jetstream.New(core.NATS())
	if err != nil {
		t.Fatal(err)
	}
	stream, cfg := bus.Reports()
	cons, err := js.CreateOrUpdateConsumer(ctx, string(stream), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := n1.Publish(ctx, subject.Report("n1"), []byte("hello"), ""); err != nil {
		t.Fatal(err)
	}
	m, err := cons.Next(jetstream.FetchMaxWait(3 * time.Second))
	if err != nil || m.Subject() != subject.Report("n1") || string(m.Data()) != "hello" {
		t.Fatalf("report: %v %v", m, err)
	}
	if err := m.DoubleAck(ctx); err != nil {
		t.Errorf("acknowledge: %v", err)
	}

	serve, stop := context.WithCancel(t.Context())
	done := make(chan error, 2)
	for _, at := range []string{subject.Tool(subject.Controller, "status"), subject.Enrol("*")} {
		go func() {
			done <- verb.Serve(serve, core, at, string(subject.Controller), 4, slog.New(slog.DiscardHandler), func(_ context.Context, who verb.Caller, args []byte) (any, error) {
				return who.Key, nil
			})
		}()
	}
	var caller string
	waitfor.True(t, "an answer", 5*time.Second, func() (bool, any) {
		err := verb.Call(ctx, ada, subject.Controller, "status", struct{}{}, &caller)
		return err == nil, err
	})
	if want, _ := b.Seed("operator-ada").Public(); caller != want {
		t.Errorf("the verb saw caller %q, want %q (CAL-0)", caller, want)
	}
	inv := b.Connect(t, "invitation-inv1")
	waitfor.True(t, "an answer", 5*time.Second, func() (bool, any) {
		err := verb.CallAt(ctx, inv, subject.Enrol("inv1"), "mesh-controller", struct{}{}, &caller)
		return err == nil, err
	})
	if want, _ := b.Seed("invitation-inv1").Public(); caller != want {
		t.Errorf("enrolment saw caller %q, want %q", caller, want)
	}
	// A forged caller is overwritten by the bus.
	forged := nats.NewMsg(subject.Tool(subject.Controller, "status"))
	forged.Header.Set("Nats-Request-Info", `{"user":"U-somebody-else"}`)
	reply, err := ada.Ask(ctx, forged)
	if err != nil || strings.Contains(string(reply.Data), "somebody-else") {
		t.Errorf("a forged caller: %s, %v", reply.Data, err)
	}
	stop()
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if err := verb.Call(ctx, ada, subject.Controller, "status", struct{}{}, nil); err == nil || !strings.Contains(err.Error(), "nobody holds mesh-controller") {
		t.Errorf("a seat nobody holds: %v (SEA-11)", err)
	}
}

// MEM-7: what each kind of principal must not do, refused at once by the real server.
func TestNeighboursThingsAreRefused(t *testing.T) {
	mine, other := strings.Repeat("aa", 32), strings.Repeat("bb", 32)
	b := testbus.Start(t, testbus.Node("n1", mine), testbus.Node("n2", other), testbus.Operator("ada", "status"), testbus.Operator("bob", "push"), testbus.Invitation("inv1"), testbus.Invitation("inv2"))
	core := b.Connect(t, "coordinator")
	putDeclaration(t, core, "n1", "d1")
	putDeclaration(t, core, "n2", "d2")
	everybody := []string{
		"$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.LIST", "$JS.API.STREAM.DELETE.DECLARATIONS", "$JS.API.STREAM.PURGE.CONTROL",
		"$JS.API.STREAM.INFO.DECLARATIONS", "$JS.API.STREAM.UPDATE.CONTROL", "$JS.API.STREAM.MSG.GET.DECLARATIONS", "$JS.API.DIRECT.GET.DECLARATIONS",
		"$JS.API.DIRECT.GET.CONTROL.mesh.control.n2.report", "$JS.API.CONSUMER.CREATE.DECLARATIONS", "$JS.API.CONSUMER.CREATE.DECLARATIONS.x.mesh.node.n2.declaration",
		"$JS.API.CONSUMER.MSG.NEXT.CONTROL.coordinator", "$JS.ACK.CONTROL.coordinator.1.1.1.1.1", "$SYS.REQ.SERVER.PING", "$SYS.REQ.USER.INFO",
		"mesh.node.n2.declaration", "mesh.control.n2.report", "mesh.control.n2.heartbeat", "mesh.enrol.inv2", "_R_.abc", "_INBOX.node-n2.x", "_INBOX.coordinator.x",
		"mesh.seat.mesh-controller.event.node-runs", "mesh.seat.mesh-controller.tool.node-remove",
		subject.DirectGet(subject.Declarations, "mesh.node.n2.declaration"), subject.DirectGet(subject.Artifacts, subject.Chunk(other, 0)),
	}
	publishes := map[string][]string{
		"node-n1":         append([]string{"mesh.node.n1.declaration", subject.Chunk(mine, 0), "mesh.seat.mesh-controller.tool.status"}, everybody...),
		"operator-ada":    append([]string{"mesh.node.n1.declaration", "mesh.control.n1.report", "mesh.seat.mesh-controller.tool.push"}, everybody...),
		"invitation-inv1": append([]string{"mesh.control.n1.report", subject.Chunk(mine, 0), "mesh.seat.mesh-controller.tool.status"}, everybody...),
		"coordinator":     {"mesh.control.n1.report", "mesh.enrol.inv1", "mesh.seat.mesh-controller.tool.push", "$SYS.REQ.SERVER.PING", "_INBOX.node-n1.x", subject.Chunk(mine, 0)},
	}
	hears := []string{">", "mesh.>", "mesh.node.n2.declaration", "mesh.node.*.declaration", "mesh.control.n2.report", "_INBOX.>", "_INBOX.node-n2.>", "_INBOX.operator-bob.>", "$JS.>", "$SYS.>", "mesh.enrol.inv1", "mesh.seat.mesh-controller.tool.status", "_R_.>"}
	for label, list := range publishes {
		t.Run(label, func(t *testing.T) {
			c := b.Connect(t, label)
			for _, sub := range list {
				_, err := c.Ask(bounded(t), nats.NewMsg(sub))
				if !errors.Is(err, bus.ErrRefused) {
					t.Errorf("publish %s: %v, want a refusal", sub, err)
				}
			}
			hears := hears
			if label == "coordinator" {
				hears = []string{">", "_INBOX.node-n1.>", "mesh.control.*.report", "$SYS.>"}
			}
			for _, sub := range hears {
				s, err := c.NATS().SubscribeSync(sub)
				if err != nil {
					t.Fatal(err)
				}
				err = c.NATS().FlushWithContext(bounded(t))
				if err == nil {
					err = c.NATS().LastError()
				}
				if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("Subscription to %q", sub)) {
					t.Errorf("subscribe %s: %v, want a refusal", sub, err)
				}
				_ = s.Unsubscribe() // the server has dropped it already
			}
		})
	}
}

// MEM-8, the confused-deputy suite of facts/bus.md §2: whatever each principal may ask is asked with the
// reply aimed at a neighbour's subject or at the stream API, and has no effect.
func TestConfusedDeputy(t *testing.T) {
	digest := strings.Repeat("aa", 32)
	b := testbus.Start(t, testbus.Node("n1", digest), testbus.Node("n2"), testbus.Operator("ada", "status"), testbus.Invitation("inv1"))
	core := b.Connect(t, "coordinator")
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	putDeclaration(t, core, "n1", "{}") // an empty object is what the stream API would take as its argument
	putDeclaration(t, core, "n2", "of n2")
	if err := b.Connect(t, "node-n2").Publish(ctx, subject.Report("n2"), []byte("of n2"), "n2-first"); err != nil {
		t.Fatal(err)
	}
	if err := b.Connect(t, "operator-ada").Publish(ctx, subject.Chunk(digest, 0), []byte("{}"), ""); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{subject.Tool(subject.Controller, "status"), subject.Enrol("*")} {
		go func() {
			if err := verb.Serve(ctx, core, at, string(subject.Controller), 4, slog.New(slog.DiscardHandler), func(_ context.Context, _ verb.Caller, args []byte) (any, error) {
				return json.RawMessage("{}"), nil
			}); err != nil {
				t.Error(err)
			}
		}()
	}
	js, err := jetstream.New(core.NATS())
	if err != nil {
		t.Fatal(err)
	}
	state := func() string {
		var out []string
		for _, name := range []subject.Stream{subject.Declarations, subject.Control, subject.Artifacts, subject.Events} {
			s, err := js.Stream(ctx, string(name))
			if err != nil {
				return fmt.Sprintf("%s: %v", name, err)
			}
			in, err := s.Info(ctx, jetstream.WithSubjectFilter(">"))
			if err != nil {
				return fmt.Sprintf("%s: %v", name, err)
			}
			out = append(out, fmt.Sprintf("%s %v", name, in.State.Subjects))
		}
		for _, n := range []subject.Node{"n1", "n2"} {
			s, err := js.Stream(ctx, string(subject.Declarations))
			if err != nil {
				return err.Error()
			}
			m, err := s.GetLastMsgForSubject(ctx, subject.Declaration(n))
			if err != nil {
				return err.Error()
			}
			out = append(out, fmt.Sprintf("%s=%s", n, m.Data))
		}
		return strings.Join(out, "; ")
	}
	targets := []string{
		"mesh.node.n2.declaration", "mesh.control.n2.report", "mesh.control.n2.heartbeat", subject.Chunk(strings.Repeat("cc", 32), 0),
		"$JS.API.STREAM.DELETE.DECLARATIONS", "$JS.API.STREAM.PURGE.DECLARATIONS", "$JS.API.STREAM.PURGE.CONTROL", "$JS.API.STREAM.DELETE.ARTIFACTS", "$JS.API.CONSUMER.DELETE.CONTROL.coordinator",
		"mesh.seat.mesh-controller.event.node-runs", "mesh.seat.mesh-controller.tool.push", "mesh.enrol.inv1",
	}
	asks := map[string][]string{
		"node-n1":         {subject.DirectGet(subject.Declarations, subject.Declaration("n1")), subject.DirectGet(subject.Artifacts, subject.Chunk(digest, 0)), subject.Heartbeat("n1")},
		"operator-ada":    {subject.Tool(subject.Controller, "status"), subject.Chunk(digest, 0)},
		"invitation-inv1": {subject.Enrol("inv1")},
	}
	before := state()
	for label, list := range asks {
		c := b.Connect(t, label)
		for _, ask := range list {
			for _, target := range targets {
				if err := c.NATS().PublishRequest(ask, target, []byte("{}")); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := c.NATS().FlushWithContext(ctx); err != nil {
			t.Fatal(err)
		}
		settle(t, ctx, core, label)
		if after := state(); after != before {
			t.Fatalf("as %s the streams changed:\nbefore %s\nafter  %s", label, before, after)
		}
	}
	headers(t, ctx, b)
	if after := state(); strings.Contains(after, "n2=of n2") == false {
		t.Errorf("a header reached n2's declaration: %s", after)
	}
}

// settle passes one message through everything an answer would pass: the coordinator's connection and
// the stream API.
func settle(t *testing.T, ctx context.Context, core *bus.Conn, label string) {
	t.Helper()
	if err := core.NATS().FlushWithContext(ctx); err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(core.NATS())
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := js.AccountInfo(ctx); err != nil {
			t.Fatalf("after the asks of %s: %v", label, err)
		}
	}
}

// headers are the holes that do not depend on the reply: rollup, message ids, schedules.
func headers(t *testing.T, ctx context.Context, b *testbus.Bus) {
	t.Helper()
	n1 := b.Connect(t, "node-n1")
	for header, value := range map[string]string{"Nats-Rollup": "all", "Nats-Schedule": "@every 1s", "Nats-TTL": "1s"} {
		m := nats.NewMsg(subject.Report("n1"))
		m.Header.Set(header, value)
		m.Header.Set("Nats-Schedule-Target", subject.Report("n2"))
		answer, err := n1.Ask(ctx, m)
		if err != nil {
			t.Fatalf("%s: %v", header, err)
		}
		if !strings.Contains(string(answer.Data), `"error"`) {
			t.Errorf("a report with %s was stored: %s", header, answer.Data)
		}
	}
	// Message ids are one namespace a stream; ours are random, so a neighbour cannot take the next one.
	if err := n1.Publish(ctx, subject.Report("n1"), []byte("x"), "guess"); err != nil {
		t.Fatal(err)
	}
}

func TestALateUserListLetsTheFollowerIn(t *testing.T) {
	b := testbus.Start(t, testbus.Node("n1"))
	n1 := b.Connect(t, "node-n1")
	ctx := bounded(t)
	subscribed := make(chan struct{}, 8)
	go func() {
		// Not granted yet: n1 hears its own declaration only (BUS-9).
		if err := n1.Follow(ctx, "mesh.node.n2.declaration", "", func(*nats.Msg) {}, func() { subscribed <- struct{}{} }); err != nil {
			t.Error(err)
		}
	}()
	waitfor.True(t, "the refusal", 5*time.Second, func() (bool, any) { e := n1.NATS().LastError(); return e != nil, e })
	if len(subscribed) > 0 {
		t.Fatal("a refused subscription was taken for one that holds")
	}
	// The list changes so that the key now belongs to n2: the follower gets in without being told.
	key, err := b.Seed("node-n1").Public()
	if err != nil {
		t.Fatal(err)
	}
	b.Replace(t, "node-n1", grant.Principal{Kind: grant.Node, Name: "n2", Key: key})
	waitfor.Value(t, "the subscription", 15*time.Second, subscribed)
}

func TestAPrincipalThatIsTakenOffAndPutBackComesBack(t *testing.T) {
	b := testbus.Start(t, testbus.Node("n1"))
	n2 := testbus.Node("n2")
	b.Add(t, n2)
	o := b.Options("node-n2")
	c, err := bus.Connect(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	up := func(want bool) {
		t.Helper()
		waitfor.True(t, fmt.Sprintf("up=%v", want), 20*time.Second, func() (bool, any) {
			is, _, err := c.State()
			return is == want, err
		})
	}
	up(true)
	b.Remove(t, "node-n2")
	up(false)
	key, err := o.Seed.Public()
	if err != nil {
		t.Fatal(err)
	}
	n2.Key = key
	b.Add(t, n2) // BUS-11: it kept trying
	up(true)
}

func TestAnImpostorIsNotBelieved(t *testing.T) {
	b, other := testbus.Bare(t, testbus.Node("n1")), testbus.Bare(t)
	o := b.Options("node-n1")
	o.Once = true
	o.Bus.CA, o.Bus.Pin = other.Where().CA, other.Where().Pin
	if _, err := bus.Connect(t.Context(), o); err == nil || !strings.Contains(err.Error(), "not the one this credential was made for") {
		t.Errorf("an impostor: %v", err)
	}
	o.Bus.CA, o.Bus.Pin = "", b.Where().Pin // an invitation knows the pin only
	c, err := bus.Connect(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

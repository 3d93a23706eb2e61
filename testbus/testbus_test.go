package testbus_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
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
		"mesh.node.n2.declaration", "mesh.control.n2.report", "mesh.control.n2.heartbeat", "mesh.enrol.inv2", "_INBOX.node-n2.x", "_INBOX.coordinator.x",
		"mesh.seat.mesh-controller.event.node-runs", "mesh.seat.mesh-controller.tool.node-remove",
		subject.DirectGet(subject.Declarations, "mesh.node.n2.declaration"), subject.DirectGet(subject.Artifacts, subject.Chunk(other, 0)),
		// Streams, consumers and buckets of one's own, or over somebody's.
		"$JS.API.STREAM.CREATE.MINE", "$JS.API.STREAM.MSG.DELETE.CONTROL", "$JS.API.STREAM.SNAPSHOT.DECLARATIONS", "$JS.API.STREAM.RESTORE.DECLARATIONS",
		"$JS.API.CONSUMER.DURABLE.CREATE.CONTROL.coordinator", "$JS.API.CONSUMER.CREATE.CONTROL.coordinator.mesh.control.n1.report",
		"$JS.API.CONSUMER.LIST.CONTROL", "$JS.API.CONSUMER.NAMES.DECLARATIONS", "$JS.API.CONSUMER.INFO.CONTROL.coordinator", "$JS.API.CONSUMER.DELETE.CONTROL.coordinator",
		"$JS.API.CONSUMER.PAUSE.CONTROL.coordinator", "$JS.FC.CONTROL.x", "$JS.API.DIRECT.GET.ARTIFACTS", "$KV.x.y", "$O.x.C.y", "$JS.EVENT.ADVISORY.API",
		// What a wildcard in a publish could reach.
		"mesh.control.*.report", "mesh.control.>", "mesh.seat.*.tool.status", subject.DirectGet(subject.Declarations, "mesh.node.*.declaration"), subject.DirectGet(subject.Artifacts, "mesh.artifact.>"),
		"mesh.seat.mesh-controller.tool.status.n1", "mesh.seat.mesh-controller.work", "mesh.module.notes.event.x.n2", "mesh.assignment.n1.notes", "_GR_.x", "$NRG.x",
		"mesh.seat.node-engine.tool.restart.n1", "mesh.seat.node-engine.tool.restart.n2", "mesh.seat.node-engine.tool.show.*", "mesh.seat.node-build-agent.tool.kill.n1", "mesh.seat.*.tool.*.n2",
	}
	publishes := map[string][]string{
		"node-n1":         append([]string{"mesh.node.n1.declaration", subject.Chunk(mine, 0), "mesh.seat.mesh-controller.tool.status", "$SRV.PING", "$SRV.INFO.node-engine", "_INBOX.operator-ada.x"}, everybody...),
		"operator-ada":    append([]string{"mesh.node.n1.declaration", "mesh.control.n1.report", "mesh.seat.mesh-controller.tool.push", "_R_.abc", "$SRV.PING.node-engine.n1.x"}, everybody...),
		"invitation-inv1": append([]string{"mesh.control.n1.report", subject.Chunk(mine, 0), "mesh.seat.mesh-controller.tool.status", "_R_.abc", "$SRV.PING"}, everybody...),
		"coordinator":     {"mesh.control.n1.report", "mesh.enrol.inv1", "mesh.seat.mesh-controller.tool.push", "$SYS.REQ.SERVER.PING", "_INBOX.node-n1.x", subject.Chunk(mine, 0)},
	}
	hears := []string{">", "mesh.>", "mesh.node.n2.declaration", "mesh.node.*.declaration", "mesh.control.n2.report", "_INBOX.>", "_INBOX.node-n2.>", "_INBOX.operator-bob.>", "$JS.>", "$SYS.>", "mesh.enrol.inv1", "mesh.enrol.*", "mesh.seat.mesh-controller.tool.status", "mesh.seat.>", "mesh.seat.mesh-controller.event.>", "_R_.>",
		"mesh.*.n1.declaration", "mesh.node.n1.>", "mesh.control.*.report", "mesh.control.*.heartbeat", "mesh.control.n1.report", "_INBOX.*.x", "_INBOX.coordinator.>", "*", "$JS.EVENT.>",
		"$SRV.>", "$SRV.PING.mesh-controller", "$SRV.PING.node-engine.n2", "$SRV.*.*", "$SRV.*.*.*", "mesh.seat.node-engine.tool.show.n2", "mesh.seat.node-engine.tool.*.*", "mesh.seat.*.tool.*.n1", "mesh.seat.node-engine.tool.show", "mesh.seat.node-build-agent.tool.kill.n2"}
	// Who has no verbs of its own hears nobody's question for them either.
	mute := []string{"$SRV.PING", "$SRV.PING.node-engine", "mesh.seat.node-engine.tool.show.n1"}
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
				hears = []string{">", "_INBOX.node-n1.>", "mesh.control.*.report", "$SYS.>", "$SRV.>", "$SRV.PING.node-engine", "mesh.seat.node-engine.tool.show.n1"}
			}
			if strings.HasPrefix(label, "operator") || strings.HasPrefix(label, "invitation") {
				hears = append(slices.Clone(hears), mute...)
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
			// Nobody answers in the seat's place, in whatever queue.
			for _, queue := range []string{string(subject.Controller), "other"} {
				if label == "coordinator" && queue == string(subject.Controller) {
					continue
				}
				s, err := c.NATS().QueueSubscribeSync("mesh.seat.mesh-controller.tool.*", queue)
				if err != nil {
					t.Fatal(err)
				}
				if err := c.NATS().FlushWithContext(bounded(t)); err != nil {
					t.Fatal(err)
				}
				if err := c.NATS().LastError(); label != "coordinator" && (err == nil || !strings.Contains(err.Error(), "using queue "+strconv.Quote(queue))) {
					t.Errorf("subscribe the verbs in queue %s: %v, want a refusal", queue, err)
				}
				_ = s.Unsubscribe()
			}
		})
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

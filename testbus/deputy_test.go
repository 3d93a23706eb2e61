package testbus_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"mesh/shared/bus"
	"mesh/shared/grant"
	"mesh/shared/membership"
	"mesh/shared/subject"
	"mesh/shared/verb"
	"mesh/testbus"
)

// The confused-deputy suite of facts/bus.md §2 (MEM-8): whatever a principal may ask is asked with the
// answer aimed at what is not its own, or with a header that reaches beyond its subject. Each attack is run
// on the composed configuration, where it has no effect, and those that the two accounts are against are
// run on a server with everybody in one account, where the same eyes must see the damage: the suite is
// not blind.

var (
	mine, theirs = strings.Repeat("aa", 32), strings.Repeat("bb", 32)
	statusTool   = subject.Tool(subject.Controller, "status")
	showTool     = subject.NodeTool(subject.NodeEngine, "show", "n2")
	ownDirectGet = subject.DirectGet(subject.Declarations, subject.Declaration("n1"))
	ownChunk     = subject.DirectGet(subject.Artifacts, subject.Chunk(mine, 0))
	// notes on n1 is the attacker among the instances, store on n2 the one that answers.
	notesOf = membership.Make(membership.Of{Mesh: "m", Node: "n1", Module: "notes", Tools: []subject.Verb{"list"}, Events: []subject.Event{"added"},
		Invokes: []membership.Reach{"module:store.put", "seat:mesh-controller.status"}, Plain: true})
	storeOf = membership.Make(membership.Of{Mesh: "m", Node: "n2", Module: "store", Tools: []subject.Verb{"put"}, Events: []subject.Event{"kept"}, Plain: true})
)

// world is a bus with something in every stream, and eyes on what must not change.
type world struct {
	b    *testbus.Bus
	core *bus.Conn
	js   jetstream.JetStream

	mu    sync.Mutex // guards heard
	heard []string
}

func newWorld(t *testing.T, oneAccount bool) *world {
	t.Helper()
	asker := testbus.NodeAsker("ada", "show")
	asker.Verbs, asker.EveryTool = []subject.Verb{"status"}, true
	w := &world{b: testbus.Start(t, testbus.Node("n1", mine), testbus.Node("n2", theirs), asker, testbus.Invitation("inv1"), testbus.Instance(notesOf), testbus.Instance(storeOf))}
	w.core = w.b.Connect(t, "coordinator")
	if oneAccount {
		w.b.Edit(t, func(u *grant.User) {
			u.Account = grant.Core
			if u.Principal == "coordinator" {
				u.Publish = append(u.Publish, "mesh.>", "_INBOX.>") // servers answer there, without _R_
			}
		})
	}
	var err error
	if w.js, err = jetstream.New(w.core.NATS()); err != nil {
		t.Fatal(err)
	}
	stream, cfg := bus.Reports()
	if _, err := w.js.CreateOrUpdateConsumer(t.Context(), string(stream), cfg); err != nil {
		t.Fatal(err)
	}
	// An empty object is what the stream API takes as its argument.
	putDeclaration(t, w.core, "n1", "{}")
	putDeclaration(t, w.core, "n2", "of n2")
	for _, digest := range []string{mine, theirs} {
		if err := w.b.Connect(t, "operator-ada").Publish(bounded(t), subject.Chunk(digest, 0), []byte("{}"), ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.core.Publish(bounded(t), subject.SeatEvent(subject.Controller, "node-runs", ""), []byte("an event"), ""); err != nil {
		t.Fatal(err)
	}
	n2 := w.b.Connect(t, "node-n2")
	if err := n2.Publish(bounded(t), subject.Report("n2"), []byte("of n2"), "n2-first"); err != nil {
		t.Fatal(err)
	}
	for self, text := range map[string]string{notesOf.Self: "{}", storeOf.Self: "of store"} {
		if err := w.core.Publish(bounded(t), self, []byte(text), ""); err != nil {
			t.Fatal(err)
		}
	}
	w.listen(t, n2)
	w.serve(t)
	return w
}

// listen echoes verbs and enrolments, and notes what n2 hears and what the coordinator hears as n2's.
func (w *world) listen(t *testing.T, n2 *bus.Conn) {
	t.Helper()
	note := func(m *nats.Msg) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.heard = append(w.heard, fmt.Sprintf("%s %q", m.Subject, m.Data))
	}
	echo := func(m *nats.Msg) { _ = m.Respond(m.Data) }
	only := func(want bool, sub string, h nats.MsgHandler) nats.MsgHandler {
		return func(m *nats.Msg) {
			if (m.Subject == sub) == want {
				h(m)
			}
		}
	}
	for _, s := range []struct {
		c          *bus.Conn
		sub, queue string
		h          nats.MsgHandler
	}{
		{w.core, statusTool, string(subject.Controller), echo},
		{w.core, subject.Tool(subject.Controller, "push"), string(subject.Controller), note},
		{n2, showTool, "", func(m *nats.Msg) {
			if verb.Answerable(m.Reply) { // what a holder drops (shared/verb)
				echo(m)
			}
		}},
		// Answers aimed here do arrive, with no asker to answer to: they are no asks (shared/verb drops them).
		{n2, subject.NodeTool(subject.NodeEngine, "restart", "n2"), "", func(m *nats.Msg) {
			if verb.Answerable(m.Reply) {
				note(m)
			}
		}},
		{n2, "$SRV.PING", "", echo},
		{w.core, subject.Enrol("*"), "", only(true, subject.Enrol("inv1"), echo)},
		{w.core, subject.Enrol("*"), "", only(false, subject.Enrol("inv1"), note)},
		{w.core, subject.Heartbeat(subject.Each), "", only(false, subject.Heartbeat("n1"), note)},
		{n2, subject.Declaration("n2"), "", func(m *nats.Msg) {
			if !bus.Stray(m) { // what the agent drops
				note(m)
			}
		}},
	} {
		if _, err := s.c.NATS().QueueSubscribe(s.sub, s.queue, s.h); err != nil {
			t.Fatal(err)
		}
		if err := s.c.NATS().FlushTimeout(5 * time.Second); err != nil {
			t.Fatal(err)
		}
	}
}

// serve has the store echo, as any module's program may: its library need not look where an answer goes.
func (w *world) serve(t *testing.T) {
	t.Helper()
	store := w.b.Connect(t, "instance-n2.store")
	for _, v := range storeOf.Serves {
		for at, queue := range map[string]string{v.At: "", v.Plain: v.Queue} {
			if _, err := store.NATS().QueueSubscribe(at, queue, func(m *nats.Msg) { _ = m.Respond(m.Data) }); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := store.NATS().FlushTimeout(5 * time.Second); err != nil {
		t.Fatal(err)
	}
}

// state is what no attack may change, in words. What n1 may do itself is left out.
func (w *world) state(t *testing.T) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var out []string
	for _, name := range []subject.Stream{subject.Declarations, subject.Control, subject.Artifacts, subject.Events, subject.Assignments} {
		s, err := w.js.Stream(ctx, string(name))
		if err != nil {
			out = append(out, fmt.Sprintf("%s: %v", name, err))
			continue
		}
		in, err := s.Info(ctx, jetstream.WithSubjectFilter(">"))
		if err != nil {
			t.Fatal(err)
		}
		for _, sub := range slices.Sorted(maps.Keys(in.State.Subjects)) {
			if sub == subject.Report("n1") || sub == notesOf.Says[0].At {
				continue
			}
			m, err := s.GetLastMsgForSubject(ctx, sub)
			if err != nil {
				out = append(out, fmt.Sprintf("%s: %v", sub, err))
				continue
			}
			out = append(out, fmt.Sprintf("%d of %s, last %q", in.State.Subjects[sub], sub, m.Data))
		}
		for c := range s.ConsumerNames(ctx).Name() {
			out = append(out, fmt.Sprintf("consumer %s of %s", c, name))
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(append(out, w.heard...), "\n")
}

// settle lets pass through the bus whatever is on its way: everybody's connection and the stream API are
// asked in turn until nothing changes any more.
func (w *world) settle(t *testing.T, attacker *bus.Conn) string {
	t.Helper()
	if err := attacker.NATS().FlushTimeout(5 * time.Second); err != nil {
		t.Fatal(err)
	}
	// What the stream API was told to do is done by several workers, in turn; these come after it.
	for range 8 {
		if err := w.js.DeleteStream(t.Context(), "NOTHING"); err != nil && !strings.Contains(err.Error(), "not found") {
			t.Fatal(err)
		}
	}
	last := w.state(t)
	for same := 0; same < 3; {
		if err := w.core.NATS().FlushTimeout(5 * time.Second); err != nil {
			t.Fatal(err)
		}
		if now := w.state(t); now != last {
			last, same = now, 0
			continue
		}
		same++
	}
	return last
}

type attack struct {
	name string
	as   string
	do   func(t *testing.T, c *bus.Conn)
	// oneAccount says that it does damage to everybody in one account.
	oneAccount bool
}

// aimed asks ask with its answer sent to target.
func aimed(as, ask, body, target string, oneAccount bool) attack {
	return attack{fmt.Sprintf("%s asks %s for %s", as, ask, target), as, func(t *testing.T, c *bus.Conn) {
		t.Helper()
		if err := c.NATS().PublishRequest(ask, target, []byte(body)); err != nil {
			t.Fatal(err)
		}
	}, oneAccount}
}

func attacks() []attack {
	// What an answer of "{}" does there in one account. "api" would be obeyed, but since 2.15.3 the server
	// refuses an ask whose answer is to go below $JS itself; older ones did not (facts/bus.md §2).
	targets := map[string]string{
		"mesh.node.n2.declaration":                    "stored",
		"mesh.control.n2.report":                      "stored",
		"mesh.control.n2.heartbeat":                   "heard",
		subject.Chunk(strings.Repeat("cc", 32), 0):    "stored",
		"$JS.API.STREAM.DELETE.DECLARATIONS":          "api",
		"$JS.API.STREAM.PURGE.DECLARATIONS":           "api",
		"$JS.API.STREAM.PURGE.CONTROL":                "api",
		"$JS.API.STREAM.DELETE.ARTIFACTS":             "api",
		"$JS.API.STREAM.DELETE.EVENTS":                "api",
		"$JS.API.CONSUMER.DELETE.CONTROL.coordinator": "api",
		"mesh.seat.mesh-controller.event.node-runs":   "stored",
		"mesh.seat.mesh-controller.tool.push":         "heard",
		"mesh.seat.node-engine.tool.restart.n2":       "asked",
		"mesh.enrol.inv2":                             "heard",
		"mesh.module.notes.event.x.n2":                "stored",
		"mesh.module.store.event.kept.n2":             "stored",
		storeOf.Self:                                  "stored",
		"mesh.module.store.tool.put.n2":               "asked",
		"mesh.serve.module.store.tool.put.n2":         "asked",
		"_R_.abc":                                     "",
		"_INBOX.node-n2.x":                            "",
		"$JS.ACK.CONTROL.coordinator.1.1.1.1.1":       "",
		"$SYS.REQ.SERVER.PING":                        "",
	}
	var out []attack
	for _, target := range slices.Sorted(maps.Keys(targets)) {
		kind := targets[target]
		for _, ask := range []struct{ as, sub, body string }{
			{"node-n1", ownDirectGet, ""}, {"node-n1", ownChunk, ""}, {"operator-ada", statusTool, "{}"}, {"invitation-inv1", subject.Enrol("inv1"), "{}"},
		} {
			out = append(out, aimed(ask.as, ask.sub, ask.body, target, kind == "stored" || kind == "heard"))
		}
		// The acknowledgement of its own publish: content not chosen, no API obeys it.
		out = append(out, aimed("node-n1", subject.Report("n1"), "{}", target, kind == "stored" || kind == "heard"))
		out = append(out, aimed("operator-ada", subject.Chunk(mine, 0), "{}", target, kind == "stored" || kind == "heard"))
		// A machine's verb, and discovery, which many may answer.
		out = append(out, aimed("operator-ada", showTool, "{}", target, false), aimed("operator-ada", "$SRV.PING", "{}", target, false))
		// Instances ask each other, a stream and the coordinator; people ask instances.
		for _, ask := range []string{"mesh.module.store.tool.put", "mesh.module.store.tool.put.n2", statusTool, notesOf.Says[0].At, subject.DirectGet(subject.Assignments, notesOf.Self)} {
			out = append(out, aimed("instance-n1.notes", ask, "{}", target, false))
		}
		out = append(out, aimed("operator-ada", "mesh.module.store.tool.put.n2", "{}", target, false))
		// Nobody answers a heartbeat.
		out = append(out, aimed("node-n1", subject.Heartbeat("n1"), "{}", target, false))
	}
	out = append(out, aimed("node-n1", "$JS.API.CONSUMER.MSG.NEXT.CONTROL.coordinator", `{"batch":1}`, "mesh.control.n2.heartbeat", false))
	return append(out, headers()...)
}

// headers are the holes that do not depend on the answer: the streams' settings are against them.
func headers() []attack {
	var out []attack
	for name, set := range map[string]nats.Header{
		"rollup of all":        {"Nats-Rollup": {"all"}},
		"rollup of a subject":  {"Nats-Rollup": {"sub"}},
		"schedule":             {"Nats-Schedule": {"@at 2020-01-01T00:00:00Z"}, "Nats-Schedule-Target": {subject.Report("n2")}},
		"schedule each":        {"Nats-Schedule": {"@every 1s"}, "Nats-Schedule-Target": {subject.Report("n2")}},
		"time to live":         {"Nats-TTL": {"1s"}},
		"counter":              {"Nats-Incr": {"+1"}},
		"atomic batch":         {"Nats-Batch-Id": {"x"}, "Nats-Batch-Sequence": {"1"}, "Nats-Batch-Commit": {"1"}},
		"trace to a report":    {"Nats-Trace-Dest": {subject.Report("n2")}},
		"trace to a heartbeat": {"Nats-Trace-Dest": {subject.Heartbeat("n2")}, "Nats-Trace-Only": {"true"}},
		"forged stream":        {"Nats-Stream": {"DECLARATIONS"}, "Nats-Subject": {subject.Declaration("n2")}, "Nats-Sequence": {"1"}},
	} {
		for as, sub := range map[string]string{"node-n1": subject.Report("n1"), "operator-ada": subject.Chunk(mine, 0), "instance-n1.notes": notesOf.Says[0].At} {
			out = append(out, attack{as + " publishes with the header: " + name, as, func(t *testing.T, c *bus.Conn) {
				t.Helper()
				m := nats.NewMsg(sub)
				m.Header, m.Data = maps.Clone(set), []byte("{}")
				if strings.HasPrefix(name, "trace") || name == "forged stream" { // nobody refuses or answers those
					if err := c.NATS().PublishMsg(m); err != nil {
						t.Fatal(err)
					}
					return
				}
				answer, err := c.Ask(bounded(t), m)
				if err != nil || !strings.Contains(string(answer.Data), `"error"`) {
					t.Errorf("%s with %s was taken: %v, %v", sub, name, answer, err)
				}
			}, false})
		}
	}
	return out
}

func TestConfusedDeputy(t *testing.T) {
	w := newWorld(t, false)
	before := w.state(t)
	conns := map[string]*bus.Conn{}
	for _, a := range attacks() {
		if conns[a.as] == nil {
			conns[a.as] = w.b.Connect(t, a.as)
		}
		a.do(t, conns[a.as])
		if after := w.settle(t, conns[a.as]); after != before {
			t.Errorf("%s: before\n%s\nafter\n%s", a.name, before, after)
			before = after
		}
	}
}

// With everybody in one account the same attacks do damage, and the suite sees it.
func TestTheSuiteIsNotBlind(t *testing.T) {
	var w *world
	for _, a := range attacks() {
		if !a.oneAccount {
			continue
		}
		if w == nil {
			w = newWorld(t, true)
		}
		before := w.state(t)
		c := w.b.Connect(t, a.as)
		a.do(t, c)
		if after := w.settle(t, c); after == before {
			t.Errorf("%s: the suite saw no damage in one account", a.name)
		} else {
			w = nil // the next one finds an unspoiled world
		}
	}
}

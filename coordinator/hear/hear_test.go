package hear_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"mesh/coordinator/hear"
	"mesh/coordinator/records"
	"mesh/shared/bus"
	"mesh/shared/clock"
	"mesh/shared/controller"
	"mesh/shared/credential"
	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/subject"
	"mesh/shared/waitfor"
	"mesh/testbus"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	soon = 20 * time.Second
	mesh = "testmesh"
)

// store opens records that know these nodes.
func store(t *testing.T, b *testbus.Bus, nodes ...string) *records.Store {
	t.Helper()
	s, err := records.Open(t.Context(), filepath.Join(t.TempDir(), "records.db"), records.Options{Clock: clock.Real(), Rand: rand.Reader})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	by := records.By{Who: "test"}
	seed := newKey(t, credential.NewUser)
	signer, err := credential.NewSigner(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	err = s.CreateMesh(t.Context(), by, records.Mesh{ID: mesh, Name: "test", Bus: b.Where(), Signer: signer.Verifier()}, records.Operator{Name: "ada", Key: seed, Role: records.RoleAdmin})
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range nodes {
		key, err := b.Seed("node-" + n).Public()
		if err != nil {
			t.Fatal(err)
		}
		ask := records.EnrolAsk{Key: key, Curve: newKey(t, credential.NewCurve), MachineID: fmt.Sprintf("%032x", i+1)}
		if _, err := s.AddNode(t.Context(), by, subject.Node(n), ask); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// lines is a log that can be read while it is written.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), text)
}

// flaky fails the first few times.
type flaky struct {
	*records.Store
	mu    sync.Mutex
	fails int
}

func (f *flaky) RecordReports(ctx context.Context, batch []records.Received) ([]records.Heard, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fails > 0 {
		f.fails--
		return nil, errors.New("no space left on device")
	}
	return f.Store.RecordReports(ctx, batch)
}

// rig is a hearer at work.
type rig struct {
	*hear.Hearer
	log   *lines
	heard chan records.Heard
}

func start(t *testing.T, b *testbus.Bus, s *records.Store, fails int) *rig {
	t.Helper()
	r := &rig{log: &lines{}, heard: make(chan records.Heard, 100)}
	var err error
	r.Hearer, err = hear.New(hear.Config{Mesh: mesh, Conn: b.Connect(t, "coordinator"), Records: &flaky{Store: s, fails: fails},
		Heard: func(h records.Heard, _ *report.Report) { r.heard <- h },
		Clock: clock.Real(), Log: slog.New(slog.NewTextHandler(r.log, nil)), Rand: rand.Reader})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := waitfor.Value(t, "the hearer to stop", soon, done); err != nil {
			t.Error(err)
		}
	})
	return r
}

func a(node string, number uint64, change func(*report.Report)) report.Report {
	r := report.Report{Format: report.Format, Mesh: mesh, Node: subject.Node(node), Number: number, At: 1, Agent: report.Agent{Version: "0.1.0"},
		Apply: report.Apply{Seq: 1, Outcome: report.Applied}}
	if change != nil {
		change(&r)
	}
	return r
}

func say(t *testing.T, c *bus.Conn, node string, r report.Report) {
	t.Helper()
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Publish(t.Context(), subject.Report(subject.Node(node)), b, fmt.Sprintf("id-%s-%d", node, r.Number)); err != nil {
		t.Fatal(err)
	}
}

func TestReportsAreRecordedAndSaid(t *testing.T) {
	b := testbus.Start(t, testbus.Node("n1"))
	s := store(t, b, "n1")
	build, _, err := s.Register(t.Context(), records.By{Who: "test"}, records.Registration{Manifest: json.RawMessage(`{"module":"notes"}`)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Assign(t.Context(), records.By{Who: "test"}, []subject.Node{"n1"}, "notes", records.AssignSet{}); err != nil {
		t.Fatal(err)
	}
	r := start(t, b, s, 2) // the disk is full at first: the report waits
	events := follow(t, b)
	n1 := b.Connect(t, "node-n1")
	say(t, n1, "n1", a("n1", 1, func(r *report.Report) {
		r.Modules = []report.Module{{Name: "notes", Build: build.ID, State: report.Running}}
	}))
	h := waitfor.Value(t, "the report to be heard", soon, r.heard)
	if !h.Known || !h.News || len(h.Runs) != 1 {
		t.Errorf("heard %+v", h)
	}
	got, err := s.Report(t.Context(), "n1")
	if err != nil || got.Report.Number != 1 || got.Outcome != report.Applied {
		t.Errorf("recorded %+v, %v", got, err)
	}
	if n := r.log.count("reports cannot be recorded"); n != 1 {
		t.Errorf("a failure that repeats was said %d times", n)
	}
	var runs controller.NodeRuns
	event(t, events, controller.NodeRunsEvent, &runs)
	if runs.Node != "n1" || runs.Module != "notes" || runs.Build != build.ID || runs.At.IsZero() {
		t.Errorf("event %+v", runs)
	}
	// The same again, under another number, says nothing (NOD-9); a refusal does.
	say(t, n1, "n1", a("n1", 2, func(r *report.Report) {
		r.Modules = []report.Module{{Name: "notes", Build: build.ID, State: report.Running}}
	}))
	if h := waitfor.Value(t, "the repetition", soon, r.heard); h.News {
		t.Errorf("a repetition is news: %+v", h)
	}
	say(t, n1, "n1", a("n1", 3, func(r *report.Report) {
		r.Apply = report.Apply{Seq: 2, Outcome: report.Refused, Refused: &refusal.Refusal{What: "a declaration", Why: "unknown field"}}
		r.Modules = []report.Module{{Name: "notes", Build: build.ID, State: report.Running}}
	}))
	var no controller.NodeRefusal
	event(t, events, controller.NodeRefusedEvent, &no)
	if no.Node != "n1" || no.Seq != 2 || !strings.Contains(no.Why, "unknown field") {
		t.Errorf("event %+v", no)
	}
}

// follow hears the events as the stream keeps them.
func follow(t *testing.T, b *testbus.Bus) jetstream.MessagesContext {
	t.Helper()
	js, err := jetstream.New(b.Connect(t, "coordinator").NATS())
	if err != nil {
		t.Fatal(err)
	}
	c, err := js.OrderedConsumer(t.Context(), string(subject.Events), jetstream.OrderedConsumerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	m, err := c.Messages()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Stop)
	return m
}

func event(t *testing.T, events jetstream.MessagesContext, name subject.Event, v any) {
	t.Helper()
	m, err := events.Next(jetstream.NextMaxWait(soon))
	if err != nil {
		t.Fatalf("waiting for the event %s: %v", name, err)
	}
	if m.Subject() != subject.SeatEvent(subject.Controller, name, "") {
		t.Fatalf("event on %s, expected %s", m.Subject(), name)
	}
	if err := json.Unmarshal(m.Data(), v); err != nil {
		t.Fatal(err)
	}
}

func TestWhatIsNotUnderstoodIsSaidOnceAndBlocksNothing(t *testing.T) {
	b := testbus.Start(t, testbus.Node("n1"), testbus.Node("n2"), testbus.Node("stranger"))
	s := store(t, b, "n1", "n2")
	n1, n2, stranger := b.Connect(t, "node-n1"), b.Connect(t, "node-n2"), b.Connect(t, "node-stranger")
	// All of it waits when the coordinator starts.
	for range 2 {
		if err := n1.Publish(t.Context(), subject.Report("n1"), []byte("{"), ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := n1.Publish(t.Context(), subject.Report("n1"), nil, ""); err != nil {
		t.Fatal(err)
	}
	say(t, n1, "n1", a("n2", 1, nil)) // another node's name
	say(t, n1, "n1", a("n1", 2, func(r *report.Report) { r.Mesh = "other" }))
	unknown, err := json.Marshal(map[string]any{"format": 1, "mesh": mesh, "node": "n1", "number": 3, "colour": "red"})
	if err != nil {
		t.Fatal(err)
	}
	if err := n1.Publish(t.Context(), subject.Report("n1"), unknown, ""); err != nil {
		t.Fatal(err)
	}
	// An answer of the bus aimed here would carry its headers.
	good, err := json.Marshal(a("n1", 9, nil))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n1.Ask(t.Context(), &nats.Msg{Subject: subject.Report("n1"), Data: good, Header: nats.Header{"Nats-Stream": {"DECLARATIONS"}}}); err != nil {
		t.Fatal(err)
	}
	say(t, stranger, "stranger", a("stranger", 1, nil))
	r := start(t, b, s, 0)
	say(t, n2, "n2", a("n2", 1, nil))
	if h := waitfor.Value(t, "the good report", soon, r.heard); h.Node != "n2" {
		t.Errorf("heard %+v", h)
	}
	for text, times := range map[string]int{"unexpected EOF": 1, "names n2": 1, "of mesh": 1, "colour": 1, "Nats-Stream": 1, "node=stranger": 1} {
		if n := r.log.count(text); n < times {
			t.Errorf("%q was said %d times, expected %d", text, n, times)
		}
	}
	if rep, err := s.Report(t.Context(), "n1"); err != nil || rep.Report.Number != 0 {
		t.Errorf("something of n1 was believed: %+v, %v", rep, err)
	}
	waitfor.True(t, "everything acknowledged", soon, func() (bool, any) {
		js, err := jetstream.New(b.Connect(t, "coordinator").NATS())
		if err != nil {
			return false, err
		}
		c, err := js.Consumer(t.Context(), string(subject.Control), "coordinator")
		if err != nil {
			return false, err
		}
		i, err := c.Info(t.Context())
		if err != nil {
			return false, err
		}
		return i.NumPending == 0 && i.NumAckPending == 0, fmt.Sprintf("%d pending, %d unacknowledged", i.NumPending, i.NumAckPending)
	})
}

// TestOneNodeDoesNotFillTheLog, whatever it writes into what cannot be understood.
func TestOneNodeDoesNotFillTheLog(t *testing.T) {
	b := testbus.Start(t, testbus.Node("n1"), testbus.Node("n2"))
	s := store(t, b, "n1", "n2")
	n1, n2 := b.Connect(t, "node-n1"), b.Connect(t, "node-n2")
	r := start(t, b, s, 0)
	for i := range 300 {
		if err := n1.Publish(t.Context(), subject.Report("n1"), []byte(fmt.Sprintf(`{"colour%d%s":1}`, i, strings.Repeat("x", 2000))), ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := n2.Publish(t.Context(), subject.Report("n2"), []byte("{"), ""); err != nil {
		t.Fatal(err)
	}
	waitfor.True(t, "what is wrong with n2 to be said", soon, func() (bool, any) { return r.log.count("node=n2") == 1, nil })
	r.log.mu.Lock()
	defer r.log.mu.Unlock()
	if n := strings.Count(r.log.b.String(), "node=n1"); n == 0 || n > 6 || r.log.b.Len() > 6000 {
		t.Errorf("%d lines of n1, %d bytes in all:\n%.3000s", n, r.log.b.Len(), r.log.b.String())
	}
}

func TestManyReportsInFewCommits(t *testing.T) {
	b := testbus.Start(t, testbus.Node("n1"))
	s := store(t, b, "n1")
	n1 := b.Connect(t, "node-n1")
	const many = 300
	for i := range uint64(many) {
		say(t, n1, "n1", a("n1", i+1, func(r *report.Report) { r.FreeDisk = int64(i) }))
	}
	counted := &counter{Store: s}
	done := make(chan struct{})
	h, err := hear.New(hear.Config{Mesh: mesh, Conn: b.Connect(t, "coordinator"), Records: counted,
		Heard: func(_ records.Heard, r *report.Report) {
			if r.Number == many {
				close(done)
			}
		},
		Clock: clock.Real(), Log: slog.New(slog.DiscardHandler), Rand: rand.Reader})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx) }()
	select {
	case <-done:
	case <-time.After(soon):
		t.Fatal("the last report was not heard")
	}
	cancel()
	if err := waitfor.Value(t, "the hearer to stop", soon, ended); err != nil {
		t.Error(err)
	}
	if counted.commits > many/4 {
		t.Errorf("%d reports took %d commits: they are not gathered", many, counted.commits)
	}
}

type counter struct {
	*records.Store
	commits int
}

func (c *counter) RecordReports(ctx context.Context, batch []records.Received) ([]records.Heard, error) {
	c.commits++
	return c.Store.RecordReports(ctx, batch)
}

func TestHeartbeats(t *testing.T) {
	b := testbus.Start(t, testbus.Node("n1"))
	r := start(t, b, store(t, b, "n1"), 0)
	n1 := b.Connect(t, "node-n1")
	beat, err := json.Marshal(report.Heartbeat{At: clock.Real().Now().Add(10 * time.Minute).UnixMilli(), Seq: 4, Leaving: "suspend"})
	if err != nil {
		t.Fatal(err)
	}
	waitfor.True(t, "a heartbeat to be heard", soon, func() (bool, any) {
		for _, m := range [][]byte{[]byte("nonsense"), beat} {
			if err := n1.Say(subject.Heartbeat("n1"), m); err != nil {
				return false, err
			}
		}
		since, beats := r.Beats()
		got := beats["n1"]
		return got.Seq == 4 && got.Leaving == "suspend" && got.Offset > 9*time.Minute && got.Offset < 11*time.Minute && got.Seen.After(since), beats
	})
	waitfor.True(t, "a removed node to be forgotten", soon, func() (bool, any) { // one may still be on its way
		err := r.Forget(t.Context(), "n1")
		_, beats := r.Beats()
		return err == nil && len(beats) == 0, fmt.Sprint(beats, err)
	})
}

// TestAnEarlierMachineOfTheName: what a removed node said and nobody recorded yet is not taken for the word
// of the machine that gets its name.
func TestAnEarlierMachineOfTheName(t *testing.T) {
	b := testbus.Start(t, testbus.Node("n1"), testbus.Node("n2"))
	s := store(t, b, "n1", "n2")
	r := start(t, b, s, 3) // the disk is full: what comes waits
	n1, n2 := b.Connect(t, "node-n1"), b.Connect(t, "node-n2")
	say(t, n1, "n1", a("n1", 500, nil))
	waitfor.True(t, "the report to wait for the disk", soon, func() (bool, any) {
		return r.log.count("reports cannot be recorded") > 0, nil
	})
	by := records.By{Who: "test"}
	if err := s.RemoveNode(t.Context(), by, "n1"); err != nil {
		t.Fatal(err)
	}
	if err := r.Forget(t.Context(), "n1"); err != nil {
		t.Fatal(err)
	}
	ask := records.EnrolAsk{Key: newKey(t, credential.NewUser), Curve: newKey(t, credential.NewCurve), MachineID: fmt.Sprintf("%032x", 77)}
	if _, err := s.AddNode(t.Context(), by, "n1", ask); err != nil {
		t.Fatal(err)
	}
	say(t, n2, "n2", a("n2", 1, nil))
	if h := waitfor.Value(t, "a report after it", soon, r.heard); h.Node != "n2" {
		t.Errorf("heard %+v", h)
	}
	if got, err := s.Report(t.Context(), "n1"); err != nil || got.Report.Number != 0 {
		t.Errorf("the new machine is said to have reported %d, %v", got.Report.Number, err)
	}
	say(t, n1, "n1", a("n1", 1, nil))
	if h := waitfor.Value(t, "the new machine's own", soon, r.heard); h.Node != "n1" || !h.News {
		t.Errorf("heard %+v", h)
	}
}

func newKey(t *testing.T, make func(io.Reader) (credential.Seed, error)) string {
	t.Helper()
	seed, err := make(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key, err := seed.Public()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

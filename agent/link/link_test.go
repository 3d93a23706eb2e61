package link_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"mesh/agent/link"
	"mesh/agent/state"
	"mesh/shared/bundle"
	"mesh/shared/bus"
	"mesh/shared/clock"
	"mesh/shared/declaration"
	"mesh/shared/grant"
	"mesh/shared/report"
	"mesh/shared/subject"
	"mesh/shared/waitfor"
	"mesh/testbus"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const soon = 15 * time.Second

func store(t *testing.T) *state.Store {
	t.Helper()
	s, err := state.Open(t.Context(), state.Config{Path: filepath.Join(t.TempDir(), "state.db"), Clock: clock.Real(), Rand: rand.Reader})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// start runs a link for n1 and stops it with the test.
func start(t *testing.T, b *testbus.Bus, s *state.Store, clk clock.Clock) *link.Link {
	t.Helper()
	conn, err := bus.Connect(t.Context(), b.Options("node-n1"))
	if err != nil {
		t.Fatal(err)
	}
	l := link.New(link.Config{Node: "n1", Conn: conn, Outbox: s, Clock: clk, Log: slog.New(slog.DiscardHandler),
		Alive: func() report.Heartbeat { return report.Heartbeat{At: 1, Seq: 2} }})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := waitfor.Value(t, "the link's end", soon, done); err != nil {
			t.Error(err)
		}
		conn.Close()
	})
	return l
}

func put(t *testing.T, s *state.Store, l *link.Link, body string) {
	t.Helper()
	if _, err := s.Put(t.Context(), state.Out{Subject: subject.Report("n1"), Kind: "event", Body: []byte(body)}); err != nil {
		t.Fatal(err)
	}
	l.Kick()
}

// stored reads what CONTROL holds, in order.
func stored(t *testing.T, core *bus.Conn) string {
	t.Helper()
	js, err := jetstream.New(core.NATS())
	if err != nil {
		t.Fatal(err)
	}
	st, err := js.Stream(t.Context(), string(subject.Control))
	if err != nil {
		t.Fatal(err)
	}
	in, err := st.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for n := in.State.FirstSeq; in.State.Msgs > 0 && n <= in.State.LastSeq; n++ {
		m, err := st.GetMsg(t.Context(), n)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, string(m.Data))
	}
	return strings.Join(out, " ")
}

func TestTheNewestDeclarationArrivesHoweverTheBusWas(t *testing.T) {
	b := testbus.Start(t, testbus.Node("n1"))
	core := b.Connect(t, "coordinator")
	send := func(text string) {
		t.Helper()
		if err := core.Publish(t.Context(), subject.Declaration("n1"), []byte(text), ""); err != nil {
			t.Fatal(err)
		}
	}
	send("before")
	l := start(t, b, store(t), clock.Real())
	if h := waitfor.Value(t, "the one that was there", soon, l.Heard()); string(h.Signed) != "before" || h.Pushed {
		t.Errorf("heard %s, pushed %v", h.Signed, h.Pushed)
	}
	send("now")
	if h := waitfor.Value(t, "the one sent now", soon, l.Heard()); string(h.Signed) != "now" || !h.Pushed {
		t.Errorf("heard %s, pushed %v", h.Signed, h.Pushed)
	}
	// Away while two are sent: the newest arrives afterwards, the other never.
	key, err := b.Seed("node-n1").Public()
	if err != nil {
		t.Fatal(err)
	}
	n1 := testbus.Node("n1")
	n1.Key = key
	b.Remove(t, "node-n1")
	send("missed")
	send("newest")
	b.Add(t, n1)
	if h := waitfor.Value(t, "the newest", soon, l.Heard()); string(h.Signed) != "newest" {
		t.Errorf("heard %s", h.Signed)
	}
}

func TestTheOutboxIsSentInOrderOnceAndSurvivesTheBusBeingAway(t *testing.T) {
	b := testbus.Start(t, testbus.Node("n1"))
	core := b.Connect(t, "coordinator")
	s := store(t)
	for i := range 40 { // more than one batch
		if _, err := s.Put(t.Context(), state.Out{Subject: subject.Report("n1"), Kind: "event", Body: fmt.Appendf(nil, "%d", i)}); err != nil {
			t.Fatal(err)
		}
	}
	l := start(t, b, s, clock.Real())
	waitfor.True(t, "an empty outbox", soon, func() (bool, any) { return s.Depth() == 0, s.Depth() })
	key, err := b.Seed("node-n1").Public()
	if err != nil {
		t.Fatal(err)
	}
	n1 := testbus.Node("n1")
	n1.Key = key
	b.Remove(t, "node-n1")
	put(t, s, l, "while-away")
	if s.Depth() != 1 {
		t.Errorf("depth %d with the bus away, want 1", s.Depth())
	}
	b.Add(t, n1)
	waitfor.True(t, "an empty outbox", soon, func() (bool, any) { return s.Depth() == 0, s.Depth() })
	want := ""
	for i := range 40 {
		want += fmt.Sprintf("%d ", i)
	}
	if got := stored(t, core); got != want+"while-away" {
		t.Errorf("stored %s", got)
	}
}

func TestAnAnswerFollowsTheOutboxAndTheNewestCounts(t *testing.T) {
	b := testbus.Start(t, testbus.Node("n1"))
	core := b.Connect(t, "coordinator")
	s := store(t)
	key, err := b.Seed("node-n1").Public()
	if err != nil {
		t.Fatal(err)
	}
	n1 := testbus.Node("n1")
	n1.Key = key
	b.Remove(t, "node-n1")
	l := start(t, b, s, clock.Real())
	answer := func(text string) {
		l.Answer(state.Out{ID: "id-" + text, Subject: subject.Report("n1"), Body: []byte(text)})
	}
	answer("old")
	answer("new")
	put(t, s, l, "waited")
	b.Add(t, n1)
	waitfor.True(t, "what was said while the bus was away", soon, func() (bool, any) { got := stored(t, core); return got == "waited new", got })
	answer("again")
	waitfor.True(t, "an answer", soon, func() (bool, any) { got := stored(t, core); return got == "waited new again", got })
	l.Kick()
	put(t, s, l, "last")
	waitfor.True(t, "no answer twice", soon, func() (bool, any) { got := stored(t, core); return got == "waited new again last", got })
}

func TestHeartbeat(t *testing.T) {
	b := testbus.Start(t, testbus.Node("n1"))
	core := b.Connect(t, "coordinator")
	beats := make(chan string, 4)
	if _, err := core.NATS().Subscribe(subject.Heartbeat(subject.Each), func(m *nats.Msg) { beats <- string(m.Data) }); err != nil {
		t.Fatal(err)
	}
	if err := core.NATS().Flush(); err != nil {
		t.Fatal(err)
	}
	clk := clock.NewFake(time.Unix(1, 0))
	start(t, b, store(t), clk)
	waitfor.True(t, "the beat to be due", soon, func() (bool, any) { return clk.Waiting() > 0, clk.Waiting() })
	waitfor.True(t, "a heartbeat", soon, func() (bool, any) {
		clk.Advance(link.HeartbeatEvery)
		return len(beats) > 0, nil
	})
	if got := <-beats; got != `{"at":1,"seq":2}` {
		t.Errorf("heartbeat %s", got)
	}
}

func TestFetch(t *testing.T) {
	content := make([]byte, 5*bundle.ChunkSize+7)
	if _, err := rand.Read(content); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(content)
	a := declaration.Artifact{Digest: hex.EncodeToString(sum[:]), Size: int64(len(content)), Chunks: 6}
	missing := declaration.Artifact{Digest: strings.Repeat("ab", 32), Size: 1, Chunks: 1}
	b := testbus.Start(t, testbus.Node("n1", a.Digest, missing.Digest), testbus.Operator("ada"))
	ada := b.Connect(t, "operator-ada")
	for n := range a.Chunks {
		end := min((n+1)*bundle.ChunkSize, len(content))
		if err := ada.Publish(t.Context(), subject.Chunk(a.Digest, n), content[n*bundle.ChunkSize:end], ""); err != nil {
			t.Fatal(err)
		}
	}
	l := start(t, b, store(t), clock.Real())
	waitfor.True(t, "the link", soon, func() (bool, any) {
		var got bytes.Buffer
		err := l.Fetch(t.Context(), a, 0, &got)
		return err == nil && bytes.Equal(got.Bytes(), content), err
	})
	var rest bytes.Buffer
	if err := l.Fetch(t.Context(), a, 4, &rest); err != nil || !bytes.Equal(rest.Bytes(), content[4*bundle.ChunkSize:]) {
		t.Errorf("resumed: %d bytes, %v", rest.Len(), err)
	}
	full := errors.New("disk full")
	if err := l.Fetch(t.Context(), a, 0, failing{full}); !errors.Is(err, full) {
		t.Errorf("a writer that fails: %v", err)
	}
	if err := l.Fetch(t.Context(), missing, 0, &rest); !errors.Is(err, bus.ErrNone) || !strings.Contains(err.Error(), "register the module again") {
		t.Errorf("an artifact the bus does not hold: %v", err)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func TestNothingIsSaidAfterGoodBye(t *testing.T) {
	b := testbus.Start(t, testbus.Node("n1"))
	core := b.Connect(t, "coordinator")
	beats := make(chan string, 4)
	if _, err := core.NATS().Subscribe(subject.Heartbeat(subject.Each), func(m *nats.Msg) { beats <- string(m.Data) }); err != nil {
		t.Fatal(err)
	}
	if err := core.NATS().Flush(); err != nil {
		t.Fatal(err)
	}
	n1 := b.Connect(t, "node-n1")
	l := link.New(link.Config{Node: "n1", Conn: n1, Clock: clock.Real(), Log: slog.New(slog.DiscardHandler)})
	if err := errors.Join(l.Beat(report.Heartbeat{At: 1}), l.Leave(report.Heartbeat{At: 2, Leaving: "shutdown"}), l.Beat(report.Heartbeat{At: 3})); err != nil {
		t.Fatal(err)
	}
	if err := n1.Say(subject.Heartbeat("n1"), []byte("end")); err != nil {
		t.Fatal(err)
	}
	var got []string
	for len(got) == 0 || got[len(got)-1] != "end" {
		got = append(got, waitfor.Value(t, "what was said", soon, beats))
	}
	if want := []string{`{"at":1,"seq":0}`, `{"at":2,"seq":0,"leaving":"shutdown"}`, "end"}; !slices.Equal(got, want) {
		t.Errorf("said %q, want %q", got, want)
	}
}

// stopper ends the fetch when its first chunk comes.
type stopper struct{ stop func() }

func (s stopper) Write(b []byte) (int, error) { s.stop(); return len(b), nil }

func TestAFetchEndsWithItsContext(t *testing.T) {
	content := make([]byte, 6*bundle.ChunkSize)
	sum := sha256.Sum256(content)
	a := declaration.Artifact{Digest: hex.EncodeToString(sum[:]), Size: int64(len(content)), Chunks: 6}
	b := testbus.Start(t, testbus.Node("n1", a.Digest), testbus.Operator("ada"))
	ada := b.Connect(t, "operator-ada")
	for n := range a.Chunks {
		if err := ada.Publish(t.Context(), subject.Chunk(a.Digest, n), content[:bundle.ChunkSize], ""); err != nil {
			t.Fatal(err)
		}
	}
	l := link.New(link.Config{Node: "n1", Conn: b.Connect(t, "node-n1"), Clock: clock.Real(), Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if err := l.Fetch(ctx, a, 0, stopper{cancel}); !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
	if err := l.Fetch(t.Context(), declaration.Artifact{Digest: a.Digest, Size: 8 << 30, Chunks: 1 << 33}, 0, io.Discard); err == nil {
		t.Error("an artifact of more chunks than bytes was fetched")
	}
}

// TestADeclarationThatTheStreamKeepsLateIsFound: it was sent in the moment before the subscription was in place, and
// the stream had not kept it when the node read it.
func TestADeclarationThatTheStreamKeepsLateIsFound(t *testing.T) {
	b := testbus.Start(t, testbus.Node("n1"))
	b.Edit(t, func(u *grant.User) {
		if u.Principal == "coordinator" {
			u.Publish = append(u.Publish, "late")
		}
	})
	core := b.Connect(t, "coordinator")
	js, err := jetstream.New(core.NATS())
	if err != nil {
		t.Fatal(err)
	}
	st, err := js.Stream(t.Context(), string(subject.Declarations))
	if err != nil {
		t.Fatal(err)
	}
	cfg := st.CachedInfo().Config
	cfg.Subjects = append(cfg.Subjects, "late") // kept under the node's subject, and heard by nobody
	cfg.SubjectTransform = &jetstream.SubjectTransformConfig{Source: "late", Destination: subject.Declaration("n1")}
	if _, err := js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	clk := clock.NewFake(clock.Real().Now())
	conn, err := bus.Connect(t.Context(), b.Options("node-n1"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	l := link.New(link.Config{Node: "n1", Conn: conn, Outbox: store(t), Clock: clk, Log: slog.New(slog.DiscardHandler), Alive: func() report.Heartbeat { return report.Heartbeat{At: 1} }})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	waitfor.True(t, "the first look", soon, func() (bool, any) { return clk.Waiting() == 2, clk.Waiting() }) // and the heartbeat
	if err := core.Publish(t.Context(), "late", []byte("late"), ""); err != nil {
		t.Fatal(err)
	}
	clk.Advance(2 * time.Second)
	if h := waitfor.Value(t, "what was kept late", soon, l.Heard()); string(h.Signed) != "late" || h.Pushed {
		t.Errorf("heard %s, pushed %v", h.Signed, h.Pushed)
	}
	cancel()
	if err := waitfor.Value(t, "the link's end", soon, done); err != nil {
		t.Error(err)
	}
}

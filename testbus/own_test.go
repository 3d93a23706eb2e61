package testbus_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"mesh/shared/bus"
	"mesh/shared/subject"
	"mesh/shared/waitfor"
	"mesh/testbus"
)

// A right to read one subject is not talked into another by what is asked in the body or in the name.
func TestADirectGetReadsItsOwnSubjectOnly(t *testing.T) {
	b := testbus.Start(t, testbus.Node("n1", mine), testbus.Node("n2", theirs), testbus.Operator("ada"))
	core, n1, ada := b.Connect(t, "coordinator"), b.Connect(t, "node-n1"), b.Connect(t, "operator-ada")
	putDeclaration(t, core, "n2", "secret of n2")
	putDeclaration(t, core, "n1", "of n1")
	for digest, text := range map[string]string{mine: "bytes of n1", theirs: "secret bytes"} {
		if err := ada.Publish(bounded(t), subject.Chunk(digest, 0), []byte(text), ""); err != nil {
			t.Fatal(err)
		}
	}
	bodies := []string{"", "{}", `{"seq":1}`, `{"last_by_subj":"mesh.node.n2.declaration"}`, `{"multi_last":["mesh.>"]}`, `{"next_by_subj":"mesh.>","seq":1}`, `{"batch":10}`, "mesh.node.n2.declaration"}
	asks := []string{ownDirectGet, ownChunk, subject.DirectGet(subject.Artifacts, subject.Chunks(mine)), subject.DirectGet(subject.Artifacts, "mesh.artifact."+mine+".>")}
	inbox := n1.NATS().NewInbox()
	s, err := n1.NATS().SubscribeSync(inbox) // more than one answer may come
	if err != nil {
		t.Fatal(err)
	}
	for _, ask := range asks {
		for _, body := range bodies {
			if err := n1.NATS().PublishRequest(ask, inbox, []byte(body)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := n1.Last(bounded(t), subject.Declarations, subject.Declaration("n1")); err != nil {
		t.Fatal(err)
	}
	own := 0
	for {
		m, err := s.NextMsg(500 * time.Millisecond)
		if errors.Is(err, nats.ErrTimeout) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(m.Data), "secret") {
			t.Errorf("n1 read %q of %v", m.Data, m.Header)
		}
		if strings.Contains(string(m.Data), "of n1") {
			own++
		}
	}
	if own < 2 {
		t.Errorf("%d answers with its own content: this test is blind", own)
	}
}

// Message ids are one namespace a stream: who guesses a neighbour's next one has it dropped as a
// repetition. No setting is against it, so ids are random (agent/state makes 16 random bytes each).
func TestAGuessedMessageIDIsWhatItWouldTake(t *testing.T) {
	b := testbus.Start(t, testbus.Node("n1"), testbus.Node("n2"))
	core, n1, n2 := b.Connect(t, "coordinator"), b.Connect(t, "node-n1"), b.Connect(t, "node-n2")
	for i, c := range []*bus.Conn{n1, n2} {
		if err := c.Publish(bounded(t), subject.Report(subject.Node(fmt.Sprintf("n%d", i+1))), []byte("{}"), "guessed"); err != nil {
			t.Fatal(err)
		}
	}
	if err := n2.Publish(bounded(t), subject.Report("n2"), []byte("{}"), "unguessed"); err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(core.NATS())
	if err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(bounded(t), string(subject.Control))
	if err != nil {
		t.Fatal(err)
	}
	in, err := s.Info(bounded(t), jetstream.WithSubjectFilter(">"))
	if err != nil {
		t.Fatal(err)
	}
	if got := in.State.Subjects; got[subject.Report("n1")] != 1 || got[subject.Report("n2")] != 1 {
		t.Errorf("kept %v: the server's rule for ids is another than the one this mesh is built for", got)
	}
}

// Answers aimed at a neighbour's declaration do reach who follows it, since that subject exists in FLEET
// too. They are told from what the coordinator says.
func TestAStrayAnswerIsToldFromADeclaration(t *testing.T) {
	b := testbus.Start(t, testbus.Node("n1"), testbus.Node("n2"))
	core, n1, n2 := b.Connect(t, "coordinator"), b.Connect(t, "node-n1"), b.Connect(t, "node-n2")
	putDeclaration(t, core, "n1", "mesh-declaration/1 x y\nof n1")
	got := make(chan *nats.Msg, 16)
	subscribed := make(chan struct{}, 1)
	go func() {
		if err := n2.Follow(t.Context(), subject.Declaration("n2"), "", func(m *nats.Msg) { got <- m }, func() { subscribed <- struct{}{} }); err != nil {
			t.Error(err)
		}
	}()
	waitfor.Value(t, "the subscription", 5*time.Second, subscribed)
	for _, ask := range []string{ownDirectGet, subject.Report("n1")} {
		if err := n1.NATS().PublishRequest(ask, subject.Declaration("n2"), []byte("{}")); err != nil {
			t.Fatal(err)
		}
		if m := waitfor.Value(t, "the answer", 5*time.Second, got); !bus.Stray(m) {
			t.Errorf("taken for a declaration: %q %v", m.Data, m.Header)
		}
	}
	putDeclaration(t, core, "n2", "mesh-declaration/1 x y\nof n2")
	if m := waitfor.Value(t, "the declaration", 5*time.Second, got); bus.Stray(m) {
		t.Errorf("taken for a stray answer: %q %v", m.Data, m.Header)
	}
}

// Declarations sent while the user list changes all arrive: the import that carries them is not remade.
func TestNoDeclarationIsLostToAReload(t *testing.T) {
	b := testbus.Start(t, testbus.Node("n1"))
	core, n1 := b.Connect(t, "coordinator"), b.Connect(t, "node-n1")
	const many = 300
	got := make(chan string, many)
	subscribed := make(chan struct{}, 1)
	go func() {
		if err := n1.Follow(t.Context(), subject.Declaration("n1"), "", func(m *nats.Msg) { got <- string(m.Data) }, func() { subscribed <- struct{}{} }); err != nil {
			t.Error(err)
		}
	}()
	waitfor.Value(t, "the subscription", 5*time.Second, subscribed)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for i := range many {
			if err := core.Publish(bounded(t), subject.Declaration("n1"), fmt.Appendf(nil, "d%d", i), ""); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	reloads := 0
	for done := false; !done; reloads++ {
		b.Replace(t, fmt.Sprintf("node-x%d", reloads-1), testbus.Node(fmt.Sprintf("x%d", reloads)))
		select {
		case <-sent:
			done = true
		default:
		}
	}
	for i := range many {
		if d := waitfor.Value(t, "a declaration", 5*time.Second, got); d != fmt.Sprintf("d%d", i) {
			t.Fatalf("declaration %d is %s", i, d)
		}
	}
	t.Logf("%d declarations beside %d reloads", many, reloads)
}

package link_test

import (
	"testing"

	"mesh/shared/clock"
	"mesh/shared/subject"
	"mesh/shared/waitfor"
	"mesh/testbus"
)

// A neighbour may have any answer of its own sent to this node's declaration (facts/bus.md §2); the agent
// must not be made to say that it refused something.
func TestANeighboursAnswersAreNotHeard(t *testing.T) {
	b := testbus.Start(t, testbus.Node("n1"), testbus.Node("n2"))
	l := start(t, b, store(t), clock.Real())
	core, n2 := b.Connect(t, "coordinator"), b.Connect(t, "node-n2")
	push := func(n subject.Node, text string) {
		t.Helper()
		if err := core.Publish(t.Context(), subject.Declaration(n), []byte(text), ""); err != nil {
			t.Fatal(err)
		}
	}
	heard := make(chan string, 64)
	go func() { // ends with "last"
		for text := ""; text != "last"; heard <- text {
			text = string((<-l.Heard()).Signed)
		}
	}()
	push("n1", "first")
	if text := waitfor.Value(t, "the first declaration", soon, heard); text != "first" {
		t.Errorf("heard %q", text)
	}
	push("n2", "of n2")
	for range 20 { // the link keeps the newest only: one of them would be seen
		for _, ask := range []string{subject.DirectGet(subject.Declarations, subject.Declaration("n2")), subject.Report("n2")} {
			if err := n2.NATS().PublishRequest(ask, subject.Declaration("n1"), []byte("{}")); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := n2.Last(t.Context(), subject.Declarations, subject.Declaration("n2")); err != nil { // comes after both
			t.Fatal(err)
		}
	}
	push("n1", "last")
	for text := ""; text != "last"; {
		if text = waitfor.Value(t, "the last declaration", soon, heard); text != "first" && text != "last" {
			t.Errorf("heard %q", text)
		}
	}
}

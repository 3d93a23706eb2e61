package issue_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"mesh/coordinator/compose"
	"mesh/coordinator/issue"
	"mesh/shared/subject"
	"mesh/testbus"
)

// MEM-2, MEM-5: what the bus holds is not put there again, not even by the next coordinator; what is nobody's any
// more is taken off; what the bus does not take is named.
func TestIssue(t *testing.T) {
	b := testbus.Start(t)
	core := b.Connect(t, "coordinator")
	js, err := jetstream.New(core.NATS())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	seq := func() uint64 {
		t.Helper()
		s, err := js.Stream(ctx, string(subject.Assignments))
		if err != nil {
			t.Fatal(err)
		}
		return s.CachedInfo().State.LastSeq
	}
	last := func(n subject.Node, m subject.Module) string {
		t.Helper()
		s, err := js.Stream(ctx, string(subject.Assignments))
		if err != nil {
			t.Fatal(err)
		}
		msg, err := s.GetLastMsgForSubject(ctx, subject.Membership(n, m))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return ""
		}
		if err != nil {
			t.Fatal(err)
		}
		return string(msg.Data)
	}
	of := func(text string) map[subject.Node][]compose.Membership {
		return map[subject.Node][]compose.Membership{"n1": {{Node: "n1", Module: "a", Text: []byte(text)}, {Node: "n1", Module: "b", Text: []byte("of b")}}, "n2": nil}
	}
	do := func(i *issue.Issuer, want map[subject.Node][]compose.Membership) {
		t.Helper()
		if failed, err := i.Issue(ctx, want); err != nil || len(failed) > 0 {
			t.Fatalf("%v, %v", failed, err)
		}
	}
	one, err := issue.New(core)
	if err != nil {
		t.Fatal(err)
	}
	do(one, of("first"))
	if last("n1", "a") != "first" || last("n1", "b") != "of b" {
		t.Error("they are not on the bus")
	}
	before := seq()
	do(one, of("first"))
	two, err := issue.New(core)
	if err != nil {
		t.Fatal(err)
	}
	do(two, of("first"))
	if now := seq(); now != before {
		t.Errorf("%d were put there again", now-before)
	}
	do(two, of("second"))
	if now := seq(); now != before+1 || last("n1", "a") != "second" {
		t.Errorf("a change put %d there", now-before)
	}
	do(two, map[subject.Node][]compose.Membership{"n1": {{Node: "n1", Module: "b", Text: []byte("of b")}}})
	if last("n1", "a") != "" || last("n1", "b") != "of b" {
		t.Error("one that is nobody's stays, or the other went with it")
	}
	if err := js.DeleteStream(ctx, string(subject.Assignments)); err != nil {
		t.Fatal(err)
	}
	failed, err := two.Issue(ctx, of("third"))
	if err != nil || len(failed) != 1 || failed[0].Module != "a" || failed[0].Err == nil {
		t.Errorf("without the stream: %v, %v", failed, err)
	}
}

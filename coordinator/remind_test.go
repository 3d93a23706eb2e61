package coordinator_test

import (
	"encoding/json"
	"testing"
	"time"

	"mesh/shared/controller"
	"mesh/shared/declaration"
	"mesh/shared/report"
	"mesh/shared/subject"
	"mesh/shared/waitfor"
)

// TestANodeThatMissedItsDeclarationIsSentItAgain: its heartbeats say so, and none of its reports is about it.
func TestANodeThatMissedItsDeclarationIsSentItAgain(t *testing.T) {
	m := newMesh(t)
	ticks := make(chan time.Time)
	m.clk.every = map[time.Duration]chan time.Time{20 * time.Second: ticks}
	m.serve(t)
	c := m.client(t, m.operator)
	n := newMachine(t, "deaf")
	deaf := true
	n.says = func(d *declaration.Declaration) report.Apply {
		if deaf {
			return report.Apply{} // as if it had not come
		}
		return report.Apply{Seq: d.Seq, Outcome: report.Applied}
	}
	n.join(t, c)
	p := ask[controller.Push](t, c, controller.PushSend, controller.PushAsk{All: true, Why: "test"})
	first := waitfor.Value(t, "the declaration", soon, n.decisions)
	beat := func() {
		t.Helper()
		b, err := json.Marshal(report.Heartbeat{At: n.clk.Now().UnixMilli(), Seq: first.Seq - 1})
		if err == nil {
			err = n.conn.Say(subject.Heartbeat("deaf"), b)
		}
		if err == nil {
			err = n.conn.NATS().FlushTimeout(soon)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	deaf = false
	var again *declaration.Declaration
	for again == nil { // two looks with a heartbeat each; the first may come before the send is recorded
		beat()
		select {
		case ticks <- time.Time{}:
		case again = <-n.decisions:
		case <-time.After(soon):
			t.Fatal("it is not sent again")
		}
	}
	if again.Seq != first.Seq {
		t.Errorf("declaration %d was sent, expected %d again", again.Seq, first.Seq)
	}
	done, err := c.Watch(t.Context(), p, soon, nil)
	if err != nil || done.Counts[controller.PushApplied] != 1 {
		t.Errorf("the push that was missed: %+v, %v", done, err)
	}
}

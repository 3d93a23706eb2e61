package coordinator_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"mesh/coordinator/keys"
	"mesh/shared/bus"
	"mesh/shared/clock"
	"mesh/shared/controller"
	"mesh/shared/enrol"
	"mesh/shared/refusal"
	"mesh/shared/subject"
	"mesh/shared/verb"
	"mesh/shared/waitfor"

	"crypto/rand"
)

// core connects beside the coordinator, with its key.
func (m *mesh) core(t *testing.T) *bus.Conn {
	t.Helper()
	k, err := keys.Load(m.dir, clock.Real().Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c, err := bus.Connect(t.Context(), bus.Options{Bus: k.Coordinator.Bus, Seed: k.Coordinator.Seed, Principal: k.Coordinator.Principal(), Name: "beside", Once: true, Clock: clock.Real()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// TestAMachineIsSaidToBeLetInOnce, however often it asks, also while it polls for its first report; and a
// holder of an invitation that floods the door fills no journal and keeps no other machine out.
func TestAMachineIsSaidToBeLetInOnce(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	m.log = &lines{}
	m.serve(t)
	c := m.client(t, m.operator)
	x, in := newMachine(t, "db1"), invite(t, c, "db1")
	for range 5 {
		if _, err := x.enrol(t, in); err != nil {
			t.Fatal(err)
		}
	}
	x.work(t)
	waitfor.True(t, "the answer to say that it was heard", soon, func() (bool, any) {
		a, err := x.enrol(t, in)
		return err == nil && a.Heard, err
	})
	if n := m.log.count("a machine was let in"); n != 1 {
		t.Errorf("it is said %d times that the machine was let in", n)
	}
	// One who holds an invitation, and asks as fast as it can for something else.
	rude := invite(t, c, "db2")
	conn, err := bus.Connect(t.Context(), bus.Options{Bus: rude.Bus, Seed: rude.Seed, Principal: rude.Principal(), Name: "rude", Once: true, Clock: clock.Real()})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, body := range [][]byte{[]byte("{}"), []byte(strings.Repeat("x", 60<<10)), []byte(`{"node":"db9"}`), nil} {
		for range 500 {
			ask := nats.NewMsg(subject.Enrol(rude.ID))
			ask.Data, ask.Reply = body, nats.NewInbox()
			if err := conn.NATS().PublishMsg(ask); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
				t.Fatal(err)
			}
		}
	}
	newMachine(t, "db3").join(t, c)
	var answer enrol.Answer
	if err := verb.CallAt(t.Context(), conn, subject.Enrol(rude.ID), "the door", enrol.Ask{}, &answer); refusal.Of(err) == nil {
		t.Errorf("the flood ends with %v", err)
	}
	if n := m.log.count("msg=verb"); n > 25 {
		t.Errorf("the flood is %d lines in the journal", n)
	}
}

// TestTheNewMachineOfANameFindsNothingOfTheOld, also when what the old one was declared stayed on the bus.
func TestTheNewMachineOfANameFindsNothingOfTheOld(t *testing.T) {
	t.Parallel()
	m := startMesh(t)
	c := m.client(t, m.operator)
	old := newMachine(t, "db1")
	old.join(t, c)
	ask[controller.Push](t, c, controller.PushSend, controller.PushAsk{All: true, Why: "x"})
	d := waitfor.Value(t, "the declaration", soon, old.decisions)
	last, err := old.conn.Last(t.Context(), subject.Declarations, subject.Declaration("db1"))
	if err != nil {
		t.Fatal(err)
	}
	ask[controller.Done](t, c, controller.NodeRemove, controller.NodeRemoveAsk{Node: "db1", Why: "sold"})
	if err := m.core(t).Publish(t.Context(), subject.Declaration("db1"), last, "again"); err != nil { // as if it could not be taken off
		t.Fatal(err)
	}
	young := newMachine(t, "db1")
	in := invite(t, c, "db1")
	if _, err := young.enrol(t, in); err != nil {
		t.Fatal(err)
	}
	young.work(t)
	if b, err := young.conn.Last(t.Context(), subject.Declarations, subject.Declaration("db1")); !errors.Is(err, bus.ErrNone) {
		t.Errorf("the new machine finds %.80q, %v", b, err)
	}
	ask[controller.Push](t, c, controller.PushSend, controller.PushAsk{All: true, Why: "x"})
	own := waitfor.Value(t, "its own declaration", soon, young.decisions)
	if own.Seq <= d.Seq {
		t.Errorf("its own declaration has seq %d, the old one had %d", own.Seq, d.Seq)
	}
	if _, err := young.enrol(t, in); err != nil { // a late ask takes nothing away
		t.Fatal(err)
	}
	if _, err := young.conn.Last(t.Context(), subject.Declarations, subject.Declaration("db1")); err != nil {
		t.Errorf("after another ask its own declaration is gone: %v", err)
	}
	if err := bus.Probe(t.Context(), bus.Options{Bus: old.answer.Bus, Seed: old.seed, Principal: "node-db1", Clock: clock.Real()}); !errors.Is(err, bus.ErrRefused) {
		t.Errorf("the old machine's key: %v", err)
	}
}

package bus_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"mesh/shared/bus"
	"mesh/shared/refusal"
	"mesh/shared/subject"
	"mesh/testbus"
)

// BUS-4: asserting keeps messages, restores what differs, and leaves what is not the mesh's.
func TestAssertIsTheOneDerivation(t *testing.T) {
	b := testbus.Start(t)
	core := b.Connect(t, "coordinator")
	ctx := bounded(t, 20*time.Second)
	js, err := jetstream.New(core.NATS())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "THEIRS", Subjects: []string{"theirs.>"}}); err != nil {
		t.Fatal(err)
	}
	if err := core.Publish(ctx, subject.Declaration("n1"), []byte("kept"), ""); err != nil {
		t.Fatal(err)
	}
	for _, spoiled := range bus.Streams(1) {
		if spoiled.Name == string(subject.Events) {
			spoiled.MaxAge /= 2
			spoiled.Description = "changed by hand"
			if _, err := js.UpdateStream(ctx, spoiled); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := js.DeleteStream(ctx, string(subject.Control)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := bus.Assert(ctx, js, bus.Streams(1)); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range bus.Streams(1) {
		s, err := js.Stream(ctx, want.Name)
		if err != nil {
			t.Errorf("%s: %v", want.Name, err)
			continue
		}
		have := s.CachedInfo().Config
		if have.MaxAge != want.MaxAge || have.Description != want.Description || have.MaxMsgsPerSubject != want.MaxMsgsPerSubject && want.MaxMsgsPerSubject != 0 {
			t.Errorf("%s is %+v", want.Name, have)
		}
		if have.AllowRollup || have.AllowMsgTTL || have.AllowMsgSchedules || have.AllowAtomicPublish || have.AllowMsgCounter {
			t.Errorf("%s takes headers that reach beyond a subject: %+v", want.Name, have)
		}
	}
	if _, err := js.Stream(ctx, "THEIRS"); err != nil {
		t.Errorf("a stream of somebody else: %v", err)
	}
	if d, err := core.Last(ctx, subject.Declarations, subject.Declaration("n1")); err != nil || string(d) != "kept" {
		t.Errorf("a message after asserting: %q, %v", d, err)
	}
}

// One node that says much does not push out what another said once.
func TestALoudNodeDoesNotPushOutAQuietOne(t *testing.T) {
	b := testbus.Start(t, testbus.Node("loud"), testbus.Node("quiet"))
	core, loud, quiet := b.Connect(t, "coordinator"), b.Connect(t, "node-loud"), b.Connect(t, "node-quiet")
	ctx := bounded(t, 60*time.Second)
	if err := quiet.Publish(ctx, subject.Report("quiet"), []byte("once"), ""); err != nil {
		t.Fatal(err)
	}
	large := make([]byte, 512<<10)
	for range 160 { // 80 MiB, more than CONTROL holds
		if err := loud.Publish(ctx, subject.Report("loud"), large, ""); err != nil {
			t.Fatal(err)
		}
	}
	js, err := jetstream.New(core.NATS())
	if err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(ctx, string(subject.Control))
	if err != nil {
		t.Fatal(err)
	}
	m, err := s.GetLastMsgForSubject(ctx, subject.Report("quiet"))
	if err != nil || string(m.Data) != "once" {
		t.Errorf("the quiet node's report: %v, %v", m, err)
	}
}

// Artifacts fill their own share only: declarations and reports are taken on.
func TestArtifactsDoNotFillTheBus(t *testing.T) {
	const room = 300 << 20
	b := testbus.Bounded(t, room, testbus.Node("n1"), testbus.Operator("ada"))
	core, n1, ada := b.Connect(t, "coordinator"), b.Connect(t, "node-n1"), b.Connect(t, "operator-ada")
	ctx := bounded(t, 60*time.Second)
	js, err := jetstream.New(core.NATS())
	if err != nil {
		t.Fatal(err)
	}
	if err := bus.Assert(ctx, js, bus.Streams(1, b.Broker.Room())); err != nil {
		t.Fatal(err)
	}
	chunk := make([]byte, 2<<20)
	stored := 0
	for err == nil && stored < 200 {
		if err = ada.Publish(ctx, subject.Chunk(strings.Repeat("ab", 32), stored), chunk, ""); err == nil {
			stored++
		}
	}
	if !bus.Full(err) || bus.AlreadyThere(err) || errors.Is(err, bus.ErrRefused) {
		t.Errorf("after %d chunks: %v, want that the stream is full", stored, err)
	}
	if stored < 16 || stored > 23 {
		t.Errorf("%d chunks of 2 MiB were taken on a bus of 300 MiB", stored)
	}
	if err := core.Publish(ctx, subject.Declaration("n1"), chunk, ""); err != nil {
		t.Errorf("a declaration on a bus full of artifacts: %v", err)
	}
	if err := n1.Publish(ctx, subject.Report("n1"), []byte("{}"), ""); err != nil {
		t.Errorf("a report on a bus full of artifacts: %v", err)
	}
}

func TestADiskWithoutRoomIsSaid(t *testing.T) {
	b := testbus.Bounded(t, 100<<20)
	js, err := jetstream.New(b.Connect(t, "coordinator").NATS())
	if err != nil {
		t.Fatal(err)
	}
	err = bus.Assert(bounded(t, atOnce), js, bus.Streams(1, b.Broker.Room()))
	if r := refusal.Of(err); r == nil || !strings.Contains(r.What, string(subject.Events)) || !strings.Contains(r.Do, "free some space") {
		t.Errorf("got %v", err)
	}
}

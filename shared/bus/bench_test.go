package bus_test

import (
	"testing"

	"github.com/nats-io/nats.go"

	"mesh/shared/subject"
	"mesh/testbus"
)

// BenchmarkAsk is one question of a node to a seat in the other account, with TLS, and its answer.
func BenchmarkAsk(b *testing.B) {
	w := testbus.Start(b, testbus.Operator("ada", "status"))
	core, ada := w.Connect(b, "coordinator"), w.Connect(b, "operator-ada")
	at := subject.Tool(subject.Controller, "status")
	if _, err := core.NATS().QueueSubscribe(at, string(subject.Controller), func(m *nats.Msg) { _ = m.Respond(m.Data) }); err != nil {
		b.Fatal(err)
	}
	if err := core.NATS().FlushTimeout(atOnce); err != nil {
		b.Fatal(err)
	}
	m := nats.NewMsg(at)
	m.Data = make([]byte, 128)
	for b.Loop() {
		if _, err := ada.Ask(b.Context(), m); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPublish is one report of 2 KiB, until the stream has acknowledged it.
func BenchmarkPublish(b *testing.B) {
	w := testbus.Start(b, testbus.Node("n1"))
	n1 := w.Connect(b, "node-n1")
	data := make([]byte, 2<<10)
	for b.Loop() {
		if err := n1.Publish(b.Context(), subject.Report("n1"), data, ""); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkLast is one declaration of 8 KiB, read by direct get.
func BenchmarkLast(b *testing.B) {
	w := testbus.Start(b, testbus.Node("n1"))
	core, n1 := w.Connect(b, "coordinator"), w.Connect(b, "node-n1")
	if err := core.Publish(b.Context(), subject.Declaration("n1"), make([]byte, 8<<10), ""); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := n1.Last(b.Context(), subject.Declarations, subject.Declaration("n1")); err != nil {
			b.Fatal(err)
		}
	}
}

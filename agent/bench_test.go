package agent_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"mesh/shared/subject"
)

// BenchmarkDeclarationToReport is one changed file of 8 KiB on one agent, from the bus to the stream of
// reports: scoreboard rows 1 and 3, without the coordinator.
func BenchmarkDeclarationToReport(b *testing.B) {
	r := newRig(b).start()
	seq := uint64(0)
	b.ReportAllocs()
	defer cpu(b)()
	for b.Loop() {
		seq++
		b.StopTimer()
		signed := r.sign(seq, mod("notes", strings.Repeat(fmt.Sprintf("value %d\n", seq), 600)))
		b.StartTimer()
		must(b, r.core.NATS().Publish(subject.Declaration("n1"), signed))
		r.applied(seq)
	}
}

// BenchmarkDeclarationAgain is the same declaration sent again and again: scoreboard row 2.
func BenchmarkDeclarationAgain(b *testing.B) {
	r := newRig(b).start()
	signed := r.sign(1, mod("notes", strings.Repeat("value\n", 1200)))
	r.push(signed)
	r.applied(1)
	b.ReportAllocs()
	defer cpu(b)()
	for b.Loop() {
		must(b, r.core.NATS().Publish(subject.Declaration("n1"), signed))
		r.applied(1)
	}
}

// cpu reports the processor time an iteration costs the agent, the bus and the ear together, which a busy
// machine does not stretch.
func cpu(b *testing.B) func() {
	used := func() int64 {
		var u syscall.Rusage
		must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
		return u.Utime.Nano() + u.Stime.Nano()
	}
	before := used()
	return func() { b.ReportMetric(float64(used()-before)/float64(b.N)/1e3, "cpu-µs/op") }
}

// BenchmarkStartToReport is a start with a declaration that holds, from Run to the first report: 70 ms are
// the bound.
func BenchmarkStartToReport(b *testing.B) {
	r := newRig(b).start()
	r.push(r.sign(1, mod("notes", "one", "web")))
	r.applied(1)
	r.stop()
	for b.Loop() {
		r.start()
		r.applied(1)
		b.StopTimer()
		r.stop()
		b.StartTimer()
	}
}

package apply_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"mesh/agent/apply"
	"mesh/shared/manifest"
)

// many is n files of 1 KiB in modules of ten.
func many(n int) (mods []mod) {
	for i := range n / 10 {
		var all []manifest.File
		for j := range 10 {
			all = append(all, file(fmt.Sprintf("/etc/m%02d/%d.conf", i, j), strings.Repeat(fmt.Sprintf("line %d %d\n", i, j), 100)))
		}
		mods = append(mods, module(fmt.Sprintf("m%02d", i), files(all...)))
	}
	return mods
}

// BenchmarkPassUnchanged200 is a pass over 200 files of which none changed: scoreboard row 5.
func BenchmarkPassUnchanged200(b *testing.B) {
	bed := newBed(b)
	applied(b, bed.accept(b, 1, many(200)...))
	bed.clock.Advance(time.Minute)
	applied(b, bed.pass(b, apply.Reconcile))
	b.ReportAllocs()
	defer cpu(b)()
	for b.Loop() {
		if r := bed.pass(b, apply.Reconcile); r.Steps > 0 {
			b.Fatal(r)
		}
	}
}

// BenchmarkPassThorough200 is the same without the quick look: everything is read and planned.
func BenchmarkPassThorough200(b *testing.B) {
	bed := newBed(b)
	applied(b, bed.accept(b, 1, many(200)...))
	bed.clock.Advance(-time.Hour) // nothing is ever old enough to be told by stat
	b.ReportAllocs()
	defer cpu(b)()
	for b.Loop() {
		if r := bed.pass(b, apply.Reconcile); r.Steps > 0 {
			b.Fatal(r)
		}
	}
}

// BenchmarkAcceptOneFile is one changed file from signed declaration to outcome, with its one commit: the
// agent's part of scoreboard rows 1 and 3.
func BenchmarkAcceptOneFile(b *testing.B) {
	bed := newBed(b)
	seq := uint64(0)
	b.ReportAllocs()
	defer cpu(b)()
	for b.Loop() {
		seq++
		b.StopTimer()
		signed := bed.sign(b, seq, bed.content(b, module("notes", files(file("/etc/notes.conf", strings.Repeat(fmt.Sprintf("value %d\n", seq), 600))))))
		b.StartTimer()
		r, err := bed.engine.Accept(b.Context(), signed)
		if err != nil || r.Steps != 1 {
			b.Fatal(r, err)
		}
	}
}

// BenchmarkAcceptAgain is the same declaration once more: scoreboard row 2.
func BenchmarkAcceptAgain(b *testing.B) {
	bed := newBed(b)
	signed := bed.sign(b, 1, bed.content(b, module("notes", files(file("/etc/notes.conf", strings.Repeat("value\n", 1200))))))
	b.ReportAllocs()
	defer cpu(b)()
	for b.Loop() {
		if _, err := bed.engine.Accept(b.Context(), signed); err != nil {
			b.Fatal(err)
		}
	}
}

// cpu reports the processor time an iteration costs, which a busy machine does not stretch.
func cpu(b *testing.B) func() {
	used := func() int64 {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return u.Utime.Nano() + u.Stime.Nano()
	}
	before := used()
	return func() { b.ReportMetric(float64(used()-before)/float64(b.N)/1e3, "cpu-µs/op") }
}

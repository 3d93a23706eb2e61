package main

import (
	"io"
	"testing"

	"mesh/agent/show"
	"mesh/shared/report"
)

// BenchmarkShow is scoreboard row 6 without the start of the process, for finding what costs.
func BenchmarkShow(b *testing.B) {
	h := newHost(b)
	h.store()
	h.daemon(func(d *show.Document) {
		for range 20 {
			d.Modules = append(d.Modules, report.Module{Name: "notes", Build: "build-1", State: report.Running, Since: d.At})
		}
	})
	for name, run := range map[string]string{"up": h.run, "down": b.TempDir()} {
		b.Run(name, func(b *testing.B) {
			h := host{b, h.state, run}
			b.ReportAllocs()
			for b.Loop() {
				h.to(io.Discard, io.Discard)
			}
		})
	}
}

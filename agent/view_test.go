package agent

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mesh/agent/apply"
	"mesh/agent/link"
	"mesh/shared/refusal"
	"mesh/shared/report"
)

var epoch = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func TestAccount(t *testing.T) {
	why := &refusal.Refusal{What: "a", Why: "b", Do: "c"}
	heard := job{heard: &link.Heard{}}
	var v view
	check := func(held uint64, want report.Apply) {
		t.Helper()
		if d := cmp.Diff(want, v.account(held)); d != "" {
			t.Error(d)
		}
	}
	check(0, report.Apply{Outcome: report.None})
	check(7, report.Apply{Seq: 7, Outcome: report.Applying}) // at the start
	v.take(done{result: apply.Result{Seq: 7, Outcome: report.Applied, Took: time.Second}})
	check(7, report.Apply{Seq: 7, Outcome: report.Applied, TookMS: 1000})
	check(8, report.Apply{Seq: 8, Outcome: report.Applying})
	v.take(done{job: heard, result: apply.Result{Seq: 7, Outcome: report.Refused, Refused: why, RefusedSeq: 5}})
	check(7, report.Apply{Seq: 5, Outcome: report.Refused, Refused: why})
	v.take(done{result: apply.Result{Seq: 7, Outcome: report.Applied}})
	check(7, report.Apply{Seq: 5, Outcome: report.Refused, Refused: why}) // a look is no answer to it
	if !v.fail(note{seq: 7, why: why}) || !v.fail(note{9, why, true}) || v.fail(note{9, why, true}) || v.fail(note{seq: 7, why: why}) || !v.fail(note{9, &refusal.Refusal{}, true}) {
		t.Error("a pass that could not be made is news once, and the word about the newest declaration stands")
	}
	v.take(done{result: apply.Result{Seq: 7, Outcome: report.Applied}}) // a look is no answer to that either
	check(7, report.Apply{Seq: 9, Outcome: report.Failed, Refused: &refusal.Refusal{}})
	v.take(done{job: heard, result: apply.Result{Seq: 7, Outcome: report.Applied}}) // the one held, sent again
	check(7, report.Apply{Seq: 7, Outcome: report.Applied, TookMS: 1000})
}

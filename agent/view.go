package agent

import (
	"mesh/agent/apply"
	"mesh/shared/refusal"
	"mesh/shared/report"
)

// view is how it stands with the declaration, in the words of report and show.
type view struct {
	last apply.Result // of the last pass that was made
	// refused stands until a declaration is accepted, or the one held is sent again: looks at the machine
	// in between are about the one held.
	refused *note
	// broken is why the last pass could not be made: to take a declaration in, which stands until one is, or
	// to look.
	broken *note
}

// note is a word about one declaration.
type note struct {
	seq   uint64
	why   *refusal.Refusal
	heard bool // it came over the bus, and was not taken in
}

// take takes in a pass that was made.
func (v *view) take(d done) {
	heard := d.job.heard != nil
	if v.broken != nil && v.broken.heard == heard {
		v.broken = nil
	}
	if r := d.result; r.Outcome == report.Refused {
		v.refused = &note{seq: r.RefusedSeq, why: r.Refused}
		return
	}
	if heard {
		v.refused, v.broken = nil, nil
	}
	// What it took is what the declaration took; a look at a machine that is as it was says nothing of it.
	r := d.result
	if !r.News && r.Seq == v.last.Seq && r.Outcome == v.last.Outcome {
		r.Took = v.last.Took
	}
	v.last = r
}

// fail notes that a pass could not be made, and reports whether that is news.
func (v *view) fail(n note) (news bool) {
	old := v.broken
	if old != nil && old.heard && !n.heard {
		return false
	}
	v.broken = &n
	return old == nil || old.seq != n.seq || *old.why != *n.why
}

// account is how it stands with the declaration, of which held is the one accepted.
func (v *view) account(held uint64) report.Apply {
	switch {
	case v.broken != nil:
		return report.Apply{Seq: v.broken.seq, Outcome: report.Failed, Refused: v.broken.why}
	case v.refused != nil:
		return report.Apply{Seq: v.refused.seq, Outcome: report.Refused, Refused: v.refused.why}
	case held == 0:
		return report.Apply{Outcome: report.None}
	case held != v.last.Seq:
		return report.Apply{Seq: held, Outcome: report.Applying}
	}
	return report.Apply{Seq: held, Outcome: v.last.Outcome, Refused: v.last.Refused, TookMS: v.last.Took.Milliseconds()}
}

package coordinator

import (
	"testing"
	"time"

	"mesh/coordinator/hear"
	"mesh/shared/report"
	"mesh/shared/subject"
)

func TestWhoIsReminded(t *testing.T) {
	start := time.Unix(1_800_000_000, 0)
	unheard := map[subject.Node]uint64{"lacks": 5, "silent": 5, "has": 5, "left": 5, "newer": 6, "late": 5}
	beat := func(seq uint64, at time.Duration, leaving string) hear.Beat {
		return hear.Beat{Seq: seq, Seen: start.Add(at), Leaving: leaving}
	}
	look := func(r *reminder, at time.Duration, want ...subject.Node) {
		t.Helper()
		got := r.look(start.Add(at), unheard, map[subject.Node]hear.Beat{
			"lacks": beat(4, at-time.Second, ""), "silent": beat(4, -time.Second, ""), "has": beat(5, at-time.Second, ""),
			"left": beat(4, at-time.Second, report.Stopping), "newer": beat(5, at-time.Second, "")})
		if len(got) != len(want) || len(want) == 1 && got[0] != want[0] {
			t.Errorf("after %v: %v, expected %v", at, got, want)
		}
	}
	var r reminder
	look(&r, 0)
	unheard["newer"] = 7 // another was sent meanwhile
	look(&r, remindEvery, "lacks")
	unheard["newer"] = 8
	look(&r, 2*remindEvery) // it is given time
	unheard["newer"] = 9
	look(&r, 3*remindEvery, "lacks")
	delete(unheard, "lacks")
	unheard["newer"] = 10
	look(&r, 4*remindEvery)
}

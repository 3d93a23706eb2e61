package records_test

import (
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mesh/coordinator/records"
	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/subject"
)

func rep(n subject.Node, number, seq uint64, o report.Outcome) *report.Report {
	return &report.Report{Format: report.Format, Mesh: "m1", Node: n, Number: number, At: int64(number),
		Apply: report.Apply{Seq: seq, Outcome: o}, Profile: &report.Profile{OS: "debian", Arch: "amd64"}, Uplinks: []string{"eth0"}}
}

func (m *mesh) hear(rs ...*report.Report) []records.Heard {
	m.Helper()
	batch := make([]records.Received, len(rs))
	for i, r := range rs {
		batch[i] = records.Received{Report: r, Heard: m.clk.Now()}
	}
	out, err := m.store.RecordReports(m.Context(), batch)
	m.ok(err)
	return out
}

func (m *mesh) declared(n subject.Node, seq uint64) {
	m.Helper()
	m.ok(m.store.KeepDeclared(m.Context(), []records.NewDeclared{{Node: must(m.store.Node(m.Context(), n)), Seq: seq, Text: records.Pack([]byte("x"))}}))
}

func TestReportsAreOrderedByNumber(t *testing.T) {
	m := newMesh(t)
	m.node("db1")
	m.declared("db1", 1)
	r5 := rep("db1", 5, 1, report.Applied)
	r4 := rep("db1", 4, 1, report.Applying)
	r4.Uplinks = nil
	got := m.hear(r5, r4, r5)
	if !got[0].News || got[1].News || got[2].News || !got[1].Known || !got[1].Old || got[2].Old {
		t.Errorf("heard %+v", got)
	}
	have := must(m.store.Report(t.Context(), "db1"))
	if have.Report.Number != 5 || have.Outcome != report.Applied || have.Seq != 1 || len(have.Report.Uplinks) != 1 {
		t.Errorf("kept %+v", have)
	}
	// also after a restart, when nothing is remembered
	m.ok(m.store.Close())
	m.open()
	if got := m.hear(r4, r5); got[0].News || got[1].News {
		t.Errorf("after a restart: %+v", got)
	}
}

// TestPastReport: a report about a declaration the mesh has moved past says what the machine is like, and
// leaves the account of the apply alone (NOD-8).
func TestPastReport(t *testing.T) {
	m := newMesh(t)
	m.node("db1")
	build := m.notesOn("db1", "one")
	m.declared("db1", 5)
	m.hear(rep("db1", 1, 5, report.Applied))
	m.declared("db1", 6)
	m.clk.Advance(time.Minute)
	late := rep("db1", 2, 5, report.Failed)
	late.Uplinks = []string{"eth0", "eth1"}
	late.Modules = []report.Module{{Name: "notes", Build: build, State: report.Running}}
	got := m.hear(late)[0]
	want := records.Heard{Node: "db1", Known: true, News: true, Past: true, Runs: []records.Runs{{Module: "notes", Build: build}}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("heard (-want +got):\n%s", d)
	}
	have := must(m.store.Report(t.Context(), "db1"))
	if have.Outcome != report.Applied || have.Seq != 5 || !have.Account.Heard.Equal(have.Heard.Add(-time.Minute)) {
		t.Errorf("the account changed: %+v", have.Account)
	}
	if len(have.Report.Uplinks) != 2 {
		t.Errorf("what it says of the machine was not kept: %+v", have.Report)
	}
	if w := must(m.store.Waiting(t.Context())); w["db1"] != "declaration 6 was not sent" {
		t.Errorf("waiting: %v", w)
	}
	m.ok(m.store.RecordSends(t.Context(), []records.Send{{Node: "db1", Seq: 6, Push: "p"}}))
	if w := must(m.store.Waiting(t.Context())); w["db1"] != "it has not spoken of declaration 6" {
		t.Errorf("waiting: %v", w)
	}
	m.hear(rep("db1", 3, 6, report.Failed))
	if w := must(m.store.Waiting(t.Context())); w["db1"] != "declaration 6 is failed" {
		t.Errorf("waiting: %v", w)
	}
	m.hear(rep("db1", 4, 6, report.Applied))
	if w := must(m.store.Waiting(t.Context())); len(w) != 0 {
		t.Errorf("waiting: %v", w)
	}
}

// TestNews: what the events node-runs and node-refused are said from (NOD-9).
// notesOn registers the module notes, assigns it to n and returns its build.
func (m *mesh) notesOn(n subject.Node, description string) string {
	m.Helper()
	b := m.module(`{"module":"notes","description":"` + description + `"}`)
	m.ok(m.assign("notes", records.AssignSet{}, n))
	return b.ID
}

func TestNews(t *testing.T) {
	m := newMesh(t)
	m.node("db1")
	build1 := m.notesOn("db1", "one")
	build2 := m.notesOn("db1", "two")
	m.declared("db1", 2)
	runs := func(number uint64, build string, s report.State) *report.Report {
		r := rep("db1", number, 2, report.Applied)
		r.Modules = []report.Module{{Name: "notes", Build: build, State: s}}
		return r
	}
	refuses := func(number, seq uint64, why string) *report.Report {
		r := rep("db1", number, seq, report.Refused)
		r.Apply.Refused = &refusal.Refusal{What: "a declaration", Why: why, Do: "push"}
		return r
	}
	one := []records.Runs{{Module: "notes", Build: build1}}
	for i, tt := range []struct {
		name    string
		r       *report.Report
		news    bool
		runs    []records.Runs
		refused *records.NodeRefused
	}{
		{"pending", runs(1, build1, report.Pending), true, nil, nil},
		{"it runs", runs(2, build1, report.Running), true, one, nil},
		{"the same again", runs(3, build1, report.Running), false, nil, nil},
		{"it fails", runs(4, build1, report.Broken), true, nil, nil},
		{"it runs again", runs(5, build1, report.Running), true, one, nil},
		{"another build", runs(6, build2, report.Running), true, []records.Runs{{Module: "notes", Build: build2}}, nil},
		{"a build that nobody made", runs(7, "build-7", report.Running), true, nil, nil},
		{"refused", refuses(8, 3, "unknown field"), true, nil, &records.NodeRefused{Seq: 3, Why: "a declaration: unknown field"}},
		{"refused still", refuses(9, 3, "unknown field"), false, nil, nil},
		{"for another reason", refuses(10, 3, "signature"), true, nil, &records.NodeRefused{Seq: 3, Why: "a declaration: signature"}},
		{"another one", refuses(11, 4, "signature"), true, nil, &records.NodeRefused{Seq: 4, Why: "a declaration: signature"}},
	} {
		got := m.hear(tt.r)[0]
		if got.News != tt.news || !cmp.Equal(got.Runs, tt.runs) || !cmp.Equal(got.Refused, tt.refused) {
			t.Errorf("%d %s: heard %+v", i, tt.name, got)
		}
	}
	other := rep("db1", 12, 2, report.Applied)
	other.Modules = []report.Module{{Name: "other", Build: build2, State: report.Running}, {Name: "notes", Build: build2, State: report.Running}, {Name: "notes", Build: build1, State: report.Running}}
	if got := m.hear(other)[0]; !cmp.Equal(got.Runs, []records.Runs{{Module: "notes", Build: build2}}) {
		t.Errorf("a module that nobody assigned, and one twice: heard %+v", got.Runs)
	}
}

// TestEqualReportsCostNothing: nothing is written for what is known, neither by the cache nor, after a
// restart, by the transaction.
func TestEqualReportsCostNothing(t *testing.T) {
	m := newMesh(t)
	m.node("db1", "db2")
	batch := []*report.Report{rep("db1", 1, 0, report.None), rep("db2", 1, 0, report.None)}
	m.hear(batch...)
	size := func() int64 { return must(os.Stat(m.path + "-wal")).Size() }
	before := size()
	for range 100 {
		if got := m.hear(batch...); got[0].News || got[1].News {
			t.Fatalf("heard %+v", got)
		}
	}
	if after := size(); after != before {
		t.Errorf("the log grew from %d to %d bytes", before, after)
	}
}

// TestTheSameAgainIsRememberedNotWritten: the number still orders what comes, who asks hears of the last
// word, and now and then it is written.
func TestTheSameAgainIsRememberedNotWritten(t *testing.T) {
	m := newMesh(t)
	m.node("db1")
	m.declared("db1", 1)
	size := func() int64 { return must(os.Stat(m.path + "-wal")).Size() }
	first := rep("db1", 1, 1, report.Applied)
	first.FreeDisk, first.Apply.TookMS = 5<<30, 40
	m.hear(first)
	before := size()
	m.clk.Advance(time.Minute)
	again := rep("db1", 2, 1, report.Applied)
	again.FreeDisk, again.Profile = 5<<30+1<<20, nil // a log line, and a profile that was said before
	if got := m.hear(again)[0]; got.News || !got.Known {
		t.Errorf("heard %+v", got)
	}
	if after := size(); after != before {
		t.Errorf("the log grew from %d to %d bytes", before, after)
	}
	have := must(m.store.Report(t.Context(), "db1"))
	if have.Report.Number != 2 || !have.Heard.Equal(start.Add(time.Minute)) || have.Account.TookMS != 40 {
		t.Errorf("kept %+v", have)
	}
	other := rep("db1", 2, 1, report.Failed)
	if got := m.hear(other)[0]; got.News {
		t.Error("a report with a number that was heard is news")
	}
	m.clk.Advance(time.Hour)
	third := rep("db1", 3, 1, report.Applied)
	third.FreeDisk = 5<<30 + 2<<20
	if got := m.hear(third)[0]; got.News || size() == before {
		t.Errorf("after an hour: heard %+v, the log has %d bytes as before", got, size())
	}
	m.ok(m.store.Close())
	m.open()
	if have := must(m.store.Report(t.Context(), "db1")); have.Report.Number != 3 || have.Report.FreeDisk != third.FreeDisk {
		t.Errorf("after a restart %+v", have)
	}
}

func TestReportOfNobody(t *testing.T) {
	m := newMesh(t)
	m.node("db1")
	got := m.hear(rep("ghost", 1, 1, report.Applied), rep("db1", 1, 0, report.None))
	if got[0].Known || got[0].News || !got[1].Known || !got[1].News {
		t.Errorf("heard %+v", got)
	}
	m.ok(m.store.RemoveNode(t.Context(), by, "db1"))
	if got := m.hear(rep("db1", 2, 0, report.None)); got[0].Known {
		t.Errorf("a removed node was heard: %+v", got)
	}
	m.node("db1") // another machine under the name starts at 1 again
	if got := m.hear(rep("db1", 1, 0, report.None)); !got[0].News {
		t.Errorf("the new machine was not heard: %+v", got)
	}
}

// TestFacts: the profile of the enrolment holds until a report says another; a change of what composing
// needs is told (NOD-5, NET-3).
func TestFacts(t *testing.T) {
	m := newMesh(t)
	m.node("db1")
	facts := func() records.Facts { return must(m.store.Inputs(t.Context(), "db1")).Facts }
	if f := facts(); f != (records.Facts{OS: "debian", Arch: "amd64"}) {
		t.Errorf("after the enrolment: %+v", f)
	}
	if r := must(m.store.Report(t.Context(), "db1")); r.Report.Number != 0 || r.Outcome != report.None {
		t.Errorf("nothing was heard, kept is %+v", r)
	}
	touched := func(r *report.Report) int {
		mark := m.store.Mark()
		m.hear(r)
		got, _ := m.store.Touched(mark)
		return len(got.Nodes)
	}
	first := rep("db1", 1, 0, report.None)
	first.Profile = nil // says nothing of it
	if touched(first) != 1 {
		t.Error("the first uplink was not told")
	}
	if f := facts(); f != (records.Facts{OS: "debian", Arch: "amd64", Uplinks: 1}) {
		t.Errorf("after the first report: %+v", f)
	}
	r := rep("db1", 2, 0, report.None)
	r.FreeDisk = 7
	if touched(r) != 0 {
		t.Error("free disk is no matter for composing")
	}
	r = rep("db1", 3, 9, report.Applied) // spoke of a seq these records never gave
	if touched(r) != 1 || must(m.store.Inputs(t.Context(), "db1")).Base != 9 {
		t.Error("a seq the node spoke of is given again")
	}
}

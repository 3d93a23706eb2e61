package agent

import (
	"strings"
	"testing"
	"time"

	"mesh/shared/refusal"
	"mesh/shared/report"
)

func whole() report.Report {
	return report.Report{Format: 1, Mesh: "m1", Node: "db1", Number: 7, Boot: "b", At: 1, Agent: report.Agent{Version: "0.1.0"},
		Apply:   report.Apply{Seq: 3, Outcome: report.Failed, Refused: &refusal.Refusal{What: "module notes", Why: "it ended, restart 4", Do: "look"}, TookMS: 12},
		Modules: []report.Module{{Name: "notes", Build: "b1", State: report.Broken, Detail: "it ended, restart 4", Since: 5, Restarts: 4}},
		Profile: &report.Profile{Kernel: "6.1"}, Uplinks: []string{"eth0"}, Filter: &report.Filter{Loaded: true, Since: 9, Repairs: 1}, FreeDisk: 10 << 30}
}

func TestNews(t *testing.T) {
	for name, tt := range map[string]struct {
		edit func(*report.Report)
		want bool
	}{
		"nothing":                 {func(*report.Report) {}, false},
		"another time and number": {func(r *report.Report) { r.At, r.Number, r.Apply.TookMS = 2, 8, 99 }, false},
		"one more restart": {func(r *report.Report) {
			m := &r.Modules[0]
			m.Restarts, m.Since, m.Detail = 5, 6, "it ended, restart 5"
		}, false},
		"the same under the apply's refusal": {func(r *report.Report) {
			r.Apply.Refused = &refusal.Refusal{What: "module notes", Why: "it ended, restart 5", Do: "look"}
		}, false},
		"a log line's worth of disk":       {func(r *report.Report) { r.FreeDisk -= 1 << 20 }, false},
		"a problem that has its own place": {func(r *report.Report) { r.Problems = []report.Problem{{At: 1, Text: "x"}} }, false},
		"a table loaded anew":              {func(r *report.Report) { r.Filter = &report.Filter{Loaded: true, Since: 10, Repairs: 1} }, false},
		"a GiB of disk":                    {func(r *report.Report) { r.FreeDisk -= 1 << 30 }, true},
		"a module that runs":               {func(r *report.Report) { r.Modules[0].State = report.Running }, true},
		"a module that fails otherwise":    {func(r *report.Report) { r.Modules[0].Detail = "its bundle is gone" }, true},
		"another build":                    {func(r *report.Report) { r.Modules[0].Build = "b2" }, true},
		"a declaration":                    {func(r *report.Report) { r.Apply.Seq = 4 }, true},
		"a refusal":                        {func(r *report.Report) { r.Apply.Refused = &refusal.Refusal{What: "a declaration", Why: "x", Do: "y"} }, true},
		"a change by hand":                 {func(r *report.Report) { r.Drift = []report.Drift{{Thing: "file:/x"}} }, true},
		"a repair of the packet filter":    {func(r *report.Report) { r.Filter = &report.Filter{Loaded: true, Since: 9, Repairs: 2} }, true},
		"an uplink":                        {func(r *report.Report) { r.Uplinks = []string{"eth0", "eth1"} }, true},
		"a stray":                          {func(r *report.Report) { r.Strays = []string{"unit:x"} }, true},
		"another kernel":                   {func(r *report.Report) { r.Profile = &report.Profile{Kernel: "6.2"} }, true},
		"another boot":                     {func(r *report.Report) { r.Boot = "c" }, true},
	} {
		var n news
		if yes, key, err := n.is(whole(), epoch); err != nil || !yes {
			t.Fatalf("the first report is news: %v %v", yes, err)
		} else {
			n.said(whole(), key, epoch)
		}
		r := whole()
		tt.edit(&r)
		yes, key, err := n.is(r, epoch.Add(time.Minute))
		if err != nil || yes != tt.want {
			t.Errorf("%s: news %v, want %v (%v)", name, yes, tt.want, err)
		}
		n.said(r, key, epoch.Add(time.Minute))
		r.Drift = nil
		if yes, _, err := n.is(r, epoch.Add(2*time.Minute)); err != nil || yes {
			t.Errorf("%s: it is news a second time (%v)", name, err)
		}
		if yes, _, err := n.is(r, epoch.Add(time.Minute+fullEvery)); err != nil || !yes {
			t.Errorf("%s: an hour later there is a report", name)
		}
	}
}

// A crash loop is seen in turn as ended, as failed, and as started in vain.
func TestACrashLoopIsNewsOnceForEachOfItsFaces(t *testing.T) {
	var n news
	reports := 0
	for i := range 60 {
		r := whole()
		r.Modules[0].Restarts = i
		r.Modules[0].Detail = []string{"it ended and is about to be started again", "it failed (exit-code, status 1)", "it was started again 3 times"}[i%3]
		r.Apply.Refused = &refusal.Refusal{What: "module notes", Why: r.Modules[0].Detail, Do: "look"}
		yes, key, err := n.is(r, epoch.Add(time.Duration(i)*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if yes {
			reports++
			n.said(r, key, epoch.Add(time.Duration(i)*time.Second))
		}
	}
	if reports != 3 {
		t.Errorf("%d reports in a minute of crashing, want 3", reports)
	}
}

// What gets no well answer is refused and silent in turn: each is news once, and so is that it is well again.
func TestWhatIsUnhealthyIsNewsOnceForEachAnswer(t *testing.T) {
	var n news
	reports := 0
	for i := range 60 {
		r := whole()
		r.Modules[0].State, r.Modules[0].Detail = report.Unwell, []string{"connection refused", "no answer in time"}[i%2]
		if i >= 50 {
			r.Modules[0].State, r.Modules[0].Detail = report.Running, ""
		}
		yes, key, err := n.is(r, epoch.Add(time.Duration(i)*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if yes {
			reports++
			n.said(r, key, epoch.Add(time.Duration(i)*time.Second))
		}
	}
	if reports != 3 {
		t.Errorf("%d reports, want 3", reports)
	}
}

func TestAReportFitsTheBus(t *testing.T) {
	r := whole()
	for range 2000 {
		r.Modules = append(r.Modules, report.Module{Name: "m", State: report.Broken, Detail: strings.Repeat("é", 2000)})
		r.Problems = append(r.Problems, report.Problem{Text: strings.Repeat("x", 1000)})
	}
	b, err := encode(r)
	if err != nil || len(b) > report.MaxSize {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
	if got, err := report.Decode(b, "db1"); err != nil || len(got.Modules) != len(r.Modules) {
		t.Errorf("%v", err)
	}
}

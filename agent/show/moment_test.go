package show_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"mesh/agent/show"
	"mesh/agent/state"
	"mesh/shared/report"
)

// record is what a store would keep of documents, one after the other.
func record(t *testing.T, docs ...*show.Document) (all []state.Moment) {
	t.Helper()
	var last *show.Document
	for _, d := range docs {
		parts, err := show.Parts(last, d, "boot-1")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range slices.Sorted(maps.Keys(parts)) {
			all = append(all, state.Moment{N: int64(len(all) + 1), At: time.UnixMilli(d.At), Part: name, Body: parts[name]})
		}
		last = d
	}
	return all
}

// story is a machine over three hours: notes is upgraded and breaks, a rule comes, an opening goes.
func story() (docs []*show.Document) {
	profile := report.Profile{OS: "debian", OSVersion: "12", Kernel: "6.1.0", Engine: "podman 4.3.1"}
	at := func(d time.Duration, edit func(*show.Document)) {
		x := well()
		if n := len(docs); n > 0 {
			*x = *docs[n-1]
			x.Modules = slices.Clone(x.Modules)
		}
		x.At, x.Profile = ago(d), &profile
		edit(x)
		docs = append(docs, x)
	}
	at(3*time.Hour, func(d *show.Document) {
		d.Modules[0].Since = ago(3 * time.Hour)
		d.Declaration.Seq, d.Declaration.Accepted = 6, ago(3*time.Hour)
		d.Strays = []string{"unit:mesh-old-web.service"}
	})
	at(2*time.Hour, func(d *show.Document) {
		d.Declaration.Seq, d.Declaration.Accepted, d.Declaration.Outcome = 7, ago(2*time.Hour), report.Failed
		d.Modules = append(d.Modules, report.Module{Name: "notes", Build: "build-2", State: report.Broken, Detail: "exit code 1", Since: ago(2 * time.Hour), Restarts: 3})
		d.Strays = nil
		d.Filter = &report.Filter{Loaded: true, Rules: []string{"admin: 22/tcp from anywhere", "notes: 80/tcp from anywhere"}, Since: ago(2 * time.Hour)}
	})
	at(time.Hour, func(d *show.Document) {
		d.Modules[1].Restarts = 9 // counts up: no news
		next := profile
		next.Kernel = "6.1.1"
		d.Profile, d.Agent.Version = &next, "0.2.0"
		d.Left = []report.Drift{{Module: "hello", Thing: "file:/etc/hello.conf", What: "content differs", At: ago(time.Hour)}}
	})
	at(time.Minute, func(d *show.Document) { d.Modules = d.Modules[:1] })
	return docs
}

func then(t *testing.T, p *show.Past, d time.Duration) *show.Then {
	t.Helper()
	x, err := p.At(now.Add(-d), now)
	if err != nil {
		t.Fatal(err)
	}
	x.Document.Node, x.Document.Mesh = "db1", "5c3784aa91b0cd10ee"
	return x
}

// TestThen: how a machine was at a time, with the age of each state then (NOD-15).
func TestThen(t *testing.T) {
	docs := story()
	moments := record(t, docs...)
	p, err := show.NewPast(moments, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, d := range map[string]time.Duration{"then-first.txt": 150 * time.Minute, "then-broken.txt": 90 * time.Minute} {
		var b bytes.Buffer
		if err := show.RenderThen(&b, then(t, p, d), now); err != nil {
			t.Fatal(err)
		}
		golden(t, name, b.String())
	}
	b, err := json.MarshalIndent(then(t, p, 30*time.Minute).Page(), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "then.json", string(b)+"\n")
	if got := len(then(t, p, 0).Document.Modules); got != 1 {
		t.Errorf("%d modules now", got)
	}
	if _, err := p.At(now.Add(-4*time.Hour), now); err == nil || !strings.Contains(err.Error(), "its history begins at 2026-11-30T09:00:00Z") {
		t.Errorf("before the history: %v", err)
	}
	empty, err := show.NewPast(nil, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := empty.At(now, now); err == nil {
		t.Error("no history told something")
	}
	// What the daemon says and has not written yet is the last of the history.
	live := *docs[3]
	live.At, live.Modules = ago(0), []report.Module{{Name: "hello", Build: "build-9", State: report.Running, Since: ago(0)}}
	if p, err = show.NewPast(moments, 0, &live); err != nil {
		t.Fatal(err)
	}
	if x := then(t, p, 0).Document.Modules; len(x) != 1 || x[0].Build != "build-9" {
		t.Errorf("now %+v", x)
	}
	if x := then(t, p, time.Second).Document.Modules; len(x) != 1 || x[0].Build != "build-1" {
		t.Errorf("a second ago %+v", x)
	}
}

// TestTrimmedPast: before the first moment from which on everything is known nothing is told.
func TestTrimmedPast(t *testing.T) {
	moments := record(t, story()...)
	from := slices.IndexFunc(moments, func(m state.Moment) bool { return m.At.Equal(now.Add(-time.Hour)) })
	p, err := show.NewPast(moments, moments[from].N, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.At(now.Add(-2*time.Hour), now); err == nil {
		t.Error("told of a time of which not all is known")
	}
	if x := then(t, p, 30*time.Minute).Document; len(x.Modules) != 2 || x.Declaration.Seq != 7 {
		t.Errorf("%+v", x)
	}
}

// TestClockSetBack: moments are in the order in which they happened; a time that was twice is the later one (NOD-14).
func TestClockSetBack(t *testing.T) {
	docs := story()
	docs[2].At = ago(150 * time.Minute) // the clock was set back by an hour and a half
	p, err := show.NewPast(record(t, docs...), 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	x := then(t, p, 150*time.Minute)
	if x.Document.Agent.Version != "0.2.0" || x.SetBack != 1 {
		t.Errorf("agent %s, set back %d times", x.Document.Agent.Version, x.SetBack)
	}
	if v := then(t, p, 160*time.Minute).Document.Agent.Version; v != "0.1.0" {
		t.Errorf("before: %s", v)
	}
}

// TestCompare: declared, found, filter and versions, and what happened in between.
func TestCompare(t *testing.T) {
	p, err := show.NewPast(record(t, story()...), 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	texts := map[uint64][]byte{
		6: []byte(`{"seq":6,"modules":[{"name":"hello","build":"build-1","settings":{"greeting":"hi"},"secrets":{"token":{"k":"aaaa"}},"manifest":{"files":[{"path":"/etc/a","mode":"0644"}]}}]}`),
		7: []byte(`{"seq":7,"modules":[{"name":"hello","build":"build-1","settings":{"greeting":"good\nday"},"secrets":{"token":{"k":"bbbb"}},"manifest":{"files":[{"path":"/etc/a","mode":"0600"},{"path":"/etc/b"}]}}]}`),
	}
	drift := []report.Drift{{Module: "hello", Thing: "file:/etc/hello.conf", What: "content differs", Repaired: true, At: ago(100 * time.Minute)}, {Thing: "unit:x", What: "before", At: ago(5 * time.Hour)}}
	applies := []state.Past{{Seq: 7, Outcome: report.Failed, Why: "refused: x: y", Steps: 3, Took: time.Second, At: now.Add(-2 * time.Hour)}, {Seq: 6, Outcome: report.Applied, At: now.Add(-3 * time.Hour)}}
	d, err := show.Compare(then(t, p, 150*time.Minute), then(t, p, 30*time.Minute), texts, applies, drift)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := show.RenderDiff(&b, d, now); err != nil {
		t.Fatal(err)
	}
	golden(t, "diff.txt", b.String())
	j, err := json.MarshalIndent(d.Page(), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "diff.json", string(j)+"\n")
	if d, err = show.Compare(then(t, p, 30*time.Minute), then(t, p, 20*time.Minute), texts, applies, drift); err != nil || len(d.Changes) != 0 {
		t.Errorf("nothing changed: %+v, %v", d.Changes, err)
	}
	delete(texts, 6)
	if d, err = show.Compare(then(t, p, 150*time.Minute), then(t, p, 30*time.Minute), texts, nil, nil); err != nil || !slices.Equal(d.Unkept, []uint64{6}) {
		t.Errorf("unkept %v, %v", d.Unkept, err)
	}
}

func TestParseTime(t *testing.T) {
	zone := time.FixedZone("there", 3600)
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, zone)
	for text, want := range map[string]string{
		"now": "2026-11-30T12:00:00+01:00", "10m": "2026-11-30T11:50:00+01:00", "1h30m": "2026-11-30T10:30:00+01:00", "3d": "2026-11-27T12:00:00+01:00",
		"yesterday 22:00": "2026-11-29T22:00:00+01:00", "yesterday": "2026-11-29T12:00:00+01:00", "08:30": "2026-11-30T08:30:00+01:00", "today 08:30:15": "2026-11-30T08:30:15+01:00",
		"2026-11-29": "2026-11-29T00:00:00+01:00", "2026-11-29 07:15": "2026-11-29T07:15:00+01:00", "2026-11-30T10:00:00Z": "2026-11-30T10:00:00Z",
		"13:00": "", "soon": "", "-5m": "", "": "", "2027-01-01": "", "5000000d": "",
	} {
		got, err := show.ParseTime(text, now)
		if (err != nil) != (want == "") || err == nil && got.Format(time.RFC3339) != want {
			t.Errorf("%q is %s, %v", text, got.Format(time.RFC3339), err)
		}
	}
}

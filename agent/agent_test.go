package agent_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"mesh/agent"
	"mesh/agent/filter"
	"mesh/agent/show"
	"mesh/agent/state"
	"mesh/shared/bundle"
	"mesh/shared/declaration"
	"mesh/shared/manifest"
	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/rule"
	"mesh/shared/sqlite"
	"mesh/shared/subject"
	"mesh/shared/waitfor"
)

func TestDeclaredAppliedReported(t *testing.T) {
	r := newRig(t)
	r.links = &filter.Links{Uplinks: []string{"eth0"}, Outside: []string{"eth0"}}
	r.start()
	first := r.report()
	if first.Apply.Outcome != report.None || first.Apply.Seq != 0 || first.Boot == "" || first.Agent.Digest != strings.Repeat("ab", 32) || first.Profile == nil || len(first.Uplinks) != 1 {
		t.Errorf("the first report: %+v", first)
	}
	c := content(t, mod("notes", "one", "web"))
	c.Filter = &declaration.Filter{Allow: []rule.Allow{{Owner: "admin", Port: rule.Port{First: 22, Last: 22, Protocol: "tcp"}, From: rule.From{Anywhere: true}}}}
	r.push(signAs(t, r.signer, "n1", 7, c))
	p := r.applied(7)
	if p.Number <= first.Number || len(p.Modules) != 1 || p.Modules[0].Name != "notes" || p.Modules[0].State != report.Running || p.Modules[0].Build != "build-1" ||
		p.Profile.Kernel != "6.1" || len(p.Uplinks) != 1 || p.Uplinks[0] != "eth0" || p.Filter == nil || !p.Filter.Loaded || len(p.Filter.Rules) != 1 || p.FreeDisk == 0 {
		t.Errorf("%+v", p)
	}
	r.reads("etc/notes.conf", "one")
	d := r.shows("what was reported", func(d show.Document) bool { return d.Declaration.Seq == 7 && d.Outbox.Depth == 0 })
	if v, amiss := d.Judge(); v != show.Well || !d.Bus.Up || d.Bus.Address != r.cred.Bus.Addresses[0] || d.Agent != p.Agent || d.Declaration.Accepted == 0 || d.Filter == nil || len(d.Uplinks) != 1 {
		t.Errorf("%v %+v", amiss, d)
	}
}

// tables is all that the store holds.
func (r *rig) tables() string {
	r.t.Helper()
	db, err := sqlite.Open(r.t.Context(), r.path("state/state.db"), sqlite.Options{ID: state.ID, Migrations: os.DirFS("state/migrations"), ReadOnly: true})
	must(r.t, err)
	defer func() { must(r.t, db.Close()) }()
	var out strings.Builder
	for _, table := range []string{"declaration", "ledger", "module", "problem", "history", "drift", "meta", "outbox"} {
		rows, err := db.Read().Query("SELECT * FROM " + table)
		must(r.t, err)
		columns, err := rows.Columns()
		must(r.t, err)
		for rows.Next() {
			row := make([]any, len(columns))
			for i := range row {
				row[i] = new(sql.RawBytes)
			}
			must(r.t, rows.Scan(row...))
			for _, c := range row {
				fmt.Fprintf(&out, "%s %s\n", table, *c.(*sql.RawBytes))
			}
		}
		must(r.t, errors.Join(rows.Err(), rows.Close()))
	}
	return out.String()
}

// What has not changed was not committed, neither synced nor lazily.
func TestPushedAgainIsAnsweredAndCommitsNothing(t *testing.T) {
	r := newRig(t).start()
	signed := r.sign(3, mod("notes", "one", "web"))
	r.push(signed)
	r.applied(3)
	r.push(signed) // what was staged is written with the first pass that has nothing to say
	first := r.applied(3)
	r.shows("an empty outbox", func(d show.Document) bool { return d.Declaration.Seq == 3 && d.Outbox.Depth == 0 })
	r.push(signed)
	first = r.applied(3)
	before := r.tables()
	for i := range 3 {
		r.push(signed)
		p := r.applied(3)
		if p.Number != first.Number+uint64(i)+1 || len(p.Modules) != 1 || p.Apply.Outcome != report.Applied {
			t.Errorf("answer %d: %+v", i, p)
		}
	}
	if d := cmp.Diff(before, r.tables()); d != "" {
		t.Errorf("the store changed: %s", d)
	}
}

// TestWhoKnowsTheLastReportHearsAHeartbeat: what was said stands, and the rest is said in full.
func TestWhoKnowsTheLastReportHearsAHeartbeat(t *testing.T) {
	r := newRig(t).start()
	signed := r.sign(3, mod("notes", "one", "web"))
	r.push(signed)
	last := r.applied(3)
	r.silent("all was said")
	for len(r.beats) > 0 {
		<-r.beats
	}
	pushKnowing := func(known uint64) {
		t.Helper()
		m := nats.NewMsg(subject.Declaration("n1"))
		m.Data = signed
		m.Header.Set(report.KnownHeader, fmt.Sprint(known))
		must(t, r.core.NATS().PublishMsg(m))
	}
	pushKnowing(last.Number)
	if h := waitfor.Value(t, "the answer", soon, r.beats); h.Seq != 3 || h.Report != last.Number {
		t.Errorf("the heartbeat is %+v, expected seq 3 and report %d", h, last.Number)
	}
	r.silent("nothing is new")
	pushKnowing(last.Number - 1) // a coordinator that lost one
	if p := r.applied(3); p.Number != last.Number+1 {
		t.Errorf("the report has number %d, expected %d", p.Number, last.Number+1)
	}
	signed = r.sign(4, mod("notes", "two", "web"))
	pushKnowing(last.Number + 1)
	r.applied(4)
}

func TestARefusalIsSaidUntilAGoodOneComes(t *testing.T) {
	r := newRig(t).still()
	other := newRig(t)
	r.start()
	r.push(r.sign(5, mod("notes", "five", "web")))
	r.applied(5)
	seq := uint64(5)
	spliced := func(text string) declaration.Signed { // a field of a newer release
		body := `{"format":1,"mesh":"m1","node":"n1","seq":` + fmt.Sprint(seq+1) + `,` + text + `}`
		s, err := declaration.Sign(r.signer, []byte(body))
		must(t, err)
		return s
	}
	for _, tt := range []struct {
		name string
		bad  func() declaration.Signed
		seq  func() uint64
		why  string
	}{
		{"an unknown field", func() declaration.Signed { return spliced(`"colour":"red"`) }, func() uint64 { return seq + 1 }, "colour"},
		{"signed by another", func() declaration.Signed { return signAs(t, other.signer, "n1", seq+1, content(t)) }, func() uint64 { return seq + 1 }, "its signature is not by the key"},
		{"for another node", func() declaration.Signed { return signAs(t, r.signer, "n2", seq+1, content(t)) }, func() uint64 { return seq + 1 }, "it is for n2"},
		{"an older seq", func() declaration.Signed { return r.sign(2, mod("notes", "two")) }, func() uint64 { return 2 }, "seq only grows"},
		{"no declaration at all", func() declaration.Signed { return []byte("hello") }, func() uint64 { return 0 }, "not a signed declaration"},
	} {
		want := tt.seq()
		r.push(tt.bad())
		p := r.report()
		if p.Apply.Outcome != report.Refused || p.Apply.Seq != want || p.Apply.Refused == nil || !strings.Contains(p.Apply.Refused.Error(), tt.why) || len(p.Modules) != 1 {
			t.Errorf("%s: reported %+v", tt.name, p)
		}
		says := func(d show.Document) bool {
			v, amiss := d.Judge()
			return v == show.Amiss && d.Declaration.Seq == seq && d.Declaration.Outcome == report.Refused && d.Declaration.RefusedSeq == want && strings.Contains(strings.Join(amiss, "\n"), tt.why)
		}
		r.shows(tt.name, says)
		if got := r.read("etc/notes.conf"); got != "five" {
			t.Errorf("%s: the machine changed to %s", tt.name, got)
		}
		r.looked(time.Minute)
		r.shows(tt.name+", a minute later", func(d show.Document) bool { return says(d) && d.At == r.clock.Now().UnixMilli() })
		r.silent(tt.name)
		seq += 2
		r.push(r.sign(seq, mod("notes", "five", "web")))
		r.applied(seq)
		r.shows(tt.name+" is over", func(d show.Document) bool { v, _ := d.Judge(); return v == show.Well && d.Declaration.Seq == seq })
	}
	// The one held, sent once more, is a good one too.
	held := r.sign(seq, mod("notes", "five", "web"))
	r.push(signAs(t, other.signer, "n1", seq+1, content(t)))
	if p := r.report(); p.Apply.Outcome != report.Refused {
		t.Errorf("%+v", p)
	}
	r.push(held)
	r.applied(seq)
}

func TestReportsAreNewsOrHourly(t *testing.T) {
	r := newRig(t).still().start()
	r.push(r.sign(1, mod("notes", "one", "web")))
	last := r.applied(1)
	for range 5 {
		r.looked(time.Minute)
	}
	r.silent("five minutes in which nothing happened")
	r.clock.Advance(time.Hour)
	p := r.report()
	if p.Number != last.Number+1 || len(p.Modules) != 1 || p.Profile == nil {
		t.Errorf("the hourly report: %+v", p)
	}
	r.looked(time.Minute)
	r.silent("a minute after it")
}

func TestDriftIsRepairedAtOnceAndSaidOnce(t *testing.T) {
	r := newRig(t).still().start()
	r.push(r.sign(1, mod("notes", "one", "web")))
	r.applied(1)
	must(t, os.WriteFile(r.root("etc/notes.conf"), []byte("edited"), 0o644))
	for range 5 { // one change on a machine is many events
		r.changed <- struct{}{}
	}
	waitfor.True(t, "the events to be gathered", soon, func() (bool, any) { return len(r.changed) == 0, nil })
	if got := r.read("etc/notes.conf"); got != "edited" {
		t.Errorf("it was repaired within the moment in which events are gathered: %s", got)
	}
	waitfor.True(t, "the repair", soon, func() (bool, any) {
		r.clock.Advance(10 * time.Millisecond)
		return r.read("etc/notes.conf") == "one", nil
	})
	p := r.report()
	if len(p.Drift) != 1 || p.Drift[0].Thing != "file:/etc/notes.conf" || !p.Drift[0].Repaired || p.Apply.Outcome != report.Applied {
		t.Errorf("%+v", p)
	}
	r.looked(time.Minute)
	r.looked(time.Minute)
	r.silent("the change was said")
}

// With drift=report a change by hand stays, and show says so until somebody undoes it.
func TestDriftThatIsOnlyReportedIsShownWhileItIsThere(t *testing.T) {
	r := newRig(t).still().start()
	c := content(t, mod("notes", "one", "web"))
	c.Drift = declaration.ReportOnly
	r.push(signAs(t, r.signer, "n1", 1, c))
	r.applied(1)
	must(t, os.WriteFile(r.root("etc/notes.conf"), []byte("edited"), 0o644))
	r.looked(time.Minute)
	if p := r.report(); len(p.Drift) != 1 || p.Drift[0].Repaired {
		t.Errorf("%+v", p)
	}
	left := func(n int) func(show.Document) bool {
		return func(d show.Document) bool {
			v, _ := d.Judge()
			return len(d.Left) == n && (v == show.Well) == (n == 0) && len(d.Drift) == 1
		}
	}
	r.shows("what stays", left(1))
	r.looked(time.Minute)
	r.silent("it was said")
	must(t, os.WriteFile(r.root("etc/notes.conf"), []byte("one"), 0o644))
	r.looked(time.Minute)
	r.shows("that it is undone", left(0))
}

func TestACrashLoopIsNewsOnce(t *testing.T) {
	r := newRig(t).still().start()
	r.push(r.sign(1, mod("notes", "one", "web")))
	r.applied(1)
	const web = "mesh-notes-web.service"
	reports := 0
	for i := range 20 {
		r.units.set(web, func(u *deskUnit) {
			u.active, u.sub, u.result, u.restarts = "activating", "auto-restart", "exit-code", i/2
			if i%2 == 1 {
				u.active, u.sub, u.result, u.restarts = "active", "running", "success", i/2+1
			}
		})
		r.changed <- struct{}{}
		waitfor.True(t, "the event to be taken", soon, func() (bool, any) { return len(r.changed) == 0, nil })
		looks := r.units.looks()
		waitfor.True(t, "a look", soon, func() (bool, any) {
			r.clock.Advance(20 * time.Millisecond)
			return r.units.looks() > looks, nil
		})
	}
	r.shows("a module that is not well", func(d show.Document) bool { v, _ := d.Judge(); return v == show.Amiss })
	for len(r.reports) > 0 {
		reports++
		if p := r.report(); p.Modules[0].State != report.Broken {
			t.Errorf("report %d: %+v", reports, p)
		}
	}
	if reports != 1 {
		t.Errorf("%d reports of one crash loop", reports)
	}
}

func TestAModuleThatFailedIsTriedAgain(t *testing.T) {
	r := newRig(t).still()
	r.units.fails = 2
	r.start()
	r.push(r.sign(1, mod("notes", "one", "web")))
	for {
		if p := r.report(); p.Apply.Seq == 1 {
			if p.Apply.Outcome != report.Failed || p.Modules[0].State != report.Broken || p.Apply.Refused == nil {
				t.Errorf("%+v", p)
			}
			break
		}
	}
	began := r.clock.Now()
	waitfor.True(t, "the next tries", soon, func() (bool, any) {
		r.clock.Advance(time.Second)
		r.units.mu.Lock()
		defer r.units.mu.Unlock()
		u := r.units.all["mesh-notes-web.service"]
		return u.active == "active", u
	})
	if took := r.clock.Now().Sub(began); took > 40*time.Second {
		t.Errorf("it was tried again after %v, as if by the look a minute", took)
	}
	waitfor.True(t, "the report that it is well", soon, func() (bool, any) { r.clock.Advance(time.Second); return len(r.reports) > 0, nil })
	r.applied(1)
}

func TestAPassThatCannotBeMadeIsSaidAndTriedAgain(t *testing.T) {
	r := newRig(t).still().start()
	r.push(r.sign(1, mod("notes", "one", "web")))
	r.applied(1)
	must(t, os.Rename(r.root("etc/passwd"), r.root("etc/passwd-")))
	r.push(r.sign(2, mod("notes", "two", "web")))
	p := r.report()
	if p.Apply.Seq != 2 || p.Apply.Outcome != report.Failed || p.Apply.Refused == nil || !strings.Contains(p.Apply.Refused.Why, "passwd") || len(p.Problems) == 0 {
		t.Errorf("%+v", p)
	}
	r.shows("the failure", func(d show.Document) bool { v, _ := d.Judge(); return v == show.Amiss && d.Declaration.Seq == 1 })
	for range 3 {
		r.clock.Advance(5 * time.Second)
	}
	r.clock.Advance(time.Minute)
	r.silent("the same failure over and over")
	must(t, os.Rename(r.root("etc/passwd-"), r.root("etc/passwd")))
	waitfor.True(t, "the next try", soon, func() (bool, any) {
		r.clock.Advance(time.Second)
		return r.read("etc/notes.conf") == "two", r.log.text()
	})
	r.applied(2)
	if n := r.log.count("ERROR a pass could not be made"); n != 1 {
		t.Errorf("it was logged %d times:\n%s", n, r.log.text())
	}
}

func TestTheMachineIsKeptWithoutABus(t *testing.T) {
	r := newRig(t).start()
	r.push(r.sign(4, mod("notes", "one", "web")))
	r.applied(4)
	r.stop()
	must(t, os.Remove(r.root("etc/notes.conf")))
	was := r.cred.Bus.Addresses
	r.cred.Bus.Addresses = []string{silent(t), silent(t)}
	r.start()
	r.reads("etc/notes.conf", "one")
	d := r.shows("a bus that is away", func(d show.Document) bool { return d.Outbox.Depth > 0 && d.Declaration.Outcome == report.Applied })
	if v, amiss := d.Judge(); v != show.Amiss || d.Bus.Up || d.Declaration.Outcome != report.Applied || len(d.Modules) != 1 || len(amiss) != 1 {
		t.Errorf("%v %v %+v", v, amiss, d)
	}
	r.stop() // in the middle of a try to reach the bus
	r.cred.Bus.Addresses = was
	r.start()
	for len(r.applied(4).Drift) == 0 { // what was found without a bus is reported with one
	}
}

func TestTheOutboxKeepsWhatIsSaidWhileTheBusIsAway(t *testing.T) {
	r := newRig(t).still().start()
	r.push(r.sign(1, mod("notes", "one", "web")))
	r.applied(1)
	r.shows("the bus", func(d show.Document) bool { return d.Bus.Up })
	back := r.away()
	r.shows("that the bus is away", func(d show.Document) bool { return !d.Bus.Up && d.Bus.Why != "" })
	must(t, os.WriteFile(r.root("etc/notes.conf"), []byte("edited"), 0o644))
	r.looked(time.Minute)
	r.reads("etc/notes.conf", "one")
	r.shows("a report that waits", func(d show.Document) bool { return d.Outbox.Depth == 1 })
	r.silent("the bus is away")
	back()
	if p := r.report(); len(p.Drift) != 1 {
		t.Errorf("%+v", p)
	}
	r.shows("the bus, and an empty outbox", func(d show.Document) bool {
		r.clock.Advance(time.Minute)
		return d.Bus.Up && d.Outbox.Depth == 0
	})
}

func TestHeartbeatsAndGoodBye(t *testing.T) {
	r := newRig(t).still()
	tells := make(chan func(string, bool), 1)
	r.change = func(_ *agent.Config, m *agent.Machine) {
		m.Stopping = func(context.Context) bool { return true }
		m.Rests = func(ctx context.Context, tell func(string, bool)) error { tells <- tell; <-ctx.Done(); return nil }
	}
	r.start()
	r.push(r.sign(9, mod("notes", "one")))
	r.applied(9)
	waitfor.True(t, "a heartbeat", soon, func() (bool, any) { r.clock.Advance(10 * time.Second); return len(r.beats) > 0, nil })
	if h := <-r.beats; h.Seq != 9 || h.Leaving != "" || h.At == 0 {
		t.Errorf("%+v", h)
	}
	// It suspends, and nothing is heard of it until it is back.
	tell := <-tells
	tell(report.Suspend, true)
	for waitfor.Value(t, "the good-bye", soon, r.beats).Leaving != report.Suspend {
	}
	r.clock.Advance(5 * time.Minute)
	must(t, r.core.NATS().FlushTimeout(soon))
	if len(r.beats) > 0 {
		t.Errorf("asleep, and %d heartbeats", len(r.beats))
	}
	tell(report.Suspend, false)
	if h := waitfor.Value(t, "the first heartbeat", soon, r.beats); h.Leaving != "" {
		t.Errorf("back with %+v", h)
	}
	r.stop()
	must(t, r.core.NATS().FlushTimeout(soon))
	var last report.Heartbeat
	for last.Leaving == "" {
		last = waitfor.Value(t, "the good-bye", soon, r.beats)
	}
	if last.Leaving != "shutdown" || last.Seq != 9 || len(r.beats) > 0 {
		t.Errorf("%+v, and %d after it", last, len(r.beats))
	}
	for _, want := range []string{"READY=1", "STOPPING=1"} {
		if got := waitfor.Value(t, want, soon, r.said); got != want {
			t.Errorf("systemd was told %s, want %s", got, want)
		}
	}
}

// An agent that is stopped on a machine that goes on is missed (NOD-11).
func TestAStoppedAgentIsMissed(t *testing.T) {
	r := newRig(t).start()
	r.report()
	r.stop()
	for {
		if h := waitfor.Value(t, "the good-bye", soon, r.beats); h.Leaving != "" {
			if h.Leaving != report.Stopping || report.Rests(h.Leaving) {
				t.Errorf("%+v", h)
			}
			return
		}
	}
}

func TestAnAgentThatCannotGoOnSaysSoAndNoGoodBye(t *testing.T) {
	r := newRig(t)
	events := make(chan error)
	r.change = func(_ *agent.Config, m *agent.Machine) {
		m.Events = func(context.Context) error { return <-events }
	}
	cfg := r.config()
	done := make(chan error, 1)
	go func() { done <- agent.Run(t.Context(), cfg) }()
	r.report()
	broken := errors.New("broken")
	events <- broken
	if err := waitfor.Value(t, "the end", soon, done); !errors.Is(err, broken) || !strings.Contains(err.Error(), "events") {
		t.Errorf("it ended with %v", err)
	}
	must(t, r.core.NATS().FlushTimeout(soon))
	for len(r.beats) > 0 {
		if h := <-r.beats; h.Leaving != "" {
			t.Errorf("%+v", h)
		}
	}
}

func TestASecondAgentIsRefused(t *testing.T) {
	r := newRig(t).start()
	r.report()
	if err := agent.Run(t.Context(), r.config()); refusal.Of(err) == nil || !strings.Contains(err.Error(), "a second agent") {
		t.Errorf("it ended with %v", err)
	}
	r.stop()
	r.start()
	r.report()
}

func TestStoppedWhileItStarts(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := agent.Run(ctx, newRig(t).config()); err != nil {
		t.Errorf("it ended with %v", err)
	}
}

func TestAPassThatHangsHoldsUpNothing(t *testing.T) {
	r := newRig(t).still()
	r.change = func(cfg *agent.Config, _ *agent.Machine) { cfg.Watchdog = 10 * time.Second }
	r.start()
	r.report()
	r.units.stall = make(chan struct{})
	r.push(r.sign(2, mod("notes", "one", "web")))
	r.reads("etc/notes.conf", "one")
	fed := func(s string) bool { return s == "WATCHDOG=1" }
	waitfor.True(t, "the watchdog to be fed", soon, func() (bool, any) {
		r.clock.Advance(time.Second)
		select {
		case s := <-r.said:
			return fed(s), s
		default:
			return false, nil
		}
	})
	p := r.report()
	if p.Apply.Seq != 2 || p.Apply.Outcome != report.Applying {
		t.Errorf("%+v", p)
	}
	r.shows("that it is under way", func(d show.Document) bool { return d.Declaration.Seq == 2 && d.Declaration.Outcome == report.Applying })
	close(r.units.stall)
	r.applied(2)
}

func TestStoppedInTheMiddleOfAPass(t *testing.T) {
	r := newRig(t).still()
	r.units.block = make(chan struct{})
	r.start()
	r.report()
	r.push(r.sign(2, mod("notes", "one", "web")))
	waitfor.True(t, "the look that hangs", soon, func() (bool, any) { s := r.log.text(); return len(r.reports) == 0, s })
	r.stop()
	r.units.block = nil
	r.start()
	r.applied(2)
	r.reads("etc/notes.conf", "one")
}

// A stop in the middle of a fetch loses nothing of what came; the next life goes on from there.
func TestStoppedInTheMiddleOfAFetch(t *testing.T) {
	dist := t.TempDir()
	must(t, os.WriteFile(dist+"/web", []byte(strings.Repeat("program ", 1<<17)), 0o755))
	var packed strings.Builder
	digest, size, err := bundle.Pack(&packed, dist)
	must(t, err)
	r := newRig(t, digest)
	ada := r.bus.Connect(t, "operator-ada")
	for n := range bundle.Chunks(size) {
		at, length := bundle.Span(n, size)
		must(t, ada.Publish(t.Context(), subject.Chunk(digest, n), []byte(packed.String()[at:at+length]), ""))
	}
	came, release := make(chan struct{}), make(chan struct{})
	r.change = func(cfg *agent.Config, m *agent.Machine) {
		cfg.FailPoint = func(at string) {
			if at == "fetch bundle: a chunk written" {
				came <- struct{}{}
				<-release
			}
		}
	}
	r.start()
	r.report()
	m := manifest.Manifest{Module: "notes", Build: manifest.Build{Bundle: &manifest.Bundle{Output: "dist"}},
		Run: manifest.Run{Processes: map[string]manifest.Process{"web": {Exec: []string{"web"}}}}}
	c := content(t, m)
	c.Modules[0].Artifact = &declaration.Artifact{Digest: digest, Size: size, Chunks: bundle.Chunks(size)}
	r.push(signAs(t, r.signer, "n1", 3, c))
	waitfor.Value(t, "a chunk", soon, came)
	stopped := make(chan struct{})
	go func() { defer close(stopped); r.stop() }()
	close(release)
	go func() { // there may be more of them
		for range came {
		}
	}()
	waitfor.Value(t, "the end", soon, closed(stopped))
	close(came)
	r.change = nil
	r.start()
	r.applied(3)
	if _, err := os.Stat(r.path("state/bundles/" + digest + "/web")); err != nil {
		t.Error(err)
	}
}

// closed delivers when c closes.
func closed(c <-chan struct{}) <-chan struct{} {
	out := make(chan struct{}, 1)
	go func() { <-c; out <- struct{}{} }()
	return out
}

// TestAnApplyLaysNothingDown: show asks the daemon; what it said last is laid down when it ends.
func TestAnApplyLaysNothingDown(t *testing.T) {
	r := newRig(t).start()
	r.shows("the bus", func(d show.Document) bool { return d.Bus.Up })
	path := r.path("run/" + agent.StatusFile)
	before, err := os.Stat(path)
	must(t, err)
	r.push(r.sign(3, mod("notes", "one", "web")))
	r.applied(3)
	if d := r.status(); d.Declaration.Seq != 3 || len(d.Modules) != 1 {
		t.Errorf("asked: %+v", d)
	}
	if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) {
		t.Errorf("an apply laid the status down: %v", err)
	}
	r.stop()
	if d := r.status(); d.Node != "" {
		t.Errorf("a daemon that ended answers: %+v", d)
	}
	b, err := os.ReadFile(path)
	var last show.Document
	must(t, errors.Join(err, json.Unmarshal(b, &last)))
	if last.Declaration.Seq != 3 || len(last.Modules) != 1 {
		t.Errorf("what was laid down at the end: %s", b)
	}
}

package agent_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"mesh/agent/show"
	"mesh/agent/state"
	"mesh/shared/clock"
	"mesh/shared/report"
)

// history is what the machine remembers of itself, read beside a running agent.
func (r *rig) history() (*show.Past, []state.Moment) {
	r.t.Helper()
	s, err := state.OpenReadOnly(r.t.Context(), r.path("state/state.db"), clock.Real())
	must(r.t, err)
	defer s.Close()
	all, from, err := s.Moments(r.t.Context())
	must(r.t, err)
	live, err := show.Ask(r.t.Context(), r.path("run/"+show.Socket))
	if err != nil {
		live = nil
	}
	p, err := show.NewPast(all, from, live)
	must(r.t, err)
	return p, all
}

// TestTheAgentRemembersHowItsMachineWas: from its own store, cut off from the bus and with the agent down; a
// machine that is as it was adds nothing, and a new life only that it is one (NOD-15).
func TestTheAgentRemembersHowItsMachineWas(t *testing.T) {
	r := newRig(t).still().start()
	r.report()
	r.push(r.sign(1, mod("notes", "one", "web")))
	r.applied(1)
	first := r.clock.Now()
	r.clock.Advance(time.Hour)
	back := r.away() // cut off, and something happens
	must(t, os.Remove(r.root("/etc/systemd/system/mesh-notes-web.service")))
	r.units.set("mesh-notes-web.service", func(u *deskUnit) { u.active, u.sub = "failed", "failed" })
	r.looked(time.Minute)
	back()
	r.clock.Advance(time.Hour)
	r.push(r.sign(2, mod("notes", "two", "web"), mod("later", "x")))
	r.applied(2)
	r.shows("declaration 2", func(d show.Document) bool { return d.Declaration.Seq == 2 })
	second := r.clock.Now()
	p, _ := r.history()
	for _, tt := range []struct {
		at   time.Time
		seq  uint64
		mods string
	}{{first, 1, "notes"}, {second, 2, "later notes"}} {
		x, err := p.At(tt.at, second)
		must(t, err)
		var names []string
		for _, m := range x.Document.Modules {
			names = append(names, string(m.Name))
		}
		if d := x.Document; d.Declaration.Seq != tt.seq || strings.Join(names, " ") != tt.mods || !d.Daemon.Up || d.Profile == nil || d.Declaration.Outcome != report.Applied {
			t.Errorf("at %v: %+v", tt.at, d)
		}
	}
	r.stop()
	p, all := r.history()
	if x, err := p.At(second, second); err != nil || x.Document.Daemon.Up {
		t.Errorf("the agent ended, and its history says that it runs: %v", err)
	}
	if since := all[0].At; !since.Equal(first.Truncate(time.Millisecond)) && since.After(first) {
		t.Errorf("it begins at %v", since)
	}
	r.start()
	r.report()
	r.looked(time.Minute)
	r.looked(time.Minute)
	doc := r.shows("ages of what it shows", func(d show.Document) bool { return d.Since["declared"] > 0 })
	if at := doc.Since["declared"]; at > second.UnixMilli() {
		t.Errorf("declared since %d", at)
	}
	r.stop()
	_, more := r.history()
	var news []string
	for _, m := range more[len(all):] {
		news = append(news, m.Part)
	}
	if strings.Join(news, " ") != "agent agent" {
		t.Errorf("a life in which nothing changed added %q", news)
	}
}

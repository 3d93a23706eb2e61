package show_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mesh/agent/show"
	"mesh/agent/state"
	"mesh/firewall"
	"mesh/firewall/foreign"
	"mesh/shared/clock"
	"mesh/shared/refusal"
	"mesh/shared/report"
)

var update = flag.Bool("update", false, "rewrite golden files")

var now = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) int64 { return now.Add(-d).UnixMilli() }

func well() *show.Document {
	return &show.Document{Format: 1, Node: "db1", Mesh: "m1", At: ago(0), Agent: report.Agent{Version: "0.1.0"}, Daemon: show.Daemon{Up: true, PID: 1},
		Bus:         show.Bus{Up: true, Address: "198.18.0.11:4222", Since: ago(3 * time.Hour)},
		Declaration: show.Declaration{Seq: 7, Accepted: ago(10 * time.Minute), Outcome: report.Applied, TookMS: 412, Drift: "repair"},
		Modules:     []report.Module{{Name: "hello", Build: "build-1", State: report.Running, Since: ago(9 * time.Minute)}},
		Uplinks:     []string{"eth0"}, Filter: &report.Filter{Loaded: true, Rules: []string{"admin: 22/tcp from anywhere", "hello: 8080/tcp from anywhere"}, Since: ago(time.Hour)},
		Drift: []report.Drift{}, Strays: []string{}, Problems: []report.Problem{}, FreeDisk: 3 << 30}
}

// live is what the kernel says of a machine where ufw and docker filter too.
func live() show.Live {
	return show.Live{
		Counts: []firewall.Count{{Name: "answers_input", What: "to this machine, part of a known flow", Packets: 90210, Bytes: 1 << 30}, {Name: "ping", What: "ping"},
			{Name: "refused", What: "refused", Packets: 1024, Bytes: 61440}, {Name: "r_admin_22", What: "admin: 22/tcp from anywhere", Declared: true, Packets: 12, Bytes: 720},
			{Name: "r_hello_8080", What: "hello: 8080/tcp from anywhere", Declared: true}},
		Rules: foreign.Report{
			Refusing: []foreign.Refusing{
				{Family: "ip", Table: "filter", Chain: "INPUT", How: []string{"policy drop"}, Owner: foreign.Words{"ufw"}, Kind: foreign.Words{"front end"}, Fate: foreign.Words{"retire"}},
				{Family: "ip", Table: "filter", Chain: "FORWARD", How: []string{"policy drop"}, Owner: foreign.Words{"ufw", "docker"}, Kind: foreign.Words{"front end", "container runtime"}, Fate: foreign.Words{"retire", "leave"}},
				{Family: "inet", Table: "mesh", Chain: "refuse", How: []string{"drop x1"}, Owner: foreign.Words{"mesh"}, Kind: foreign.Words{"mesh"}, Fate: foreign.Words{"keep"}}},
			Bypass:        []foreign.Bypass{{What: "macvlan", Name: "mv0", Why: "what it carries leaves and comes over eth0 without the rules for that link"}},
			NotUnderstood: []string{"a rule of inet x a: the expression kounter is not known"},
		},
	}
}

func troubled() *show.Document {
	d := well()
	d.Bus = show.Bus{Since: ago(50 * time.Hour), Why: "dial tcp 198.18.0.11:4222: no route to host"}
	d.Declaration.Outcome, d.Declaration.RefusedSeq = report.Refused, 8
	d.Declaration.Refused = refusal.Of(refusal.New("a declaration", "modules[0].colour: unknown field", "upgrade the agent on this machine"))
	d.Modules = append(d.Modules, report.Module{Name: "notes", Build: "build-2", State: report.Broken, Detail: "mesh-notes-web.service: exit code 1", Since: ago(time.Minute), Restarts: 4})
	d.Drift = []report.Drift{{Module: "hello", Thing: "file:/etc/hello.conf", What: "content differs", Repaired: true, At: ago(5 * time.Minute)}}
	d.Outbox = show.Outbox{Depth: 3, Dropped: 1}
	d.Problems = []report.Problem{{At: ago(time.Minute), Text: "refused: x: y\ndo: z"}}
	return d
}

// dire is a machine of which nothing is right.
func dire() *show.Document {
	d := troubled()
	d.Mesh, d.Tunnel = "5c3784aa91b0cd10ee", "wg0"
	d.Declaration.RefusedSeq = 0
	d.Filter = &report.Filter{Rules: []string{"admin: 22/tcp from anywhere"}, Why: "ufw undoes mesh's repairs (2 rules are gone); it is repaired once a minute"}
	d.Modules = append(d.Modules, report.Module{Name: "later", Build: "build-3", State: report.Pending}, report.Module{Name: "veiled", Build: "build-4", State: report.Unknown, Detail: "systemd cannot be asked: it is gone", Since: ago(0)})
	d.Left = []report.Drift{{Module: "hello", Thing: "file:/etc/hello.conf", What: "content differs", At: ago(time.Hour)}}
	d.Strays = []string{"unit:mesh-old-web.service"}
	d.Exposed = []string{"443/tcp over eth0: declared, but refused by the policy drop of ip filter INPUT, ufw's"}
	return d
}

func past() []state.Past {
	return []state.Past{{Seq: 8, Outcome: report.Refused, Why: "refused: a declaration: modules[0].colour: unknown field; do: upgrade the agent on this machine", At: now.Add(-time.Minute)},
		{Seq: 7, Outcome: report.Applied, Steps: 3, Took: 1234 * time.Millisecond, At: now.Add(-time.Hour)}}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s:\ngot\n%s\nwant\n%s", name, got, want)
	}
}

func TestPages(t *testing.T) {
	down := well()
	down.Daemon.Up = false
	empty := &show.Document{Format: 1, Node: "db1", Mesh: "m1", Daemon: show.Daemon{Up: true}, Bus: show.Bus{Up: true, Address: "a:1", Since: ago(0)}, Declaration: show.Declaration{Outcome: report.None}}
	for name, d := range map[string]*show.Document{"well": well(), "troubled": troubled(), "down": down, "empty": empty, "dire": dire()} {
		var b bytes.Buffer
		if err := show.Render(&b, d, now); err != nil {
			t.Fatal(err)
		}
		golden(t, name+".txt", b.String())
	}
	var b bytes.Buffer
	if err := errors.Join(show.RenderFirewall(&b, well(), live(), now), show.RenderModule(&b, troubled(), troubled().Modules[1], now),
		show.RenderHistory(&b, past(), troubled().Drift, now)); err != nil {
		t.Fatal(err)
	}
	for _, edit := range []func(*show.Document){
		func(d *show.Document) { d.Daemon.Up = false },
		func(d *show.Document) { d.Filter = nil },
		func(d *show.Document) { d.Filter.Rules, d.Uplinks, d.Filter.Repairs = nil, nil, 1 },
		func(d *show.Document) { d.Filter.Loaded, d.Filter.Why = false, "refused: x: y\ndo: z" },
		func(d *show.Document) { d.Filter.Why, d.Tunnel = "the last change was refused", "wg0" },
	} {
		d := well()
		edit(d)
		if err := errors.Join(show.RenderFirewall(&b, d, show.Live{Why: "to root only"}, now), show.RenderModule(&b, d, d.Modules[0], now)); err != nil {
			t.Fatal(err)
		}
	}
	if err := show.RenderHistory(&b, nil, nil, now); err != nil {
		t.Fatal(err)
	}
	golden(t, "parts.txt", b.String())
	for name, v := range map[string]any{"troubled": troubled().Page(), "history": show.HistoryPage(past(), troubled().Drift), "module": show.ModulePage(troubled().Modules[1]),
		"empty": (&show.Document{}).Page(), "nofilter": show.FilterPage(nil, show.Live{}), "filter": show.FilterPage(well().Filter, live()), "nohistory": show.HistoryPage(nil, nil)} {
		j, err := json.MarshalIndent(v, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		golden(t, name+".json", string(j)+"\n")
	}
}

func TestJudge(t *testing.T) {
	if v, amiss := well().Judge(); v != show.Well || len(amiss) > 0 {
		t.Errorf("a well machine: %v %v", v, amiss)
	}
	for name, edit := range map[string]func(*show.Document){
		"the daemon is down":      func(d *show.Document) { d.Daemon.Up = false },
		"the bus is away":         func(d *show.Document) { d.Bus.Up = false },
		"a module cannot be seen": func(d *show.Document) { d.Modules[0].State = report.Unknown },
		"refused":                 func(d *show.Document) { d.Declaration.Outcome = report.Refused },
		"under way":               func(d *show.Document) { d.Declaration.Outcome = report.Applying },
		"filter":                  func(d *show.Document) { d.Filter.Why = "restored" },
		"drift that stays":        func(d *show.Document) { d.Left = []report.Drift{{Thing: "file:/x", What: "mode"}} },
		"a module failed, and so did the apply": func(d *show.Document) {
			d.Modules[0].State, d.Modules[0].Detail = report.Broken, "it ended"
			d.Declaration.Outcome, d.Declaration.Refused = report.Failed, &refusal.Refusal{What: "module hello", Why: "it ended", Do: "look"}
		},
		"an apply failed": func(d *show.Document) {
			d.Declaration.Outcome, d.Declaration.Refused = report.Failed, &refusal.Refusal{What: "the end of module old", Why: "it stays", Do: "look"}
		},
	} {
		d := well()
		edit(d)
		if v, amiss := d.Judge(); v != show.Amiss || len(amiss) != 1 {
			t.Errorf("%s: %v %v", name, v, amiss)
		}
	}
}

func TestTheCommandTellsALiveDaemonFromADeadOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "status.json")
	if _, err := show.Read(path); !errors.Is(err, show.ErrDown) {
		t.Errorf("no status: %v", err)
	}
	d := well()
	self, err := show.Self()
	if err != nil {
		t.Fatal(err)
	}
	d.Daemon = self
	if err := d.Write(path); err != nil {
		t.Fatal(err)
	}
	if got, err := show.Read(path); err != nil || got.Node != "db1" {
		t.Errorf("a live daemon: %v", err)
	}
	d.Daemon.Started++ // the pid was taken by another process since
	if err := d.Write(path); err != nil {
		t.Fatal(err)
	}
	if _, err := show.Read(path); !errors.Is(err, show.ErrDown) {
		t.Errorf("a pid that was reused: %v", err)
	}
	child := exec.Command("true")
	if err := child.Run(); err != nil {
		t.Fatal(err)
	}
	d.Daemon.PID = child.Process.Pid
	if err := d.Write(path); err != nil {
		t.Fatal(err)
	}
	if _, err := show.Read(path); !errors.Is(err, show.ErrDown) {
		t.Errorf("a dead daemon: %v", err)
	}
}

func TestGatherFromTheStoreAlone(t *testing.T) {
	ctx := context.Background()
	s, err := state.Open(ctx, state.Config{Path: filepath.Join(t.TempDir(), "state.db"), Clock: clock.NewFake(now), Rand: rand.Reader, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Done(ctx, state.Batch{Modules: []report.Module{{Name: "hello", Build: "b", State: report.Running}}}); err != nil {
		t.Fatal(err)
	}
	if err := s.Done(ctx, state.Batch{Past: &state.Past{Seq: 4, Outcome: report.Applied, Took: time.Second}}); err != nil {
		t.Fatal(err)
	}
	d, err := show.Gather(ctx, s, show.Runtime{Node: "db1"})
	if err != nil || len(d.Modules) != 1 || d.Declaration.Outcome != report.Applied || d.Daemon.Up {
		t.Errorf("got %+v, %v", d, err)
	}
	if err := s.Done(ctx, state.Batch{Past: &state.Past{Seq: 5, Outcome: report.Refused, Why: "refused: a declaration: x: y; do: z"}}); err != nil {
		t.Fatal(err)
	}
	d, err = show.Gather(ctx, s, show.Runtime{Node: "db1"})
	if want := (refusal.Refusal{What: "a declaration", Why: "x: y", Do: "z"}); err != nil || d.Declaration.Outcome != report.Refused || d.Declaration.RefusedSeq != 5 || *d.Declaration.Refused != want {
		t.Errorf("a refusal: %+v, %v", d.Declaration, err)
	}
	b, err := json.Marshal(d)
	if err != nil || strings.Contains(string(b), ":null") {
		t.Errorf("a list is null in %s, %v", b, err)
	}
}

package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"mesh/agent"
	"mesh/agent/show"
	"mesh/agent/state"
	"mesh/shared/clock"
	"mesh/shared/credential"
	"mesh/shared/declaration"
	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/waitfor"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := errors.Join(os.MkdirAll("testdata", 0o755), os.WriteFile(path, []byte(got), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs; run with -update and review the diff:\n%s", path, got)
	}
}

// host is a machine's folders.
type host struct {
	t          testing.TB
	state, run string
}

func newHost(t testing.TB) host {
	t.Helper()
	return host{t, t.TempDir(), t.TempDir()}
}

// show runs "mesh-agent show" with args.
func (h host) show(args ...string) (out, said string, code int) {
	h.t.Helper()
	var stdout, stderr bytes.Buffer
	code = h.to(&stdout, &stderr, args...)
	return stdout.String(), stderr.String(), code
}

func (h host) to(out, errs io.Writer, args ...string) int {
	return run(h.t.Context(), append([]string{"show", "--state-dir", h.state, "--run-dir", h.run}, args...), out, errs)
}

// store makes the machine's store with one declaration, two modules and a change by hand.
func (h host) store() {
	h.t.Helper()
	ctx := h.t.Context()
	s, err := state.Open(ctx, state.Config{Path: filepath.Join(h.state, agent.StateFile), Clock: clock.Real(), Rand: rand.Reader, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		h.t.Fatal(err)
	}
	_, errAccept := s.Accept(ctx, 7, "d", []byte("purpose key signature\n"+`{"format":1,"seq":7,"modules":[]}`), nil)
	err = errors.Join(errAccept, s.Done(ctx, state.Batch{
		Modules: []report.Module{{Name: "hello", Build: "build-1", State: report.Running}, {Name: "notes", Build: "build-2", State: report.Broken, Detail: "it ended"}},
		Drift:   []report.Drift{{Module: "hello", Thing: "file:/etc/hello.conf", What: "content differs", Repaired: true, At: clock.Real().Now().UnixMilli()}},
		Past:    &state.Past{Seq: 7, Outcome: report.Applied, Steps: 3, Took: time.Second},
	}), s.Close())
	if err != nil {
		h.t.Fatal(err)
	}
	curve, err := credential.NewCurve(rand.Reader)
	if err != nil {
		h.t.Fatal(err)
	}
	seed, err := credential.NewUser(rand.Reader)
	if err != nil {
		h.t.Fatal(err)
	}
	ca, err := credential.NewAuthority(rand.Reader, "m", clock.Real().Now())
	if err != nil {
		h.t.Fatal(err)
	}
	b, err := credential.File{Format: credential.Format, Mesh: "5c3784aa91b0", Kind: credential.KindNode, Name: "db1", Seed: seed, Curve: curve,
		Bus: credential.Bus{Addresses: []string{"192.0.2.1:4222"}, CA: ca.PEM(), Pin: ca.Pin()}}.Encode()
	if err == nil {
		err = os.WriteFile(filepath.Join(h.state, agent.CredentialFile), b, 0o600)
	}
	if err != nil {
		h.t.Fatal(err)
	}
}

// daemon lays down what a daemon says, which this process is.
func (h host) daemon(edit func(*show.Document)) {
	h.t.Helper()
	self, err := show.Self()
	if err != nil {
		h.t.Fatal(err)
	}
	now := clock.Real().Now().UnixMilli()
	d := &show.Document{Format: show.Format, Node: "db1", Mesh: "5c3784aa91b0", At: now, Agent: report.Agent{Version: "0.1.0"}, Daemon: self,
		Bus: show.Bus{Up: true, Address: "192.0.2.1:4222", Since: now}, Declaration: show.Declaration{Seq: 7, Outcome: report.Applied, Accepted: now, Drift: string(declaration.Repair)},
		Modules: []report.Module{{Name: "hello", Build: "build-1", State: report.Running, Since: now}}, Uplinks: []string{"eth0"},
		Filter: &report.Filter{Loaded: true, Rules: []string{"admin: 22/tcp from anywhere"}, Since: now}, Drift: []report.Drift{}, Left: []report.Drift{}, Strays: []string{}, Problems: []report.Problem{}}
	if edit != nil {
		edit(d)
	}
	if err := d.Write(filepath.Join(h.run, agent.StatusFile)); err != nil {
		h.t.Fatal(err)
	}
}

func TestHelp(t *testing.T) {
	var all bytes.Buffer
	var each func(*cobra.Command)
	each = func(c *cobra.Command) {
		path := strings.Fields(c.CommandPath())[1:]
		var out bytes.Buffer
		if code := run(t.Context(), append(path, "--help"), &out, &out); code != 0 || c.Example == "" {
			t.Errorf("%s --help: exit %d, example %q", c.CommandPath(), code, c.Example)
		}
		fmt.Fprintf(&all, "$ %s --help\n%s\n", c.CommandPath(), out.String())
		for _, sub := range c.Commands() {
			if sub.Name() != "help" && sub.Name() != "completion" {
				each(sub)
			}
		}
	}
	each(root(new(places)))
	golden(t, "help.txt", all.String())
}

func TestWrongUsage(t *testing.T) {
	for _, args := range [][]string{{"frobnicate"}, {"show", "a", "b"}, {"show", "--colour"}, {"run", "now"}, {"ledger", "x"}} {
		var out, said bytes.Buffer
		if code := run(t.Context(), args, &out, &said); code != 2 || out.Len() > 0 || strings.Count(said.String(), "\n") != 2 || !strings.Contains(said.String(), "\ndo: ") {
			t.Errorf("%v: exit %d, %q, %q", args, code, out.String(), said.String())
		}
	}
}

func TestErrorsAreTwoLines(t *testing.T) {
	for _, tt := range []struct {
		err  error
		code int
		want string
	}{
		{nil, 0, ""},
		{verdict(show.Unknown), 2, ""},
		{refusal.New("a", "b", "c"), 1, "refused: a: b\ndo: c\n"},
		{errors.New("one\ntwo"), 2, "mesh-agent: one; two\n"},
		{fmt.Errorf("x\ny\ndo: look\nthere"), 2, "mesh-agent: x; y\ndo: look; there\n"},
	} {
		var b bytes.Buffer
		if code := exit(&b, tt.err); code != tt.code || b.String() != tt.want {
			t.Errorf("%v: exit %d, %q", tt.err, code, b.String())
		}
	}
}

func TestShowWithTheDaemonUp(t *testing.T) {
	h := newHost(t) // no store: it must not be needed
	for _, tt := range []struct {
		name string
		edit func(*show.Document)
		args []string
		code int
		want string
	}{
		{"all", nil, nil, 0, "db1 of mesh 5c3784aa: well\n"},
		{"as JSON", nil, []string{"--json"}, 0, `"seq": 7`},
		{"a module", nil, []string{"hello"}, 0, "hello on db1: running\n"},
		{"a module as JSON", nil, []string{"hello", "--json"}, 0, `"build": "build-1"`},
		{"the packet filter", nil, []string{"firewall"}, 0, "  admin: 22/tcp from anywhere\n"},
		{"the packet filter as JSON", nil, []string{"firewall", "--json"}, 0, `"loaded": true`},
		{"none of it", func(d *show.Document) { d.Filter = nil }, []string{"firewall"}, 0, "none is declared"},
		{"one not in force", func(d *show.Document) { d.Filter = &report.Filter{Why: "no nftables"} }, []string{"firewall"}, 1, "NOT in force: no nftables"},
		{"not well", func(d *show.Document) { d.Modules[0].State = report.Broken }, nil, 1, "NOT WELL"},
		{"not well, as JSON", func(d *show.Document) { d.Modules[0].State = report.Broken }, []string{"--json"}, 1, `"state": "failed"`},
		{"a module that failed", func(d *show.Document) { d.Modules[0].State = report.Broken }, []string{"hello"}, 1, "FAILED"},
		{"a module that cannot be seen", func(d *show.Document) { d.Modules[0].State = report.Unknown }, []string{"hello"}, 2, "cannot be told"},
	} {
		h.daemon(tt.edit)
		out, said, code := h.show(tt.args...)
		if code != tt.code || said != "" || !strings.Contains(out, tt.want) {
			t.Errorf("%s: exit %d, %q, %q", tt.name, code, out, said)
		}
		if strings.Contains(strings.Join(tt.args, " "), "--json") && !json.Valid([]byte(out)) {
			t.Errorf("%s: no JSON: %s", tt.name, out)
		}
	}
	for word, want := range map[string]string{"helo": `do: did you mean "hello"?`, "histroy": `do: did you mean "history"?`, "something": `do: see what there is: "mesh-agent show"`} {
		if out, said, code := h.show(word); code != 1 || out != "" || !strings.HasPrefix(said, "refused: show "+word) || !strings.Contains(said, want) {
			t.Errorf("%s: exit %d, %q, %q", word, code, out, said)
		}
	}
	if st, err := os.Stat(filepath.Join(h.run, agent.StatusFile)); err != nil || st.Mode().Perm() != 0o644 {
		t.Errorf("who may look: %v, %v", st.Mode(), err)
	}
	if err := os.WriteFile(filepath.Join(h.run, agent.StatusFile), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, said, code := h.show(); code != 2 || out != "" || !strings.Contains(said, "not understood") {
		t.Errorf("a broken status: exit %d, %q, %q", code, out, said)
	}
}

func TestShowWithTheDaemonDown(t *testing.T) {
	h := newHost(t)
	h.store()
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{nil, 1, "db1 of mesh 5c3784aa: NOT WELL\n  ! the agent is not running; what follows is what it last knew\n    do: systemctl start mesh-agent\n"},
		{[]string{"--json"}, 1, `"up": false`},
		{[]string{"hello"}, 2, "the agent is not running"},
		{[]string{"notes"}, 1, "FAILED"},
		{[]string{"firewall"}, 2, "not known while the agent is down"},
		{[]string{"history"}, 0, "AGO  SEQ  OUTCOME  STEPS  TOOK  WHY\n"},
		{[]string{"history"}, 0, "file:/etc/hello.conf: content differs (repaired)"},
		{[]string{"history", "--json"}, 0, `"applies": [`},
		{[]string{"declaration"}, 0, "\"seq\": 7,\n"},
		{[]string{"declaration", "--json"}, 0, "\"seq\": 7,\n"},
	} {
		if out, said, code := h.show(tt.args...); code != tt.code || said != "" || !strings.Contains(out, tt.want) {
			t.Errorf("%v: exit %d, %q, %q", tt.args, code, out, said)
		}
	}
}

// TestShowOfWhatTheDaemonSaidLast: a daemon that is down left its last word. That is shown, unless the store was
// written later, or the machine is another's by now.
func TestShowOfWhatTheDaemonSaidLast(t *testing.T) {
	h := newHost(t)
	h.store()
	h.daemon(func(d *show.Document) { d.Daemon.Started++ }) // one of before
	status := filepath.Join(h.run, agent.StatusFile)
	said := func(want string, never string) {
		t.Helper()
		out, errs, code := h.show()
		if code != 1 || errs != "" || !strings.Contains(out, "the agent is not running") || !strings.Contains(out, want) || strings.Contains(out, never) {
			t.Errorf("exit %d, %q, %q", code, out, errs)
		}
	}
	said("hello", "notes") // notes is in the store only
	if out, _, _ := h.show(); strings.Contains(out, "eth0") || strings.Contains(out, "192.0.2.1") {
		t.Errorf("what only a running daemon knows is shown: %s", out)
	}
	old := clock.Real().Now().Add(-time.Minute)
	if err := os.Chtimes(status, old, old); err != nil {
		t.Fatal(err)
	}
	said("notes", "eth0")
	h.daemon(func(d *show.Document) { d.Daemon.Started++; d.Node = "db2" })
	said("notes", "db2")
}

func TestShowOnAMachineInNoMesh(t *testing.T) {
	h := newHost(t)
	for _, args := range [][]string{nil, {"hello"}, {"history"}, {"declaration"}, {"--json"}, {"--watch"}} {
		if out, said, code := h.show(args...); code != 2 || out != "" || !strings.HasPrefix(said, "mesh-agent: this machine is in no mesh") || !strings.Contains(said, "\ndo: enrol it: ") || strings.Count(said, "\n") != 2 {
			t.Errorf("%v: exit %d, %q, %q", args, code, out, said)
		}
	}
}

func TestShowBeforeTheFirstDeclaration(t *testing.T) {
	h := newHost(t)
	s, err := state.Open(t.Context(), state.Config{Path: filepath.Join(h.state, agent.StateFile), Clock: clock.Real(), Rand: rand.Reader, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if out, said, code := h.show("declaration"); code != 1 || out != "" || !strings.Contains(said, "\ndo: send it") {
		t.Errorf("exit %d, %q, %q", code, out, said)
	}
	if out, _, code := h.show("history"); code != 0 || out != "nothing was ever applied here\n" {
		t.Errorf("exit %d, %q", code, out)
	}
}

// page is a place to print that a test may read meanwhile.
type pages struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (p *pages) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.b.Write(b)
}

func (p *pages) count(s string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Count(p.b.String(), s)
}

func TestWatchPrintsWhatChanged(t *testing.T) {
	h := newHost(t)
	h.daemon(nil)
	clk, out := clock.NewFake(clock.Real().Now()), &pages{}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { // ends with ctx
		done <- shower{at: places{state: h.state, run: h.run}, clk: clk, out: out}.watch(ctx)
	}()
	const soon = 10 * time.Second
	printed := func(what string, head string, n int) {
		t.Helper()
		waitfor.True(t, what, soon, func() (bool, any) {
			clk.Advance(watchEvery)
			got := out.count(head)
			return got >= n, got
		})
	}
	printed("the first page", "mesh 5c3784aa: well\n", 1)
	for range 100 { // a minute in which nothing changes but ages
		clk.Advance(watchEvery)
	}
	h.daemon(func(d *show.Document) { d.At++; d.FreeDisk = 1 })
	h.daemon(func(d *show.Document) { d.Modules[0].State = report.Broken })
	printed("the page with the trouble", "mesh 5c3784aa: NOT WELL\n", 1)
	if n := out.count("of mesh"); n != 2 && n != 3 { // the daemon of this test writes its times anew each time
		t.Errorf("%d pages", n)
	}
	cancel()
	if err := waitfor.Value(t, "the end", soon, done); err != nil {
		t.Error(err)
	}
}

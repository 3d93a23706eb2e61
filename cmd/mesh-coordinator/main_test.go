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
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/goleak"

	"mesh/coordinator"
	"mesh/coordinator/client"
	"mesh/shared/clock"
	"mesh/shared/controller"
	"mesh/shared/declaration"
	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/subject"
	"mesh/shared/waitfor"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs; run with -update and review the diff:\n%s", path, got)
	}
}

// try runs one command line.
func try(t *testing.T, a *app, args ...string) (out, said string, code int) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	a.out, a.err, a.started = &stdout, &stderr, false
	if a.clk == nil {
		a.clk = clock.Real()
	}
	code = run(t.Context(), a, args)
	return stdout.String(), stderr.String(), code
}

func commands(c *cobra.Command, fn func(*cobra.Command)) {
	fn(c)
	for _, sub := range c.Commands() {
		if sub.Name() != "help" && sub.Name() != "completion" {
			commands(sub, fn)
		}
	}
}

func TestHelp(t *testing.T) {
	var all bytes.Buffer
	a := &app{out: io.Discard, err: io.Discard, clk: clock.Real(), places: client.Places{Etc: "/etc/mesh/operator.json"}}
	commands(a.root(), func(c *cobra.Command) {
		path := strings.Fields(c.CommandPath())[1:]
		out, _, code := try(t, &app{places: a.places}, append(path, "--help")...)
		if code != exitWell {
			t.Errorf("%s --help exits %d", c.CommandPath(), code)
		}
		if c.Example == "" || !strings.Contains(out, "mesh-coordinator") {
			t.Errorf("%s has no example", c.CommandPath())
		}
		fmt.Fprintf(&all, "$ %s --help\n%s\n", c.CommandPath(), out)
	})
	golden(t, "help.txt", all.Bytes())
}

func TestWrongUsage(t *testing.T) {
	for _, args := range [][]string{{"frobnicate"}, {"node", "frobnicate"}, {"node", "show"}, {"status", "--colour"}, {"node", "invite", "a", "b"}, {"push", "--wait", "soon"}} {
		out, said, code := try(t, &app{}, args...)
		if code != exitUnknown || out != "" || !strings.HasPrefix(said, "wrong usage: ") || strings.Count(said, "\n") != 2 || !strings.Contains(said, "\ndo: ") {
			t.Errorf("%v: exit %d, %q, %q", args, code, out, said)
		}
	}
}

func TestNoCredential(t *testing.T) {
	dir := t.TempDir()
	_, said, code := try(t, &app{places: client.Places{Etc: filepath.Join(dir, "a"), Home: filepath.Join(dir, "b")}}, "status")
	if code != exitUnknown || !strings.HasPrefix(said, "refused: ") || !strings.Contains(said, "--credential") || strings.Count(said, "\n") != 2 {
		t.Errorf("exit %d, %q", code, said)
	}
	_, said, code = try(t, &app{}, "status", "--credential", filepath.Join(dir, "none"))
	if code != exitUnknown || !strings.Contains(said, "no such file") {
		t.Errorf("a credential that was named: exit %d, %q", code, said)
	}
	broken := filepath.Join(dir, "broken")
	if err := os.WriteFile(broken, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, said, code = try(t, &app{}, "status", "--credential", broken); code != exitUnknown || !strings.HasPrefix(said, "refused: the credential "+broken+": not JSON") {
		t.Errorf("a credential that is none: exit %d, %q", code, said)
	}
	if _, said, code = try(t, &app{}, "push", "db1"); code != exitNotWell || !strings.Contains(said, "do: say why") {
		t.Errorf("a push without a reason: exit %d, %q", code, said)
	}
	if _, said, code = try(t, &app{}, "node", "show", "db.1"); code != exitNotWell || !strings.Contains(said, "dot") {
		t.Errorf("a name with a dot: exit %d, %q", code, said)
	}
}

func TestErrorsAreTwoLines(t *testing.T) {
	for _, err := range []error{
		refusal.New("a thing", "it is so", "do otherwise"),
		fmt.Errorf("ask: %w", refusal.New("a thing", "it is so", "do otherwise")),
		fmt.Errorf("x\ny: %w", client.ErrNoAnswer),
		errors.New("one\ntwo"),
	} {
		var b bytes.Buffer
		say(&b, err)
		if n := strings.Count(b.String(), "\n"); n > 2 {
			t.Errorf("%d lines: %q", n, b.String())
		}
	}
	if code(client.ErrNoAnswer) != exitUnknown || code(refusal.New("a", "b", "c")) != exitNotWell {
		t.Error("exit codes")
	}
}

func TestTables(t *testing.T) {
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	long := strings.Repeat("0123456789abcdef", 4)
	var b bytes.Buffer
	show := func(title string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", title, err)
		}
		fmt.Fprintf(&b, "---- %s\n", title)
	}
	show("status, not well", writeStatus(&b, controller.StatusAnswer{Name: "home", Version: "0.1.0", At: now, TookMS: 3, Bus: []string{"192.0.2.1:4222"},
		Problems: []controller.Problem{{Node: "db1", What: "refused: a declaration: unknown field", Show: "mesh-coordinator node show db1"}},
		Counts:   controller.Counts{Nodes: 3, Well: 2, Failed: 1, Modules: 1, Assignments: 2, Operators: 1}}))
	show("status, well", writeStatus(&b, controller.StatusAnswer{Name: "home", Version: "0.1.0", At: now, Well: true, Bus: []string{"192.0.2.1:4222"}, Counts: controller.Counts{Nodes: 2, Well: 1}}))
	show("status, with a new machine", writeStatus(&b, controller.StatusAnswer{Name: "home", Version: "0.1.0", At: now, Well: true, Bus: []string{"192.0.2.1:4222"},
		Notes: []controller.Problem{{Node: "db1", What: "new: nothing was pushed to it yet, so mesh filters no packets on it", Show: "mesh-coordinator plan db1"}}, Counts: controller.Counts{Nodes: 1, New: 1}}))
	nodes := []controller.Node{
		{Name: "db1", State: controller.NodeFailed, Why: "module notes: exit 1\nsecond line", Seen: now.Add(-3 * time.Second), Sent: 4, Applied: 4, Outcome: report.Applied, Modules: 2, Agent: "0.1.0"},
		{Name: "laptop", State: controller.NodeUnknown, Why: "it has not reported yet"},
		{Name: "web1", State: controller.NodeWell, Seen: now.Add(-49 * time.Hour), Sent: 1, Applied: 1, Agent: "0.1.0"},
	}
	show("node list", writeNodes(&b, controller.NodesAnswer{Nodes: nodes}, now))
	show("node show", writeNode(&b, controller.NodeAnswer{Node: nodes[0], Enrolled: now.Add(-time.Hour), Settings: controller.NodeSettings{Drift: declaration.Repair, Admin: []string{"22/tcp from anywhere"}},
		Report: &report.Report{Uplinks: []string{"eth0"}, FreeDisk: 5 << 30}, ReportedAt: now.Add(-time.Minute), Profile: &report.Profile{OS: "debian", OSVersion: "13", Arch: "amd64", Kernel: "6.12"},
		Notes:    []string{"module big: it needs a machine of arm64, this one is amd64"},
		Assigned: []controller.Assigned{{Module: "notes", Build: "build-2", Sent: "build-1", Runs: "build-1", State: report.Broken, Detail: "exit 1"}, {Module: "big", Build: "build-3"}}}, now))
	show("node show, never reported", writeNode(&b, controller.NodeAnswer{Node: nodes[1], Enrolled: now, Settings: controller.NodeSettings{Drift: declaration.Repair}}, now))
	show("node invitations", writeInvitations(&b, controller.InvitationsAnswer{Invitations: []controller.Invitation{
		{ID: "k3v9", Node: "db2", State: controller.InvitationOpen, Made: now, Expires: now.Add(time.Hour - time.Second)},
		{ID: "a1b2", Node: "db1", State: controller.InvitationUsed, Made: now.Add(-time.Hour), Expires: now}}}, now))
	art := &declaration.Artifact{Digest: long, Size: 3 << 20, Chunks: 12}
	mod := controller.Module{Name: "notes", Description: "A notes server", Build: "build-2", Registered: now.Add(-time.Hour), Artifact: art, Nodes: []subject.Node{"a", "b", "c", "d", "e", "f", "g"}}
	show("module list", writeModules(&b, controller.ModulesAnswer{Modules: []controller.Module{mod, {Name: "plain", Build: "build-1", Registered: now}}}, now))
	show("module show", writeModule(&b, controller.ModuleAnswer{Module: mod, Builds: []controller.Build{{ID: "build-2", Registered: now.Add(-time.Hour), Artifact: art, Source: "by hand from the folder notes"}}}, now))
	show("plan", writePlan(&b, controller.PlanAnswer{Unchanged: 7, Nodes: []controller.NodePlan{
		{Node: "db1", Seq: 3, Changes: []controller.PlanChange{{Module: "notes", What: "build", From: "build-1", To: "build-2", Why: "register module notes as build-2, by operator-ada"}, {Module: "notes", What: "open", To: "8080/tcp from anywhere", Why: "register module notes as build-2, by operator-ada"}, {Module: "notes", What: "secret token", From: "(sealed 0a)", To: "(sealed 0b)"},
			{Module: "old", What: "module", From: "build-0"}, {Module: "new", What: "module", To: "build-9"}, {Module: "notes", What: "close", From: "80/tcp from tunnel"}}, Notes: []string{"packet filter: no uplink was reported"}},
		{Node: "db2", Seq: 1, Unsent: true},
		{Node: "db3", Refused: &refusal.Refusal{What: "a declaration of this size", Why: "it has 3 MiB", Do: "assign fewer modules"}}}}))
	show("plan, nothing", writePlan(&b, controller.PlanAnswer{Unchanged: 2}))
	show("push", writePush(&b, controller.Push{ID: "mdx3k2a1", Counts: map[controller.PushState]int{controller.PushRefused: 1, controller.PushSent: 1, controller.PushApplied: 1}, Nodes: []controller.PushNode{
		{Node: "db3", Seq: 2, State: controller.PushRefused, Why: &refusal.Refusal{What: "a declaration", Why: "unknown field", Do: "upgrade the agent"}},
		{Node: "db2", Seq: 4, State: controller.PushSent}, {Node: "db1", Seq: 4, State: controller.PushApplied, TookMS: 1234}}}))
	show("seat list", writeSeats(&b, controller.SeatsAnswer{Seats: []controller.Seat{{Name: "mesh-controller", Scope: "mesh", Description: "keeps the records", Holder: "the coordinator", Verbs: []subject.Verb{"status"}}, {Name: "node-engine", Scope: "node"}}}))
	show("tool list", writeTools(&b, controller.ToolsAnswer{Tools: []controller.Tool{{Seat: "mesh-controller", Verb: "status", Level: controller.Read, Role: controller.Viewer, Description: "How the mesh is"}}}))
	show("operator list", writeOperators(&b, controller.OperatorsAnswer{Operators: []controller.Person{{Name: "ada", Role: controller.Admin, Issued: now, Key: "UABC"}}}, now))
	show("changes", writeChanges(&b, controller.ChangesAnswer{Changes: []controller.Change{{ID: 9, At: now.Add(-time.Hour), Who: "operator-ada", What: "push", Object: "nodes db1 as push mdx3k2a1", Why: "new greeting"},
		{ID: 8, At: now.Add(-time.Hour), Who: "operator-ada", What: "assign", Object: "module notes on db1: greeting=Good morning"}, {ID: 7, At: now.Add(-2 * time.Hour), Who: "genesis", What: "create", Object: "mesh home", Why: "the mesh is made"}}}, now))
	golden(t, "tables.txt", b.Bytes())
}

func TestProgress(t *testing.T) {
	push := controller.Push{ID: "p", Counts: map[controller.PushState]int{controller.PushSent: 1}, Nodes: []controller.PushNode{{Node: "db1", State: controller.PushSent}}}
	var plain, fancy bytes.Buffer
	p := progress{w: &plain, states: map[subject.Node]controller.PushState{}}
	p.news(push)
	p.news(push) // nothing new: nothing said
	p.end()
	if plain.String() != "db1: sent\n" {
		t.Errorf("plain progress %q", plain.String())
	}
	p = progress{w: &fancy, fancy: true}
	p.news(push)
	p.end()
	if !strings.HasSuffix(fancy.String(), "\r\x1b[K") || !strings.Contains(fancy.String(), "push p: 1 sent") {
		t.Errorf("progress on a terminal %q", fancy.String())
	}
}

// TestAMeshByCommandLine does with commands alone what a person does first.
func TestAMeshByCommandLine(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	state, cred := filepath.Join(dir, "state"), filepath.Join(dir, "op", "operator.json")
	init := []string{"init", "--dir", state, "--name", "home", "--address", address, "--listen", address, "--out", cred}
	for range 2 { // asked again it says the same
		if out, said, code := try(t, &app{}, init...); code != exitWell || !strings.HasPrefix(out, "mesh home (") {
			t.Fatalf("init: exit %d, %q, %q", code, out, said)
		}
	}
	as := &app{places: client.Places{Env: cred}}
	if _, said, code := try(t, as, "status"); code != exitUnknown || !strings.HasPrefix(said, "cannot tell: ") {
		t.Errorf("nobody serves: exit %d, %q", code, said)
	}
	serve(t, state)
	if out, said, code := try(t, as, "status"); code != exitWell || !strings.HasPrefix(out, "home: all well\n") {
		t.Errorf("status: exit %d, %q, %q", code, out, said)
	}
	out, said, code := try(t, as, "node", "invite", "db1")
	if code != exitWell || !strings.HasPrefix(out, "mesh1-") || strings.Count(out, "\n") != 1 || !strings.Contains(said, "mesh-installer enrol") {
		t.Errorf("node invite: exit %d, %q, %q", code, out, said)
	}
	example := filepath.Join("..", "..", "docs", "examples", "hello")
	if err := os.CopyFS(filepath.Join(dir, "hello"), os.DirFS(example)); err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "hello", "dist", "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bin, "hello"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if out, said, code := try(t, as, "module", "check", filepath.Join(dir, "hello")); code != exitWell || out != "hello is right\n" {
		t.Errorf("module check: exit %d, %q, %q", code, out, said)
	}
	if out, said, code := try(t, as, "module", "register", filepath.Join(dir, "hello"), "--why", "first"); code != exitWell || !strings.HasPrefix(out, "hello build-") {
		t.Errorf("module register: exit %d, %q, %q", code, out, said)
	}
	if _, said, code := try(t, as, "assign", "db1", "hello", "--set", "greeting=hi"); code != exitNotWell || !strings.HasPrefix(said, "refused: the node db1") {
		t.Errorf("assign to nobody: exit %d, %q", code, said)
	}
	if _, said, code := try(t, as, "push", "--all", "--why", "x"); code != exitNotWell || !strings.Contains(said, "no node is enrolled") {
		t.Errorf("push to nobody: exit %d, %q", code, said)
	}
	out, _, code = try(t, as, "module", "list", "--json")
	var modules controller.ModulesAnswer
	if err := json.Unmarshal([]byte(out), &modules); err != nil || code != exitWell || len(modules.Modules) != 1 || modules.Modules[0].Name != "hello" {
		t.Errorf("module list --json: exit %d, %v, %q", code, err, out)
	}
	viewer := filepath.Join(dir, "vi.json")
	for i := range 2 { // never over a file that is there
		if _, said, code := try(t, as, "operator", "issue", "vi", "--role", "viewer", "--out", viewer); (code == exitWell) != (i == 0) {
			t.Errorf("operator issue, time %d: exit %d, %q", i+1, code, said)
		}
	}
	if _, said, code := try(t, &app{places: client.Places{Env: viewer}}, "unassign", "db1", "hello"); code != exitNotWell || !strings.HasPrefix(said, "refused: the verb unassign: it takes the role operator, and the credential of vi has less\n") {
		t.Errorf("a viewer unassigns: exit %d, %q", code, said)
	}
	for _, args := range [][]string{{"node", "list"}, {"node", "invitations"}, {"module", "show", "hello"}, {"plan"}, {"seat", "list"}, {"tool", "list"}, {"operator", "list"}, {"changes", "--limit", "3"}} {
		if out, said, code := try(t, as, args...); code != exitWell || out == "" {
			t.Errorf("%v: exit %d, %q, %q", args, code, out, said)
		}
	}
}

func serve(t *testing.T, dir string) {
	t.Helper()
	ready := make(chan string, 1)
	c := coordinator.New(coordinator.Config{Dir: dir, Ready: func(a string) { ready <- a }, Clock: clock.Real(), Rand: rand.Reader, Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := waitfor.Value(t, "the coordinator to stop", 20*time.Second, done); err != nil {
			t.Error(err)
		}
	})
	waitfor.Value(t, "the coordinator to serve", 20*time.Second, ready)
}

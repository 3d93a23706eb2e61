package coordinator_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"mesh/coordinator"
	"mesh/coordinator/client"
	"mesh/shared/bus"
	"mesh/shared/clock"
	"mesh/shared/controller"
	"mesh/shared/credential"
	"mesh/shared/declaration"
	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/subject"
	"mesh/shared/waitfor"
	"mesh/testbus"
)

const manifestYAML = `module: notes
description: A notes server
build:
  bundle: {output: dist}
settings:
  greeting: {default: hello}
secrets:
  password: {description: of the database}
run:
  processes:
    web: {exec: [bin/web]}
  files:
    - {path: /etc/notes/conf, mode: "0640", content: "greeting = ${setting:greeting}\npassword = ${secret:password}\n"}
firewall:
  allow:
    - {port: 8080/tcp, from: anywhere}
`

// module writes a module's folder.
func module(t *testing.T, content string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "dist", "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{"module.yaml": manifestYAML, "dist/bin/web": content} {
		if err := os.WriteFile(filepath.Join(dir, path), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestFromInvitationToARunningModule(t *testing.T) {
	t.Parallel()
	m := startMesh(t)
	c := m.client(t, m.operator)
	db1, db2 := newMachine(t, "db1"), newMachine(t, "db2")
	db1.join(t, c)
	db2.join(t, c)
	// More than one chunk, so that the upload's order does not matter.
	noise := make([]byte, 700<<10)
	if _, err := rand.Read(noise); err != nil {
		t.Fatal(err)
	}
	dir := module(t, string(noise))
	reg, err := c.Register(t.Context(), dir, "first", nil)
	if err != nil || !reg.Changed || reg.Module != "notes" {
		t.Fatalf("Register = %+v, %v", reg, err)
	}
	if again, err := c.Register(t.Context(), dir, "first", nil); err != nil || again.Changed || again.Build != reg.Build {
		t.Errorf("registering the same again = %+v, %v", again, err)
	}
	for _, n := range []subject.Node{"db1", "db2"} {
		a, err := c.Assign(t.Context(), controller.AssignAsk{Node: n, Module: "notes", Settings: map[string]string{"greeting": "hi"}}, map[string]string{"password": "hunter2"})
		if err != nil || !a.Changed {
			t.Fatalf("Assign = %+v, %v", a, err)
		}
	}
	plan := ask[controller.PlanAnswer](t, c, controller.Plan, controller.PlanAsk{})
	if len(plan.Nodes) != 2 || len(plan.Nodes[0].Changes) == 0 {
		t.Errorf("the plan is %+v", plan)
	}
	news := 0
	first := ask[controller.Push](t, c, controller.PushSend, controller.PushAsk{All: true, Why: "first"})
	done, err := c.Watch(t.Context(), first, soon, func(controller.Push) { news++ })
	if err != nil || !done.Done || done.Counts[controller.PushApplied] != 2 || news == 0 {
		t.Fatalf("the push ended as %+v, %v", done, err)
	}
	d := waitfor.Value(t, "db1's declaration", soon, db1.decisions)
	if len(d.Modules) != 1 || d.Modules[0].Settings["greeting"] != "hi" || d.Filter == nil {
		t.Errorf("db1 was declared %+v", d)
	}
	if v, err := d.Modules[0].Secrets["password"].Open(db1.curve, "db1", "notes", "password"); err != nil || v != "hunter2" {
		t.Errorf("the secret opens as %q, %v", v, err)
	}
	// The machine may fetch the bundle, each chunk.
	for n := range d.Modules[0].Artifact.Chunks {
		if _, err := db1.conn.Last(t.Context(), subject.Artifacts, subject.Chunk(d.Modules[0].Artifact.Digest, n)); err != nil {
			t.Errorf("chunk %d: %v", n, err)
		}
	}
	waitfor.True(t, "all well", soon, func() (bool, any) {
		s := ask[controller.StatusAnswer](t, c, controller.Status, controller.Nothing{})
		return s.Well && s.Counts.Well == 2, s
	})
	node := ask[controller.NodeAnswer](t, c, controller.NodeShow, controller.NodeAsk{Node: "db1"})
	if len(node.Assigned) != 1 || node.Assigned[0].Runs != reg.Build || node.Assigned[0].Sent != reg.Build || node.Profile == nil || node.Agent != "0.1.0" {
		t.Errorf("node show = %+v", node)
	}
	if text := fmt.Sprintf("%+v", node); strings.Contains(text, "hunter2") {
		t.Error("the secret shows in node show")
	}
	// The same again sends the same seq, and the reports come again.
	again := ask[controller.Push](t, c, controller.PushSend, controller.PushAsk{Nodes: []subject.Node{"db2"}, Why: "again"})
	if again, err = c.Watch(t.Context(), again, soon, nil); err != nil || !again.Done || again.Nodes[0].Seq != d.Seq {
		t.Errorf("the same push again ended as %+v, %v", again, err)
	}
	who := ask[controller.ChangesAnswer](t, c, controller.Changes, controller.ChangesAsk{})
	if who.Changes[0].What != "push" || who.Changes[0].Who != "operator-ada" || who.Changes[0].Why != "again" {
		t.Errorf("the journal's newest is %+v", who.Changes[0])
	}
}

// TestAReportThatStandsAnswersAPush: the node is told which of its reports is known, and its heartbeat names
// it; one that names another, or another declaration, is no answer.
func TestAReportThatStandsAnswersAPush(t *testing.T) {
	t.Parallel()
	m := startMesh(t)
	c := m.client(t, m.operator)
	db1 := newMachine(t, "db1")
	db1.join(t, c)
	for seq := uint64(0); ; { // its uplinks, once it said them, give it a filter
		first := ask[controller.Push](t, c, controller.PushSend, controller.PushAsk{All: true, Why: "first"})
		done, err := c.Watch(t.Context(), first, soon, nil)
		if err != nil || done.Counts[controller.PushApplied] != 1 {
			t.Fatalf("the first push ended as %+v, %v", done, err)
		}
		if done.Nodes[0].Seq == seq {
			break
		}
		seq = done.Nodes[0].Seq
	}
	db1.says = func(*declaration.Declaration) report.Apply { return report.Apply{} } // from now on it says nothing
	heard, err := db1.conn.NATS().SubscribeSync(subject.Declaration("db1"))
	if err != nil {
		t.Fatal(err)
	}
	again := ask[controller.Push](t, c, controller.PushSend, controller.PushAsk{All: true, Why: "again"})
	msg, err := heard.NextMsg(soon)
	if err != nil || msg.Header.Get(report.KnownHeader) == "" {
		t.Fatalf("the declaration says %v, %v; expected the number of the report that is known", msg, err)
	}
	last := func() uint64 { // it may still answer what it read back
		db1.mu.Lock()
		defer db1.mu.Unlock()
		return db1.number
	}
	seq := again.Nodes[0].Seq
	for _, tt := range []struct {
		seq   uint64
		of    func() uint64
		state controller.PushState
	}{
		{seq, func() uint64 { return 0 }, controller.PushSent},
		{seq, func() uint64 { return last() + 1 }, controller.PushSent},
		{seq + 1, last, controller.PushSent},
		{seq, last, controller.PushApplied},
	} {
		waitfor.True(t, fmt.Sprintf("the push to be %s after a heartbeat of seq %d", tt.state, tt.seq), soon, func() (bool, any) {
			b, err := json.Marshal(report.Heartbeat{At: db1.clk.Now().UnixMilli(), Seq: tt.seq, Report: tt.of()})
			if err == nil {
				err = db1.conn.Say(subject.Heartbeat("db1"), b)
			}
			p := ask[controller.Push](t, c, controller.PushShow, controller.PushShowAsk{ID: again.ID})
			return err == nil && p.Counts[tt.state] == 1, p.Counts
		})
	}
}

func TestASlowAndARefusingNodeBlockNoOther(t *testing.T) {
	t.Parallel()
	m := startMesh(t)
	c := m.client(t, m.operator)
	good, slow, no := newMachine(t, "good"), newMachine(t, "slow"), newMachine(t, "no")
	slow.says = func(*declaration.Declaration) report.Apply { return report.Apply{} }
	no.says = func(d *declaration.Declaration) report.Apply {
		return report.Apply{Seq: d.Seq, Outcome: report.Refused, Refused: &refusal.Refusal{What: "a declaration", Why: "unknown field", Do: "upgrade the agent"}}
	}
	for _, x := range []*machine{good, slow, no} {
		x.join(t, c)
	}
	first := ask[controller.Push](t, c, controller.PushSend, controller.PushAsk{All: true, Why: "try"})
	p, err := c.Watch(t.Context(), first, 2*time.Second, nil)
	if err != nil || p.Done {
		t.Fatalf("the push ended as %+v, %v", p, err)
	}
	want := map[subject.Node]controller.PushState{"good": controller.PushApplied, "slow": controller.PushSent, "no": controller.PushRefused}
	for _, n := range p.Nodes {
		if n.State != want[n.Node] {
			t.Errorf("%s is %s, expected %s", n.Node, n.State, want[n.Node])
		}
	}
	s := ask[controller.StatusAnswer](t, c, controller.Status, controller.Nothing{})
	if s.Well || len(s.Problems) < 2 || s.Problems[0].Node != "no" || !strings.Contains(s.Problems[0].What, "unknown field") {
		t.Errorf("the status does not lead with the refusal: %+v", s)
	}
	behind := ask[controller.Push](t, c, controller.PushSend, controller.PushAsk{Behind: true, Why: "the rest"})
	var names []string
	for _, n := range behind.Nodes {
		names = append(names, string(n.Node))
	}
	if strings.Join(names, " ") != "no slow" {
		t.Errorf("behind are %v, expected no and slow", names)
	}
}

func TestEnrolmentRefusals(t *testing.T) {
	t.Parallel()
	m := startMesh(t)
	c := m.client(t, m.operator)
	first := newMachine(t, "db1")
	in := invite(t, c, "db1")
	answer, err := first.enrol(t, in)
	if err != nil || answer.Node != "db1" || answer.Mesh == "" || answer.Signer == "" || answer.Bus.CA == "" {
		t.Fatalf("enrol = %+v, %v", answer, err)
	}
	again, err := first.enrol(t, in)
	if err != nil || again.Signer != answer.Signer || again.Mesh != answer.Mesh || again.Node != answer.Node {
		t.Errorf("the same machine again = %+v, %v", again, err)
	}
	refused := func(name, says string, x *machine, in credential.Invitation) {
		t.Helper()
		_, err := x.enrol(t, in)
		r := refusal.Of(err)
		if r == nil || r.Do == "" || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, expected a refusal that says %q and what to do", name, err, says)
		}
	}
	refused("used by another", "another machine used it", newMachine(t, "db1"), in)
	wrong := in
	if wrong.Seed, err = credential.NewUser(rand.Reader); err != nil {
		t.Fatal(err)
	}
	refused("a key nobody knows", "does not know its key", newMachine(t, "db1"), wrong)
	clone := newMachine(t, "db2")
	clone.id = first.id
	in2 := invite(t, c, "db2")
	refused("a cloned machine id", "cloned image", clone, in2)
	refused("another name", "is for db2", newMachine(t, "db9"), in2)
	for _, by := range []time.Duration{10 * time.Minute, -10 * time.Minute} {
		off := newMachine(t, "db2")
		off.clk = &shifted{Clock: clock.Real(), by: by}
		refused("a clock 10 min off", "its clock is 10m0s", off, in2)
	}
	if _, err := newMachine(t, "db2").enrol(t, in2); err != nil {
		t.Errorf("refusals used the invitation up: %v", err)
	}
	in3 := invite(t, c, "db3")
	ask[controller.Done](t, c, controller.InvitationRevoke, controller.InvitationRevokeAsk{ID: in3.ID})
	refused("revoked", "does not know its key", newMachine(t, "db3"), in3)
	if _, err := client.Ask[controller.InviteAnswer](t.Context(), c, controller.NodeInvite, controller.InviteAsk{Node: "db1"}); refusal.Of(err) == nil || !strings.Contains(err.Error(), "taken") {
		t.Errorf("inviting a name that is taken: %v", err)
	}
	in4 := invite(t, c, "db4")
	m.clk.shift(2 * time.Hour)
	late := newMachine(t, "db4")
	late.clk = m.clk
	refused("expired", "it expired", late, in4)
	list := ask[controller.InvitationsAnswer](t, c, controller.Invitations, controller.Nothing{})
	states := map[string]controller.InvitationState{}
	for _, x := range list.Invitations {
		states[x.ID] = x.State
	}
	if states[in.ID] != controller.InvitationUsed || states[in3.ID] != controller.InvitationRevoked || states[in4.ID] != controller.InvitationExpired {
		t.Errorf("the invitations are %v", states)
	}
}

func TestRolesHoldOnTheBus(t *testing.T) {
	t.Parallel()
	m := startMesh(t)
	c := m.client(t, m.operator)
	f, err := c.Issue(t.Context(), "vi", controller.Viewer, "")
	if err != nil {
		t.Fatal(err)
	}
	viewer := m.client(t, f)
	ask[controller.StatusAnswer](t, viewer, controller.Status, controller.Nothing{})
	began := clock.Real().Now()
	_, err = client.Ask[controller.Push](t.Context(), viewer, controller.PushSend, controller.PushAsk{All: true, Why: "x"})
	if !errors.Is(err, bus.ErrRefused) || refusal.Of(err) == nil {
		t.Errorf("a viewer pushed: %v", err)
	}
	if took := clock.Real().Now().Sub(began); took > 5*time.Second {
		t.Errorf("the refusal took %v: it was waited out", took)
	}
	if _, err := viewer.Register(t.Context(), module(t, "x"), "", nil); !errors.Is(err, bus.ErrRefused) {
		t.Errorf("a viewer put an artifact on the bus: %v", err)
	}
	ask[controller.Done](t, c, controller.OperatorRevoke, controller.OperatorRevokeAsk{Name: "vi"})
	if _, err := client.Connect(t.Context(), f, client.Options{Clock: clock.Real()}); !errors.Is(err, bus.ErrRefused) {
		t.Errorf("a revoked credential connects: %v", err)
	}
	if _, err := client.Ask[controller.Done](t.Context(), c, controller.OperatorRevoke, controller.OperatorRevokeAsk{Name: "ada"}); refusal.Of(err) == nil {
		t.Errorf("the last admin was revoked: %v", err)
	}
}

func TestArgumentsAreRefusedByField(t *testing.T) {
	t.Parallel()
	m := startMesh(t)
	c := m.client(t, m.operator)
	for _, tt := range []struct {
		name string
		verb subject.Verb
		args any
		says string
	}{
		{"unknown", controller.NodeInvite, map[string]any{"node": "db1", "colour": "red"}, "colour"},
		{"missing", controller.Assign, map[string]any{"node": "db1"}, "module: is missing"},
		{"wrong type", controller.PushSend, map[string]any{"all": "yes", "why": "x"}, "all"},
		{"a name with a dot", controller.NodeInvite, map[string]any{"node": "db.1"}, "dot"},
		{"no reason", controller.PushSend, map[string]any{"all": true, "why": " "}, "why"},
		{"nothing selected", controller.PushSend, map[string]any{"why": "x"}, "empty selection"},
		{"two selections", controller.PushSend, map[string]any{"why": "x", "all": true, "nodes": []string{"db1"}}, "exclude"},
		{"an unknown node", controller.PushSend, map[string]any{"why": "x", "nodes": []string{"db1"}}, "db1"},
		{"an unknown module", controller.Assign, map[string]any{"node": "db1", "module": "notes"}, "not registered"},
		{"an unknown setting", controller.NodeSet, map[string]any{"node": "db1", "set": map[string]string{"colour": "red"}}, "colour"},
		{"a wait too long", controller.PushShow, map[string]any{"id": "x", "wait_ms": 60000}, "wait_ms"},
		{"an artifact that is not there", controller.ModuleRegister, map[string]any{"manifest": map[string]any{"module": "notes"},
			"artifact": map[string]any{"digest": strings.Repeat("ab", 32), "size": 10, "chunks": 1}}, "0 of its 1 chunks"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := client.Ask[map[string]any](t.Context(), c, tt.verb, tt.args)
			if refusal.Of(err) == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v, expected a refusal that says %q", err, tt.says)
			}
		})
	}
}

func TestARemovedNodeIsCutOffAndItsNameFree(t *testing.T) {
	t.Parallel()
	m := startMesh(t)
	c := m.client(t, m.operator)
	x := newMachine(t, "db1")
	x.join(t, c)
	ask[controller.Push](t, c, controller.PushSend, controller.PushAsk{All: true, Why: "x"})
	old := waitfor.Value(t, "the declaration", soon, x.decisions)
	ask[controller.Done](t, c, controller.NodeRemove, controller.NodeRemoveAsk{Node: "db1", Why: "sold"})
	if err := bus.Probe(t.Context(), bus.Options{Bus: x.answer.Bus, Seed: x.seed, Principal: "node-db1", Clock: clock.Real()}); !errors.Is(err, bus.ErrRefused) {
		t.Errorf("a removed node connects: %v", err)
	}
	y := newMachine(t, "db1")
	y.join(t, c)
	// It does not find the other machine's declaration, and its own is newer.
	if b, err := y.conn.Last(t.Context(), subject.Declarations, subject.Declaration("db1")); !errors.Is(err, bus.ErrNone) {
		t.Errorf("the new machine finds %.80q, %v", b, err)
	}
	ask[controller.Push](t, c, controller.PushSend, controller.PushAsk{All: true, Why: "x"})
	if d := waitfor.Value(t, "its own declaration", soon, y.decisions); d.Seq <= old.Seq {
		t.Errorf("its own declaration has seq %d, the old one had %d", d.Seq, old.Seq)
	}
}

func TestNobodyHoldsTheSeat(t *testing.T) {
	t.Parallel()
	b := testbus.Start(t, testbus.Operator("ada", controller.Status))
	began := clock.Real().Now()
	c, err := client.Connect(t.Context(), credential.File{Format: 1, Mesh: "m", Kind: credential.KindOperator, Name: "ada", Seed: b.Seed("operator-ada"), Bus: b.Where()},
		client.Options{Clock: clock.Real(), Rand: rand.Reader})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = client.Ask[controller.StatusAnswer](t.Context(), c, controller.Status, controller.Nothing{})
	if !errors.Is(err, nats.ErrNoResponders) || !strings.Contains(err.Error(), "nobody holds mesh-controller") {
		t.Errorf("asked nobody: %v", err)
	}
	if took := clock.Real().Now().Sub(began); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestASecondCoordinatorOnOneFolderIsRefused(t *testing.T) {
	t.Parallel()
	m := startMesh(t)
	err := coordinator.New(coordinator.Config{Dir: m.dir, Listen: "127.0.0.1:0", Clock: clock.Real(), Rand: rand.Reader}).Run(t.Context())
	if refusal.Of(err) == nil || !strings.Contains(err.Error(), "another coordinator") {
		t.Errorf("a second one: %v", err)
	}
	err = coordinator.New(coordinator.Config{Dir: filepath.Join(t.TempDir(), "none"), Clock: clock.Real(), Rand: rand.Reader}).Run(t.Context())
	if refusal.Of(err) == nil {
		t.Errorf("a folder that is not there: %v", err)
	}
}

func TestSystemdIsTold(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	socket := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	c := coordinator.New(coordinator.Config{Dir: m.dir, Listen: "127.0.0.1:0", Notify: socket, Watchdog: 100 * time.Millisecond, Clock: clock.Real(), Rand: rand.Reader, Log: discard()})
	go func() { done <- c.Run(ctx) }()
	read := func() string {
		if err := l.SetReadDeadline(clock.Real().Now().Add(soon)); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 100)
		n, err := l.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
	// Between the others the watchdog is fed, as often as it takes.
	next := func(want string) {
		t.Helper()
		got := read()
		for got == "WATCHDOG=1" && want != got {
			got = read()
		}
		if got != want {
			t.Errorf("systemd was told %q, expected %q", got, want)
		}
	}
	next("READY=1")
	next("WATCHDOG=1")
	cancel()
	next("STOPPING=1")
	if err := waitfor.Value(t, "the coordinator to stop", soon, done); err != nil {
		t.Error(err)
	}
}

package coordinator_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go"

	"mesh/coordinator"
	"mesh/coordinator/client"
	"mesh/coordinator/keys"
	"mesh/coordinator/records"
	"mesh/shared/bus"
	"mesh/shared/clock"
	"mesh/shared/controller"
	"mesh/shared/credential"
	"mesh/shared/declaration"
	"mesh/shared/report"
	"mesh/shared/subject"
	"mesh/shared/waitfor"
)

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// childDir names the environment variable that makes this test binary a coordinator.
const (
	childDir    = "MESH_TEST_COORDINATOR"
	childListen = "MESH_TEST_LISTEN"
)

// child serves the mesh in dir until it is killed or told to stop.
func child(dir string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	c := coordinator.New(coordinator.Config{Dir: dir, Listen: os.Getenv(childListen), Ready: func(string) { fmt.Println("ready") },
		Clock: clock.Real(), Rand: rand.Reader, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err := c.Run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// process serves m in a process of its own, and returns what kills it as kill -9 does.
func (m *mesh) process(t *testing.T) (kill func(syscall.Signal)) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childDir+"="+m.dir, childListen+"="+m.address)
	var log strings.Builder
	cmd.Stderr = &log
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	kill = func(s syscall.Signal) {
		if ended {
			return
		}
		ended = true
		if err := cmd.Process.Signal(s); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil && s != syscall.SIGKILL {
			t.Errorf("the coordinator ended with %v:\n%s", err, log.String())
		}
	}
	t.Cleanup(func() { kill(syscall.SIGKILL) })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		kill(syscall.SIGKILL)
		t.Fatalf("the coordinator says %q, %v:\n%s", line, err, log.String())
	}
	return kill
}

// people adds n machines to the records, without a bus.
func (m *mesh) people(t *testing.T, n int) map[subject.Node]credential.Seed {
	t.Helper()
	s, err := records.Open(t.Context(), filepath.Join(m.dir, keys.RecordsFile), records.Options{Clock: clock.Real(), Rand: rand.Reader})
	if err != nil {
		t.Fatal(err)
	}
	seeds := map[subject.Node]credential.Seed{}
	for i := range n {
		x := newMachine(t, fmt.Sprintf("n%03d", i))
		ask := records.EnrolAsk{Key: public(t, x.seed), Curve: public(t, x.curve), MachineID: x.id}
		if _, err := s.AddNode(t.Context(), records.By{Who: "test"}, subject.Node(x.name), ask); err != nil {
			t.Fatal(err)
		}
		seeds[subject.Node(x.name)] = x.seed
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return seeds
}

func TestAKillDuringAPushLosesNothing(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	seeds := m.people(t, 150)
	kill := m.process(t)
	c := m.client(t, m.operator)
	p := ask[controller.Push](t, c, controller.PushSend, controller.PushAsk{All: true, Why: "before the kill"})
	if len(p.Nodes) != len(seeds) {
		t.Fatalf("the push is to %d nodes", len(p.Nodes))
	}
	kill(syscall.SIGKILL) // at once: the push has answered and not sent, or sent some
	// As if the bus had lost all of it, too, as a power cut may.
	if err := os.RemoveAll(filepath.Join(m.dir, keys.BusFolder)); err != nil {
		t.Fatal(err)
	}
	kill = m.process(t)
	for n, seed := range seeds {
		conn, err := bus.Connect(t.Context(), bus.Options{Bus: m.operator.Bus, Seed: seed, Principal: "node-" + string(n), Once: true, Clock: clock.Real()})
		if err != nil {
			t.Fatal(err)
		}
		waitfor.True(t, "the declaration of "+string(n), soon, func() (bool, any) {
			b, err := conn.Last(t.Context(), subject.Declarations, subject.Declaration(n))
			return err == nil && len(b) > 0, err
		})
		conn.Close()
	}
	// Nothing is composed anew: the same push again sends the same seqs.
	c = m.client(t, m.operator)
	again := ask[controller.Push](t, c, controller.PushSend, controller.PushAsk{All: true, Why: "again"})
	for _, x := range again.Nodes {
		if x.Seq != 1 {
			t.Errorf("%s is sent declaration %d: a seq was given twice or lost", x.Node, x.Seq)
		}
	}
	kill(syscall.SIGTERM) // a stop ends by itself, without an error
}

// TestAKillAtAnyMoment: what was answered is kept, what was not may be asked again, and seqs only grow.
func TestAKillAtAnyMoment(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	kill := m.process(t)
	c := m.client(t, m.operator)
	x := newMachine(t, "db1")
	x.join(t, c)
	ask[controller.RegisterAnswer](t, c, controller.ModuleRegister, controller.RegisterAsk{Manifest: []byte(`{"module":"notes","settings":{"n":{"default":""}}}`)})
	var last uint64
	for i := range 8 {
		want := fmt.Sprint(i)
		ask[controller.AssignAnswer](t, c, controller.Assign, controller.AssignAsk{Node: "db1", Module: "notes", Settings: map[string]string{"n": want}})
		switch i % 4 {
		case 1: // while it composes and sends: the ask is with the bus, and no answer is waited for
			conn, err := bus.Connect(t.Context(), bus.Options{Bus: m.operator.Bus, Seed: m.operator.Seed, Principal: m.operator.Principal(), Once: true, Clock: clock.Real()})
			if err != nil {
				t.Fatal(err)
			}
			word := nats.NewMsg(subject.Tool(subject.Controller, controller.PushSend))
			word.Data, word.Reply = []byte(`{"all":true,"why":"cut off"}`), conn.NATS().NewInbox()
			if err := errors.Join(conn.NATS().PublishMsg(word), conn.NATS().Flush()); err != nil {
				t.Fatal(err)
			}
			conn.Close()
		case 2: // once it has answered
			ask[controller.Push](t, c, controller.PushSend, controller.PushAsk{All: true, Why: "cut off"})
		case 3: // while it hears
			ask[controller.Push](t, c, controller.PushSend, controller.PushAsk{All: true, Why: "cut off"})
			last = waitfor.Value(t, "a declaration", soon, x.decisions).Seq
		}
		kill(syscall.SIGKILL)
		c.Close()
		kill = m.process(t)
		c = m.client(t, m.operator)
		p := ask[controller.Push](t, c, controller.PushSend, controller.PushAsk{All: true, Why: "after the kill"})
		if p, err := c.Watch(t.Context(), p, soon, nil); err != nil || p.Counts[controller.PushApplied] != 1 {
			t.Fatalf("round %d: the push ended as %+v, %v", i, p, err)
		}
		// What it said before the kill may have ended the push, with the declaration still on its way.
		d := waitfor.Value(t, "a declaration", soon, x.decisions)
		for more := true; more; {
			if d.Seq < last {
				t.Errorf("round %d: seq %d after %d", i, d.Seq, last)
			}
			last = d.Seq
			if more = len(x.decisions) > 0; more {
				d = <-x.decisions
			}
		}
		if d.Modules[0].Settings["n"] != want {
			t.Fatalf("round %d: the node has %+v", i, d)
		}
	}
	kill(syscall.SIGTERM)
}

func TestAReportDuringARestartIsNotLost(t *testing.T) {
	t.Parallel()
	m := startMesh(t)
	c := m.client(t, m.operator)
	x := newMachine(t, "db1")
	x.join(t, c)
	x.says = func(*declaration.Declaration) report.Apply { return report.Apply{} } // silent: the test reports
	p := ask[controller.Push](t, c, controller.PushSend, controller.PushAsk{All: true, Why: "x"})
	d := waitfor.Value(t, "the declaration", soon, x.decisions)
	m.stop()
	done := make(chan struct{})
	go func() { // the machine's outbox tries until the bus is back
		defer close(done)
		x.report(t, report.Apply{Seq: d.Seq, Outcome: report.Applied}, d)
	}()
	m.serve(t)
	<-done
	c = m.client(t, m.operator)
	waitfor.True(t, "the report to be recorded", soon, func() (bool, any) {
		n := ask[controller.NodeAnswer](t, c, controller.NodeShow, controller.NodeAsk{Node: "db1"})
		return n.Outcome == report.Applied && n.Applied == d.Seq, n.Node
	})
	if _, err := c.Watch(t.Context(), p, soon, nil); err == nil {
		t.Error("a push from before the start is said to be remembered")
	}
}

// TestRecordsFromAnOlderCopy: seqs never go back, and the first push after it is applied.
func TestRecordsFromAnOlderCopy(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	m.log = &lines{}
	m.serve(t)
	c := m.client(t, m.operator)
	x, young := newMachine(t, "db1"), newMachine(t, "db2")
	x.join(t, c)
	push := func(why string) uint64 {
		t.Helper()
		ask[controller.NodeSetAnswer](t, c, controller.NodeSet, controller.NodeSetAsk{Node: "db1", Set: map[string]string{"tunnel": why}})
		ask[controller.Push](t, c, controller.PushSend, controller.PushAsk{All: true, Why: why})
		return waitfor.Value(t, "the declaration "+why, soon, x.decisions).Seq
	}
	push("wg1")
	c.Close()
	m.stop()
	db := filepath.Join(m.dir, keys.RecordsFile)
	copied, err := os.ReadFile(db)
	if err != nil {
		t.Fatal(err)
	}
	m.serve(t)
	c = m.client(t, m.operator)
	young.join(t, c)
	push("wg2")
	last := push("wg3")
	c.Close()
	m.stop()
	for _, name := range []string{db + "-wal", db + "-shm"} {
		if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(db, copied, 0o600); err != nil {
		t.Fatal(err)
	}
	m.serve(t)
	c = m.client(t, m.operator)
	if m.log.count("which are an older copy: the next push goes past it") != 1 || m.log.count("it has to be enrolled again") != 1 {
		t.Errorf("the log does not say what happened:\n%s", m.log)
	}
	nodes := ask[controller.NodesAnswer](t, c, controller.Nodes, controller.Nothing{}).Nodes
	if len(nodes) != 1 || nodes[0].State != controller.NodeBehind || !strings.Contains(nodes[0].Why, "they are an older copy") {
		t.Errorf("the nodes are %+v", nodes)
	}
	p := ask[controller.Push](t, c, controller.PushSend, controller.PushAsk{All: true, Why: "after it"})
	if d := waitfor.Value(t, "the declaration after it", soon, x.decisions); d.Seq <= last {
		t.Errorf("it has seq %d, the node had %d", d.Seq, last)
	}
	if p, err := c.Watch(t.Context(), p, soon, nil); err != nil || p.Counts[controller.PushApplied] != 1 {
		t.Errorf("the push ended as %+v, %v", p, err)
	}
}

// TestABusThatLostItsFolder: declarations come again by themselves, a bundle is said to be missing until it
// is registered again.
func TestABusThatLostItsFolder(t *testing.T) {
	t.Parallel()
	m := startMesh(t)
	c := m.client(t, m.operator)
	x := newMachine(t, "db1")
	x.join(t, c)
	dir := module(t, "program")
	if _, err := c.Register(t.Context(), dir, "", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Assign(t.Context(), controller.AssignAsk{Node: "db1", Module: "notes"}, map[string]string{"password": "x"}); err != nil {
		t.Fatal(err)
	}
	ask[controller.Push](t, c, controller.PushSend, controller.PushAsk{All: true, Why: "x"})
	d := waitfor.Value(t, "the declaration", soon, x.decisions)
	well := func() controller.StatusAnswer {
		t.Helper()
		var s controller.StatusAnswer
		waitfor.True(t, "db1 to be well", soon, func() (bool, any) {
			s = ask[controller.StatusAnswer](t, c, controller.Status, controller.Nothing{})
			return s.Counts.Well == 1, s
		})
		return s
	}
	if s := well(); !s.Well {
		t.Errorf("before: %+v", s)
	}
	c.Close()
	m.stop()
	if err := os.RemoveAll(filepath.Join(m.dir, keys.BusFolder)); err != nil {
		t.Fatal(err)
	}
	m.serve(t)
	c = m.client(t, m.operator)
	if again := waitfor.Value(t, "the declaration again", soon, x.decisions); again.Seq != d.Seq {
		t.Errorf("it came again with seq %d, not %d", again.Seq, d.Seq)
	}
	if s := well(); s.Well || len(s.Problems) != 1 || !strings.Contains(s.Problems[0].What, "the bundle of module notes") || !strings.Contains(s.Problems[0].What, "db1") {
		t.Errorf("after: %+v", s)
	}
	if r, err := c.Register(t.Context(), dir, "", nil); err != nil || r.Changed {
		t.Errorf("registered again: %+v, %v", r, err)
	}
	if s := well(); !s.Well {
		t.Errorf("at the end: %+v", s)
	}
}

// TestManyPeopleAtOnce assign, set and push side by side: each word is kept, no machine is sent an older
// declaration after a newer one, and the last push leaves all as the records say.
func TestManyPeopleAtOnce(t *testing.T) {
	t.Parallel()
	m := startMesh(t)
	c := m.client(t, m.operator)
	nodes := []*machine{newMachine(t, "db1"), newMachine(t, "db2")}
	for _, x := range nodes {
		x.join(t, c)
	}
	const people, rounds = 10, 4
	errs := make(chan error, people)
	for i := range people {
		c := m.client(t, m.operator)
		go func() { // ends with its rounds
			errs <- func() error {
				name := fmt.Sprintf("m%d", i)
				_, err := client.Ask[controller.RegisterAnswer](t.Context(), c, controller.ModuleRegister, controller.RegisterAsk{Manifest: []byte(`{"module":"` + name + `","settings":{"n":{"default":""}}}`)})
				for r := 0; r < rounds && err == nil; r++ {
					for _, n := range []subject.Node{"db1", "db2"} {
						if _, err = client.Ask[controller.AssignAnswer](t.Context(), c, controller.Assign, controller.AssignAsk{Node: n, Module: subject.Module(name), Settings: map[string]string{"n": fmt.Sprint(r)}}); err != nil {
							return err
						}
					}
					if _, err = client.Ask[controller.Push](t.Context(), c, controller.PushSend, controller.PushAsk{All: true, Why: fmt.Sprintf("round %d of %d", r, i)}); err != nil {
						return err
					}
					_, err = client.Ask[controller.StatusAnswer](t.Context(), c, controller.Status, controller.Nothing{})
				}
				return err
			}()
		}()
	}
	for range people {
		if err := waitfor.Value(t, "somebody to end", 2*soon, errs); err != nil {
			t.Error(err)
		}
	}
	p := ask[controller.Push](t, c, controller.PushSend, controller.PushAsk{All: true, Why: "last"})
	if p, err := c.Watch(t.Context(), p, soon, nil); err != nil || p.Counts[controller.PushApplied] != 2 {
		t.Fatalf("the last push ended as %+v, %v", p, err)
	}
	journal := ask[controller.ChangesAnswer](t, c, controller.Changes, controller.ChangesAsk{Limit: 1000})
	counts := map[string]int{}
	for _, x := range journal.Changes {
		counts[x.What]++
	}
	if counts["register"] != people || counts["assign"] != 2*people*rounds || counts["push"] != people*rounds+1 {
		t.Errorf("the journal counts %v", counts)
	}
	for _, x := range nodes {
		var last *declaration.Declaration
		for len(x.decisions) > 0 {
			d := <-x.decisions
			if last != nil && d.Seq < last.Seq {
				t.Errorf("%s was sent %d after %d", x.name, d.Seq, last.Seq)
			}
			last = d
		}
		if last == nil || len(last.Modules) != people {
			t.Fatalf("%s ends with %+v", x.name, last)
		}
		for _, mod := range last.Modules {
			if mod.Settings["n"] != fmt.Sprint(rounds-1) {
				t.Errorf("%s ends with %s of round %s", x.name, mod.Name, mod.Settings["n"])
			}
		}
	}
}

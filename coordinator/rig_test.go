package coordinator_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"mesh/coordinator"
	"mesh/coordinator/client"
	"mesh/coordinator/keys"
	"mesh/shared/bus"
	"mesh/shared/clock"
	"mesh/shared/controller"
	"mesh/shared/credential"
	"mesh/shared/declaration"
	"mesh/shared/enrol"
	"mesh/shared/report"
	"mesh/shared/subject"
	"mesh/shared/verb"
	"mesh/shared/waitfor"
)

const soon = 20 * time.Second

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" { // a coordinator of its own, to be killed
		os.Exit(child(dir))
	}
	goleak.VerifyTestMain(m)
}

// shifted is the machine's clock, some way off.
type shifted struct {
	clock.Clock
	mu    sync.Mutex
	by    time.Duration
	every map[time.Duration]chan time.Time // what the test ticks itself
}

func (s *shifted) Every(d time.Duration) (<-chan time.Time, func()) {
	if c := s.every[d]; c != nil {
		return c, func() {}
	}
	return s.Clock.Every(d)
}

func (s *shifted) Now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Clock.Now().Add(s.by)
}

func (s *shifted) shift(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.by += d
}

// mesh is a mesh whose coordinator runs in this process.
type mesh struct {
	dir      string
	address  string
	clk      *shifted
	operator credential.File
	id       string // of the machine it runs on
	log      *lines // nil: nobody reads it
	metrics  string
	stop     func() // idempotent; waits
}

// lines is a log that can be read while it is written.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

// String is what was written.
func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), text)
}

// newMesh makes a mesh in a folder of the test's own.
func newMesh(t *testing.T) *mesh {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := &mesh{dir: filepath.Join(t.TempDir(), "state"), address: l.Addr().String(), clk: &shifted{Clock: clock.Real()}}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	made, err := keys.Init(t.Context(), m.dir, keys.InitOptions{Mesh: "home", Addresses: []string{m.address}, Operator: "ada", Clock: clock.Real(), Rand: rand.Reader})
	if err != nil {
		t.Fatal(err)
	}
	m.operator = made.Operator
	return m
}

// startMesh makes a mesh and serves it until the test ends.
func startMesh(t *testing.T) *mesh {
	t.Helper()
	m := newMesh(t)
	m.serve(t)
	return m
}

// serve runs the coordinator.
func (m *mesh) serve(t *testing.T) {
	t.Helper()
	ready := make(chan string, 1)
	log := slog.New(slog.DiscardHandler)
	if m.log != nil {
		log = slog.New(slog.NewTextHandler(m.log, nil))
	}
	c := coordinator.New(coordinator.Config{Dir: m.dir, Listen: m.address, MachineID: m.id, Metrics: m.metrics, Version: "0.0.0-test", Ready: func(a string) { ready <- a },
		Clock: m.clk, Rand: rand.Reader, Log: log})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	var once sync.Once
	m.stop = func() {
		once.Do(func() {
			cancel()
			if err := waitfor.Value(t, "the coordinator to stop", soon, done); err != nil {
				t.Errorf("the coordinator ended: %v", err)
			}
		})
	}
	t.Cleanup(m.stop)
	select {
	case <-ready:
	case err := <-done:
		done <- err
		t.Fatalf("the coordinator did not start: %v", err)
	case <-time.After(soon):
		t.Fatal("the coordinator is not ready")
	}
}

// client connects as the operator f.
func (m *mesh) client(t *testing.T, f credential.File) *client.Client {
	t.Helper()
	c, err := client.Connect(t.Context(), f, client.Options{Clock: clock.Real(), Rand: rand.Reader, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// ask asks and fails the test when there is no answer.
func ask[R any](t *testing.T, c *client.Client, v subject.Verb, args any) R {
	t.Helper()
	r, err := client.Ask[R](t.Context(), c, v, args)
	if err != nil {
		t.Fatalf("%s: %v", v, err)
	}
	return r
}

// invite makes an invitation.
func invite(t *testing.T, c *client.Client, name string) credential.Invitation {
	t.Helper()
	answer := ask[controller.InviteAnswer](t, c, controller.NodeInvite, controller.InviteAsk{Node: subject.Node(name)})
	in, err := credential.ParseInvitation(answer.Line)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// machine is a machine that is invited.
type machine struct {
	name      string
	id        string
	seed      credential.Seed
	curve     credential.Seed
	answer    enrol.Answer
	clk       clock.Clock
	mu        sync.Mutex // guards number
	number    uint64
	conn      *bus.Conn
	says      func(*declaration.Declaration) report.Apply
	decisions chan *declaration.Declaration
}

var ids struct {
	sync.Mutex
	n int
}

func newMachine(t *testing.T, name string) *machine {
	t.Helper()
	ids.Lock()
	ids.n++
	m := &machine{name: name, id: fmt.Sprintf("%032x", ids.n), clk: clock.Real(), decisions: make(chan *declaration.Declaration, 100)}
	ids.Unlock()
	var err error
	if m.seed, err = credential.NewUser(rand.Reader); err != nil {
		t.Fatal(err)
	}
	if m.curve, err = credential.NewCurve(rand.Reader); err != nil {
		t.Fatal(err)
	}
	return m
}

func public(t *testing.T, s credential.Seed) string {
	t.Helper()
	key, err := s.Public()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// enrol asks to be let in.
func (m *machine) enrol(t *testing.T, in credential.Invitation) (enrol.Answer, error) {
	t.Helper()
	c, err := bus.Connect(t.Context(), bus.Options{Bus: in.Bus, Seed: in.Seed, Principal: in.Principal(), Name: "installer", Once: true, Clock: m.clk})
	if err != nil {
		return enrol.Answer{}, err
	}
	defer c.Close()
	word := enrol.Ask{Node: subject.Node(m.name), Key: public(t, m.seed), Curve: public(t, m.curve), MachineID: m.id, Agent: "0.1.0",
		Profile: report.Profile{OS: "debian", Arch: "amd64"}, At: m.clk.Now().UnixMilli()}
	ctx, cancel := context.WithTimeout(t.Context(), enrol.Bound)
	defer cancel()
	var answer enrol.Answer
	err = verb.CallAt(ctx, c, subject.Enrol(in.ID), "the enrolment", word, &answer)
	if err == nil {
		m.answer = answer
	}
	return answer, err
}

// join invites and enrols m, connects it and lets it work: each declaration is reported as says decides,
// as applied when it is nil.
func (m *machine) join(t *testing.T, c *client.Client) {
	t.Helper()
	if _, err := m.enrol(t, invite(t, c, m.name)); err != nil {
		t.Fatal(err)
	}
	m.work(t)
}

func (m *machine) work(t *testing.T) {
	t.Helper()
	var err error
	m.conn, err = bus.Connect(t.Context(), bus.Options{Bus: m.answer.Bus, Seed: m.seed, Principal: "node-" + m.name, Name: m.name, Clock: m.clk})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	take := func(b []byte) {
		d, err := declaration.Signed(b).Open(m.answer.Signer, m.answer.Mesh, subject.Node(m.name))
		if err != nil {
			t.Errorf("%s does not take its declaration: %v", m.name, err)
			return
		}
		apply := report.Apply{Seq: d.Seq, Outcome: report.Applied}
		if m.says != nil {
			apply = m.says(d)
		}
		m.decisions <- d
		if apply.Outcome != "" {
			m.report(t, apply, d)
		}
	}
	go func() {
		done <- m.conn.Follow(ctx, subject.Declaration(subject.Node(m.name)), "", func(msg *nats.Msg) { take(msg.Data) }, func() {
			go func() { // what was sent before, as the agent does; ends within its bound
				b, err := m.conn.Last(ctx, subject.Declarations, subject.Declaration(subject.Node(m.name)))
				if err == nil {
					take(b)
				}
			}()
		})
	}()
	t.Cleanup(func() {
		cancel()
		m.conn.Close()
		if err := waitfor.Value(t, m.name+" to stop", soon, done); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
			t.Error(err)
		}
	})
	m.report(t, report.Apply{Outcome: report.None}, nil)
}

// report says how m is.
func (m *machine) report(t *testing.T, apply report.Apply, d *declaration.Declaration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.number++
	r := report.Report{Format: report.Format, Mesh: m.answer.Mesh, Node: subject.Node(m.name), Number: m.number, At: m.clk.Now().UnixMilli(),
		Agent: report.Agent{Version: "0.1.0"}, Apply: apply, Uplinks: []string{"eth0"}, Profile: &report.Profile{OS: "debian", Arch: "amd64", MachineID: m.id}}
	if d != nil {
		for _, x := range d.Modules {
			r.Modules = append(r.Modules, report.Module{Name: x.Name, Build: x.Build, State: report.Running})
			if len(x.Membership) > 0 {
				seed, err := m.seed.Instance(m.answer.Mesh, x.Name)
				if err != nil {
					t.Error(err)
				}
				r.Keys = append(r.Keys, report.Key{Module: x.Name, Key: public(t, seed)})
			}
		}
	}
	b, err := json.Marshal(r)
	if err != nil {
		t.Error(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	for { // like the outbox: until it is acknowledged
		err := m.conn.Publish(ctx, subject.Report(subject.Node(m.name)), b, fmt.Sprintf("%s-%d", m.id, m.number))
		if err == nil || m.conn.NATS().IsClosed() {
			return
		}
		select {
		case <-ctx.Done():
			t.Errorf("%s cannot report: %v", m.name, err)
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

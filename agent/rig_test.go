package agent_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"mesh/agent"
	"mesh/agent/apply"
	"mesh/agent/filter"
	"mesh/agent/host/systemd"
	"mesh/agent/resource"
	"mesh/agent/show"
	"mesh/agent/state"
	"mesh/firewall"
	"mesh/shared/bus"
	"mesh/shared/clock"
	"mesh/shared/credential"
	"mesh/shared/declaration"
	"mesh/shared/manifest"
	"mesh/shared/report"
	"mesh/shared/subject"
	"mesh/shared/waitfor"
	"mesh/testbus"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const soon = 15 * time.Second

// rig is one node whose machine is a folder, with its whole agent, a real bus and the coordinator's ear.
type rig struct {
	t      testing.TB
	dir    string
	bus    *testbus.Bus
	core   *bus.Conn // the coordinator
	signer *credential.Signer
	cred   credential.File
	clock  *clock.Fake // nil: the machine's
	units  *deskUnits
	// change edits the machine before each life.
	change  func(*agent.Config, *agent.Machine)
	links   *filter.Links // when set, there is a packet filter around them
	changed chan struct{}

	reports chan report.Report
	beats   chan report.Heartbeat
	said    chan string // to systemd
	log     *lines

	stop func() // of this life
}

// newRig makes a node that is enrolled and not started.
func newRig(t testing.TB, more ...string) *rig {
	t.Helper()
	signer, err := credential.NewSigner(rand.Reader)
	must(t, err)
	curve, err := credential.NewCurve(rand.Reader)
	must(t, err)
	r := &rig{t: t, dir: t.TempDir(), bus: testbus.Start(t, testbus.Node("n1", more...), asker()), signer: signer,
		changed: make(chan struct{}, 1), reports: make(chan report.Report, 256), beats: make(chan report.Heartbeat, 256),
		said: make(chan string, 1024), log: &lines{}, stop: func() {}}
	r.cred = credential.File{Format: credential.Format, Kind: credential.KindNode, Mesh: "m1", Name: "n1", Bus: r.bus.Where(), Seed: r.bus.Seed("node-n1"), Signer: signer.Verifier(), Curve: curve}
	r.units = &deskUnits{rig: r, all: map[string]*deskUnit{}}
	me := fmt.Sprintf("%d:%d", os.Geteuid(), os.Getegid())
	for p, text := range map[string]string{
		"root/etc/passwd": "root:x:" + me + "::/root:/bin/sh\n", "root/etc/group": "root:x:" + fmt.Sprint(os.Getegid()) + ":\n",
		"root/etc/systemd/system/multi-user.target.wants/.keep": "", "root/etc/systemd/system/timers.target.wants/.keep": "", "run/.keep": "", "state/.keep": "",
	} {
		must(t, os.MkdirAll(filepath.Dir(r.path(p)), 0o755))
		must(t, os.WriteFile(r.path(p), []byte(text), 0o644))
	}
	r.listen()
	return r
}

func (r *rig) path(p string) string { return filepath.Join(r.dir, p) }
func (r *rig) root(p string) string { return filepath.Join(r.dir, "root", p) }

// listen is the coordinator's ear.
func (r *rig) listen() {
	r.core = r.bus.Connect(r.t, "coordinator")
	js, err := jetstream.New(r.core.NATS())
	must(r.t, err)
	stream, cfg := bus.Reports()
	consumer, err := js.CreateOrUpdateConsumer(r.t.Context(), string(stream), cfg)
	must(r.t, err)
	listening, err := consumer.Consume(func(m jetstream.Msg) {
		p, err := report.Decode(m.Data(), "n1")
		if err := errors.Join(err, m.Ack()); err != nil {
			r.t.Error(err)
			return
		}
		r.reports <- *p
	})
	must(r.t, err)
	r.t.Cleanup(func() { listening.Stop(); <-listening.Closed() })
	_, err = r.core.NATS().Subscribe(subject.Heartbeat(subject.Each), func(m *nats.Msg) {
		h, err := report.DecodeHeartbeat(m.Data)
		if err != nil {
			r.t.Error(err)
		}
		r.beats <- h
	})
	must(r.t, err)
	must(r.t, r.core.NATS().FlushTimeout(soon))
}

// still is a clock that the test moves.
func (r *rig) still() *rig {
	r.clock = clock.NewFake(clock.Real().Now())
	return r
}

func (r *rig) config() agent.Config {
	var clk clock.Clock = clock.Real()
	if r.clock != nil {
		clk = r.clock
	}
	m := agent.Machine{Host: apply.Host{Units: r.units}, Changed: r.changed, Profile: func(context.Context) *report.Profile {
		return &report.Profile{OS: "debian", Kernel: "6.1"}
	}}
	cfg := agent.Config{Credential: r.cred, Dir: r.path("state"), Run: r.path("run"), Root: r.path("root"), Clock: clk, Rand: rand.Reader, Log: slog.New(r.log),
		Digest: func() (string, error) { return strings.Repeat("ab", 32), nil },
		Notify: func(s string) {
			select {
			case r.said <- s:
			default:
			}
		}}
	if r.change != nil {
		r.change(&cfg, &m)
	}
	cfg.Machine = func(_ context.Context, s *state.Store, probe func(context.Context) error) (agent.Machine, error) {
		if r.links != nil {
			m.Filter = filter.New(filter.Config{Kernel: deskKernel{}, Store: s, Clock: clk, Log: cfg.Log, Probe: probe,
				Links: func(context.Context) (filter.Links, error) { return *r.links, nil }})
		}
		return m, nil
	}
	return cfg
}

// start begins a life of the agent; the test's end ends it.
func (r *rig) start() *rig {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	cfg := r.config()
	go func() { done <- agent.Run(ctx, cfg) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				r.t.Errorf("the agent ended with %v", err)
			}
		case <-time.After(soon):
			r.t.Errorf("the agent did not end within %v", soon)
		}
	})
	r.t.Cleanup(func() { r.stop() })
	return r
}

// mod is a module of files and processes.
func mod(name, content string, processes ...string) manifest.Manifest {
	m := manifest.Manifest{Module: subject.Module(name), Run: manifest.Run{Files: []manifest.File{{Path: "/etc/" + name + ".conf", Content: content}}}}
	for _, p := range processes {
		if m.Run.Processes == nil {
			m.Run.Processes = map[string]manifest.Process{}
		}
		m.Run.Processes[p] = manifest.Process{Exec: []string{"/bin/" + p, content}}
	}
	return m
}

func content(t testing.TB, mods ...manifest.Manifest) declaration.Content {
	t.Helper()
	c := declaration.Content{Bus: credential.Bus{Addresses: []string{"192.0.2.1:4222"}, Pin: strings.Repeat("ab", 32)}, Drift: declaration.Repair}
	for _, m := range mods {
		text, err := json.Marshal(m)
		must(t, err)
		c.Modules = append(c.Modules, declaration.Module{Name: m.Module, Build: "build-1", Manifest: text})
	}
	slices.SortFunc(c.Modules, func(a, b declaration.Module) int { return strings.Compare(string(a.Name), string(b.Name)) })
	return c
}

func (r *rig) sign(seq uint64, mods ...manifest.Manifest) declaration.Signed {
	r.t.Helper()
	return signAs(r.t, r.signer, "n1", seq, content(r.t, mods...))
}

func signAs(t testing.TB, signer *credential.Signer, node subject.Node, seq uint64, c declaration.Content) declaration.Signed {
	t.Helper()
	text, err := declaration.AppendContent(nil, &c)
	must(t, err)
	signed, err := declaration.SignContent(signer, declaration.Head{Format: declaration.Format, Mesh: "m1", Node: node, Seq: seq}, text)
	must(t, err)
	return signed
}

func (r *rig) push(signed declaration.Signed) {
	r.t.Helper()
	must(r.t, r.core.Publish(r.t.Context(), subject.Declaration("n1"), signed, ""))
}

// report waits for the next one.
func (r *rig) report() report.Report {
	r.t.Helper()
	select {
	case p := <-r.reports:
		return p
	case <-time.After(soon):
		r.t.Fatalf("no report within %v; status %+v; log %s", soon, r.status(), r.log.text())
	}
	panic("unreachable: Fatalf ends the test")
}

// applied waits for the report that declaration seq is applied.
func (r *rig) applied(seq uint64) report.Report {
	r.t.Helper()
	for {
		p := r.report()
		if p.Apply.Seq == seq && p.Apply.Outcome != report.Applying {
			if p.Apply.Outcome != report.Applied {
				r.t.Fatalf("declaration %d: %+v", seq, p)
			}
			return p
		}
	}
}

// silent fails when there are reports that nobody has taken: all that was said is with the coordinator
// once the outbox is empty.
func (r *rig) silent(why string) {
	r.t.Helper()
	r.shows("an empty outbox", func(d show.Document) bool { return d.Outbox.Depth == 0 || !d.Bus.Up })
	must(r.t, r.core.NATS().FlushTimeout(soon))
	select {
	case p := <-r.reports:
		r.t.Errorf("%s: there was a report: %+v", why, p)
	default:
	}
}

// status is what show is told; nothing while the daemon is down.
func (r *rig) status() show.Document {
	d, err := show.Ask(r.t.Context(), r.path("run/"+show.Socket))
	if errors.Is(err, show.ErrDown) {
		return show.Document{}
	}
	must(r.t, err)
	return *d
}

// shows waits until the status is as ok says.
func (r *rig) shows(what string, ok func(show.Document) bool) show.Document {
	r.t.Helper()
	var d show.Document
	waitfor.True(r.t, what, soon, func() (bool, any) {
		d = r.status()
		return ok(d), d
	})
	return d
}

func (r *rig) read(p string) string {
	b, err := os.ReadFile(r.root(p))
	if errors.Is(err, fs.ErrNotExist) {
		return "(absent)"
	}
	must(r.t, err)
	return string(b)
}

func (r *rig) reads(p, want string) {
	r.t.Helper()
	waitfor.True(r.t, p+" to say "+want, soon, func() (bool, any) { s := r.read(p); return s == want, s })
}

// looked has the agent look at the machine and waits until it has.
func (r *rig) looked(d time.Duration) {
	r.t.Helper()
	looks := r.units.looks()
	r.clock.Advance(d)
	waitfor.True(r.t, "a look at the machine", soon, func() (bool, any) { n := r.units.looks(); return n > looks, n })
}

// away takes the node off the bus's list until back is called.
func (r *rig) away() (back func()) {
	r.t.Helper()
	key, err := r.cred.Seed.Public()
	must(r.t, err)
	n1 := testbus.Node("n1")
	n1.Key = key
	r.bus.Remove(r.t, "node-n1")
	return func() { r.bus.Add(r.t, n1) }
}

// lines is a log.
type lines struct {
	mu  sync.Mutex // guards all
	all []string
}

func (l *lines) Enabled(context.Context, slog.Level) bool { return true }
func (l *lines) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *lines) WithGroup(string) slog.Handler            { return l }
func (l *lines) Handle(_ context.Context, r slog.Record) error {
	text := r.Level.String() + " " + r.Message
	r.Attrs(func(a slog.Attr) bool { text += " " + a.String(); return true })
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, text)
	return nil
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.all, "\n")
}

// count is how many lines begin so.
func (l *lines) count(prefix string) (n int) {
	for line := range strings.Lines(l.text()) {
		if strings.HasPrefix(line, prefix) {
			n++
		}
	}
	return n
}

// deskUnits is a systemd on a desk: what is started runs.
type deskUnits struct {
	*rig
	mu    sync.Mutex // guards the fields below
	all   map[string]*deskUnit
	asked int
	block chan struct{} // when set, every look waits for it
	stall chan struct{} // when set, every start waits for it
	fails int           // how many of the next starts fail
}

type deskUnit struct {
	active, sub, result string
	lives, restarts     int
}

func (u *deskUnits) looks() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.asked
}

// set changes a unit as something else than mesh did.
func (u *deskUnits) set(name string, change func(*deskUnit)) {
	u.mu.Lock()
	defer u.mu.Unlock()
	change(u.all[name])
}

func (u *deskUnits) state(name string) systemd.UnitState {
	s := systemd.UnitState{Name: name, Load: "not-found", Active: "inactive", Sub: "dead", File: "disabled"}
	if _, err := os.Stat(u.root(resource.UnitFolder + "/" + name)); err == nil {
		s.Load, s.Fragment = "loaded", resource.UnitFolder+"/"+name
	}
	if _, err := os.Lstat(u.root(resource.UnitFolder + "/multi-user.target.wants/" + name)); err == nil {
		s.File = "enabled"
	}
	if x := u.all[name]; x != nil {
		s.Active, s.Sub, s.Result, s.Restarts, s.Invocation = x.active, x.sub, x.result, x.restarts, fmt.Sprint(x.lives, " ", x.restarts)
	}
	return s
}

func (u *deskUnits) States(ctx context.Context, names []string) (map[string]systemd.UnitState, error) {
	u.mu.Lock()
	block := u.block
	u.mu.Unlock()
	if err := wait(ctx, block); err != nil {
		return nil, err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.asked++
	out := map[string]systemd.UnitState{}
	for _, n := range names {
		out[n] = u.state(n)
	}
	return out, nil
}

func (u *deskUnits) List(ctx context.Context, names []string) (map[string]systemd.UnitState, error) {
	return u.States(ctx, names)
}

func (u *deskUnits) Reload(context.Context) error { return nil }

func (u *deskUnits) Enable(_ context.Context, names []string) (bool, error) {
	for _, n := range names {
		if err := os.Symlink(resource.UnitFolder+"/"+n, u.root(resource.UnitFolder+"/multi-user.target.wants/"+n)); err != nil && !errors.Is(err, fs.ErrExist) {
			return false, err
		}
	}
	return true, nil
}

func (u *deskUnits) Disable(context.Context, []string) (bool, error) { return true, nil }
func (u *deskUnits) ResetFailed(context.Context, string) error       { return nil }
func (u *deskUnits) Start(ctx context.Context, n string) (systemd.JobResult, error) {
	return u.job(ctx, n)
}

func (u *deskUnits) Restart(ctx context.Context, n string) (systemd.JobResult, error) {
	return u.job(ctx, n)
}

func (u *deskUnits) job(ctx context.Context, name string) (systemd.JobResult, error) {
	u.mu.Lock()
	stall := u.stall
	u.mu.Unlock()
	if err := wait(ctx, stall); err != nil {
		return systemd.JobResult{}, err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	x := u.all[name]
	if x == nil {
		x = &deskUnit{}
		u.all[name] = x
	}
	x.active, x.sub, x.result, x.restarts = "active", "running", "success", 0
	x.lives++
	if u.fails > 0 {
		u.fails--
		x.active, x.sub, x.result = "failed", "failed", "exit-code"
	}
	return systemd.JobResult{Result: "done", State: u.state(name)}, nil
}

func (u *deskUnits) Stop(_ context.Context, name string) (systemd.JobResult, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.all, name)
	return systemd.JobResult{Result: "done", State: u.state(name)}, nil
}

func (u *deskUnits) Settle(_ context.Context, start systemd.JobResult, _ time.Duration) (systemd.Verdict, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return systemd.Judge(start, u.state(start.State.Name)), nil
}

func wait(ctx context.Context, c <-chan struct{}) error {
	if c == nil {
		return nil
	}
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// deskKernel has every table it is given.
type deskKernel struct{}

func (deskKernel) Load(context.Context, firewall.Table) error { return nil }
func (deskKernel) Drift(context.Context, firewall.Table) (firewall.Drift, error) {
	return firewall.Drift{}, nil
}
func (deskKernel) Delete(context.Context) error                         { return nil }
func (deskKernel) Watch(context.Context) (<-chan firewall.Event, error) { return nil, nil }
func (deskKernel) Try(context.Context, firewall.Table) error            { return nil }
func (deskKernel) Trying(context.Context) (bool, error)                 { return true, nil }
func (deskKernel) EndTrial(context.Context) error                       { return nil }
func (deskKernel) DropBoot(context.Context) error                       { return nil }
func (deskKernel) Owned() bool                                          { return true }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// silent is the address of somebody who takes connections and says nothing.
func silent(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	var wg sync.WaitGroup
	wg.Go(func() { // ends with the listener
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { // ends when the peer leaves
				_, _ = io.Copy(io.Discard, c)
				_ = c.Close()
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return l.Addr().String()
}

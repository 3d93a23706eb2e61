// Package coordinator is the daemon mesh-coordinator: it wires the records, the embedded bus, composing,
// sending, hearing, enrolment and the verbs together, and runs them. It decides nothing itself. Run owns
// every goroutine and every file: it stops in the reverse order of its start, each part under a bound,
// and names what was late. What a kill leaves half done, the next start finishes: reports that were not
// recorded come again, declarations the bus does not hold are sent again.
package coordinator

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sys/unix"

	"mesh/coordinator/artifact"
	"mesh/coordinator/calls"
	"mesh/coordinator/compose"
	"mesh/coordinator/enrol"
	"mesh/coordinator/hear"
	"mesh/coordinator/issue"
	"mesh/coordinator/keys"
	"mesh/coordinator/push"
	"mesh/coordinator/records"
	"mesh/coordinator/verbs"
	"mesh/shared/broker"
	"mesh/shared/bus"
	"mesh/shared/clock"
	"mesh/shared/declaration"
	"mesh/shared/grant"
	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/subject"
)

const (
	// startBound is for the streams and what the bus holds, at ten thousand nodes.
	startBound = time.Minute
	// stopBound is for each part; all together stay below systemd's 10 s (NOD-4).
	stopBound = 2 * time.Second
)

// Config says how the daemon runs.
type Config struct {
	// Dir is the coordinator's folder, as keys.Init made it.
	Dir string
	// Listen is where the bus listens, host:port; "" is every address at the port of the mesh's first one.
	Listen string
	// MachineID is /etc/machine-id of the machine the daemon runs on, "" when it has none: on the node that
	// was enrolled with it the bus's port stays open.
	MachineID string
	// Version is the program's.
	Version string
	// Metrics is where metrics are served, host:port on loopback; empty for nowhere.
	Metrics string
	// Notify is systemd's socket, "" for none; Watchdog the interval it wants to hear in.
	Notify   string
	Watchdog time.Duration
	// Ready, when not nil, is called once everything is served; address is the bus's on loopback.
	Ready func(address string)
	Clock clock.Clock
	Rand  io.Reader
	Log   *slog.Logger
}

// Coordinator is the daemon.
type Coordinator struct {
	cfg     Config
	keys    *keys.Keys
	records *records.Store
	compose *compose.Composer
	broker  *broker.Broker
	conn    *bus.Conn
	users   *userList
	push    *push.Engine
	issue   *issue.Issuer
	calls   *calls.Keeper
	hear    *hear.Hearer
	door    *enrol.Door
	keeper  *artifact.Keeper
	verbs   *verbs.Server
	// served hears of the door and of the verbs once each; capacity: both, and a door that opens again.
	served chan string
}

// New makes a Coordinator; Run starts it.
func New(c Config) *Coordinator { return &Coordinator{cfg: c, served: make(chan string, 4)} }

// Run works until ctx ends or a part cannot go on.
func (c *Coordinator) Run(ctx context.Context) (err error) {
	lock, err := lockFolder(c.cfg.Dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	defer func() { err = errors.Join(err, c.close(context.WithoutCancel(ctx))) }()
	if err := c.start(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // told to stop while it started
		}
		return fmt.Errorf("start the coordinator: %w", err)
	}
	return c.work(ctx)
}

// lockFolder refuses a second coordinator on one folder.
func lockFolder(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, os.ErrNotExist) {
		return nil, refusal.New("to serve the mesh in "+dir, "there is no such folder", "name it with --dir, or make a mesh: mesh-installer genesis")
	}
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(refusal.New("to serve the mesh in "+dir, "another coordinator serves it now", "stop that one first: systemctl stop mesh-coordinator"), f.Close())
	}
	return f, nil
}

// start opens and connects everything, in order.
func (c *Coordinator) start(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, startBound)
	defer cancel()
	if c.keys, err = keys.Load(c.cfg.Dir, c.cfg.Clock.Now(), c.cfg.Rand); err != nil {
		return err
	}
	own, err := c.keys.Coordinator.Seed.Public()
	if err != nil {
		return err
	}
	if c.records, err = records.Open(ctx, filepath.Join(c.cfg.Dir, keys.RecordsFile), records.Options{Clock: c.cfg.Clock, Rand: c.cfg.Rand, Own: own}); err != nil {
		return err
	}
	mesh, err := c.records.Mesh(ctx)
	if err != nil {
		return err
	}
	listen, err := c.listen(mesh.Bus.Addresses)
	if err != nil {
		return err
	}
	c.compose = compose.New(c.records, compose.Options{Signer: c.keys.Signer, Coordinator: own, Rights: verbs.Rights, OnNodes: verbs.OnNodes, Clock: c.cfg.Clock,
		Host: compose.Host{MachineID: c.cfg.MachineID, Listen: listen}})
	if err := c.startBus(ctx, mesh, listen); err != nil {
		return err
	}
	if err := c.parts(ctx, mesh); err != nil {
		return err
	}
	return c.restore(ctx)
}

// startBus starts the broker with the composed list, connects inside the process and asserts the streams.
func (c *Coordinator) startBus(ctx context.Context, mesh records.Mesh, listen string) error {
	c.users = newUserList(c.compose.Principals, func(l grant.List) (bool, error) { return c.broker.Apply(l) }, c.cfg.Clock, c.cfg.Log)
	list, version, err := c.users.list(ctx)
	if err != nil {
		return err
	}
	c.broker, err = broker.Start(ctx, broker.Config{Listen: listen, Store: filepath.Join(c.cfg.Dir, keys.BusFolder), Certificate: &c.keys.Certificate, Log: c.cfg.Log}, list)
	if err != nil {
		return err
	}
	c.users.applied = version
	own := c.keys.Coordinator
	c.conn, err = bus.Connect(ctx, bus.Options{Bus: mesh.Bus, Seed: own.Seed, Principal: own.Principal(), Name: "mesh-coordinator",
		InProcess: c.broker.InProcess(), Clock: c.cfg.Clock, Log: c.cfg.Log})
	if err != nil {
		return err
	}
	js, err := jetstream.New(c.conn.NATS())
	if err != nil {
		return err
	}
	return bus.Assert(ctx, js, bus.Streams(1, c.broker.Room()))
}

// parts makes what works on the bus.
func (c *Coordinator) parts(ctx context.Context, mesh records.Mesh) (err error) {
	if c.push, err = push.New(push.Config{Conn: c.conn, Records: c.records, Known: c.records.Known, Clock: c.cfg.Clock, Log: c.cfg.Log}); err != nil {
		return err
	}
	if c.calls, err = calls.New(ctx, calls.Config{Records: c.records, Clock: c.cfg.Clock, Rand: c.cfg.Rand, Log: c.cfg.Log}); err != nil {
		return err
	}
	if c.issue, err = issue.New(c.conn); err != nil {
		return err
	}
	heard := func(x records.Heard, r *report.Report) {
		c.push.Heard(x.Node, r.Apply)
		if x.Keyed { // an instance may come in now
			c.users.Kick()
		}
	}
	beat := func(n subject.Node, b report.Heartbeat) {
		if !c.push.Follows(n) {
			return
		}
		if a, ok := c.records.Stands(n, b.Report, b.Seq); ok { // what it said before is its answer
			c.push.Heard(n, report.Apply{Seq: a.Seq, Outcome: a.Outcome, Refused: a.Refused, TookMS: a.TookMS})
		}
	}
	if c.hear, err = hear.New(hear.Config{Mesh: mesh.ID, Conn: c.conn, Records: c.records, Heard: heard, Beat: beat, Clock: c.cfg.Clock, Log: c.cfg.Log, Rand: c.cfg.Rand}); err != nil {
		return err
	}
	tell := func(who string) func() {
		return func() {
			select {
			case c.served <- who:
			default: // nobody listens any more: it was ready long ago
			}
		}
	}
	clear := func(ctx context.Context, n subject.Node) error {
		return c.push.Clear(ctx, n, func() (uint64, error) {
			d, err := c.records.Declared(ctx, n)
			return d.Seq, err
		})
	}
	c.door = enrol.New(enrol.Config{Conn: c.conn, Records: c.records, Clear: clear, Admit: c.users.Now, Served: tell("enrol"), Clock: c.cfg.Clock, Log: c.cfg.Log})
	if c.keeper, err = artifact.New(artifact.Config{Conn: c.conn, Records: c.records, Clock: c.cfg.Clock, Log: c.cfg.Log}); err != nil {
		return err
	}
	c.verbs, err = verbs.New(verbs.Config{Conn: c.conn, Records: c.records, Composer: c.compose, Push: c.push, Issuer: c.issue, Calls: c.calls, Hear: c.hear, Artifacts: c.keeper, Users: c.users,
		Clock: c.cfg.Clock, Log: c.cfg.Log, Version: c.cfg.Version, Served: tell("verbs")})
	return err
}

// restore sends what the records hold and the bus does not: a push that a kill cut off, or what a power
// cut took from the streams, which are not synced. What the bus holds and the records do not know of is
// not sent below.
func (c *Coordinator) restore(ctx context.Context) error {
	kept, err := c.records.DeclaredSeqs(ctx)
	if err != nil {
		return err
	}
	there, err := c.push.OnBus(ctx)
	if err != nil {
		return err
	}
	if err := c.purge(ctx, kept, there); err != nil {
		return err
	}
	if err := c.raise(ctx, kept, there); err != nil {
		return err
	}
	unrecorded, err := c.records.Unrecorded(ctx)
	if err != nil {
		return err
	}
	var missing, sent []subject.Node
	for n, seq := range kept {
		if there[n] < seq {
			missing = append(missing, n)
		} else if there[n] == seq && unrecorded[n] == seq {
			sent = append(sent, n)
		}
	}
	if err := c.recordSent(ctx, sent); err != nil {
		return err
	}
	items, err := c.items(ctx, missing)
	if err != nil || len(items) == 0 {
		return err
	}
	p := c.push.Start("coordinator", "the bus did not hold them when the coordinator started", items)
	c.cfg.Log.Info("declarations are sent again that the bus did not hold", "push", p.ID, "nodes", len(items))
	return nil
}

// items are the last declarations of these nodes.
func (c *Coordinator) items(ctx context.Context, names []subject.Node) ([]push.Item, error) {
	if len(names) == 0 {
		return nil, nil
	}
	items := make([]push.Item, 0, len(names))
	err := c.records.DeclaredTexts(ctx, names, func(n subject.Node, seq uint64, signed declaration.Signed) error {
		builds, err := buildsIn(signed)
		items = append(items, push.Item{Node: n, Seq: seq, Signed: signed, Builds: builds})
		return err
	})
	return items, err
}

// recordSent records sends that are on the bus and not in the records: the disk was full, or a kill came
// between the two.
func (c *Coordinator) recordSent(ctx context.Context, names []subject.Node) error {
	items, err := c.items(ctx, names)
	if err != nil {
		return err
	}
	sends := make([]records.Send, len(items))
	for i, it := range items {
		sends[i] = records.Send{Node: it.Node, Seq: it.Seq, Builds: it.Builds}
	}
	return c.records.RecordSends(ctx, sends)
}

// raise sees to it that no seq is given again which the bus holds: the records may have been restored from
// an older copy, and nodes refuse what is older than they have.
func (c *Coordinator) raise(ctx context.Context, kept, there map[subject.Node]uint64) error {
	nodes, err := c.records.Nodes(ctx)
	if err != nil {
		return err
	}
	higher := map[subject.Node]uint64{}
	known := make(map[subject.Node]bool, len(nodes))
	for _, n := range nodes {
		known[n.Name] = true
		if there[n.Name] > kept[n.Name] {
			higher[n.Name] = there[n.Name]
			c.cfg.Log.Warn("the bus holds a newer declaration than the records, which are an older copy: the next push goes past it",
				"node", n.Name, "seq", there[n.Name], "records", kept[n.Name])
		}
	}
	for n, seq := range there {
		if !known[n] {
			c.cfg.Log.Error("the bus holds the declaration of a node that the records do not know: they are an older copy, and it has to be enrolled again", "node", n, "seq", seq)
		}
	}
	if len(higher) == 0 {
		return nil
	}
	return c.records.Raise(ctx, records.By{Who: "coordinator", Why: "the bus holds newer declarations than these records: they are an older copy"}, higher)
}

// purge takes declarations of removed nodes off the bus that a kill left there. One that the records never
// knew stays: they may be an older copy.
func (c *Coordinator) purge(ctx context.Context, kept, there map[subject.Node]uint64) error {
	removed, err := c.records.Archive(ctx)
	if err != nil {
		return err
	}
	for _, n := range removed {
		_, again := kept[n.Name]
		if _, left := there[n.Name]; !left || again {
			continue
		}
		if err := c.push.Purge(ctx, n.Name); err != nil {
			return err
		}
		delete(there, n.Name)
	}
	return nil
}

// buildsIn reads which builds a declaration of our own records carries.
func buildsIn(signed declaration.Signed) (map[subject.Module]string, error) {
	_, body, _ := bytes.Cut(signed, []byte{'\n'})
	var d struct {
		Modules []struct {
			Name  subject.Module `json:"name"`
			Build string         `json:"build"`
		} `json:"modules"`
	}
	if err := json.Unmarshal(body, &d); err != nil {
		return nil, fmt.Errorf("a declaration in the records: %w", err)
	}
	builds := make(map[subject.Module]string, len(d.Modules))
	for _, m := range d.Modules {
		builds[m.Name] = m.Build
	}
	return builds, nil
}

// close closes in reverse order what start opened.
func (c *Coordinator) close(ctx context.Context) error {
	var errs []error
	if c.conn != nil {
		c.conn.Close()
	}
	if c.broker != nil {
		ctx, cancel := context.WithTimeout(ctx, stopBound)
		defer cancel()
		errs = append(errs, c.broker.Stop(ctx))
	}
	if c.records != nil {
		errs = append(errs, c.records.Close())
	}
	return errors.Join(errs...)
}

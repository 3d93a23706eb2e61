package installer

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/coreos/go-systemd/v22/dbus"
	"golang.org/x/sys/unix"

	"mesh/firewall"
	"mesh/shared/broker"
	"mesh/shared/bus"
	"mesh/shared/clock"
	"mesh/shared/credential"
	"mesh/shared/enrol"
	"mesh/shared/grant"
	"mesh/shared/rule"
	"mesh/shared/sqlite"
	"mesh/shared/subject"
	"mesh/shared/verb"
	"mesh/testbus/hosts"
)

// The test binary, copied into a host under the names of mesh's programs, stands for them there: a
// coordinator with a real bus behind its door, an agent that tries what agents do, and the installer
// itself. So units and installer are tested on a real systemd without the programs of others.
func TestMain(m *testing.M) {
	name := filepath.Base(os.Args[0])
	standIn := map[string]func(context.Context) error{agentProgram: standInAgent, coordinatorProgram: standInCoordinator, installerProgram: standInInstaller}[name]
	if standIn == nil {
		os.Exit(m.Run())
	}
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		fmt.Println(name + " version 0.1.0 (standin)")
		os.Exit(0)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	err := standIn(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

const (
	lineFile  = coordinatorFolder + "/line"
	agentLog  = agentFolder + "/probe"
	coordLog  = coordinatorFolder + "/probe"
	standPort = "4222"
)

// probe notes what did not go as it should.
type probe struct{ bytes.Buffer }

func (p *probe) must(what string, err error) {
	if err != nil {
		fmt.Fprintf(p, "%s: %v\n", what, err)
	}
}

func (p *probe) mustNot(what string, err error) {
	if err == nil {
		fmt.Fprintf(p, "%s: it was allowed\n", what)
	}
}

// standInInstaller is this package under flags of its own.
func standInInstaller(ctx context.Context) error {
	i := &Installer{Machine: This(rand.Reader), From: filepath.Dir(os.Args[0]), Say: os.Stderr}
	switch os.Args[1] {
	case "serve": // the coordinator's unit alone
		s := i.coordinator()
		return i.steps(ctx, []Step{s.remember(), s.install(), s.write(), s.start()})
	case "enrol":
		_, err := i.Enrol(ctx, os.Args[2])
		return err
	case "leave":
		left, err := i.Leave(ctx, LeaveOptions{StopWorkloads: true, CoordinatorToo: true})
		fmt.Println(strings.Join(left.Stays, "\n"))
		return err
	}
	return errors.New("what?")
}

// standInCoordinator runs the bus and the door, in the sandbox of the coordinator's unit.
func standInCoordinator(ctx context.Context) error {
	var p probe
	p.mustNot("write to /etc", os.WriteFile("/etc/of-the-coordinator", nil, 0o600))
	p.mustNot("see homes", os.WriteFile("/root/x", nil, 0o600))
	d, err := newStandInDoor(ctx, clock.Real().Now())
	if err != nil {
		return err
	}
	if err := os.WriteFile(coordLog, p.Bytes(), 0o600); err != nil {
		return err
	}
	return alive(ctx, d.run)
}

// standInDoor lets one machine in.
type standInDoor struct {
	ca          *credential.Authority
	broker      *broker.Broker
	coordinator credential.Seed
	people      []grant.Principal

	mu    sync.Mutex // guards people and heard
	heard bool
}

func newStandInDoor(ctx context.Context, now time.Time) (*standInDoor, error) {
	d := &standInDoor{}
	var err error
	if d.ca, err = credential.NewAuthority(rand.Reader, "stand-in", now); err != nil {
		return nil, err
	}
	cert, err := d.ca.Issue(rand.Reader, now)
	if err != nil {
		return nil, err
	}
	if d.coordinator, err = d.take(grant.Principal{Kind: grant.Coordinator}); err != nil {
		return nil, err
	}
	seed, err := d.take(grant.Principal{Kind: grant.Invitation, Name: invited})
	if err != nil {
		return nil, err
	}
	list, _, err := grant.Compose(d.people)
	if err != nil {
		return nil, err
	}
	if d.broker, err = broker.Start(ctx, broker.Config{Listen: net.JoinHostPort("::", standPort), Store: coordinatorFolder + "/bus", Certificate: &cert}, list); err != nil {
		return nil, err
	}
	inv := credential.Invitation{Format: credential.Format, Mesh: "stand-in", ID: invited, Node: "db1", Seed: seed, Expires: now.Add(time.Hour).UnixMilli(),
		Bus: credential.Bus{Addresses: []string{"127.0.0.1:" + standPort}, Pin: d.ca.Pin()}}
	line, err := inv.Encode()
	if err != nil {
		return nil, err
	}
	return d, os.WriteFile(lineFile, []byte(line), 0o600)
}

func (d *standInDoor) take(p grant.Principal) (credential.Seed, error) {
	seed, err := credential.NewUser(rand.Reader)
	if err != nil {
		return "", err
	}
	p.Key, err = seed.Public()
	d.people = append(d.people, p)
	return seed, err
}

func (d *standInDoor) run(ctx context.Context) error {
	where := credential.Bus{Addresses: []string{"127.0.0.1:" + standPort}, CA: d.ca.PEM(), Pin: d.ca.Pin()}
	c, err := bus.Connect(ctx, bus.Options{Bus: where, Seed: d.coordinator, Principal: "coordinator", Name: "coordinator"})
	if err != nil {
		return err
	}
	defer c.Close()
	listen, err := c.NATS().Subscribe(subject.Heartbeat("db1"), func(*natsMsg) { d.mu.Lock(); d.heard = true; d.mu.Unlock() })
	if err != nil {
		return err
	}
	defer func() { _ = listen.Unsubscribe() }() // the connection ends anyway
	return verb.Serve(ctx, c, subject.Enrol("*"), "", 4, slog.New(slog.DiscardHandler), func(_ context.Context, _ verb.Caller, body []byte) (any, error) {
		ask, err := enrol.DecodeAsk(body)
		if err != nil {
			return nil, err
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		if len(d.people) == 2 {
			d.people = append(d.people, grant.Principal{Kind: grant.Node, Name: string(ask.Node), Key: ask.Key})
			list, _, err := grant.Compose(d.people)
			if err != nil {
				return nil, err
			}
			if _, err := d.broker.Apply(list); err != nil {
				return nil, err
			}
		}
		return enrol.Answer{Mesh: "stand-in", Node: ask.Node, Signer: "signer", Bus: where, Heard: d.heard}, nil
	})
}

// standInAgent tries all that an agent does, in the sandbox of the agent's unit, and says a heartbeat.
func standInAgent(ctx context.Context) error {
	if len(os.Args) > 1 && os.Args[1] == "ledger" {
		fmt.Println("dir:/srv/of-mesh\nunit:mesh-probe-x.service")
		return nil
	}
	var p probe
	for _, dir := range []string{"/etc", "/usr/local", "/srv", "/var", "/var/log", "/opt", "/home", "/root", "/usr/lib", "/boot"} {
		p.must("files in "+dir, writeTree(filepath.Join(dir, "of-mesh")))
	}
	p.must("its store", openStore(ctx))
	p.must("systemd", useSystemd(ctx))
	p.must("the packet filter", loadFilter(ctx))
	p.mustNot("mount", unix.Mount("none", "/mnt", "tmpfs", 0, ""))
	// No valid time: a host has the clock of the machine it is booted on, so nothing may come of it.
	if err := unix.Settimeofday(&unix.Timeval{Usec: 2_000_000}); !errors.Is(err, unix.EPERM) {
		fmt.Fprintf(&p, "set the clock: %v\n", err)
	}
	_, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	p.mustNot("listen to the wire", err)
	p.mustNot("open the disks", func() error { _, err := os.Open("/dev/kmsg"); return err }())
	if err := os.WriteFile(agentLog, p.Bytes(), 0o600); err != nil {
		return err
	}
	f, err := credential.Load(credentialFile)
	if err != nil {
		return err
	}
	c, err := bus.Connect(ctx, bus.Options{Bus: f.Bus, Seed: f.Seed, Principal: f.Principal(), Name: "agent", Once: true})
	if err != nil {
		return err
	}
	defer c.Close()
	return alive(ctx, func(ctx context.Context) error {
		ticks, stop := clock.Real().Every(100 * time.Millisecond)
		defer stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-ticks:
				if err := c.Say(subject.Heartbeat(subject.Node(f.Name)), []byte("{}")); err != nil {
					return err
				}
			}
		}
	})
}

// alive tells systemd that the daemon is ready and well while run runs.
func alive(ctx context.Context, run func(context.Context) error) error {
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil || interval == 0 {
		return fmt.Errorf("no watchdog: %v", err)
	}
	if ok, err := daemon.SdNotify(false, daemon.SdNotifyReady); !ok || err != nil {
		return fmt.Errorf("systemd was not told: %v", err)
	}
	ticks, stop := clock.Real().Every(interval / 3)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	for {
		select {
		case err := <-ended:
			return err
		case <-ticks:
			if _, err := daemon.SdNotify(false, daemon.SdNotifyWatchdog); err != nil {
				return err
			}
		}
	}
}

func writeTree(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	at := filepath.Join(dir, "f")
	if err := os.WriteFile(at, []byte("x"), 0o600); err != nil {
		return err
	}
	// Of a user's, closed to others, and changed again: what CHOWN, FOWNER, DAC_OVERRIDE and FSETID are for.
	if err := errors.Join(os.Chown(at, 1, 1), os.Chmod(at, 0o2750), os.WriteFile(at, []byte("y"), 0), os.Chown(dir, 1, 1), os.Chmod(dir, 0o700)); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "g"), nil, 0o600)
}

func openStore(ctx context.Context) error {
	db, err := sqlite.Open(ctx, agentFolder+"/state.db", sqlite.Options{ID: 1, Migrations: os.DirFS("/nonexistent")})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if db == nil {
		return nil // it came as far as looking for migrations
	}
	return db.Close()
}

func useSystemd(ctx context.Context) error {
	c, err := dbus.NewSystemConnectionContext(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	const name = "mesh-probe-x.service"
	text := "# Made by mesh for module probe, process x.\n[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"
	if err := os.WriteFile("/etc/systemd/system/"+name, []byte(text), 0o644); err != nil {
		return err
	}
	if err := c.ReloadContext(ctx); err != nil {
		return err
	}
	if _, _, err := c.EnableUnitFilesContext(ctx, []string{name}, false, false); err != nil {
		return err
	}
	done := make(chan string, 1)
	if _, err := c.StartUnitContext(ctx, name, "replace", done); err != nil {
		return err
	}
	if got := <-done; got != "done" {
		return errors.New("the unit's job is " + got)
	}
	properties := []dbus.Property{dbus.PropExecStart([]string{"/bin/sh", "-c", "id of-mesh || useradd --system of-mesh"}, false), dbus.PropType("oneshot")}
	if _, err := c.StartTransientUnitContext(ctx, "mesh-probe-user.service", "replace", properties, done); err != nil {
		return err
	}
	if got := <-done; got != "done" {
		return errors.New("the transient unit's job is " + got)
	}
	return nil
}

func loadFilter(ctx context.Context) error {
	ssh := rule.Allow{Owner: "admin", Port: rule.Port{First: 22, Last: 22, Protocol: "tcp"}, From: rule.Anywhere()}
	t, err := firewall.Compile(firewall.Filter{Outside: []string{hosts.Link}, Allow: []rule.Allow{ssh}})
	if err != nil {
		return err
	}
	d, err := firewall.Open()
	if err != nil {
		return err
	}
	return errors.Join(d.Load(ctx, t), d.Close())
}

package installer

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"mesh/shared/clock"
	"mesh/shared/credential"
	"mesh/shared/enrol"
	"mesh/shared/subject"
	"mesh/shared/verb"
	"mesh/testbus"
)

// hasty is the machine's clock, but for waiting.
type hasty struct{ clock.Clock }

func (h hasty) After(time.Duration) <-chan time.Time { return h.Clock.After(time.Millisecond) }

// bed is a machine in a temporary folder, with a systemd that only remembers.
type bed struct {
	t    testing.TB
	root string
	said bytes.Buffer
	*Installer

	mu     sync.Mutex // guards the fields below: verbs of the stand-ins run on goroutines of their own
	calls  []string
	active map[string]bool
	fails  map[string]error // by command line
	// on runs when a command line is run.
	on map[string]func() error
}

const machineID = "0123456789abcdef0123456789abcdef"

func newBed(t testing.TB) *bed {
	b := &bed{t: t, root: t.TempDir(), active: map[string]bool{}, fails: map[string]error{}, on: map[string]func() error{}}
	from := t.TempDir()
	for _, p := range []string{agentProgram, coordinatorProgram, installerProgram} {
		program, err := os.ReadFile("/bin/true")
		if err != nil {
			t.Fatal(err)
		}
		b.writeAt(filepath.Join(from, p), string(program), 0o755)
	}
	for _, d := range []string{"/run/systemd/system", "/etc/systemd/system", "/usr/local/bin", "/var/lib"} {
		if err := os.MkdirAll(filepath.Join(b.root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	b.write("/etc/machine-id", machineID+"\n")
	b.write("/etc/hostname", "DB1.example.com\n")
	b.write("/usr/sbin/nft", "")
	b.write("/etc/os-release", "ID=debian\nVERSION_ID=\"12\"\n")
	none := func() error { return nil }
	b.Installer = &Installer{From: from, Say: &b.said, Machine: Machine{
		Root: b.root, Run: b.run, Filter: none, DropFilter: func(context.Context) error { b.call("drop filter"); return nil },
		Listen: func(string) error { return nil }, Writable: writable, Free: func(string) (int64, error) { return 4 << 30, nil },
		Clock: hasty{clock.Real()}, Rand: rand.Reader,
	}}
	return b
}

func (b *bed) call(line string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls = append(b.calls, line)
}

// run stands for the programs of the machine.
func (b *bed) run(_ context.Context, args ...string) (string, error) {
	args = slices.Clone(args)
	args[0] = filepath.Base(args[0])
	line := strings.Join(args, " ")
	b.mu.Lock()
	defer b.mu.Unlock()
	if !strings.HasPrefix(line, "systemctl show") && !strings.HasSuffix(line, "--version") {
		b.calls = append(b.calls, line)
	}
	if on := b.on[line]; on != nil {
		if err := on(); err != nil {
			return "", err
		}
	}
	if err := b.fails[line]; err != nil {
		return "", err
	}
	unit := args[len(args)-1]
	switch {
	case line == "systemctl --version":
		return "systemd 252 (252.39-1~deb12u2)\n+PAM\n", nil
	case strings.HasSuffix(line, " --version"):
		return args[0] + " version 0.1.0 (0123456789ab)\n", nil
	case strings.HasPrefix(line, "systemctl show"):
		return b.state(unit), nil
	case strings.HasPrefix(line, "systemctl start"), strings.HasPrefix(line, "systemctl restart"):
		b.active[unit] = true
	case strings.HasPrefix(line, "systemctl stop"):
		delete(b.active, unit)
	case strings.HasPrefix(line, "systemctl enable"):
		b.write("/etc/systemd/system/multi-user.target.wants/"+unit, "")
	case strings.HasPrefix(line, "systemctl disable"):
		for _, u := range args[2:] {
			delete(b.active, u)
			if err := remove(b.at("/etc/systemd/system/multi-user.target.wants/" + u)); err != nil {
				return "", err
			}
		}
		_ = os.Remove(b.at("/etc/systemd/system/multi-user.target.wants"))
	}
	return "", nil
}

func (b *bed) state(unit string) string {
	active, file := "inactive", ""
	if b.active[unit] {
		active = "active"
	}
	if exists(b.at("/etc/systemd/system/multi-user.target.wants/" + unit)) {
		file = "enabled"
	}
	return fmt.Sprintf("ActiveState=%s\nUnitFileState=%s\nNeedDaemonReload=no\n", active, file)
}

func (b *bed) at(path string) string { return filepath.Join(b.root, path) }

func (b *bed) write(path, content string) { b.t.Helper(); b.writeAt(b.at(path), content, 0o644) }

func (b *bed) writeAt(at, content string, mode fs.FileMode) {
	b.t.Helper()
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(at, []byte(content), mode); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bed) read(path string) string {
	b.t.Helper()
	raw, err := os.ReadFile(b.at(path))
	if err != nil {
		b.t.Fatal(err)
	}
	return string(raw)
}

// tree is every file and folder below the root, with modes and contents: equal trees are equal machines.
func (b *bed) tree() map[string]string {
	b.t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(b.root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text := info.Mode().String()
		if d.Type().IsRegular() {
			raw, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			text += " " + string(raw)
		}
		all[strings.TrimPrefix(p, b.root)] = text
		return nil
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return all
}

// ran takes the command lines that were run since it was asked last.
func (b *bed) ran() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	calls := b.calls
	b.calls = nil
	return calls
}

// door stands for the coordinator at the place where invited machines ask.
type door struct {
	bus  *testbus.Bus
	inv  credential.Invitation
	line string

	mu    sync.Mutex // guards the fields below
	asks  []enrol.Ask
	judge func(n int, a enrol.Ask) error
	heard bool
	skew  time.Duration
	other func(*enrol.Answer)
}

const invited = "k3v9"

func newDoor(t testing.TB) *door {
	d := &door{bus: testbus.Start(t, testbus.Invitation(invited), testbus.Node("db1"))}
	where := d.bus.Where()
	d.inv = credential.Invitation{Format: credential.Format, Mesh: "mesh-id", ID: invited, Node: "db1", Seed: d.bus.Seed("invitation-" + invited),
		Bus: credential.Bus{Addresses: where.Addresses, Pin: where.Pin}, Expires: clock.Real().Now().Add(time.Hour).UnixMilli()}
	var err error
	if d.line, err = d.inv.Encode(); err != nil {
		t.Fatal(err)
	}
	d.serve(t)
	return d
}

func (d *door) serve(t testing.TB) {
	core := d.bus.Connect(t, "coordinator")
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { // ends with the test
		defer close(done)
		if err := verb.Serve(ctx, core, subject.Enrol("*"), "", 4, slog.New(slog.DiscardHandler), d.answer); err != nil {
			t.Errorf("the door: %v", err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
}

func (d *door) answer(_ context.Context, _ verb.Caller, body []byte) (any, error) {
	ask, err := enrol.DecodeAsk(body)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asks = append(d.asks, ask)
	if d.judge != nil {
		if err := d.judge(len(d.asks), ask); err != nil {
			return nil, err
		}
	}
	a := enrol.Answer{Mesh: d.inv.Mesh, Node: d.inv.Node, Signer: "signer", Bus: d.bus.Where(), Heard: d.heard, At: clock.Real().Now().Add(d.skew).UnixMilli()}
	if d.other != nil {
		d.other(&a)
	}
	return a, nil
}

// hears makes the coordinator hear the agent once it is started.
func (d *door) hears(b *bed) {
	for _, verb := range []string{"start", "restart"} {
		b.on["systemctl "+verb+" mesh-agent.service"] = func() error { d.mu.Lock(); d.heard = true; d.mu.Unlock(); return nil }
	}
}

func (d *door) asked() []enrol.Ask {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.asks)
}

// credential is the credential on the machine.
func (b *bed) credential() credential.File {
	b.t.Helper()
	f, err := credential.Load(b.at(credentialFile))
	if err != nil {
		b.t.Fatal(err)
	}
	return f
}

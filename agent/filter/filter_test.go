package filter_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"mesh/agent/boot"
	"mesh/agent/filter"
	"mesh/agent/host/file"
	"mesh/firewall"
	"mesh/shared/clock"
	"mesh/shared/refusal"
	"mesh/shared/rule"
	"mesh/shared/waitfor"
	"mesh/testbus/netlab"
)

const (
	soon, never = 5 * time.Second, 300 * time.Millisecond
	busPort     = "203.0.113.1:4222"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// notes is a store in memory.
type notes struct {
	mu     sync.Mutex
	values map[string][]byte
}

func (n *notes) Meta(_ context.Context, key string) ([]byte, bool, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	v, ok := n.values[key]
	return v, ok, nil
}

func (n *notes) SetMeta(_ context.Context, key string, value []byte) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.values[key] = value
	return nil
}

// kept is what the filter keeps over a restart.
func (n *notes) kept() string {
	b, _, _ := n.Meta(context.Background(), "packet-filter") // never fails
	return string(b)
}

// rig is a host of the lab with an agent's filter on it. The bus is a port of the host that the
// outside reaches: a rule set without it cuts the mesh off.
type rig struct {
	t      *testing.T
	lab    *netlab.Lab
	clock  *clock.Fake
	store  *notes
	driver *firewall.Driver
	filter *filter.Filter
	root   string // of the machine, with the file that is loaded at boot
	boot   *boot.File
	// clk is clock, unless a test measures; findLinks and hints take the place of links then.
	clk       clock.Clock
	findLinks func(context.Context) (filter.Links, error)
	hints     <-chan struct{}
	hint      chan struct{}

	mu     sync.Mutex
	links  filter.Links
	probe  func(context.Context) error
	probes int
}

func newRig(t *testing.T, options ...firewall.Option) *rig {
	t.Helper()
	r := makeRig(t)
	r.restart(options...)
	return r
}

// makeRig is newRig without an agent yet.
func makeRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, lab: netlab.New(t), clock: clock.NewFake(time.Unix(1e9, 0)), store: &notes{values: map[string][]byte{}},
		links: filter.Links{Uplinks: []string{netlab.Uplink}, Outside: []string{netlab.Uplink}}, hint: make(chan struct{}, 1), root: t.TempDir()}
	r.clk, r.hints = r.clock, r.hint
	r.findLinks = func(context.Context) (filter.Links, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.links, nil
	}
	const loader = "/etc/systemd/system/sysinit.target.wants/mesh-filter.service"
	for _, at := range []string{boot.Path, loader} {
		if err := os.MkdirAll(filepath.Join(r.root, filepath.Dir(at)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../mesh-filter.service", filepath.Join(r.root, loader)); err != nil {
		t.Fatal(err)
	}
	root, err := file.OpenRoot(r.root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	r.boot = boot.New(root)
	for _, port := range []string{"22", "80", "4222"} {
		r.lab.Host.Serve("tcp", "[::]:"+port)
	}
	// A rule that tracks connections, as a container runtime has: no first load warms up.
	r.lab.Host.Run("table ip runtime { chain c { type filter hook input priority 0; ct state new accept; }; }", "nft", "-f", "-")
	r.probe = func(ctx context.Context) error {
		answer := make(chan error, 1)
		go func() { answer <- r.lab.Outside.Ask("tcp", busPort, 2*never) }()
		select {
		case err := <-answer:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := r.lab.Outside.Ask("tcp", busPort, soon); err != nil {
		t.Fatal(err)
	}
	return r
}

// restart makes a new agent over the old one's store; the old one's socket closes as it would with
// its process.
func (r *rig) restart(options ...firewall.Option) {
	r.t.Helper()
	if r.driver != nil {
		r.driver.Close()
	}
	// The warm-up asks another clock, which plays its two seconds at once.
	instant := &instantClock{clock.NewFake(time.Unix(0, 0))}
	var err error
	r.lab.Host.Do(func() {
		r.driver, err = firewall.Open(append([]firewall.Option{firewall.WithClock(instant)}, options...)...)
	})
	if err != nil {
		r.t.Fatal(err)
	}
	driver := r.driver
	r.t.Cleanup(func() { driver.Close() })
	r.filter = filter.New(filter.Config{
		Kernel: inHost{driver, r.lab.Host}, Store: r.store, Boot: r.boot, Clock: r.clk, Log: slog.New(slog.DiscardHandler), LinksChanged: r.hints,
		Links: func(ctx context.Context) (filter.Links, error) { return r.findLinks(ctx) },
		Probe: func(ctx context.Context) error {
			r.mu.Lock()
			probe := r.probe
			r.probes++
			r.mu.Unlock()
			return probe(ctx)
		},
	})
}

type instantClock struct{ *clock.Fake }

func (c *instantClock) After(time.Duration) <-chan time.Time { return c.Fake.After(0) }

// inHost opens the driver's later sockets inside the host, where the agent would run.
type inHost struct {
	*firewall.Driver
	host *netlab.Space
}

func (k inHost) Watch(ctx context.Context) (c <-chan firewall.Event, err error) {
	k.host.Do(func() { c, err = k.Driver.Watch(ctx) })
	return c, err
}

func (r *rig) setProbe(probe func(context.Context) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.probe = probe
}

func (r *rig) setLinks(l filter.Links) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.links = l
}

// want is a Wanted that opens ports to anybody.
func want(ports ...string) filter.Wanted {
	w := filter.Wanted{Tunnel: []string{netlab.Tunnel}, Seq: 1}
	for _, port := range ports {
		p, _ := rule.ParsePort(port)
		w.Allow = append(w.Allow, rule.Allow{Owner: "admin", Port: p, From: rule.Anywhere()})
	}
	return w
}

func (r *rig) apply(w filter.Wanted, outcome filter.Outcome) error {
	r.t.Helper()
	got, err := r.filter.Apply(r.t.Context(), w)
	if got != outcome {
		r.t.Fatalf("Apply = %s, %v, want %s", got, err, outcome)
	}
	if (err == nil) != (outcome == filter.Applied || outcome == filter.Unchanged) {
		r.t.Fatalf("Apply = %s with the error %v", got, err)
	}
	return err
}

// start applies in the background and returns when the window is open.
func (r *rig) start(ctx context.Context, w filter.Wanted) (done chan error) {
	r.t.Helper()
	done = make(chan error, 1)
	f := r.filter
	go func() {
		_, err := f.Apply(ctx, w)
		done <- err
	}()
	waitfor.True(r.t, "the window to open", soon, func() (bool, any) { return f.State().Confirming, f.State() })
	return done
}

// pass moves the clock on until done has a value.
func (r *rig) pass(done chan error) error {
	r.t.Helper()
	var err error
	waitfor.True(r.t, "the end of Apply", 20*time.Second, func() (bool, any) {
		select {
		case err = <-done:
			return true, nil
		default:
			r.clock.Advance(200 * time.Millisecond)
			return false, r.filter.State()
		}
	})
	return err
}

// open fails the test unless exactly these of ports 22, 80 and 4222 are open to the outside.
func (r *rig) open(ports ...string) {
	r.t.Helper()
	var wg sync.WaitGroup
	for _, port := range []string{"22", "80", "4222"} {
		wg.Go(func() {
			is, limit := slices.Contains(ports, port), never
			if is {
				limit = soon
			}
			if err := r.lab.Outside.Ask("tcp", "203.0.113.1:"+port, limit); (err == nil) != is {
				r.t.Errorf("port %s: %v, want open %v", port, err, is)
			}
		})
	}
	wg.Wait()
}

func TestApplyConfirms(t *testing.T) {
	r := newRig(t)
	r.apply(want("22/tcp", "4222/tcp"), filter.Applied)
	r.open("22", "4222")
	s := r.filter.State()
	if !s.Loaded || s.Digest == "" || len(s.Rules) != 2 || !slices.Equal(s.Uplinks, []string{netlab.Uplink}) || s.Since.IsZero() || s.LastRefusal != nil || s.Confirming {
		t.Errorf("state %+v", s)
	}
	probes := r.probes
	r.apply(want("4222/tcp", "22/tcp", "22/tcp"), filter.Unchanged)
	if r.probes != probes {
		t.Error("the same rules were confirmed twice")
	}
	if err := r.filter.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.open("22", "80", "4222")
	if s := r.filter.State(); s.Loaded || s.Digest != "" {
		t.Errorf("after Remove: %+v", s)
	}
}

// NET-7: rules that cut the bus off are undone within the window, and said.
func TestCutOffIsRestored(t *testing.T) {
	for name, before := range map[string]bool{"over older rules": true, "as the first rules": false} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			after := []string{"22", "80", "4222"}
			if before {
				r.apply(want("22/tcp", "4222/tcp"), filter.Applied)
				after = []string{"22", "4222"}
			}
			start := r.clock.Now()
			done := r.start(t.Context(), want("22/tcp"))
			r.open("22")
			err := r.pass(done)
			if ref := refusal.Of(err); ref == nil || ref.Do == "" || !strings.Contains(ref.Why, "30s") {
				t.Fatalf("got %v, want a refusal", err)
			}
			if took := r.clock.Now().Sub(start); took < filter.Window || took > filter.Window+5*time.Second {
				t.Errorf("restored after %v", took)
			}
			r.open(after...)
			if s := r.filter.State(); s.LastRefusal == nil || s.Confirming || s.Loaded != before {
				t.Errorf("state %+v", s)
			}
			probes := r.probes
			r.apply(want("22/tcp"), filter.Refused) // the reconcile of the next minute
			r.restart()
			r.apply(want("22/tcp"), filter.Refused)
			if r.probes != probes {
				t.Error("refused rules were tried again")
			}
			again := want("22/tcp")
			again.Seq = 2
			if err := r.pass(r.start(t.Context(), again)); refusal.Of(err) == nil {
				t.Errorf("pushed again: %v", err)
			}
			r.apply(want("22/tcp", "80/tcp", "4222/tcp"), filter.Applied)
			r.open("22", "80", "4222")
			if s := r.filter.State(); s.LastRefusal != nil {
				t.Errorf("after good rules: %v", s.LastRefusal)
			}
		})
	}
}

func TestBusComesBackInsideTheWindow(t *testing.T) {
	r := newRig(t)
	tries := 0
	r.setProbe(func(context.Context) error {
		if tries++; tries > 1 && tries < 5 { // the first is before the change
			return errors.New("connection refused")
		}
		return nil
	})
	done := r.start(t.Context(), want("22/tcp"))
	if err := r.pass(done); err != nil || tries != 5 {
		t.Errorf("after %d tries: %v", tries, err)
	}
	r.open("22")
}

// Somebody removes the rules that are being tried: the bus is reached, and it proves nothing.
func TestTrialThatOthersRemoved(t *testing.T) {
	r := newRig(t, firewall.WithoutOwner())
	r.apply(want("22/tcp", "4222/tcp"), filter.Applied)
	done := r.start(t.Context(), want("22/tcp"))
	tries := 0
	cut := r.probe
	r.setProbe(func(ctx context.Context) error {
		if tries++; tries == 1 {
			r.lab.Host.Run("", "nft", "delete", "table", "inet", "mesh-trial")
		}
		return cut(ctx)
	})
	if err := r.pass(done); refusal.Of(err) == nil {
		t.Errorf("confirmed without a trial: %v", err)
	}
	r.open("22", "4222")
}

// A kill inside the window: the next start restores, even with the bus away.
func TestRestartInsideTheWindowRestores(t *testing.T) {
	for name, before := range map[string]bool{"over older rules": true, "as the first rules": false} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			after := []string{"22", "80", "4222"}
			if before {
				r.apply(want("22/tcp", "4222/tcp"), filter.Applied)
				after = []string{"22", "4222"}
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := r.start(ctx, want("22/tcp"))
			r.open("22")
			r.driver.Close() // as a kill closes it: what was tried is gone, with nobody to start again (NET-7)
			r.open(after...)
			r.restart()
			r.setProbe(func(context.Context) error { return errors.New("no route to host") })
			if err := r.filter.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			r.open(after...)
			cancel()
			if err := waitfor.Value(t, "the killed agent", soon, done); err == nil {
				t.Error("the killed agent is content")
			}
			r.open(after...)
			r.apply(want("22/tcp"), filter.Waiting)
		})
	}
}

func TestStopInsideTheWindowRestores(t *testing.T) {
	r := newRig(t)
	r.apply(want("22/tcp", "4222/tcp"), filter.Applied)
	ctx, cancel := context.WithCancel(t.Context())
	done := r.start(ctx, want("22/tcp"))
	cancel()
	if err := waitfor.Value(t, "the end of Apply", soon, done); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	r.open("22", "4222")
}

func TestOffline(t *testing.T) {
	r := newRig(t)
	r.apply(want("22/tcp", "4222/tcp"), filter.Applied)
	online := r.probe
	r.setProbe(func(context.Context) error { return errors.New("network is unreachable") })

	// A boot without bus, and without an uplink yet: what was confirmed is in force, unasked.
	r.lab.Host.Run("", "nft", "flush", "ruleset")
	if err := r.driver.Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.setLinks(filter.Links{})
	r.restart()
	if err := r.filter.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.open("22", "4222")
	r.apply(want("22/tcp", "4222/tcp"), filter.Unchanged)
	if s := r.filter.State(); !s.Loaded || len(s.Uplinks) != 0 {
		t.Errorf("state %+v", s)
	}

	// A change waits for the bus.
	err := r.apply(want("22/tcp", "80/tcp", "4222/tcp"), filter.Waiting)
	if ref := refusal.Of(err); ref == nil || !strings.Contains(ref.Why, "network is unreachable") {
		t.Errorf("got %v", err)
	}
	r.open("22", "4222")
	r.setProbe(online)
	r.apply(want("22/tcp", "80/tcp", "4222/tcp"), filter.Applied)
	r.open("22", "80", "4222")
}

// NET-3: no uplink, no filter.
func TestNoUplinkKeepsTheFilter(t *testing.T) {
	r := newRig(t)
	r.setLinks(filter.Links{Outside: []string{netlab.Uplink}})
	if err := r.apply(want("22/tcp", "4222/tcp"), filter.Kept); refusal.Of(err) == nil {
		t.Errorf("got %v", err)
	}
	r.open("22", "80", "4222")
	r.setLinks(filter.Links{Uplinks: []string{netlab.Uplink}, Outside: []string{netlab.Uplink}})
	r.apply(want("22/tcp", "4222/tcp"), filter.Applied)
	r.setLinks(filter.Links{})
	r.apply(want("22/tcp", "4222/tcp"), filter.Unchanged)
	r.open("22", "4222")
}

func TestBadRulesChangeNothing(t *testing.T) {
	r := newRig(t)
	r.apply(want("22/tcp", "4222/tcp"), filter.Applied)
	bad := want("22/tcp")
	bad.Allow[0].From = rule.From{}
	if err := r.apply(bad, filter.Refused); refusal.Of(err) == nil {
		t.Errorf("got %v", err)
	}
	r.open("22", "4222")
}

// run runs the filter's loop until the test ends.
func (r *rig) run() {
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan error, 1)
	f := r.filter
	go func() { done <- f.Run(ctx) }()
	r.t.Cleanup(func() {
		cancel()
		if err := waitfor.Value(r.t, "the end of Run", soon, done); err != nil {
			r.t.Error(err)
		}
	})
	waitfor.True(r.t, "the loop", soon, func() (bool, any) { return r.clock.Waiting() > 0, r.clock.Waiting() })
}

func (r *rig) repaired(n int) {
	r.t.Helper()
	waitfor.True(r.t, fmt.Sprintf("repair %d", n), soon, func() (bool, any) {
		r.clock.Advance(10 * time.Millisecond) // lets events settle
		s := r.filter.State()
		return s.Repairs == n && s.Loaded, s
	})
}

// NET-6 on kernels without owned tables.
func TestForeignChangesAreRepaired(t *testing.T) {
	r := newRig(t, firewall.WithoutOwner())
	r.apply(want("22/tcp", "4222/tcp"), filter.Applied)
	r.run()
	r.lab.Host.Run("", "nft", "flush", "ruleset")
	r.repaired(1)
	r.open("22", "4222")
	insert := func() { r.lab.Host.Run("", "nft", "insert", "rule", "inet", "mesh", "input", "accept") }
	insert()
	r.repaired(2)
	s := r.filter.State()
	if !strings.HasPrefix(s.LastRepairBy, "nft (pid ") || !strings.Contains(s.LastDrift, `chain input: has the rule "accept"`) || s.Fought {
		t.Errorf("state %+v", s)
	}
	r.open("22", "4222")
	// The brake: what comes back three times in a minute is named and left. Other damage is not.
	insert()
	r.repaired(3)
	insert()
	r.repaired(4)
	insert()
	waitfor.True(t, "the brake", soon, func() (bool, any) {
		r.clock.Advance(10 * time.Millisecond)
		s := r.filter.State()
		return strings.Contains(s.Conceded, "accept") && !s.Loaded && s.Repairs == 4 && !s.Fought, s
	})
	r.clock.Advance(2 * time.Minute)
	waitfor.True(t, "the ticks", soon, func() (bool, any) { return r.clock.Waiting() > 0, nil })
	if s := r.filter.State(); s.Conceded == "" || s.Repairs != 4 {
		t.Errorf("a minute later: %+v", s)
	}
	r.lab.Host.Run("", "nft", "flush", "chain", "inet", "mesh", "refuse") // and the foreign rule stands
	r.repaired(5)
	if s := r.filter.State(); s.Conceded != "" {
		t.Errorf("the foreign rule is gone: %+v", s)
	}
	r.open("22", "4222")
}

// Who flushes again and again is said, and repaired after for ever: open is worse than a fight.
func TestFlushesAreRepairedForEver(t *testing.T) {
	r := newRig(t, firewall.WithoutOwner())
	r.apply(want("22/tcp", "4222/tcp"), filter.Applied)
	r.run()
	for n := range 6 {
		r.lab.Host.Run("", "nft", "flush", "ruleset")
		r.repaired(n + 1)
		if s := r.filter.State(); s.Fought != (n >= 2) || s.Conceded != "" {
			t.Errorf("flush %d: %+v", n+1, s)
		}
	}
	r.open("22", "4222")
	r.clock.Advance(time.Minute)
	waitfor.True(t, "peace", soon, func() (bool, any) { s := r.filter.State(); return !s.Fought, s })
}

// NET-6 where the kernel knows owned tables: others cannot touch it.
func TestForeignFlushPassesAnOwnedTable(t *testing.T) {
	r := newRig(t)
	r.apply(want("22/tcp", "4222/tcp"), filter.Applied)
	r.run()
	for range 5 {
		r.lab.Host.Run("", "nft", "flush", "ruleset")
	}
	r.open("22", "4222")
	r.clock.Advance(time.Minute)
	waitfor.True(t, "a look", soon, func() (bool, any) { s := r.filter.State(); return s.Loaded, s })
	if s := r.filter.State(); s.Repairs != 0 {
		t.Errorf("state %+v", s)
	}
}

// NET-5: the table follows the links, also while a change waits for its confirmation.
func TestFollowsTheLinks(t *testing.T) {
	r := newRig(t)
	r.apply(want("22/tcp", "4222/tcp"), filter.Applied)
	r.run()
	var confirm = make(chan struct{})
	first := true
	r.setProbe(func(ctx context.Context) error {
		if first {
			first = false
			return nil
		}
		select {
		case <-confirm:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	done := r.start(t.Context(), want("22/tcp", "80/tcp"))
	for _, name := range []string{"lan1", "lan2"} {
		old := r.filter.State().Outside[0]
		r.lab.Host.Run("", "ip", "link", "set", old, "down")
		r.lab.Host.Run("", "ip", "link", "set", old, "name", name)
		r.lab.Host.Run("", "ip", "link", "set", name, "up")
		r.setLinks(filter.Links{Uplinks: []string{name}, Outside: []string{name}})
		r.hint <- struct{}{}
		waitfor.True(t, "the new name", time.Second, func() (bool, any) {
			s := r.filter.State()
			return s.Loaded && slices.Equal(s.Outside, []string{name}), s
		})
		r.open("22") // what both let in, the rules confirmed and those tried
	}
	close(confirm)
	if err := waitfor.Value(t, "the confirmation", soon, done); err != nil {
		t.Fatal(err)
	}
	r.open("22", "80")
	if b := r.store.kept(); !strings.Contains(b, "lan2") || strings.Contains(b, netlab.Uplink) {
		t.Errorf("kept: %s", b)
	}
}

func TestUnreadableMemoryIsNoEnd(t *testing.T) {
	r := newRig(t)
	r.store.values["packet-filter"] = []byte("{")
	if err := os.WriteFile(filepath.Join(r.root, boot.Path), []byte("# memory: {"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.apply(want("22/tcp", "4222/tcp"), filter.Applied)
	if !json.Valid(r.store.values["packet-filter"]) {
		t.Errorf("kept: %s", r.store.values["packet-filter"])
	}
	r.open("22", "4222")
}

func TestReadLinks(t *testing.T) {
	lab := netlab.New(t)
	var links filter.Links
	var err error
	lab.Host.Do(func() { links, err = filter.ReadLinks(t.Context()) })
	if err != nil || !slices.Equal(links.Uplinks, []string{netlab.Uplink}) || !slices.Contains(links.Outside, netlab.Uplink) || slices.Contains(links.Outside, netlab.Bridge) {
		t.Errorf("got %+v, %v", links, err)
	}
}

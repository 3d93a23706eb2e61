package exposure_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mesh/agent/exposure"
	"mesh/agent/host/engine"
	"mesh/firewall"
	"mesh/shared/clock"
	"mesh/shared/waitfor"
	"mesh/testbus/netlab"
)

// TestMain is podman's process beside a container when it is called by its name: "conmon -n CONTAINER NETWORK ADDRESS".
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) != "conmon" {
		os.Exit(m.Run())
	}
	l, err := net.Listen(os.Args[3], os.Args[4])
	if err == nil {
		_, err = io.Copy(io.Discard, os.Stdin) // until the test closes it
		err = errors.Join(err, l.Close())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// hold starts podman's process for a container that publishes address, in the space.
func hold(t *testing.T, s *netlab.Space, container, network, address string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "conmon")
	if err := os.Symlink(self, program); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "-n", container, network, address)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = t.Output()
	s.Do(func() { err = cmd.Start() })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
			t.Error(err)
		}
	})
	_, port, _ := net.SplitHostPort(address)
	waitfor.True(t, "conmon to listen", 10*time.Second, func() (bool, any) {
		out := s.Run("", "ss", "-Hltn", "sport = :"+port)
		return strings.Contains(out, port), out
	})
}

// published is what netavark writes for a container on a port.
func published(port string) string {
	return "table ip nat { chain NETAVARK-HOSTPORT-DNAT { tcp dport " + port + " dnat to 172.30.0.2:80; }; " +
		"chain PREROUTING { type nat hook prerouting priority -100; fib daddr type local jump NETAVARK-HOSTPORT-DNAT; }; }\n"
}

// box is an engine that says what it is told to.
type box struct {
	ports  []engine.Published
	asked  int
	anew   []string
	refuse string
}

func (b *box) Published(context.Context) ([]engine.Published, error) {
	b.asked++
	return b.ports, nil
}

func (b *box) ReloadNetwork(_ context.Context, container string) error {
	b.anew = append(b.anew, container)
	if container == b.refuse {
		return errors.New("no such container")
	}
	return nil
}

func watch(t *testing.T, b *box) *exposure.Watch {
	return &exposure.Watch{Root: t.TempDir(), Clock: clock.Real(), Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Engine: func() (exposure.Engine, error) { return b, nil }}
}

// NET-4: a port that a container publishes, and for which podman's rules are gone, is named as broken, with what to
// do; one that is led to its container is not, nor one on loopback. The containers of others are left to them.
func TestPublishedAndGone(t *testing.T) {
	lab, declared := machine(t)
	s, b := lab.Host, &box{}
	hold(t, s, "theirs", "tcp4", "0.0.0.0:8090")
	hold(t, s, "inside", "tcp4", "127.0.0.1:8092")
	s.Run(published("8090"), "nft", "-f", "-")
	w := watch(t, b)
	broken := func() (found []string) {
		var all []string
		s.Do(func() { all = w.Differences(t.Context(), declared) })
		for _, one := range all {
			if strings.Contains(one, "podman") {
				found = append(found, one)
			}
		}
		return found
	}
	if found := broken(); found != nil {
		t.Errorf("with podman's rules: %q", found)
	}
	s.Run("", "nft", "flush", "table", "ip", "nat")
	const what = ": published by container theirs, but podman's rules for it are gone: podman network reload theirs"
	if found, want := broken(), []string{"8090/tcp over up0" + what, "8090/tcp over mesh0" + what}; !slices.Equal(found, want) {
		t.Errorf("without podman's rules: %q, want %q", found, want)
	}
	if b.asked > 0 || b.anew != nil {
		t.Errorf("podman was asked %d times, and to write rules for %q", b.asked, b.anew)
	}
}

// In the agent's sandbox it is the engine that says which ports are published, and it is asked once: when its
// rules for ports are gone. While they stand, or nothing runs, no process is started.
func TestPublishedAndGoneInTheSandbox(t *testing.T) {
	lab, declared := machine(t)
	s := lab.Host
	b := &box{ports: []engine.Published{{Container: "theirs", Protocol: "tcp", Address: netip.IPv4Unspecified(), Port: 8090}}}
	w := watch(t, b)
	look := func(asked int, lost ...string) {
		t.Helper()
		m := read(t, s, declared)
		w.Look(t.Context(), m)
		var names []string
		for _, h := range m.Lost() {
			names = append(names, h.Container)
		}
		if b.asked != asked || !slices.Equal(names, lost) {
			t.Errorf("the engine was asked %d times, want %d; lost are %q, want %q", b.asked, asked, names, lost)
		}
	}
	s.Run(published("8090"), "nft", "-f", "-")
	look(0)
	s.Run("", "nft", "flush", "chain", "ip", "nat", "NETAVARK-HOSTPORT-DNAT")
	look(0) // no container runs
	hold(t, s, "theirs", "tcp4", "0.0.0.0:8090")
	s.Run(published("8090"), "nft", "-f", "-")
	look(0)
	s.Run("", "nft", "flush", "chain", "ip", "nat", "NETAVARK-HOSTPORT-DNAT")
	look(1, "theirs")
	look(2, "theirs") // until it is right again
	s.Run(published("8090"), "nft", "-f", "-")
	look(3)
	look(3)
	w = watch(t, b) // the agent starts, and what it never saw may be gone
	s.Run("", "nft", "flush", "chain", "ip", "nat", "NETAVARK-HOSTPORT-DNAT")
	look(4, "theirs")
	b.ports[0].Address, w = netip.IPv6Unspecified(), watch(t, b) // for both families
	look(5, "theirs")
	s.Run("table ip6 nat { chain PREROUTING { type nat hook prerouting priority -100; tcp dport 8090 dnat to [fd30::2]:80; }; }\n", "nft", "-f", "-")
	look(6) // one of them is led on
	b.ports, w = nil, watch(t, b)
	look(7)
	look(7) // nothing is published
}

// What of it is mesh's own, by the unit it runs in, is written anew at once.
func TestMeshsOwnPortsComeBack(t *testing.T) {
	b := &box{refuse: "mesh-bad-web"}
	w := watch(t, b)
	lost := []exposure.Holder{{Container: "theirs", Unit: "libpod-conmon-1.scope"}, {Container: "mesh-bad-web", Unit: "mesh-bad-web.service"}}
	if w.Mend(t.Context(), lost) {
		t.Error("nothing was mended, and it is said that something was")
	}
	if !w.Mend(t.Context(), append(lost, exposure.Holder{Container: "box", Unit: "mesh-box-web.service"})) {
		t.Error("something was mended, and it is not said")
	}
	if want := []string{"mesh-bad-web", "mesh-bad-web", "box"}; !slices.Equal(b.anew, want) {
		t.Errorf("asked about %q, want %q", b.anew, want)
	}
}

// A chain that is gone is told, one that comes is not.
func TestFlushedIsTold(t *testing.T) {
	s := netlab.NewSpace(t, "host")
	s.Run(published("8090"), "nft", "-f", "-")
	ctx, cancel := context.WithCancel(t.Context())
	changes, told, ended := make(chan firewall.Event), make(chan struct{}, 10), make(chan struct{})
	clk := clock.NewFake(time.Unix(0, 0))
	go func() {
		defer close(ended)
		s.Do(func() { exposure.Flushed(ctx, clk, changes, func() { told <- struct{}{} }) })
	}()
	look := func() {
		for range 2 { // the second is taken when the look for the first is over
			changes <- firewall.Event{}
			waitfor.True(t, "a look to be due", 10*time.Second, func() (bool, any) { return clk.Waiting() == 1, clk.Waiting() })
			clk.Advance(time.Second)
		}
	}
	s.Run("table inet more { chain c { type filter hook input priority 0; }; }", "nft", "-f", "-")
	look()
	if len(told) != 0 {
		t.Error("a chain that came is told")
	}
	s.Run("", "nft", "flush", "ruleset")
	look()
	select {
	case <-told:
	case <-ended:
		t.Error("chains that are gone are not told")
	}
	cancel()
	<-ended
}

package engines

import (
	"bufio"
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

	"mesh/firewall"
	"mesh/firewall/evaluate"
	"mesh/firewall/foreign"
	"mesh/shared/clock"
	"mesh/shared/rule"
	"mesh/testbus/hosts"
	"mesh/testbus/netlab"
)

const soon, never = 10 * time.Second, 400 * time.Millisecond

// box is a shell beside an engine, on the host of a lab.
type box struct {
	t   *testing.T
	in  io.WriteCloser
	out *bufio.Reader
}

// newBox starts one of the image of a flavour.
func newBox(t *testing.T, host *netlab.Space, f hosts.Flavour) *box {
	t.Helper()
	image, err := hosts.EnsureImage(t.Context(), f, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(dir, "web"), "./testdata/web")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the server of the containers: %v: %s", err, out)
	}
	cmd := exec.Command("unshare", "-m", "sh", "testdata/box.sh", image, dir)
	b := &box{t: t}
	var read io.ReadCloser
	if b.in, err = cmd.StdinPipe(); err == nil {
		if read, err = cmd.StdoutPipe(); err == nil {
			cmd.Stderr = cmd.Stdout
			host.Do(func() { err = cmd.Start() })
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	b.out = bufio.NewReader(read)
	t.Cleanup(func() {
		b.in.Close() // that ends it
		stop := time.AfterFunc(soon, func() { cmd.Process.Kill() })
		defer stop.Stop()
		io.Copy(io.Discard, b.out)
		if err := cmd.Wait(); err != nil {
			t.Errorf("the box: %v", err)
		}
	})
	return b
}

// run has the shell run a line, and fails the test when that fails.
func (b *box) run(line string) string {
	b.t.Helper()
	out, code := b.try(line)
	if code != "0" {
		b.t.Fatalf("%s: exit status %s\n%s", line, code, out)
	}
	return out
}

func (b *box) try(line string) (out, code string) {
	b.t.Helper()
	const end = "--the-end-of-it--"
	if _, err := fmt.Fprintf(b.in, "{ %s\n} </dev/null; echo; echo %s $?\n", line, end); err != nil {
		b.t.Fatal(err)
	}
	stop := time.AfterFunc(90*time.Second, func() { b.in.Close() })
	defer stop.Stop()
	var all strings.Builder
	for {
		got, err := b.out.ReadString('\n')
		if err != nil {
			b.t.Fatalf("%s: the box ended: %v\n%s", line, err, all.String())
		}
		if code, done := strings.CutPrefix(got, end+" "); done {
			return strings.TrimSpace(all.String()), strings.TrimSpace(code)
		}
		all.WriteString(got)
	}
}

// lab is an outside and a host with an engine that runs w1, with its port 80 published at 8080, and w2 at
// 8081; each serves port 22 as well.
type lab struct {
	*netlab.Lab
	*box
	driver *firewall.Driver
	direct string // w1's address
}

func newLab(t *testing.T, f hosts.Flavour, start, run, address string) *lab {
	l := &lab{Lab: netlab.New(t)}
	l.box = newBox(t, l.Host, f)
	l.run(start)
	l.run(fmt.Sprintf(run, "w1", 8080))
	l.run(fmt.Sprintf(run, "w2", 8081))
	l.direct = l.run(address)
	l.Outside.Route(l.direct + " via " + netlab.HostOutside4)
	l.Host.Do(func() {
		var err error
		if l.driver, err = firewall.Open(firewall.WithClock(atOnce{clock.Real()})); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { l.driver.Close() })
	return l
}

// atOnce is a clock whose waits are over.
type atOnce struct{ clock.Clock }

func (atOnce) After(time.Duration) <-chan time.Time { return clock.Real().After(0) }

// asked is what a caller from outside is told at an address: the address it is seen with, empty for nothing.
func (l *lab) asked(to string, limit time.Duration) string {
	c, err := l.Outside.Dial("tcp", to, limit)
	if err != nil {
		return ""
	}
	defer c.Close()
	stop := time.AfterFunc(limit, func() { c.Close() })
	defer stop.Stop()
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return ""
	}
	return strings.TrimSpace(line)
}

// look says whether 8080 is open and 8081 and the container itself are closed, over both families. seen is
// what the container sees of a caller over IPv4.
func (l *lab) look(when, seen string) {
	l.t.Helper()
	if got := l.asked(netlab.HostOutside4+":8080", soon); got != seen {
		l.t.Errorf("%s: 8080, declared: %q is seen, want %q", when, got, seen)
	}
	if got := l.asked(net.JoinHostPort(netlab.HostOutside6, "8080"), soon); got == "" {
		l.t.Errorf("%s: 8080, declared, is closed over IPv6", when)
	}
	for _, to := range append(netlab.Both(netlab.HostOutside4, netlab.HostOutside6, "8081"), l.direct+":80", l.direct+":22") {
		if got := l.asked(to, never); got != "" {
			l.t.Errorf("%s: %s, not declared, is open", when, to)
		}
	}
	l.evaluated(when)
}

// evaluated says whether what firewall/evaluate says of the same packets is what became of them (NET-12).
func (l *lab) evaluated(when string) {
	l.t.Helper()
	var rs foreign.Ruleset
	var w evaluate.World
	var err error
	l.Host.Do(func() {
		if rs, err = foreign.ReadAll(l.t.Context()); err == nil {
			w, err = evaluate.ReadWorld(l.t.Context())
		}
	})
	if err != nil {
		l.t.Fatal(err)
	}
	e := evaluate.New(&rs, w)
	for to, want := range map[string]evaluate.Verdict{
		netlab.HostOutside4 + ":8080": evaluate.Accepted, net.JoinHostPort(netlab.HostOutside6, "8080"): evaluate.Accepted,
		netlab.HostOutside4 + ":8081": evaluate.Refused, net.JoinHostPort(netlab.HostOutside6, "8081"): evaluate.Refused,
		l.direct + ":80": evaluate.Refused, l.direct + ":22": evaluate.Refused,
	} {
		at := netip.MustParseAddrPort(to)
		a := e.Evaluate(evaluate.Packet{In: netlab.Uplink, Six: at.Addr().Is6(), Source: netip.MustParseAddr(map[bool]string{false: netlab.Outside4, true: netlab.Outside6}[at.Addr().Is6()]), Destination: at.Addr(), Protocol: 6, Port: at.Port()})
		if a.Verdict != want {
			l.t.Errorf("%s: of %s it is said %+v, want %s", when, to, a, want)
		}
		if to == netlab.HostOutside4+":8080" && (len(a.NAT) != 1 || a.To.String() != l.direct+":80" || a.Way != evaluate.Forward) {
			l.t.Errorf("%s: %s is said to go to %v by %v", when, to, a.To, a.NAT)
		}
	}
	for _, port := range []uint16{8080, 8081} {
		if !slices.Contains(e.Published(), evaluate.PortRange{Protocol: 6, First: port, Last: port}) {
			l.t.Errorf("%s: %d is not among what is published: %v", when, port, e.Published())
		}
	}
	for _, c := range foreign.Judge(rs).Refusing {
		for i, kind := range c.Kind {
			if kind != "mesh" && kind != "container runtime" {
				l.t.Errorf("%s: %s %s %s is said to be of %s, a %s", when, c.Family, c.Table, c.Chain, c.Owner[i], kind)
			}
		}
	}
}

// load puts mesh's table in force, with 8080 declared.
func (l *lab) load() firewall.Table {
	l.t.Helper()
	allow, err := rule.ParseAllow("8080/tcp from anywhere")
	if err != nil {
		l.t.Fatal(err)
	}
	allow.Owner = "web"
	table, err := firewall.Compile(firewall.Filter{Outside: []string{netlab.Uplink}, Allow: []rule.Allow{allow}})
	if err == nil {
		err = l.driver.Load(l.t.Context(), table)
	}
	if err != nil {
		l.t.Fatal(err)
	}
	return table
}

// published checks NET-4 through the life of an engine's rules: again has the engine write them anew, seen
// is what containers see of callers over IPv4, after is that when somebody flushed everything; empty: then
// nothing is published any more.
func (l *lab) published(again, after string) {
	l.t.Helper()
	for _, to := range append(netlab.Both(netlab.HostOutside4, netlab.HostOutside6, "8080"), netlab.Both(netlab.HostOutside4, netlab.HostOutside6, "8081")...) {
		if l.asked(to, soon) == "" {
			l.t.Errorf("without mesh's table %s is closed: this test shows nothing", to)
		}
	}
	table := l.load()
	l.look("with mesh's table", netlab.Outside4)
	l.run(again)
	l.look("after the engine wrote its rules anew", netlab.Outside4)
	l.run("nft flush ruleset")
	for _, to := range append(netlab.Both(netlab.HostOutside4, netlab.HostOutside6, "8081"), l.direct+":80", l.direct+":22") {
		if l.asked(to, never) != "" {
			l.t.Errorf("after a flush of everything: %s is open", to)
		}
	}
	if got := l.asked(netlab.HostOutside4+":8080", never); got != after {
		l.t.Errorf("after a flush of everything: at 8080 %q is seen, want %q", got, after)
	}
	if why, err := l.driver.Differs(l.t.Context(), table); why != "" || err != nil {
		l.t.Errorf("mesh's table after all that: %s, %v", why, err)
	}
}

func TestPodman(t *testing.T) {
	l := newLab(t, hosts.Podman,
		`podman import --change 'ENTRYPOINT ["/web"]' /web.tar web:1 && podman network create --subnet 10.89.5.0/24 --ipv6 --subnet fd89::/64 n1`,
		"podman --cgroup-manager=cgroupfs run -d --name %s --network n1 -p %d:80 web:1 80 22",
		"podman inspect w1 --format '{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}'")
	l.published("iptables -t nat -F && ip6tables -t nat -F && podman network reload --all", "")
}

func TestDocker(t *testing.T) {
	l := newLab(t, hosts.Docker,
		`mkdir -p /etc/docker && echo '{"storage-driver": "vfs"}' > /etc/docker/daemon.json && (dockerd >/tmp/log 2>&1 &)
		for i in $(seq 300); do docker info >/dev/null 2>&1 && break; sleep 0.1; done; docker info >/dev/null || { cat /tmp/log; false; }
		docker import --change 'ENTRYPOINT ["/web"]' /web.tar web:1`,
		"docker run -d --name %s -p %d:80 web:1 80 22",
		"docker inspect w1 --format '{{.NetworkSettings.IPAddress}}'")
	// Without its NAT, docker's userland proxy serves the port, and the container sees the bridge.
	l.published("docker restart -t 0 w1 w2", "172.17.0.1")
}

package exposure_test

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"mesh/agent/exposure"
	"mesh/firewall"
	"mesh/shared/clock"
	"mesh/shared/declaration"
	"mesh/shared/engine"
	"mesh/shared/report"
	"mesh/shared/rule"
	"mesh/shared/waitfor"
	"mesh/testbus/netlab"
)

func allow(t *testing.T, owner, port, from string) rule.Allow {
	t.Helper()
	p, errPort := rule.ParsePort(port)
	f, errFrom := rule.ParseFrom(from)
	if errPort != nil || errFrom != nil {
		t.Fatal(errPort, errFrom)
	}
	return rule.Allow{Owner: owner, Port: p, From: f}
}

// machine is a host with mesh's filter, a front end, a container runtime and bans, all of which refuse
// something.
func machine(t *testing.T) (*netlab.Lab, *declaration.Filter) {
	t.Helper()
	lab := netlab.New(t)
	declared := &declaration.Filter{Tunnel: netlab.Tunnel, Allow: []rule.Allow{
		allow(t, "admin", "22/tcp", "anywhere"), allow(t, "web", "8080/tcp", "anywhere"), allow(t, "web", "443/tcp", "anywhere"),
		allow(t, "db", "5432/tcp", "tunnel"), allow(t, "stats", "9100/tcp", "198.51.100.0/24"),
	}}
	table, err := firewall.Compile(firewall.Filter{Outside: []string{netlab.Uplink}, Tunnel: []string{netlab.Tunnel}, Allow: declared.Allow})
	if err != nil {
		t.Fatal(err)
	}
	lab.Host.Run(table.Text(), "nft", "-f", "-")
	lab.Host.Run(`table inet f2b-table {
	set addr-set-sshd { type ipv4_addr; elements = { 198.51.100.7 }
	}
	chain f2b-chain { type filter hook input priority -1; policy accept
		tcp dport 22 ip saddr @addr-set-sshd reject
	}
}
`, "nft", "-f", "-")
	lab.Host.Run(`*nat
:PREROUTING ACCEPT [0:0]
:DOCKER - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A DOCKER ! -i br0 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 172.30.0.2:80
-A DOCKER ! -i br0 -p tcp -m tcp --dport 9001 -j DNAT --to-destination 172.30.0.2:90
COMMIT
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:DOCKER - [0:0]
:ufw-user-input - [0:0]
-A INPUT -j ufw-user-input
-A ufw-user-input -p tcp -m tcp --dport 443 -j DROP
-A FORWARD -o br0 -j DOCKER
-A DOCKER -d 172.30.0.2/32 ! -i br0 -o br0 -p tcp -m tcp --dport 80 -j ACCEPT
-A DOCKER -d 172.30.0.2/32 ! -i br0 -o br0 -p tcp -m tcp --dport 90 -j ACCEPT
COMMIT
`, "iptables-nft-restore")
	for _, port := range []string{"22", "443", "5432", "9100", "3000"} {
		lab.Host.Serve("tcp", "[::]:"+port)
	}
	lab.Host.Serve("tcp", "127.0.0.1:6000")
	lab.Host.Serve("udp", net.JoinHostPort(netlab.HostOutside4, "5353"))
	return lab, declared
}

func read(t *testing.T, s *netlab.Space, declared *declaration.Filter) *exposure.Machine {
	t.Helper()
	var m *exposure.Machine
	var err error
	s.Do(func() { m, err = exposure.Read(t.Context(), t.TempDir(), declared) })
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// NET-12: which rule of which module lets it in, or whose chain refuses it, in plain words.
func TestWhy(t *testing.T) {
	lab, declared := machine(t)
	m := read(t, lab.Host, declared)
	for ask, want := range map[exposure.Ask][]string{
		{Protocol: "tcp", Port: "22"}:                              {"22/tcp from anybody over up0: let in", "mesh: admin: 22/tcp from anywhere", "listening there: exposure.test", "addr-set-sshd reject` in inet f2b-table f2b-chain, fail2ban's"},
		{Protocol: "tcp", Port: "22", From: "198.51.100.7"}:        {"REFUSED", "f2b-table f2b-chain, fail2ban's", "do: lift the ban: fail2ban-client unban 198.51.100.7"},
		{Protocol: "tcp", Port: "8080"}:                            {"let in", "mesh: web: 8080/tcp from anywhere", "sent on to 172.30.0.2:80 by", "DNAT to 172.30.0.2:80", "in ip nat DOCKER, docker's", "goes on over br0 to 172.30.0.2:80"},
		{Protocol: "tcp", Port: "9001"}:                            {"REFUSED", "refused by mesh, for nothing declares it", "sent on to 172.30.0.2:90", "do: declare it"},
		{Protocol: "tcp", Port: "443"}:                             {"443/tcp from anybody over up0: REFUSED in part", "IPv4 over up0: refused by `tcp dport 443 drop` in ip filter ufw-user-input, ufw's", "IPv6 over up0: let in by mesh: web: 443/tcp from anywhere", "do: let ufw let it in too: ufw allow 443/tcp"},
		{Protocol: "tcp", Port: "5432"}:                            {"REFUSED", "mesh, for nothing declares it"},
		{Protocol: "tcp", Port: "5432", From: "tunnel"}:            {"5432/tcp from the other machines over mesh0: let in", "mesh: db: 5432/tcp from tunnel"},
		{Protocol: "tcp", Port: "9100", From: "198.51.100.9"}:      {"from 198.51.100.9 over up0: let in", "mesh: stats: 9100/tcp from 198.51.100.0/24"},
		{Protocol: "tcp", Port: "9100", From: netlab.Container4}:   {"over br0: let in", "mesh: did not arrive from outside"},
		{Protocol: "tcp", Port: "9999", From: netlab.HostOutside4}: {"this machine itself) over lo: let in", "nothing listens there"},
		{Protocol: "5432/tcp", From: "tunnel"}:                     {"5432/tcp from the other machines over mesh0: let in"},
		{Protocol: "vrrp"}:                                         {"vrrp from anybody over up0: REFUSED"},
	} {
		w, err := m.Why(ask)
		var b strings.Builder
		if err == nil {
			err = w.Render(&b)
		}
		if err != nil {
			t.Errorf("%+v: %v", ask, err)
			continue
		}
		for _, words := range want {
			if !strings.Contains(b.String(), words) {
				t.Errorf("%+v: no %q in\n%s", ask, words, b.String())
			}
		}
	}
	for _, ask := range []exposure.Ask{{Protocol: "tcp"}, {Protocol: "quark"}, {Protocol: "tcp", Port: "x"}, {Protocol: "udp", Port: "1", From: "nowhere0"}} {
		if w, err := m.Why(ask); err == nil || !strings.Contains(err.Error(), "do: ") {
			t.Errorf("%+v: %+v, %v", ask, w, err)
		}
	}
}

// NET-14: what is declared, what the kernel lets in, and where the two differ.
func TestExposure(t *testing.T) {
	lab, declared := machine(t)
	e := read(t, lab.Host, declared).Of()
	type line struct{ port, family, kernel, difference string }
	want := map[string][]line{
		netlab.Uplink: {
			{"22/tcp", "", "open", ""}, {"443/tcp", "ip", "refused", "declared, but refused by `tcp dport 443 drop` in ip filter ufw-user-input, ufw's"}, {"443/tcp", "ip6", "open", ""},
			{"3000/tcp", "", "refused", ""}, {"5353/udp", "ip", "refused", ""}, {"5432/tcp", "", "refused", ""}, {"8080/tcp", "ip", "open", ""}, {"9001/tcp", "ip", "refused", ""},
			{"9100/tcp", "ip", "open", ""},
		},
		netlab.Tunnel: {{"5432/tcp", "", "open", ""}, {"3000/tcp", "", "refused", ""}},
	}
	if !e.Filtered || len(e.Links) != 2 {
		t.Fatalf("%+v", e)
	}
	for _, l := range e.Links {
		for _, w := range want[l.Name] {
			found := false
			for _, p := range l.Ports {
				found = found || line{p.Port, p.Family, p.Kernel, p.Difference} == w
			}
			if !found {
				t.Errorf("no %+v over %s in %+v", w, l.Name, l.Ports)
			}
		}
		for _, p := range l.Ports {
			if strings.HasPrefix(p.Port, "6000/") {
				t.Errorf("what listens on loopback is reached: %+v", p)
			}
			if p.Port == "8080/tcp" && p.Family == "ip" && p.To != "172.30.0.2:80" {
				t.Errorf("8080 goes to %q", p.To)
			}
			if p.Port == "9100/tcp" && p.Family == "ip" && l.Name == netlab.Uplink && p.From != "198.51.100.0/24" {
				t.Errorf("9100 is open to %q", p.From)
			}
		}
	}
	if first := e.Links[0].Ports[0]; first.Difference == "" {
		t.Errorf("the trouble does not come first: %+v", first)
	}

	// Without mesh's filter everything that listens is open, and nothing declared it.
	lab.Host.Run("", "nft", "delete", "table", "inet", "mesh")
	e = read(t, lab.Host, declared).Of()
	all := strings.Join(e.Differences(), "\n")
	for _, words := range []string{"3000/tcp over up0: open, but nothing declares it", "9001/tcp over up0: open, but nothing declares it", "3000/tcp over mesh0: open, but nothing declares it"} {
		if e.Filtered || !strings.Contains(all, words) {
			t.Errorf("no %q in\n%s", words, all)
		}
	}
	var b strings.Builder
	if err := exposure.Render(&b, e); err != nil {
		t.Fatal(err)
	}
	for _, words := range []string{"no packet filter of mesh is in force here", "LISTENS", "! 3000/tcp over up0: open, but nothing declares it", "exposure.test ("} {
		if !strings.Contains(b.String(), words) {
			t.Errorf("no %q in\n%s", words, b.String())
		}
	}
	if _, more := report.MaxExposed, e.More; more != 0 {
		t.Errorf("%d left out", more)
	}
}

// probing is set for a run of this test's program inside a namespace: a probe dials from many threads, and
// a namespace is the thread's.
const probing = "MESH_TEST_PROBE"

// NET-14: what another machine really reaches.
func TestProbe(t *testing.T) {
	if targets := os.Getenv(probing); targets != "" {
		results, err := exposure.Probe(t.Context(), clock.Real(), engine.ProbeAsk{Targets: strings.Fields(targets)})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range results {
			fmt.Printf("probe %s %v %v %s\n", r.Target, r.Reached, r.Refused, r.Why)
		}
		return
	}
	lab, _ := machine(t)
	waitfor.True(t, "IPv6 works", 10*time.Second, func() (bool, any) {
		err := lab.Outside.Ask("tcp", net.JoinHostPort(netlab.HostOutside6, "22"), time.Second)
		return err == nil, err
	})
	t.Setenv(probing, "203.0.113.1:22 203.0.113.1:3000 203.0.113.1:443 [2001:db8:1::1]:22")
	out, err := lab.Outside.Try("", os.Args[0], "-test.run=^TestProbe$")
	if err != nil {
		t.Fatal(err, out)
	}
	for _, want := range []string{"probe 203.0.113.1:22 true false ", "probe 203.0.113.1:3000 false false no answer", "probe 203.0.113.1:443 false false no answer", "probe [2001:db8:1::1]:22 true false "} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	for _, target := range []string{"127.0.0.1:22", "example.org:22", "203.0.113.1", "203.0.113.1:0", "0.0.0.0:1"} {
		if _, err := exposure.Probe(t.Context(), clock.Real(), engine.ProbeAsk{Targets: []string{target}}); err == nil || !strings.Contains(err.Error(), "do: ") {
			t.Errorf("%s: %v", target, err)
		}
	}
}

// What is not as declared is evaluated when something changed, and not otherwise.
func TestWatch(t *testing.T) {
	lab, declared := machine(t)
	w := &exposure.Watch{Root: t.TempDir(), Clock: clock.Real()}
	look := func() (found []string) {
		lab.Host.Do(func() { found = w.Differences(t.Context(), declared) })
		return found
	}
	first := look()
	if len(first) != 2 || !strings.Contains(first[0], "443/tcp over up0: declared, but refused by") {
		t.Fatalf("%q", first)
	}
	if again := look(); &again[0] != &first[0] {
		t.Error("it was evaluated although nothing changed")
	}
	lab.Host.Run("", "iptables-nft", "-D", "ufw-user-input", "-p", "tcp", "--dport", "443", "-j", "DROP")
	if found := look(); len(found) != 0 {
		t.Errorf("still %q", found)
	}
	lab.Host.Run("", "iptables-nft", "-I", "INPUT", "-p", "tcp", "--dport", "22", "-j", "DROP")
	if found := look(); len(found) != 2 || !strings.HasPrefix(found[0], "22/tcp over up0: declared, but refused") {
		t.Errorf("%q", found)
	}
	lab.Host.Run("", "nft", "delete", "table", "inet", "mesh")
	if found := look(); len(found) != 0 {
		t.Errorf("without mesh's filter: %q", found)
	}
}

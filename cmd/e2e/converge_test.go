package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"mesh/agent/converge"
	"mesh/cmd/e2e/story"
	"mesh/testbus/hosts"
)

// beside is what a container runtime has in iptables' tables, by docker's names of chains.
const beside = `set -e
iptables -t nat -N DOCKER
iptables -t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
iptables -t nat -A DOCKER -p tcp --dport 8088 -j DNAT --to-destination 172.17.0.2:80
iptables -N DOCKER
iptables -A FORWARD -o docker0 -j DOCKER
iptables -A FORWARD -i docker0 ! -o docker0 -j ACCEPT
iptables -A DOCKER -d 172.17.0.2/32 ! -i docker0 -o docker0 -p tcp --dport 80 -j ACCEPT
iptables -A DOCKER ! -i docker0 -o docker0 -j DROP
`

// bans starts fail2ban with a jail for each of the actions, and bans one address in each.
func bans(m *mesh, i int, actions ...string) {
	m.t.Helper()
	conf := "[DEFAULT]\nbackend = polling\nbantime = 1h\nfilter = recidive\nlogpath = /var/log/probe.log\n"
	script := "set -e; rm -f /etc/fail2ban/jail.d/defaults-debian.conf; touch /var/log/probe.log; systemctl enable --quiet --now fail2ban; timeout 20 sh -c 'until fail2ban-client ping; do sleep 0.1; done'"
	for n, action := range actions {
		conf += fmt.Sprintf("[j%d]\nenabled = true\nbanaction = %s\nport = 81\n", n, action)
		script += fmt.Sprintf("; fail2ban-client set j%d banip 192.0.2.%d", n, n+7)
	}
	m.Bed.Host(i).WriteFile(m.t, "/etc/fail2ban/jail.d/probe.conf", conf, 0o644)
	m.on(i, "sh", "-c", script)
}

// convergence is what "node converge --json" says.
type convergence struct {
	Fates   []struct{ Table, Chain, Owner, Says string }
	Retires []string
	Others  []string
	Outcome *struct {
		State               string
		Retired, Left, Lost []string
		Why                 string
	}
	FrontEnds []struct {
		Name, State, Cannot string
		Notes               []string
	} `json:"front_ends"`
}

// converge asks for a preview, or carries it out, and wants that exit code.
func (m *mesh) converge(exit int, args ...string) (c convergence, said string) {
	m.t.Helper()
	args = append([]string{"mesh-coordinator", "node"}, args...)
	out, err := m.Bed.Host(1).RunErr(m.t.Context(), append(args, "--json")...)
	m.must(err)
	if out.Exit != exit {
		m.t.Fatalf("%s: exit %d, want %d: %s%s", strings.Join(args, " "), out.Exit, exit, out.Stdout, out.Stderr)
	}
	if out.Stdout != "" {
		m.must(json.Unmarshal([]byte(out.Stdout), &c))
	}
	return c, out.Stdout + out.Stderr
}

func (c convergence) says(owner string) (all []string) {
	for _, f := range c.Fates {
		if f.Owner == owner && !slices.Contains(all, f.Says) {
			all = append(all, f.Says)
		}
	}
	return all
}

// wants checks the last outcome and what still filters besides.
func (m *mesh) wants(c convergence, state string, retired ...string) {
	m.t.Helper()
	if o := c.Outcome; o == nil || o.State != state || !slices.Equal(o.Retired, retired) || len(o.Left)+len(o.Lost) > 0 {
		m.t.Errorf("the outcome is %+v, want %s with %q retired and nothing left or lost", o, state, retired)
	}
}

// rules are iptables' without counters and times.
func (m *mesh) rules(i int) string {
	m.t.Helper()
	return m.on(i, "sh", "-c", `iptables-save | sed -e '/^#/d' -e 's/ \[.*//'`)
}

func (m *mesh) holds(i int, what string, args ...string) {
	m.t.Helper()
	if out := m.on(i, args...); !strings.Contains(out, what) {
		m.t.Errorf("host%d: %s does not show %q:\n%s", i, strings.Join(args, " "), what, out)
	}
}

// letsIn says whether the port that mesh declares open on hosts 2 to 4 is reached from the internet.
func (m *mesh) letsIn(i int) bool {
	return m.Reaches(m.t.Context(), m.Bed.Internet(), i, story.ClosedPort, dropped)
}

// TestConverge is NET-8 and NET-9 on hosts with front ends really installed: each is retired its own way and
// put back, bans and a runtime's rules stay, and nobody is locked out.
func TestConverge(t *testing.T) {
	m := beginWith(t, 4, hosts.Fronts)
	m.frontEnds()
	_, err := m.Genesis(t.Context())
	m.must(err)
	for i := 2; i <= 4; i++ {
		line, err := m.Invite(t.Context(), i)
		m.must(err)
		_, err = m.Enrol(t.Context(), i, line)
		m.must(err)
		m.must(m.ListenUndeclared(t.Context(), i))
		m.coordinator("node", "set", m.Bed.Host(i).Name, "admin=22/tcp from anywhere; "+story.ClosedPort+"/tcp from anywhere")
	}
	m.coordinator("push", "--all", "--why", "mesh filters, too")
	if !t.Run("hand over", func(t *testing.T) {
		for name, tell := range map[string]func(*mesh){"ufw": convergeUFW, "firewalld": convergeFirewalld, "nftables and iptables-persistent": convergeServices} {
			t.Run(name, func(t *testing.T) { t.Parallel(); tell(&mesh{m.Story, t}) })
		}
	}) {
		return
	}
	out := m.coordinator("changes", "--limit", "30")
	for _, want := range []string{"converge", "node host2: the packet filter is mesh's, ufw give way", "unconverge", "operator"} {
		if !strings.Contains(out, want) {
			t.Errorf("the journal does not say %q:\n%s", want, out)
		}
	}
}

// frontEnds switches them on, as people do, before mesh comes.
func (m *mesh) frontEnds() {
	m.t.Helper()
	m.on(2, "sh", "-c", beside+"ufw allow 22/tcp; ufw allow 9000/tcp; ufw --force enable; systemctl enable --quiet --now ufw")
	bans(m, 2, "ufw", "iptables-multiport", "nftables-multiport")
	m.on(3, "sh", "-c", "systemctl enable --quiet --now firewalld; firewall-cmd --state\n"+beside) // its start flushes iptables' rules
	bans(m, 3, "iptables-multiport", "nftables-multiport")
	m.Bed.Host(3).WriteFile(m.t, "/etc/systemd/system/mesh-agent.service.d/failpoints.conf", "[Service]\nEnvironment=MESH_FAILPOINT_FILE=/run/mesh-failpoints\nRestartSec=100ms\n", 0o644)
	m.Bed.Host(4).WriteFile(m.t, "/etc/nftables.conf", `#!/usr/sbin/nft -f
flush ruleset
table inet filter {
	set office {
		type ipv4_addr
		elements = { 203.0.113.7 }
	}
	chain input {
		type filter hook input priority 0; policy drop;
		ct state established,related accept
		iifname "lo" accept
		tcp dport 22 accept
		meta l4proto { icmp, ipv6-icmp } accept
		ip saddr @office counter drop
	}
}
`, 0o644)
	// What the package iptables-persistent has, in short: its name is all that counts here.
	m.Bed.Host(4).WriteFile(m.t, "/etc/systemd/system/netfilter-persistent.service",
		"[Unit]\nAfter=nftables.service\n[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/usr/sbin/iptables-restore /etc/iptables/rules.v4\n[Install]\nWantedBy=multi-user.target\n", 0o644)
	m.Bed.Host(4).WriteFile(m.t, "/etc/iptables/rules.v4", `*nat
:POSTROUTING ACCEPT [0:0]
-A POSTROUTING -s 10.9.0.0/24 -j MASQUERADE
COMMIT
*filter
:INPUT DROP [0:0]
:FORWARD DROP [0:0]
:LOGDROP - [0:0]
-A INPUT -i lo -j ACCEPT
-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A INPUT -p tcp --dport 22 -m comment --comment "the way \"in\"" -j ACCEPT
-A INPUT -j LOGDROP
-A LOGDROP -m limit --limit 1/min -j LOG
-A LOGDROP -j DROP
COMMIT
`, 0o644)
	m.on(4, "sh", "-c", "systemctl daemon-reload; systemctl enable --quiet --now nftables netfilter-persistent; "+beside)
}

// lockingUFW is ufw, but that switching it off cuts the machine off from the bus.
const lockingUFW = `#!/bin/sh
case "$*" in
*disable*) nft 'table inet cut { chain out { type filter hook output priority -5; tcp dport 4222 drop; }; }' ;;
*enable*) nft delete table inet cut 2>/dev/null ;;
esac
exec /usr/sbin/ufw "$@"
`

func convergeUFW(m *mesh) {
	if m.letsIn(2) {
		m.t.Error("ufw lets in what it does not allow")
	}
	c, said := m.converge(0, "converge", "host2")
	if !slices.Equal(c.Retires, []string{"ufw"}) || !slices.Contains(c.says("ufw"), "retired with ufw") || !slices.Contains(c.says("docker"), "left as the container runtime's") ||
		!slices.Contains(c.says("fail2ban"), "left as a ban of fail2ban") || !slices.Contains(c.says("mesh"), "stays: it is mesh's own") {
		m.t.Errorf("the preview: %s", said)
	}
	if len(c.FrontEnds) != 1 || !strings.Contains(strings.Join(c.FrontEnds[0].Notes, ""), "the bans that fail2ban made with its action for ufw go with it") || c.FrontEnds[0].State != "ufw.service enabled, running" {
		m.t.Errorf("the preview of ufw: %+v", c.FrontEnds)
	}
	m.holds(2, "Status: active", "ufw", "status") // a preview does nothing
	m.refused(1, "without a reason", "mesh-coordinator", "node", "converge", "host2", "--yes")

	// The bus cannot be reached after it: 30 s later all is as it was.
	before := m.rules(2)
	m.Bed.Host(2).WriteFile(m.t, "/usr/local/sbin/ufw", lockingUFW, 0o755)
	c, said = m.converge(1, "converge", "host2", "--yes", "--why", "to be cut off")
	if c.Outcome == nil || c.Outcome.State != "refused" || !strings.Contains(c.Outcome.Why, "could not be reached within the window") {
		m.t.Errorf("cut off, the outcome is %+v: %s", c.Outcome, said)
	}
	m.holds(2, "Status: active", "/usr/sbin/ufw", "status")
	if after := m.rules(2); after != before {
		m.t.Errorf("put back, the rules are\n%s\nand were\n%s", after, before)
	}
	m.on(2, "rm", "/usr/local/sbin/ufw")

	c, _ = m.converge(0, "converge", "host2", "--yes", "--why", "mesh filters here")
	m.wants(c, "converged", "ufw")
	if len(c.Others) > 0 || !m.letsIn(2) {
		m.t.Errorf("others are %q, the declared port is open: %v", c.Others, m.letsIn(2))
	}
	m.holds(2, "Status: inactive", "ufw", "status")
	m.holds(2, "disabled", "sh", "-c", "systemctl is-enabled ufw || true")
	m.holds(2, "DNAT --to-destination 172.17.0.2:80", "iptables-save")
	m.holds(2, "-A FORWARD -o docker0 -j DOCKER", "iptables-save")
	m.holds(2, "-A f2b-j1 -s 192.0.2.8", "iptables-save")
	m.holds(2, "192.0.2.9", "nft", "list", "table", "inet", "f2b-table")
	if out := m.rules(2); strings.Contains(out, "192.0.2.7") {
		m.t.Errorf("the ban inside ufw's chain was said to go, and is there:\n%s", out)
	}
	m.well(2)
	m.holds(1, "converged", "mesh-coordinator", "node", "show", "host2")

	// Somebody switches it on again: the machine is not well, and it is said who filters it.
	m.on(2, "ufw", "--force", "enable")
	m.coordinator("node", "apply-now", "host2")
	m.waitFor("status to name ufw", later, func() (bool, any) {
		out, err := m.Bed.Host(1).RunErr(m.t.Context(), "mesh-coordinator", "status")
		text, err2 := m.Bed.Host(1).RunErr(m.t.Context(), "mesh-coordinator", "status", "--json")
		const says = "it is converged, and others filter packets on it: ufw"
		return err == nil && err2 == nil && out.Exit == 1 && strings.Contains(out.Stdout, says) && strings.Contains(text.Stdout, says), out.Stdout
	})
	c, _ = m.converge(0, "converge", "host2", "--yes", "--why", "again")
	m.wants(c, "converged", "ufw")

	c, _ = m.converge(0, "unconverge", "host2", "--why", "ufw stays")
	m.wants(c, "unconverged")
	m.holds(2, "Status: active", "ufw", "status")
	if m.letsIn(2) {
		m.t.Error("with ufw back, it lets in what it does not allow")
	}

	// A machine that leaves while it is converged is not left open.
	m.converge(0, "converge", "host2", "--yes", "--why", "for good")
	m.on(2, "mesh-installer", "leave")
	m.holds(2, "Status: active", "ufw", "status")
	m.holds(2, "enabled", "systemctl", "is-enabled", "ufw")
	if m.letsIn(2) {
		m.t.Error("left, it lets in what ufw does not allow")
	}
}

func convergeFirewalld(m *mesh) {
	if m.letsIn(3) {
		m.t.Error("firewalld lets in what it does not allow")
	}
	h := m.Bed.Host(3)
	rules, pid := m.rules(3), m.on(3, "systemctl", "show", "--value", "--property=MainPID", "fail2ban")
	h.WriteFile(m.t, "/run/mesh-failpoints", strings.Join(converge.FailPoints, "\n"), 0o600) // the agent is killed at each, once
	m.on(3, "systemctl", "restart", "mesh-agent")
	c, _ := m.converge(0, "converge", "host3", "--yes", "--why", "mesh filters here")
	m.wants(c, "converged", "firewalld")
	if !m.letsIn(3) {
		m.t.Error("the declared port is not open")
	}
	m.holds(3, "disabled inactive active", "sh", "-c", "echo $(systemctl is-enabled firewalld; systemctl is-active firewalld; systemctl is-active fail2ban)")
	m.holds(3, "running", "systemctl", "is-system-running")
	// Its own stop flushes iptables' rules in Debian 12, and takes fail2ban with it, which is a part of its unit.
	if after, now := m.rules(3), m.on(3, "systemctl", "show", "--value", "--property=MainPID", "fail2ban"); after != rules || now != pid {
		m.t.Errorf("fail2ban was process %s and is %s; iptables' rules are\n%s\nand were\n%s", pid, now, after, rules)
	}
	m.holds(3, "192.0.2.8", "nft", "list", "table", "inet", "f2b-table")
	// Its start flushes iptables' rules, those of others too: they are put back.
	c, _ = m.converge(0, "unconverge", "host3", "--why", "firewalld stays")
	m.wants(c, "unconverged")
	if after := m.rules(3); after != rules {
		m.t.Errorf("given back, iptables' rules are\n%s\nand were\n%s", after, rules)
	}
	m.holds(3, "enabled active", "sh", "-c", "echo $(systemctl is-enabled firewalld; systemctl is-active firewalld)")
	if m.letsIn(3) {
		m.t.Error("with firewalld back, it lets in what it does not allow")
	}
	if left := strings.TrimSpace(m.on(3, "cat", "/run/mesh-failpoints")); left != "" {
		m.t.Errorf("the agent was not killed at %q", left)
	}
}

func convergeServices(m *mesh) {
	if m.letsIn(4) {
		m.t.Error("the machine lets in what it does not allow")
	}
	rules, table := m.rules(4), m.on(4, "nft", "list", "table", "inet", "filter")
	c, said := m.converge(0, "converge", "host4")
	if !slices.Equal(c.Retires, []string{"iptables-persistent", "nftables.service"}) {
		m.t.Errorf("the preview: %s", said)
	}
	c, _ = m.converge(0, "converge", "host4", "--yes", "--why", "mesh filters here")
	m.wants(c, "converged", "iptables-persistent", "nftables.service")
	if !m.letsIn(4) {
		m.t.Error("the declared port is not open")
	}
	after := m.rules(4)
	for _, want := range []string{":INPUT ACCEPT", ":FORWARD DROP", "-A FORWARD -o docker0 -j DOCKER", "-A FORWARD -i docker0 ! -o docker0 -j ACCEPT", "MASQUERADE", "DNAT"} {
		if !strings.Contains(after, want) {
			m.t.Errorf("the rules lack %q:\n%s", want, after)
		}
	}
	if strings.Contains(after, "LOGDROP") || strings.Contains(after, "--dport 22") {
		m.t.Errorf("left behind:\n%s", after)
	}
	if out := m.on(4, "nft", "list", "tables"); strings.Contains(out, "inet filter") {
		m.t.Errorf("left behind: %s", out)
	}
	// The service was not stopped: that would have flushed everybody's rules.
	m.holds(4, "disabled active disabled active", "sh", "-c", "echo $(for s in nftables netfilter-persistent; do systemctl is-enabled $s; systemctl is-active $s; done)")
	c, _ = m.converge(0, "unconverge", "host4", "--why", "the services stay")
	m.wants(c, "unconverged")
	if again := m.rules(4); again != rules {
		m.t.Errorf("put back, the rules are\n%s\nand were\n%s", again, rules)
	}
	if again := m.on(4, "nft", "list", "table", "inet", "filter"); again != table {
		m.t.Errorf("put back, the table is\n%s\nand was\n%s", again, table)
	}
	m.holds(4, "enabled enabled", "sh", "-c", "echo $(systemctl is-enabled nftables; systemctl is-enabled netfilter-persistent)")
	if m.letsIn(4) {
		m.t.Error("with the services back, the machine lets in what they do not allow")
	}
}

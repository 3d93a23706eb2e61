package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"mesh/cmd/e2e/story"
	"mesh/shared/clock"
	"mesh/testbus/hosts"
)

const (
	// theWindow is how long a change may keep a machine from the bus, slack what looking takes on a busy one.
	theWindow, slack = 30 * time.Second, 8 * time.Second
	atOnce           = 3 * time.Second
	agentProgram     = "/usr/local/bin/mesh-agent"
)

// chapter is a part of a test that builds on the parts before it.
type chapter struct {
	name string
	tell func(*mesh)
}

// lockouts are three ways to lock oneself out of a machine, and the boot of one whose agent is broken. They need
// a mesh whose second host runs the sample module.
var lockouts = []chapter{
	{"inside holds and is taken back", inside},
	{"the uplink declared inside", uplinkInside},
	{"rules that cut the bus off", cutOff},
	{"the agent dies in the window and does not come back", diesInTheWindow},
	{"a boot with a broken agent, under a flood", brokenBoot},
}

func (m *mesh) set(setting, why string) {
	m.t.Helper()
	m.coordinator("node", "set", "host2", setting)
	m.coordinator("push", "host2", "--why", why)
}

// open fails the test unless the internet reaches exactly these of ports 22, 8080 and 9999 of host 2, on all of
// which something listens.
func (m *mesh) open(ports ...string) {
	m.t.Helper()
	for _, port := range []string{"22", story.HelloPort, story.ClosedPort} {
		if slices.Contains(ports, port) {
			m.waitFor("the internet to reach port "+port, soon, func() (bool, any) {
				return m.Reaches(m.t.Context(), m.Bed.Internet(), 2, port, dropped), nil // a listener may be about to begin
			})
		} else if m.Reaches(m.t.Context(), m.Bed.Internet(), 2, port, dropped) {
			m.t.Errorf("the internet reaches port %s", port)
		}
	}
}

// inside: a second card is outside until a person says otherwise, and again when that is taken back (NET-15).
func inside(m *mesh) {
	ctx := m.t.Context()
	h := m.Bed.Host(2)
	m.must(m.ListenUndeclared(ctx, 2))
	m.on(2, "systemd-run", "--quiet", "--unit=ssh-stand-in", "nc", "-lk", "0.0.0.0", "22")
	m.Bed.Internet().Run(m.t, "ip", "link", "add", "lan2", "type", "veth", "peer", "name", "eth1", "netns", filepath.Base(h.Path()))
	m.Bed.Internet().Run(m.t, "sh", "-c", "ip addr add 198.19.0.1/24 dev lan2 && ip link set lan2 up")
	m.on(2, "sh", "-c", "ip addr add 198.19.0.2/24 dev eth1 && ip link set eth1 up")
	overCard := func(bound time.Duration) bool {
		ctx, cancel := context.WithTimeout(ctx, bound)
		defer cancel()
		c, err := m.Bed.Internet().Dial(ctx, "tcp", net.JoinHostPort("198.19.0.2", story.ClosedPort))
		if err != nil {
			return false
		}
		return c.Close() == nil
	}
	if overCard(dropped) {
		m.t.Error("a card that nobody declared inside is open")
	}
	m.set("inside=eth1", "it is the lan")
	if !overCard(soon) {
		m.t.Error("a card declared inside is closed")
	}
	m.open("22", story.HelloPort)
	m.set("inside=", "no lan any more")
	if overCard(dropped) {
		m.t.Error("a card that is inside no more is open")
	}
	m.well(2)
}

// uplinkInside: the way of the default route is outside whatever a person said, and that is said.
func uplinkInside(m *mesh) {
	m.set("inside="+hosts.Link, "a slip")
	m.open("22", story.HelloPort)
	m.waitFor("show to say so", soon, func() (bool, any) {
		doc, exit := m.shown(2)
		return exit == 1 && doc.Filter != nil && doc.Filter.Loaded && strings.Contains(doc.Filter.Why, hosts.Link), fmt.Sprintf("%+v", doc.Filter)
	})
	m.set("inside=", "the slip taken back")
	m.well(2)
}

func (m *mesh) tables() string {
	m.t.Helper()
	return strings.ReplaceAll(m.on(2, "nft", "list", "tables", "inet"), "table inet ", "")
}

const (
	answersOpen = "admin=22/tcp from anywhere; 1024-65535/tcp from 198.18.0.11/32"
	answersShut = "admin=22/tcp from anywhere"
)

// cutOff: answers of the bus are not tracked on this machine, and a rule of a person's lets them in. Without that
// rule the agent cannot reach the bus: within the window the rules before are what is, and the change is refused.
func cutOff(m *mesh) {
	m.set(answersOpen, "answers are not tracked here")
	h := m.Bed.Host(2)
	h.RunIn(m.t, "table ip untracked {\n chain in { type filter hook prerouting priority raw; tcp sport 4222 notrack; }\n"+
		" chain out { type filter hook output priority raw; tcp dport 4222 notrack; }\n}\n", "nft", "-f", "-")
	m.well(2)
	m.coordinator("node", "set", "host2", answersShut)
	m.coordinator("push", "host2", "--wait", "0", "--why", "the rule is not needed, is it?")
	m.waitFor("the trial", soon, func() (bool, any) { t := m.tables(); return strings.Contains(t, "mesh-trial"), t })
	start := clock.Real().Now()
	m.open("22", story.HelloPort) // the way in for people stands meanwhile
	m.waitFor("the rules before it", theWindow+slack, func() (bool, any) { t := m.tables(); return t == "mesh\n", t })
	m.t.Logf("locked out for %v", clock.Real().Now().Sub(start).Round(100*time.Millisecond))
	m.waitFor("the machine to say so", soon, func() (bool, any) {
		doc, exit := m.shown(2)
		return exit == 1 && doc.Bus.Up && doc.Filter != nil && doc.Filter.Loaded && strings.Contains(doc.Filter.Why, "30s"), fmt.Sprintf("%+v", doc)
	})
	m.waitFor("the coordinator to say so", later, func() (bool, any) {
		out, err := m.Bed.Host(1).RunErr(m.t.Context(), "mesh-coordinator", "node", "show", "host2")
		return err == nil && strings.Contains(out.Stdout+out.Stderr, "the bus could not be reached within 30s"), out.Stdout
	})
	m.open("22", story.HelloPort)
}

// diesInTheWindow: nobody is there to put the rules before in force again, and they are, at once.
func diesInTheWindow(m *mesh) {
	m.coordinator("push", "host2", "--wait", "0", "--why", "once more")
	m.coordinator("node", "set", "host2", answersShut+"; 2222/tcp from anywhere")
	m.coordinator("push", "host2", "--wait", "0", "--why", "once more, with another opening")
	m.waitFor("the trial", soon, func() (bool, any) { t := m.tables(); return strings.Contains(t, "mesh-trial"), t })
	m.on(2, "sh", "-c", "mv "+agentProgram+" "+agentProgram+".good && printf '#!/bin/sh\\nexit 1\\n' > "+agentProgram+" && chmod 755 "+agentProgram)
	m.on(2, "systemctl", "kill", "--signal=KILL", "mesh-agent.service")
	start := clock.Real().Now()
	m.waitFor("the rules before it", atOnce, func() (bool, any) { t := m.tables(); return t == "mesh\n", t })
	m.t.Logf("restored %v after the kill, without an agent", clock.Real().Now().Sub(start).Round(time.Millisecond))
	m.open("22", story.HelloPort)
	if out := m.on(2, "nft", "list", "table", "inet", "mesh"); strings.Contains(out, "2222") {
		m.t.Errorf("what was tried is in force:\n%s", out)
	}
	// Kernels before 5.12 keep such a table; the agent's unit does not.
	m.on(2, "nft", "add", "table", "inet", "mesh-trial")
	m.waitFor("the unit to end the trial", soon, func() (bool, any) { t := m.tables(); return t == "mesh\n", t })
	m.on(2, "mv", agentProgram+".good", agentProgram)
	m.on(2, "nft", "delete", "table", "ip", "untracked")
	m.waitFor("the change, once nothing is in its way", later, func() (bool, any) {
		out, err := m.Run(m.t.Context(), 2, "nft", "list", "table", "inet", "mesh")
		return err == nil && strings.Contains(out, "2222"), out
	})
	m.well(2)
}

// brokenBoot: the filter stands before anything listens, from the machine's own state, agent or no agent (NET-10).
func brokenBoot(m *mesh) {
	const listen = "[Unit]\nDefaultDependencies=no\nAfter=network-pre.target\n[Service]\nExecStart=/bin/sh -c 'exec nc -u -l :: %[1]s > /var/got-%[1]s'\n[Install]\nWantedBy=sysinit.target\n"
	m.set("admin=22/tcp from anywhere; 5000/udp from anywhere", "a port for the flood")
	h := m.Bed.Host(2)
	ports := []string{"5000", "5001"}
	for _, port := range ports {
		h.WriteFile(m.t, "/etc/systemd/system/got-"+port+".service", fmt.Sprintf(listen, port), 0o644)
		m.on(2, "systemctl", "enable", "--quiet", "got-"+port+".service")
	}
	m.on(2, "sh", "-c", "mv "+agentProgram+" "+agentProgram+".good && printf 'broken' > "+agentProgram+" && chmod 755 "+agentProgram)
	h.Kill(m.t)
	ctx, cancel := context.WithCancel(m.t.Context())
	var wg sync.WaitGroup
	sent := make([]int, len(ports))
	for i, port := range ports {
		wg.Go(func() { sent[i] = flood(ctx, m.Bed.Internet(), net.JoinHostPort(h.IPv4(), port)) })
	}
	h.Boot(m.t)
	m.waitFor("the declared port to be flooded", soon, func() (bool, any) {
		out, err := h.RunErr(ctx, "stat", "-c", "%s", "/var/got-5000")
		return err == nil && out.Exit == 0 && strings.TrimSpace(out.Stdout) != "0", out.Stdout + out.Stderr
	})
	cancel()
	wg.Wait()
	m.t.Logf("flooded with %d and %d packets", sent[0], sent[1])
	if got := strings.TrimSpace(m.on(2, "stat", "-c", "%s", "/var/got-5001")); got != "0" {
		m.t.Errorf("%s bytes of the flood came through to a port that nothing declares", got)
	}
	if got := m.tables(); got != "mesh-boot\n" {
		m.t.Errorf("tables %q, want mesh-boot alone", got)
	}
	m.must(m.ListenUndeclared(m.t.Context(), 2))
	m.on(2, "systemd-run", "--quiet", "--unit=ssh-stand-in", "nc", "-lk", "0.0.0.0", "22")
	m.open("22", story.HelloPort)
	m.on(2, "mv", agentProgram+".good", agentProgram)
	m.waitFor("the agent to take over", later, func() (bool, any) { t := m.tables(); return t == "mesh\n", t })
	m.open("22", story.HelloPort)
	m.well(2)
}

// flood sends packets to address until ctx ends, and says how many.
func flood(ctx context.Context, from *hosts.Namespace, address string) (sent int) {
	for ctx.Err() == nil {
		c, err := from.Dial(ctx, "udp", address)
		if err != nil {
			continue // the link is being made anew
		}
		for ctx.Err() == nil {
			if _, err := c.Write([]byte("x")); err != nil && os.IsTimeout(err) {
				break
			}
			if sent++; sent%64 == 0 { // some ten thousand a second: the host has to boot beside it
				select {
				case <-ctx.Done():
				case <-clock.Real().After(5 * time.Millisecond):
				}
			}
		}
		c.Close()
	}
	return sent
}

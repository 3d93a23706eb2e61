// Package e2e tests the three programs together, on real Debian hosts, with what a user has.
package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mesh/agent/apply"
	"mesh/agent/plan"
	"mesh/cmd/e2e/story"
	"mesh/shared/waitfor"
	"mesh/testbus/hosts"
)

const (
	soon  = 30 * time.Second
	later = 90 * time.Second
	// dropped is how long a connection to a closed port is tried: the filter drops, it does not answer.
	dropped = 1500 * time.Millisecond
)

// mesh is a story in a test: what fails ends it, with the words of both journals.
type mesh struct {
	*story.Story
	t *testing.T
}

func begin(t *testing.T, n int) *mesh {
	t.Helper()
	return beginWith(t, n, hosts.Plain)
}

func beginWith(t *testing.T, n int, f hosts.Flavour) *mesh {
	t.Helper()
	source, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	m := &mesh{&story.Story{Source: source, Bin: t.TempDir()}, t}
	m.must(story.BuildPrograms(t.Context(), source, m.Bin))
	m.must(story.BuildHello(t.Context(), source))
	m.Bed = hosts.NewWith(t, n, f)
	m.must(m.Deliver(t.Context()))
	t.Cleanup(func() {
		if t.Failed() {
			m.journals()
		}
	})
	return m
}

func (m *mesh) journals() {
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	for i := 1; i <= m.Bed.Len(); i++ {
		out, err := m.Bed.Host(i).RunErr(ctx, "journalctl", "-q", "--no-pager", "-n", "40", "-u", "mesh-agent", "-u", "mesh-coordinator")
		m.t.Logf("journal of host%d (%v):\n%s", i, err, out.Stdout)
	}
}

func (m *mesh) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *mesh) coordinator(args ...string) string {
	m.t.Helper()
	out, err := m.Coordinator(m.t.Context(), args...)
	m.must(err)
	return out
}

func (m *mesh) on(i int, args ...string) string {
	m.t.Helper()
	out, err := m.Run(m.t.Context(), i, args...)
	m.must(err)
	return out
}

// refused runs a command that must fail, in words: exit 1 or 2, a way out, nothing done.
func (m *mesh) refused(i int, says string, args ...string) {
	m.t.Helper()
	out, err := m.Bed.Host(i).RunErr(m.t.Context(), args...)
	m.must(err)
	if out.Exit == 0 || !strings.Contains(out.Stderr, says) || !strings.Contains(out.Stderr, "\ndo: ") {
		m.t.Errorf("%s: exit %d, stderr %q, want a refusal that says %q and what to do", strings.Join(args, " "), out.Exit, out.Stderr, says)
	}
}

func (m *mesh) waitFor(what string, within time.Duration, cond func() (bool, any)) {
	m.t.Helper()
	waitfor.True(m.t, what, within, cond)
}

// found enrols every host and has the sample module run on hosts 2 and 3.
func (m *mesh) found() {
	m.t.Helper()
	_, err := m.Genesis(m.t.Context())
	m.must(err)
	for i := 2; i <= m.Bed.Len(); i++ {
		line, err := m.Invite(m.t.Context(), i)
		m.must(err)
		_, err = m.Enrol(m.t.Context(), i, line)
		m.must(err)
	}
	m.coordinator("module", "register", story.Hello)
	for i := 2; i <= m.Bed.Len(); i++ {
		m.coordinator("assign", m.Bed.Host(i).Name, "hello", "--set", "greeting=first")
	}
	m.coordinator("push", "--all", "--why", "first")
	for i := 2; i <= m.Bed.Len(); i++ {
		m.greets(i, "first")
	}
}

func (m *mesh) greets(i int, want string) {
	m.t.Helper()
	m.waitFor(fmt.Sprintf("host%d to greet with %q", i, want), later, func() (bool, any) {
		got, err := m.Greeting(m.t.Context(), i)
		return err == nil && strings.Contains(got, want), fmt.Sprint(got, err)
	})
}

// shown is what "mesh-agent show --json" says.
func (m *mesh) shown(i int) (doc struct {
	Daemon      struct{ Up bool }
	Bus         struct{ Up bool }
	Declaration struct {
		Seq     uint64
		Outcome string
	}
	Modules []struct{ Name, State, Detail string }
	Filter  *struct {
		Loaded bool
		Why    string
	}
	Drift []struct{ Thing, What string }
}, exit int) {
	m.t.Helper()
	out, err := m.Bed.Host(i).RunErr(m.t.Context(), "mesh-agent", "show", "--json")
	m.must(err)
	if err := json.Unmarshal([]byte(out.Stdout), &doc); err != nil && out.Exit != 2 {
		m.t.Fatalf("show --json says %q: %v", out.Stdout+out.Stderr, err)
	}
	return doc, out.Exit
}

func (m *mesh) well(i int) {
	m.t.Helper()
	m.waitFor(fmt.Sprintf("host%d to be well", i), later, func() (bool, any) {
		doc, exit := m.shown(i)
		return exit == 0, fmt.Sprintf("%+v", doc)
	})
}

// TestMainJob is the acceptance of the main job, one chapter after the other on the same three hosts.
func TestMainJob(t *testing.T) {
	m := begin(t, 3)
	m.found()
	for _, chapter := range []struct {
		name string
		tell func(*mesh)
	}{
		{"what is open and what is not", ports},
		{"what can be reached, and why", exposed},
		{"the bus stays open", busStaysOpen},
		{"bad invitations", invitations},
		{"an established flow survives a push", flow},
		{"what was changed by hand comes back", drift},
		{"the newest declaration arrives after a cut", cut},
		{"the coordinator is killed during a push", killedCoordinator},
		{"a reboot with the coordinator down", reboot},
		{"a full disk while a bundle arrives", fullDisk},
		{"show with the agent down", agentDown},
		{"leaving", leaving},
	} {
		if !t.Run(chapter.name, func(t *testing.T) { chapter.tell(&mesh{m.Story, t}) }) {
			return // the chapters build on each other
		}
	}
}

func ports(m *mesh) {
	ctx := m.t.Context()
	for i := 1; i <= 3; i++ {
		m.well(i)
	}
	m.must(m.ListenUndeclared(ctx, 2))
	m.must(m.ListenUndeclared(ctx, 1))
	for name, from := range map[string]*hosts.Namespace{"the internet": m.Bed.Internet(), "host3": &m.Bed.Host(3).Namespace} {
		if m.Reaches(ctx, from, 2, story.ClosedPort, dropped) || m.Reaches(ctx, from, 1, story.ClosedPort, dropped) {
			m.t.Errorf("%s reaches a port that nothing declares", name)
		}
		if !m.Reaches(ctx, from, 2, story.HelloPort, soon) {
			m.t.Errorf("%s does not reach the declared port", name)
		}
	}
	if !m.Reaches(ctx, &m.Bed.Host(2).Namespace, 2, story.ClosedPort, soon) {
		m.t.Error("host2 does not reach its own port")
	}
	if out := m.on(2, "mesh-agent", "show", "firewall"); !strings.Contains(out, "hello: 8080/tcp from anywhere") || !strings.Contains(out, "admin: 22/tcp from anywhere") {
		m.t.Errorf("show firewall says\n%s", out)
	}
}

// busStaysOpen: whatever a person sets on the coordinator's machine, the others reach the bus.
func busStaysOpen(m *mesh) {
	m.refused(1, "22/tcp", "mesh-coordinator", "node", "set", "host1", "admin=2222/tcp from anywhere")
	m.coordinator("node", "set", "host1", "admin=none")
	m.coordinator("push", "host1", "--why", "nobody comes in")
	if out := m.on(1, "mesh-agent", "show", "firewall"); !strings.Contains(out, "bus: 4222/tcp from anywhere") || strings.Contains(out, "admin:") {
		m.t.Errorf("show firewall says\n%s", out)
	}
	if !m.Reaches(m.t.Context(), &m.Bed.Host(2).Namespace, 1, "4222", soon) {
		m.t.Error("host2 does not reach the bus")
	}
	m.coordinator("push", "host2", "--why", "the bus is there")
	m.coordinator("node", "set", "host1", "admin=22/tcp from anywhere")
	m.coordinator("push", "host1", "--why", "people come in again")
}

func invitations(m *mesh) {
	const installer = "/root/mesh/mesh-installer"
	m.refused(1, "dot", "mesh-coordinator", "node", "invite", "a.b")
	m.refused(1, "host2", "mesh-coordinator", "node", "invite", "host2")
	m.refused(3, "cut or mistyped", installer, "enrol", "mesh1-abcdefgh12345678")
	line := strings.Fields(m.coordinator("node", "invite", "host9"))
	var invitation string
	for _, w := range line {
		if strings.HasPrefix(w, "mesh1-") {
			invitation = w
		}
	}
	m.refused(3, "cut or mistyped", installer, "enrol", invitation[:len(invitation)-9])
	m.refused(3, "host3", installer, "enrol", invitation) // this machine is enrolled already
	open := m.coordinator("node", "invitations", "--json")
	var list struct {
		Invitations []struct{ ID, Node, State string }
	}
	m.must(json.Unmarshal([]byte(open), &list))
	for _, i := range list.Invitations {
		if i.Node == "host9" {
			m.coordinator("node", "revoke", i.ID, "--why", "the test")
		}
	}
}

func flow(m *mesh) {
	ctx := m.t.Context()
	c, err := m.Bed.Internet().Dial(ctx, "tcp", net.JoinHostPort(m.Bed.Host(2).IPv4(), story.HelloPort))
	m.must(err)
	defer c.Close()
	r := bufio.NewReader(c)
	get := func() error {
		if err := c.SetDeadline(deadline(ctx, soon)); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			return err
		}
		line, err := r.ReadString('\n')
		if err != nil || !strings.Contains(line, "200") {
			return fmt.Errorf("answer %q: %w", line, err)
		}
		length := 0
		for line != "\r\n" {
			if line, err = r.ReadString('\n'); err != nil {
				return err
			}
			if v, ok := strings.CutPrefix(strings.ToLower(line), "content-length: "); ok {
				if _, err := fmt.Sscan(v, &length); err != nil {
					return err
				}
			}
		}
		_, err = r.Discard(length)
		return err
	}
	m.must(get())
	m.coordinator("node", "set", "host2", "admin=22/tcp from anywhere; 2222/tcp from anywhere")
	m.coordinator("push", "host2", "--why", "another opening")
	if out := m.on(2, "mesh-agent", "show", "firewall"); !strings.Contains(out, "2222/tcp") {
		m.t.Errorf("the new opening is not in force:\n%s", out)
	}
	if err := get(); err != nil {
		m.t.Errorf("the flow did not survive: %v", err)
	}
}

func deadline(ctx context.Context, d time.Duration) time.Time {
	c, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	at, _ := c.Deadline()
	return at
}

func drift(m *mesh) {
	m.on(2, "sh", "-c", "echo greeting = by hand > /etc/hello/hello.conf")
	m.waitFor("the file to come back", later, func() (bool, any) {
		out, err := m.Run(m.t.Context(), 2, "cat", "/etc/hello/hello.conf")
		return err == nil && strings.Contains(out, "first"), out
	})
	m.on(2, "systemctl", "stop", "mesh-hello-web.service")
	m.waitFor("the service to run again", later, func() (bool, any) {
		out, err := m.Bed.Host(2).RunErr(m.t.Context(), "systemctl", "is-active", "mesh-hello-web.service")
		return err == nil && out.Exit == 0, out.Stdout
	})
	m.on(2, "nft", "flush", "ruleset")
	m.waitFor("the packet filter to stand", later, func() (bool, any) {
		out, err := m.Bed.Host(2).RunErr(m.t.Context(), "nft", "list", "chain", "inet", "mesh", "input")
		return err == nil && strings.Contains(out.Stdout, "goto refuse"), out.Stdout + out.Stderr
	})
	m.waitFor("show to say so", later, func() (bool, any) {
		doc, _ := m.shown(2)
		return len(doc.Drift) >= 2, fmt.Sprintf("%+v", doc.Drift)
	})
	m.greets(2, "first")
}

func cut(m *mesh) {
	before, _ := m.shown(3)
	m.Bed.Host(3).CutLink(m.t)
	for _, text := range []string{"missed", "newest"} {
		m.coordinator("assign", "host3", "hello", "--set", "greeting="+text)
		m.coordinator("push", "host3", "--wait", "0", "--why", text)
	}
	m.Bed.Host(3).RestoreLink(m.t)
	m.greets(3, "newest")
	m.waitFor("the newest declaration to be applied", later, func() (bool, any) {
		doc, exit := m.shown(3)
		return exit == 0 && doc.Declaration.Seq == before.Declaration.Seq+2, fmt.Sprintf("%+v", doc)
	})
}

func killedCoordinator(m *mesh) {
	for _, name := range []string{"host2", "host3"} {
		m.coordinator("assign", name, "hello", "--set", "greeting=after the kill")
	}
	m.coordinator("push", "--all", "--wait", "0", "--why", "to be interrupted")
	m.on(1, "systemctl", "kill", "--signal=KILL", "mesh-coordinator.service")
	for _, i := range []int{2, 3} {
		m.greets(i, "after the kill")
	}
	m.waitFor("the coordinator to say that all is applied", later, func() (bool, any) {
		out, err := m.Bed.Host(1).RunErr(m.t.Context(), "mesh-coordinator", "node", "list", "--json")
		if err != nil || out.Exit != 0 {
			return false, out.Stderr
		}
		var list struct {
			Nodes []struct{ Sent, Applied uint64 }
		}
		if err := json.Unmarshal([]byte(out.Stdout), &list); err != nil {
			return false, err
		}
		for _, n := range list.Nodes {
			if n.Sent != n.Applied {
				return false, out.Stdout
			}
		}
		return len(list.Nodes) == 3, out.Stdout
	})
}

func reboot(m *mesh) {
	m.on(1, "systemctl", "stop", "mesh-coordinator.service")
	h := m.Bed.Host(3)
	h.Kill(m.t)
	h.Boot(m.t)
	m.greets(3, "after the kill")
	m.waitFor("the packet filter to stand", later, func() (bool, any) {
		doc, _ := m.shown(3)
		return doc.Filter != nil && doc.Filter.Loaded, fmt.Sprintf("%+v", doc)
	})
	m.must(m.ListenUndeclared(m.t.Context(), 3))
	if m.Reaches(m.t.Context(), m.Bed.Internet(), 3, story.ClosedPort, dropped) {
		m.t.Error("after the reboot a port that nothing declares is open")
	}
	if doc, exit := m.shown(3); exit != 1 || doc.Bus.Up {
		m.t.Errorf("show with the bus away: exit %d, %+v", exit, doc)
	}
	m.on(1, "systemctl", "start", "mesh-coordinator.service")
	m.well(3)
}

func fullDisk(m *mesh) {
	m.coordinator("unassign", "host3", "hello")
	m.coordinator("push", "host3", "--why", "make room")
	m.on(3, "systemctl", "stop", "mesh-agent.service")
	m.on(3, "sh", "-c", "rm -rf /var/lib/mesh-agent/bundles && mkdir /var/lib/mesh-agent/bundles && mount -t tmpfs -o size=1m small /var/lib/mesh-agent/bundles")
	m.on(3, "systemctl", "start", "mesh-agent.service")
	m.coordinator("assign", "host3", "hello", "--set", "greeting=roomy")
	m.coordinator("push", "host3", "--wait", "0", "--why", "no room")
	m.waitFor("the failure to be named", later, func() (bool, any) {
		doc, _ := m.shown(3)
		return len(doc.Modules) == 1 && doc.Modules[0].State == "failed" && strings.Contains(doc.Modules[0].Detail, "space"), fmt.Sprintf("%+v", doc.Modules)
	})
	m.on(3, "umount", "/var/lib/mesh-agent/bundles")
	m.greets(3, "roomy")
	m.well(3)
}

func agentDown(m *mesh) {
	m.on(2, "systemctl", "stop", "mesh-agent.service")
	doc, exit := m.shown(2)
	if exit != 1 || doc.Daemon.Up || len(doc.Modules) != 1 {
		m.t.Errorf("exit %d, %+v", exit, doc)
	}
	m.greets(2, "after the kill") // the workload does not need the agent
	m.on(2, "systemctl", "start", "mesh-agent.service")
	m.well(2)
}

func leaving(m *mesh) {
	m.on(3, "mesh-installer", "leave", "--stop-workloads")
	out, err := m.Bed.Host(3).RunErr(m.t.Context(), "nft", "list", "tables")
	m.must(err)
	if strings.Contains(out.Stdout, "mesh") {
		m.t.Errorf("the packet filter is still there: %s", out.Stdout)
	}
	if out, err := m.Bed.Host(3).RunErr(m.t.Context(), "sh", "-c", "ls /etc/systemd/system | grep mesh; ls -d /var/lib/mesh-agent /usr/local/bin/mesh-agent"); err != nil || strings.TrimSpace(out.Stdout) != "" {
		m.t.Errorf("left behind: %s, %v", out.Stdout, err)
	}
	if m.on(3, "ls", "-d", "/var/lib/hello"); m.t.Failed() {
		m.t.Error("the data is gone")
	}
	m.coordinator("node", "remove", "host3", "--why", "it left")
	line, err := m.Invite(m.t.Context(), 3)
	m.must(err)
	_, err = m.Enrol(m.t.Context(), 3, line)
	m.must(err)
	m.well(3)
}

// ofPrograms are the fail points that a module of programs, files and users comes to. Those of containers, of the
// kernel's settings, of deleting data and of going back are agent/apply's to test: its crash harness is killed at
// every one.
func ofPrograms() []string {
	return slices.DeleteFunc(slices.Clone(apply.FailPoints), func(point string) bool {
		return strings.HasSuffix(point, " going back") || slices.ContainsFunc([]plan.Op{plan.MakeGroup, plan.Pull, plan.MakeLink, plan.LoadModule, plan.SetSysctl, plan.MakeNetwork, plan.MakeVolume,
			plan.Retire, plan.RemoveContainer, plan.RemoveNetwork, plan.RestoreSysctl, plan.RemoveLink, plan.RemoveImage, plan.DeleteFolder, plan.DeleteVolume},
			func(op plan.Op) bool { return strings.HasSuffix(point, " "+string(op)) })
	})
}

// TestKilledAtEachStep kills the agent at every fail point it comes to, once each, while modules come and
// go and repairs are made; systemd starts it again each time, and the machine ends as declared (APP-5).
func TestKilledAtEachStep(t *testing.T) {
	m := begin(t, 2)
	m.found()
	const file = "/run/mesh-failpoints"
	h := m.Bed.Host(2)
	h.WriteFile(t, "/etc/systemd/system/mesh-agent.service.d/failpoints.conf",
		"[Service]\nEnvironment=MESH_FAILPOINT_FILE="+file+"\nRestartSec=100ms\n", 0o644)
	left := ofPrograms()
	h.WriteFile(t, file, strings.Join(left, "\n"), 0o600)
	m.on(2, "systemctl", "daemon-reload")
	m.on(2, "systemctl", "restart", "mesh-agent.service")
	for round := 1; len(left) > 0; round++ {
		if round > 6 {
			t.Fatalf("these fail points were never reached: %q", left)
		}
		m.comeAndGo(round)
		before := len(left)
		left = strings.Fields(strings.ReplaceAll(m.on(2, "cat", file), " ", "_"))
		t.Logf("round %d: killed at %d steps", round, before-len(left))
		if out, err := h.RunErr(t.Context(), "sh", "-c", "find /etc /var/lib/mesh-agent /var/lib/hello -name '.mesh-*' -o -name '.part-*' -o -name '.unpack-*'"); err != nil || strings.TrimSpace(out.Stdout) != "" {
			t.Errorf("left behind: %s, %v", out.Stdout, err)
		}
	}
}

// comeAndGo has host2 lose the sample module with its user and bundle, get it back, and repair what was
// changed by hand.
func (m *mesh) comeAndGo(round int) {
	m.t.Helper()
	m.coordinator("unassign", "host2", "hello")
	m.coordinator("push", "host2", "--wait", "0", "--why", "go")
	m.waitFor("the module to be gone", later, func() (bool, any) {
		doc, exit := m.shown(2)
		out, err := m.Bed.Host(2).RunErr(m.t.Context(), "sh", "-c", "ls -d /etc/hello /etc/systemd/system/mesh-hello-*")
		return err == nil && exit == 0 && len(doc.Modules) == 0 && out.Stdout == "", fmt.Sprintf("%+v %s", doc, out.Stdout)
	})
	m.on(2, "sh", "-c", "rm -rf /var/lib/mesh-agent/bundles/*; userdel hello; chown 0:0 /var/lib/hello; chmod 0700 /var/lib/hello")
	text := fmt.Sprintf("round %d", round)
	m.coordinator("assign", "host2", "hello", "--set", "greeting="+text)
	m.coordinator("push", "host2", "--wait", "0", "--why", "come")
	m.greets(2, text)
	m.well(2)
	text += " again"
	m.coordinator("assign", "host2", "hello", "--set", "greeting="+text)
	m.coordinator("push", "host2", "--wait", "0", "--why", "change")
	m.greets(2, text)
	m.on(2, "systemctl", "stop", "mesh-hello-web.service")
	m.greets(2, text)
	m.well(2)
}

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// window is how long a new agent has in this test.
const window = "20s"

// Agents that are none: both say their version, and no more.
const (
	agentThatExits = "#!/bin/sh\ncase \"$1\" in --version) echo mesh-agent version exits; exit 0;; esac\nexit 3\n"
	agentThatHangs = "#!/bin/sh\ncase \"$1\" in --version) echo mesh-agent version hangs; exit 0;; esac\nexec sleep 1000\n"
)

// agentModule lays out a module that holds the agent's seat on the first host, and registers it.
func (m *mesh) agentModule(name, program string) {
	m.t.Helper()
	dir := "/root/" + name
	first := m.Bed.Host(1)
	first.WriteFile(m.t, dir+"/module.yaml", "module: "+name+"\nbuild: {bundle: {output: dist}}\nseats: {claims: [node-engine]}\n", 0o644)
	if strings.HasPrefix(program, "#!") {
		first.WriteFile(m.t, dir+"/dist/bin/mesh-agent", program, 0o755)
	} else {
		first.Copy(m.t, program, dir+"/dist/bin/mesh-agent", 0o755)
	}
	m.coordinator("module", "register", dir)
}

// agentBuild builds the agent as another release.
func (m *mesh) agentBuild(release string) string {
	m.t.Helper()
	to := filepath.Join(m.t.TempDir(), "mesh-agent")
	cmd := exec.CommandContext(m.t.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w -X mesh/shared/version.release="+release, "-o", to, "./cmd/mesh-agent")
	cmd.Dir, cmd.Env = m.Source, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		m.t.Fatalf("go build: %v\n%s", err, out)
	}
	return to
}

// workload is the process of the sample module.
func (m *mesh) workload(i int) string {
	m.t.Helper()
	return strings.TrimSpace(m.on(i, "systemctl", "show", "--property=MainPID,ExecMainStartTimestampMonotonic", "mesh-hello-web.service"))
}

// runs is the program of the running agent, and its unit's state.
func (m *mesh) runs(i int) string {
	out, err := m.Bed.Host(i).RunErr(m.t.Context(), "sh", "-c", `p=$(systemctl show -P MainPID mesh-agent.service); readlink /proc/$p/exe; systemctl is-active mesh-agent.service`)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(out.Stdout)
}

func (m *mesh) agentIs(i int, what string, want func(exe string) bool) {
	m.t.Helper()
	m.waitFor(fmt.Sprintf("the agent of host%d to be %s", i, what), later, func() (bool, any) {
		exe, state, _ := strings.Cut(m.runs(i), "\n")
		return want(exe) && state == "active", exe + " " + state
	})
}

// TestUpgradeOfTheAgent: an agent that a module brings takes over and stays; one that exits and one that never
// reports are taken back, and said; no workload notices any of it (NOD-12).
func TestUpgradeOfTheAgent(t *testing.T) {
	m := begin(t, 2)
	for i := 1; i <= 2; i++ {
		m.Bed.Host(i).WriteFile(t, "/etc/systemd/system/mesh-agent.service.d/window.conf", "[Service]\nEnvironment=MESH_UPGRADE_WINDOW="+window+"\n", 0o644)
	}
	m.found()
	m.coordinator("assign", "host1", "hello", "--set", "greeting=first")
	m.coordinator("push", "host1", "--why", "a workload here too")
	before := map[int]string{1: m.workload(1), 2: m.workload(2)}
	untouched := func() {
		t.Helper()
		for i, was := range before {
			if now := m.workload(i); now != was {
				t.Errorf("the workload of host%d is %s, was %s", i, now, was)
			}
			m.greets(i, "first")
		}
	}
	m.agentModule("agent", m.agentBuild("v9.9.9"))
	for _, host := range []string{"host1", "host2"} {
		m.coordinator("assign", host, "agent")
	}
	m.coordinator("push", "--all", "--why", "a new agent")
	fromBundle := func(exe string) bool { return strings.HasPrefix(exe, "/var/lib/mesh-agent/agent/") }
	for i := 1; i <= 2; i++ {
		m.agentIs(i, "the new one", fromBundle)
		m.waitFor("the way back to go", later, func() (bool, any) {
			out, err := m.Bed.Host(i).RunErr(t.Context(), "ls", "/etc/systemd/system/mesh-agent-fallback.timer")
			return err == nil && out.Exit != 0, out.Stdout
		})
		m.well(i)
		if out := m.on(i, "mesh-agent", "--version"); !strings.Contains(out, "9.9.9") {
			t.Errorf("host%d: the command is of %s", i, out)
		}
	}
	m.waitFor("the coordinator to know", later, func() (bool, any) {
		out, err := m.Coordinator(t.Context(), "node", "list")
		return err == nil && strings.Count(out, "9.9.9") == 2, out
	})
	untouched()
	good, _, _ := strings.Cut(m.runs(2), "\n")

	// One that exits at once, and one that hangs: each machine goes back to what it had.
	m.agentModule("exits", agentThatExits)
	m.agentModule("hangs", agentThatHangs)
	for host, module := range map[string]string{"host1": "hangs", "host2": "exits"} {
		m.coordinator("unassign", host, "agent")
		m.coordinator("assign", host, module)
	}
	m.coordinator("push", "--all", "--wait", "0", "--why", "bad agents")
	for i, module := range map[int]string{1: "hangs", 2: "exits"} {
		m.waitFor(fmt.Sprintf("host%d to say that the agent of module %s failed", i, module), later, func() (bool, any) {
			out, err := m.Coordinator(t.Context(), "node", "show", m.Bed.Host(i).Name)
			return err == nil && strings.Contains(out, "did not report within "+window), out
		})
		m.agentIs(i, "the good one", func(exe string) bool { return exe == good })
		if out, err := m.Bed.Host(i).RunErr(t.Context(), "sh", "-c", "ls /etc/systemd/system | grep mesh-agent-fallback"); err != nil || out.Stdout != "" {
			t.Errorf("left behind on host%d: %s, %v", i, out.Stdout, err)
		}
	}
	untouched()
	for host, module := range map[string]string{"host1": "hangs", "host2": "exits"} {
		m.coordinator("unassign", host, module)
	}
	m.coordinator("push", "--all", "--why", "no agent of a module's")
	for i := 1; i <= 2; i++ {
		m.well(i)
		m.agentIs(i, "the good one still", func(exe string) bool { return exe == good })
	}
	untouched()
}

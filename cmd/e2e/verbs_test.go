package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"mesh/shared/clock"
)

// TestAMachineIsAskedOverTheBus: what a person at the coordinator asks of another machine (issue 3: the
// agent's own verbs, logs, diagnose, metrics).
func TestAMachineIsAskedOverTheBus(t *testing.T) {
	m := begin(t, 2)
	m.found()
	m.well(2)
	for _, chapter := range []chapter{
		{"show, facts, report", asked},
		{"apply-now puts right what was changed", applyNow},
		{"metrics on loopback", measured},
		{"logs, followed over a restart of the service and of the agent", logs},
		{"diagnose from here and there", diagnosed},
		{"one that is away is said to be at once", awayAtOnce},
	} {
		if !t.Run(chapter.name, func(t *testing.T) { chapter.tell(&mesh{m.Story, t}) }) {
			return
		}
	}
}

func asked(m *mesh) {
	here, there := m.on(2, "mesh-agent", "show", "--json"), m.coordinator("node", "ask", "host2", "show")
	var a, b struct {
		Node        string
		Declaration struct{ Seq uint64 }
		Modules     []struct{ Name, State, Build string }
	}
	if json.Unmarshal([]byte(here), &a) != nil || json.Unmarshal([]byte(there), &b) != nil || fmt.Sprint(a) != fmt.Sprint(b) || len(b.Modules) != 1 {
		m.t.Errorf("on the machine %s\nover the bus %s", here, there)
	}
	if facts := m.coordinator("node", "ask", "host2", "facts"); !strings.Contains(facts, `"os": "debian"`) {
		m.t.Errorf("facts: %s", facts)
	}
	if said := m.coordinator("node", "ask", "host2", "report"); !strings.Contains(said, `"number": `) {
		m.t.Errorf("report: %s", said)
	}
	if tools := m.coordinator("tool", "list"); !strings.Contains(tools, "apply-now") {
		m.t.Errorf("tool list: %s", tools)
	}
}

func applyNow(m *mesh) {
	m.on(2, "sh", "-c", "echo 'greeting = by hand' > /etc/hello/hello.conf")
	// The agent may have noticed by itself.
	out := m.coordinator("node", "apply-now", "host2")
	if !strings.Contains(out, "applied") {
		m.t.Errorf("apply-now: %s", out)
	}
	if text := m.Bed.Host(2).ReadFile(m.t, "/etc/hello/hello.conf"); !strings.Contains(text, "greeting = first") {
		m.t.Errorf("the file says %q", text)
	}
}

func logs(m *mesh) {
	const unit = "mesh-hello-web.service"
	if out := m.coordinator("logs", "host2", "hello", "--since", "1h"); !strings.Contains(out, " web: Started ") {
		m.t.Errorf("logs: %s", out)
	}
	if out := m.coordinator("logs", "host2", "hello", "-n", "1", "--json"); strings.Count(out, "\n") != 1 || !strings.Contains(out, `"unit":"mesh-hello-`) {
		m.t.Errorf("one line: %s", out)
	}
	m.refused(1, "nothing of it runs", "mesh-coordinator", "logs", "host2", "other")

	reader := strings.TrimSpace(m.on(1, "sh", "-c", "setsid mesh-coordinator logs host2 hello -f -n 1 >/root/follow 2>/root/follow.err & echo $!"))
	follows := func(what string, n int) {
		m.t.Helper()
		m.waitFor(fmt.Sprintf("%q %d times in what is followed", what, n), later, func() (bool, any) {
			out := m.on(1, "cat", "/root/follow", "/root/follow.err")
			return strings.Count(out, what) >= n, out
		})
	}
	follows("\n", 1)
	pid := m.on(2, "systemctl", "show", "-P", "MainPID", unit)
	if out := m.coordinator("node", "restart", "host2", "hello", "web", "--why", "the test says so"); !strings.Contains(out, unit) || !strings.Contains(out, "active") {
		m.t.Errorf("restart: %s", out)
	}
	if now := m.on(2, "systemctl", "show", "-P", "MainPID", unit); now == pid {
		m.t.Error("the service was not restarted")
	}
	follows("web: Started ", 1)
	// The agent begins anew: the follow goes on behind the last line, with none twice and none lost.
	m.on(2, "systemctl", "restart", "mesh-agent.service")
	m.waitFor("the read to be open again", later, func() (bool, any) { out := m.metrics(2); return strings.Contains(out, "mesh_journal_reads 1\n"), out })
	m.on(2, "systemctl", "restart", unit)
	follows("web: Started ", 2)
	if out := m.on(1, "cat", "/root/follow"); strings.Count(out, "web: Started ") != 2 {
		m.t.Errorf("lines came twice: %s", out)
	}
	m.well(2) // the restarts were nobody's drift
	// A reader that is gone ends it within seconds, journalctl with it.
	m.on(1, "kill", "-9", reader)
	began := clock.Real().Now()
	m.waitFor("the read to end", soon, func() (bool, any) { out := m.metrics(2); return strings.Contains(out, "mesh_journal_reads 0\n"), out })
	if out, err := m.Bed.Host(2).RunErr(m.t.Context(), "sh", "-c", "cat /proc/[0-9]*/comm | grep -x journalctl"); err != nil || out.Stdout != "" {
		m.t.Errorf("a journalctl is left: %v %v", out, err)
	}
	m.t.Logf("the read ended %v after its reader", clock.Real().Now().Sub(began).Round(time.Millisecond))
}

func diagnosed(m *mesh) {
	seed := m.on(2, "sh", "-c", `sed -n 's/.*"seed": *"\([^"]*\)".*/\1/p' /var/lib/mesh-agent/credential.json | head -n 1`)
	m.on(2, "mesh-agent", "diagnose", "--output", "/root/here.tar.gz")
	m.coordinator("diagnose", "host2", "--output", "/root/there.tar.gz")
	m.coordinator("diagnose", "--output", "/root/coordinator.tar.gz")
	for file, host := range map[string]int{"/root/here.tar.gz": 2, "/root/there.tar.gz": 1, "/root/coordinator.tar.gz": 1} {
		text := m.on(host, "tar", "-xzOf", file)
		for _, want := range []string{"CONTENTS"} {
			if names := m.on(host, "tar", "-tzf", file); !strings.Contains(names, want) {
				m.t.Errorf("%s holds %s", file, names)
			}
		}
		if strings.Contains(text, strings.TrimSpace(seed)) || strings.Contains(text, "NOT WHOLE: context") || len(seed) < 20 {
			m.t.Errorf("%s has the node's key, or parts that took too long", file)
		}
		for what, there := range map[string]bool{"table inet mesh": host == 2 || strings.Contains(file, "there"), `"name": "hello"`: true, "systemd 25": true, `"asked": 2`: strings.Contains(file, "coordinator")} {
			if there && !strings.Contains(text, what) {
				m.t.Errorf("%s does not say %q", file, what)
			}
		}
	}
	if left := m.on(2, "sh", "-c", "ls /var/lib/mesh-agent"); strings.Contains(left, ".key") {
		m.t.Errorf("left there: %s", left)
	}
}

func measured(m *mesh) {
	m.Bed.Host(2).WriteFile(m.t, "/etc/systemd/system/mesh-agent.service.d/metrics.conf", "[Service]\nEnvironment=MESH_AGENT_METRICS=127.0.0.1:9463\n", 0o644)
	m.on(2, "systemctl", "daemon-reload")
	m.on(2, "systemctl", "restart", "mesh-agent.service")
	m.waitFor("the metrics", soon, func() (bool, any) {
		out := m.metrics(2)
		return strings.Contains(out, "mesh_bus_up 1\n") && strings.Contains(out, `mesh_module_running{module="hello"`), out
	})
	for line := range strings.Lines(m.metrics(2)) {
		if strings.HasPrefix(line, "process_resident_memory_bytes ") {
			m.t.Log(strings.TrimSpace(line))
		}
	}
	if out := m.on(2, "curl", "-s", "http://127.0.0.1:9463/healthz"); out != "well\n" && strings.TrimSpace(out) != "well" {
		m.t.Errorf("health: %q", out)
	}
}

// metrics are those of host i's agent, "" while there are none.
func (m *mesh) metrics(i int) string {
	m.t.Helper()
	out, err := m.Bed.Host(i).RunErr(m.t.Context(), "curl", "-s", "http://127.0.0.1:9463/metrics")
	m.must(err)
	return out.Stdout
}

func awayAtOnce(m *mesh) {
	m.on(2, "systemctl", "stop", "mesh-agent.service")
	began := clock.Real().Now()
	m.refused(1, "host2 is away", "mesh-coordinator", "logs", "host2", "hello")
	m.refused(1, "host9", "mesh-coordinator", "node", "apply-now", "host9")
	if took := clock.Real().Now().Sub(began); took > 5*time.Second {
		m.t.Errorf("it took %v to say so", took)
	}
	m.on(2, "systemctl", "start", "mesh-agent.service")
	m.waitFor("it to answer again", soon, func() (bool, any) {
		out, err := m.Coordinator(m.t.Context(), "node", "ask", "host2", "facts")
		return err == nil, out
	})
}

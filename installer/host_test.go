package installer

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"mesh/installer/unit"
	"mesh/shared/clock"
	"mesh/testbus/hosts"
)

type natsMsg = nats.Msg

// TestOnARealMachine enrols a booted Debian host, with stand-ins for the daemons inside the real units
// (NOD-2, NOD-4), and takes mesh away from it again (NOD-13).
func TestOnARealMachine(t *testing.T) {
	h := hosts.New(t, 1).Host(1)
	self, err := os.Executable()
	must(t, err)
	for _, p := range []string{agentProgram, coordinatorProgram, installerProgram} {
		h.Copy(t, self, "/opt/mesh/"+p, 0o755)
	}
	h.Run(t, "/opt/mesh/mesh-installer", "serve")
	if got := h.ReadFile(t, coordLog); got != "" {
		t.Errorf("the coordinator's sandbox:\n%s", got)
	}
	line := h.ReadFile(t, lineFile)
	h.Run(t, "/opt/mesh/mesh-installer", "enrol", line)
	if got := h.ReadFile(t, agentLog); got != "" {
		t.Errorf("the agent's sandbox:\n%s", got)
	}
	t.Run("the units are as systemd wants them", func(t *testing.T) {
		// An unknown key exits 0: any output is a failure.
		out, err := h.RunErr(t.Context(), "systemd-analyze", "verify", unit.Folder+"/"+unit.AgentName, unit.Folder+"/"+unit.CoordinatorName, unit.Folder+"/"+unit.FilterName)
		if err != nil || out.Exit != 0 || out.Stdout+out.Stderr != "" {
			t.Errorf("%+v, %v", out, err)
		}
		for name, most := range map[string]string{unit.AgentName: "30", unit.CoordinatorName: "20", unit.FilterName: "60"} {
			out, err := h.RunErr(t.Context(), "systemd-analyze", "security", "--no-pager", "--threshold="+most, name)
			if err != nil || out.Exit != 0 {
				t.Errorf("%s is exposed by more than %s of 100: %v\n%s", name, most, err, out.Stdout)
			}
		}
	})
	t.Run("again, nothing changes", func(t *testing.T) {
		pid := h.Run(t, "systemctl", "show", "--property=MainPID", unit.AgentName)
		h.Run(t, "/opt/mesh/mesh-installer", "enrol", line)
		if got := h.Run(t, "systemctl", "show", "--property=MainPID", unit.AgentName); got != pid {
			t.Errorf("the agent was restarted: %s, then %s", pid, got)
		}
	})
	t.Run("the daemons come back after a kill, and stop in ten seconds", func(t *testing.T) {
		h.Run(t, "systemctl", "kill", "--signal=KILL", unit.AgentName)
		h.WaitFor(t, "the agent to come back", func(ctx ctx) (bool, string) {
			out, err := h.RunErr(ctx, "systemctl", "show", "--property=ActiveState,NRestarts", unit.AgentName)
			return err == nil && out.Stdout == "NRestarts=1\nActiveState=active\n", out.Stdout
		}, 20*time.Second)
		begun := clock.Real().Now()
		h.Run(t, "systemctl", "stop", unit.AgentName)
		if took := clock.Real().Now().Sub(begun); took > 10*time.Second {
			t.Errorf("stopping took %v", took)
		}
		if got := h.Run(t, "systemctl", "is-active", "mesh-probe-x.service"); got != "active\n" {
			t.Errorf("the workload is %s", got)
		}
		h.Run(t, "systemctl", "start", unit.AgentName)
	})
	t.Run("leave", func(t *testing.T) {
		if got := h.Run(t, "nft", "list", "tables"); got != "table inet mesh\n" {
			t.Fatalf("before: %q", got)
		}
		if got := h.Run(t, "/opt/mesh/mesh-installer", "leave"); got != "folder /srv/of-mesh\n" {
			t.Errorf("it says %q", got)
		}
		if got := h.Run(t, "nft", "list", "tables"); got != "" {
			t.Errorf("the packet filter: %q", got)
		}
		out := h.Run(t, "sh", "-c", "ls -d /etc/systemd/system/mesh-* /etc/systemd/system/*/mesh-* /usr/local/bin/mesh-* /var/lib/mesh-* /run/mesh-* /etc/mesh 2>/dev/null; systemctl list-units --all --plain --no-legend 'mesh-*'; true")
		if strings.TrimSpace(out) != "" {
			t.Errorf("left behind:\n%s", out)
		}
	})
}

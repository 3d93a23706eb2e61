package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"mesh/shared/clock"
	"mesh/shared/waitfor"
)

// TestTheAgentUnderPressure: what hangs, dies or cuts the agent off on a machine holds up nobody's word, and
// nobody is locked out of it.
func TestTheAgentUnderPressure(t *testing.T) {
	m := begin(t, 2)
	m.found()
	for _, chapter := range append([]chapter{
		{"a unit that hangs does not hold up the next push", hangs},
		{"an altered program is put right", altered},
		{"the store is deleted under the agent", storeDeleted},
	}, lockouts...) {
		if !t.Run(chapter.name, func(t *testing.T) { chapter.tell(&mesh{m.Story, t}) }) {
			return
		}
	}
}

func hangs(m *mesh) {
	register := func(start string) {
		m.Bed.Host(1).WriteFile(m.t, "/root/slow/module.yaml", "module: slow\nrun:\n  units:\n    slow.service:\n      started: true\n      content: |\n"+
			"        [Service]\n        Type=notify\n        NotifyAccess=all\n        TimeoutStartSec=infinity\n        ExecStart="+start+"\n", 0o644)
		m.coordinator("module", "register", "/root/slow")
	}
	register("/bin/sleep 1000")
	m.coordinator("assign", "host2", "slow")
	m.coordinator("push", "host2", "--wait", "0", "--why", "it never comes up")
	m.waitFor("show to say that it is starting", soon, func() (bool, any) {
		doc, _ := m.shown(2)
		for _, mod := range doc.Modules {
			if mod.Name == "slow" && mod.State == "pending" {
				return true, nil
			}
		}
		return false, fmt.Sprintf("%+v", doc)
	})
	m.greets(2, "first") // the other module was not waited for
	register("/bin/sh -c 'systemd-notify --ready; exec sleep 1000'")
	began := clock.Real().Now()
	m.coordinator("push", "host2", "--why", "it does")
	if took := clock.Real().Now().Sub(began); took > 25*time.Second {
		m.t.Errorf("the next push took %v", took)
	}
	m.coordinator("unassign", "host2", "slow")
	m.coordinator("push", "host2", "--why", "no more")
	m.well(2)
}

func altered(m *mesh) {
	m.on(2, "sh", "-c", "for p in /var/lib/mesh-agent/bundles/*/bin/hello; do cp /bin/true $p.new; mv $p.new $p; done; systemctl restart mesh-hello-web || true")
	m.waitFor("the program to be as it was", later, func() (bool, any) {
		out, err := m.Bed.Host(2).RunErr(m.t.Context(), "sh", "-c", "for p in /var/lib/mesh-agent/bundles/*/bin/hello; do cmp $p /bin/true; done")
		return err == nil && out.Exit != 0, out.Stdout
	})
	m.greets(2, "first")
	m.waitFor("show to say so", soon, func() (bool, any) {
		doc, _ := m.shown(2)
		for _, d := range doc.Drift {
			if strings.HasPrefix(d.Thing, "bundle:hello/") && strings.Contains(d.What, "bin/hello") {
				return true, nil
			}
		}
		return false, fmt.Sprintf("%+v", doc.Drift)
	})
	m.waitFor("it to be called well", 2*later, func() (bool, any) {
		doc, exit := m.shown(2)
		return exit == 0, fmt.Sprintf("%+v", doc)
	})
}

func storeDeleted(m *mesh) {
	pid := m.on(2, "systemctl", "show", "-P", "MainPID", "mesh-hello-web.service")
	m.on(2, "sh", "-c", "rm /var/lib/mesh-agent/state.db*")
	m.waitFor("the store to be there again", later, func() (bool, any) {
		out, err := m.Bed.Host(2).RunErr(m.t.Context(), "test", "-s", "/var/lib/mesh-agent/state.db")
		return err == nil && out.Exit == 0, nil
	})
	m.on(2, "systemctl", "restart", "mesh-agent.service")
	m.well(2)
	if now := m.on(2, "systemctl", "show", "-P", "MainPID", "mesh-hello-web.service"); now != pid {
		m.t.Errorf("the program was restarted: %s, was %s", now, pid)
	}
	waitfor.True(m.t, "the declaration", soon, func() (bool, any) {
		doc, _ := m.shown(2)
		return doc.Declaration.Seq > 0, fmt.Sprintf("%+v", doc.Declaration)
	})
}

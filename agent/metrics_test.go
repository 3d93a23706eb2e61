package agent_test

import (
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"mesh/agent"
	"mesh/shared/controller"
	"mesh/shared/engine"
	"mesh/shared/waitfor"
)

// OPS-4: metrics and health on loopback, where a flag says so.
func TestMetrics(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	address := l.Addr().String()
	must(t, l.Close())
	r := newRig(t)
	r.change = func(c *agent.Config, _ *agent.Machine) { c.Metrics = address }
	r.start()
	r.push(r.sign(3, mod("notes", "one", "web")))
	r.applied(3)
	must(t, os.WriteFile(r.root("/etc/notes.conf"), []byte("by hand"), 0o644))
	_, err = ask[engine.ApplyAnswer](r, r.bus.Connect(t, "operator-ada"), engine.ApplyNow, controller.Nothing{})
	must(t, err)
	client := &http.Client{Timeout: soon, Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(path string) string {
		t.Helper()
		var text string
		waitfor.True(t, path, soon, func() (bool, any) {
			resp, err := client.Get("http://" + address + path)
			if err != nil {
				return false, err
			}
			b, err := io.ReadAll(resp.Body)
			must(t, resp.Body.Close())
			text = string(b)
			return err == nil && resp.StatusCode == http.StatusOK, text
		})
		return text
	}
	text := get("/metrics")
	for _, want := range []string{
		"mesh_bus_up 1", "mesh_declaration_seq 3", `mesh_declaration_outcome{outcome="applied"} 1`, `mesh_declaration_outcome{outcome="refused"} 0`, "mesh_apply_steps_total ",
		"mesh_drift_total 1", "mesh_outbox_messages 0", `mesh_module_running{module="notes",build="build-1",state="running"} 1`, `mesh_module_restarts{module="notes"} 0`,
		`mesh_verb_asks_total{seat="node-engine",verb="apply-now"} 1`, "process_resident_memory_bytes ", "mesh_free_disk_bytes ", `node="n1"`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	if got := get("/healthz"); got != "well\n" {
		t.Errorf("health: %q", got)
	}
	r.stop()
	if _, err := client.Get("http://" + address + "/healthz"); err == nil {
		t.Error("it is served after the end")
	}
}

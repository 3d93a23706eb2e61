package coordinator_test

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"mesh/shared/waitfor"
)

// OPS-4: metrics and health on loopback, where a flag says so.
func TestMetrics(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := newMesh(t)
	if m.metrics = l.Addr().String(); l.Close() != nil {
		t.Fatal("the port is not free")
	}
	m.serve(t)
	invite(t, m.client(t, m.operator), "db1")
	client := &http.Client{Timeout: soon, Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(path string) string {
		t.Helper()
		var text string
		waitfor.True(t, path, soon, func() (bool, any) {
			resp, err := client.Get("http://" + m.metrics + path)
			if err != nil {
				return false, err
			}
			b, err := io.ReadAll(resp.Body)
			text = string(b)
			return err == nil && resp.Body.Close() == nil && resp.StatusCode == http.StatusOK, text
		})
		return text
	}
	text := get("/metrics")
	for _, want := range []string{
		`mesh_coordinator_info{version="0.0.0-test",`, "mesh_well 1", `mesh_nodes{state="silent"} 0`, "mesh_operators 1", "mesh_bus_connections 2", "mesh_bus_streams ", "mesh_bus_stored_bytes ", "mesh_records_bytes ", "process_resident_memory_bytes ",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	if got := get("/healthz"); got != "well\n" {
		t.Errorf("health: %q", got)
	}
}

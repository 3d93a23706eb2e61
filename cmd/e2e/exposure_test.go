package e2e

import (
	"encoding/json"
	"strings"

	"mesh/cmd/e2e/story"
)

// exposed: what is declared, what the kernel lets in and what another machine reaches agree, and each command
// says which rule decides (NET-11, NET-12, NET-14). It stands after ports, with a listener nobody declared.
func exposed(m *mesh) {
	out := m.coordinator("exposure", "host2", "--from", "host3", "--json")
	var x struct {
		From     string
		Exposure struct {
			Filtered bool
			Links    []struct {
				Name  string
				Ports []struct {
					Port, Kernel, By string
					Declared         []string
					Programs         []string
				}
			}
		}
		Reached     map[string]string
		Differences []string
	}
	m.must(json.Unmarshal([]byte(out), &x))
	if x.From != "host3" || !x.Exposure.Filtered || len(x.Exposure.Links) == 0 || len(x.Differences) != 0 {
		m.t.Fatalf("exposure says %s", out)
	}
	l := x.Exposure.Links[0]
	kernel := map[string]string{}
	for _, p := range l.Ports {
		kernel[p.Port] = p.Kernel
		if p.Port == story.HelloPort+"/tcp" && (len(p.Declared) != 1 || len(p.Programs) == 0 || !strings.Contains(p.By, "hello: 8080/tcp from anywhere")) {
			m.t.Errorf("the declared port: %+v", p)
		}
	}
	if kernel[story.HelloPort+"/tcp"] != "open" || kernel[story.ClosedPort+"/tcp"] != "refused" {
		m.t.Errorf("the kernel is said to do %v", kernel)
	}
	if x.Reached[l.Name+" "+story.HelloPort+"/tcp"] != "yes" || x.Reached[l.Name+" "+story.ClosedPort+"/tcp ip"] != "no answer" { // that one listens on IPv4 only
		m.t.Errorf("host3 is said to reach %v", x.Reached)
	}
	for _, command := range [][]string{{"why", "tcp", story.HelloPort}, {"show", "exposure"}, {"show", "firewall"}} {
		if out := m.on(2, append([]string{"mesh-agent"}, command...)...); !strings.Contains(out, "hello: 8080/tcp from anywhere") {
			m.t.Errorf("%v says\n%s", command, out)
		}
	}
	why, err := m.Bed.Host(2).RunErr(m.t.Context(), "mesh-agent", "why", "tcp", story.ClosedPort)
	if m.must(err); why.Exit != 1 || !strings.Contains(why.Stdout, "refused by mesh, for nothing declares it") {
		m.t.Errorf("why of a closed port: exit %d\n%s", why.Exit, why.Stdout)
	}
	if out := m.coordinator("bans", "host2"); !strings.Contains(out, "bans nobody") {
		m.t.Errorf("bans says\n%s", out)
	}
}

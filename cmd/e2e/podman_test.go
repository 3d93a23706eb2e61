package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"mesh/cmd/e2e/story"
	"mesh/shared/clock"
	"mesh/testbus/hosts"
)

// stranger is a static server that somebody runs with podman on host 2, beside mesh: port 80 of it is published
// as story.HelloPort, over both families.
type stranger struct{ *mesh }

const (
	strangerFile = "FROM scratch\nCOPY hello /hello\nCOPY hello.conf /etc/hello.conf\nENTRYPOINT [\"/hello\", \"serve\", \"/etc/hello.conf\"]\n"
	strangerText = "greeting = a stranger\nnode = a container\nlisten = :80\n"
)

// TestPodmanPorts is NET-4 with the whole agent and real podman: what a container publishes is reached when a rule
// says so and only then, whatever podman does to its rules meanwhile, over IPv4 and IPv6.
func TestPodmanPorts(t *testing.T) {
	m := beginWith(t, 2, hosts.Podman)
	_, err := m.Genesis(t.Context())
	m.must(err)
	line, err := m.Invite(t.Context(), 2)
	m.must(err)
	_, err = m.Enrol(t.Context(), 2, line)
	m.must(err)
	m.coordinator("push", "--all", "--why", "mesh filters")
	h := m.Bed.Host(2)
	h.Copy(t, filepath.Join(m.Source, "docs/examples/hello/dist/bin/hello"), "/root/image/hello", 0o755)
	h.WriteFile(t, "/root/image/hello.conf", strangerText, 0o644)
	h.WriteFile(t, "/root/image/Containerfile", strangerFile, 0o644)
	m.on(2, "podman", "build", "-q", "-t", "localhost/stranger", "/root/image")
	m.on(2, "podman", "network", "create", "--ipv6", "--subnet=10.77.0.0/24", "--subnet=fd00:77::/64", "dual")
	m.on(2, "podman", "run", "-d", "--name", "stranger", "--network", "dual", "-p", "8080:80", "localhost/stranger")
	m.well(2)
	for _, c := range []struct {
		name string
		tell func(*stranger)
	}{
		{"no rule, no answer", publishedUndeclared},
		{"a rule, and podman writes its chains anew", publishedDeclared},
		{"the rule is taken back", publishedWithdrawn},
		{"somebody flushes all rules", publishedFlushed},
	} {
		if !t.Run(c.name, func(t *testing.T) { c.tell(&stranger{&mesh{m.Story, t}}) }) {
			return
		}
	}
}

// asks is what the internet is answered on a port of host 2 at an address, or why it is not.
func (s *stranger) asks(address, port string, bound time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), bound)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: s.Bed.Internet().Dial}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(address, port)+"/", nil)
	s.must(err)
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

func (s *stranger) addresses() []string {
	return []string{s.Bed.Host(2).IPv4(), s.Bed.Host(2).IPv6()}
}

// answers waits for the container to be reached over both families.
func (s *stranger) answers(when string) {
	s.t.Helper()
	for _, address := range s.addresses() {
		s.waitFor("an answer of "+address+" "+when, soon, func() (bool, any) {
			text, err := s.asks(address, story.HelloPort, dropped)
			return err == nil && strings.Contains(text, "a stranger"), err
		})
	}
	s.closed(when, "80") // the port behind it is not open by that
}

// closed fails the test if a port answers over either family.
func (s *stranger) closed(when string, ports ...string) {
	s.t.Helper()
	var wg sync.WaitGroup
	for _, port := range ports {
		for _, address := range s.addresses() {
			wg.Go(func() {
				if text, err := s.asks(address, port, dropped); err == nil {
					s.t.Errorf("%s: port %s of %s answers %q", when, port, address, text)
				}
			})
		}
	}
	wg.Wait()
}

// works waits for the container to answer its own machine: it is the filter alone that keeps others out.
func (s *stranger) works() {
	s.t.Helper()
	s.waitFor("the container to answer its machine", soon, func() (bool, any) {
		out, err := s.Run(s.t.Context(), 2, "curl", "-s", "-m", "2", "http://"+s.Bed.Host(2).IPv4()+":8080/")
		return err == nil && strings.Contains(out, "a stranger"), err
	})
}

const (
	strangerOpen = "admin=22/tcp from anywhere; 8080/tcp from anywhere"
	strangerShut = "admin=22/tcp from anywhere"
)

func publishedUndeclared(s *stranger) {
	s.works()
	s.closed("nothing declares it", story.HelloPort, "80")
	// Nor by the container's own address, to somebody who routes there.
	inside := strings.TrimSpace(s.on(2, "podman", "inspect", "--format", `{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}`, "stranger"))
	s.Bed.Internet().Run(s.t, "ip", "route", "replace", "10.77.0.0/24", "via", s.Bed.Host(2).IPv4())
	if text, err := s.asks(inside, "80", dropped); err == nil {
		s.t.Errorf("the container's own address %s answers %q", inside, text)
	}
}

// rewrite has podman write its chains anew, in the two ways it does.
func (s *stranger) rewrite(then func(when string)) {
	s.on(2, "podman", "network", "reload", "--all")
	s.works()
	then("after podman wrote its chains anew")
	s.on(2, "podman", "restart", "-t", "1", "stranger")
	s.works()
	then("after the container was started anew")
}

func publishedDeclared(s *stranger) {
	s.set(strangerOpen, "the stranger may be reached")
	s.answers("with the rule")
	s.rewrite(s.answers)
	s.well(2)
}

func publishedWithdrawn(s *stranger) {
	s.set(strangerShut, "the stranger may not be reached")
	shut := func(when string) { s.closed(when, story.HelloPort, "80") }
	shut("without the rule")
	s.rewrite(shut)
}

// ours is a module whose container publishes a port, beside the stranger's.
const oursManifest = "module: ours\nrun: {containers: {web: {image: \"%s\", ports: [{container: 80, publish: 8081}]}}}\nfirewall: {allow: [{port: 8081/tcp, from: anywhere}]}\n"

// publishedFlushed: mesh's own table stands through it, mesh's own containers are reached again by themselves, and
// of the others it is said what is broken.
func publishedFlushed(s *stranger) {
	digest := strings.TrimSpace(s.on(2, "podman", "image", "inspect", "--format", "{{.Digest}}", "localhost/stranger"))
	s.Bed.Host(1).WriteFile(s.t, "/root/ours/module.yaml", fmt.Sprintf(oursManifest, "localhost/stranger@"+digest), 0o644)
	s.coordinator("module", "register", "/root/ours")
	s.coordinator("assign", "host2", "ours")
	s.set(strangerOpen, "once more")
	s.answers("with the rule")
	ours := func() (bool, any) {
		text, err := s.asks(s.Bed.Host(2).IPv4(), "8081", dropped)
		return err == nil && strings.Contains(text, "a stranger"), err
	}
	s.waitFor("mesh's own container to answer", later, ours)
	s.well(2)
	for _, flush := range []string{"nft flush ruleset", "iptables -t nat -F; ip6tables -t nat -F"} {
		start := clock.Real().Now()
		s.on(2, "sh", "-c", flush)
		s.waitFor("mesh's own table", time.Second, func() (bool, any) {
			out, err := s.Run(s.t.Context(), 2, "nft", "list", "chain", "inet", "mesh", "input")
			return err == nil && strings.Contains(out, "goto refuse"), out
		})
		if flush != "nft flush ruleset" { // a chain less is noticed at once, rules less within the minute
			s.coordinator("node", "apply-now", "host2")
		}
		s.waitFor("mesh's own container to answer again", soon, ours)
		s.t.Logf("after %q mesh's own container answered again within %v", flush, clock.Real().Now().Sub(start).Round(100*time.Millisecond))
		s.closed("after "+flush, story.HelloPort, story.ClosedPort, "80")
		s.waitFor("the coordinator to say what is broken", soon, func() (bool, any) {
			out, err := s.Bed.Host(1).RunErr(s.t.Context(), "mesh-coordinator", "node", "show", "host2")
			return err == nil && strings.Contains(out.Stdout, "published by container stranger, but podman's rules for it are gone: podman network reload stranger") &&
				!strings.Contains(out.Stdout, "mesh-ours-web"), out.Stdout
		})
		s.on(2, "podman", "network", "reload", "stranger") // as it says
		s.answers("after what was said was done")
		s.coordinator("node", "apply-now", "host2")
		s.well(2)
	}
}

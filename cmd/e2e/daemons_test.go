package e2e

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"mesh/testbus/hosts"
)

// pageManifest is nginx of Debian as a module, with a setting in its configuration.
const pageManifest = `module: page
settings: {greeting: {default: hello}}
run:
  directories: [{path: /etc/page}]
  files:
    - path: /etc/page/nginx.conf
      content: |
        daemon off;
        pid /run/page.pid;
        error_log stderr notice;
        events {}
        http {
          access_log off;
          server { listen 8090; location / { return 200 "${setting:greeting} VERSION\n"; } }
        }
  processes:
    web: {exec: [/usr/sbin/nginx, -c, /etc/page/nginx.conf, -e, stderr]}
firewall: {allow: [{port: 8090/tcp, from: anywhere}]}
`

// keepManifest is redis of Debian as a module that has data.
const keepManifest = `module: keep
run:
  users: {keep: {}}
  directories: [{path: /srv/keep, owner: keep, group: keep, mode: "0700", data: true}]
  processes:
    main:
      exec: [/usr/bin/redis-server, --port, "6390", --dir, /srv/keep, --appendonly, "yes"]
      user: keep
`

// TestDaemons: two programs that nobody here wrote are pushed, answer, are configured anew, upgraded and removed,
// each without the other noticing; data stay until they are named and deleted (APP-11), strays until they are
// pruned; and the machine tells afterwards how it was (NOD-15).
func TestDaemons(t *testing.T) {
	m := beginWith(t, 1, hosts.Daemons)
	m.found()
	host := m.Bed.Host(1)
	register := func(name, text string) {
		t.Helper()
		host.WriteFile(t, "/root/"+name+"/module.yaml", text, 0o644)
		m.coordinator("module", "register", "/root/"+name)
	}
	push := func(why string, more ...string) {
		t.Helper()
		m.coordinator(append([]string{"push", "host1", "--why", why}, more...)...)
	}
	answers := func(want string) {
		t.Helper()
		m.waitFor("nginx to say "+want, soon, func() (bool, any) {
			out, err := host.RunErr(t.Context(), "curl", "-sS", "-m", "2", "http://127.0.0.1:8090/")
			return err == nil && strings.TrimSpace(out.Stdout) == want, out.Stdout + out.Stderr
		})
	}
	pid := func(unit string) string {
		t.Helper()
		return strings.TrimSpace(m.on(1, "systemctl", "show", "-P", "MainPID", unit))
	}
	redis := func(words ...string) string {
		t.Helper()
		return strings.TrimSpace(m.on(1, append([]string{"redis-cli", "-p", "6390"}, words...)...))
	}
	register("page", strings.Replace(pageManifest, "VERSION", "one", 1))
	register("keep", keepManifest)
	m.coordinator("assign", "host1", "page")
	m.coordinator("assign", "host1", "keep")
	push("both")
	answers("hello one")
	m.waitFor("redis", soon, func() (bool, any) {
		out, err := host.RunErr(t.Context(), "redis-cli", "-p", "6390", "set", "k", "v")
		return err == nil && strings.TrimSpace(out.Stdout) == "OK", out.Stdout + out.Stderr
	})
	m.well(1)
	web, db := pid("mesh-page-web.service"), pid("mesh-keep-main.service")

	// A change of one's configuration, and then of its build, restarts that one.
	m.coordinator("assign", "host1", "page", "--set", "greeting=good day")
	push("another greeting")
	answers("good day one")
	register("page", strings.Replace(pageManifest, "VERSION", "two", 1))
	push("an upgrade")
	answers("good day two")
	if now := pid("mesh-page-web.service"); now == web {
		t.Error("nginx was not started with what changed")
	}
	if now := pid("mesh-keep-main.service"); now != db || redis("get", "k") != "v" {
		t.Errorf("redis noticed: it was %s and is %s", db, now)
	}
	push("nothing")
	if now := pid("mesh-keep-main.service"); now != db {
		t.Error("a push of nothing restarted redis")
	}

	m.ends(redis)
	answers("good day two")
	m.strays(push)
	m.remembers()
}

// ends takes redis off, which leaves its data; once more with its data, which are named before.
func (m *mesh) ends(redis func(...string) string) {
	m.t.Helper()
	host := m.Bed.Host(1)
	m.on(1, "sh", "-c", "mkdir -p /srv/precious && echo x > /srv/precious/x && ln -s /srv/precious /srv/keep/link")
	m.coordinator("unassign", "host1", "keep")
	m.coordinator("push", "host1", "--why", "redis ended")
	m.on(1, "sh", "-c", "! systemctl is-active mesh-keep-main.service && test -d /srv/keep/appendonlydir && test -L /srv/keep/link")
	m.coordinator("assign", "host1", "keep")
	m.coordinator("push", "host1", "--why", "and is back")
	m.waitFor("redis with its data", soon, func() (bool, any) {
		out, err := host.RunErr(m.t.Context(), "redis-cli", "-p", "6390", "get", "k")
		return err == nil && strings.TrimSpace(out.Stdout) == "v", out.Stdout + out.Stderr
	})
	m.refused(1, "there is no terminal", "mesh-coordinator", "unassign", "host1", "keep", "--delete-data", "--why", "gone for good")
	out, err := host.RunErr(m.t.Context(), "mesh-coordinator", "unassign", "host1", "keep", "--delete-data", "--yes", "--why", "gone for good")
	m.must(err)
	if out.Exit != 0 || !strings.Contains(out.Stderr, "dir:/srv/keep") || !strings.Contains(out.Stderr, "files") {
		m.t.Errorf("the data were not named: %d %s%s", out.Exit, out.Stdout, out.Stderr)
	}
	if said := m.coordinator("plan", "host1"); !strings.Contains(said, "delete dir:/srv/keep: for good") {
		m.t.Errorf("the plan does not say it:\n%s", said)
	}
	m.coordinator("push", "host1", "--why", "redis ended for good")
	m.on(1, "sh", "-c", "! test -e /srv/keep && test -e /srv/precious/x")
}

// strays: a unit with mesh's mark that nobody knows is named, and goes when it is pruned.
func (m *mesh) strays(push func(why string, more ...string)) {
	m.t.Helper()
	m.on(1, "sh", "-c", "cd /etc/systemd/system && cp mesh-page-web.service mesh-left-over.service && systemctl daemon-reload")
	m.coordinator("node", "apply-now", "host1")
	m.waitFor("the stray to be named", later, func() (bool, any) {
		out, err := m.Coordinator(m.t.Context(), "node", "show", "host1")
		return err == nil && strings.Contains(out, "unit:mesh-left-over.service"), out
	})
	push("nothing of it")
	m.on(1, "test", "-e", "/etc/systemd/system/mesh-left-over.service")
	push("left over", "--prune")
	m.on(1, "sh", "-c", "! test -e /etc/systemd/system/mesh-left-over.service && test -e /etc/systemd/system/mesh-page-web.service")
}

// remembers: with the agent down, the machine says how it was a moment before and what changed.
func (m *mesh) remembers() {
	m.t.Helper()
	host := m.Bed.Host(1)
	m.on(1, "systemctl", "stop", "mesh-agent.service")
	defer m.on(1, "systemctl", "start", "mesh-agent.service")
	out, err := host.RunErr(m.t.Context(), "mesh-agent", "diff", "1h", "--json")
	if err == nil && out.Exit == 0 {
		m.t.Error("an hour ago there was no mesh, and it was told of")
	}
	// Before the first declaration, which the history begins with.
	now := m.on(1, "mesh-agent", "show", "history", "--json")
	var past struct {
		Applies []struct{ At time.Time }
	}
	m.must(json.Unmarshal([]byte(now), &past))
	first := past.Applies[len(past.Applies)-1].At.Add(2 * time.Second).UTC().Format(time.RFC3339)
	said := m.on(1, "mesh-agent", "diff", first)
	for _, want := range []string{"- module keep", "declared", "found", "in between"} {
		if !strings.Contains(said, want) {
			m.t.Errorf("the diff lacks %q:\n%s", want, said)
		}
	}
	out, err = host.RunErr(m.t.Context(), "mesh-agent", "show", "--at", first)
	m.must(err)
	if !strings.Contains(out.Stdout, "keep") || !strings.Contains(out.Stdout, "page") {
		m.t.Errorf("it was otherwise:\n%s%s", out.Stdout, out.Stderr)
	}
}

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"mesh/testbus/hosts"
)

// frontManifest is a web server of Debian's as a module: what it is asked at, where it answers, and what.
const frontManifest = `module: front
run:
  directories: [{path: /etc/front}]
  files:
    - path: /etc/front/nginx.conf
      content: |
        daemon off;
        pid /run/front.pid;
        error_log stderr notice;
        events {}
        http {
          access_log off;
          server {
            listen %d;
            location / { return %d "%s\n"; }
          }
        }
  processes:
    web:
      exec: [/usr/sbin/nginx, -c, /etc/front/nginx.conf, -e, stderr]
      health: {http: "http://127.0.0.1:8088/healthz", every: 1s, within: 6s}
firewall: {allow: [{port: 8088/tcp, from: anywhere}]}
`

// storeManifest is a database of Debian's, asked by its own program.
const storeManifest = `module: store
run:
  processes:
    main:
      exec: [/usr/bin/redis-server, --save, "", --port, "%s"]
      directory: /tmp
      health: {command: [/bin/sh, -c, "test $(/usr/bin/redis-cli -p 6399 ping) = PONG"], every: 1s, timeout: 1s, within: 6s, retries: 2}
`

// TestHealth is APP-7 with nginx and redis of Debian: what does not get well gives way to what was, whatever
// becomes of the agent meanwhile; it is said with its last words; what gets unhealthy later is said both ways.
func TestHealth(t *testing.T) {
	m := beginWith(t, 1, hosts.Daemons)
	m.found()
	host := m.Bed.Host(1)
	module := func(name, text string) {
		t.Helper()
		host.WriteFile(t, "/root/"+name+"/module.yaml", text, 0o644)
		m.coordinator("module", "register", "/root/"+name)
	}
	front := func(port, status int, says string) {
		t.Helper()
		module("front", fmt.Sprintf(frontManifest, port, status, says))
	}
	answers := func(want string) {
		t.Helper()
		m.waitFor("the web server to say "+want, soon, func() (bool, any) {
			out, err := host.RunErr(t.Context(), "curl", "-sS", "-m", "2", "http://127.0.0.1:8088/")
			return err == nil && strings.TrimSpace(out.Stdout) == want, out.Stdout + out.Stderr
		})
	}
	says := func(what string, words ...string) string {
		t.Helper()
		var last string
		m.waitFor(what, later, func() (bool, any) {
			out, err := m.Coordinator(t.Context(), "node", "show", "host1")
			last = out
			for _, w := range words {
				if !strings.Contains(out, w) {
					return false, fmt.Sprintf("%v\n%s", err, out)
				}
			}
			return err == nil, nil
		})
		return last
	}
	fails := func(with, why string) {
		t.Helper()
		out, err := host.RunErr(t.Context(), "mesh-coordinator", "push", "host1", "--why", why)
		m.must(err)
		if out.Exit != 1 || !strings.Contains(out.Stdout+out.Stderr, with) {
			t.Errorf("the push ended with %d: %s%s", out.Exit, out.Stdout, out.Stderr)
		}
	}
	front(8088, 200, "one")
	module("store", fmt.Sprintf(storeManifest, "6399"))
	m.coordinator("assign", "host1", "front")
	m.coordinator("assign", "host1", "store")
	m.coordinator("push", "host1", "--why", "the first of both")
	answers("one")
	m.well(1)

	// It answers, and says that it is not well. The push waits and hears it.
	front(8088, 503, "two")
	fails("rolled back to build-", "a bad one")
	answers("one")
	out := says("the failure to be said", "did not get well within 6s: mesh-front-web: it answers 503", "rolled back to build-", "what front said last", "start worker process")
	if !strings.Contains(m.on(1, "cat", "/etc/front/nginx.conf"), "one") {
		t.Errorf("the file is not as it was:\n%s", out)
	}
	pid := strings.TrimSpace(m.on(1, "systemctl", "show", "-P", "MainPID", "mesh-front-web.service"))

	// The agent is killed while a new one is on trial, and while it goes back.
	front(8089, 200, "three")
	m.coordinator("push", "host1", "--wait", "0", "--why", "at another port")
	m.waitFor("it to be on trial", soon, func() (bool, any) {
		out, err := host.RunErr(t.Context(), "curl", "-sS", "-m", "2", "http://127.0.0.1:8089/")
		return err == nil && strings.TrimSpace(out.Stdout) == "three", out.Stdout + out.Stderr
	})
	m.on(1, "systemctl", "kill", "-s", "KILL", "mesh-agent.service")
	m.waitFor("it to go back", later, func() (bool, any) {
		out, err := host.RunErr(t.Context(), "grep", "-c", "listen 8088", "/etc/front/nginx.conf")
		return err == nil && strings.TrimSpace(out.Stdout) == "1", out.Stdout
	})
	m.on(1, "systemctl", "kill", "-s", "KILL", "mesh-agent.service")
	answers("one")
	says("that it went back", "did not get well within 6s: mesh-front-web: connection refused", "rolled back to build-")
	if now := strings.TrimSpace(m.on(1, "systemctl", "show", "-P", "MainPID", "mesh-front-web.service")); now == pid || now == "0" {
		t.Errorf("its process is %s, was %s", now, pid)
	}

	// One that is right, beside a store that cannot start at all.
	front(8088, 200, "four")
	module("store", fmt.Sprintf(storeManifest, "no-port"))
	fails("module store", "a good one and a bad one")
	answers("four")
	m.on(1, "redis-cli", "-p", "6399", "ping")
	out = says("both", "rolled back to build-", "what store said last")
	if strings.Contains(out, "what front said last") {
		t.Errorf("front is well, and yet:\n%s", out)
	}
	module("store", fmt.Sprintf(storeManifest, "6399"))
	m.coordinator("push", "host1", "--why", "a good one")
	m.well(1)

	// Somebody stops the database's answers, not its process.
	m.on(1, "systemctl", "kill", "-s", "STOP", "mesh-store-main.service")
	says("that the store is unhealthy", "unhealthy", "mesh-store-main: ")
	m.on(1, "systemctl", "kill", "-s", "CONT", "mesh-store-main.service")
	m.waitFor("the store to be well", later, func() (bool, any) {
		out, err := m.Coordinator(t.Context(), "node", "show", "host1")
		return err == nil && !strings.Contains(out, "unhealthy"), out
	})
	m.well(1)
	if out := m.on(1, "sh", "-c", "ps -ef | grep -c '[r]edis-cli' || true"); strings.TrimSpace(out) != "0" {
		t.Errorf("%s of what asked are left", out)
	}
	if out := m.on(1, "sh", "-c", "journalctl -q --no-pager --since=-10s --grep=mesh-engine_health || true"); strings.TrimSpace(out) != "" && strings.Contains(out, "Finished") {
		t.Errorf("each ask is in the journal:\n%s", out)
	}
}

package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"mesh/coordinator/client"
	"mesh/shared/engine"
	"mesh/shared/report"
)

func anExposure() exposed {
	return exposed{Node: "db1", From: "web1", Exposure: report.Exposure{Filtered: true, More: 3, Links: []report.ExposedLink{
		{Name: "eth0", Addresses: []string{"192.0.2.1", "2001:db8::1"}, Ports: []report.ExposedPort{
			{Port: "443/tcp", Family: "ip", Declared: []string{"web: 443/tcp from anywhere"}, Kernel: report.PortRefused, By: "the policy drop of ip filter INPUT, ufw's", Difference: "declared, but refused by ufw"},
			{Port: "22/tcp", Declared: []string{"admin: 22/tcp from anywhere"}, Kernel: report.PortOpen, By: "mesh: admin: 22/tcp from anywhere", Programs: []string{"sshd (612)"}},
			{Port: "8080/tcp", Family: "ip", Kernel: report.PortOpen, To: "172.17.0.2:80"},
			{Port: "3000/tcp", Kernel: report.PortRefused, Programs: []string{"grafana (9)"}},
			{Port: "5353/udp", Kernel: report.PortRefused},
		}},
		{Name: "wg0", Tunnel: true, Addresses: []string{"10.9.0.1"}, Ports: []report.ExposedPort{{Port: "9000-9010/tcp", Kernel: report.PortOpen}}},
	}}}
}

// NET-14: what another machine found beside what the machine says, and where they do not agree.
func TestExposureIsComparedWithWhatIsReached(t *testing.T) {
	x := anExposure()
	targets, keys := x.targets()
	want := []string{"192.0.2.1:443", "192.0.2.1:22", "[2001:db8::1]:22", "192.0.2.1:8080", "192.0.2.1:3000", "[2001:db8::1]:3000", "10.9.0.1:9000"}
	if !slices.Equal(targets, want) || len(keys) != len(targets) {
		t.Errorf("targets %q, want %q", targets, want)
	}
	x.Reached = map[string]string{"eth0 443/tcp ip": "no answer", "eth0 22/tcp": "yes", "eth0 8080/tcp ip": "no answer", "eth0 3000/tcp": "yes", "wg0 9000-9010/tcp": "refused at once"}
	x.Differences = slices.Concat(x.Exposure.Differences(), x.disagreements())
	var b strings.Builder
	if err := writeExposure(&b, x); err != nil {
		t.Fatal(err)
	}
	for _, words := range []string{"REACHED FROM WEB1", "! 443/tcp over eth0: declared, but refused by ufw", "! 3000/tcp over eth0: web1 reaches it, although its rules refuse it",
		"! 8080/tcp over eth0: open there, and web1 does not reach it (no answer)", "wg0 (tunnel), 10.9.0.1", "and 3 more ports", "sshd (612)"} {
		if !strings.Contains(b.String(), words) {
			t.Errorf("no %q in\n%s", words, b.String())
		}
	}
	if len(x.Differences) != 3 {
		t.Errorf("%q", x.Differences) // what nobody listens on is no difference
	}
}

// What a hostile machine answers does not steer the terminal.
func TestAnswersAboutTheOutsideAreCleaned(t *testing.T) {
	x := anExposure()
	x.Exposure.Links[0].Ports[0].By = "\x1b[2Jowned"
	x.Exposure.Links[0].Ports[1].Programs = []string{"sshd\r\x1b]0;owned\x07"}
	a := engine.BannedAnswer{Bans: []engine.Ban{{Address: "1.2.3.4\x1b[1A"}}}
	report.Clean(&x.Exposure)
	report.Clean(&a)
	var b strings.Builder
	if err := writeExposure(&b, x); err != nil {
		t.Fatal(err)
	}
	if err := writeBans(&b, a, time.Unix(0, 0)); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(b.String(), "\x1b\x07\r") {
		t.Errorf("%q", b.String())
	}
}

// NET-11.
func TestBansOfANode(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	var b strings.Builder
	a := engine.BannedAnswer{Node: "db1", More: 2, Bans: []engine.Ban{{Address: "198.51.100.7", Tool: "fail2ban", Jail: "sshd", SinceMS: now.Add(-time.Minute).UnixMilli(), UntilMS: now.Add(time.Hour).UnixMilli(), Where: "inet f2b-table addr-set-sshd"},
		{Address: "192.0.2.0/24", Tool: "crowdsec", Where: "ipset crowdsec-blacklists", Idle: "no rule asks it"}}}
	if err := writeBans(&b, a, now); err != nil {
		t.Fatal(err)
	}
	for _, words := range []string{"198.51.100.7", "1m0s ago", "1h0m0s", "refuses nobody: no rule asks it", "and 2 more"} {
		if !strings.Contains(b.String(), words) {
			t.Errorf("no %q in\n%s", words, b.String())
		}
	}
	b.Reset()
	if err := writeBans(&b, engine.BannedAnswer{Node: "db1", Jails: []engine.Jail{{Tool: "fail2ban", Bans: 3}}}, now); err != nil || b.String() != "db1 bans nobody of those asked for; it bans in 1 jail\n" {
		t.Errorf("%q, %v", b.String(), err)
	}
}

func TestTheOutsideOfANodeThatCannotAnswer(t *testing.T) {
	state, cred := mesh(t)
	serve(t, state)
	as := &app{places: client.Places{Env: cred}}
	for _, args := range [][]string{{"exposure", "db9"}, {"bans", "db9"}, {"exposure", "db.9"}, {"bans", "db.9"}} {
		if out, said, code := try(t, as, args...); code != exitNotWell || out != "" || !strings.HasPrefix(said, "refused: ") || strings.Count(said, "\n") != 2 {
			t.Errorf("%v: exit %d, %q, %q", args, code, out, said)
		}
	}
}

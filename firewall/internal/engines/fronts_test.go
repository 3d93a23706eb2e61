package engines

import (
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"mesh/firewall/evaluate"
	"mesh/firewall/foreign"
	"mesh/shared/waitfor"
	"mesh/testbus/hosts"
	"mesh/testbus/netlab"
)

// NET-8, NET-12: front ends of Debian, for real: whose their rules are, and that what is said of a packet is
// what becomes of it.
func TestFrontEnds(t *testing.T) {
	lab := netlab.New(t)
	ports := []string{"22", "80", "443", "3000", "8080", "9000"}
	for _, port := range ports {
		lab.Host.Serve("tcp", "[::]:"+port)
	}
	for from, to := range map[*netlab.Space]string{lab.Outside: netlab.HostOutside6, lab.Peer: netlab.HostTunnel6} {
		waitfor.True(t, "IPv6 works", soon, func() (bool, any) {
			err := from.Ask("tcp", net.JoinHostPort(to, "22"), never)
			return err == nil, err
		})
	}
	b := newBox(t, lab.Host, hosts.Fronts)
	for _, tt := range []struct{ name, on, off string }{
		{"ufw", "ufw --force enable && ufw allow 22/tcp && ufw limit 80/tcp && ufw deny 443/tcp && ufw reject 3000/tcp && ufw allow from 203.0.113.0/28 to any port 8080 proto tcp", "ufw --force disable"},
		{"firewalld", `mkdir -p /run/dbus && dbus-daemon --system --fork && (firewalld --nofork >/tmp/fw.log 2>&1 &)
			for i in $(seq 200); do firewall-cmd --state >/dev/null 2>&1 && break; sleep 0.1; done
			firewall-cmd --add-port=80/tcp && firewall-cmd --add-rich-rule='rule family=ipv4 source address=203.0.113.0/28 port port=8080 protocol=tcp accept' && firewall-cmd --add-rich-rule='rule port port=3000 protocol=tcp reject' && firewall-cmd --zone=trusted --add-interface=mesh0`, ""},
	} {
		b.run(tt.on)
		refuses(t, lab, tt.name)
		agrees(t, lab, tt.name, ports)
		if tt.off != "" {
			b.run(tt.off)
		}
	}
}

// refuses says whether front refuses something, and nobody else does.
func refuses(t *testing.T, lab *netlab.Lab, front string) {
	t.Helper()
	var rs foreign.Ruleset
	var err error
	lab.Host.Do(func() { rs, err = foreign.Read(t.Context()) })
	if err != nil {
		t.Fatal(err)
	}
	r := foreign.Judge(rs)
	if len(r.Refusing) == 0 || len(r.NotUnderstood) > 0 {
		t.Errorf("%s: nothing refuses, or %v", front, r.NotUnderstood)
	}
	for _, c := range r.Refusing {
		if strings.Join(c.Owner, " ") != front {
			t.Errorf("%s: %s %s %s is said to be of %v", front, c.Family, c.Table, c.Chain, c.Owner)
		}
	}
}

// agrees tries every port from outside and from the tunnel.
func agrees(t *testing.T, lab *netlab.Lab, front string, ports []string) {
	t.Helper()
	var rs foreign.Ruleset
	var w evaluate.World
	var err error
	lab.Host.Do(func() {
		if rs, err = foreign.ReadAll(t.Context()); err == nil {
			w, err = evaluate.ReadWorld(t.Context())
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	e := evaluate.New(&rs, w)
	var wait sync.WaitGroup
	said := map[evaluate.Verdict]int{}
	for _, way := range []struct {
		from             *netlab.Space
		in, source, dest string
	}{
		{lab.Outside, netlab.Uplink, netlab.Outside4, netlab.HostOutside4}, {lab.Outside, netlab.Uplink, netlab.Outside6, netlab.HostOutside6},
		{lab.Peer, netlab.Tunnel, netlab.Peer4, netlab.HostTunnel4}, {lab.Peer, netlab.Tunnel, netlab.Peer6, netlab.HostTunnel6},
	} {
		for _, port := range ports {
			at := netip.MustParseAddrPort(net.JoinHostPort(way.dest, port))
			a := e.Evaluate(evaluate.Packet{In: way.in, Source: netip.MustParseAddr(way.source), Destination: at.Addr(), Protocol: 6, Port: at.Port()})
			said[a.Verdict]++
			wait.Go(func() {
				limit := never
				if a.Verdict == evaluate.Accepted {
					limit = 5 * time.Second
				}
				if reached := way.from.Ask("tcp", at.String(), limit) == nil; reached != (a.Verdict == evaluate.Accepted) {
					t.Errorf("%s: %s from %s: said %s, reached %v: %+v", front, at, way.source, a.Verdict, reached, a)
				}
			})
		}
	}
	wait.Wait()
	if said[evaluate.Accepted] == 0 || said[evaluate.Refused] == 0 || said[evaluate.Depends] > 0 {
		t.Errorf("%s: %v", front, said)
	}
}

// NET-11: what fail2ban of Debian bans, by each of its actions.
func TestFail2ban(t *testing.T) {
	lab := netlab.New(t)
	b := newBox(t, lab.Host, hosts.Fronts)
	b.run("ufw --force enable")
	b.run(`touch /tmp/seen.log && rm -f /etc/fail2ban/jail.d/* && cat > /etc/fail2ban/jail.local <<'E'
[DEFAULT]
backend = polling
logpath = /tmp/seen.log
filter = sshd
[plain]
enabled = true
port = 22
[tables]
enabled = true
banaction = nftables-multiport
port = 443
[front]
enabled = true
banaction = ufw
E
mkdir -p /run/fail2ban && fail2ban-server -b >/tmp/f2b 2>&1; for i in $(seq 100); do fail2ban-client ping >/dev/null 2>&1 && break; sleep 0.1; done
n=0; for j in plain tables front; do n=$((n+1)); fail2ban-client set $j banip 198.51.100.$n; fail2ban-client set $j banip 2001:db8:bad::$n; done; true`)
	waitfor.True(t, "all are banned", soon, func() (bool, any) {
		var rs foreign.Ruleset
		var err error
		lab.Host.Do(func() { rs, err = foreign.ReadAll(t.Context()) })
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]bool{}
		var all []string
		for _, x := range foreign.Bans(rs) {
			all = append(all, x.String()+" in "+x.Where+" "+x.Idle)
			got[x.Addresses()+" "+x.Jail] = x.Owner == "fail2ban" && x.Idle == ""
		}
		for _, want := range []string{"198.51.100.1 plain", "2001:db8:bad::1 plain", "198.51.100.2 tables", "2001:db8:bad::2 tables", "198.51.100.3 ", "2001:db8:bad::3 "} {
			if !got[want] {
				return false, want + " is not among " + strings.Join(all, "\n")
			}
		}
		return true, nil
	})
}

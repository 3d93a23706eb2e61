package foreign_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"mesh/firewall/foreign"
	"mesh/testbus/netlab"
)

// NET-11: what fail2ban, crowdsec, sshguard and psad ban, in all the ways they write it.
func TestBans(t *testing.T) {
	s := netlab.NewSpace(t, "host")
	s.Run(`table inet f2b-table {
	set addr-set-sshd {
		type ipv4_addr
		elements = { 198.51.100.7, 192.0.2.1 }
	}
	set addr6-set-sshd {
		type ipv6_addr
		elements = { 2001:db8::7 }
	}
	set addr-set-idle {
		type ipv4_addr
		elements = { 192.0.2.99 }
	}
	chain f2b-chain {
		type filter hook input priority filter - 1; policy accept;
		tcp dport 22 ip saddr @addr-set-sshd reject
		tcp dport 22 ip6 saddr @addr6-set-sshd reject
	}
}
table ip sshguard {
	set attackers {
		type ipv4_addr
		flags interval
		elements = { 203.0.113.0/24, 198.51.100.1-198.51.100.5 }
	}
	chain blacklist {
		type filter hook input priority filter - 10; policy accept;
		ip saddr @attackers drop
	}
}
table ip crowdsec {
	set crowdsec-blacklists {
		type ipv4_addr
		flags timeout
		elements = { 198.51.100.200 timeout 1h }
	}
	chain crowdsec-chain {
		type filter hook input priority filter - 10; policy accept;
		ip saddr @crowdsec-blacklists drop
	}
}
table ip other {
	set allowed {
		type ipv4_addr
		elements = { 192.0.2.50 }
	}
}
`, "nft", "-f", "-")
	s.Run("create f2b-nginx hash:net timeout 600\nadd f2b-nginx 198.51.100.64/26\ncreate f2b-nginx6 hash:ip family inet6 timeout 600\nadd f2b-nginx6 2001:db8::99\n", "ipset", "restore")
	s.Run(`*filter
:INPUT ACCEPT [0:0]
:f2b-web - [0:0]
:f2b-web-log - [0:0]
:f2b-unused - [0:0]
:PSAD_BLOCK_INPUT - [0:0]
:sshguard - [0:0]
:ufw-user-input - [0:0]
-A INPUT -p tcp -m multiport --dports 80 -j f2b-web
-A INPUT -m set --match-set f2b-nginx src -j REJECT
-A INPUT -j PSAD_BLOCK_INPUT
-A INPUT -j ufw-user-input
-A f2b-web -s 198.51.100.8/32 -j REJECT --reject-with icmp-port-unreachable
-A f2b-web -s 10.0.0.0/8 -j REJECT --reject-with icmp-port-unreachable
-A f2b-web -s 198.51.100.32/27 -j REJECT --reject-with icmp-port-unreachable
-A f2b-web -s 198.51.100.77/32 -j f2b-web-log
-A f2b-web -s 198.51.100.78/32 -j f2b-unused
-A f2b-web -j RETURN
-A f2b-web-log -m limit --limit 6/min -j LOG --log-prefix "f2b-web:DROP "
-A f2b-web-log -j DROP
-A PSAD_BLOCK_INPUT -s 198.51.100.3/32 -j DROP
-A sshguard -s 198.51.100.44/32 -j DROP
-A ufw-user-input -s 198.51.100.9/32 -j REJECT --reject-with icmp-port-unreachable
-A ufw-user-input -s 192.0.2.0/24 -p tcp -m tcp --dport 22 -j ACCEPT
COMMIT
`, "iptables-nft-restore")
	s.Run("*filter\n:INPUT ACCEPT [0:0]\n:f2b-sshd - [0:0]\n-A INPUT -j f2b-sshd\n-A INPUT -m set --match-set f2b-nginx6 src -j REJECT\n-A f2b-sshd -s 2001:db8:bad::/48 -j DROP\nCOMMIT\n", "ip6tables-nft-restore")
	s.Run("route add unreachable 198.51.100.80\nroute add blackhole 198.51.101.0/24\nroute add blackhole 2001:db8::80\n", "ip", "-batch", "-")
	var rs foreign.Ruleset
	var err error
	s.Do(func() { rs, err = foreign.ReadAll(t.Context()) })
	if err != nil {
		t.Fatal(err)
	}
	bans := foreign.Bans(rs)
	var got []string
	for _, b := range bans {
		line := fmt.Sprintf("%v in %s", b, b.Where)
		if b.Idle != "" {
			line += ": " + b.Idle
		}
		got = append(got, line)
		if (b.Owner == "crowdsec" || b.Jail == "nginx") && b.LeftMS == 0 || b.Owner == "crowdsec" && b.LeftMS+b.AgeMS > 3600_000 {
			t.Errorf("%v stays for %d ms, and has for %d", b, b.LeftMS, b.AgeMS)
		}
	}
	slices.Sort(got)
	want := strings.Split(strings.TrimSpace(`
10.0.0.0/8 by fail2ban (web) in ip filter f2b-web
192.0.2.1 by fail2ban (sshd) in inet f2b-table addr-set-sshd
192.0.2.99 by fail2ban (idle) in inet f2b-table addr-set-idle: no rule that packets come to asks the set
198.51.100.1-198.51.100.5 by sshguard in ip sshguard attackers
198.51.100.200 by crowdsec in ip crowdsec crowdsec-blacklists
198.51.100.3 by psad in ip filter PSAD_BLOCK_INPUT
198.51.100.32/27 by fail2ban (web) in ip filter f2b-web
198.51.100.44 by sshguard in ip filter sshguard: no base chain leads to it
198.51.100.64/26 by fail2ban (nginx) in ipset f2b-nginx
2001:db8::99 by fail2ban (nginx) in ipset f2b-nginx6
198.51.100.7 by fail2ban (sshd) in inet f2b-table addr-set-sshd
198.51.100.77 by fail2ban (web) in ip filter f2b-web
198.51.100.78 by fail2ban (web) in ip filter f2b-web: no base chain leads to it
198.51.100.80 by route in unreachable route
2001:db8::80 by route in blackhole route
198.51.100.8 by fail2ban (web) in ip filter f2b-web
198.51.100.9 by fail2ban in ip filter ufw-user-input
2001:db8::7 by fail2ban (sshd) in inet f2b-table addr6-set-sshd
2001:db8:bad::/48 by fail2ban (sshd) in ip6 filter f2b-sshd
203.0.113.0/24 by sshguard in ip sshguard attackers`), "\n")
	slices.Sort(want)
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("banned (-), read (+):\n%s", diff)
	}
	covers := 0
	for _, b := range bans {
		if b.Covers(netip.MustParseAddr("198.51.100.40")) {
			covers++
		}
	}
	if covers != 1 {
		t.Errorf("%d bans cover 198.51.100.40", covers)
	}
}

// Bans of legacy xtables are read from the words of iptables-save.
func TestBansOfLegacyXTables(t *testing.T) {
	tables, err := foreign.ParseSaveAll("ip", strings.NewReader("*filter\n:INPUT ACCEPT [0:0]\n:f2b-sshd - [0:0]\n-A INPUT -j f2b-sshd\n-A f2b-sshd -s 198.51.100.7/32 -j REJECT\n-A f2b-sshd ! -s 10.0.0.0/8 -j DROP\n-A f2b-sshd -s 198.51.100.9/32 -j ACCEPT\nCOMMIT\n"))
	if err != nil {
		t.Fatal(err)
	}
	bans := foreign.Bans(foreign.Ruleset{Legacy: tables})
	if len(bans) != 1 || bans[0].String() != "198.51.100.7 by fail2ban (sshd)" || bans[0].Where != "legacy ip filter f2b-sshd" || bans[0].Idle != "" {
		t.Errorf("%+v", bans)
	}
}

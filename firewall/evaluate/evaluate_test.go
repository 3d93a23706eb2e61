package evaluate_test

import (
	"net/netip"
	"strings"
	"testing"

	"mesh/firewall/evaluate"
	"mesh/firewall/foreign"
	"mesh/testbus/netlab"
)

const tcp, udp, icmp = 6, 17, 1

// world is a machine with an uplink and a bridge of containers.
func world() evaluate.World {
	p := netip.MustParsePrefix
	return evaluate.World{
		Links: []evaluate.Link{
			{Name: "lo", Index: 1, Addresses: []netip.Prefix{p("127.0.0.1/8"), p("::1/128")}},
			{Name: "eth0", Index: 2, Addresses: []netip.Prefix{p("203.0.113.1/24"), p("2001:db8:1::1/64")}},
			{Name: "docker0", Index: 3, Bridge: true, Addresses: []netip.Prefix{p("172.17.0.1/16")}},
			{Name: "wg0", Index: 4, Addresses: []netip.Prefix{p("10.9.0.1/24")}},
		},
		Routes: []evaluate.Route{
			{Prefix: p("0.0.0.0/0"), Link: "eth0", Table: 254, Type: 1}, {Prefix: p("::/0"), Link: "eth0", Table: 254, Type: 1},
			{Prefix: p("203.0.113.0/24"), Link: "eth0", Table: 254, Type: 1}, {Prefix: p("172.17.0.0/16"), Link: "docker0", Table: 254, Type: 1},
			{Prefix: p("10.9.0.0/24"), Link: "wg0", Table: 254, Type: 1},
			{Prefix: p("203.0.113.1/32"), Link: "eth0", Table: 255, Type: 2}, {Prefix: p("203.0.113.255/32"), Link: "eth0", Table: 255, Type: 3},
		},
		Forward4: true, Forward6: true,
	}
}

func readAll(t testing.TB, s *netlab.Space) foreign.Ruleset {
	t.Helper()
	var rs foreign.Ruleset
	var err error
	s.Do(func() { rs, err = foreign.ReadAll(t.Context()) })
	if err != nil {
		t.Fatal(err)
	}
	return rs
}

// readHere reads on the thread it is called on.
func readHere(t testing.TB) {
	t.Helper()
	if _, err := foreign.ReadAll(t.Context()); err != nil {
		t.Error(err)
	}
}

// one is the packet most cases ask about.
func one(in string, protocol uint8, port uint16) evaluate.Packet {
	return evaluate.Packet{In: in, Protocol: protocol, Port: port}
}

// base is a table with one chain at the hook input.
func base(rules string) string {
	return "table inet x {\nset named {\ntype ipv4_addr\nflags interval\nelements = { 198.51.100.0/24, 192.0.2.7 }\n}\nset most {\ntype ipv4_addr\nflags interval\nelements = { 1.0.0.0-223.255.255.255 }\n}\n" +
		"set pairs {\ntype ipv4_addr . inet_service\nflags interval\nelements = { 198.51.100.0/24 . 80-90 }\n}\nmap ports {\ntype inet_service : verdict\nelements = { 22 : accept, 23 : jump other }\n}\n" +
		"chain input {\ntype filter hook input priority 0; policy drop;\n" + strings.ReplaceAll(rules, "; ", "\n") + "\n}\nchain other {\ncounter accept\n}\n}\n"
}

// NET-12: what single conditions say of a packet, read from the kernel as nft wrote them.
func TestConditions(t *testing.T) {
	from := func(p evaluate.Packet, a string) evaluate.Packet { p.Source = netip.MustParseAddr(a); return p }
	ssh := one("eth0", tcp, 22)
	for name, tt := range map[string]struct {
		rules string
		p     evaluate.Packet
		want  evaluate.Verdict
		say   string // in By, the last Passed, On or Unless
	}{
		"no rule":                     {"", ssh, evaluate.Refused, "inet x input: policy drop"},
		"port":                        {"tcp dport 22 accept", ssh, evaluate.Accepted, "tcp dport 22 accept"},
		"other port":                  {"tcp dport 23 accept", ssh, evaluate.Refused, "policy drop"},
		"other protocol":              {"udp dport 22 accept", ssh, evaluate.Refused, "policy drop"},
		"ports in a set":              {"tcp dport { 20, 22, 24 } accept", ssh, evaluate.Accepted, "tcp dport { "},
		"ports in ranges":             {"tcp dport { 20-30, 80 } accept", ssh, evaluate.Accepted, "ranges from"},
		"above the range":             {"tcp dport { 20-21, 23-30 } accept", ssh, evaluate.Refused, "policy drop"},
		"not in a set":                {"tcp dport != { 20, 24 } accept", ssh, evaluate.Accepted, "accept"},
		"a range":                     {"tcp dport 20-30 accept", ssh, evaluate.Accepted, "accept"},
		"link":                        {`iifname "eth0" accept`, ssh, evaluate.Accepted, `iifname "eth0" accept`},
		"links by wildcard":           {`iifname "eth*" accept`, ssh, evaluate.Accepted, `iifname "eth*" accept`},
		"other link":                  {`iifname "eth1" accept`, ssh, evaluate.Refused, "policy drop"},
		"new flow":                    {"ct state established,related accept; ct state invalid drop; ct state new tcp dport 22 accept", ssh, evaluate.Accepted, "ct state new tcp dport 22 accept"},
		"source given":                {"ip saddr 198.51.100.0/24 accept", from(ssh, "198.51.100.9"), evaluate.Accepted, "ip saddr 198.51.100.0/24 accept"},
		"source elsewhere":            {"ip saddr 198.51.100.0/24 accept", from(ssh, "198.51.101.9"), evaluate.Refused, "policy drop"},
		"source of nobody":            {"ip saddr 198.51.100.0/24 accept", ssh, evaluate.Refused, "unless inet x input: ip saddr 198.51.100.0/24 accept"},
		"source in a set":             {"ip saddr @named accept", from(ssh, "192.0.2.7"), evaluate.Accepted, "ip saddr @named accept"},
		"source past the set":         {"ip saddr @named accept", from(ssh, "192.0.2.8"), evaluate.Refused, "policy drop"},
		"banned, but not nobody":      {"ip saddr @named drop; accept", ssh, evaluate.Accepted, "unless inet x input: ip saddr @named drop"},
		"source in nearly everything": {"ip saddr @most accept", ssh, evaluate.Accepted, "ip saddr @most accept"},
		"source and port":             {"ip saddr . tcp dport @pairs accept", from(one("eth0", tcp, 85), "198.51.100.4"), evaluate.Accepted, "@pairs"},
		"source and other port":       {"ip saddr . tcp dport @pairs accept", from(one("eth0", tcp, 91), "198.51.100.4"), evaluate.Refused, "policy drop"},
		"not the private ones":        {"ip saddr { 10.0.0.0/8, 192.168.0.0/16 } drop; accept", ssh, evaluate.Accepted, "unless"},
		"of IPv6 addresses":           {"ip6 saddr 2000::/3 accept", evaluate.Packet{In: "eth0", Six: true, Protocol: tcp, Port: 22}, evaluate.Accepted, "accept"},
		"verdict map":                 {"tcp dport vmap @ports", ssh, evaluate.Accepted, "vmap @ports"},
		"verdict map that jumps":      {"tcp dport vmap @ports", one("eth0", tcp, 23), evaluate.Accepted, "inet x other: accept"},
		"verdict map without it":      {"tcp dport vmap @ports", one("eth0", tcp, 24), evaluate.Refused, "policy drop"},
		"unnamed map":                 {"ct state vmap { established : accept, invalid : drop, new : jump other }", ssh, evaluate.Accepted, "inet x other"},
		"goto does not come back":     {"tcp dport 23 goto other; tcp dport 22 goto empty; accept", one("eth0", tcp, 23), evaluate.Accepted, "other"},
		"to this machine":             {"fib daddr type local accept", ssh, evaluate.Accepted, "fib daddr type local accept"},
		"no way back":                 {"fib saddr . iif oif missing drop; accept", ssh, evaluate.Accepted, "accept"},
		"spoofed":                     {"fib saddr . iif oif missing drop; accept", from(ssh, "10.9.0.7"), evaluate.Refused, "fib saddr . iif oif missing drop"},
		"not marked":                  {"meta mark 7 drop; accept", ssh, evaluate.Accepted, "accept"},
		"marked on the way":           {"tcp dport 22 meta mark set 7; meta mark & 0xff == 7 accept", ssh, evaluate.Accepted, "accept"},
		"limit":                       {"tcp dport 22 limit rate 3/minute accept", ssh, evaluate.Accepted, "unless"},
		"over a limit":                {"tcp dport 22 limit rate over 3/minute drop; accept", ssh, evaluate.Accepted, "unless inet x input: tcp dport 22 limit rate over 3/minute drop"},
		"meter":                       {"tcp dport 22 meter m { ip saddr limit rate 3/minute } accept", ssh, evaluate.Accepted, "accept"},
		"nobody knows":                {"meta cgroup 5 drop; accept", ssh, evaluate.Depends, "on meta cgroup 5"},
		"either way":                  {"meta cgroup 5 accept; accept", ssh, evaluate.Accepted, "accept"},
		"either way refused":          {"meta cgroup 5 drop; drop", ssh, evaluate.Refused, "drop"},
		"asked twice, one answer":     {"meta cgroup 5 tcp dport 22 jump other; meta cgroup != 5 accept; meta cgroup 5 accept", ssh, evaluate.Accepted, "accept"},
		"only counted":                {"meta cgroup 5 counter; accept", ssh, evaluate.Accepted, "accept"},
		"at random":                   {"numgen random mod 2 0 drop; accept", ssh, evaluate.Depends, "on numgen"},
		"rejected":                    {"tcp dport 22 reject with tcp reset; accept", ssh, evaluate.Refused, "tcp dport 22 reject"},
		"protocol by number":          {"ip protocol 112 accept", one("eth0", 112, 0), evaluate.Accepted, "accept"},
		"ping":                        {"icmp type echo-request accept", one("eth0", icmp, 8), evaluate.Accepted, "icmp type 8 accept"},
		"a syn":                       {"tcp flags & (fin|syn|rst|ack) == syn accept", ssh, evaluate.Accepted, "accept"},
		"no syn":                      {"tcp flags & (fin|syn|rst|ack) != syn drop; accept", ssh, evaluate.Accepted, "accept"},
		"original port":               {"meta l4proto tcp ct original proto-dst 22 accept", ssh, evaluate.Accepted, "ct original proto-dst 22 accept"},
		"multicast":                   {"ip daddr 224.0.0.0/4 accept", ssh, evaluate.Refused, "policy drop"},
		"hardware of nobody":          {"ether saddr 02:00:00:00:00:01 drop; accept", ssh, evaluate.Accepted, "unless"},
		"not to all":                  {"meta pkttype != host drop; accept", ssh, evaluate.Accepted, "accept"},
	} {
		t.Run(name, func(t *testing.T) {
			s := netlab.NewSpace(t, "host")
			s.Run(strings.Replace(base(tt.rules), "chain other", "chain empty {\n}\nchain other", 1), "nft", "-f", "-")
			rs := readAll(t, s)
			a := evaluate.New(&rs, world()).Evaluate(tt.p)
			if got := said(a); a.Verdict != tt.want || !strings.Contains(got, tt.say) {
				t.Errorf("%s: %s\nwant %s, %q", a.Verdict, got, tt.want, tt.say)
			}
		})
	}
}

// said is all the words of an answer.
func said(a evaluate.Answer) string {
	var b strings.Builder
	if a.By != nil {
		b.WriteString("by " + a.By.String() + "\n")
	}
	for _, p := range a.Passed {
		b.WriteString("passed " + p.String() + "\n")
	}
	for _, n := range a.NAT {
		b.WriteString("nat " + n.From.String() + " to " + n.To.String() + " " + n.Place.String() + "\n")
	}
	for _, c := range a.On {
		b.WriteString("on " + c.What + " in " + c.Place.String() + "\n")
	}
	for _, p := range a.Unless {
		b.WriteString("unless " + p.String() + "\n")
	}
	return b.String()
}

package evaluate_test

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"mesh/firewall/evaluate"
	"mesh/firewall/foreign"
	"mesh/shared/waitfor"
	"mesh/testbus/netlab"
)

// patience is how long an answer may take; a packet that is refused takes all of it.
const patience = 400 * time.Millisecond

// attempt is one try to reach something.
type attempt struct {
	from    *netlab.Space
	p       evaluate.Packet
	network string
}

// attempts go from outside and from the tunnel's peer to the host's ports, by IPv4 and IPv6, and to
// the container's address.
func attempts(lab *netlab.Lab) []attempt {
	a := netip.MustParseAddr
	var all []attempt
	for _, way := range []struct {
		from *netlab.Space
		in   string
		pair [][2]string // source and destination
	}{
		{lab.Outside, netlab.Uplink, [][2]string{{netlab.Outside4, netlab.HostOutside4}, {netlab.Outside6, netlab.HostOutside6}, {netlab.Outside4, netlab.Container4}}},
		{lab.Peer, netlab.Tunnel, [][2]string{{netlab.Peer4, netlab.HostTunnel4}, {netlab.Peer6, netlab.HostTunnel6}}},
	} {
		for _, pair := range way.pair {
			for _, port := range []uint16{22, 80, 8080, 9000} {
				p := evaluate.Packet{In: way.in, Source: a(pair[0]), Destination: a(pair[1]), Protocol: tcp, Port: port}
				all = append(all, attempt{way.from, p, "tcp"})
			}
			p := evaluate.Packet{In: way.in, Source: a(pair[0]), Destination: a(pair[1]), Protocol: udp, Port: 5353}
			all = append(all, attempt{way.from, p, "udp"})
		}
	}
	return all
}

func serve(lab *netlab.Lab) {
	for _, port := range []string{"22", "80", "8080", "9000"} {
		lab.Host.Serve("tcp", "[::]:"+port)
		lab.Container.Serve("tcp", "[::]:"+port)
	}
	lab.Host.Serve("udp", net.JoinHostPort(netlab.HostOutside4, "5353"))
	lab.Host.Serve("udp", net.JoinHostPort(netlab.HostOutside6, "5353"))
	lab.Host.Serve("udp", net.JoinHostPort(netlab.HostTunnel4, "5353"))
	lab.Host.Serve("udp", net.JoinHostPort(netlab.HostTunnel6, "5353"))
	lab.Container.Serve("udp", net.JoinHostPort(netlab.Container4, "5353"))
}

// warm waits until IPv6 works: a new link has no address of its own for a second or two.
func warm(t *testing.T, lab *netlab.Lab) {
	t.Helper()
	for from, to := range map[*netlab.Space]string{lab.Outside: netlab.HostOutside6, lab.Peer: netlab.HostTunnel6, lab.Container: netlab.HostBridge6} {
		waitfor.True(t, "IPv6 works", 10*time.Second, func() (bool, any) {
			err := from.Ask("tcp", net.JoinHostPort(to, "22"), patience)
			return err == nil, err
		})
	}
}

// agree compares what is said of each attempt with what becomes of it.
func agree(t *testing.T, lab *netlab.Lab) (depends int) {
	t.Helper()
	rs := readAll(t, lab.Host)
	var w evaluate.World
	var err error
	lab.Host.Do(func() { w, err = evaluate.ReadWorld(t.Context()) })
	if err != nil {
		t.Fatal(err)
	}
	e := evaluate.New(&rs, w)
	var wait sync.WaitGroup
	for _, x := range attempts(lab) {
		answer := e.Evaluate(x.p)
		if answer.Verdict == evaluate.Depends {
			depends++
			continue
		}
		wait.Go(func() {
			to := netip.AddrPortFrom(x.p.Destination, x.p.Port).String()
			reached := x.from.Ask(x.network, to, patience) == nil
			if !reached && answer.Verdict == evaluate.Accepted { // a machine that is busy answers late
				reached = x.from.Ask(x.network, to, 10*patience) == nil
			}
			if reached != (answer.Verdict == evaluate.Accepted) {
				t.Errorf("%s %s from %s over %s: said %s, reached %v\n%s", x.network, to, x.p.Source, x.p.In, answer.Verdict, reached, said(answer))
			}
		})
	}
	wait.Wait()
	return depends
}

const iptables = "iptables-nft-restore"

// NET-12, NET-14: what is said of a packet is what the kernel does with it, whoever wrote the rules.
func TestAgreesWithTheKernel(t *testing.T) {
	for name, tt := range map[string]struct {
		load [][2]string // program and what it reads
	}{
		"nothing": {},
		"mesh-like": {[][2]string{{"nft", `table inet m {
	set outside { type ifname; flags interval; elements = { "up*", "mesh0" }; }
	set open { type inet_service; flags interval; elements = { 22, 8080-8090 }; }
	chain input { type filter hook input priority 15; policy accept;
		iifname != @outside accept
		ct state established,related accept
		jump declared
		goto refuse
	}
	chain forward { type filter hook forward priority 15; policy accept;
		iifname != @outside accept
		ct state established,related accept
		ct status dnat jump declared
		goto refuse
	}
	chain declared {
		meta l4proto tcp ct original proto-dst @open accept
		iifname "mesh0" meta l4proto udp ct original proto-dst 5353 accept
		icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept
	}
	chain refuse { icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept
		counter drop
	}
}
table ip nat { chain pre { type nat hook prerouting priority -100; iifname "up0" tcp dport 8080 dnat to 172.30.0.2:80
	tcp dport 9000 redirect to :22
	}
}`}}},
		"two tables, drop wins": {[][2]string{{"nft", `table inet a { chain i { type filter hook input priority -10; policy accept; tcp dport 22 ip saddr 203.0.113.0/24 drop
	} }
table ip b { chain i { type filter hook input priority 10; policy drop; tcp dport { 22, 80 } accept
	udp dport 5353 accept
	} }`}}},
		"notrack": {[][2]string{{"nft", `table inet a { chain r { type filter hook prerouting priority -300; tcp dport 22 notrack
	}
	chain o { type filter hook output priority -300; tcp sport 22 notrack
	}
	chain i { type filter hook input priority 0; ct state untracked accept
	meta l4proto tcp ct original proto-dst 80 accept
	icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept
	ct state established accept
	drop
	} }`}}},
		"marks": {[][2]string{{"nft", `table inet a { chain p { type filter hook prerouting priority -150; iifname "mesh0" meta mark set 0x5
	tcp dport 80 ct mark set 0x7
	}
	chain i { type filter hook input priority 0; policy accept; tcp dport 22 meta mark != 0x5 reject
	tcp dport 80 ct mark 0x7 drop
	} }`}}},
		"maps": {[][2]string{{"nft", `table ip a {
	map ways { type ifname : verdict; elements = { "up0" : goto up, "mesh0" : goto tunnel }; }
	map to { type inet_service : ipv4_addr . inet_service; elements = { 8080 : 172.30.0.2 . 80 }; }
	set pairs { type ipv4_addr . inet_service; flags interval; elements = { 203.0.113.0/28 . 20-30 }; }
	chain pre { type nat hook prerouting priority -100; dnat ip to tcp dport map @to
	}
	chain i { type filter hook input priority 0; iifname vmap @ways
	}
	chain up { ip saddr . tcp dport @pairs drop
	tcp dport vmap { 80 : drop, 9000 : accept }
	}
	chain tunnel { tcp dport 9000 return
	ct state vmap { new : drop, established : accept }
	}
}`}}},
		"iptables": {[][2]string{{iptables, `*raw
:PREROUTING ACCEPT [0:0]
-A PREROUTING -i up0 -p tcp -m rpfilter --invert -j DROP
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:PUB - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j PUB
-A PUB ! -i br0 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 172.30.0.2:80
-A PUB -p tcp -m tcp --dport 9000 -j REDIRECT --to-ports 22
COMMIT
*filter
:INPUT DROP [0:0]
:FORWARD DROP [0:0]
:own - [0:0]
-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A INPUT -m conntrack --ctstate INVALID -j DROP
-A INPUT -p tcp -m multiport --dports 20:23,443 -m comment --comment "ssh and more" -j own
-A INPUT -i mesh0 -p tcp -m tcp --dport 80 -j ACCEPT
-A INPUT -p udp -m multiport ! --dports 1:1000 -m iprange --src-range 203.0.113.2-203.0.113.20 -j ACCEPT
-A own -m conntrack --ctorigdstport 22 -j ACCEPT
-A own -s 203.0.113.9/32 -m state --state NEW -m limit --limit 100/second -j ACCEPT
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i up0 -o br0 -m conntrack --ctstate DNAT -j ACCEPT
COMMIT
`}}},
		"iptables with recent and marks": {[][2]string{{iptables, `*mangle
:PREROUTING ACCEPT [0:0]
-A PREROUTING -i mesh0 -j MARK --set-xmark 0x10/0xff
-A PREROUTING -p tcp -m tcp --dport 9000 -j MARK --set-xmark 0x20/0xff
COMMIT
*filter
:INPUT ACCEPT [0:0]
-A INPUT -m mark --mark 0x20/0xf0 -j REJECT --reject-with icmp-port-unreachable
-A INPUT -p tcp -m tcp --dport 22 -m recent --set --name x
-A INPUT -p tcp -m tcp --dport 22 -m recent --update --seconds 60 --hitcount 200 --name x -j DROP
-A INPUT -p tcp -m tcp --dport 80 -m connlimit --connlimit-above 50 -j DROP
-A INPUT -p tcp -m tcp ! --tcp-flags FIN,SYN,RST,ACK SYN -m conntrack --ctstate NEW -j DROP
-A INPUT -m pkttype --pkt-type multicast -j DROP
-A INPUT -m physdev --physdev-is-bridged -j DROP
-A INPUT -m physdev ! --physdev-is-in -p udp -j DROP
-A INPUT -m mac --mac-source 02:11:22:33:44:55 -j DROP
-A INPUT -p tcp -m tcp --dport 8080 -m policy --dir in --pol none -j DROP
COMMIT
`}}},
		"ip6tables": {[][2]string{{"ip6tables-nft-restore", `*filter
:INPUT DROP [0:0]
-A INPUT -m rt --rt-type 0 -j DROP
-A INPUT -p ipv6-icmp -j ACCEPT
-A INPUT -m conntrack --ctstate ESTABLISHED -j ACCEPT
-A INPUT -s 2001:db8:1::/64 -p tcp -m tcp --dport 22 -j ACCEPT
-A INPUT -p udp -m udp --dport 5000:6000 -j ACCEPT
COMMIT
`}}},
		"ipset": {[][2]string{{"ipset", "create bad hash:net\nadd bad 203.0.113.0/29\ncreate bads hash:ip\nadd bads 203.0.113.9\ncreate six hash:ip family inet6\nadd six 2001:db8:1::9\n"},
			{iptables, "*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -p tcp -m tcp --dport 80 -m set --match-set bad src -j DROP\n-A INPUT -p tcp -m tcp --dport 22 -m set --match-set bads src -j REJECT\n-A INPUT -p udp -m set ! --match-set bads src -j DROP\nCOMMIT\n"}}},
		"legacy xtables": {[][2]string{{"iptables-legacy-restore", `*nat
:PREROUTING ACCEPT [0:0]
-A PREROUTING -i up0 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 172.30.0.2:80
COMMIT
*filter
:INPUT DROP [0:0]
:FORWARD DROP [0:0]
:own - [0:0]
-A INPUT -m state --state RELATED,ESTABLISHED -j ACCEPT
-A INPUT -i up0 -p tcp -m multiport --dports 20:23,9000 -j own
-A INPUT ! -i up0 -p udp -j ACCEPT
-A own -s 203.0.113.0/28 -m comment --comment "near" -j ACCEPT
-A own -j REJECT --reject-with icmp-port-unreachable
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED,DNAT -j ACCEPT
COMMIT
`}, {"nft", "table ip later { chain i { type filter hook input priority 10; tcp dport 9000 drop\n} }"}}},
		"dormant": {[][2]string{{"nft", "table inet a { flags dormant; chain i { type filter hook input priority 0; policy drop; } }"}}},
		"no forwarding of what is not asked": {[][2]string{{"nft", `table inet a { chain f { type filter hook forward priority 0; policy drop; oifname "br0" ct status dnat accept
	ct state established accept
	} }
table ip n { chain pre { type nat hook prerouting priority -100; tcp dport { 22, 8080 } dnat to 172.30.0.2
	} }`}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lab := netlab.New(t)
			serve(lab)
			warm(t, lab)
			for _, load := range tt.load {
				switch load[0] {
				case "nft":
					lab.Host.Run(strings.ReplaceAll(strings.ReplaceAll(load[1], "} }", "}\n}"), "; }", "\n}"), "nft", "-f", "-")
				case "ipset":
					lab.Host.Run(load[1], "ipset", "restore")
				default:
					lab.Host.Run(load[1], load[0])
				}
			}
			if n := agree(t, lab); n > 0 {
				t.Errorf("%d answers depend on what is not known", n)
			}
		})
	}
}

// A bridge has rules of its own for what it hands up, which are not followed: they are a condition, and none
// for other links.
func TestFramesOfABridge(t *testing.T) {
	s := netlab.NewSpace(t, "host")
	s.Run("table bridge b {\nchain i {\ntype filter hook input priority 0\nether saddr 02:00:00:00:00:01 drop\n}\n}\n", "nft", "-f", "-")
	rs := readAll(t, s)
	e := evaluate.New(&rs, world())
	if a := e.Evaluate(one("docker0", tcp, 22)); a.Verdict != evaluate.Depends || !strings.Contains(said(a), "a rule for frames refuses it in bridge b i") {
		t.Errorf("over a bridge: %s %s", a.Verdict, said(a))
	}
	if a := e.Evaluate(one("eth0", tcp, 22)); a.Verdict != evaluate.Accepted {
		t.Errorf("over another link: %s %s", a.Verdict, said(a))
	}
}

// Legacy xtables that are there and cannot be read are a condition for their family.
func TestUnreadLegacyIsACondition(t *testing.T) {
	rs := foreign.Ruleset{Legacy: []foreign.Table{{Family: "ip", Name: "filter"}, {Family: "arp", Name: "filter"}}}
	e := evaluate.New(&rs, world())
	if a := e.Evaluate(one("eth0", tcp, 22)); a.Verdict != evaluate.Depends || !strings.Contains(said(a), "legacy xtables, which cannot be read") {
		t.Errorf("IPv4: %s %s", a.Verdict, said(a))
	}
	if a := e.Evaluate(evaluate.Packet{In: "eth0", Six: true, Protocol: tcp, Port: 22}); a.Verdict != evaluate.Accepted {
		t.Errorf("IPv6: %s %s", a.Verdict, said(a))
	}
}

// Legacy xtables are evaluated from the words of iptables-save as the same rules are from the kernel.
func TestLegacyIsEvaluatedAlike(t *testing.T) {
	const rules = `*raw
:PREROUTING ACCEPT [0:0]
-A PREROUTING -p udp -m udp --dport 53 -j NOTRACK
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:PUB - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j PUB
-A PUB ! -i docker0 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 172.17.0.2:80
-A PUB -p tcp -m tcp --dport 9000:9010 -j REDIRECT --to-ports 22
COMMIT
*filter
:INPUT DROP [0:0]
:FORWARD DROP [0:0]
:own - [0:0]
-A INPUT -i lo -j ACCEPT
-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A INPUT -m conntrack --ctstate UNTRACKED -j ACCEPT
-A INPUT -i eth+ -p tcp -m multiport --dports 20:23,443 -m comment --comment "ssh and \"more\"" -j own
-A INPUT -s 10.9.0.0/24 -p tcp -m tcp --dport 80 -j ACCEPT
-A INPUT -p tcp -m tcp --dport 3000 -m limit --limit 3/sec -j ACCEPT
-A INPUT -m set --match-set bad src -j DROP
-A INPUT -p icmp -m icmp --icmp-type 8 -j ACCEPT
-A own ! -s 198.51.100.0/24 -g done
-A own -j REJECT --reject-with icmp-port-unreachable
:done - [0:0]
-A done -j ACCEPT
-A FORWARD -i eth0 -o docker0 -m conntrack --ctstate DNAT -j ACCEPT
COMMIT
`
	s := netlab.NewSpace(t, "host")
	s.Run("create bad hash:net\nadd bad 192.0.2.0/24\n", "ipset", "restore")
	s.Run(strings.Replace(rules, ":done - [0:0]\n", "", 1)[:strings.Index(rules, ":own")]+":done - [0:0]\n"+strings.Replace(rules, ":done - [0:0]\n", "", 1)[strings.Index(rules, ":own"):], "iptables-nft-restore")
	kernel := readAll(t, s)
	tables, err := foreign.ParseSaveAll("ip", strings.NewReader(rules))
	if err != nil {
		t.Fatal(err)
	}
	legacy := foreign.Ruleset{Legacy: tables, IPSets: kernel.IPSets}
	a, b := evaluate.New(&kernel, world()), evaluate.New(&legacy, world())
	for _, in := range []string{"eth0", "wg0", "lo"} {
		for _, from := range []string{"", "198.51.100.9", "10.9.0.4", "192.0.2.8"} {
			for _, port := range []uint16{8, 22, 53, 80, 443, 3000, 8080, 9005} {
				for _, protocol := range []uint8{tcp, udp, icmp} {
					p := evaluate.Packet{In: in, Protocol: protocol, Port: port}
					if from != "" {
						p.Source = netip.MustParseAddr(from)
					}
					x, y := a.Evaluate(p), b.Evaluate(p)
					if x.Verdict != y.Verdict || x.To != y.To || x.Way != y.Way || len(x.Unless) != len(y.Unless) {
						t.Errorf("%+v:\nkernel %s to %v %s\n%slegacy %s to %v %s\n%s", p, x.Verdict, x.To, x.Way, said(x), y.Verdict, y.To, y.Way, said(y))
					}
				}
			}
		}
	}
}

// drawn is a rule set of conditions drawn at random, in one table with a few chains.
func drawn(r *rand.Rand) string {
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	conditions := func() string {
		var b strings.Builder
		for range r.IntN(3) {
			b.WriteString(pick("tcp dport 22 ", "tcp dport { 22, 80 } ", "tcp dport 80-9000 ", "tcp dport != 22 ", "udp dport 5353 ", "meta l4proto udp ", `iifname "up0" `, `iifname "mesh0" `, `iifname != "up0" `,
				"ip saddr 203.0.113.0/28 ", "ip saddr != 10.99.0.0/24 ", "ip saddr { 203.0.113.9, 10.0.0.0/9 } ", "ip6 saddr 2001:db8:1::/64 ", "ct state new ", "ct state established ", "meta mark 1 ", "meta mark != 1 ",
				"fib daddr type local ", "meta nfproto ipv4 ", "meta nfproto ipv6 ", "ip protocol tcp ", "ct mark 2 ", "ip daddr 203.0.113.1 ", "meta pkttype host ", "tcp sport 1024-65535 "))
		}
		return b.String()
	}
	var b strings.Builder
	b.WriteString("table inet x {\nchain deep {\n")
	for range 2 {
		fmt.Fprintf(&b, "%s%s\n", conditions(), pick("accept", "drop", "return", "counter"))
	}
	b.WriteString("}\nchain side {\n")
	for range 3 {
		fmt.Fprintf(&b, "%s%s\n", conditions(), pick("accept", "drop", "return", "jump deep", "goto deep", "meta mark set 1", "ct mark set 2"))
	}
	b.WriteString("}\n")
	for _, c := range []string{"hook prerouting priority -150", "hook input priority -5", "hook input priority 10", "hook forward priority 0"} {
		policy := pick("accept", "accept", "drop")
		if strings.Contains(c, "prerouting") {
			policy = "accept"
		}
		fmt.Fprintf(&b, "chain c%d {\ntype filter %s; policy %s;\nicmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept\nct state established accept\n", b.Len(), c, policy)
		for range 1 + r.IntN(5) {
			fmt.Fprintf(&b, "%s%s\n", conditions(), pick("accept", "drop", "jump side", "goto side", "meta mark set 1", "reject", "tcp dport vmap { 22 : accept, 80 : jump deep, 9000 : drop }"))
		}
		b.WriteString("}\n")
	}
	return b.String() + "}\n"
}

// drawnInWords is one as iptables has it, by the words of either program.
func drawnInWords(r *rand.Rand) string {
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	conditions := func() string {
		var b strings.Builder
		b.WriteString(pick("-p tcp -m tcp --dport 22 ", "-p tcp -m tcp ! --dport 80:8080 ", "-p tcp -m multiport --dports 22,8080:9000 ", "-p tcp -m multiport ! --dports 80,9000 ", "-p udp -m udp --dport 5353 ",
			"-p tcp -m conntrack --ctorigdstport 22 ", "-p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN ", "-p tcp ", "", "-p udp -m multiport --dports 53,5353 "))
		for range r.IntN(3) {
			b.WriteString(pick("-i up0 ", "! -i up0 ", "-i mesh+ ", "-s 203.0.113.0/28 ", "! -s 10.99.0.0/16 ", "-m conntrack --ctstate NEW ", "-m conntrack ! --ctstate ESTABLISHED ", "-m state --state RELATED,ESTABLISHED ",
				"-m addrtype --dst-type LOCAL ", "-m addrtype ! --dst-type LOCAL ", "-m mark --mark 0x1/0xf ", "-m mark ! --mark 0x1/0x1 ", "-m iprange --src-range 203.0.113.5-203.0.113.12 ",
				"-m iprange ! --src-range 10.99.0.0-10.99.0.9 ", "-m pkttype --pkt-type unicast ", "-m conntrack --ctorigsrc 203.0.113.0/24 ", "-m conntrack ! --ctorigdst 203.0.113.1/32 ", "-m limit --limit 1000/sec --limit-burst 1000 ", "-m comment --comment \"a b\" "))
		}
		return b.String()
	}
	var b strings.Builder
	b.WriteString("*mangle\n:PREROUTING ACCEPT [0:0]\n")
	fmt.Fprintf(&b, "-A PREROUTING %s-j MARK --set-xmark 0x1/0xf\nCOMMIT\n*nat\n:PREROUTING ACCEPT [0:0]\n", conditions())
	fmt.Fprintf(&b, "-A PREROUTING -p tcp %s\n", pick("--dport 8080 -j DNAT --to-destination 172.30.0.2:80", "--dport 9000 -j REDIRECT --to-ports 22", "-m multiport --dports 80,9000 -j DNAT --to-destination 172.30.0.2"))
	fmt.Fprintf(&b, "COMMIT\n*filter\n:INPUT %s [0:0]\n:FORWARD %s [0:0]\n:deep - [0:0]\n:side - [0:0]\n", pick("ACCEPT", "DROP"), pick("ACCEPT", "DROP"))
	for _, c := range []string{"INPUT", "FORWARD"} {
		fmt.Fprintf(&b, "-A %s -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n", c)
		for range 1 + r.IntN(5) {
			target := pick("-j ACCEPT", "-j DROP", "-j side", "-g side", "-j REJECT", "-j LOG", "-j MARK --set-xmark 0x1/0xf")
			if strings.Contains(target, "MARK") {
				target = "-j ACCEPT"
			}
			fmt.Fprintf(&b, "-A %s %s%s\n", c, conditions(), target)
		}
	}
	for _, c := range []string{"side", "deep"} {
		for range 3 {
			fmt.Fprintf(&b, "-A %s %s%s\n", c, conditions(), pick("-j ACCEPT", "-j DROP", "-j RETURN", map[string]string{"side": "-j deep", "deep": "-j RETURN"}[c]))
		}
	}
	return b.String() + "COMMIT\n"
}

// What is drawn at random, too, the kernel does as is said.
func TestAgreesWithTheKernelOnAnything(t *testing.T) {
	lab := netlab.New(t)
	serve(lab)
	warm(t, lab)
	loaded := 0
	for seed := uint64(1); loaded < 8; seed++ {
		rules := drawn(rand.New(rand.NewPCG(seed, 7)))
		if out, err := lab.Host.Try("flush ruleset\n"+rules, "nft", "-f", "-"); err != nil {
			if !strings.Contains(out, "conflicting") || seed > 1000 {
				t.Fatal(out, rules)
			}
			continue // conditions that exclude each other: nft refuses them
		}
		loaded++
		if agree(t, lab); t.Failed() {
			t.Fatalf("seed %d:\n%s", seed, rules)
		}
	}
}

func TestAgreesWithTheKernelOnAnyWords(t *testing.T) {
	lab := netlab.New(t)
	serve(lab)
	warm(t, lab)
	loaded := 0
	for seed := uint64(1); loaded < 6; seed++ {
		rules := drawnInWords(rand.New(rand.NewPCG(seed, 11)))
		lab.Host.Run("flush ruleset\n", "nft", "-f", "-")
		if out, err := lab.Host.Try(rules, iptables); err != nil {
			if !strings.Contains(out, "not allowed") || seed > 1000 {
				t.Fatal(out, rules)
			}
			continue // the same condition twice
		}
		loaded++
		if agree(t, lab); t.Failed() {
			t.Fatalf("seed %d:\n%s", seed, rules)
		}
	}
}

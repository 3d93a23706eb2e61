package firewall_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mesh/firewall"
	"mesh/firewall/evaluate"
	"mesh/firewall/foreign"
	"mesh/shared/rule"
	"mesh/shared/waitfor"
	"mesh/testbus/netlab"
)

// letsIn reports whether a lets in a packet of UDP, or of a protocol without ports.
func letsIn(a rule.Allow, link string, source netip.Addr, protocol byte, port uint16) bool {
	switch {
	case a.Protocol != 0 && byte(a.Protocol) != protocol:
		return false
	case a.Protocol == 0 && (a.Port.Protocol != "udp" || protocol != unix.IPPROTO_UDP || port < a.Port.First || port > a.Port.Last):
		return false
	case a.From.Tunnel:
		return link == "mesh0"
	}
	return a.From.Anywhere || slices.ContainsFunc(a.From.Prefixes, func(x netip.Prefix) bool { return x.Contains(source) })
}

// Real packets, tracked and not: the kernel lets in exactly what is declared and counts it by a rule that lets it
// in, and evaluate says the same, for rules made by chance that overlap in every way. The tables are loaded over
// each other.
func TestPacketsMeetTheRules(t *testing.T) {
	const seed = 20261130
	random := rand.New(rand.NewPCG(seed, seed))
	host := netlab.NewSpace(t, "host")
	lines := map[string]*os.File{"ppp0": host.Tun("ppp0", "192.0.2.1/32", "2001:db8:9::1/128"), "mesh0": host.Tun("mesh0", "192.0.2.2/32", "2001:db8:9::2/128")}
	host.Route("default dev ppp0")
	host.Route("-6 default dev ppp0")
	host.Run("table inet raw { chain p { type filter hook prerouting priority -300; ip saddr 198.51.100.0/24 notrack; ip6 saddr 2001:db8:7::/48 notrack; }; }", "nft", "-f", "-")
	d := open(t, host)
	sources := []string{"203.0.113.7", "203.0.113.8", "203.0.113.77", "198.51.100.9", "198.51.100.10", "2001:db8::7", "2001:db8::8", "2001:db8:7::9"}
	prefixes := []string{"203.0.113.7/32", "203.0.113.8/32", "203.0.113.0/24", "203.0.113.64/26", "198.51.100.9/32", "198.51.100.0/24", "2001:db8::7/128", "2001:db8::8/128", "2001:db8::/64", "2001:db8:7::9/128"}
	pick := func(from []string) string { return from[random.IntN(len(from))] }
	mark := uint32(0)
	let := 0
	for round := range 8 {
		f := firewall.Filter{Outside: []string{"up9"}, Tunnel: []string{"mesh0"}}
		for range 3 + random.IntN(20) {
			first := 7000 + random.IntN(12)
			what := fmt.Sprintf("%d", first)
			if random.IntN(3) == 0 {
				what += fmt.Sprintf("-%d", first+1+random.IntN(3))
			}
			what += "/" + pick([]string{"udp", "udp", "tcp"})
			if random.IntN(12) == 0 {
				what = pick([]string{"esp", "vrrp"})
			}
			from := pick([]string{"anywhere", "tunnel", "", "", "", ""})
			if from == "" {
				from = pick(prefixes)
				for range random.IntN(3) {
					from += ", " + pick(prefixes)
				}
			}
			f.Allow = append(f.Allow, allow(t, pick([]string{"a", "b-b", "c"}), what, from))
		}
		table := compile(t, f)
		load(t, d, table)
		if why := differs(t, firewall.Reread(d), table); why != "" {
			t.Fatal(why)
		}
		e := evaluator(t, host)
		before := counted(t, host)
		for range 40 {
			link, source := pick([]string{"ppp0", "ppp0", "mesh0"}), netip.MustParseAddr(pick(sources))
			to := map[bool]string{false: "192.0.2.1", true: "2001:db8:9::1"}[source.Is6()]
			mark++
			port := uint16(6999 + random.IntN(16))
			c := crafted{source: source.String(), to: to, protocol: unix.IPPROTO_UDP, body: udp(uint16(20000+mark), port)}
			if random.IntN(8) == 0 {
				c.protocol, c.body, port = []byte{50, 112}[random.IntN(2)], []byte{0, 0, 0, 0, 0, 0, 0, 0}, 0
			}
			what := fmt.Sprintf("round %d: protocol %d port %d from %v over %s", round, c.protocol, port, source, link)
			want := slices.ContainsFunc(f.Allow, func(a rule.Allow) bool { return letsIn(a, link, source, c.protocol, port) })
			if _, err := lines[link].Write(c.bytes(mark)); err != nil {
				t.Fatal(err)
			}
			var by string
			waitfor.True(t, what, soon, func() (bool, any) {
				now := counted(t, host)
				for name, n := range now {
					if n > before[name] {
						by = name
					}
				}
				before = now
				return by != "", "nothing counted it"
			})
			a, declared := table.Rule(by)
			if declared != want || declared && !letsIn(a, link, source, c.protocol, port) {
				t.Errorf("%s is counted by %q, and is declared: %v\n%s", what, by, want, table.Text())
			}
			if want {
				let++
			}
			answer := e.Evaluate(evaluate.Packet{In: link, Six: source.Is6(), Source: source, Destination: netip.MustParseAddr(to), Protocol: c.protocol, Port: port})
			if (answer.Verdict == evaluate.Accepted) != want || answer.Verdict == evaluate.Depends {
				t.Errorf("%s: evaluate says %s, declared is %v", what, answer.Verdict, want)
			}
			if n := len(answer.Passed); want && !strings.Contains(answer.Passed[n-1].Comment, a.What()+" from ") {
				t.Errorf("%s: evaluate says it is %q, the kernel counts it by %q", what, answer.Passed[n-1].Comment, by)
			}
		}
	}
	if let < 30 || let > int(mark)-30 {
		t.Errorf("%d of %d packets are let in: this shows little", let, mark)
	}
}

// evaluator reads the rules of s.
func evaluator(t *testing.T, s *netlab.Space) *evaluate.Evaluator {
	t.Helper()
	var rs foreign.Ruleset
	var world evaluate.World
	var err error
	s.Do(func() {
		if rs, err = foreign.ReadAll(t.Context()); err == nil {
			world, err = evaluate.ReadWorld(t.Context())
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return evaluate.New(&rs, world)
}

// counted are the packets that declared rules let in, and those refused, by counter.
func counted(t *testing.T, s *netlab.Space) map[string]uint64 {
	t.Helper()
	var all []firewall.Count
	var err error
	s.Do(func() { all, err = firewall.Counts(t.Context()) })
	if err != nil {
		t.Fatal(err)
	}
	by := map[string]uint64{}
	for _, c := range all {
		if c.Declared || c.Name == "refused" {
			by[c.Name] = c.Packets
		}
	}
	return by
}

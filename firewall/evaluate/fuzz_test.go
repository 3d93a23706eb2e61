package evaluate_test

import (
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mesh/firewall/evaluate"
	"mesh/firewall/foreign"
	"mesh/firewall/internal/nfnetlink"
	"mesh/testbus/netlab"
)

// ask evaluates some packets and shows every rule: whatever rs is, it says something.
func ask(t *testing.T, rs foreign.Ruleset) {
	e := evaluate.New(&rs, world())
	e.Published()
	for i := range rs.Tables {
		for j := range rs.Tables[i].Chains {
			for k := range rs.Tables[i].Chains[j].Lines {
				if e.Text(&rs.Tables[i], &rs.Tables[i].Chains[j].Lines[k]) == "" {
					t.Error("a rule without words")
				}
			}
		}
	}
	for _, p := range []evaluate.Packet{
		one("eth0", tcp, 22), one("eth0", udp, 53), one("eth0", icmp, 8), one("eth0", 50, 0), {In: "eth0", Six: true, Protocol: tcp, Port: 80}, {In: "nowhere", Protocol: tcp},
		{In: "wg0", Source: netip.MustParseAddr("10.9.0.2"), Destination: netip.MustParseAddr("172.17.0.2"), Protocol: tcp, Port: 80},
	} {
		a := e.Evaluate(p)
		switch {
		case a.Verdict != evaluate.Accepted && a.Verdict != evaluate.Refused && a.Verdict != evaluate.Depends:
			t.Errorf("%+v: %q", p, a.Verdict)
		case a.Verdict == evaluate.Refused && a.By == nil:
			t.Errorf("%+v: refused by nobody", p)
		}
		if again := e.Evaluate(p); again.Verdict != a.Verdict {
			t.Errorf("%+v: %s, then %s", p, a.Verdict, again.Verdict)
		}
	}
}

// chainsOf are two chains at the hooks, each with the rule, and a set it may ask.
func chainsOf(expressions []byte) foreign.Ruleset {
	rule := foreign.Line{Expressions: expressions}
	return foreign.Ruleset{
		IPSets: []foreign.IPSet{{Name: "s", Index: 1, Type: "hash:ip", Members: []foreign.Member{{Addresses: netip.MustParsePrefix("10.0.0.0/8")}}}},
		Tables: []foreign.Table{{Family: "inet", Name: "t", Chains: []foreign.Chain{
			{Name: "p", Base: true, Hook: "prerouting", Type: "nat", Policy: "accept", Priority: -100, Lines: []foreign.Line{rule}},
			{Name: "i", Base: true, Hook: "input", Type: "filter", Policy: "drop", Lines: []foreign.Line{rule, rule}},
			{Name: "f", Base: true, Hook: "forward", Type: "filter", Policy: "accept", Lines: []foreign.Line{rule}},
			{Name: "c", Lines: []foreign.Line{rule}},
		}, Sets: []foreign.Set{
			{Name: "s", KeyLen: 4, Elements: []foreign.Element{{Key: []byte{10, 0, 0, 1}}, {Key: []byte{10, 0, 0, 9}, End: true}}, Interval: true},
			{Name: "m", KeyLen: 2, Map: true, Verdicts: true, Elements: []foreign.Element{{Key: []byte{0, 22}, Data: verdictData("c")}, {Rest: true, Data: verdictData("")}}},
		}}},
	}
}

// verdictData is a jump to a chain, or accept, as netlink nests it.
func verdictData(chain string) []byte {
	var w nfnetlink.Buffer
	at := w.Open(unix.NFTA_DATA_VERDICT)
	if chain != "" {
		w.U32(unix.NFTA_VERDICT_CODE, 0xfffffffd)
		w.Str(unix.NFTA_VERDICT_CHAIN, chain)
	} else {
		w.U32(unix.NFTA_VERDICT_CODE, 1)
	}
	w.Shut(at)
	return w.B
}

// NET-13: whatever bytes a rule has, it is evaluated and shown.
func FuzzExpressions(f *testing.F) {
	s := netlab.NewSpace(f, "host")
	s.Run(base("tcp dport { 22, 80-90 } ip saddr @named counter accept; fib daddr type local meta mark set 3; ct state vmap { new : jump other }; limit rate 3/second reject; iifname . tcp dport { \"eth0\" . 3 } drop"), "nft", "-f", "-")
	s.Run("*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -p tcp -m multiport --dports 22,80:90 -m conntrack --ctstate NEW --ctorigdstport 3 -m addrtype --dst-type LOCAL -m comment --comment x -j REJECT\n-A INPUT -m recent --set --name x -m hashlimit --hashlimit-above 3/s --hashlimit-name x -m iprange --src-range 1.2.3.4-1.2.3.9 -j DROP\nCOMMIT\n", "iptables-nft-restore")
	for _, t := range readAll(f, s).Tables {
		for _, c := range t.Chains {
			for _, l := range c.Lines {
				f.Add(l.Expressions)
			}
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) { ask(t, chainsOf(b)) })
}

// Matches and targets of xtables are read from memory as it was on some machine: any name, revision and
// content is taken.
func FuzzMatches(f *testing.F) {
	for _, name := range []string{"tcp", "udp", "multiport", "conntrack", "state", "addrtype", "iprange", "mark", "connmark", "set", "recent", "connlimit", "hashlimit", "rpfilter", "policy", "icmp", "pkttype", "DNAT", "REDIRECT", "MARK", "CONNMARK", "CT"} {
		for rev := range uint8(4) {
			f.Add(name, rev, []byte("\x01\x00\x16\x00\xff\xff\x01\x02"))
			f.Add(name, rev, make([]byte, 320))
		}
	}
	f.Fuzz(func(t *testing.T, name string, rev uint8, info []byte) {
		var w nfnetlink.Buffer
		for _, kind := range []string{"match", "target"} {
			item := w.Open(unix.NFTA_LIST_ELEM)
			w.Str(unix.NFTA_EXPR_NAME, kind)
			data := w.Open(unix.NFTA_EXPR_DATA)
			w.Str(unix.NFTA_MATCH_NAME, name)
			w.U32(unix.NFTA_MATCH_REV, uint32(rev))
			if len(info) < 60000 {
				w.Bytes(unix.NFTA_MATCH_INFO, info)
			}
			w.Shut(data)
			w.Shut(item)
		}
		ask(t, chainsOf(w.B))
	})
}

// Legacy xtables are read from text.
func FuzzSave(f *testing.F) {
	f.Add("*filter\n:INPUT DROP [0:0]\n:x - [0:0]\n-A INPUT -i eth+ -s 10.0.0.0/8 ! -p udp -m tcp --dport 22:23 -m state --state NEW -m comment --comment \"a \\\" b\" -j x\n-A x -m set ! --match-set s src -g INPUT\n-A x -d 10.0.0.0/255.0.255.0 -j REJECT --reject-with tcp-reset\nCOMMIT\n")
	f.Add("*nat\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -p tcp --dport 80 -j DNAT --to-destination [2001:db8::1]:80\n-A PREROUTING -j REDIRECT --to-ports 1-2\nCOMMIT\n")
	f.Fuzz(func(t *testing.T, text string) {
		if tables, err := foreign.ParseSaveAll("ip", strings.NewReader(text)); err == nil {
			ask(t, foreign.Ruleset{Legacy: tables})
		}
	})
}

package firewall

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"mesh/shared/rule"
)

// linear is the table in which each declared rule is a rule of its own.
func linear(f Filter) (Table, error) {
	t, err := Compile(f)
	if err != nil {
		return Table{}, err
	}
	d := declared{known: map[string]bool{}}
	for _, o := range t.openings {
		if o.Protocol != 0 {
			d.protocol(o)
		} else {
			d.alone(o)
		}
	}
	t.sets = append(linkSets(f), d.sets...)
	t.chain("declared").lines, t.chain("untracked").lines = d.lines(), d.untracked
	return t, nil
}

// probe is the first packet of a flow from outside.
type probe struct {
	six       bool
	link      string
	source    netip.Addr
	protocol  byte
	port      uint16
	untracked bool
}

// load is what l finds; ok is false where the kernel ends the rule.
func (p probe) load(l load) (v []byte, ok bool) {
	port := binary.BigEndian.AppendUint16(nil, p.port)
	switch {
	case l.kind == loadMeta && l.key == unix.NFT_META_NFPROTO:
		return []byte{map[bool]byte{false: unix.NFPROTO_IPV4, true: unix.NFPROTO_IPV6}[p.six]}, true
	case l.kind == loadMeta && l.key == unix.NFT_META_L4PROTO:
		return []byte{p.protocol}, true
	case l.kind == loadMeta && l.key == unix.NFT_META_IIFNAME:
		return append([]byte(p.link), make([]byte, 16-len(p.link))...), true
	case l.kind == loadCT && l.key == unix.NFT_CT_STATE:
		return native(map[bool]uint32{false: 1 << 3, true: ctUntracked}[p.untracked]), true
	case l.kind == loadCT && l.key == unix.NFT_CT_PROTO_DST && l.directed:
		return port, !p.untracked && (p.protocol == unix.IPPROTO_TCP || p.protocol == unix.IPPROTO_UDP)
	case l == network(12, 4), l == network(8, 16):
		return p.source.AsSlice(), true
	case l == network(6, 1):
		return []byte{p.protocol}, true
	case l == transport(2, 2):
		return port, true
	}
	return nil, false
}

// meets follows p through a chain: whether it is let in, and by the name of which counter.
func (t Table) meets(p probe, name string) (in bool, counter string, err error) {
lines:
	for _, l := range t.chain(name).lines {
		counter := l.counter
		for _, m := range l.match {
			var key []byte
			for _, load := range m.loads {
				v, ok := p.load(load)
				if !ok {
					continue lines
				}
				if key = append(key, v...); len(m.loads) > 1 {
					key = append(key, make([]byte, -len(v)&3)...)
				}
			}
			for i := range m.mask {
				key[i] &= m.mask[i]
			}
			found := false
			switch {
			case m.set != "":
				s := t.set(m.set)
				if len(key) != int(s.kind.size) {
					return false, "", fmt.Errorf("set %s is asked with %d bytes", s.name, len(key))
				}
				at := slices.IndexFunc(s.elements, func(e element) bool {
					return bytes.Equal(e.first, key) || s.interval && bytes.Compare(e.first, key) <= 0 && bytes.Compare(key, e.last) <= 0
				})
				if found = at >= 0; found && s.counted {
					counter = nameOf(s.name, s.elements[at].words)
				}
			case m.last != nil:
				found = bytes.Compare(m.value, key) <= 0 && bytes.Compare(key, m.last) <= 0
			default:
				found = bytes.HasPrefix(key, m.value)
			}
			if found == m.not {
				continue lines
			}
		}
		switch l.verdict.chain {
		case "":
			return l.verdict == accept, counter, nil
		default:
			return t.meets(p, l.verdict.chain)
		}
	}
	return false, "", nil
}

// lets reports whether a lets p in.
func lets(a rule.Allow, p probe, tunnel []string) bool {
	switch {
	case a.Protocol != 0 && byte(a.Protocol) != p.protocol:
		return false
	case a.Protocol == 0 && (number(a.Port.Protocol) != p.protocol || p.port < a.Port.First || p.port > a.Port.Last):
		return false
	case a.From.Tunnel:
		return slices.Contains(tunnel, p.link)
	}
	return a.From.Anywhere || slices.ContainsFunc(a.From.Prefixes, func(x netip.Prefix) bool { return x.Contains(p.source) })
}

// The same packets are let in whether declared rules are elements or rules, tracked or not, and each is counted
// by a rule that lets it in.
func TestElementsMeanTheRules(t *testing.T) {
	addresses := []string{"203.0.113.7", "203.0.113.8", "203.0.113.77", "198.51.100.9", "192.0.2.1", "2001:db8::7", "2001:db8::8", "2001:db8:1::1"}
	prefixes := []string{"203.0.113.7/32", "203.0.113.8/32", "203.0.113.0/24", "203.0.113.64/26", "198.51.100.9/32", "0.0.0.0/0", "2001:db8::7/128", "2001:db8::8/128", "2001:db8::/64", "::/0"}
	rapid.Check(t, func(t *rapid.T) {
		f := Filter{Outside: []string{"up0"}, Tunnel: []string{"mesh0"}}
		for range rapid.IntRange(0, 30).Draw(t, "rules") {
			first := rapid.Uint16Range(1, 12).Draw(t, "first")
			a := rule.Allow{Owner: rapid.SampledFrom([]string{"a", "b-b", "c"}).Draw(t, "owner"), Port: rule.Port{
				First: first, Last: rapid.OneOf(rapid.Just(first), rapid.Uint16Range(first, 13)).Draw(t, "last"), Protocol: rapid.SampledFrom([]string{"tcp", "udp"}).Draw(t, "protocol")}}
			switch rapid.IntRange(0, 4).Draw(t, "from") {
			case 0:
				a.From.Anywhere = true
			case 1:
				a.From.Tunnel = true
			default:
				for range rapid.IntRange(1, 3).Draw(t, "prefixes") {
					a.From.Prefixes = append(a.From.Prefixes, netip.MustParsePrefix(rapid.SampledFrom(prefixes).Draw(t, "prefix")))
				}
			}
			if rapid.IntRange(0, 9).Draw(t, "whole") == 0 {
				a.Port, a.Protocol = rule.Port{}, rapid.SampledFrom([]rule.Protocol{50, 51}).Draw(t, "number")
			}
			f.Allow = append(f.Allow, a)
		}
		table, err := Compile(f)
		if err != nil {
			t.Fatal(err)
		}
		old, err := linear(f)
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			p := probe{link: rapid.SampledFrom([]string{"up0", "mesh0"}).Draw(t, "link"), source: netip.MustParseAddr(rapid.SampledFrom(addresses).Draw(t, "source")),
				protocol: rapid.SampledFrom([]byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP, 50, 51}).Draw(t, "protocol"), port: rapid.Uint16Range(0, 14).Draw(t, "port"), untracked: rapid.Bool().Draw(t, "untracked")}
			p.six = p.source.Is6()
			want := slices.ContainsFunc(f.Allow, func(a rule.Allow) bool { return lets(a, p, f.Tunnel) })
			in, counter, err := table.meets(p, "declared")
			was, _, errWas := old.meets(p, "declared")
			if err != nil || errWas != nil || in != want || was != want {
				t.Fatalf("%+v: let in %v, as rules %v, declared %v; %v, %v\n%s", p, in, was, want, err, errWas, table.Text())
			}
			if a, ok := table.Rule(counter); in && (!ok || !lets(a, p, f.Tunnel)) {
				t.Fatalf("%+v is counted by %q\n%s", p, counter, table.Text())
			}
		}
	})
}

// What fits into no set because another is there is a rule of its own; nothing else is.
func TestFewRulesAreLeft(t *testing.T) {
	f := Filter{Outside: []string{"up0"}}
	add := func(owner, words string) {
		a, err := rule.ParseAllow(words)
		if err != nil {
			t.Fatal(err)
		}
		a.Owner = owner
		f.Allow = append(f.Allow, a)
	}
	for i := range 1000 {
		add("many", fmt.Sprintf("%d/tcp from anywhere", 1000+i))
		add("many", fmt.Sprintf("%d-%d/udp from tunnel", 1000+10*i, 1009+10*i))
		add("many", fmt.Sprintf("5432/tcp from 192.0.%d.%d, 2001:db8::%x", 2+i/250, i%250, i))
		add("many", fmt.Sprintf("%d/udp from 203.0.113.0/24, 2001:db8::/64", 1000+i))
	}
	rules := func() int {
		table, err := Compile(f)
		if err != nil {
			t.Fatal(err)
		}
		return len(table.chain("declared").lines)
	}
	before := rules()
	if before > 10 {
		t.Errorf("%d rules for %d declared ones", before, len(f.Allow))
	}
	add("second", "1000/tcp from anywhere")
	add("second", "1005-1012/udp from tunnel")
	if after := rules(); after != before+2 {
		t.Errorf("%d rules after two that overlap, %d before", after, before)
	}
}

package firewall

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"mesh/shared/rule"
)

// Bits of a conntrack entry (linux/netfilter/nf_conntrack_common.h), as nft names them.
const (
	ctEstablished, ctRelated, ctUntracked = 1 << 1, 1 << 2, 1 << 6
	ctDNAT                                = 1 << 5
)

// Registers are 16 bytes; a term uses the first, a pair of link names the second too.
func native(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

func meta(key uint32) load       { return load{kind: loadMeta, key: key} }
func ct(key uint32) load         { return load{kind: loadCT, key: key} }
func ctOriginal(key uint32) load { return load{kind: loadCT, key: key, directed: true} }
func payload(base, offset, size int) load {
	return load{kind: loadPayload, key: uint32(base), offset: uint32(offset), size: uint32(size)}
}
func hidden(l load, value ...byte) term { return term{loads: []load{l}, value: value} }
func ipv4() term                        { return hidden(meta(unix.NFT_META_NFPROTO), unix.NFPROTO_IPV4) }
func ipv6() term                        { return hidden(meta(unix.NFT_META_NFPROTO), unix.NFPROTO_IPV6) }
func l4(number byte) term               { return hidden(meta(unix.NFT_META_L4PROTO), number) }
func transport(offset, size int) load {
	return payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, offset, size)
}
func network(offset, size int) load { return payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, size) }
func ctState(words string, bits uint32) term {
	return term{text: "ct state " + words, loads: []load{ct(unix.NFT_CT_STATE)}, mask: native(bits), value: native(0), not: true}
}

// iifname, never iif: a link that is made anew has another index, and its name is known before it is.
func iifname(not bool, set string) term {
	text := "iifname @" + set
	if not {
		text = "iifname != @" + set
	}
	return term{text: text, loads: []load{meta(unix.NFT_META_IIFNAME)}, set: set, not: not}
}

// known are the packets that meet no rule: what arrived over a link that is inside, by all that is known
// of it or because a person said so of a name that is outside for others (trusted), and answers.
func known(trusted bool) []line {
	var lines []line
	if trusted {
		lines = []line{{match: []term{iifname(false, "inside")}, counter: true, verdict: accept, comment: "declared inside"}}
	}
	return append(lines, []line{
		{match: []term{iifname(true, "outside")}, counter: true, verdict: accept, comment: "did not arrive from outside"},
		{match: []term{ctState("established,related", ctEstablished|ctRelated)}, counter: true, verdict: accept, comment: "part of a known flow"},
	}...)
}

// The policy is accept and the last line refuses what came from outside: loopback and containers
// never depend on this table.
func inputLines(trusted bool) []line {
	return append(known(trusted), line{verdict: jump("control")}, line{verdict: jump("declared")}, line{verdict: goTo("refuse")})
}

// In forward a declared port counts only for what was published by DNAT: a neighbour that routes to
// a container's address reaches nothing.
func forwardLines(trusted bool) []line {
	return append(known(trusted),
		line{match: []term{{text: "iifname . oifname @same_bridge", loads: []load{meta(unix.NFT_META_IIFNAME), meta(unix.NFT_META_OIFNAME)}, set: "same_bridge"}},
			counter: true, verdict: accept, comment: "bridged, not routed"},
		line{match: []term{{text: "ct status dnat", loads: []load{ct(unix.NFT_CT_STATUS)}, mask: native(ctDNAT), value: native(0), not: true}},
			verdict: jump("declared")},
		line{verdict: goTo("refuse")},
	)
}

func refuseLines() []line {
	return []line{
		{limit: &limit{rate: 10, unit: perMinute, burst: 20}, log: "mesh refused: "},
		{counter: true, verdict: drop, comment: "refused"},
	}
}

func bytesElement(text string, b byte) element { return element{first: []byte{b}, text: text} }

// controlSets name the ICMP types let in (RFC 4890 for ICMPv6). They are named sets, so that the
// table has none without a name and reads back as it was written.
func controlSets() []set {
	return []set{
		{name: "icmp_errors", kind: kindICMP, elements: []element{
			bytesElement("destination-unreachable", 3), bytesElement("time-exceeded", 11), bytesElement("parameter-problem", 12)}},
		{name: "icmpv6_errors", kind: kindICMPv6, elements: []element{
			bytesElement("destination-unreachable", 1), bytesElement("packet-too-big", 2), bytesElement("time-exceeded", 3), bytesElement("parameter-problem", 4)}},
		{name: "icmpv6_neighbours", kind: kindICMPv6, elements: []element{
			bytesElement("nd-router-advert", 134), bytesElement("nd-neighbor-solicit", 135), bytesElement("nd-neighbor-advert", 136), bytesElement("nd-redirect", 137)}},
		{name: "icmpv6_listeners", kind: kindICMPv6, elements: []element{
			bytesElement("mld-listener-query", 130), bytesElement("mld-listener-report", 131), bytesElement("mld-listener-done", 132), bytesElement("mld2-listener-report", 143)}},
	}
}

// controlLines are the protocol's own needs: errors, neighbours, group listeners, DHCP answers and a
// bounded ping.
func controlLines() []line {
	icmpType := func(set string) []term {
		return []term{ipv4(), l4(unix.IPPROTO_ICMP), {text: "icmp type @" + set, loads: []load{transport(0, 1)}, set: set}}
	}
	icmpv6Type := func(set string) []term {
		return []term{ipv6(), l4(unix.IPPROTO_ICMPV6), {text: "icmpv6 type @" + set, loads: []load{transport(0, 1)}, set: set}}
	}
	linkLocal := term{text: "ip6 saddr fe80::/10", loads: []load{network(8, 16)},
		mask: append([]byte{0xff, 0xc0}, make([]byte, 14)...), value: append([]byte{0xfe, 0x80}, make([]byte, 14)...)}
	ports := func(source, destination uint16) term {
		v := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, source), destination)
		return term{text: fmt.Sprintf("udp sport %d udp dport %d", source, destination), loads: []load{transport(0, 4)}, value: v}
	}
	ping := func(first term, protocol, number byte, text string) line {
		return line{match: []term{first, l4(protocol), {text: text, loads: []load{transport(0, 1)}, value: []byte{number}}},
			limit: &limit{rate: 20, unit: perSecond, burst: 40}, counter: true, verdict: accept, comment: "ping"}
	}
	return []line{
		{match: []term{{text: "ct original ip daddr 127.0.0.0/8", loads: []load{ctOriginal(unix.NFT_CT_DST_IP)}, value: []byte{127}}},
			counter: true, verdict: drop, comment: "loopback address from outside"},
		{match: icmpType("icmp_errors"), counter: true, verdict: accept},
		{match: icmpv6Type("icmpv6_errors"), counter: true, verdict: accept},
		{match: append(icmpv6Type("icmpv6_neighbours"), term{text: "ip6 hoplimit 255", loads: []load{network(7, 1)}, value: []byte{255}}),
			counter: true, verdict: accept, comment: "neighbours and routers"},
		{match: append(icmpv6Type("icmpv6_listeners"), linkLocal), counter: true, verdict: accept},
		{match: []term{ipv4(), {text: "ip protocol igmp", loads: []load{network(9, 1)}, value: []byte{unix.IPPROTO_IGMP}},
			{text: "ip daddr 224.0.0.0/4", loads: []load{network(16, 4)}, mask: []byte{0xf0, 0, 0, 0}, value: []byte{224, 0, 0, 0}}},
			counter: true, verdict: accept},
		{match: []term{l4(unix.IPPROTO_UDP), ports(67, 68)}, counter: true, verdict: accept, comment: "DHCP"},
		{match: []term{ipv6(), linkLocal, l4(unix.IPPROTO_UDP), ports(547, 546)}, counter: true, verdict: accept, comment: "DHCPv6"},
		ping(ipv4(), unix.IPPROTO_ICMP, 8, "icmp type echo-request"),
		ping(ipv6(), unix.IPPROTO_ICMPV6, 128, "icmpv6 type echo-request"),
	}
}

// fromNames are the names the sets of a From carry, and its place in the order of rules.
type fromNames struct {
	rank  int
	short string // "any", "tunnel" or a digest of the addresses
}

func nameFrom(f rule.From) fromNames {
	switch {
	case f.Anywhere:
		return fromNames{0, "any"}
	case f.Tunnel:
		return fromNames{1, "tunnel"}
	}
	// 64 bits: two different sets of addresses never share a name.
	sum := sha256.Sum256([]byte(f.String()))
	return fromNames{2, hex.EncodeToString(sum[:8])}
}

// who is the terms that say where a packet may come from: one list for each family of addresses.
func (g group) who() (alternatives [][]term, sets []set) {
	switch {
	case g.from.Anywhere:
		return [][]term{nil}, nil
	case g.from.Tunnel:
		return [][]term{{iifname(false, "tunnel")}}, nil
	}
	if e := prefixElements(g.from.Prefixes, false); len(e) > 0 {
		s := set{name: "a_" + g.names.short + "_v4", kind: kindIPv4, interval: true, merge: true, elements: e}
		sets = append(sets, s)
		alternatives = append(alternatives, []term{ipv4(), {text: "ip saddr @" + s.name, loads: []load{network(12, 4)}, set: s.name}})
	}
	if e := prefixElements(g.from.Prefixes, true); len(e) > 0 {
		s := set{name: "a_" + g.names.short + "_v6", kind: kindIPv6, interval: true, merge: true, elements: e}
		sets = append(sets, s)
		alternatives = append(alternatives, []term{ipv6(), {text: "ip6 saddr @" + s.name, loads: []load{network(8, 16)}, set: s.name}})
	}
	return alternatives, sets
}

// declare makes the rules of the chain declared and the sets they use. Rules match the port as the
// sender asked for it (ct original proto-dst), so one rule covers a service of the host and a port
// published to a container. Packets that a raw table keeps from being tracked have no original port:
// for them a twin for each protocol and From matches the port itself.
func declare(groups []group) (sets []set, lines []line) {
	var addresses, ports []set
	twins := map[string]*group{}
	for _, g := range groups {
		who, more := g.who()
		for _, s := range more {
			if !slices.ContainsFunc(addresses, func(o set) bool { return o.name == s.name }) {
				addresses = append(addresses, s)
			}
		}
		what, portSet := g.portTerm("r_"+g.owner+"_"+g.protocol+"_"+g.names.short, "ct original proto-dst", ctOriginal(unix.NFT_CT_PROTO_DST))
		ports = append(ports, portSet...)
		for _, from := range who {
			lines = append(lines, line{match: slices.Concat(from, []term{g.shownL4(), what}), counter: true, verdict: accept, comment: g.words()})
		}
		key := fmt.Sprint(g.names.rank, g.from, g.protocol)
		if twins[key] == nil {
			twins[key] = &group{owner: "untracked", protocol: g.protocol, from: g.from, names: g.names}
		}
		twins[key].ports = append(twins[key].ports, g.ports...)
	}
	for _, key := range sortedKeys(twins) {
		g := twins[key]
		slices.SortFunc(g.ports, comparePorts)
		who, _ := g.who()
		what, portSet := g.portTerm("u_"+g.protocol+"_"+g.names.short, g.protocol+" dport", transport(2, 2))
		ports = append(ports, portSet...)
		for _, from := range who {
			match := slices.Concat([]term{ctState("untracked", ctUntracked)}, from, []term{l4(g.number()), what})
			lines = append(lines, line{match: match, counter: true, verdict: accept, comment: "untracked: " + g.protocol + " from " + cut(g.from.String(), 90)})
		}
	}
	slices.SortFunc(addresses, func(a, b set) int { return strings.Compare(a.name, b.name) })
	return append(addresses, ports...), lines
}

func (g group) number() byte {
	if g.protocol == "udp" {
		return unix.IPPROTO_UDP
	}
	return unix.IPPROTO_TCP
}

func (g group) shownL4() term {
	t := l4(g.number())
	t.text = "meta l4proto " + g.protocol
	return t
}

// portTerm compares with a single port, or looks several up in a named set: nft 1.0.6 prints
// anonymous sets of original ports so that they no longer load.
func (g group) portTerm(name, text string, l load) (term, []set) {
	e := portElements(g.ports)
	if len(e) == 1 && string(e[0].first) == string(e[0].last) {
		return term{text: text + " " + e[0].text, loads: []load{l}, value: e[0].first}, nil
	}
	return term{text: text + " @" + name, loads: []load{l}, set: name}, []set{{name: name, kind: kindPort, interval: true, elements: e}}
}

// words is the rule as the manifest says it, within the 127 bytes of a comment.
func (g group) words() string {
	list := make([]string, len(g.ports))
	for i, p := range g.ports {
		list[i] = p.String()
	}
	return g.owner + ": " + cut(strings.Join(list, ", "), 40) + " from " + cut(g.from.String(), 36)
}

// cut shortens a list to at most size bytes and says how many entries it left out.
func cut(list string, size int) string {
	if len(list) <= size {
		return list
	}
	total := strings.Count(list, ", ") + 1
	short := list[:size]
	for n, end := 1, strings.Index(list, ", "); end >= 0 && end < size; n++ {
		if s := fmt.Sprintf("%s and %d more", list[:end], total-n); len(s) <= size {
			short = s
		}
		next := strings.Index(list[end+2:], ", ")
		if next < 0 {
			break
		}
		end += 2 + next
	}
	return short
}

func sortedKeys(m map[string]*group) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

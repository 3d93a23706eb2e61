package firewall

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// Bits of a conntrack entry (linux/netfilter/nf_conntrack_common.h), as nft names them.
const (
	ctEstablished, ctRelated, ctUntracked = 1 << 1, 1 << 2, 1 << 6
	ctDNAT                                = 1 << 5
)

func native(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

func meta(key uint32) load       { return load{kind: loadMeta, key: key} }
func ct(key uint32) load         { return load{kind: loadCT, key: key} }
func ctOriginal(key uint32) load { return load{kind: loadCT, key: key, directed: true} }
func linkName(key uint32) load   { return load{kind: loadMeta, key: key, size: 16} }
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
func known(at string, trusted bool) []line {
	var lines []line
	if trusted {
		lines = []line{{match: []term{iifname(false, "inside")}, counter: "inside_" + at, verdict: accept, comment: "declared inside"}}
	}
	return append(lines, []line{
		{match: []term{iifname(true, "outside")}, counter: "inside_" + at, verdict: accept, comment: "did not arrive from outside"},
		{match: []term{ctState("established,related", ctEstablished|ctRelated)}, counter: "answers_" + at, verdict: accept, comment: "part of a known flow"},
	}...)
}

// The policy is accept and the last line refuses what came from outside: loopback and containers
// never depend on this table.
func inputLines(trusted bool) []line {
	return append(known("input", trusted), line{verdict: jump("control")}, line{verdict: jump("declared")}, line{verdict: goTo("refuse")})
}

// In forward a declared port counts only for what was published by DNAT: a neighbour that routes to
// a container's address reaches nothing.
func forwardLines(trusted bool) []line {
	return append(known("forward", trusted),
		line{match: []term{{text: "iifname . oifname @same_bridge", loads: []load{linkName(unix.NFT_META_IIFNAME), linkName(unix.NFT_META_OIFNAME)}, set: "same_bridge"}},
			counter: "bridged", verdict: accept, comment: "bridged, not routed"},
		line{match: []term{{text: "ct status dnat", loads: []load{ct(unix.NFT_CT_STATUS)}, mask: native(ctDNAT), value: native(0), not: true}},
			verdict: jump("declared")},
		line{verdict: goTo("refuse")},
	)
}

func refuseLines() []line {
	return []line{
		{limit: &limit{rate: 10, unit: perMinute, burst: 20}, log: "mesh refused: "},
		{counter: "refused", verdict: drop, comment: "refused"},
	}
}

// ownCounts says what the counters of the lines above and of control count. Two of a kind are told apart,
// and what has no comment has words.
var ownCounts = []struct{ name, words string }{
	{"inside_input", "to this machine, not from outside"}, {"inside_forward", "through this machine, not from outside"},
	{"answers_input", "to this machine, part of a known flow"}, {"answers_forward", "through this machine, part of a known flow"},
	{"bridged", "bridged, not routed"}, {"loopback", "refused: a loopback address from outside"},
	{"errors", "ICMP errors"}, {"neighbours", "neighbours and routers of IPv6"}, {"listeners", "group listeners"},
	{"dhcp", "DHCP"}, {"ping", "ping"}, {"refused", "refused"},
}

func ownCounters() []string {
	all := make([]string, len(ownCounts))
	for i, c := range ownCounts {
		all[i] = c.name
	}
	return all
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
			limit: &limit{rate: 20, unit: perSecond, burst: 40}, counter: "ping", verdict: accept, comment: "ping"}
	}
	return []line{
		{match: []term{{text: "ct original ip daddr 127.0.0.0/8", loads: []load{ctOriginal(unix.NFT_CT_DST_IP)}, value: []byte{127}}},
			counter: "loopback", verdict: drop, comment: "loopback address from outside"},
		{match: icmpType("icmp_errors"), counter: "errors", verdict: accept},
		{match: icmpv6Type("icmpv6_errors"), counter: "errors", verdict: accept},
		{match: append(icmpv6Type("icmpv6_neighbours"), term{text: "ip6 hoplimit 255", loads: []load{network(7, 1)}, value: []byte{255}}),
			counter: "neighbours", verdict: accept, comment: "neighbours and routers"},
		{match: append(icmpv6Type("icmpv6_listeners"), linkLocal), counter: "listeners", verdict: accept},
		{match: []term{ipv4(), {text: "ip protocol igmp", loads: []load{network(9, 1)}, value: []byte{unix.IPPROTO_IGMP}},
			{text: "ip daddr 224.0.0.0/4", loads: []load{network(16, 4)}, mask: []byte{0xf0, 0, 0, 0}, value: []byte{224, 0, 0, 0}}},
			counter: "listeners", verdict: accept},
		{match: []term{l4(unix.IPPROTO_UDP), ports(67, 68)}, counter: "dhcp", verdict: accept, comment: "DHCP"},
		{match: []term{ipv6(), linkLocal, l4(unix.IPPROTO_UDP), ports(547, 546)}, counter: "dhcp", verdict: accept, comment: "DHCPv6"},
		ping(ipv4(), unix.IPPROTO_ICMP, 8, "icmp type echo-request"),
		ping(ipv6(), unix.IPPROTO_ICMPV6, 128, "icmpv6 type echo-request"),
	}
}

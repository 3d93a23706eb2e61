package evaluate

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"mesh/firewall/foreign"
	"mesh/firewall/internal/nfnetlink"
)

// blob reads the structures of xtables, which travel as the machine has them in memory. What lies past
// the end reads as zeros; short says that it came to that.
type blob struct {
	b     []byte
	short bool
}

func (x *blob) bytes(at, n int) []byte {
	if at+n > len(x.b) {
		x.short = true
		return make([]byte, n)
	}
	return x.b[at : at+n]
}

func (x *blob) u8(at int) uint8   { return x.bytes(at, 1)[0] }
func (x *blob) u16(at int) uint16 { return binary.NativeEndian.Uint16(x.bytes(at, 2)) }
func (x *blob) u32(at int) uint32 { return binary.NativeEndian.Uint32(x.bytes(at, 4)) }
func (x *blob) be16(at int) uint16 {
	return binary.BigEndian.Uint16(x.bytes(at, 2))
}

// xt is a match of xtables, decoded or by the words of iptables-save.
type xt interface {
	// asks is what the match says of the packet.
	asks(s *step) truth
	// words are iptables' for it.
	words() string
}

// xtMatch asks a match.
func (s *step) xtMatch(x expression) truth {
	m := decodeMatch(x, s.e.rs)
	if m == nil {
		return perhaps
	}
	return m.asks(s)
}

// decodeMatch is nil for a match that is not known.
func decodeMatch(x expression, rs *foreign.Ruleset) xt {
	name, rev := nfnetlink.Text(x.attribute(unix.NFTA_MATCH_NAME)), x.number(unix.NFTA_MATCH_REV)
	b := &blob{b: x.attribute(unix.NFTA_MATCH_INFO)}
	m := decodeBlob(name, rev, b, rs)
	if b.short {
		return nil
	}
	return m
}

func decodeBlob(name string, rev uint32, b *blob, rs *foreign.Ruleset) xt {
	switch name {
	case "comment":
		return always{"-m comment"}
	case "tcp":
		flags := b.u8(11)
		return portsMatch{protocol: "tcp", from: [][2]uint16{{b.u16(0), b.u16(2)}}, to: [][2]uint16{{b.u16(4), b.u16(6)}}, notFrom: flags&1 != 0, notTo: flags&2 != 0,
			option: b.u8(8), flagMask: b.u8(9), flagWant: b.u8(10), notFlags: flags&4 != 0, notOption: flags&8 != 0}
	case "udp", "udplite":
		flags := b.u8(8)
		return portsMatch{protocol: name, from: [][2]uint16{{b.u16(0), b.u16(2)}}, to: [][2]uint16{{b.u16(4), b.u16(6)}}, notFrom: flags&1 != 0, notTo: flags&2 != 0}
	case "multiport":
		return decodeMultiport(rev, b)
	case "icmp", "icmp6":
		return icmpMatch{kind: b.u8(0), low: b.u8(1), high: b.u8(2), not: b.u8(3)&1 != 0}
	case "conntrack":
		return decodeConntrack(rev, b)
	case "state":
		return stateMatch{mask: b.u32(0), untracked: 1 << 6}
	case "addrtype":
		return decodeAddrType(rev, b)
	case "iprange":
		if rev == 1 {
			return decodeIPRange(b)
		}
	case "mark", "connmark":
		if rev == 1 {
			return markMatch{value: b.u32(0), mask: b.u32(4), not: b.u8(8) != 0, connection: name == "connmark"}
		}
	case "pkttype":
		return packetType{kind: uint8(b.u32(0)), not: b.u32(4) != 0}
	case "limit":
		return rateMatch{text: "-m limit"}
	case "set":
		if rev > 0 {
			return setMatch{set: ipset(rs, b.u16(0)), dim: b.u8(2), flags: b.u8(3)}
		}
	}
	return decodeRare(name, rev, b)
}

// decodeRare knows matches of which only the usual case can be told.
func decodeRare(name string, rev uint32, b *blob) xt {
	switch name {
	case "recent": // seconds, count, what, inverted
		if set := b.u8(8); set&2 != 0 { // --set always matches
			return always{"-m recent --set"}
		}
		return rateMatch{over: b.u8(9) == 0, text: "-m recent"}
	case "connlimit":
		if rev == 1 { // mask of 16 bytes, limit, flags
			return rateMatch{over: b.u32(20)&1 == 0, text: "-m connlimit"}
		}
	case "hashlimit": // a name, then the mode; revision 1 has a longer name
		const inverted = 1 << 5
		at := map[uint32]int{1: 16, 2: 256, 3: 256}[rev]
		if at == 0 {
			return nil
		}
		mode := b.u32(hashlimitMode(rev, at))
		return rateMatch{over: mode&inverted != 0, text: "-m hashlimit"}
	case "rt", "frag", "hbh", "dst", "ah", "esp", "eui64":
		return never{"-m " + name} // an ordinary packet has none of these headers
	case "sctp", "dccp":
		return never{"-m " + name}
	case "physdev": // the names of two ports with masks, what is inverted, what is asked
		return physdev{inverted: b.u8(64), asked: b.u8(65)}
	case "mac": // an address of hardware, with room behind it
		return rateMatch{over: b.u32(8) == 0, text: "-m mac"}
	case "helper":
		return never{"-m helper"} // a new flow has none
	case "rpfilter":
		return rpFilter{loose: b.u8(0)&1 != 0, not: b.u8(0)&8 != 0}
	case "policy":
		return decodePolicy(b)
	}
	return nil
}

// hashlimitMode is where the mode stands: after the name, with the alignment of what follows.
func hashlimitMode(rev uint32, at int) int {
	if rev == 1 {
		return at
	}
	return at + 16 // after the average and the burst, of 8 bytes each
}

// always is a match that an ordinary packet meets, never one that it does not.
type (
	always struct{ text string }
	never  struct{ text string }
)

func (m always) asks(*step) truth { return yes }
func (m always) words() string    { return m.text }
func (m never) asks(*step) truth  { return no }
func (m never) words() string     { return m.text }

// rateMatch is a limit: over matches what comes too often.
type rateMatch struct {
	over bool
	text string
}

func (m rateMatch) asks(*step) truth { return above(m.over) }
func (m rateMatch) words() string    { return m.text }

type portsMatch struct {
	protocol               string
	from, to, any          [][2]uint16
	notFrom, notTo, notAny bool
	option                 uint8
	notOption              bool
	flagMask, flagWant     uint8
	notFlags               bool
}

func (m portsMatch) asks(s *step) truth {
	if number, known := map[string]uint8{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "udplite": unix.IPPROTO_UDPLITE}[m.protocol]; known && number != s.p.Protocol {
		return no
	}
	if !ports(s.p.Protocol) {
		return no
	}
	t := yes
	if m.from != nil {
		t = t.and(truthOf(inRanges(ephemeral, m.from) != m.notFrom))
	}
	if m.to != nil {
		t = t.and(truthOf(inRanges(s.to.Port(), m.to) != m.notTo))
	}
	if m.any != nil {
		t = t.and(truthOf((inRanges(s.to.Port(), m.any) || inRanges(ephemeral, m.any)) != m.notAny))
	}
	if m.flagMask != 0 {
		t = t.and(truthOf((2&m.flagMask == m.flagWant) != m.notFlags))
	}
	if m.option != 0 {
		t = t.and(perhaps)
	}
	return t
}

func inRanges(n uint16, ranges [][2]uint16) bool {
	for _, r := range ranges {
		if n >= r[0] && n <= r[1] {
			return true
		}
	}
	return false
}

func decodeMultiport(rev uint32, b *blob) xt {
	if rev > 1 {
		return nil
	}
	count := int(b.u8(1))
	if count > 15 {
		return nil
	}
	var ranges [][2]uint16
	for i := 0; i < count; i++ {
		one := [2]uint16{b.u16(2 + 2*i), b.u16(2 + 2*i)}
		if rev == 1 && b.u8(32+i) != 0 && i+1 < count { // the first of a range
			one[1] = b.u16(2 + 2*(i+1))
			i++
		}
		ranges = append(ranges, one)
	}
	not := rev == 1 && b.u8(47) != 0
	switch b.u8(0) {
	case 0:
		return portsMatch{from: ranges, notFrom: not}
	case 1:
		return portsMatch{to: ranges, notTo: not}
	}
	return portsMatch{any: ranges, notAny: not}
}

type icmpMatch struct {
	kind, low, high uint8
	not             bool
}

func (m icmpMatch) asks(s *step) truth {
	if s.p.Protocol != unix.IPPROTO_ICMP && s.p.Protocol != unix.IPPROTO_ICMPV6 {
		return no
	}
	is := m.kind == 0xff || byte(s.p.Port) == m.kind && m.low == 0
	return truthOf(is != m.not)
}

// stateMatch is the state of a connection, in xtables' bits.
type stateMatch struct {
	mask, untracked uint32
	not             bool
}

// xtables' bits of a state.
const (
	xtInvalid, xtNew, xtDNAT, xtUntracked = 1, 1 << 3, 1 << 7, 1 << 8
)

func (m stateMatch) asks(s *step) truth {
	bits := uint32(xtNew)
	switch {
	case s.skip:
		bits = m.untracked
	case !s.tracked:
		bits = xtInvalid
	case len(s.answer.NAT) > 0 && m.untracked == xtUntracked:
		bits |= xtDNAT
	}
	return truthOf((m.mask&bits != 0) != m.not)
}

// conntrackMatch is the match of that name: only the parts asked for count.
type conntrackMatch struct {
	flags, inverted  uint16
	state, status    uint32
	origin, target   [2]netip.Addr // address and mask
	low, high        uint16        // of the original destination port
	protocol         uint16
	fromLow, fromTop uint16
	rest             bool // something that is not decoded
}

// Flags of the conntrack match (linux/netfilter/xt_conntrack.h).
const (
	ctState, ctProto, ctOrigSrc, ctOrigDst = 1, 2, 4, 8
	ctReplSrc, ctReplDst, ctStatus         = 16, 32, 64
	ctOrigSrcPort, ctOrigDstPort           = 256, 512
	ctDirection, ctAlias                   = 4096, 8192
)

func decodeConntrack(rev uint32, b *blob) xt {
	if rev < 1 || rev > 3 {
		return nil
	}
	const at = 128 + 8 // eight addresses of 16 bytes, two times
	m := conntrackMatch{protocol: b.u16(at), fromLow: b.u16(at + 2), low: b.u16(at + 4), flags: b.u16(at + 10), inverted: b.u16(at + 12)}
	if rev == 1 {
		m.state, m.status = uint32(b.u8(at+14)), uint32(b.u8(at+15))
	} else {
		m.state, m.status = uint32(b.u16(at+14)), uint32(b.u16(at+16))
	}
	m.fromTop, m.high = m.fromLow, m.low
	if rev == 3 {
		m.fromTop, m.high = b.u16(at+18), b.u16(at+20)
	} else { // in network order there
		m.fromLow, m.low = b.be16(at+2), b.be16(at+4)
		m.fromTop, m.high = m.fromLow, m.low
	}
	m.origin = [2]netip.Addr{addressIn(b.bytes(0, 16)), addressIn(b.bytes(16, 16))}
	m.target = [2]netip.Addr{addressIn(b.bytes(32, 16)), addressIn(b.bytes(48, 16))}
	m.rest = m.flags&^(ctState|ctProto|ctOrigSrc|ctOrigDst|ctStatus|ctOrigSrcPort|ctOrigDstPort|ctDirection|ctAlias) != 0
	return m
}

func addressIn(b []byte) netip.Addr { a, _ := netip.AddrFromSlice(b); return a }

func (m conntrackMatch) asks(s *step) truth {
	t := yes
	each := func(flag uint16, is truth) {
		if m.flags&flag == 0 {
			return
		}
		if m.inverted&flag != 0 {
			is = is.not()
		}
		t = t.and(is)
	}
	each(ctState, stateMatch{mask: m.state, untracked: xtUntracked}.asks(s))
	if m.flags&^(ctState|ctAlias) != 0 && (s.skip || !s.tracked) {
		return no // no connection is known
	}
	each(ctProto, truthOf(m.protocol == uint16(s.p.Protocol)))
	from, n := s.sourceAt()
	each(ctOrigSrc, masked(part(s.ip, from, n), m.origin[0], m.origin[1]))
	each(ctOrigDst, masked(s.address(s.wanted.Addr()), m.target[0], m.target[1]))
	each(ctStatus, truthOf(m.status&s.status() != 0))
	each(ctOrigSrcPort, truthOf(ephemeral >= m.fromLow && ephemeral <= m.fromTop))
	each(ctOrigDstPort, truthOf(s.wanted.Port() >= m.low && s.wanted.Port() <= m.high))
	each(ctDirection, yes)
	if m.rest {
		return t.and(perhaps)
	}
	return t
}

// masked compares the masked bits of v with those of want, both held in 16 bytes.
func masked(v value, want, mask netip.Addr) truth {
	w, k := want.As16(), mask.As16()
	n := len(v.b)
	bits, part := 0, value{bytes.Clone(v.b), append([]knowledge(nil), v.k...)}
	for i := range n {
		for m := k[i]; m != 0; m &= m - 1 {
			bits++
		}
	}
	wanted := make([]byte, n)
	for i := range n {
		part.b[i], wanted[i] = v.b[i]&k[i], w[i]&k[i]
		if k[i] == 0 || v.k[i] == source && bits <= few {
			part.k[i] = sure
		}
	}
	return part.equal(wanted)
}

// addrType is what the routes say of an address.
type addrType struct {
	source, target       uint16
	notSource, notTarget bool
	inOnly, rest         bool
}

func decodeAddrType(rev uint32, b *blob) xt {
	m := addrType{source: b.u16(0), target: b.u16(2)}
	switch rev {
	case 0:
		m.notSource, m.notTarget = b.u32(4) != 0, b.u32(8) != 0
	case 1:
		flags := b.u32(4)
		m.notSource, m.notTarget, m.inOnly, m.rest = flags&1 != 0, flags&2 != 0, flags&4 != 0, flags&8 != 0
	default:
		return nil
	}
	return m
}

func (m addrType) asks(s *step) truth {
	var flags uint32
	if m.inOnly {
		flags = unix.NFTA_FIB_F_IIF
	}
	one := func(a netip.Addr, flags uint32, mask uint16, not bool) truth {
		if mask == 0 {
			return yes
		}
		v := s.addressType(a, flags)
		if !v.sure() {
			return perhaps
		}
		return truthOf((mask&(1<<binary.NativeEndian.Uint32(v.b)) != 0) != not)
	}
	t := one(s.p.Source, flags|unix.NFTA_FIB_F_SADDR, m.source, m.notSource).and(one(s.to.Addr(), flags|unix.NFTA_FIB_F_DADDR, m.target, m.notTarget))
	if m.rest {
		return t.and(perhaps)
	}
	return t
}

package evaluate

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

func native32(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// linkName is a name as the kernel compares it: 16 bytes.
func linkName(l *Link) value {
	b := make([]byte, 16)
	if l != nil {
		copy(b[:15], l.Name)
	}
	return fixed(b...)
}

// Keys of meta that x/sys lacks (linux/netfilter/nf_tables.h).
const (
	metaSecpath = 25
	metaIIFKind = 26
	metaSDIF    = 32
)

// meta loads what is known beside the packet, or sets its mark.
func (s *step) meta(x expression) truth {
	key := x.number(unix.NFTA_META_KEY)
	if reg := x.number(unix.NFTA_META_SREG); reg != 0 {
		if key == unix.NFT_META_MARK && s.applies() {
			s.mark = s.regs.get(reg, 4)
		}
		return yes
	}
	v, ok := s.metaValue(key)
	if !ok {
		return no
	}
	s.regs.put(x.number(unix.NFTA_META_DREG), v)
	return yes
}

// metaValue is a key's value; ok is false where the kernel ends the rule.
func (s *step) metaValue(key uint32) (v value, ok bool) {
	six := byte(0)
	if s.p.Six {
		six = 1
	}
	switch key {
	case unix.NFT_META_PROTOCOL:
		return fixed([][]byte{{0x08, 0x00}, {0x86, 0xdd}}[six]...), true
	case unix.NFT_META_NFPROTO:
		return fixed([]byte{unix.NFPROTO_IPV4, unix.NFPROTO_IPV6}[six]), true
	case unix.NFT_META_L4PROTO:
		return fixed(s.p.Protocol), true
	case unix.NFT_META_MARK:
		return s.mark, true
	case unix.NFT_META_IIFNAME:
		return linkName(s.in), true
	case unix.NFT_META_OIFNAME:
		if s.unrouted() {
			return unknownValue(16), true
		}
		return linkName(s.out), true
	case unix.NFT_META_IIF:
		return s.index(s.in), true
	case unix.NFT_META_OIF:
		if s.unrouted() {
			return unknownValue(4), true
		}
		if s.out == nil {
			return fixed(0, 0, 0, 0), true
		}
		return s.index(s.out), true
	case unix.NFT_META_OIFTYPE, unix.NFT_META_OIFGROUP:
		return unknownValue(4), s.out != nil || s.unrouted()
	case unix.NFT_META_PKTTYPE:
		return fixed(s.kindOfPacket()), true
	case unix.NFT_META_SECMARK, metaSDIF:
		return fixed(0, 0, 0, 0), true
	case metaSecpath:
		return fixed(0), true
	case unix.NFT_META_SKUID, unix.NFT_META_SKGID, unix.NFT_META_CGROUP:
		return unknownValue(4), true
	}
	return unknownValue(16), true
}

// unrouted says that the packet is forwarded and over which link is not known.
func (r *run) unrouted() bool {
	return r.out == nil && (r.hook == "forward" || r.hook == "postrouting")
}

func (r *run) index(l *Link) value {
	if l.Index == 0 {
		return unknownValue(4)
	}
	return fixed(native32(l.Index)...)
}

// kindOfPacket is the kernel's: to this machine, to all, or to many.
func (r *run) kindOfPacket() byte {
	switch {
	case r.to.Addr().IsMulticast():
		return 2
	case r.to.Addr().IsValid() && r.e.world.kind(r.to.Addr()) == routeBroadcast:
		return 1
	}
	return 0
}

// payload loads bytes of a header, or writes them.
func (s *step) payload(x expression) truth {
	header := map[uint32]*value{unix.NFT_PAYLOAD_NETWORK_HEADER: &s.ip, unix.NFT_PAYLOAD_TRANSPORT_HEADER: &s.l4}[x.number(unix.NFTA_PAYLOAD_BASE)]
	at, n := int(x.number(unix.NFTA_PAYLOAD_OFFSET)), int(x.number(unix.NFTA_PAYLOAD_LEN))
	if n > 64 || at > 1<<16 {
		return perhaps
	}
	if reg := x.number(unix.NFTA_PAYLOAD_SREG); reg != 0 {
		if header != nil && s.applies() {
			v := s.regs.get(reg, n)
			for i := range v.b {
				if at+i < len(header.b) {
					header.b[at+i], header.k[at+i] = v.b[i], v.k[i]
				}
			}
		}
		return yes
	}
	v := unknownValue(n)
	switch {
	case header != nil:
		v = part(*header, at, n)
	case x.number(unix.NFTA_PAYLOAD_BASE) == unix.NFT_PAYLOAD_LL_HEADER:
		v = part(s.frame(), at, n)
	}
	s.regs.put(x.number(unix.NFTA_PAYLOAD_DREG), v)
	return yes
}

// frame is the header of Ethernet: its sender is one that no rule names.
func (s *step) frame() value {
	const sender, kind = 6, 12
	v := unknownValue(14)
	for i := sender; i < kind; i++ {
		v.k[i] = source
	}
	protocol, _ := s.metaValue(unix.NFT_META_PROTOCOL)
	copy(v.b[kind:], protocol.b)
	v.k[kind], v.k[kind+1] = sure, sure
	return v
}

// Bits of the state and status of a connection (linux/netfilter/nf_conntrack_common.h), as nft has
// them.
const (
	stateInvalid, stateNew, stateUntracked = 1, 1 << 3, 1 << 6
	statusDNAT, statusDNATDone             = 1 << 5, 1 << 8
)

// state is the one of the first packet of a flow.
func (r *run) state() uint32 {
	switch {
	case r.skip:
		return stateUntracked
	case !r.tracked:
		return stateInvalid
	}
	return stateNew
}

func (r *run) status() uint32 {
	if len(r.answer.NAT) > 0 {
		return statusDNAT | statusDNATDone
	}
	return 0
}

// ct loads what connection tracking knows, which of a new flow is little.
func (s *step) ct(x expression) truth {
	key := x.number(unix.NFTA_CT_KEY)
	if reg := x.number(unix.NFTA_CT_SREG); reg != 0 {
		if key == unix.NFT_CT_MARK && s.applies() {
			s.ctMark = s.regs.get(reg, 4)
		}
		return yes
	}
	if key != unix.NFT_CT_STATE && (s.skip || !s.tracked) {
		return no
	}
	direction := x.attribute(unix.NFTA_CT_DIRECTION)
	v, ok := s.ctValue(key, len(direction) == 1 && direction[0] == 1)
	if !ok {
		return no
	}
	s.regs.put(x.number(unix.NFTA_CT_DREG), v)
	return yes
}

func (s *step) ctValue(key uint32, reply bool) (value, bool) {
	from, n := s.sourceAt()
	sender := part(s.ip, from, n)
	switch key {
	case unix.NFT_CT_STATE:
		return fixed(native32(s.state())...), true
	case unix.NFT_CT_STATUS:
		return fixed(native32(s.status())...), true
	case unix.NFT_CT_DIRECTION:
		return fixed(0), true
	case unix.NFT_CT_MARK:
		return s.ctMark, true
	case unix.NFT_CT_L3PROTOCOL:
		v, _ := s.metaValue(unix.NFT_META_NFPROTO)
		return v, true
	case unix.NFT_CT_PROTOCOL:
		return fixed(s.p.Protocol), true
	case unix.NFT_CT_SRC, unix.NFT_CT_SRC_IP, unix.NFT_CT_SRC_IP6:
		if reply {
			return s.address(s.to.Addr()), true
		}
		return sender, true
	case unix.NFT_CT_DST, unix.NFT_CT_DST_IP, unix.NFT_CT_DST_IP6:
		if reply {
			return sender, true
		}
		return s.address(s.wanted.Addr()), true
	case unix.NFT_CT_PROTO_SRC:
		if reply {
			return s.port(s.to.Port()), true
		}
		return part(s.l4, 0, 2), true
	case unix.NFT_CT_PROTO_DST:
		if reply {
			return part(s.l4, 0, 2), true
		}
		return s.port(s.wanted.Port()), true
	case unix.NFT_CT_ZONE:
		return fixed(0, 0), true
	case unix.NFT_CT_LABELS, unix.NFT_CT_HELPER:
		return fixed(make([]byte, 16)...), key == unix.NFT_CT_LABELS
	case unix.NFT_CT_SECMARK:
		return fixed(0, 0, 0, 0), true
	}
	return unknownValue(16), true
}

func (r *run) port(n uint16) value {
	if !ports(r.p.Protocol) {
		return unknownValue(2)
	}
	return fixed(binary.BigEndian.AppendUint16(nil, n)...)
}

func (r *run) address(a netip.Addr) value {
	_, n := r.sourceAt()
	if !a.IsValid() || a.BitLen() != n*8 {
		return unknownValue(n)
	}
	return fixed(a.AsSlice()...)
}

// fib asks the routes.
func (s *step) fib(x expression) truth {
	flags, result := x.number(unix.NFTA_FIB_FLAGS), x.number(unix.NFTA_FIB_RESULT)
	reg := x.number(unix.NFTA_FIB_DREG)
	a := s.to.Addr()
	if flags&unix.NFTA_FIB_F_SADDR != 0 {
		a = s.p.Source
	}
	if result == unix.NFT_FIB_RESULT_ADDRTYPE {
		s.regs.put(reg, s.addressType(a, flags))
		return yes
	}
	name, ok := s.back(a, flags)
	switch {
	case !ok:
		s.regs.put(reg, unknownValue(16))
	case flags&unix.NFTA_FIB_F_PRESENT != 0:
		s.regs.put(reg, fixed(map[bool]byte{true: 1}[name != ""]))
	case result == unix.NFT_FIB_RESULT_OIFNAME:
		s.regs.put(reg, linkName(&Link{Name: name}))
	default:
		l := s.e.world.link(name)
		if l == nil {
			l = &Link{}
		}
		s.regs.put(reg, s.index(l))
	}
	return yes
}

// addressType is the kind of an address; somebody no rule names is a neighbour like any other.
func (s *step) addressType(a netip.Addr, flags uint32) value {
	switch {
	case !a.IsValid() && flags&unix.NFTA_FIB_F_SADDR != 0:
		return fixed(native32(routeUnicast)...)
	case !a.IsValid():
		return unknownValue(4)
	}
	kind := s.e.world.kind(a)
	if kind == routeLocal && flags&unix.NFTA_FIB_F_IIF != 0 && !slices.ContainsFunc(s.in.Addresses, func(p netip.Prefix) bool { return p.Addr() == a }) {
		kind = routeUnicast
	}
	return fixed(native32(uint32(kind))...)
}

// back is the link over which a is reached; with the flag for the link in only when it is that one.
// A sender that is not given is reached over a link with a default route.
func (s *step) back(a netip.Addr, flags uint32) (name string, ok bool) {
	w := &s.e.world
	if !a.IsValid() {
		carries, others := w.outward(s.in.Name, s.p.Six)
		if flags&unix.NFTA_FIB_F_SADDR == 0 || others || len(w.Routes) == 0 {
			return "", false
		}
		if !carries {
			return "", true
		}
		return s.in.Name, true
	}
	if x := w.best(a, func(t int) bool { return t == localTable }); x != nil {
		return x.Link, true
	}
	x, ok := w.way(a)
	switch {
	case !ok:
		return "", len(w.Routes) > 0
	case flags&unix.NFTA_FIB_F_IIF != 0 && x.Link != s.in.Name:
		return "", true
	}
	return x.Link, true
}

// few is how many bits of an address a rule may look at and still mean more than a few senders.
const few = 3

// bitwise computes with masks; shifts of what is sure too.
func (s *step) bitwise(x expression) {
	const attrOp, attrData = 6, 7
	n := int(x.number(unix.NFTA_BITWISE_LEN))
	if n > 64 {
		return
	}
	v := s.regs.get(x.number(unix.NFTA_BITWISE_SREG), n)
	switch op := x.number(attrOp); op {
	case unix.NFT_BITWISE_BOOL:
		mask, xor := x.value(unix.NFTA_BITWISE_MASK), x.value(unix.NFTA_BITWISE_XOR)
		if len(mask) < n || len(xor) < n {
			v = unknownValue(n)
			break
		}
		bits := 0
		for _, m := range mask[:n] {
			for ; m != 0; m &= m - 1 {
				bits++
			}
		}
		for i := range v.b {
			v.b[i] = v.b[i]&mask[i] ^ xor[i]
			if mask[i] == 0 || v.k[i] == source && bits <= few {
				v.k[i] = sure
			}
		}
	case 1, 2: // shifts, of numbers in the machine's order
		by := x.value(attrData)
		if n != 4 || len(by) != 4 || !v.sure() {
			v = unknownValue(n)
			break
		}
		number, count := binary.NativeEndian.Uint32(v.b), binary.NativeEndian.Uint32(by)
		if op == 1 {
			number <<= count
		} else {
			number >>= count
		}
		v = fixed(native32(number)...)
	default:
		v = unknownValue(n)
	}
	s.regs.put(x.number(unix.NFTA_BITWISE_DREG), v)
}

// byteorder turns numbers around, on machines where that means something.
func (s *step) byteorder(x expression) {
	n, size := int(x.number(unix.NFTA_BYTEORDER_LEN)), int(x.number(unix.NFTA_BYTEORDER_SIZE))
	if n > 64 || size <= 0 {
		return
	}
	v := s.regs.get(x.number(unix.NFTA_BYTEORDER_SREG), n)
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		for i := 0; i+size <= n; i += size {
			slices.Reverse(v.b[i : i+size])
			slices.Reverse(v.k[i : i+size])
		}
	}
	s.regs.put(x.number(unix.NFTA_BYTEORDER_DREG), v)
}

// exthdr looks for an extension header or an option: an ordinary packet has no extension header.
func (s *step) exthdr(x expression) truth {
	const present = 1
	if reg := x.number(unix.NFTA_EXTHDR_SREG); reg != 0 {
		return yes // such as a maximum segment size that is set
	}
	reg := x.number(unix.NFTA_EXTHDR_DREG)
	switch {
	case x.number(unix.NFTA_EXTHDR_OP) != 0:
		s.regs.put(reg, unknownValue(16))
		return yes
	case x.number(unix.NFTA_EXTHDR_FLAGS)&present != 0:
		s.regs.put(reg, fixed(0))
		return yes
	}
	return no
}

// dynset keeps a set of senders, mostly with a limit for each.
func (s *step) dynset(x expression) truth {
	const opDelete, attrExpressions = 2, 10
	if x.number(unix.NFTA_DYNSET_OP) == opDelete {
		return perhaps
	}
	t := yes
	each := func(y expression) {
		switch y.name {
		case "limit":
			t = t.and(above(y.number(unix.NFTA_LIMIT_FLAGS)&unix.NFT_LIMIT_F_INV != 0))
		case "connlimit":
			t = t.and(above(y.number(2)&1 != 0))
		case "quota":
			t = t.and(above(y.number(unix.NFTA_QUOTA_FLAGS)&unix.NFT_QUOTA_F_INV != 0))
		}
	}
	if one := x.attribute(unix.NFTA_DYNSET_EXPR); one != nil {
		each(expression{string(chars(attribute(one, unix.NFTA_EXPR_NAME))), attribute(one, unix.NFTA_EXPR_DATA)})
	}
	for _, y := range expressions(x.attribute(attrExpressions)) {
		each(y)
	}
	return t
}

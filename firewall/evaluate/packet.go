package evaluate

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Where things stand in the headers.
const (
	size4, size6 = 20, 40
	ephemeral    = 49152 // the port an ordinary client asks from
)

// somebody4 and somebody6 stand for a sender no rule names. Only where a rule looks at very few bits
// of the address do these very bytes count.
var (
	somebody4 = netip.MustParseAddr("203.0.113.77")
	somebody6 = netip.MustParseAddr("2001:db8::77")
)

// begin builds the packet.
func (r *run) begin() {
	p := &r.p
	r.in = r.e.world.link(p.In)
	if r.in == nil {
		r.in = &Link{Name: p.In}
	}
	if !p.Destination.IsValid() {
		p.Destination = r.own()
	}
	r.to = netip.AddrPortFrom(p.Destination, p.Port)
	r.wanted = r.to
	r.mark, r.ctMark = fixed(0, 0, 0, 0), fixed(0, 0, 0, 0)
	if r.in.Steered {
		r.mark = unknownValue(4)
	}
	r.ip = unknownValue(size4)
	if p.Six {
		r.ip = unknownValue(size6)
	}
	r.l4 = unknownValue(20)
	put := func(v value, at int, b ...byte) {
		copy(v.b[at:], b)
		for i := range b {
			v.k[at+i] = sure
		}
	}
	from, given := p.Source, p.Source.IsValid()
	if p.Six {
		put(r.ip, 0, 0x60)
		put(r.ip, 6, p.Protocol)
		if !given {
			from = somebody6
		}
		put(r.ip, 8, from.AsSlice()...)
	} else {
		put(r.ip, 0, 0x45)
		put(r.ip, 6, 0x40, 0) // whole, not to be cut
		put(r.ip, 9, p.Protocol)
		if !given {
			from = somebody4
		}
		put(r.ip, 12, from.AsSlice()...)
	}
	if !given {
		at, n := r.sourceAt()
		for i := range n {
			r.ip.k[at+i] = source
		}
	}
	switch p.Protocol {
	case unix.IPPROTO_TCP:
		put(r.l4, 0, ephemeral>>8, ephemeral&0xff)
		put(r.l4, 8, 0, 0, 0, 0)
		r.l4.b[13], r.l4.k[13] = 2, sure // SYN
	case unix.IPPROTO_UDP, unix.IPPROTO_SCTP, unix.IPPROTO_DCCP, unix.IPPROTO_UDPLITE:
		put(r.l4, 0, ephemeral>>8, ephemeral&0xff)
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		put(r.l4, 0, byte(p.Port), 0)
	}
	r.writeDestination()
}

// sourceAt is where the address of the sender stands, and its size.
func (r *run) sourceAt() (at, n int) {
	if r.p.Six {
		return 8, 16
	}
	return 12, 4
}

// ports says whether the protocol has ports where TCP has them.
func ports(protocol uint8) bool {
	switch protocol {
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP, unix.IPPROTO_DCCP, unix.IPPROTO_UDPLITE:
		return true
	}
	return false
}

// own is an address of the link the packet arrives over; for IPv6 not one of the link alone, if there
// is another.
func (r *run) own() netip.Addr {
	var found netip.Addr
	for _, a := range r.in.Addresses {
		if a.Addr().Is6() != r.p.Six {
			continue
		}
		if !found.IsValid() || found.IsLinkLocalUnicast() && !a.Addr().IsLinkLocalUnicast() {
			found = a.Addr()
		}
	}
	return found
}

func (r *run) setDestination(to netip.AddrPort) {
	r.to = to
	r.writeDestination()
}

// writeDestination writes r.to into the headers.
func (r *run) writeDestination() {
	at, n := 16, 4
	if r.p.Six {
		at, n = 24, 16
	}
	a := r.to.Addr()
	for i := range n {
		r.ip.k[at+i] = vague
		if a.IsValid() && a.Is6() == r.p.Six {
			r.ip.b[at+i], r.ip.k[at+i] = a.AsSlice()[i], sure
		}
	}
	if ports(r.p.Protocol) {
		binary.BigEndian.PutUint16(r.l4.b[2:], r.to.Port())
		r.l4.k[2], r.l4.k[3] = sure, sure
	}
}

// part is n bytes of a header; what lies past its end is not known.
func part(v value, at, n int) value {
	out := unknownValue(n)
	for i := range n {
		if at >= 0 && at+i < len(v.b) {
			out.b[i], out.k[i] = v.b[at+i], v.k[at+i]
		}
	}
	return out
}

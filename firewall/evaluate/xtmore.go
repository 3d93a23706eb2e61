package evaluate

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"mesh/firewall/foreign"
)

// addressRange is -m iprange.
type addressRange struct {
	from, to [2][]byte
	flags    uint8
}

func decodeIPRange(b *blob) xt {
	return addressRange{[2][]byte{b.bytes(0, 16), b.bytes(16, 16)}, [2][]byte{b.bytes(32, 16), b.bytes(48, 16)}, b.u8(64)}
}

func (m addressRange) asks(s *step) truth {
	const bySource, byTarget, notSource, notTarget = 1, 2, 16, 32
	t := yes
	at, n := s.sourceAt()
	if m.flags&bySource != 0 {
		is := within(part(s.ip, at, n), m.from[0][:n], m.from[1][:n])
		if m.flags&notSource != 0 {
			is = is.not()
		}
		t = t.and(is)
	}
	if m.flags&byTarget != 0 {
		is := within(s.address(s.to.Addr()), m.to[0][:n], m.to[1][:n])
		if m.flags&notTarget != 0 {
			is = is.not()
		}
		t = t.and(is)
	}
	return t
}

type markMatch struct {
	value, mask     uint32
	not, connection bool
}

func (m markMatch) asks(s *step) truth {
	have := s.mark
	if m.connection {
		have = s.ctMark
		if s.skip || !s.tracked {
			return no
		}
	}
	if !have.sure() {
		return perhaps
	}
	return truthOf((binary.NativeEndian.Uint32(have.b)&m.mask == m.value) != m.not)
}

type packetType struct {
	kind uint8
	not  bool
}

func (m packetType) asks(s *step) truth { return truthOf((s.kindOfPacket() == m.kind) != m.not) }

// rpFilter asks whether the sender is reached over the link it came by.
type rpFilter struct{ loose, not bool }

func (m rpFilter) asks(s *step) truth {
	flags := uint32(unix.NFTA_FIB_F_SADDR | unix.NFTA_FIB_F_IIF)
	if m.loose {
		flags = unix.NFTA_FIB_F_SADDR
	}
	name, ok := s.back(s.p.Source, flags)
	if !ok {
		return perhaps
	}
	return truthOf((name != "") != m.not)
}

// physdev asks for ports of a bridge: a packet that arrived over another link came over none.
type physdev struct{ inverted, asked uint8 }

func (m physdev) asks(s *step) truth {
	if s.in.Bridge {
		return perhaps
	}
	return truthOf(m.asked&^m.inverted == 0)
}

func (m physdev) words() string { return "-m physdev" }

// decodePolicy knows IPsec's policies: an ordinary packet came by none.
func decodePolicy(b *blob) xt {
	const elements, none = 4 * 76, 4 // four policies, then the flags
	if b.u16(elements)&none != 0 {
		return always{"-m policy --pol none"}
	}
	return never{"-m policy --pol ipsec"}
}

// ipset is the set of that number, or nil.
func ipset(rs *foreign.Ruleset, index uint16) *foreign.IPSet {
	for i := range rs.IPSets {
		if rs.IPSets[i].Index == index {
			return &rs.IPSets[i]
		}
	}
	return nil
}

// setMatch is -m set.
type setMatch struct {
	set        *foreign.IPSet
	dim, flags uint8
}

func (m setMatch) asks(s *step) truth {
	const inverted, first = 1, 1 << 1
	if m.set == nil {
		return perhaps
	}
	at, n := s.sourceAt()
	key := part(s.ip, at, n)
	if m.flags&first == 0 {
		key = s.address(s.to.Addr())
	}
	t := inIPSet(m.set, key)
	if m.flags&inverted != 0 {
		return t.not()
	}
	return t
}

func inIPSet(set *foreign.IPSet, key value) truth {
	t := no
	for _, x := range set.Members {
		if !x.Addresses.IsValid() {
			return perhaps // a set of something else, such as sets
		}
		from, to := x.Addresses.Addr(), lastOf(x.Addresses)
		if x.To.IsValid() {
			to = x.To
		}
		if from.BitLen() != len(key.b)*8 {
			continue
		}
		is := within(key, from.AsSlice(), to.AsSlice())
		if x.Addresses.Bits() == 0 {
			is = yes
		}
		if is != no && (x.Port || x.Link != "") {
			is = perhaps
		}
		switch {
		case is == yes:
			return yes
		case is == perhaps:
			t = perhaps
		case is == mostlyNo && t == no:
			t = mostlyNo
		}
	}
	return t
}

func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

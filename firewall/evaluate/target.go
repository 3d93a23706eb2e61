package evaluate

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"mesh/firewall/internal/nfnetlink"
)

// Targets of xtables by what they do to a packet.
var (
	refusingTargets = []string{"REJECT", "TARPIT", "DELUDE", "CHAOS", "STEAL"}
	queueTargets    = []string{"NFQUEUE", "QUEUE"}
	sourceTargets   = []string{"SNAT", "MASQUERADE"}
	// harmlessTargets change nothing about where it goes.
	harmlessTargets = []string{"LOG", "NFLOG", "ULOG", "SET", "TCPMSS", "CHECKSUM", "CLASSIFY", "DSCP", "TOS", "TTL", "HL", "TRACE", "SECMARK", "CONNSECMARK",
		"AUDIT", "RATEEST", "LED", "IDLETIMER", "TEE", "ACCOUNT", "HMARK", "TCPOPTSTRIP", "nflog", "log"}
)

// xtTarget does what a target of xtables does.
func (s *step) xtTarget(x expression) (verdict, truth) {
	name, rev := nfnetlink.Text(x.attribute(unix.NFTA_TARGET_NAME)), x.number(unix.NFTA_TARGET_REV)
	b := &blob{b: x.attribute(unix.NFTA_TARGET_INFO)}
	switch name {
	case "DNAT", "REDIRECT":
		return s.xtNAT(name, rev, b)
	case "MARK", "CONNMARK":
		if name == "CONNMARK" && rev == 1 {
			return s.setMark(name, [2]uint32{b.u32(0), b.u32(4)}, b.u8(12) == 0, b.u8(12)) // mark, mask, and what to do
		}
		return s.setMark(name, [2]uint32{b.u32(0), b.u32(4)}, rev == 2, 2)
	case "CT", "NOTRACK":
		const notrack = 1
		if (name == "NOTRACK" || b.u16(0)&notrack != 0) && s.applies() {
			s.skip = true
		}
		return verdict{}, yes
	}
	return s.target(name)
}

// target does what is told by the name alone.
func (s *step) target(name string) (verdict, truth) {
	switch {
	case slices.Contains(refusingTargets, name):
		return s.refuse()
	case slices.Contains(queueTargets, name):
		return s.queue()
	case slices.Contains(sourceTargets, name):
		if !s.applies() {
			return verdict{}, no
		}
		s.natted = true
		return verdict{code: verdictAccept}, yes
	case slices.Contains(harmlessTargets, name):
		return verdict{}, yes
	}
	return s.unknownAct("the target " + name + " accepts it")
}

// setMark marks the packet or its connection; how is 0 to set, 1 to save the packet's mark, 2 to
// restore it.
func (s *step) setMark(name string, valueMask [2]uint32, known bool, how uint8) (verdict, truth) {
	const save, restore = 1, 2
	if !s.applies() {
		return verdict{}, yes
	}
	target, from := &s.mark, s.mark
	if name == "CONNMARK" {
		target, from = &s.ctMark, s.ctMark
		switch how {
		case save:
			s.ctMark = s.mark
			return verdict{}, yes
		case restore:
			s.mark = s.ctMark
			return verdict{}, yes
		}
	}
	if !known || !from.sure() {
		*target = unknownValue(4)
		return verdict{}, yes
	}
	old := binary.NativeEndian.Uint32(from.b)
	*target = fixed(native32(old&^valueMask[1] ^ valueMask[0])...)
	return verdict{}, yes
}

// translation is where DNAT and REDIRECT send a packet: a range of addresses and of ports, of which the
// first counts here. Flags say which of the two is given.
type translation struct {
	flags   uint32
	address netip.Addr
	port    uint16
}

const withAddress, withPort = 1, 2

func decodeTranslation(rev uint32, b *blob, six bool) (t translation, ok bool) {
	if rev == 0 && !six { // their number, then flags, two addresses of 4 bytes and two ports
		t = translation{b.u32(4), addressIn(b.bytes(8, 4)), b.be16(16)}
	} else { // flags, two addresses of 16 bytes, two ports
		n := 4
		if six {
			n = 16
		}
		t = translation{b.u32(0), addressIn(b.bytes(4, n)), b.be16(36)}
	}
	return t, !b.short
}

// translationOf is where a target sends packets, in words.
func translationOf(name string, rev uint32, b *blob, six bool) string {
	t, ok := decodeTranslation(rev, b, six)
	switch {
	case !ok:
		return ""
	case name == "REDIRECT" || t.flags&withAddress == 0:
		return fmt.Sprintf(":%d", t.port)
	case t.flags&withPort == 0:
		return t.address.String()
	}
	return netip.AddrPortFrom(t.address, t.port).String()
}

func (s *step) xtNAT(name string, rev uint32, b *blob) (verdict, truth) {
	t, ok := decodeTranslation(rev, b, s.p.Six)
	if !ok {
		return s.unknownAct("the target " + name + " accepts it")
	}
	if !s.applies() {
		return verdict{}, no
	}
	to := s.to
	if name == "REDIRECT" {
		to = netip.AddrPortFrom(s.own(), to.Port())
	} else if t.flags&withAddress != 0 {
		to = netip.AddrPortFrom(t.address, to.Port())
	}
	if t.flags&withPort != 0 {
		to = netip.AddrPortFrom(to.Addr(), t.port)
	}
	s.send(to)
	return verdict{code: verdictAccept}, yes
}

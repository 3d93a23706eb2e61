package foreign

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"mesh/firewall/internal/nfnetlink"
)

// IPSet is a set of ipset, which rules of xtables ask by its number.
type IPSet struct {
	Name  string
	Index uint16
	// Type is ipset's, such as hash:ip.
	Type    string
	Six     bool
	Members []Member
}

// Member is one entry of an IPSet.
type Member struct {
	// Addresses are those it holds; To is the last one where a range is no prefix.
	Addresses netip.Prefix
	To        netip.Addr
	// Port and Link are of types that have them: then the addresses alone decide nothing.
	Port bool
	Link string
	// Left is how many seconds it still stays; 0 for ever.
	Left    uint32
	Comment string
}

// Of linux/netfilter/ipset/ip_set.h; the protocol is the one that tells a set's number.
const (
	ipsetSubsystem, ipsetList, ipsetProtocol = 6, 7, 7

	ipsetAttrProtocol, ipsetAttrName, ipsetAttrType, ipsetAttrFamily, ipsetAttrAll, ipsetAttrIndex = 1, 2, 3, 5, 8, 11

	ipsetAttrFlags, ipsetListHeads = 6, 1 << 2

	memberAddress, memberTo, memberPrefix, memberPort, memberLeft, memberMark, memberLink, memberComment = 1, 2, 3, 4, 6, 10, 23, 26
)

// ipsetNames finds the name of a set by its number. It asks once, and only when a rule asks a set: a kernel
// that nobody asked loads no part for it.
func ipsetNames() func(uint16) string {
	var rs *Ruleset
	return func(number uint16) string {
		if rs == nil {
			rs = &Ruleset{}
			listIPSets(rs, true)
		}
		for _, s := range rs.IPSets {
			if s.Index == number {
				return s.Name
			}
		}
		return ""
	}
}

// readIPSets reads the sets of ipset when a rule asks one. A kernel without it has none.
func readIPSets(rs *Ruleset) {
	asked := slices.ContainsFunc(rs.Tables, func(t Table) bool {
		return t.XT && slices.ContainsFunc(t.Chains, func(c Chain) bool {
			return slices.ContainsFunc(c.Lines, func(l Line) bool { return bytes.Contains(l.Expressions, []byte("set\x00")) })
		})
	})
	legacy := slices.ContainsFunc(rs.Legacy, func(t Table) bool {
		return slices.ContainsFunc(t.Chains, func(c Chain) bool {
			return slices.ContainsFunc(c.Lines, func(l Line) bool { return slices.Contains(l.Words, "--match-set") })
		})
	})
	if asked || legacy {
		listIPSets(rs, false)
	}
}

// listIPSets lists all sets, with heads only what they are called.
func listIPSets(rs *Ruleset, heads bool) {
	s, err := nfnetlink.Open()
	if err != nil {
		rs.note("ipset cannot be asked: %v", err)
		return
	}
	defer s.Close()
	var w nfnetlink.Buffer
	w.Begin(ipsetSubsystem<<8|ipsetList, unix.NLM_F_DUMP, unix.NFPROTO_UNSPEC, 0)
	w.Bytes(ipsetAttrProtocol, []byte{ipsetProtocol})
	if heads {
		w.U32(ipsetAttrFlags, ipsetListHeads)
	}
	w.Finish()
	err = s.Ask(w.B, rs.addIPSet)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EOPNOTSUPP) {
		rs.note("the sets of ipset cannot be read: %v", err)
	}
}

// addIPSet adds a message of a listing: large sets take several.
func (r *Ruleset) addIPSet(m nfnetlink.Message) {
	var s IPSet
	var all []byte
	for typ, v := range m.Attributes() {
		switch typ {
		case ipsetAttrName:
			s.Name = nfnetlink.Text(v)
		case ipsetAttrType:
			s.Type = nfnetlink.Text(v)
		case ipsetAttrFamily:
			s.Six = len(v) == 1 && v[0] == unix.NFPROTO_IPV6
		case ipsetAttrIndex:
			if len(v) == 2 {
				s.Index = binary.BigEndian.Uint16(v)
			}
		case ipsetAttrAll:
			all = v
		}
	}
	if s.Name == "" {
		return
	}
	if n := len(r.IPSets); n == 0 || r.IPSets[n-1].Name != s.Name {
		r.IPSets = append(r.IPSets, s)
	}
	last := &r.IPSets[len(r.IPSets)-1]
	for _, item := range nfnetlink.Attributes(all) {
		last.Members = append(last.Members, member(item, strings.Contains(last.Type, "port")))
	}
}

func member(item []byte, port bool) (m Member) {
	bits := -1
	var from netip.Addr
	for typ, v := range nfnetlink.Attributes(item) {
		switch typ {
		case memberAddress:
			from = ipsetAddress(v)
		case memberTo:
			m.To = ipsetAddress(v)
		case memberPrefix:
			if len(v) == 1 {
				bits = int(v[0])
			}
		case memberPort, memberMark:
			port = true
		case memberLeft:
			m.Left = nfnetlink.Number(v)
		case memberLink:
			m.Link = nfnetlink.Text(v)
		case memberComment:
			m.Comment = nfnetlink.Text(v)
		}
	}
	if bits < 0 || bits > from.BitLen() {
		bits = from.BitLen()
	}
	m.Port = port
	if from.IsValid() {
		m.Addresses = netip.PrefixFrom(from, bits).Masked()
	}
	return m
}

// ipsetAddress reads an address, which is nested by family.
func ipsetAddress(v []byte) netip.Addr {
	for _, v := range nfnetlink.Attributes(v) {
		if a, ok := netip.AddrFromSlice(v); ok {
			return a
		}
	}
	return netip.Addr{}
}

package foreign

import (
	"encoding/binary"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mesh/firewall/internal/nfnetlink"
)

// Decode gives b, messages as the kernel dumps them, to each step of a reading in turn.
func Decode(b []byte) Ruleset { return decode(b, false) }

// DecodeAll is Decode that keeps rules and sets whole.
func DecodeAll(b []byte) Ruleset { return decode(b, true) }

func decode(b []byte, whole bool) Ruleset {
	d := decoder{whole: whole}
	for _, step := range []func(nfnetlink.Message){d.table, d.chain, d.set, d.rule, d.flowtable} {
		for m := range nfnetlink.Messages(b) {
			step(m)
		}
	}
	for i := range d.rs.Tables {
		t := &d.rs.Tables[i]
		for j := range t.Maps {
			var a acts
			for m := range nfnetlink.Messages(b) {
				d.elements(t, &t.Maps[j], &a, m)
			}
		}
		for j := range t.Sets {
			for m := range nfnetlink.Messages(b) {
				t.Sets[j].fill(m)
			}
		}
	}
	return d.rs
}

// BypassOf is what passes the rules by, as far as links tell.
func BypassOf(links []netlink.Link) []Bypass {
	var rs Ruleset
	rs.links(links)
	return rs.Bypass
}

// Dump is what the kernel answers to a reading, as the bytes came.
func Dump() ([]byte, error) {
	s, err := nfnetlink.Open()
	if err != nil {
		return nil, err
	}
	defer s.Close()
	var all []byte
	keep := func(m nfnetlink.Message) {
		b := make([]byte, 16, 16+len(m.Body))
		binary.NativeEndian.PutUint32(b, uint32(16+len(m.Body)))
		binary.NativeEndian.PutUint16(b[4:], m.Type)
		b = append(b, m.Body...)
		for len(b)%4 != 0 {
			b = append(b, 0)
		}
		all = append(all, b...)
	}
	for _, typ := range []uint16{unix.NFT_MSG_GETTABLE, unix.NFT_MSG_GETCHAIN, unix.NFT_MSG_GETSET, unix.NFT_MSG_GETRULE} {
		if err := s.List(typ, unix.NFPROTO_UNSPEC, keep); err != nil {
			return nil, err
		}
	}
	return all, nil
}

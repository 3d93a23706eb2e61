package firewall

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mesh/firewall/internal/nfnetlink"
	"mesh/shared/rule"
)

// EndFlows makes the kernel forget the flows that came in under rules which were withdrawn, and says how many.
// A withdrawn rule lets no new flow in, but those under way are known flows and live on; forgotten, their
// next packet meets the rules as they are now. One that another rule lets in goes on, as does one from
// inside, unless an engine translates its source: that one begins anew. So it is for a withdrawal that has to
// bite at once, and is no part of Load.
//
// It works in the network namespace of the calling thread and needs CAP_NET_ADMIN. Flows of a rule "from
// tunnel" are ended whatever link they use: conntrack does not keep it.
func EndFlows(ctx context.Context, withdrawn []rule.Allow) (ended int, err error) {
	if len(withdrawn) == 0 {
		return 0, nil
	}
	addresses, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return 0, fmt.Errorf("end flows: list addresses: %w", err)
	}
	own := map[netip.Addr]bool{}
	for _, a := range addresses {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			own[ip.Unmap()] = true
		}
	}
	s, err := nfnetlink.Open()
	if err != nil {
		return 0, fmt.Errorf("end flows: %w", err)
	}
	defer s.Close()
	flows, err := flowsOf(ctx, s, withdrawn, own)
	if err != nil {
		return 0, fmt.Errorf("end flows: %w", err)
	}
	for _, f := range flows {
		if err := ctx.Err(); err != nil {
			return ended, err
		}
		switch err := s.Ask(f.forget(), func(nfnetlink.Message) {}); {
		case errors.Is(err, unix.ENOENT): // it ended by itself
		case err != nil:
			return ended, fmt.Errorf("end flows: %w", err)
		default:
			ended++
		}
	}
	return ended, nil
}

// Numbers of linux/netfilter/nfnetlink_conntrack.h.
const (
	conntrackGet, conntrackDelete = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1, unix.NFNL_SUBSYS_CTNETLINK<<8 | 2

	ctaOriginal, ctaStatus, ctaID, ctaZone = 1, 3, 12, 18
	ctaAddresses, ctaProtocol              = 1, 2
	ctaSource4, ctaDestination4            = 1, 2
	ctaSource6, ctaDestination6            = 3, 4
	ctaNumber, ctaDestinationPort          = 1, 3
)

// flow is a conntrack entry. The attributes that name it to the kernel are kept as they came.
type flow struct {
	family              byte
	original, id, zone  []byte
	source, destination netip.Addr
	protocol            byte
	port                uint16 // asked for; 0 for protocols without
	translated          bool   // its destination was, by DNAT
}

func flowsOf(ctx context.Context, s *nfnetlink.Socket, withdrawn []rule.Allow, own map[netip.Addr]bool) (all []flow, err error) {
	var w nfnetlink.Buffer
	w.Begin(conntrackGet, unix.NLM_F_DUMP, unix.AF_UNSPEC, 0)
	w.Finish()
	// A flow that comes or goes meanwhile does not make the listing wrong for the others.
	err = s.Ask(w.B, func(m nfnetlink.Message) {
		f := flowIn(m)
		if ctx.Err() != nil || !f.translated && !own[f.destination] && !f.destination.IsMulticast() {
			return
		}
		for _, a := range withdrawn {
			if f.under(a) {
				all = append(all, f.kept())
				return
			}
		}
	})
	if errors.Is(err, nfnetlink.ErrInterrupted) {
		err = nil
	}
	return all, errors.Join(err, ctx.Err())
}

// flowIn reads an entry; its slices are those of m.
func flowIn(m nfnetlink.Message) flow {
	f := flow{family: m.Family()}
	for typ, v := range m.Attributes() {
		switch typ {
		case ctaOriginal:
			f.original = v
			f.tuple(v)
		case ctaStatus:
			f.translated = nfnetlink.Number(v)&ctDNAT != 0
		case ctaID:
			f.id = v
		case ctaZone:
			f.zone = v
		}
	}
	return f
}

// tuple reads who asks whom.
func (f *flow) tuple(b []byte) {
	for typ, v := range nfnetlink.Attributes(b) {
		switch typ {
		case ctaAddresses:
			for typ, v := range nfnetlink.Attributes(v) {
				a, _ := netip.AddrFromSlice(v)
				switch typ {
				case ctaSource4, ctaSource6:
					f.source = a
				case ctaDestination4, ctaDestination6:
					f.destination = a
				}
			}
		case ctaProtocol:
			for typ, v := range nfnetlink.Attributes(v) {
				switch {
				case typ == ctaNumber && len(v) == 1:
					f.protocol = v[0]
				case typ == ctaDestinationPort && len(v) == 2:
					f.port = binary.BigEndian.Uint16(v)
				}
			}
		}
	}
}

// under reports whether a let the flow in, as far as an entry tells.
func (f *flow) under(a rule.Allow) bool {
	if a.Protocol != 0 {
		if f.protocol != byte(a.Protocol) {
			return false
		}
	} else if f.protocol != number(a.Port.Protocol) || f.port < a.Port.First || f.port > a.Port.Last {
		return false
	}
	for _, p := range a.From.Prefixes {
		if p.Contains(f.source) {
			return true
		}
	}
	return len(a.From.Prefixes) == 0
}

// kept is f with bytes of its own.
func (f *flow) kept() flow {
	k := *f
	for _, b := range []*[]byte{&k.original, &k.id, &k.zone} {
		*b = append([]byte(nil), *b...)
	}
	return k
}

// forget is the request to delete exactly this entry.
func (f *flow) forget() []byte {
	var w nfnetlink.Buffer
	w.Begin(conntrackDelete, unix.NLM_F_ACK, f.family, 0)
	w.Bytes(ctaOriginal|unix.NLA_F_NESTED, f.original)
	if len(f.id) > 0 {
		w.Bytes(ctaID, f.id)
	}
	if len(f.zone) > 0 {
		w.Bytes(ctaZone, f.zone)
	}
	w.Finish()
	return w.B
}

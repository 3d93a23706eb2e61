package link

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// rtaNexthop is the attribute of a route that leaves over a nexthop object (RTA_NH_ID, linux/rtnetlink.h).
const rtaNexthop = 30

// groupEntry is the size of one member of a nexthop group (struct nexthop_grp, linux/nexthop.h): its id of
// four bytes comes first.
const groupEntry = 8

// readByNexthop lists the wide unicast routes that leave over nexthop objects, with the objects' links.
// Where net.ipv4.nexthop_compat_mode is off the kernel names the object in a route and nothing else.
func readByNexthop() ([]Route, error) {
	objects, err := readNexthops()
	if err != nil {
		return nil, err
	}
	var out []Route
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		req := nl.NewNetlinkRequest(unix.RTM_GETROUTE, unix.NLM_F_DUMP)
		msg := nl.NewRtMsg()
		msg.Family, msg.Scope, msg.Type, msg.Protocol, msg.Table = uint8(family), 0, 0, 0, 0
		req.AddData(msg)
		errDump := req.ExecuteIter(unix.NETLINK_ROUTE, unix.RTM_NEWROUTE, func(b []byte) bool {
			if r, ok := routeByNexthop(b, objects); ok {
				out = append(out, r)
			}
			return true
		})
		if errDump != nil && !errors.Is(errDump, netlink.ErrDumpInterrupted) {
			return nil, errDump
		}
		err = errors.Join(err, errDump)
	}
	return out, err
}

// routeByNexthop reads one route; ok is false for one that is narrow or names no nexthop object.
func routeByNexthop(b []byte, objects map[uint32][]int) (r Route, ok bool) {
	if len(b) < unix.SizeofRtMsg {
		return Route{}, false
	}
	msg := nl.DeserializeRtMsg(b)
	attrs, err := nl.ParseRouteAttr(b[unix.SizeofRtMsg:])
	if err != nil {
		return Route{}, false
	}
	addr := netip.IPv4Unspecified()
	if msg.Family == unix.AF_INET6 {
		addr = netip.IPv6Unspecified()
	}
	r = Route{Table: int(msg.Table), Unicast: msg.Type == unix.RTN_UNICAST}
	for _, a := range attrs {
		switch {
		case a.Attr.Type == unix.RTA_DST:
			if given, ok := netip.AddrFromSlice(a.Value); ok {
				addr = given
			}
		case a.Attr.Type == unix.RTA_TABLE && len(a.Value) == 4:
			r.Table = int(binary.NativeEndian.Uint32(a.Value))
		case a.Attr.Type == rtaNexthop && len(a.Value) == 4:
			r.Links, ok = objects[binary.NativeEndian.Uint32(a.Value)]
		}
	}
	r.Dst = netip.PrefixFrom(addr, int(msg.Dst_len))
	return r, ok && r.everywhere()
}

// readNexthops gives the links of each nexthop object, by id: those of a group are its members'.
func readNexthops() (map[uint32][]int, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETNEXTHOP, unix.NLM_F_DUMP)
	req.AddRawData(make([]byte, nhmsgSize)) // of any family
	links, groups := map[uint32][]int{}, map[uint32][]uint32{}
	err := req.ExecuteIter(unix.NETLINK_ROUTE, unix.RTM_NEWNEXTHOP, func(b []byte) bool {
		if len(b) < nhmsgSize {
			return true
		}
		attrs, err := nl.ParseRouteAttr(b[nhmsgSize:])
		if err != nil {
			return true
		}
		var id uint32
		var oif []int
		var members []uint32
		for _, a := range attrs {
			switch {
			case a.Attr.Type == unix.NHA_ID && len(a.Value) == 4:
				id = binary.NativeEndian.Uint32(a.Value)
			case a.Attr.Type == unix.NHA_OIF && len(a.Value) == 4:
				oif = []int{int(binary.NativeEndian.Uint32(a.Value))}
			case a.Attr.Type == unix.NHA_GROUP:
				for v := a.Value; len(v) >= groupEntry; v = v[groupEntry:] {
					members = append(members, binary.NativeEndian.Uint32(v))
				}
			}
		}
		links[id], groups[id] = oif, members
		return true
	})
	for id, members := range groups { // a group has no groups
		for _, m := range members {
			links[id] = append(links[id], links[m]...)
		}
	}
	return links, err
}

// nhmsgSize is the size of struct nhmsg (linux/nexthop.h).
const nhmsgSize = 8

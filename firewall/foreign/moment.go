package foreign

import (
	"encoding/binary"
	"errors"
	"hash"
	"hash/fnv"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"mesh/firewall/internal/nfnetlink"
)

const (
	// mostHashed is how many routes of a family count: a router's million ones are not read for this.
	mostHashed = 2000
	// skipStats has the kernel leave out counters (RTEXT_FILTER_SKIP_STATS, linux/rtnetlink.h).
	skipStats = 1 << 3
	// rtaNexthop is the attribute of a route over a nexthop object (RTA_NH_ID, linux/rtnetlink.h).
	rtaNexthop = 30
	// rtnlBuffer holds one datagram of a listing.
	rtnlBuffer = 64 << 10
)

// What of a link and of a route tells one moment from another; the rest are counters and times that run.
var (
	linkParts  = []uint16{unix.IFLA_IFNAME, unix.IFLA_LINK, unix.IFLA_MASTER, unix.IFLA_NUM_VF, unix.IFLA_XDP}
	routeParts = []uint16{unix.RTA_DST, unix.RTA_OIF, unix.RTA_GATEWAY, unix.RTA_PRIORITY, unix.RTA_MULTIPATH, unix.RTA_TABLE, rtaNexthop}
)

// moment is a number for the links and routes of now. The local routes among them stand for the addresses.
func moment() (uint64, error) {
	h := fnv.New64a()
	links := binary.NativeEndian.AppendUint32([]byte{8, 0, unix.IFLA_EXT_MASK, 0}, skipStats)
	err := listRoute(unix.RTM_GETLINK, unix.AF_UNSPEC, unix.SizeofIfInfomsg, links, func(b []byte) bool {
		h.Write(b[4:8]) // the index
		h.Write([]byte{byte(binary.NativeEndian.Uint32(b[8:]) & unix.IFF_UP)})
		hashParts(h, b[unix.SizeofIfInfomsg:], linkParts)
		for typ, v := range nfnetlink.Attributes(b[unix.SizeofIfInfomsg:]) {
			if typ == unix.IFLA_LINKINFO {
				hashParts(h, v, []uint16{unix.IFLA_INFO_KIND})
			}
		}
		return true
	})
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		n := 0
		err = errors.Join(err, listRoute(unix.RTM_GETROUTE, family, unix.SizeofRtMsg, nil, func(b []byte) bool {
			h.Write(b[:8]) // family, prefix length, table and type; the flags after it come and go
			hashParts(h, b[unix.SizeofRtMsg:], routeParts)
			n++
			return n < mostHashed
		}))
	}
	return h.Sum64(), err
}

func hashParts(h hash.Hash, attributes []byte, parts []uint16) {
	for typ, v := range nfnetlink.Attributes(attributes) {
		if slices.Contains(parts, typ) {
			h.Write([]byte{byte(typ)})
			h.Write(v)
		}
	}
}

// listRoute asks the kernel for a listing of rtnetlink(7), whose messages begin with a header of that size, and
// calls each until it returns false. A family that the kernel does not have is an empty one.
func listRoute(typ uint16, family byte, header int, more []byte, each func(body []byte) bool) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	ask := binary.NativeEndian.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+header+len(more)))
	ask = binary.NativeEndian.AppendUint16(ask, typ)
	ask = binary.NativeEndian.AppendUint16(ask, unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	ask = append(ask, make([]byte, 8+header)...)
	ask[unix.NLMSG_HDRLEN] = family
	if err := unix.Sendto(fd, append(ask, more...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	buffer := make([]byte, rtnlBuffer)
	for {
		n, _, err := unix.Recvfrom(fd, buffer, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return os.NewSyscallError("recvfrom", err)
		}
		for m := range nfnetlink.Messages(buffer[:n]) {
			switch {
			case m.Type == unix.NLMSG_DONE:
				return nil
			case m.Type == unix.NLMSG_ERROR:
				if err := m.Err(); !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EAFNOSUPPORT) {
					return err
				}
				return nil
			case len(m.Body) < header:
			case !each(m.Body):
				return nil
			}
		}
	}
}

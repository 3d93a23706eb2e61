package link

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// classes is where the kernel shows links and the devices behind them.
const classes = "/sys/class/net"

// dumpTries bounds how often a listing is asked for anew because it changed while it was read.
const dumpTries = 5

// Read lists all links, and of the routes of every table and family those that may matter to Outside: a
// router's table of a million ones is not kept.
func Read(ctx context.Context) ([]Link, []Route, error) {
	links, err := consistent(ctx, readLinks)
	if err != nil {
		return nil, nil, fmt.Errorf("list links: %w", err)
	}
	routes, err := consistent(ctx, readRoutes)
	if err != nil {
		return nil, nil, fmt.Errorf("list routes: %w", err)
	}
	return links, routes, nil
}

// consistent repeats list while the kernel says that what it gave is of two moments. After some tries
// the last is taken: a change under way brings a hint for the next Read.
func consistent[T any](ctx context.Context, list func() ([]T, error)) (out []T, err error) {
	for range dumpTries {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if out, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return out, err
		}
	}
	return out, nil
}

func readLinks() ([]Link, error) {
	list, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, err
	}
	out := make([]Link, 0, len(list))
	for _, l := range list {
		out = append(out, linkOf(l))
	}
	return out, err
}

// linkOf takes what Outside needs.
func linkOf(l netlink.Link) Link {
	a := l.Attrs()
	link := Link{
		Index: a.Index, Name: a.Name, Kind: l.Type(), Master: a.MasterIndex,
		Up: a.RawFlags&unix.IFF_UP != 0, Loopback: a.RawFlags&unix.IFF_LOOPBACK != 0,
	}
	// With NetNsID the parent is in another namespace, where its index means another link.
	if a.NetNsID < 0 {
		link.Parent = a.ParentIndex
	}
	link.Hardware = a.ParentDev != "" || hasDevice(a.Name)
	return link
}

// hasDevice asks the file system for what older kernels (before 5.14) and some drivers do not say on
// netlink.
func hasDevice(name string) bool {
	_, err := os.Lstat(filepath.Join(classes, name, "device"))
	return err == nil || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR)
}

func readRoutes() ([]Route, error) {
	var out []Route
	over := false // there are routes of which the kernel names no link
	every := &netlink.Route{Table: unix.RT_TABLE_UNSPEC}
	err := netlink.RouteListFilteredIter(netlink.FAMILY_ALL, every, netlink.RT_FILTER_TABLE, func(r netlink.Route) bool {
		if route, ok := routeOf(r); ok && isWide(route.Dst) {
			out = append(out, route)
			over = over || route.everywhere() && len(route.Links) == 0
		}
		return true
	})
	if !over || err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return out, err
	}
	more, errMore := readByNexthop()
	return append(out, more...), errors.Join(err, errMore)
}

// routeOf takes what Outside needs; ok is false for families that carry no internet traffic. Routes
// over nexthop objects come with the legs of the object, as long as the kernel's setting
// net.ipv4.nexthop_compat_mode is on, its default; readByNexthop does for when it is not.
func routeOf(r netlink.Route) (Route, bool) {
	out := Route{Table: r.Table, Unicast: r.Type == unix.RTN_UNICAST}
	switch {
	case r.Dst != nil:
		addr, ok := netip.AddrFromSlice(r.Dst.IP)
		bits, _ := r.Dst.Mask.Size()
		if !ok {
			return Route{}, false
		}
		if r.Family == netlink.FAMILY_V4 {
			addr = addr.Unmap() // the library gives 0.0.0.0 in its IPv6 form
		}
		out.Dst = netip.PrefixFrom(addr, bits)
	case r.Family == netlink.FAMILY_V4:
		out.Dst = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	case r.Family == netlink.FAMILY_V6:
		out.Dst = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	default:
		return Route{}, false
	}
	if r.LinkIndex != 0 {
		out.Links = append(out.Links, r.LinkIndex)
	}
	for _, leg := range r.MultiPath {
		out.Links = append(out.Links, leg.LinkIndex)
	}
	return out, true
}

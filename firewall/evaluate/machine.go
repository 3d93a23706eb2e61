package evaluate

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// mostRoutes bounds how many routes are kept: a machine that holds the whole internet's is asked for
// the first of them.
const mostRoutes = 20000

// ReadWorld asks the machine for what the rules are evaluated with: the one thing in this package that
// is not pure. It reads the network namespace of the calling thread.
func ReadWorld(ctx context.Context) (World, error) {
	var w World
	links, err := netlink.LinkList()
	if err != nil {
		return w, fmt.Errorf("list links: %w", err)
	}
	names, controlled := map[int]string{}, steered()
	for _, l := range links {
		a := l.Attrs()
		names[a.Index] = a.Name
		x := Link{Name: a.Name, Index: uint32(a.Index), Bridge: l.Type() == "bridge", Steered: a.Xdp != nil && a.Xdp.Attached || controlled[a.Index]}
		if x.Addresses, err = addresses(l); err != nil {
			return w, fmt.Errorf("addresses of %s: %w", a.Name, err)
		}
		w.Links = append(w.Links, x)
		if err := ctx.Err(); err != nil {
			return w, err
		}
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		err := netlink.RouteListFilteredIter(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE, func(x netlink.Route) bool {
			w.addRoute(x, family, names)
			return len(w.Routes) < mostRoutes
		})
		if err != nil && !errors.Is(err, unix.EAFNOSUPPORT) && !errors.Is(err, unix.EOPNOTSUPP) {
			return w, fmt.Errorf("list routes: %w", err)
		}
	}
	w.Forward4, w.Forward6 = switched("ipv4/ip_forward"), switched("ipv6/conf/all/forwarding")
	return w, nil
}

// steered are the links on which a tc program may see what arrives.
func steered() map[int]bool {
	all, err := netlink.QdiscList(nil)
	if err != nil {
		return nil // a kernel without traffic control
	}
	links := map[int]bool{}
	for _, q := range all {
		if kind := q.Type(); kind == "clsact" || kind == "ingress" {
			links[q.Attrs().LinkIndex] = true
		}
	}
	return links
}

func addresses(l netlink.Link) (all []netip.Prefix, err error) {
	list, err := netlink.AddrList(l, netlink.FAMILY_ALL)
	for _, a := range list {
		if a.IPNet == nil {
			continue
		}
		ip, ok := netip.AddrFromSlice(a.IP)
		bits, _ := a.Mask.Size()
		if ok {
			all = append(all, netip.PrefixFrom(ip.Unmap(), bits))
		}
	}
	return all, err
}

// addRoute adds a route, once for each link that it leads over.
func (w *World) addRoute(x netlink.Route, family int, names map[int]string) {
	prefix := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	if family == netlink.FAMILY_V6 {
		prefix = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	if x.Dst != nil {
		ip, ok := netip.AddrFromSlice(x.Dst.IP)
		bits, _ := x.Dst.Mask.Size()
		if !ok {
			return
		}
		prefix = netip.PrefixFrom(ip.Unmap(), bits)
	}
	r := Route{Prefix: prefix, Table: x.Table, Type: uint8(x.Type)}
	if r.Table == 0 {
		r.Table = mainTable
	}
	if len(x.MultiPath) == 0 {
		r.Link = names[x.LinkIndex]
		w.Routes = append(w.Routes, r)
	}
	for _, leg := range x.MultiPath {
		r.Link = names[leg.LinkIndex]
		w.Routes = append(w.Routes, r)
	}
}

// switched reads a switch of the network namespace of the calling thread.
func switched(name string) bool {
	b, err := os.ReadFile("/proc/sys/net/" + name)
	return err == nil && strings.TrimSpace(string(b)) != "0"
}

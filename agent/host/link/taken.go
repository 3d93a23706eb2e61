package link

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mesh/shared/order"
)

// Taken lists the ranges of addresses that a route of this network namespace leads to, sorted, each once:
// what a new network must not cover. Routes to everywhere or nearly so, to addresses of the machine itself and
// over podman's own bridges are not among them; of the latter podman knows.
func Taken(ctx context.Context) ([]netip.Prefix, error) {
	names := map[int]string{}
	links, err := consistent(ctx, readLinks)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	for _, l := range links {
		names[l.Index] = l.Name
	}
	out, err := consistent(ctx, func() (all []netip.Prefix, err error) {
		every := &netlink.Route{Table: unix.RT_TABLE_UNSPEC}
		err = netlink.RouteListFilteredIter(netlink.FAMILY_ALL, every, netlink.RT_FILTER_TABLE, func(r netlink.Route) bool {
			route, ok := routeOf(r)
			if !ok || !route.Unicast || route.Table == unix.RT_TABLE_LOCAL || isWide(route.Dst) || route.Dst.Addr().IsLinkLocalUnicast() {
				return true
			}
			if !slices.ContainsFunc(route.Links, func(i int) bool { return strings.HasPrefix(names[i], "podman") }) {
				all = append(all, route.Dst.Masked())
			}
			return true
		})
		return all, err
	})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	order.Sort(out, func(a, b netip.Prefix) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(out), nil
}

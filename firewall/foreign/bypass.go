package foreign

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"mesh/firewall/internal/nfnetlink"
)

// Bypass is something over which packets pass, or are refused, without the rules that a listing shows
// (NET-16). Legacy xtables are another; Report.LegacyTables has them.
type Bypass struct {
	// What is macvlan, macvtap, ipvlan, ipvtap, xdp, tc, sr-iov, rp_filter, flowtable or route.
	What string `json:"what"`
	// Name is the link's, "inet x f" of a flowtable, or the addresses of a route.
	Name string `json:"name"`
	Why  string `json:"why"`
}

// readBypass adds what can be told from the links of this namespace. A macvlan link that was moved
// into a container is not among them.
func readBypass(ctx context.Context, rs *Ruleset) {
	if ctx.Err() != nil {
		return
	}
	links, err := netlink.LinkList()
	if err != nil {
		rs.note("links cannot be listed: %v", err)
		return
	}
	names := rs.links(links)
	rs.traffic(names)
	rs.ways(rs.routes(), names)
}

// links adds what the links themselves tell, and returns their names by index.
func (r *Ruleset) links(links []netlink.Link) map[int]string {
	names := map[int]string{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	for _, l := range links {
		a := l.Attrs()
		switch kind := l.Type(); kind {
		case "macvlan", "macvtap", "ipvlan", "ipvtap":
			parent := names[a.ParentIndex]
			if parent == "" {
				parent = "a link of another namespace"
			}
			r.Bypass = append(r.Bypass, Bypass{kind, a.Name, "what it carries leaves and comes over " + parent + " without the rules for that link"})
		}
		if a.Xdp != nil && a.Xdp.Attached {
			r.Bypass = append(r.Bypass, Bypass{"xdp", a.Name, "a program sees its packets before any rule, and may refuse or redirect them"})
		}
		if n := len(a.Vfs); n > 0 {
			r.Bypass = append(r.Bypass, Bypass{"sr-iov", a.Name, fmt.Sprintf("%d virtual functions of the card: what has one sends and takes packets without the rules for this link", n)})
		}
	}
	return names
}

// mostRoutes bounds the routes named one by one: a ban service may keep thousands.
const mostRoutes = 10

// mostDeadEnds bounds Ruleset.DeadEnds.
const mostDeadEnds = 10000

// deadEnds are the types of routes that refuse.
var deadEnds = map[int]string{unix.RTN_BLACKHOLE: "blackhole", unix.RTN_UNREACHABLE: "unreachable", unix.RTN_PROHIBIT: "prohibit"}

// routes adds those that refuse packets to some addresses, in any table: portsentry bans that way. Those for
// all addresses that are left are how a table of routes ends, and are none of them. It returns the links over
// which the machine's default routes of IPv4 lead.
func (r *Ruleset) routes() (ways []int) {
	more := 0
	err := netlink.RouteListFilteredIter(netlink.FAMILY_ALL, &netlink.Route{}, netlink.RT_FILTER_TABLE, func(route netlink.Route) bool {
		if isDefault(&route) {
			ways = append(ways, route.LinkIndex)
			for _, leg := range route.MultiPath {
				ways = append(ways, leg.LinkIndex)
			}
		}
		how := deadEnds[route.Type]
		if how == "" || route.Dst == nil || len(route.Dst.Mask) == 0 {
			return true
		}
		ones, bits := route.Dst.Mask.Size()
		if ones == 0 {
			return true
		}
		if a, ok := netip.AddrFromSlice(route.Dst.IP); ok && ones == bits && len(r.DeadEnds) < mostDeadEnds {
			r.DeadEnds = append(r.DeadEnds, DeadEnd{a.Unmap(), how})
		}
		if more++; more <= mostRoutes {
			r.Bypass = append(r.Bypass, Bypass{"route", route.Dst.String(), "a route of type " + how + " refuses what goes there, answers too"})
		}
		return true
	})
	switch {
	case err != nil:
		r.note("routes cannot be listed: %v", err)
	case more > mostRoutes:
		r.Bypass = append(r.Bypass, Bypass{"route", fmt.Sprintf("%d more", more-mostRoutes), "as those before: routes that refuse"})
	}
	slices.Sort(ways)
	return slices.Compact(slices.DeleteFunc(ways, func(index int) bool { return index == 0 }))
}

func isDefault(r *netlink.Route) bool {
	if r.Family != netlink.FAMILY_V4 || r.Type != unix.RTN_UNICAST {
		return false
	}
	if r.Dst == nil {
		return true
	}
	ones, _ := r.Dst.Mask.Size()
	return ones == 0
}

// strict is the value of rp_filter with which the kernel refuses what it would not answer over the same link
// (networking/ip-sysctl in the kernel's documentation).
const strict = 1

// ways adds the links of default routes where the kernel itself refuses packets from afar, as soon as the answer
// would leave over another one. With a single way out that is only good.
func (r *Ruleset) ways(links []int, names map[int]string) {
	if len(links) < 2 {
		return
	}
	all := pathFilter("all")
	for _, index := range links {
		if name := names[index]; name != "" && max(all, pathFilter(name)) == strict {
			r.Bypass = append(r.Bypass, Bypass{"rp_filter", name, "the kernel refuses what comes over it and would be answered over another link: net.ipv4.conf." + name + ".rp_filter is 1"})
		}
	}
}

// pathFilter reads the setting in the network namespace of the calling thread; 0 where it cannot be read.
func pathFilter(link string) int {
	b, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + link + "/rp_filter")
	if err != nil || len(b) == 0 {
		return 0
	}
	return int(b[0] - '0')
}

// traffic adds the links on which traffic control looks at what arrives: where programs of tc are hooked in.
func (r *Ruleset) traffic(names map[int]string) {
	queues, err := netlink.QdiscList(nil)
	if err != nil {
		return // a kernel without traffic control has none
	}
	for _, q := range queues {
		if kind := q.Type(); kind != "clsact" && kind != "ingress" {
			continue
		}
		if name := names[q.Attrs().LinkIndex]; name != "" {
			r.Bypass = append(r.Bypass, Bypass{"tc", name, "programs of traffic control may see its packets before any rule, and refuse, mark or redirect them"})
		}
	}
}

// flowtable notes one: packets of the flows in it are forwarded before the forward hook.
func (d *decoder) flowtable(m nfnetlink.Message) {
	const attrTable, attrName = 1, 2
	var table, name string
	for typ, v := range m.Attributes() {
		switch typ {
		case attrTable:
			table = nfnetlink.Text(v)
		case attrName:
			name = nfnetlink.Text(v)
		}
	}
	if name != "" {
		d.rs.Bypass = append(d.rs.Bypass, Bypass{"flowtable", fmt.Sprintf("%s %s %s", familyName(m.Family()), table, name),
			"the flows in it skip the forward hook after their first packets, so a rule withdrawn does not end them"})
	}
}

// flowtables lists them; a kernel without any answers with an error, which says nothing else.
func (d *decoder) flowtables(s *nfnetlink.Socket) {
	_ = s.List(unix.NFT_MSG_GETFLOWTABLE, unix.NFPROTO_UNSPEC, d.flowtable)
}

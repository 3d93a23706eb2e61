// Package link finds the links of a machine over which traffic from outside arrives (NET-5, NET-15),
// and tells when they may have changed.
//
// Outside is the judgement, a pure function of links and routes. Read asks the kernel for both. Watch
// hints that a new Read is due; it carries no facts, since the kernel leaves some out: when a link goes
// down its IPv4 routes vanish without a message. So after every hint all is read anew, and the caller
// reads once a minute as well.
//
// A Watch owns two goroutines and a socket, which end with its context. The package changes nothing on
// the machine and acts in the network namespace of the calling thread.
package link

import (
	"net/netip"
	"slices"
	"strings"

	"mesh/shared/order"
)

// Link is a network interface.
type Link struct {
	Index int
	Name  string
	// Kind is the kernel's word for a virtual link: "bridge", "vlan", "veth", …; "device" for others.
	Kind string
	Up   bool
	// Loopback links are never outside.
	Loopback bool
	// Hardware says that a device on a bus is behind the link.
	Hardware bool
	// Parent is the index of the link this one is made on (VLAN, macvlan), 0 if none is in this namespace.
	Parent int
	// Master is the index of the bridge or bond this link is a port of, or 0.
	Master int
}

// Route is one entry of a routing table.
type Route struct {
	// Dst is the destination; 0.0.0.0/0 and ::/0 are the default routes.
	Dst   netip.Prefix
	Table int
	// Unicast routes lead somewhere; unreachable, blackhole, local and throw routes do not.
	Unicast bool
	// Links are the indexes of the links it leaves over, one for each leg.
	Links []int
}

// Found is a link that traffic from outside arrives on.
type Found struct {
	Name string
	// Uplink says that a route to everywhere leaves over it (design §2); else only hardware speaks for it.
	Uplink bool
	// Why says in words what makes it outside, sorted.
	Why []string
}

// Outside returns the links that count as outside, sorted by name: those with a route to everywhere in
// any table or family, those with hardware behind them, and the VLANs, bonds, bridges and the like made on
// either: what arrives over these came over the wire of the other. It knows nothing of the tunnel and of
// what a person declared.
func Outside(links []Link, routes []Route) []Found {
	why := map[int][]string{}
	uplink := map[int]bool{}
	for _, r := range routes {
		if !r.everywhere() {
			continue
		}
		for _, index := range r.Links {
			uplink[index] = true
			why[index] = append(why[index], "route to "+r.Dst.String())
		}
	}
	wired := onWire(links, uplink)
	var out []Found
	for _, l := range links {
		if l.Loopback {
			continue
		}
		reasons := why[l.Index]
		if on := wired[l.Index]; on != "" && on != "uplink" {
			reasons = append(reasons, on)
		}
		if len(reasons) == 0 {
			continue
		}
		slices.Sort(reasons)
		out = append(out, Found{Name: l.Name, Uplink: uplink[l.Index], Why: slices.Compact(reasons)})
	}
	order.Sort(out, func(a, b Found) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Uplinks returns the names of those found that are uplinks.
func Uplinks(found []Found) []string {
	var names []string
	for _, f := range found {
		if f.Uplink {
			names = append(names, f.Name)
		}
	}
	return names
}

// wide is the longest prefix that still amounts to a route to everywhere: VPNs write the default route
// as two halves or as a handful of prefixes that leave out the private ranges, the first of which,
// 10.0.0.0/8, has 8 bits.
const wide = 7

var (
	multicast4 = netip.MustParsePrefix("224.0.0.0/3") // multicast and reserved: not the internet
	global6    = netip.MustParsePrefix("2000::/3")    // all addresses that IPv6 has given out (RFC 4291 §2.4)
)

// everywhere reports whether r leads to the internet at large. In doubt it does (NET-15).
func (r Route) everywhere() bool { return r.Unicast && isWide(r.Dst) }

func isWide(p netip.Prefix) bool {
	if !p.IsValid() || p.Bits() > wide {
		return false
	}
	if p.Addr().Is4() {
		return p.Bits() < multicast4.Bits() || !multicast4.Contains(p.Addr())
	}
	return p.Overlaps(global6)
}

// onWire says for each link with hardware or an uplink below it, by index, how. A virtual machine's uplink
// may have no hardware that shows.
func onWire(links []Link, uplink map[int]bool) map[int]string {
	on := map[int]string{}
	byIndex := map[int]Link{}
	for _, l := range links {
		byIndex[l.Index] = l
		switch {
		case l.Hardware:
			on[l.Index] = "hardware"
		case uplink[l.Index] && !l.Loopback:
			on[l.Index] = "uplink"
		}
	}
	// Each round carries the word one link further up; links stacked in a circle end it too.
	for changed := true; changed; {
		changed = false
		for _, l := range links {
			if on[l.Index] == "" && on[l.Parent] != "" && carries(l.Kind) {
				on[l.Index] = l.Kind + " on " + byIndex[l.Parent].Name
				changed = true
			}
			if on[l.Index] != "" && on[l.Master] == "" {
				if m, ok := byIndex[l.Master]; ok && l.Master != 0 {
					on[m.Index] = m.Kind + " with port " + l.Name
					changed = true
				}
			}
		}
	}
	return on
}

// carries says of which kinds the parent is the wire. A veth's parent is only its other end, a tunnel's
// the way its packets take.
func carries(kind string) bool {
	switch kind {
	case "vlan", "macvlan", "macvtap", "ipvlan", "ipvtap", "macsec":
		return true
	}
	return false
}

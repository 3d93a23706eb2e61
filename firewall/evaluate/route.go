package evaluate

import (
	"net/netip"
)

// The types of routes (linux/rtnetlink.h).
const (
	routeUnicast   = 1
	routeLocal     = 2
	routeBroadcast = 3
	routeMulticast = 5
)

// mainTable and localTable are the kernel's numbers.
const (
	localTable = 255
	mainTable  = 254
)

func (w *World) link(name string) *Link {
	for i := range w.Links {
		if w.Links[i].Name == name {
			return &w.Links[i]
		}
	}
	return nil
}

// best is the longest route to a in a table; nil for none.
func (w *World) best(a netip.Addr, table func(int) bool) *Route {
	var best *Route
	for i := range w.Routes {
		x := &w.Routes[i]
		if table(x.Table) && x.Prefix.Contains(a) && (best == nil || x.Prefix.Bits() > best.Prefix.Bits()) {
			best = x
		}
	}
	return best
}

// kind is the type of a as the kernel's table of local addresses and its routes have it.
func (w *World) kind(a netip.Addr) uint8 {
	if a.IsMulticast() {
		return routeMulticast
	}
	if x := w.best(a, func(t int) bool { return t == localTable }); x != nil && x.Type != routeUnicast {
		return x.Type
	}
	for _, l := range w.Links {
		for _, own := range l.Addresses {
			if own.Addr() == a {
				return routeLocal
			}
		}
	}
	if x := w.best(a, func(t int) bool { return t != localTable }); x != nil {
		return x.Type
	}
	return routeUnicast
}

// way is the route to a outside the table of local addresses. Rules of policy routing are not looked
// at: where tables differ, but for default routes, ok is false.
func (w *World) way(a netip.Addr) (x *Route, ok bool) {
	x = w.best(a, func(t int) bool { return t == mainTable })
	for _, r := range w.Routes {
		if r.Table == mainTable || r.Table == localTable || !r.Prefix.Contains(a) {
			continue
		}
		if x == nil || x.Prefix.Bits() == 0 && r.Prefix.Bits() > 0 {
			other := w.best(a, func(t int) bool { return t == r.Table })
			if x != nil && x.Prefix.Bits() > 0 && x.Link != other.Link {
				return nil, false
			}
			x = other
			continue
		}
		if r.Prefix.Bits() > 0 && r.Link != x.Link {
			return nil, false
		}
	}
	return x, x != nil
}

// Toward is the link over which a is reached, and so over which its packets come; empty when that is
// not known.
func (w *World) Toward(a netip.Addr) string {
	if x, ok := w.way(a); ok {
		return x.Link
	}
	return ""
}

// outward says whether l carries a default route of the family, and whether others do too.
func (w *World) outward(name string, six bool) (carries, others bool) {
	for _, x := range w.Routes {
		if x.Prefix.Bits() == 0 && x.Prefix.Addr().Is6() == six && x.Type == routeUnicast {
			carries = carries || x.Link == name
			others = others || x.Link != name
		}
	}
	return carries, others
}

// route decides between input and forward, as the kernel does after prerouting.
func (r *run) route() {
	w, a := &r.e.world, r.to.Addr()
	kernel := func(words string) { r.answer.By = &Place{Kernel: true, Rule: words} }
	if a.IsValid() {
		switch w.kind(a) {
		case routeLocal, routeBroadcast, routeMulticast:
			r.answer.Way = Input
			return
		case routeUnicast:
		default:
			kernel("a route of this machine refuses " + a.String())
			return
		}
	}
	if on := w.Forward4; r.p.Six {
		on = w.Forward6
		if !on {
			kernel("this machine forwards no IPv6 packets (net.ipv6.conf.all.forwarding)")
			return
		}
	} else if !on {
		kernel("this machine forwards no IPv4 packets (net.ipv4.ip_forward)")
		return
	}
	r.answer.Way = Forward
	if a.IsValid() {
		if x, ok := w.way(a); ok {
			r.out = w.link(x.Link)
		} else if len(w.Routes) > 0 && w.best(a, func(int) bool { return true }) == nil {
			r.answer.Way = ""
			kernel("this machine has no route to " + a.String())
		}
	}
}

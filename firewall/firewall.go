// Package firewall turns rules into the one nftables table mesh keeps on a machine, `table inet
// mesh`, and drives it in the kernel. The rule vocabulary is shared/rule's; which links are outside
// is agent/host's to find; when to load, confirm or restore is agent/filter's.
//
// Compile is pure: the same rules in any order give the same Table, and Table.Text is that table as
// `nft -f` reads it. Driver writes it in one netlink transaction, in place, so that no packet meets
// a missing rule and no established flow is cut (NET-6), and reads it back to tell whether the
// kernel still holds exactly it.
//
// Packets that did not arrive over an uplink or the tunnel are accepted in one line (NET-1). The
// others must be an answer, the protocol's own needs, or meet a declared rule. Filtering is by the
// name of the link, never by the addresses of a container network.
//
// The Driver owns one netlink socket and, per Watch, one goroutine that ends with its context.
package firewall

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"mesh/shared/refusal"
	"mesh/shared/rule"
)

// TableName is the name of mesh's table, in family inet.
const TableName = "mesh"

// LogGroup is the nflog group that refused packets are logged to, a few a minute.
const LogGroup = 5

// hardware lists the names links with hardware behind them come under, by systemd's and the
// kernel's naming. They are outside for good: a card plugged in, or an uplink renamed by an upgrade,
// is never open until somebody reacts (NET-15).
var hardware = []string{"em*", "en*", "eth*", "ib*", "ppp*", "sl*", "usb*", "wl*", "ww*"}

// Filter is what the packet filter of one node should be.
type Filter struct {
	// Outside are the links found to be outside, by name: uplinks and what counts as one.
	Outside []string `json:"outside"`
	// Inside are links a person declared inside, by name: they are not filtered, whatever their names are
	// (NET-15). None of Outside or Tunnel may be among them.
	Inside []string `json:"inside,omitempty"`
	// Bridges are those of Outside that are bridges: what they bridge is not filtered.
	Bridges []string `json:"bridges,omitempty"`
	// Tunnel are the links to the other machines, treated as outside (NET-2).
	Tunnel []string `json:"tunnel,omitempty"`
	// Allow is what may come in.
	Allow []rule.Allow `json:"allow"`
}

// Compile makes the table for f. The same input in any order gives the same table. It refuses a
// filter without a link outside (NET-3) and rules that say nothing or too much.
func Compile(f Filter) (Table, error) {
	if len(f.Outside) == 0 {
		return Table{}, refusal.New("a packet filter without an uplink",
			"no link with a default route was found, so there is nothing to filter around",
			"give the machine a default route; until then it keeps the filter it has")
	}
	for _, names := range [][]string{f.Outside, f.Inside, f.Bridges, f.Tunnel} {
		for _, name := range names {
			if err := checkLink(name); err != nil {
				return Table{}, err
			}
		}
	}
	for _, name := range f.Inside {
		if slices.Contains(f.Outside, name) || slices.Contains(f.Tunnel, name) {
			return Table{}, refusal.New("a packet filter with "+name+" inside", "it is outside, too", "name it once")
		}
	}
	groups, err := gather(f.Allow)
	if err != nil {
		return Table{}, err
	}
	t := Table{sets: linkSets(f)}
	trusted := len(f.Inside) > 0
	t.sets = append(t.sets, controlSets()...)
	sets, lines := declare(groups)
	t.sets = append(t.sets, sets...)
	t.chains = []chain{
		{name: "input", hook: hookInput, lines: inputLines(trusted)},
		{name: "forward", hook: hookForward, lines: forwardLines(trusted)},
		{name: "control", lines: controlLines()},
		{name: "declared", lines: lines},
		{name: "refuse", lines: refuseLines()},
	}
	t.digest = digest(t.Text())
	return t, nil
}

// checkLink refuses names that cannot stand in a set of names or in nft's text.
func checkLink(name string) error {
	bad := func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune(`/:"\*`, r) }
	if name == "" || len(name) > 15 || strings.ContainsFunc(name, bad) {
		return refusal.New(fmt.Sprintf("the link name %q in the packet filter", name),
			`a name has 1 to 15 printable characters, without / : " \ * and blanks`, "rename the link")
	}
	return nil
}

func linkSets(f Filter) []set {
	outside := slices.Clone(hardware)
	for _, name := range slices.Concat(f.Outside, f.Tunnel) {
		// A name and a wildcard that covers it are conflicting intervals.
		covered := slices.ContainsFunc(hardware, func(w string) bool { return strings.HasPrefix(name, strings.TrimSuffix(w, "*")) })
		if !covered {
			outside = append(outside, name)
		}
	}
	names := func(in []string) []string {
		in = slices.Clone(in)
		slices.Sort(in)
		return slices.Compact(in)
	}
	sets := []set{
		{name: "outside", kind: kindLink, interval: true},
		{name: "tunnel", kind: kindLink},
		{name: "same_bridge", kind: kindLinkPair},
	}
	if len(f.Inside) > 0 {
		sets = append(sets, set{name: "inside", kind: kindLink})
		for _, name := range names(f.Inside) {
			sets[3].elements = append(sets[3].elements, linkElement(name))
		}
	}
	for _, name := range names(outside) {
		sets[0].elements = append(sets[0].elements, linkElement(name))
	}
	for _, name := range names(f.Tunnel) {
		sets[1].elements = append(sets[1].elements, linkElement(name))
	}
	for _, name := range names(f.Bridges) {
		e := linkElement(name)
		sets[2].elements = append(sets[2].elements, element{first: slices.Concat(e.first, e.first), text: e.text + " . " + e.text})
	}
	return sets
}

// linkElement is a link name, or a wildcard that ends in *, padded to the kernel's 16 bytes:
// without the padding a name would match as a prefix.
func linkElement(name string) element {
	prefix, wild := strings.CutSuffix(name, "*")
	e := element{first: make([]byte, 16), last: make([]byte, 16), text: `"` + name + `"`}
	copy(e.first, prefix)
	copy(e.last, prefix)
	if wild {
		copy(e.last[len(prefix):], bytes.Repeat([]byte{0xff}, 16))
	}
	return e
}

// group is what one owner opens with one protocol to one From: one rule of the table.
type group struct {
	owner, protocol string
	from            rule.From
	ports           []rule.Port // sorted, as declared
	names           fromNames
}

// gather validates the rules and groups them, sorted.
func gather(allow []rule.Allow) ([]group, error) {
	byKey := map[string]*group{}
	for _, a := range allow {
		if err := checkAllow(a); err != nil {
			return nil, err
		}
		from := canonical(a.From)
		key := a.Owner + " " + a.Port.Protocol + " " + from.String()
		g := byKey[key]
		if g == nil {
			g = &group{owner: a.Owner, protocol: a.Port.Protocol, from: from, names: nameFrom(from)}
			byKey[key] = g
		}
		g.ports = append(g.ports, a.Port)
	}
	groups := make([]group, 0, len(byKey))
	for _, g := range byKey {
		slices.SortFunc(g.ports, comparePorts)
		g.ports = slices.Compact(g.ports)
		groups = append(groups, *g)
	}
	slices.SortFunc(groups, func(a, b group) int {
		return cmp.Or(cmp.Compare(a.owner, b.owner), cmp.Compare(a.protocol, b.protocol),
			cmp.Compare(a.names.rank, b.names.rank), cmp.Compare(a.from.String(), b.from.String()))
	})
	return groups, nil
}

func comparePorts(a, b rule.Port) int {
	return cmp.Or(cmp.Compare(a.First, b.First), cmp.Compare(a.Last, b.Last))
}

func checkAllow(a rule.Allow) error {
	what := fmt.Sprintf("the packet rule %q", a.String())
	owner := a.Owner != "" && len(a.Owner) <= 40 && !strings.ContainsFunc(a.Owner, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-'
	})
	said := 0
	for _, yes := range []bool{a.From.Anywhere, a.From.Tunnel, len(a.From.Prefixes) > 0} {
		if yes {
			said++
		}
	}
	p := a.Port
	switch {
	case !owner:
		return refusal.New(what, "its owner is no name of a module", "name a module with letters a-z, digits and dashes, at most 40")
	case p.First == 0 || p.Last < p.First || p.Protocol != "tcp" && p.Protocol != "udp":
		return refusal.New(what, "its port is none", `write it as "80/tcp" or "9000-9010/udp"`)
	case said != 1:
		return refusal.New(what, "it must say exactly one of anywhere, tunnel, or addresses", `write from as "anywhere", "tunnel" or "203.0.113.0/24"`)
	}
	for _, x := range a.From.Prefixes {
		if !x.IsValid() || x != x.Masked() || x.Addr().Is4In6() || x.Addr().Zone() != "" {
			return refusal.New(what, fmt.Sprintf("%v is no prefix of IPv4 or IPv6", x), "write addresses as 203.0.113.0/24 or 2001:db8::/32")
		}
	}
	return nil
}

// canonical sorts the prefixes of f and drops those another one covers: two spellings of the same
// addresses are one From, and intervals of a set must not overlap.
func canonical(f rule.From) rule.From {
	if len(f.Prefixes) == 0 {
		return f
	}
	sorted := slices.Clone(f.Prefixes)
	slices.SortFunc(sorted, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	keep := sorted[:0]
	for _, p := range sorted {
		// Sorted by start, a covering prefix stands before what it covers.
		if n := len(keep); n > 0 && keep[n-1].Overlaps(p) {
			continue
		}
		keep = append(keep, p)
	}
	return rule.From{Prefixes: keep}
}

func portElements(ports []rule.Port) []element {
	var merged []rule.Port
	for _, p := range ports { // sorted by the caller
		if n := len(merged); n > 0 && int(p.First) <= int(merged[n-1].Last)+1 {
			merged[n-1].Last = max(merged[n-1].Last, p.Last)
			continue
		}
		merged = append(merged, p)
	}
	out := make([]element, 0, len(merged))
	for _, p := range merged {
		e := element{
			first: binary.BigEndian.AppendUint16(nil, p.First),
			last:  binary.BigEndian.AppendUint16(nil, p.Last),
			text:  fmt.Sprint(p.First),
		}
		if p.First != p.Last {
			e.text = fmt.Sprintf("%d-%d", p.First, p.Last)
		}
		out = append(out, e)
	}
	return out
}

// prefixElements are the prefixes of one family; neighbours are joined, so that no interval begins
// where another ends.
func prefixElements(prefixes []netip.Prefix, v6 bool) []element {
	var out []element
	var end netip.Addr // last address of the newest element
	for _, p := range prefixes {
		if p.Addr().Is6() != v6 {
			continue
		}
		last := lastAddr(p)
		if n := len(out); n > 0 && end.Next() == p.Addr() {
			out[n-1].last = last.AsSlice()
			from, _ := netip.AddrFromSlice(out[n-1].first)
			out[n-1].text = fmt.Sprintf("%v-%v", from, last)
		} else {
			text := p.String()
			if p.IsSingleIP() {
				text = p.Addr().String()
			}
			out = append(out, element{first: p.Addr().AsSlice(), last: last.AsSlice(), text: text})
		}
		end = last
	}
	return out
}

func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

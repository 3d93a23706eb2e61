package firewall

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"mesh/shared/order"
	"mesh/shared/refusal"
	"mesh/shared/rule"
)

// opening is one declared rule, ready to be written.
type opening struct {
	rule.Allow
	// Of who may come: its place in the order, and what names of sets say of it: "any", "tunnel", or a digest.
	rank  int
	short string
}

// openings validates the rules, and returns each once, sorted.
func openings(allow []rule.Allow) ([]*opening, error) {
	all := make([]opening, len(allow))
	out := make([]*opening, 0, len(allow))
	for i, a := range allow {
		if err := checkAllow(a); err != nil {
			return nil, err
		}
		o := &all[i]
		o.Allow = a
		o.From = canonical(a.From)
		switch {
		case o.From.Anywhere:
			o.rank, o.short = 0, "any"
		case o.From.Tunnel:
			o.rank, o.short = 1, "tunnel"
		default:
			o.rank, o.short = 2, shortOf(o.From)
		}
		out = append(out, o)
	}
	slices.SortFunc(out, (*opening).compare)
	return slices.CompactFunc(out, func(a, b *opening) bool { return a.compare(b) == 0 }), nil
}

// shortOf names addresses in 64 bits: two different sets of them never share a name.
func shortOf(f rule.From) string {
	sum := sha256.Sum256([]byte(f.String()))
	return hex.EncodeToString(sum[:8])
}

func (o *opening) compare(p *opening) int {
	return cmp.Or(cmp.Compare(o.Owner, p.Owner), cmp.Compare(o.Protocol, p.Protocol), cmp.Compare(o.Port.Protocol, p.Port.Protocol),
		cmp.Compare(o.Port.First, p.Port.First), cmp.Compare(o.Port.Last, p.Port.Last), cmp.Compare(o.rank, p.rank), cmp.Compare(o.short, p.short))
}

func checkAllow(a rule.Allow) error {
	refuse := func(why, do string) error { return refusal.New(fmt.Sprintf("the packet rule %q", a.String()), why, do) }
	badOwner := a.Owner == "" || len(a.Owner) > 40 || strings.ContainsFunc(a.Owner, func(r rune) bool {
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
	case badOwner:
		return refuse("its owner is no name of a module", "name a module with letters a-z, digits and dashes, at most 40")
	case a.Protocol != 0 && p != rule.Port{}:
		return refuse("it has both a port and a protocol", "give one of them; two rules open both")
	case a.Protocol != 0 && !a.Protocol.Valid():
		return refuse("its protocol is none that is opened whole", `write it as "vrrp" or "112", and tcp and udp by their ports`)
	case a.Protocol == 0 && (p.First == 0 || p.Last < p.First || p.Protocol != "tcp" && p.Protocol != "udp"):
		return refuse("its port is none", `write it as "80/tcp" or "9000-9010/udp"`)
	case said != 1:
		return refuse("it must say exactly one of anywhere, tunnel, or addresses", `write from as "anywhere", "tunnel" or "203.0.113.0/24"`)
	}
	for _, x := range a.From.Prefixes {
		if !x.IsValid() || x != x.Masked() || x.Addr().Is4In6() || x.Addr().Zone() != "" {
			return refuse(fmt.Sprintf("%v is no prefix of IPv4 or IPv6", x), "write addresses as 203.0.113.0/24 or 2001:db8::/32")
		}
	}
	return nil
}

func (o *opening) counterName() string {
	if o.Protocol != 0 {
		return rulePrefix + o.Owner + "_" + o.Protocol.String() + "_" + o.short
	}
	return rulePrefix + o.Owner + "_" + o.Port.Protocol + "_" + numbers(o.Port) + "_" + o.short
}

// mostFrom is how many bytes of a comment's 127 say who may come; the others are enough for all else.
const mostFrom = 56

// words is the rule as the manifest says it, within the 127 bytes of a comment.
func (o *opening) words() string {
	return o.Owner + ": " + o.What() + " from " + cut(o.From.String(), mostFrom)
}

// who is the terms that say where a packet may come from: one list for each family of addresses.
func (o *opening) who() (alternatives [][]term, sets []set) {
	switch {
	case o.From.Anywhere:
		return [][]term{nil}, nil
	case o.From.Tunnel:
		return [][]term{{iifname(false, "tunnel")}}, nil
	}
	if e := prefixElements(o.From.Prefixes, false); len(e) > 0 {
		s := set{name: "a_" + o.short + "_v4", kind: kindIPv4, interval: true, merge: true, elements: e}
		sets = append(sets, s)
		alternatives = append(alternatives, []term{ipv4(), {text: "ip saddr @" + s.name, loads: []load{network(12, 4)}, set: s.name}})
	}
	if e := prefixElements(o.From.Prefixes, true); len(e) > 0 {
		s := set{name: "a_" + o.short + "_v6", kind: kindIPv6, interval: true, merge: true, elements: e}
		sets = append(sets, s)
		alternatives = append(alternatives, []term{ipv6(), {text: "ip6 saddr @" + s.name, loads: []load{network(8, 16)}, set: s.name}})
	}
	return alternatives, sets
}

// whole adds the protocol to from: mostly one list of terms, for AH one for each family. The kernel takes AH in
// IPv6 for a header to pass over, and what is inside for the protocol.
func (o *opening) whole(from []term) [][]term {
	if o.Protocol != authentication {
		return [][]term{append(slices.Clip(from), shownProtocol(o.Protocol))}
	}
	var out [][]term
	four, six := slices.Clip(from), slices.Clip(from)
	if o.From.Prefixes == nil {
		out = append(out, append(four, shownProtocol(o.Protocol)))
		six = append([]term{ipv6()}, six...)
	} else if from[0].value[0] == unix.NFPROTO_IPV4 {
		return [][]term{append(four, shownProtocol(o.Protocol))}
	}
	return append(out, append(six, term{text: fmt.Sprintf("ip6 nexthdr %d", o.Protocol), loads: []load{network(6, 1)}, value: []byte{byte(o.Protocol)}}))
}

// authentication is the number of AH, the IP authentication header (RFC 4302).
const authentication = 51

func shownProtocol(p rule.Protocol) term {
	t := l4(byte(p))
	t.text = fmt.Sprintf("meta l4proto %d", p) // nft knows the names of a file that may not be there
	return t
}

func number(protocol string) byte {
	if protocol == "udp" {
		return unix.IPPROTO_UDP
	}
	return unix.IPPROTO_TCP
}

func shownL4(protocol string) term {
	t := l4(number(protocol))
	t.text = "meta l4proto " + protocol
	return t
}

// port is one port or range, compared with where load finds it; at is what nft calls that.
func port(at string, load []load, p rule.Port) term {
	t := term{text: at + " " + numbers(p), loads: load, value: binary.BigEndian.AppendUint16(nil, p.First)}
	if p.Last != p.First {
		t.last = binary.BigEndian.AppendUint16(nil, p.Last)
	}
	return t
}

// numbers are those of a port or a range.
func numbers(p rule.Port) string {
	first := strconv.Itoa(int(p.First))
	if p.Last == p.First {
		return first
	}
	return first + "-" + strconv.Itoa(int(p.Last))
}

// cut shortens a list to at most size bytes and says how many entries it left out.
func cut(list string, size int) string {
	if len(list) <= size {
		return list
	}
	total := strings.Count(list, ", ") + 1
	short := list[:size]
	for n, end := 1, strings.Index(list, ", "); end >= 0 && end < size; n++ {
		if s := fmt.Sprintf("%s and %d more", list[:end], total-n); len(s) <= size {
			short = s
		}
		next := strings.Index(list[end+2:], ", ")
		if next < 0 {
			break
		}
		end += 2 + next
	}
	return short
}

// canonical sorts the prefixes of f and drops those another one covers: two spellings of the same
// addresses are one From, and intervals of a set must not overlap.
func canonical(f rule.From) rule.From {
	if len(f.Prefixes) == 0 {
		return f
	}
	sorted := slices.Clone(f.Prefixes)
	order.Sort(sorted, func(a, b netip.Prefix) int {
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

// Package rule is the vocabulary of packet rules that manifests, declarations and the packet filter
// share: which port or protocol is open, and to whom. It knows nothing of nftables.
package rule

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"mesh/shared/order"
	"mesh/shared/refusal"
)

// Port is a port or a range of ports of one protocol, written "80/tcp" or "9000-9010/udp".
type Port struct {
	First, Last uint16
	Protocol    string // "tcp" or "udp"
}

// ParsePort reads "80/tcp" or "9000-9010/udp".
func ParsePort(s string) (Port, error) {
	do := `write it as "80/tcp" or "9000-9010/udp"`
	numbers, proto, ok := strings.Cut(s, "/")
	if !ok || (proto != "tcp" && proto != "udp") {
		return Port{}, refusal.New(fmt.Sprintf("the port %.80q", s), "the protocol after the slash is tcp or udp", do)
	}
	first, last, ranged := strings.Cut(numbers, "-")
	if !ranged {
		last = first
	}
	a, errA := parseNumber(first)
	b, errB := parseNumber(last)
	if errA != nil || errB != nil || a > b {
		return Port{}, refusal.New(fmt.Sprintf("the port %.80q", s), "a port is a number from 1 to 65535, a range runs upward", do)
	}
	return Port{a, b, proto}, nil
}

func parseNumber(s string) (uint16, error) {
	if s == "" || s[0] == '0' || s[0] == '+' {
		return 0, strconv.ErrSyntax
	}
	n, err := strconv.ParseUint(s, 10, 16)
	return uint16(n), err
}

// String is the port as people write it.
func (p Port) String() string {
	if p.First == p.Last {
		return fmt.Sprintf("%d/%s", p.First, p.Protocol)
	}
	return fmt.Sprintf("%d-%d/%s", p.First, p.Last, p.Protocol)
}

// MarshalText writes String.
func (p Port) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads what ParsePort takes.
func (p *Port) UnmarshalText(b []byte) (err error) { *p, err = ParsePort(string(b)); return err }

// From says who may come: everybody, the other machines over the tunnel, or a set of addresses.
type From struct {
	Anywhere, Tunnel bool
	Prefixes         []netip.Prefix
}

// Anywhere returns the From that is everybody.
func Anywhere() From { return From{Anywhere: true} }

// ParseFrom reads "anywhere", "tunnel" or a comma-separated list of addresses and prefixes.
func ParseFrom(s string) (From, error) {
	switch s {
	case "anywhere":
		return From{Anywhere: true}, nil
	case "tunnel":
		return From{Tunnel: true}, nil
	}
	var f From
	for part := range strings.SplitSeq(s, ",") {
		part = strings.TrimSpace(part)
		p, err := netip.ParsePrefix(part)
		if err != nil {
			a, errA := netip.ParseAddr(part)
			if errA != nil || a.Zone() != "" {
				return From{}, refusal.New(fmt.Sprintf("from %.80q", s), fmt.Sprintf("%q is no address or prefix", part),
					`write "anywhere", "tunnel", or addresses as "203.0.113.0/24, 2001:db8::1"`)
			}
			p = netip.PrefixFrom(a, a.BitLen())
		}
		if p.Addr().Is4In6() {
			return From{}, refusal.New(fmt.Sprintf("from %.80q", s), fmt.Sprintf("%v are addresses of IPv4 written as IPv6, with which no packet comes", p), "write them as IPv4, 203.0.113.0/24")
		}
		if p != p.Masked() {
			return From{}, refusal.New(fmt.Sprintf("from %.80q", s), fmt.Sprintf("%v has bits set after its length", p), fmt.Sprintf("write %v", p.Masked()))
		}
		f.Prefixes = append(f.Prefixes, p)
	}
	order.Sort(f.Prefixes, func(a, b netip.Prefix) int {
		if c := a.Addr().Compare(b.Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits()
	})
	f.Prefixes = slices.Compact(f.Prefixes)
	return f, nil
}

// String is From as people write it.
func (f From) String() string {
	switch {
	case f.Anywhere:
		return "anywhere"
	case f.Tunnel:
		return "tunnel"
	}
	s := make([]string, len(f.Prefixes))
	for i, p := range f.Prefixes {
		s[i] = p.String()
	}
	return strings.Join(s, ", ")
}

// UnmarshalText reads what ParseFrom takes.
func (f *From) UnmarshalText(b []byte) (err error) { *f, err = ParseFrom(string(b)); return err }

// MarshalText writes String.
func (f From) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// Allow is one opening: a port, or a protocol without ports, and who may come. Owner is the module that
// declares it, or "admin" for the node's own way in (NET-7).
type Allow struct {
	Owner string `json:"owner"`
	// Port or Protocol is given, never both.
	Port     Port     `json:"port,omitzero"`
	Protocol Protocol `json:"protocol,omitzero"`
	From     From     `json:"from"`
}

// What is the port, or the protocol, as people write it: "80/tcp", "vrrp", "protocol 253".
func (a Allow) What() string {
	switch name := a.Protocol.String(); {
	case a.Protocol == 0:
		return a.Port.String()
	case isNumber(name):
		return "protocol " + name
	default:
		return name
	}
}

func isNumber(s string) bool { return strings.Trim(s, "0123456789") == "" }

// Compare orders by port, then by protocol, then by who may come; not by owner.
func (a Allow) Compare(b Allow) int {
	return cmp.Or(cmp.Compare(a.Port.First, b.Port.First), cmp.Compare(a.Port.Last, b.Port.Last), cmp.Compare(a.Port.Protocol, b.Port.Protocol),
		cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.From.String(), b.From.String()))
}

// ParseAllow reads "22/tcp from anywhere" or "vrrp from 192.0.2.0/24". The owner is left empty.
func ParseAllow(s string) (a Allow, err error) {
	what, from, ok := strings.Cut(strings.TrimSpace(s), " from ")
	if !ok {
		return Allow{}, refusal.New(fmt.Sprintf("the packet rule %.80q", s), "it does not say what is open from where", `write it as "22/tcp from anywhere" or "vrrp from 192.0.2.0/24"`)
	}
	switch name, whole := strings.CutPrefix(strings.TrimSpace(what), "protocol "); {
	case whole:
		a.Protocol, err = ParseProtocol(strings.TrimSpace(name))
	case strings.Contains(name, "/") || isNumber(name): // a number alone is a port that lacks its protocol
		a.Port, err = ParsePort(name)
	default:
		a.Protocol, err = ParseProtocol(name)
	}
	if err != nil {
		return Allow{}, err
	}
	if a.From, err = ParseFrom(strings.TrimSpace(from)); err != nil {
		return Allow{}, err
	}
	return a, nil
}

// String is the rule in the manifest's words.
func (a Allow) String() string { return fmt.Sprintf("%s: %s from %s", a.Owner, a.What(), a.From) }

package rule

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"mesh/shared/refusal"
)

// Protocol is an IP protocol that is opened whole, without ports, by its number at IANA
// (iana.org/assignments/protocol-numbers); 0 is none. It is written by name, "vrrp", or as "112".
type Protocol uint8

// protocols are the names taken, by number; the first of a number is the one written.
var protocols = []struct {
	name   string
	number Protocol
}{
	{"igmp", 2}, {"ipip", 4}, {"egp", 8}, {"dccp", 33}, {"6in4", 41}, {"rsvp", 46}, {"gre", 47}, {"esp", 50}, {"ah", 51},
	{"eigrp", 88}, {"ospf", 89}, {"etherip", 97}, {"pim", 103}, {"ipcomp", 108}, {"vrrp", 112}, {"carp", 112}, {"l2tp", 115},
	{"isis", 124}, {"sctp", 132}, {"udplite", 136}, {"mpls", 137},
}

// ParseProtocol reads a name or a number. It refuses protocols that have ports, those the packet filter
// lets in as far as is right by itself, and numbers that are no protocol but a part of IPv6's header.
func ParseProtocol(s string) (Protocol, error) {
	what := fmt.Sprintf("the protocol %.80q", s)
	switch s {
	case "tcp", "6", "udp", "17":
		return 0, refusal.New(what, "it has ports, and is opened port by port", `write port: "80/tcp" instead`)
	case "icmp", "1", "icmpv6", "58":
		return 0, refusal.New(what, "what IP needs of it, and a few pings a second, is let in already (RFC 4890)", "leave it out")
	}
	for _, p := range protocols {
		if p.name == s {
			return p.number, nil
		}
	}
	n, err := parseNumber(s)
	if err != nil || n > 254 {
		names := make([]string, len(protocols))
		for i, p := range protocols {
			names[i] = p.name
		}
		return 0, refusal.New(what, "it is neither a number from 1 to 254 nor one of the names known: "+strings.Join(names, ", "), `write it as "vrrp" or "112"`)
	}
	if slices.Contains([]uint16{43, 44, 59, 60, 135, 139, 140}, n) {
		return 0, refusal.New(what, "it is a part of IPv6's header, and the protocol comes after it (RFC 8200)", "open the protocol that is carried")
	}
	return Protocol(n), nil
}

// Valid reports whether ParseProtocol could have made p.
func (p Protocol) Valid() bool {
	q, err := ParseProtocol(strconv.Itoa(int(p)))
	return err == nil && p == q
}

// String is the protocol as people write it.
func (p Protocol) String() string {
	for _, known := range protocols {
		if known.number == p {
			return known.name
		}
	}
	return strconv.Itoa(int(p))
}

// MarshalText writes String.
func (p Protocol) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads what ParseProtocol takes.
func (p *Protocol) UnmarshalText(b []byte) (err error) {
	*p, err = ParseProtocol(string(b))
	return err
}

package exposure

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"mesh/firewall/evaluate"
	"mesh/firewall/foreign"
	"mesh/shared/refusal"
)

// Ask is what Why is asked.
type Ask struct {
	// Protocol is tcp, udp, icmp, icmpv6, another one's name, or a number; or port and protocol: "22/tcp".
	Protocol string
	// Port is the port, or for ICMP the type; empty where there is none.
	Port string
	// From is an address, a link, "tunnel", or "uplink", which is the default.
	From string
}

// Why says what becomes of packets, and by which rule.
type Why struct {
	// Asked is the question in one line: "22/tcp from anybody over up0".
	Asked string `json:"asked"`
	// Verdict is the one of all ways; where some let it in and some do not, refused and Partly.
	Verdict evaluate.Verdict `json:"verdict"`
	Partly  bool             `json:"partly,omitempty"`
	// Ways are the links and families that were asked about.
	Ways []Way `json:"ways"`
	// Bypass is what passes the rules by.
	Bypass []foreign.Bypass `json:"bypass,omitempty"`
	// Do is what a person does about it; empty for nothing.
	Do string `json:"do,omitempty"`
}

// Way is one link and family.
type Way struct {
	Link   string          `json:"link"`
	Family string          `json:"family"`
	By     string          `json:"by"`
	Answer evaluate.Answer `json:"answer"`
	// Programs are those that listen where it arrives; only with Answer.Way input.
	Programs []string `json:"programs,omitempty"`
}

// protocols with a name that people use.
var protocols = map[string]uint8{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "icmp": unix.IPPROTO_ICMP, "icmpv6": unix.IPPROTO_ICMPV6, "sctp": unix.IPPROTO_SCTP,
	"esp": unix.IPPROTO_ESP, "ah": unix.IPPROTO_AH, "gre": unix.IPPROTO_GRE, "vrrp": 112, "ospf": 89, "6in4": 41}

// parse reads the ask, and says it in words: "22/tcp".
func (a Ask) parse() (protocol uint8, port uint16, words string, err error) {
	if port, name, ok := strings.Cut(a.Protocol, "/"); ok && a.Port == "" { // as a manifest has it: "22/tcp"
		a.Protocol, a.Port = name, port
	}
	what := strings.TrimSpace("why " + a.Protocol + " " + a.Port)
	protocol, known := protocols[strings.ToLower(a.Protocol)]
	if n, errN := strconv.ParseUint(a.Protocol, 10, 8); errN == nil {
		protocol, known = uint8(n), true
	}
	if !known {
		return 0, 0, "", refusal.New(what, fmt.Sprintf("%q is no protocol", a.Protocol), `say tcp, udp, icmp, esp, gre, vrrp, … or its number: "mesh-agent why tcp 22"`)
	}
	if a.Port == "" {
		if protocol == unix.IPPROTO_TCP || protocol == unix.IPPROTO_UDP {
			return 0, 0, "", refusal.New(what, "it does not say which port", `say it: "mesh-agent why `+a.Protocol+` 22"`)
		}
		return protocol, 0, a.Protocol, nil
	}
	n, err := strconv.ParseUint(a.Port, 10, 16)
	if err != nil {
		return 0, 0, "", refusal.New(what, fmt.Sprintf("%q is no port", a.Port), "a port is a number from 0 to 65535")
	}
	return protocol, uint16(n), a.Port + "/" + strings.ToLower(a.Protocol), nil
}

// Why answers.
func (m *Machine) Why(ask Ask) (Why, error) {
	protocol, port, what, err := ask.parse()
	if err != nil {
		return Why{}, err
	}
	links, from, who, err := m.from(ask.From)
	if err != nil {
		return Why{}, err
	}
	w := Why{Asked: fmt.Sprintf("%s from %s over %s", what, who, strings.Join(links, ", ")), Bypass: m.Rules.Bypass}
	for _, link := range links {
		for _, six := range m.families(link) {
			if from.IsValid() && from.Is6() != six || protocol == unix.IPPROTO_ICMP && six || protocol == unix.IPPROTO_ICMPV6 && !six {
				continue
			}
			a := m.evaluator.Evaluate(evaluate.Packet{In: link, Six: six, Source: from, Protocol: protocol, Port: port})
			way := Way{Link: link, Family: map[bool]string{false: "IPv4", true: "IPv6"}[six], By: byWords(a), Answer: a}
			if a.Way == evaluate.Input && a.Verdict != evaluate.Refused {
				way.Programs = m.listening(link, six, protocol, after(a, port))
			}
			w.Ways = append(w.Ways, way)
			if w.Do == "" {
				w.Do = m.do(a, what, from)
			}
		}
	}
	if len(w.Ways) == 0 {
		return Why{}, refusal.New("why "+what, "no link of this machine that such packets come over has an address of their family", "see the links: ip address")
	}
	said := map[evaluate.Verdict]bool{}
	for _, way := range w.Ways {
		said[way.Answer.Verdict] = true
	}
	switch {
	case said[evaluate.Depends]:
		w.Verdict = evaluate.Depends
	case said[evaluate.Refused]:
		w.Verdict, w.Partly = evaluate.Refused, said[evaluate.Accepted]
	default:
		w.Verdict = evaluate.Accepted
	}
	return w, nil
}

// from finds the links that senders come over, and the one address that is asked about.
func (m *Machine) from(text string) (links []string, from netip.Addr, who string, err error) {
	switch text {
	case "", "uplink", "anywhere":
		if len(m.Uplinks) == 0 {
			return nil, from, "", refusal.New("why from an uplink", "this machine has none: no link carries a default route", `name a link: "mesh-agent why tcp 22 from eth0"`)
		}
		return m.Uplinks, from, "anybody", nil
	case "tunnel":
		if m.Tunnel == "" || m.link(m.Tunnel) == nil {
			return nil, from, "", refusal.New("why from the tunnel", "no tunnel to the other machines is declared and there", "name its link instead of the word tunnel")
		}
		return []string{m.Tunnel}, from, "the other machines", nil
	}
	if m.link(text) != nil {
		return []string{text}, from, "anybody", nil
	}
	from, err = netip.ParseAddr(text)
	if err != nil {
		return nil, from, "", refusal.New("why from "+text, "it is no address, and this machine has no such link", `say an address, a link, "uplink" or "tunnel"`)
	}
	from = from.Unmap()
	if own := slices.IndexFunc(m.World.Links, func(l evaluate.Link) bool {
		return slices.ContainsFunc(l.Addresses, func(p netip.Prefix) bool { return p.Addr() == from })
	}); own >= 0 {
		return []string{"lo"}, from, from.String() + " (this machine itself)", nil
	}
	if link := m.World.Toward(from); link != "" {
		return []string{link}, from, from.String(), nil
	}
	return m.Uplinks, from, from.String(), nil
}

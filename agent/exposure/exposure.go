// Package exposure says what of this machine can be reached from outside, and which rule or whose chain
// decides: Why for one port (NET-12), Of for all that listen, are redirected or declared (NET-14). It
// reads every rule set, the links, routes and listening sockets of the network namespace it is called
// in, needs no daemon, and judges with firewall/evaluate; it changes nothing and starts no goroutine.
package exposure

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"mesh/agent/filter"
	"mesh/firewall"
	"mesh/firewall/evaluate"
	"mesh/firewall/foreign"
	"mesh/shared/declaration"
	"mesh/shared/order"
	"mesh/shared/report"
	"mesh/shared/rule"
)

// Machine is a machine at one moment.
type Machine struct {
	// Rules are all rule sets.
	Rules foreign.Ruleset
	// World is what else the rules are evaluated with.
	World evaluate.World
	// Uplinks are the links of a default route, Tunnel the link to the other machines.
	Uplinks []string
	Tunnel  string
	// Sockets are those that listen.
	Sockets []Socket
	// Held are the ports that containers publish, as far as is known.
	Held []Held
	// Declared is the packet filter declared; nil when none is.
	Declared *declaration.Filter

	evaluator  *evaluate.Evaluator
	containers []Holder // those that podman runs
}

// Read reads the machine whose files begin at root. It needs root, and the caller's thread to stay in
// one network namespace. declared may be nil.
func Read(ctx context.Context, root string, declared *declaration.Filter) (*Machine, error) {
	m := &Machine{Declared: declared}
	var err error
	if m.Rules, err = foreign.ReadAll(ctx); err != nil {
		return nil, err
	}
	m.Rules.Served = foreign.Served(root)
	if m.World, err = evaluate.ReadWorld(ctx); err != nil {
		return nil, err
	}
	links, err := filter.ReadLinks(ctx)
	if err != nil {
		return nil, fmt.Errorf("find the uplinks: %w", err)
	}
	m.Uplinks = links.Uplinks
	if declared != nil {
		m.Tunnel = declared.Tunnel
	}
	if m.Sockets, m.containers, err = readSockets(ctx); err != nil {
		return nil, fmt.Errorf("list what listens: %w", err)
	}
	m.Held = m.holds()
	m.prepare()
	return m, nil
}

func (m *Machine) prepare() { m.evaluator = evaluate.New(&m.Rules, m.World) }

// Filtered says whether mesh's own table is in force.
func (m *Machine) Filtered() bool {
	return slices.ContainsFunc(m.Rules.Tables, func(t foreign.Table) bool { return t.Family == "inet" && t.Name == firewall.TableName })
}

// links are those that traffic from outside arrives over.
func (m *Machine) links() []string {
	list := slices.Clone(m.Uplinks)
	if m.Tunnel != "" && m.link(m.Tunnel) != nil && !slices.Contains(list, m.Tunnel) {
		list = append(list, m.Tunnel)
	}
	return list
}

func (m *Machine) link(name string) *evaluate.Link {
	for i := range m.World.Links {
		if m.World.Links[i].Name == name {
			return &m.World.Links[i]
		}
	}
	return nil
}

// addresses are the machine's on a link, without those of the link alone.
func addresses(l *evaluate.Link) (all []netip.Addr) {
	if l == nil {
		return nil
	}
	for _, a := range l.Addresses {
		if !a.Addr().IsLinkLocalUnicast() {
			all = append(all, a.Addr())
		}
	}
	return all
}

// families are those that a link has an address of, IPv4 first.
func (m *Machine) families(link string) (six []bool) {
	for _, is6 := range []bool{false, true} {
		if slices.ContainsFunc(addresses(m.link(link)), func(a netip.Addr) bool { return a.Is6() == is6 }) {
			six = append(six, is6)
		}
	}
	return six
}

// Of says what can be reached over each uplink and the tunnel.
func (m *Machine) Of() *report.Exposure {
	e := &report.Exposure{Filtered: m.Filtered()}
	for _, name := range m.links() {
		l := report.ExposedLink{Name: name, Tunnel: name == m.Tunnel}
		for _, a := range addresses(m.link(name)) {
			l.Addresses = append(l.Addresses, a.String())
		}
		l.Ports = m.ports(name)
		left := report.MaxExposed
		for _, other := range e.Links {
			left -= len(other.Ports)
		}
		if n := len(l.Ports) - left; n > 0 {
			l.Ports, e.More = l.Ports[:left], e.More+n
		}
		e.Links = append(e.Links, l)
	}
	return e
}

// candidate is a port to ask about.
type candidate struct{ evaluate.PortRange }

// ports asks about every port that something is known of.
func (m *Machine) ports(link string) []report.ExposedPort {
	var all []report.ExposedPort
	for _, c := range m.candidates(link) {
		var lines []report.ExposedPort
		for _, six := range m.families(link) {
			if p, known := m.port(link, six, c); known {
				lines = append(lines, p)
			}
		}
		all = append(all, alike(lines)...)
	}
	order.Sort(all, func(a, b report.ExposedPort) int {
		return cmp.Compare(rank(a), rank(b))
	})
	return all
}

// rank puts what differs first, then what is open.
func rank(p report.ExposedPort) int {
	switch {
	case p.Difference != "":
		return 0
	case p.Kernel == report.PortOpen:
		return 1
	}
	return 2
}

// alike makes one line of two that say the same of both families.
func alike(lines []report.ExposedPort) []report.ExposedPort {
	if len(lines) != 2 {
		return lines
	}
	a, b := lines[0], lines[1]
	a.Family, b.Family = "", ""
	if a.Kernel == b.Kernel && a.By == b.By && a.To == b.To && a.Difference == b.Difference && a.From == b.From {
		for _, p := range b.Programs {
			if !slices.Contains(a.Programs, p) {
				a.Programs = append(a.Programs, p)
			}
		}
		return []report.ExposedPort{a}
	}
	return lines
}

// candidates are the ports that listen, that may be redirected, or that are declared.
func (m *Machine) candidates(link string) []candidate {
	var all []candidate
	for _, s := range m.Sockets {
		if s.reachable(m, link) {
			all = append(all, candidate{evaluate.PortRange{Protocol: s.Protocol, First: s.Port, Last: s.Port}})
		}
	}
	for _, p := range m.evaluator.Published() {
		all = append(all, candidate{p})
	}
	for _, a := range m.allowed() {
		if n := number(a.Port.Protocol); a.Port.First != 0 && n != 0 {
			all = append(all, candidate{evaluate.PortRange{Protocol: n, First: a.Port.First, Last: a.Port.Last}})
		}
	}
	order.Sort(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.First, b.First), cmp.Compare(a.Last, b.Last), cmp.Compare(a.Protocol, b.Protocol))
	})
	return slices.Compact(all)
}

func (m *Machine) allowed() []rule.Allow {
	if m.Declared == nil {
		return nil
	}
	return m.Declared.Allow
}

// number is a protocol's number in IP; 0 for one that has no ports.
func number(protocol string) uint8 {
	return map[string]uint8{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP}[protocol]
}

func protocolName(n uint8) string {
	return map[uint8]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp"}[n]
}

// port asks about one; known is false when nothing is there: neither declared, nor listening, nor
// redirected.
func (m *Machine) port(link string, six bool, c candidate) (p report.ExposedPort, known bool) {
	answer := m.evaluator.Evaluate(evaluate.Packet{In: link, Six: six, Protocol: c.Protocol, Port: c.First})
	p = report.ExposedPort{Port: rule.Port{First: c.First, Last: c.Last, Protocol: protocolName(c.Protocol)}.String(), Family: map[bool]string{false: "ip", true: "ip6"}[six],
		Kernel: kernelWord(answer.Verdict), By: byWords(answer)}
	var to []string
	for _, n := range answer.NAT {
		to = append(to, n.To.String())
	}
	p.To = strings.Join(to, ", then ")
	p.Programs = m.listening(link, six, c.Protocol, after(answer, c.First))
	var mine []rule.Allow // those that count for senders of this link
	for _, a := range m.allowed() {
		if number(a.Port.Protocol) != c.Protocol || a.Port.First > c.First || a.Port.Last < c.First {
			continue
		}
		p.Declared = append(p.Declared, a.String())
		if a.From.Anywhere || a.From.Tunnel && link == m.Tunnel {
			mine = append(mine, a)
		}
	}
	if place := decides(answer); m.Declared == nil && place != nil && ours(*place) && answer.Verdict == evaluate.Accepted {
		p.Declared = []string{place.Comment} // nothing else says what is declared
		mine = []rule.Allow{{}}
	}
	redirected := answer.Way == evaluate.Forward && len(answer.NAT) > 0
	if len(p.Declared) == 0 && len(p.Programs) == 0 && !redirected {
		return p, false
	}
	p.Difference = cmp.Or(m.goneWords(link, six, c.Protocol, c.First), difference(answer, len(mine) > 0, len(p.Programs) > 0 || redirected, p.By))
	if len(mine) == 0 && answer.Verdict == evaluate.Refused {
		m.narrow(&p, link, six, c)
	}
	return p, true
}

// difference compares what is declared for everybody on the link with what the kernel does.
func difference(a evaluate.Answer, declared, there bool, by string) string {
	switch {
	case declared && a.Verdict == evaluate.Refused:
		return "declared, but refused by " + by
	case declared && a.Verdict == evaluate.Depends:
		return "declared, and it cannot be told whether it is let in: it depends on " + by
	case !declared && there && a.Verdict == evaluate.Accepted:
		return "open, but nothing declares it"
	case !declared && there && a.Verdict == evaluate.Depends:
		return "nothing declares it, and it cannot be told whether it is refused: it depends on " + by
	}
	return ""
}

// narrow looks at a port that is declared for some addresses only, with a sender among them.
func (m *Machine) narrow(p *report.ExposedPort, link string, six bool, c candidate) {
	for _, a := range m.allowed() {
		if number(a.Port.Protocol) != c.Protocol || a.Port.First > c.First || a.Port.Last < c.First {
			continue
		}
		for _, prefix := range a.From.Prefixes {
			if prefix.Addr().Is6() != six {
				continue
			}
			from := prefix.Addr()
			if next := from.Next(); prefix.Contains(next) {
				from = next
			}
			answer := m.evaluator.Evaluate(evaluate.Packet{In: link, Six: six, Source: from, Protocol: c.Protocol, Port: c.First})
			p.From, p.Kernel, p.By = a.From.String(), kernelWord(answer.Verdict), byWords(answer)
			if answer.Verdict != evaluate.Accepted {
				p.Difference = "declared for " + a.From.String() + ", but refused by " + p.By
			}
			return
		}
	}
}

// retiring are the front ends that refuse something here.
func (m *Machine) retiring() (names []string) {
	for _, c := range foreign.Judge(m.Rules).Refusing {
		for i, fate := range c.Fate {
			if fate == report.FateRetire && !slices.Contains(names, c.Owner[i]) {
				names = append(names, c.Owner[i])
			}
		}
	}
	return names
}

func kernelWord(v evaluate.Verdict) string {
	switch v {
	case evaluate.Accepted:
		return report.PortOpen
	case evaluate.Refused:
		return report.PortRefused
	}
	return report.PortDepends
}

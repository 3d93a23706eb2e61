package evaluate

import (
	"cmp"
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"

	"mesh/firewall/foreign"
	"mesh/shared/order"
)

// PortRange is some ports of one protocol.
type PortRange struct {
	Protocol    uint8
	First, Last uint16
}

// mostPublished bounds Published.
const mostPublished = 4096

// Published lists the ports that chains of type nat at prerouting speak of, or chains that those may
// lead to: all that may be sent on to somewhere else. Whether a packet to one really is, Evaluate says.
func (e *Evaluator) Published() []PortRange {
	var all []PortRange
	for _, b := range e.hooks["prerouting"] {
		if b.c.Type != "nat" {
			continue
		}
		seen := map[string]bool{}
		todo := []*foreign.Chain{b.c}
		for len(todo) > 0 && len(all) < mostPublished {
			c := todo[len(todo)-1]
			todo = todo[:len(todo)-1]
			if c == nil || seen[c.Name] {
				continue
			}
			seen[c.Name] = true
			for i := range c.Lines {
				p := portsOf{t: b.t, e: e}
				p.line(&c.Lines[i])
				all = append(all, p.found...)
				for _, chain := range p.chains {
					todo = append(todo, b.t.chains[chain])
				}
			}
		}
	}
	order.Sort(all, func(a, b PortRange) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.First, b.First), cmp.Compare(a.Last, b.Last))
	})
	all = slices.Compact(all)
	return all[:min(len(all), mostPublished)]
}

// portsOf finds the destination ports in a rule, and the chains it leads to.
type portsOf struct {
	t        *table
	e        *Evaluator
	protocol uint8
	at       uint32 // the register with the destination port, 0 for none
	loads    uint32 // the first register of a concatenation that is being loaded
	offset   int    // of the port in it
	proto    bool   // the register last loaded has the protocol
	found    []PortRange
	chains   []string
}

func (p *portsOf) line(l *foreign.Line) {
	if l.Words != nil {
		p.words(l.Words)
		return
	}
	for _, x := range expressions(l.Expressions) {
		p.expression(x)
	}
}

func (p *portsOf) expression(x expression) {
	switch x.name {
	case "meta":
		p.proto = x.number(unix.NFTA_META_KEY) == unix.NFT_META_L4PROTO
		p.load(x.number(unix.NFTA_META_DREG), false)
	case "payload":
		base, at, n := x.number(unix.NFTA_PAYLOAD_BASE), x.number(unix.NFTA_PAYLOAD_OFFSET), x.number(unix.NFTA_PAYLOAD_LEN)
		p.proto = base == unix.NFT_PAYLOAD_NETWORK_HEADER && n == 1 && (at == 9 || at == 6)
		p.load(x.number(unix.NFTA_PAYLOAD_DREG), base == unix.NFT_PAYLOAD_TRANSPORT_HEADER && at == 2 && n == 2)
	case "cmp":
		data := x.value(unix.NFTA_CMP_DATA)
		switch {
		case p.proto && len(data) == 1:
			p.protocol = data[0]
		case p.at != 0 && p.at == x.number(unix.NFTA_CMP_SREG) && len(data) == 2 && x.number(unix.NFTA_CMP_OP) == unix.NFT_CMP_EQ:
			p.add(be16(data), be16(data))
		}
		p.forget()
	case "range":
		if from, to := x.value(unix.NFTA_RANGE_FROM_DATA), x.value(unix.NFTA_RANGE_TO_DATA); p.at != 0 && len(from) == 2 && len(to) == 2 {
			p.add(be16(from), be16(to))
		}
		p.forget()
	case "lookup":
		p.lookup(x)
		p.forget()
	case "match":
		if m, ok := decodeMatch(x, p.e.rs).(portsMatch); ok && !m.notTo {
			for _, r := range slices.Concat(m.to, m.any) {
				p.add(r[0], r[1])
			}
		}
	case "immediate":
		v, _ := decodeVerdict(attribute(x.attribute(unix.NFTA_IMMEDIATE_DATA), unix.NFTA_DATA_VERDICT))
		if v.chain != "" {
			p.chains = append(p.chains, v.chain)
		}
	}
}

// load follows what is put side by side for a lookup.
func (p *portsOf) load(reg uint32, port bool) {
	if p.loads == 0 {
		p.loads = reg
	}
	if port {
		from, _ := registerAt(p.loads)
		at, _ := registerAt(reg)
		p.at, p.offset = reg, at-from
	}
}

func (p *portsOf) forget() { p.at, p.loads, p.offset, p.proto = 0, 0, 0, false }

func (p *portsOf) lookup(x expression) {
	set := p.t.sets[string(chars(x.attribute(unix.NFTA_LOOKUP_SET)))]
	if set == nil {
		return
	}
	from := uint16(0)
	for i := range set.Elements {
		e := &set.Elements[i]
		if set.Verdicts {
			if v, _ := decodeVerdict(attribute(e.Data, unix.NFTA_DATA_VERDICT)); v.chain != "" {
				p.chains = append(p.chains, v.chain)
			}
		}
		if p.at == 0 || p.offset < 0 || p.offset+2 > len(e.Key) {
			continue
		}
		port := binary.BigEndian.Uint16(e.Key[p.offset:])
		switch {
		case len(e.KeyEnd) == len(e.Key):
			p.add(port, binary.BigEndian.Uint16(e.KeyEnd[p.offset:]))
		case set.Interval && len(e.Key) == 2: // beginnings and ends, in either order
			if from == 0 {
				from = port
			} else {
				p.add(min(from, port), max(from, port)-1)
				from = 0
			}
		default:
			p.add(port, port)
		}
	}
	if from != 0 && p.at != 0 {
		p.add(from, from)
	}
}

func (p *portsOf) words(words []string) {
	for i := 0; i+1 < len(words); i++ {
		switch words[i] {
		case "-p":
			p.protocol = protocolNumbers[words[i+1]]
		case "--dport", "--dports":
			for _, r := range portRanges(words[i+1]) {
				p.add(r[0], r[1])
			}
		case "-j", "-g":
			p.chains = append(p.chains, words[i+1])
		}
	}
}

func (p *portsOf) add(first, last uint16) {
	if first == 0 && last == 65535 || first > last {
		return // that is no port in particular
	}
	protocols := []uint8{p.protocol}
	if p.protocol == 0 {
		protocols = []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP}
	}
	for _, protocol := range protocols {
		p.found = append(p.found, PortRange{protocol, first, last})
	}
}

package firewall

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"mesh/shared/order"
	"mesh/shared/rule"
)

// Declared rules that differ in their ports, or in ports and senders, are elements of sets that count, and a few
// rules of the kernel's ask those sets: an element costs the kernel a seventh of a rule's time to write, and a
// new connection meets as many rules with thousands of declared ones as with a few. All of them accept, so it is
// the same who is let in, whichever finds it first.

// declared is what the declared rules are in the kernel.
type declared struct {
	sets     []set
	counters []string
	// whole are rules for protocols, tracked those for ports as the sender asked for them (ct original proto-dst):
	// one covers a service of the host and a port published to a container. Packets that a raw table keeps from
	// being tracked have no original port: untracked are the same rules with the port itself.
	whole, tracked, untracked []line
	known                     map[string]bool // the addresses in sets
}

// lines are those of the chain declared.
func (d *declared) lines() []line {
	untracked := line{match: []term{ctState("untracked", ctUntracked)}, verdict: goTo("untracked")}
	return append(append(d.whole, untracked), d.tracked...)
}

// declare makes of all, in their order, elements of sets where they fit, and rules of their own where not. A
// packet is counted by one of the rules that let it in: from anywhere before tunnel before addresses, a port
// before a range, and of those that are alike the first.
func declare(all []*opening) declared {
	d := declared{known: map[string]bool{}}
	peers := map[string]*peers{"tcp": {protocol: "tcp", taken: map[string]bool{}}, "udp": {protocol: "udp", taken: map[string]bool{}}}
	var groups []*group
	at := map[[2]string]*group{}
	for _, o := range all {
		if o.Protocol != 0 {
			d.protocol(o)
			continue
		}
		if peers[o.Port.Protocol].take(o) {
			continue
		}
		key := [2]string{o.Port.Protocol, o.short}
		if at[key] == nil {
			at[key] = &group{opening: o}
			groups = append(groups, at[key])
		}
		at[key].all = append(at[key].all, o)
	}
	slices.SortFunc(groups, func(a, b *group) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.short, b.short), cmp.Compare(a.Port.Protocol, b.Port.Protocol))
	})
	byAddress := slices.IndexFunc(groups, func(g *group) bool { return len(g.From.Prefixes) > 0 })
	if byAddress < 0 {
		byAddress = len(groups)
	}
	var rest []*opening
	for _, g := range groups[:byAddress] {
		rest = append(rest, d.group(g)...)
	}
	d.peers(peers["tcp"])
	d.peers(peers["udp"])
	for _, g := range groups[byAddress:] {
		rest = append(rest, d.group(g)...)
	}
	for _, o := range rest {
		d.alone(o)
	}
	order.Sort(d.sets, func(a, b set) int { return strings.Compare(a.name, b.name) })
	return d
}

// from is the terms that say where packets of o may come from, with the sets they ask.
func (d *declared) from(o *opening) [][]term {
	who, addresses := o.who()
	if len(addresses) > 0 && !d.known[o.short] {
		d.known[o.short] = true
		d.sets = append(d.sets, addresses...)
	}
	return who
}

// protocol adds the rules for a protocol without ports, which need no conntrack.
func (d *declared) protocol(o *opening) {
	name := o.counterName()
	d.counters = append(d.counters, name)
	for _, from := range d.from(o) {
		for _, match := range o.whole(from) {
			d.whole = append(d.whole, line{match: match, counter: name, verdict: accept, comment: o.words()})
		}
	}
}

// alone adds a rule of its own for one that fits into no set, since it overlaps another there.
func (d *declared) alone(o *opening) {
	name, words, protocol := o.counterName(), o.words(), o.Port.Protocol
	d.counters = append(d.counters, name)
	for _, from := range d.from(o) {
		l := line{counter: name, verdict: accept, comment: words}
		d.add(l, append(slices.Clip(from), shownL4(protocol), port(askedFor, originalPort, o.Port)),
			append(slices.Clip(from), l4(number(protocol)), port(protocol+" dport", ownPort, o.Port)))
	}
}

// add adds l twice: for packets that are tracked, and for those that are not.
func (d *declared) add(l line, tracked, untracked []term) {
	l.match = tracked
	d.tracked = append(d.tracked, l)
	l.match = untracked
	d.untracked = append(d.untracked, l)
}

// group are declared rules of one protocol from the same senders: the opening is one of them.
type group struct {
	*opening
	all []*opening
}

// group adds g's sets, of ports and of ranges, and the rules that ask them. It returns what fits into neither:
// what another of the group has already.
func (d *declared) group(g *group) (rest []*opening) {
	slices.SortFunc(g.all, func(a, b *opening) int {
		return cmp.Or(cmp.Compare(a.Port.First, b.Port.First), cmp.Compare(a.Port.Last, b.Port.Last), a.compare(b))
	})
	name := "_" + g.Port.Protocol + "_" + g.short
	ports := set{name: "ports" + name, kind: kindPort, counted: true, elements: make([]element, 0, len(g.all))}
	ranges := set{name: "ranges" + name, kind: kindPort, interval: true, counted: true}
	end := map[bool]uint16{} // of the newest port, and of the newest range; no port is 0
	for _, o := range g.all {
		ranged := o.Port.First != o.Port.Last
		if o.Port.First <= end[ranged] {
			rest = append(rest, o)
			continue
		}
		end[ranged] = o.Port.Last
		to := &ports
		if ranged {
			to = &ranges
		}
		to.elements = append(to.elements, portElement(o.Port, o.words()))
	}
	who := d.from(g.opening)
	for _, s := range []set{ports, ranges} {
		if len(s.elements) == 0 {
			continue
		}
		d.sets = append(d.sets, s)
		for _, from := range who {
			d.add(line{verdict: accept}, append(slices.Clip(from), shownL4(g.Port.Protocol), in(s.name, askedFor, originalPort)),
				append(slices.Clip(from), l4(number(g.Port.Protocol)), in(s.name, g.Port.Protocol+" dport", ownPort)))
		}
	}
	return rest
}

func portElement(p rule.Port, words string) element {
	b := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(make([]byte, 0, 4), p.First), p.Last)
	return element{first: b[:2:2], last: b[2:], text: numbers(p), words: words}
}

// peers are rules for one port and a few single addresses: each address with the port is an element.
type peers struct {
	protocol  string
	four, six []*element
	taken     map[string]bool
}

// take adds o, if it is one of those, says so in whole words, and none of its pairs is there already.
func (p *peers) take(o *opening) bool {
	if len(o.From.Prefixes) == 0 || o.Port.First != o.Port.Last || len(o.From.String()) > mostFrom {
		return false
	}
	keys := make([][]byte, 0, len(o.From.Prefixes))
	for _, prefix := range o.From.Prefixes {
		key := binary.BigEndian.AppendUint16(prefix.Addr().AsSlice(), o.Port.First)
		if key = append(key, 0, 0); !prefix.IsSingleIP() || p.taken[string(key)] { // each part fills whole words
			return false
		}
		keys = append(keys, key)
	}
	for i, key := range keys {
		p.taken[string(key)] = true
		address := o.From.Prefixes[i].Addr()
		e := &element{first: key, text: address.String() + " . " + strconv.Itoa(int(o.Port.First)), words: o.words()}
		if address.Is4() {
			p.four = append(p.four, e)
		} else {
			p.six = append(p.six, e)
		}
	}
	return true
}

// peers adds p's sets, and the rules that ask them.
func (d *declared) peers(p *peers) {
	d.pairs(p.protocol, set{name: "peers_" + p.protocol + "_v4", kind: kindPeer4, counted: true}, p.four, ipv4(), "ip saddr", network(12, 4))
	d.pairs(p.protocol, set{name: "peers_" + p.protocol + "_v6", kind: kindPeer6, counted: true}, p.six, ipv6(), "ip6 saddr", network(8, 16))
}

// pairs adds s with the elements, and the rules that ask it of packets of the family.
func (d *declared) pairs(protocol string, s set, elements []*element, family term, words string, sender load) {
	if len(elements) == 0 {
		return
	}
	slices.SortFunc(elements, func(a, b *element) int { return bytes.Compare(a.first, b.first) })
	for _, e := range elements {
		s.elements = append(s.elements, *e)
	}
	d.sets = append(d.sets, s)
	with := func(port string, at load) term { return in(s.name, words+" . "+port, []load{sender, at}) }
	d.add(line{verdict: accept}, []term{shownL4(protocol), family, with(askedFor, originalPort[0])},
		[]term{family, l4(number(protocol)), with(protocol+" dport", ownPort[0])})
}

// in is a lookup in a set of what loads find; words are nft's for that.
func in(set, words string, loads []load) term {
	return term{text: words + " @" + set, loads: loads, set: set}
}

// askedFor is what nft calls originalPort.
const askedFor = "ct original proto-dst"

// originalPort is the port the sender asked for, which nothing changes; ownPort is the one in the packet.
var (
	originalPort = []load{{kind: loadCT, key: unix.NFT_CT_PROTO_DST, directed: true, size: 2}}
	ownPort      = []load{transport(2, 2)}
)

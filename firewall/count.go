package firewall

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"mesh/firewall/internal/nfnetlink"
	"mesh/shared/rule"
)

// Count is what one counter of mesh's table has counted (NET-12): a declared rule in the manifest's words,
// "web: 443/tcp from anywhere", or something of the table's own, such as "refused". A count goes on over
// every change of the table and over the agent's restarts, and ends with its rule, and with the machine's
// run; it begins anew when another rule comes to overlap this one, or ceases to. A rule counts the first packet
// of a flow, the others are "part of a known flow"; of packets that are not tracked it counts each.
type Count struct {
	// Name is the counter's: that of a named counter, or made of the element that counts.
	Name string `json:"name"`
	// What it counts, in words; long lists of addresses are cut short.
	What string `json:"what"`
	// Declared says that it is a declared rule's.
	Declared bool   `json:"declared,omitempty"`
	Packets  uint64 `json:"packets"`
	Bytes    uint64 `json:"bytes"`
}

// Counts reads the counters of mesh's table in the network namespace of the calling thread, those of the
// table's own first, then in the order of the rules. Without a table there are none. It needs
// CAP_NET_ADMIN and no Driver, and disturbs none.
func Counts(ctx context.Context) ([]Count, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s, err := nfnetlink.Open()
	if err != nil {
		return nil, fmt.Errorf("read packet counts: %w", err)
	}
	defer s.Close()
	k := kernel{s}
	var c counting
	_, err = k.steady(func() error {
		c = counting{words: map[string]string{}, elements: map[string]*Count{}}
		return c.read(k)
	})
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	if err != nil {
		return nil, fmt.Errorf("read packet counts: %w", err)
	}
	return c.all(), nil
}

// counting is a reading of the counts.
type counting struct {
	list     []*Count
	words    map[string]string // of the rules that name a counter
	elements map[string]*Count // those of elements; a rule may have several
}

func (c *counting) read(k kernel) error {
	err := k.List(unix.NFT_MSG_GETOBJ, unix.NFPROTO_INET, func(m nfnetlink.Message) {
		if one, ok := count(m); ok {
			c.list = append(c.list, &one)
		}
	}, TableName)
	if err != nil {
		return err
	}
	err = k.List(unix.NFT_MSG_GETRULE, unix.NFPROTO_INET, func(m nfnetlink.Message) {
		if name, comment := counted(m); name != "" {
			c.words[name] = comment
		}
	}, TableName)
	if err != nil {
		return err
	}
	var f found
	if err := k.List(unix.NFT_MSG_GETSET, unix.NFPROTO_INET, func(m nfnetlink.Message) { f.addSet(TableName, m) }, TableName); err != nil {
		return err
	}
	for _, s := range f.sets {
		if !s.counted {
			continue
		}
		if err := k.List(unix.NFT_MSG_GETSETELEM, unix.NFPROTO_INET, func(m nfnetlink.Message) { c.add(s.name, m) }, TableName, s.name); err != nil {
			return err
		}
	}
	return nil
}

// add adds what the elements of a message counted.
func (c *counting) add(set string, m nfnetlink.Message) {
	for _, item := range nfnetlink.Attributes(elementsIn(m)) {
		one := &Count{Declared: true}
		for typ, v := range nfnetlink.Attributes(item) {
			switch typ {
			case unix.NFTA_SET_ELEM_USERDATA:
				one.What = comment(v)
			case unix.NFTA_SET_ELEM_EXPR:
				if kind, data := expression(v); kind == counterName {
					one.Packets, one.Bytes = counter(data)
				}
			}
		}
		if one.What == "" {
			continue // of somebody else's, or the end of a range
		}
		one.Name = nameOf(set, one.What)
		if sum := c.elements[one.Name]; sum != nil {
			sum.Packets += one.Packets
			sum.Bytes += one.Bytes
			continue
		}
		c.elements[one.Name] = one
		c.list = append(c.list, one)
	}
}

// nameOf is the name a rule that is an element of set has by its words. As a rule of its own it would have a
// counter by that name.
func nameOf(set, words string) string {
	owner, rest, _ := strings.Cut(words, ": ")
	what, _, _ := strings.Cut(rest, " ")
	ports, protocol, _ := strings.Cut(what, "/")
	short := set[strings.LastIndexByte(set, '_')+1:]
	if strings.HasPrefix(set, "peers_") { // their words are whole
		a, err := rule.ParseAllow(rest)
		if err != nil {
			return set // somebody else's
		}
		short = shortOf(canonical(a.From))
	}
	return rulePrefix + owner + "_" + protocol + "_" + ports + "_" + short
}

// all are the counts with their words, in order.
func (c *counting) all() []Count {
	order := map[string]string{}
	for i, own := range ownCounts {
		c.words[own.name], order[own.name] = own.words, fmt.Sprintf(" %02d", i)
	}
	for _, one := range c.list {
		one.What = cmp.Or(one.What, c.words[one.Name], one.Name)
		if one.Declared {
			order[one.Name] = orderOf(one.Name)
		}
	}
	slices.SortFunc(c.list, func(a, b *Count) int { return strings.Compare(order[a.Name], order[b.Name]) })
	out := make([]Count, len(c.list))
	for i, one := range c.list {
		out[i] = *one
	}
	return out
}

// orderOf orders the names of counters as their rules are: by owner, then those with ports by protocol and port.
func orderOf(name string) string {
	parts := strings.Split(name, "_")
	if len(parts) < 5 {
		return strings.Join(parts[1:], " ~ ")
	}
	first, _, _ := strings.Cut(parts[3], "-")
	return fmt.Sprintf("%s %s %5s %s", parts[1], parts[2], first, name)
}

// counted is the counter a rule names, and the rule's comment.
func counted(m nfnetlink.Message) (name, words string) {
	for typ, v := range m.Attributes() {
		switch typ {
		case unix.NFTA_RULE_USERDATA:
			words = comment(v)
		case unix.NFTA_RULE_EXPRESSIONS:
			for _, item := range nfnetlink.Attributes(v) {
				if kind, data := expression(item); kind == "objref" {
					for typ, v := range nfnetlink.Attributes(data) {
						if typ == unix.NFTA_OBJREF_IMM_NAME {
							name = nfnetlink.Text(v)
						}
					}
				}
			}
		}
	}
	return name, words
}

// count reads one counter of mesh's table.
func count(m nfnetlink.Message) (c Count, ok bool) {
	var of string
	var kind uint32
	for typ, v := range m.Attributes() {
		switch typ {
		case unix.NFTA_OBJ_TABLE:
			of = nfnetlink.Text(v)
		case unix.NFTA_OBJ_NAME:
			c.Name = nfnetlink.Text(v)
		case unix.NFTA_OBJ_TYPE:
			kind = nfnetlink.Number(v)
		case unix.NFTA_OBJ_DATA:
			c.Packets, c.Bytes = counter(v)
		}
	}
	c.Declared = len(c.Name) > 2 && c.Name[:2] == rulePrefix
	return c, of == TableName && kind == objectCounter
}

// counter is what a counter has counted.
func counter(data []byte) (packets, bytes uint64) {
	for typ, v := range nfnetlink.Attributes(data) {
		switch typ {
		case unix.NFTA_COUNTER_PACKETS:
			packets = nfnetlink.Number64(v)
		case unix.NFTA_COUNTER_BYTES:
			bytes = nfnetlink.Number64(v)
		}
	}
	return packets, bytes
}

// rulePrefix begins the names of the counters of declared rules.
const rulePrefix = "r_"

// Rule is the declared rule whose counter has this name: where Count.What cuts a list of addresses short,
// this has it whole.
func (t Table) Rule(counter string) (a rule.Allow, ok bool) {
	for _, o := range t.openings {
		if o.counterName() == counter {
			return o.Allow, true
		}
	}
	return rule.Allow{}, false
}

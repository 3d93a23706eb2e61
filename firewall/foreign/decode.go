package foreign

import (
	"bytes"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"mesh/firewall/internal/nfnetlink"
)

// Not in x/sys: attributes and flags of linux/netfilter/nf_tables.h.
const (
	attrTableFlags    = 2
	attrTableUserData = 6
	tableDormant      = 0x1
	tableOwner        = 0x2
	tablePersist      = 0x4
	dataVerdict       = 0xffffff00
	udataComment      = 0
)

// decoder makes a Ruleset from the messages of the kernel's listings, in the order tables, chains,
// sets, rules, elements. Whatever the bytes, it does not fail.
type decoder struct {
	// whole says to keep rules and sets whole.
	whole    bool
	rs       Ruleset
	families []byte             // of rs.Tables
	chains   []map[string]int32 // of rs.Tables: where a chain is
	maps     []map[string]bool  // of rs.Tables: names of verdict maps

	// The chain of the rule before: rules come chain by chain.
	at         int // of rs.Tables
	last       *Chain
	lastFamily byte
	acts       acts
	facts      facts
}

// find is the place of a table in rs.Tables, or -1.
func (d *decoder) find(family byte, name []byte) int {
	for i := range d.rs.Tables {
		if d.families[i] == family && d.rs.Tables[i].Name == string(name) {
			return i
		}
	}
	return -1
}

func (d *decoder) table(m nfnetlink.Message) {
	t := Table{Family: familyName(m.Family())}
	for typ, v := range m.Attributes() {
		switch typ {
		case unix.NFTA_TABLE_NAME:
			t.Name = nfnetlink.Text(v)
		case attrTableFlags:
			t.Flags = tableFlags(nfnetlink.Number(v))
		case attrTableUserData:
			t.Comment = comment(v)
		}
	}
	if t.Name == "" || d.find(m.Family(), []byte(t.Name)) >= 0 {
		return
	}
	if _, known := families[m.Family()]; !known {
		d.rs.note("table %s %s: the family is not known", t.Family, t.Name)
	}
	d.rs.Tables = append(d.rs.Tables, t)
	d.families = append(d.families, m.Family())
	d.chains = append(d.chains, map[string]int32{})
	d.maps = append(d.maps, map[string]bool{})
}

func tableFlags(bits uint32) []string {
	var flags []string
	for _, f := range []struct {
		bit  uint32
		name string
	}{{tableDormant, "dormant"}, {tableOwner, "owner"}, {tablePersist, "persist"}} {
		if bits&f.bit != 0 {
			flags = append(flags, f.name)
			bits &^= f.bit
		}
	}
	if bits != 0 {
		flags = append(flags, fmt.Sprintf("0x%x", bits))
	}
	return flags
}

func (d *decoder) chain(m nfnetlink.Message) {
	var c Chain
	var table []byte
	hook := uint32(0)
	policy, hasPolicy := uint32(0), false
	for typ, v := range m.Attributes() {
		switch typ {
		case unix.NFTA_CHAIN_TABLE:
			table = nfnetlink.Chars(v)
		case unix.NFTA_CHAIN_NAME:
			c.Name = nfnetlink.Text(v)
		case unix.NFTA_CHAIN_TYPE:
			c.Type = nfnetlink.Text(v)
		case unix.NFTA_CHAIN_POLICY:
			policy, hasPolicy = nfnetlink.Number(v), true
		case unix.NFTA_CHAIN_HOOK:
			c.Base = true
			c.Devices = devices(v)
			for typ, v := range nfnetlink.Attributes(v) {
				switch typ {
				case unix.NFTA_HOOK_HOOKNUM:
					hook = nfnetlink.Number(v)
				case unix.NFTA_HOOK_PRIORITY:
					c.Priority = int32(nfnetlink.Number(v))
				}
			}
		}
	}
	i := d.find(m.Family(), table)
	if i < 0 || c.Name == "" {
		return
	}
	t := &d.rs.Tables[i]
	if _, again := d.chains[i][c.Name]; again {
		return
	}
	if c.Base {
		var known bool
		if c.Hook, known = hookName(m.Family(), hook); !known {
			d.rs.note("chain %s %s %s: hook %d is not known", t.Family, t.Name, c.Name, hook)
		}
		switch {
		case !hasPolicy || policy == verdictAccept:
			c.Policy = "accept"
		case policy == verdictDrop:
			c.Policy = "drop"
		default:
			c.Policy = fmt.Sprintf("policy %d", policy)
			d.rs.note("chain %s %s %s: policy %d is not known", t.Family, t.Name, c.Name, policy)
		}
	}
	d.chains[i][c.Name] = int32(len(t.Chains))
	t.Chains = append(t.Chains, c)
	d.last = nil // the slice may have moved
}

// set keeps verdict maps; what other sets hold decides nothing here.
func (d *decoder) set(m nfnetlink.Message) {
	var table []byte
	var name string
	verdicts := false
	for typ, v := range m.Attributes() {
		switch typ {
		case unix.NFTA_SET_TABLE:
			table = nfnetlink.Chars(v)
		case unix.NFTA_SET_NAME:
			name = nfnetlink.Text(v)
		case unix.NFTA_SET_DATA_TYPE:
			verdicts = nfnetlink.Number(v) == dataVerdict
		}
	}
	i := d.find(m.Family(), table)
	if i >= 0 && name != "" && d.whole && !slices.ContainsFunc(d.rs.Tables[i].Sets, func(s Set) bool { return s.Name == name }) {
		d.rs.Tables[i].Sets = append(d.rs.Tables[i].Sets, whole(m))
	}
	if i < 0 || name == "" || !verdicts || d.maps[i][name] {
		return
	}
	d.maps[i][name] = true
	d.rs.Tables[i].Maps = append(d.rs.Tables[i].Maps, Map{Name: name})
}

func (d *decoder) rule(m nfnetlink.Message) {
	var table, chain, expressions, userData []byte
	handle := uint64(0)
	for typ, v := range m.Attributes() {
		switch typ {
		case unix.NFTA_RULE_TABLE:
			table = nfnetlink.Chars(v)
		case unix.NFTA_RULE_CHAIN:
			chain = nfnetlink.Chars(v)
		case unix.NFTA_RULE_EXPRESSIONS:
			expressions = v
		case unix.NFTA_RULE_HANDLE:
			handle = nfnetlink.Number64(v)
		case unix.NFTA_RULE_USERDATA:
			userData = v
		}
	}
	if d.last == nil || d.lastFamily != m.Family() || d.rs.Tables[d.at].Name != string(table) || d.last.Name != string(chain) {
		i := d.find(m.Family(), table)
		if i < 0 {
			return
		}
		j, ok := d.chains[i][string(chain)]
		if !ok {
			return
		}
		d.at, d.lastFamily = i, m.Family()
		d.last = &d.rs.Tables[i].Chains[j]
		d.acts.reset(d.last.Acts)
	}
	t, c := &d.rs.Tables[d.at], d.last
	c.Rules++
	f := &d.facts
	f.read(expressions)
	if len(userData) > 0 {
		f.comment = []byte(comment(userData))
	}
	if d.whole {
		keep(c, handle, expressions, string(f.comment))
	}
	if len(f.links) > 0 && bridgesIn(c.Name) {
		for _, link := range f.links {
			c.Bridges = addWord(c.Bridges, string(link))
		}
	}
	t.XT = t.XT || f.xt
	for _, name := range f.unknown {
		d.rs.note("a rule of %s %s %s: %s is not known, so when the rule applies is not either", t.Family, t.Name, c.Name, name)
	}
	hint := f.hint()
	for _, a := range f.acts {
		a.Hint = hint
		d.acts.add(&c.Acts, a)
	}
	if hint != "" && len(f.acts) == 0 {
		c.hint(hint)
	}
}

func (c *Chain) hint(owner string) {
	for _, h := range c.Hints {
		if h == owner {
			return
		}
	}
	c.Hints = append(c.Hints, owner)
}

// elements adds what a packet is told by the elements of a verdict map.
func (d *decoder) elements(t *Table, m *Map, acts *acts, msg nfnetlink.Message) {
	for typ, list := range msg.Attributes() {
		if typ != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			continue
		}
		for _, item := range nfnetlink.Attributes(list) {
			for typ, v := range nfnetlink.Attributes(item) {
				if typ != unix.NFTA_SET_ELEM_DATA {
					continue
				}
				act, known := verdictIn(v)
				if !known {
					d.rs.note("map %s %s %s: a verdict is not known", t.Family, t.Name, m.Name)
				}
				if act != (Act{}) {
					acts.add(&m.Acts, act)
				}
			}
		}
	}
}

// acts counts what is alike.
type acts struct{ at map[Act]int }

func (a *acts) reset(have []Act) {
	a.at = nil
	for i, act := range have {
		act.Count = 0
		a.put(act, i)
	}
}

func (a *acts) put(act Act, i int) {
	if a.at == nil {
		a.at = map[Act]int{}
	}
	a.at[act] = i
}

// add has act's Count 0.
func (a *acts) add(list *[]Act, act Act) {
	if i, ok := a.at[act]; ok {
		(*list)[i].Count++
		return
	}
	a.put(act, len(*list))
	act.Count = 1
	*list = append(*list, act)
}

// comment finds the comment in nft's user data: entries of a type, a length and a value.
func comment(v []byte) string {
	for len(v) >= 2 {
		typ, size := v[0], int(v[1])
		if size > len(v)-2 {
			return ""
		}
		if typ == udataComment {
			return string(bytes.TrimRight(v[2:2+size], "\x00"))
		}
		v = v[2+size:]
	}
	return ""
}

var families = map[byte]string{
	unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6", unix.NFPROTO_INET: "inet",
	unix.NFPROTO_ARP: "arp", unix.NFPROTO_BRIDGE: "bridge", unix.NFPROTO_NETDEV: "netdev",
}

func familyName(f byte) string {
	if name, ok := families[f]; ok {
		return name
	}
	return fmt.Sprintf("family %d", f)
}

// hookName is what nft calls hook n of a family.
func hookName(family byte, n uint32) (name string, known bool) {
	names := []string{"prerouting", "input", "forward", "output", "postrouting"}
	switch family {
	case unix.NFPROTO_ARP:
		names = []string{"input", "output", "forward"}
	case unix.NFPROTO_NETDEV:
		names = []string{"ingress", "egress"}
	case unix.NFPROTO_INET:
		names = append(names, "ingress")
	}
	if n < uint32(len(names)) {
		return names[n], true
	}
	return fmt.Sprintf("hook %d", n), false
}

package foreign

import (
	"bytes"
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"mesh/firewall/internal/nfnetlink"
	"mesh/shared/order"
)

// Ban is one sender, or a range of them, that a tool refuses (NET-11).
type Ban struct {
	// Owner is the tool, Jail its own word for why, where it has one.
	Owner string `json:"owner"`
	Jail  string `json:"jail,omitempty"`
	// From and To are the addresses, alike for one.
	From netip.Addr `json:"from"`
	To   netip.Addr `json:"to"`
	// Where is the set or chain it stands in: "inet f2b-table addr-set-sshd".
	Where string `json:"where"`
	// LeftMS is how many milliseconds it still stays, AgeMS how long it has; 0 where the kernel does not
	// know.
	LeftMS uint64 `json:"left_ms,omitempty"`
	AgeMS  uint64 `json:"age_ms,omitempty"`
	// Idle says why it refuses nobody, such as a set that no rule asks; empty: it does.
	Idle    string `json:"idle,omitempty"`
	Comment string `json:"comment,omitempty"`
}

// Addresses is what is banned in one word: an address, a prefix, or a range.
func (b Ban) Addresses() string {
	if b.From == b.To {
		return b.From.String()
	}
	if p, ok := prefixOf(b.From, b.To); ok {
		return p.String()
	}
	return b.From.String() + "-" + b.To.String()
}

// prefixOf is the prefix that reaches from one address to another.
func prefixOf(from, to netip.Addr) (netip.Prefix, bool) {
	for bits := range from.BitLen() + 1 {
		p := netip.PrefixFrom(from, bits)
		if p.Masked().Addr() == from && lastOf(p) == to {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// Covers says whether a is banned by it.
func (b Ban) Covers(a netip.Addr) bool {
	a = a.Unmap()
	return a.BitLen() == b.From.BitLen() && b.From.Compare(a) <= 0 && a.Compare(b.To) <= 0
}

const idleSet = "no rule that packets come to asks the set"

// Bans lists what ban tools refuse, as rs, read with ReadAll, has it: the elements of their sets, their
// rules about one sender, and the routes to one address that refuse, by whose nobody can tell. Sorted by
// tool, jail and address.
func Bans(rs Ruleset) []Ban {
	asked, names := askedSets(&rs)
	var all []Ban
	for i := range rs.Tables {
		t := &rs.Tables[i]
		for j := range t.Sets {
			if owner := banner(t.Name, t.Sets[j].Name); owner != "" && !t.Sets[j].Map {
				idle := ""
				if !asked[t.Family+" "+t.Name+" "+t.Sets[j].Name] {
					idle = idleSet
				}
				all = append(all, t.Sets[j].bans(owner, t.Family+" "+t.Name, idle)...)
			}
		}
	}
	for i := range rs.IPSets {
		s := &rs.IPSets[i]
		if owner := ownerIn(setNames, s.Name); kindOf(owner) == kindBans {
			idle := ""
			if !names[s.Name] {
				idle = idleSet
			}
			all = append(all, s.bans(owner, idle)...)
		}
	}
	all = append(all, ruleBans(&rs)...)
	for _, r := range rs.DeadEnds {
		all = append(all, Ban{Owner: "route", From: r.Address, To: r.Address, Where: r.How + " route"})
	}
	order.Sort(all, func(a, b Ban) int {
		return cmp.Or(cmp.Compare(a.Owner, b.Owner), cmp.Compare(a.Jail, b.Jail), a.From.Compare(b.From), a.To.Compare(b.To), cmp.Compare(a.Where, b.Where))
	})
	return all
}

// banner is the ban tool whose set it is, by the table or by the name; empty for none.
func banner(table, set string) string {
	for _, owner := range []string{ownerIn(tableNames, table), ownerIn(setNames, set)} {
		if kindOf(owner) == kindBans {
			return owner
		}
	}
	return ""
}

// jail is the tool's word in a name: "sshd" of f2b-sshd and of addr-set-sshd.
func jail(name string) string {
	for _, prefix := range []string{"f2b-", "addr-set-", "addr6-set-", "fail2ban-"} {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			return rest
		}
	}
	return ""
}

// bans are the elements of a set of addresses.
func (s *Set) bans(owner, table, idle string) (all []Ban) {
	size := s.KeyLen
	if len(s.Fields) > 0 {
		size = s.Fields[0]
	}
	if size != 4 && size != 16 {
		return nil
	}
	elements := slices.Clone(s.Elements)
	ranged := s.Interval && len(s.Fields) <= 1
	if ranged {
		order.Sort(elements, func(a, b Element) int {
			if order := bytes.Compare(a.Key, b.Key); order != 0 {
				return order
			}
			return map[bool]int{true: -1, false: 1}[a.End] // an end comes before the beginning at its place
		})
	}
	for i, e := range elements {
		if e.End || e.Rest || len(e.Key) < size {
			continue
		}
		from, _ := netip.AddrFromSlice(e.Key[:size])
		to := from
		switch {
		case len(e.KeyEnd) >= size:
			to, _ = netip.AddrFromSlice(e.KeyEnd[:size])
		case ranged && i+1 < len(elements) && elements[i+1].End && len(elements[i+1].Key) >= size:
			end, _ := netip.AddrFromSlice(elements[i+1].Key[:size])
			to = end.Prev()
		case ranged:
			to = lastOf(netip.PrefixFrom(from, 0)) // to the end of all addresses
		}
		b := Ban{Owner: owner, Jail: jail(s.Name), From: from, To: to, Where: table + " " + s.Name, LeftMS: e.Expires, Idle: idle, Comment: e.Comment}
		if e.Timeout > e.Expires && e.Expires > 0 {
			b.AgeMS = e.Timeout - e.Expires
		}
		all = append(all, b)
	}
	return all
}

func (s *IPSet) bans(owner, idle string) (all []Ban) {
	name := s.Name
	if s.Six { // fail2ban's, of the same jail
		name = strings.TrimSuffix(name, "6")
	}
	for _, m := range s.Members {
		if !m.Addresses.IsValid() {
			continue
		}
		to := lastOf(m.Addresses)
		if m.To.IsValid() {
			to = m.To
		}
		all = append(all, Ban{Owner: owner, Jail: jail(name), From: m.Addresses.Addr(), To: to, Where: "ipset " + s.Name, LeftMS: uint64(m.Left) * 1000, Idle: idle, Comment: m.Comment})
	}
	return all
}

// refusingChains are the chains that can refuse, as "ip filter INPUT".
func refusingChains(rs *Ruleset) map[string]bool {
	r := Judge(*rs)
	all := map[string]bool{}
	for _, c := range r.Refusing {
		all[c.Family+" "+c.Table+" "+c.Chain] = true
	}
	for _, c := range r.Legacy {
		all["legacy "+c.Family+" "+c.Table+" "+c.Chain] = true
	}
	return all
}

// askedSets are the sets, as "inet f2b-table addr-set-sshd", and the sets of ipset that rules of refusing
// chains ask.
func askedSets(rs *Ruleset) (sets, ipsets map[string]bool) {
	refusing := refusingChains(rs)
	sets, ipsets = map[string]bool{}, map[string]bool{}
	byNumber := map[uint16]string{}
	for _, s := range rs.IPSets {
		byNumber[s.Index] = s.Name
	}
	var f facts
	for i := range rs.Tables {
		t := &rs.Tables[i]
		for j := range t.Chains {
			c := &t.Chains[j]
			if !refusing[t.Family+" "+t.Name+" "+c.Name] {
				continue
			}
			for k := range c.Lines {
				f.read(c.Lines[k].Expressions)
				if f.xtSet {
					ipsets[byNumber[f.ipset]] = true
				}
				for _, name := range f.sets {
					sets[t.Family+" "+t.Name+" "+string(name)] = true
				}
			}
		}
	}
	for i := range rs.Legacy {
		for _, c := range rs.Legacy[i].Chains {
			for _, l := range c.Lines {
				if at := slices.Index(l.Words, "--match-set"); at >= 0 && at+1 < len(l.Words) {
					ipsets[l.Words[at+1]] = true
				}
			}
		}
	}
	return sets, ipsets
}

// ruleBans are the rules of ban tools about one sender.
func ruleBans(rs *Ruleset) (all []Ban) {
	whose := WhoseOf(rs)
	refusing := refusingChains(rs)
	add := func(t *Table, c *Chain, prefix, mark string) {
		for k := range c.Lines {
			l := &c.Lines[k]
			by := c.Name // the chain that refuses
			from, to, ok := oneSender(l, func(chain string) bool {
				if kindOf(ownerIn(chainNames, chain)) != kindBans {
					return false
				}
				by = chain // such as one that logs before
				return true
			})
			if !ok {
				continue
			}
			owner := ownerIn(chainNames, by)
			if kindOf(owner) != kindBans {
				owner = ""
			}
			for _, o := range whose.Rule(t, c, l) {
				if kindOf(o) == kindBans {
					owner = o
				}
			}
			if owner == "" {
				continue
			}
			where := t.Family + " " + t.Name + " " + c.Name
			b := Ban{Owner: owner, Jail: jail(c.Name), From: from, To: to, Where: prefix + where, Comment: l.Comment}
			if !refusing[mark+t.Family+" "+t.Name+" "+by] {
				b.Idle = whyUnreached
			}
			all = append(all, b)
		}
	}
	for i := range rs.Tables {
		for j := range rs.Tables[i].Chains {
			add(&rs.Tables[i], &rs.Tables[i].Chains[j], "", "")
		}
	}
	for i := range rs.Legacy {
		for j := range rs.Legacy[i].Chains {
			add(&rs.Legacy[i], &rs.Legacy[i].Chains[j], "legacy ", "legacy ")
		}
	}
	return all
}

// oneSender says whom a rule refuses, when it is one address or prefix; leads says of a chain that what is led
// there is refused.
func oneSender(l *Line, leads func(chain string) bool) (from, to netip.Addr, ok bool) {
	if l.Words != nil {
		return oneSenderInWords(l.Words, leads)
	}
	refuses, atSource := false, false
	size, mask := 0, []byte(nil)
	var key []byte
	for _, item := range nfnetlink.Attributes(l.Expressions) {
		var name string
		var data []byte
		for typ, v := range nfnetlink.Attributes(item) {
			switch typ {
			case unix.NFTA_EXPR_NAME:
				name = nfnetlink.Text(v)
			case unix.NFTA_EXPR_DATA:
				data = v
			}
		}
		switch name {
		case "payload":
			size, atSource = sourceSize(data)
			mask = nil
		case "bitwise":
			for typ, v := range nfnetlink.Attributes(data) {
				if typ == unix.NFTA_BITWISE_MASK {
					mask = nfData(v)
				}
			}
		case "cmp":
			if value, equal := comparison(data); atSource && equal && key == nil {
				key = value
				if mask != nil {
					size = maskSize(mask)
				} else {
					size = len(value) * 8
				}
			}
			atSource = false
		case "reject":
			refuses = true
		case "target":
			name, _ := xtParts(data)
			refuses = refuses || slices.Contains(refusingTargets, name)
		case "immediate":
			for typ, v := range nfnetlink.Attributes(data) {
				if typ == unix.NFTA_IMMEDIATE_DATA {
					act, _ := verdictIn(v)
					refuses = refuses || act.refuses() || act.Chain != "" && leads(act.Chain)
				}
			}
		}
	}
	if !refuses || key == nil {
		return from, to, false
	}
	from, to = l.sender(key, size)
	return from, to, true
}

// sender is the addresses that begin with the first size bits of key.
func (l *Line) sender(key []byte, size int) (from, to netip.Addr) {
	whole := 4
	if len(key) > 4 || l.sixteen() {
		whole = 16
	}
	full := make([]byte, whole)
	copy(full, key)
	from, _ = netip.AddrFromSlice(full)
	return from, lastOf(netip.PrefixFrom(from, min(size, from.BitLen())))
}

// sixteen says whether the rule reads an address of IPv6 from its place in the header.
func (l *Line) sixteen() bool {
	six := false
	for _, item := range nfnetlink.Attributes(l.Expressions) {
		for typ, v := range nfnetlink.Attributes(item) {
			if typ == unix.NFTA_EXPR_DATA {
				for typ, v := range nfnetlink.Attributes(v) {
					six = six || typ == unix.NFTA_PAYLOAD_OFFSET && nfnetlink.Number(v) == 8
				}
			}
		}
	}
	return six
}

// sourceSize says whether the source address, or its first bytes, are loaded.
func sourceSize(payload []byte) (size int, source bool) {
	var a [5]uint32
	for typ, v := range nfnetlink.Attributes(payload) {
		if int(typ) < len(a) {
			a[typ] = nfnetlink.Number(v)
		}
	}
	at, n := a[unix.NFTA_PAYLOAD_OFFSET], a[unix.NFTA_PAYLOAD_LEN]
	network := a[unix.NFTA_PAYLOAD_BASE] == unix.NFT_PAYLOAD_NETWORK_HEADER
	return int(n), network && (at == 12 && n <= 4 || at == 8 && n <= 16 && n != 1)
}

func comparison(cmp []byte) (value []byte, equal bool) {
	equal = true
	for typ, v := range nfnetlink.Attributes(cmp) {
		switch typ {
		case unix.NFTA_CMP_OP:
			equal = nfnetlink.Number(v) == unix.NFT_CMP_EQ
		case unix.NFTA_CMP_DATA:
			value = nfData(v)
		}
	}
	return value, equal
}

func maskSize(mask []byte) (bits int) {
	for _, b := range mask {
		for ; b&0x80 != 0; b <<= 1 {
			bits++
		}
	}
	return bits
}

func oneSenderInWords(words []string, leads func(chain string) bool) (from, to netip.Addr, ok bool) {
	refuses := false
	for i, w := range words[:max(0, len(words)-1)] {
		next := words[i+1]
		switch w {
		case "-j", "-g":
			refuses = next == "DROP" || slices.Contains(refusingTargets, next) || leads(next)
		case "-s":
			p, err := netip.ParsePrefix(next)
			if err != nil {
				if a, errA := netip.ParseAddr(next); errA == nil {
					p, err = netip.PrefixFrom(a, a.BitLen()), nil
				}
			}
			if err == nil && (i == 0 || words[i-1] != "!") {
				from, to, ok = p.Masked().Addr(), lastOf(p.Masked()), true
			}
		}
	}
	return from, to, ok && refuses
}

// String is the ban in one line.
func (b Ban) String() string {
	words := b.Addresses() + " by " + b.Owner
	if b.Jail != "" {
		words += fmt.Sprintf(" (%s)", b.Jail)
	}
	return words
}

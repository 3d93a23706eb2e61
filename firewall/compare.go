package firewall

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"mesh/firewall/internal/nfnetlink"
)

// differs says in a few words where the kernel's table is not t, or "" when it is exactly t.
// Counters do not count.
func (t Table) differs(have *found) string { return t.drift(have).What }

// drift is differs with what kind of difference it is.
func (t Table) drift(have *found) Drift {
	if have == nil {
		return Drift{What: "the table is gone"}
	}
	if have.flags&unix.NFT_TABLE_F_DORMANT != 0 {
		return Drift{What: "the table is dormant"}
	}
	var d Drift
	for _, s := range t.sets {
		if why := s.differs(have.set(s.name)); why != "" {
			d.note("set "+s.name+": "+why, false)
		}
	}
	for _, s := range have.sets {
		if !slices.ContainsFunc(t.sets, func(w set) bool { return w.name == s.name }) {
			d.note(fmt.Sprintf("set %s is not mesh's", s.name), true)
		}
	}
	for _, c := range t.chains {
		if why, added := c.differs(have.chain(c.name)); why != "" {
			d.note("chain "+c.name+": "+why, added)
		}
	}
	for _, c := range have.chains {
		if !slices.ContainsFunc(t.chains, func(w chain) bool { return w.name == c.name }) {
			d.note(fmt.Sprintf("chain %s is not mesh's", c.name), true)
		}
	}
	return d
}

// sameShape reports whether have can be filled instead of made anew.
func (s set) sameShape(have *foundSet) bool {
	return have != nil && have.flags == s.flags() && have.key == s.kind.key && have.len == s.kind.size && have.counted == s.counted
}

func (s set) differs(have *foundSet) string {
	if have == nil {
		return "is gone"
	}
	if !s.sameShape(have) {
		return "has another type"
	}
	want, got := s.entries(), have.sorted()
	slices.SortFunc(want, entry.compare)
	if len(want) != len(got) {
		return fmt.Sprintf("has %d elements instead of %d", s.count(got), s.count(want))
	}
	for i := range want {
		if want[i].compare(got[i]) != 0 {
			return "has other elements"
		}
		if s.counted && want[i].words != got[i].words {
			return "has other comments"
		}
	}
	return ""
}

func (s set) count(e []entry) int {
	n := 0
	for _, x := range e {
		if !x.end {
			n++
		}
	}
	return n
}

// compare orders by key; a range ends before the next begins.
func (e entry) compare(o entry) int {
	if c := bytes.Compare(e.key, o.key); c != 0 || e.end == o.end {
		return c
	}
	if e.end {
		return -1
	}
	return 1
}

// sorted are the entries in order. A set that grows while it is listed may list some twice.
func (f *foundSet) sorted() []entry {
	all := slices.Clone(f.entries)
	slices.SortFunc(all, entry.compare)
	all = slices.CompactFunc(all, func(a, b entry) bool { return a.compare(b) == 0 })
	// nft opens an interval set with an end at zero, which holds nothing.
	if len(all) > 0 && all[0].end && len(bytes.Trim(all[0].key, "\x00")) == 0 {
		all = all[1:]
	}
	return all
}

// elements are those of s that the kernel holds; ok is false when they cannot be told.
func (f *foundSet) elements(s set) (out []element, ok bool) {
	if f.flags&unix.NFT_SET_INTERVAL == 0 {
		for _, e := range f.sorted() {
			out = append(out, element{first: e.key, words: e.words})
		}
		return out, true
	}
	open := false
	for _, e := range f.sorted() {
		if e.end == !open {
			return nil, false
		}
		if open = !e.end; open {
			out = append(out, element{first: e.key, last: bytes.Repeat([]byte{0xff}, len(e.key)), words: e.words})
		} else {
			out[len(out)-1].last = predecessor(e.key)
		}
	}
	return out, true
}

// sameHook reports whether have hangs where c should; that cannot be changed in place.
func (c chain) sameHook(have *foundChain) bool {
	if c.hook == hookNone {
		return !have.based
	}
	return have.based && have.hook == c.hook.number() && have.priority == priority && have.typ == filterType
}

// differs says where have is not c; added: it has all rules of c in their order, and others.
func (c chain) differs(have *foundChain) (why string, added bool) {
	switch {
	case have == nil:
		return "is gone", false
	case !c.sameHook(have):
		return "has another hook or priority", false
	case have.based && have.policy != uint32(nftables.ChainPolicyAccept):
		return "has another policy", false
	}
	var w wire
	var foreign []foundRule
	next := 0
	for _, r := range have.rules {
		if next < len(c.lines) && c.lines[next].is(&w, r) {
			next++
		} else {
			foreign = append(foreign, r)
		}
	}
	switch {
	case next == len(c.lines) && len(foreign) == 0:
		return "", false
	case next == len(c.lines):
		return foreignRules(foreign), true
	case len(have.rules) != len(c.lines):
		return fmt.Sprintf("has %d rules instead of %d", len(have.rules), len(c.lines)), false
	}
	return fmt.Sprintf("rule %d is another", next+1), false
}

// is reports whether the kernel's rule is l. w is for writing l down.
func (l line) is(w *wire, have foundRule) bool {
	w.B = w.B[:0]
	w.expressions(l)
	w.buffer = l.appendUserData(w.buffer[:0])
	return bytes.Equal(w.buffer, have.userData) && sameExpressions(w.B, have.expressions)
}

// sameExpressions compares the expressions of two rules as mesh writes them and as the kernel lists
// them: there in another order of attributes, and with those that are zero filled in.
func sameExpressions(want, have []byte) bool {
	w, h := list(want), list(have)
	if len(w) != len(h) {
		return false
	}
	for i := range w {
		wName, wData := expression(w[i].value)
		hName, hData := expression(h[i].value)
		if wName != hName || wName != "counter" && !sameAttributes(wData, hData) {
			return false
		}
	}
	return true
}

func expression(b []byte) (name string, data []byte) {
	for typ, v := range nfnetlink.Attributes(b) {
		switch typ {
		case unix.NFTA_EXPR_NAME:
			name = nfnetlink.Text(v)
		case unix.NFTA_EXPR_DATA:
			data = v
		}
	}
	return name, data
}

type attribute struct {
	typ   uint16
	value []byte
}

func list(b []byte) []attribute {
	var out []attribute
	for typ, v := range nfnetlink.Attributes(b) {
		out = append(out, attribute{typ, v})
	}
	return out
}

// sameAttributes compares by type. What only one side has must be zero. Nested attributes of an
// expression hold one value or one verdict, whose bytes both sides write alike.
func sameAttributes(want, have []byte) bool {
	w, h := list(want), list(have)
	zero := func(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }
	find := func(in []attribute, typ uint16) []byte {
		for _, a := range in {
			if a.typ == typ {
				return a.value
			}
		}
		return nil
	}
	for _, a := range w {
		got := find(h, a.typ)
		if got == nil && zero(a.value) {
			continue
		}
		if !sameValue(a.value, got) {
			return false
		}
	}
	for _, a := range h {
		if find(w, a.typ) == nil && !zero(a.value) {
			return false
		}
	}
	return true
}

// sameValue compares two values, or two nested attributes whatever order and flag of nesting the
// kernel gave them. Kernels differ in setting that flag.
func sameValue(want, have []byte) bool {
	if bytes.Equal(want, have) {
		return true
	}
	w, h := list(want), list(have)
	if len(want) < 8 || len(want) != len(have) || len(w) == 0 || len(w) != len(h) {
		return false
	}
	for i := range w {
		if w[i].typ != h[i].typ || !sameValue(w[i].value, h[i].value) {
			return false
		}
	}
	return true
}

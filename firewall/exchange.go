package firewall

import (
	"bytes"
	"slices"

	"golang.org/x/sys/unix"

	"mesh/firewall/internal/nfnetlink"
)

// exchange writes the transaction that makes t of the table that was, nil for none, over the bytes of b. Where
// its content is known exactly, sets and chains that stay the same are left alone.
func exchange(b []byte, name string, flags uint32, was memory, t Table) []byte {
	have, before, known := was.layout, was.table, was.table
	if have == nil {
		have, before, known = &found{}, Table{}, Table{}
	}
	if slices.ContainsFunc(t.sets, func(s set) bool { h := have.set(s.name); return h != nil && !s.sameShape(h) }) {
		before = Table{} // a set made anew leaves no rule alone that asks it
	}
	n := news{chains: make([]bool, len(t.chains)), sets: make([]bool, len(t.sets))}
	for i, c := range t.chains {
		old := before.chain(c.name)
		n.chains[i] = old == nil || !old.equal(c)
	}
	for i, s := range t.sets {
		old := known.set(s.name)
		n.sets[i] = old == nil || !s.equal(*old)
	}
	w := wire{Buffer: nfnetlink.Buffer{B: slices.Grow(b[:0], t.size(n))}}
	w.BeginBatch(was.generation)
	if known.chains == nil { // else it is there, with these flags
		w.newTable(name, flags)
	}
	w.clear(name, have, t, before, n)
	for i, s := range t.sets {
		there := have.set(s.name)
		if !s.sameShape(there) {
			w.newSet(name, s, uint32(i+1))
			w.newElements(name, s, s.elements)
			continue
		}
		old := known.set(s.name)
		switch {
		case !n.sets[i]:
		case s.counted && old != nil:
			w.exchange(name, s, old.elements)
		case s.counted:
			elements, _ := there.elements(s)
			w.exchange(name, s, elements)
		default:
			w.exchange(name, s, nil)
		}
	}
	for _, c := range t.chains {
		if old := before.chain(c.name); old == nil {
			w.newChain(name, c)
		}
	}
	counted := have.names()
	for _, c := range t.counters {
		if !counted[c] {
			w.newCounter(name, c)
		}
	}
	for i, c := range t.chains {
		if !n.chains[i] {
			continue
		}
		for _, l := range c.lines {
			w.newRule(name, c.name, l)
		}
	}
	w.EndBatch()
	return w.B
}

// exchange makes s of a set that holds elements, or what is not known. Those that stay are left alone, and go on
// counting.
func (w *wire) exchange(table string, s set, have []element) {
	stay := 0
	differ(have, s.elements, func(gone, news *element) {
		if gone == news {
			stay++
		}
	})
	if stay == 0 {
		w.simple(unix.NFT_MSG_DELSETELEM, table, s.name)
		w.newElements(table, s, s.elements)
		return
	}
	var out, in []element
	differ(have, s.elements, func(gone, news *element) {
		switch {
		case gone == news:
		case gone != nil:
			out = append(out, *gone)
		default:
			in = append(in, *news)
		}
	})
	w.delElements(table, s, out)
	w.newElements(table, s, in)
}

// differ calls each with what of have is not in want, with what of want is not in have, and with nothing for what
// is in both. Both are sorted.
func differ(have, want []element, each func(gone, news *element)) {
	for len(have) > 0 || len(want) > 0 {
		c := 1
		switch {
		case len(want) == 0:
			c = -1
		case len(have) > 0:
			if c = bytes.Compare(have[0].first, want[0].first); c == 0 && !have[0].same(&want[0]) {
				c = -1
			}
		}
		switch {
		case c == 0:
			each(nil, nil)
			have, want = have[1:], want[1:]
		case c < 0:
			each(&have[0], nil)
			have = have[1:]
		default:
			each(nil, &want[0])
			want = want[1:]
		}
	}
}

// clear removes what is to be written anew, and what is no part of t.
func (w *wire) clear(name string, have *found, t, before Table, n news) {
	switch {
	case before.chains != nil:
		for _, c := range before.chains {
			if at := slices.IndexFunc(t.chains, func(now chain) bool { return now.name == c.name }); at < 0 || n.chains[at] {
				w.simple(unix.NFT_MSG_DELRULE, name, c.name)
			}
		}
	case len(have.chains) > 0:
		w.simple(unix.NFT_MSG_DELRULE, name, "")
	}
	for i := range have.sets {
		s := &have.sets[i]
		if s.flags&unix.NFT_SET_ANONYMOUS == 0 && !t.keeps(s) { // anonymous ones go with their rule
			w.simple(unix.NFT_MSG_DELSET, name, s.name)
		}
	}
	for _, c := range have.chains {
		if t.chain(c.name) == nil {
			w.simple(unix.NFT_MSG_DELCHAIN, name, c.name)
		}
	}
	wanted := make(map[string]bool, len(t.counters))
	for _, c := range t.counters {
		wanted[c] = true
	}
	for _, c := range have.counters {
		if !wanted[c] {
			w.delCounter(name, c)
		}
	}
}

// news says which chains and sets of a table are others than those in force, by their place.
type news struct{ chains, sets []bool }

// size is about how many bytes the transaction has.
func (t Table) size(n news) int {
	size := 8 << 10
	for i, c := range t.chains {
		if n.chains[i] {
			size += 600 * len(c.lines)
		}
	}
	for i, s := range t.sets {
		if n.sets[i] {
			size += 2 * 48 * len(s.elements)
			if s.counted {
				size += 64 * len(s.elements)
			}
		}
	}
	return size + 128*len(t.counters)
}

func (t Table) keeps(s *foundSet) bool {
	want := t.set(s.name)
	return want != nil && want.sameShape(s)
}

func (t Table) chain(name string) *chain {
	for i := range t.chains {
		if t.chains[i].name == name {
			return &t.chains[i]
		}
	}
	return nil
}

func (t Table) set(name string) *set {
	for i := range t.sets {
		if t.sets[i].name == name {
			return &t.sets[i]
		}
	}
	return nil
}

// layout is t as the kernel would list it, without rules and elements.
func (t Table) layout(flags, owner uint32) *found {
	f := &found{flags: flags, counted: true}
	if flags&tableOwner != 0 {
		f.owner = owner
	}
	for _, c := range t.chains {
		g := foundChain{name: c.name}
		if c.hook != hookNone {
			g.based, g.hook, g.priority, g.typ = true, c.hook.number(), priority, filterType
		}
		f.chains = append(f.chains, g)
	}
	for _, s := range t.sets {
		f.sets = append(f.sets, foundSet{name: s.name, flags: s.flags(), key: s.kind.key, len: s.kind.size, counted: s.counted})
	}
	f.counters = slices.Clone(t.counters)
	return f
}

func (s set) equal(o set) bool {
	return s.name == o.name && s.kind == o.kind && s.interval == o.interval && s.merge == o.merge && s.counted == o.counted &&
		slices.EqualFunc(s.elements, o.elements, func(a, b element) bool { return bytes.Equal(a.first, b.first) && a.same(&b) })
}

// same reports whether e, which begins as o does, is o.
func (e *element) same(o *element) bool {
	return e.words == o.words && (e.last == nil || o.last == nil || bytes.Equal(e.last, o.last))
}

func (c chain) equal(o chain) bool {
	return c.name == o.name && c.hook == o.hook && slices.EqualFunc(c.lines, o.lines, line.equal)
}

func (l line) equal(o line) bool {
	sameLimit := l.limit == o.limit || l.limit != nil && o.limit != nil && *l.limit == *o.limit
	return sameLimit && l.comment == o.comment && l.counter == o.counter && l.log == o.log && l.verdict == o.verdict &&
		slices.EqualFunc(l.match, o.match, term.equal)
}

func (t term) equal(o term) bool {
	return t.text == o.text && t.set == o.set && t.not == o.not && bytes.Equal(t.value, o.value) && bytes.Equal(t.last, o.last) &&
		bytes.Equal(t.mask, o.mask) && slices.Equal(t.loads, o.loads)
}

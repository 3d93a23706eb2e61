package firewall

import (
	"bytes"
	"errors"
	"hash/maphash"

	"golang.org/x/sys/unix"

	"mesh/firewall/internal/nfnetlink"
)

// found is a table as the kernel holds it.
type found struct {
	flags  uint32
	owner  uint32 // port of the socket that owns it, 0 for none
	chains []foundChain
	sets   []foundSet
	// counters are the names of those it has, where counted.
	counters []string
	counted  bool
}

type foundChain struct {
	name, typ      string
	based          bool
	hook, priority uint32
	policy         uint32
	rules          []foundRule
}

type foundRule struct{ expressions, userData []byte }

type foundSet struct {
	name            string
	flags, key, len uint32
	userData        []byte
	counted         bool // each element counts
	entries         []entry
}

func (f *found) chain(name string) *foundChain {
	for i := range f.chains {
		if f.chains[i].name == name {
			return &f.chains[i]
		}
	}
	return nil
}

func (f *found) set(name string) *foundSet {
	for i := range f.sets {
		if f.sets[i].name == name {
			return &f.sets[i]
		}
	}
	return nil
}

// kernel is where a Driver's table is.
type kernel struct{ *nfnetlink.Socket }

// layout reads a table without its rules and, but for those that count, without its elements; nil when there is
// none.
func (k kernel) layout(name string) (*found, error) {
	f, err := k.outline(name, nil)
	if f == nil || err != nil {
		return nil, err
	}
	for i := range f.sets {
		if set := &f.sets[i]; set.counted {
			if err := k.List(unix.NFT_MSG_GETSETELEM, unix.NFPROTO_INET, set.addEntries, name, set.name); err != nil {
				return nil, err
			}
		}
	}
	return f, k.count(name, f)
}

// has reports whether there is a table of that name.
func (k kernel) has(name string) (bool, error) {
	err := k.Get(unix.NFT_MSG_GETTABLE, unix.NFPROTO_INET, func(nfnetlink.Message) {}, name)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

// count adds the names of the counters to f.
func (k kernel) count(name string, f *found) error {
	f.counters, f.counted = nil, true
	return k.List(unix.NFT_MSG_GETOBJ, unix.NFPROTO_INET, func(m nfnetlink.Message) { f.addCounter(name, m) }, name)
}

// outline is layout without the counters. print takes all that the kernel said, but for what differs from
// one listing to the next.
func (k kernel) outline(name string, print *maphash.Hash) (*found, error) {
	f := &found{}
	err := k.Get(unix.NFT_MSG_GETTABLE, unix.NFPROTO_INET, func(m nfnetlink.Message) {
		add(print, m)
		for typ, v := range m.Attributes() {
			switch typ {
			case attrTableFlags:
				f.flags = nfnetlink.Number(v)
			case attrTableOwner:
				f.owner = nfnetlink.Number(v)
			}
		}
	}, name)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := k.List(unix.NFT_MSG_GETCHAIN, unix.NFPROTO_INET, func(m nfnetlink.Message) {
		if f.addChain(name, m) {
			add(print, m)
		}
	}, name); err != nil {
		return nil, err
	}
	return f, k.List(unix.NFT_MSG_GETSET, unix.NFPROTO_INET, func(m nfnetlink.Message) {
		add(print, m)
		f.addSet(name, m)
	}, name)
}

// seed is that of the fingerprints of this process.
var seed = maphash.MakeSeed()

func add(print *maphash.Hash, m nfnetlink.Message) {
	if print != nil && len(m.Body) > 4 { // the header before has the generation
		print.Write(m.Body[4:])
	}
}

// read is outline with the rules and elements, which it decodes where asked to, and the fingerprint of it
// all: equal ones are equal tables, in every byte but the counts of packets.
func (k kernel) read(name string, decode bool) (*found, uint64, error) {
	var print maphash.Hash
	print.SetSeed(seed)
	f, err := k.outline(name, &print)
	if f == nil || err != nil {
		return nil, 0, err
	}
	if err := k.List(unix.NFT_MSG_GETRULE, unix.NFPROTO_INET, func(m nfnetlink.Message) {
		add(&print, m)
		if decode {
			f.addRule(name, m)
		}
	}, name); err != nil {
		return nil, 0, err
	}
	for i := range f.sets {
		set := &f.sets[i]
		sum := uint64(0)
		if err := k.List(unix.NFT_MSG_GETSETELEM, unix.NFPROTO_INET, func(m nfnetlink.Message) {
			if set.counted {
				sum += elementPrints(m)
			} else {
				add(&print, m)
			}
			if decode {
				set.addEntries(m)
			}
		}, name, set.name); err != nil {
			return nil, 0, err
		}
		maphash.WriteComparable(&print, sum)
	}
	return f, print.Sum64() | 1, nil
}

// elementPrints is the sum of the fingerprints of elements, without what they have counted: the kernel lists
// them in any order.
func elementPrints(m nfnetlink.Message) (sum uint64) {
	for _, item := range nfnetlink.Attributes(elementsIn(m)) {
		print := uint64(0)
		for typ, v := range nfnetlink.Attributes(item) {
			if typ != unix.NFTA_SET_ELEM_EXPR {
				print = print*31 + maphash.Bytes(seed, v) + uint64(typ)
			}
		}
		sum += print
	}
	return sum
}

// outline is f without rules and elements.
func (f *found) outline() *found {
	o := &found{flags: f.flags, owner: f.owner, counters: f.counters, counted: f.counted}
	for _, c := range f.chains {
		c.rules = nil
		o.chains = append(o.chains, c)
	}
	for _, s := range f.sets {
		s.entries = nil
		o.sets = append(o.sets, s)
	}
	return o
}

// steady calls read until what it listed is one state: the kernel gives no sign of a listing that a commit
// cut short, nor of one begun while a commit takes force.
func (k kernel) steady(read func() error) (generation uint32, err error) { return k.Steady(10, read) }

// addChain reports whether m is about table: the kernel lists the chains of all of the family.
func (f *found) addChain(table string, m nfnetlink.Message) bool {
	var c foundChain
	var of string
	for typ, v := range m.Attributes() {
		switch typ {
		case unix.NFTA_CHAIN_TABLE:
			of = nfnetlink.Text(v)
		case unix.NFTA_CHAIN_NAME:
			c.name = nfnetlink.Text(v)
		case unix.NFTA_CHAIN_TYPE:
			c.typ = nfnetlink.Text(v)
		case unix.NFTA_CHAIN_POLICY:
			c.policy = nfnetlink.Number(v)
		case unix.NFTA_CHAIN_HOOK:
			c.based = true
			for typ, v := range nfnetlink.Attributes(v) {
				switch typ {
				case unix.NFTA_HOOK_HOOKNUM:
					c.hook = nfnetlink.Number(v)
				case unix.NFTA_HOOK_PRIORITY:
					c.priority = nfnetlink.Number(v)
				}
			}
		}
	}
	if of == table {
		f.chains = append(f.chains, c)
	}
	return of == table
}

func (f *found) addCounter(table string, m nfnetlink.Message) {
	var of, name string
	var kind uint32
	for typ, v := range m.Attributes() {
		switch typ {
		case unix.NFTA_OBJ_TABLE:
			of = nfnetlink.Text(v)
		case unix.NFTA_OBJ_NAME:
			name = nfnetlink.Text(v)
		case unix.NFTA_OBJ_TYPE:
			kind = nfnetlink.Number(v)
		}
	}
	if of == table && kind == objectCounter {
		f.counters = append(f.counters, name)
	}
}

// names are the counters.
func (f *found) names() map[string]bool {
	names := make(map[string]bool, len(f.counters))
	for _, c := range f.counters {
		names[c] = true
	}
	return names
}

func (f *found) addSet(table string, m nfnetlink.Message) {
	var s foundSet
	var of string
	for typ, v := range m.Attributes() {
		switch typ {
		case unix.NFTA_SET_TABLE:
			of = nfnetlink.Text(v)
		case unix.NFTA_SET_NAME:
			s.name = nfnetlink.Text(v)
		case unix.NFTA_SET_FLAGS:
			s.flags = nfnetlink.Number(v)
		case unix.NFTA_SET_KEY_TYPE:
			s.key = nfnetlink.Number(v)
		case unix.NFTA_SET_KEY_LEN:
			s.len = nfnetlink.Number(v)
		case unix.NFTA_SET_USERDATA:
			s.userData = bytes.Clone(v)
		case attrSetExpr:
			kind, _ := expression(v)
			s.counted = kind == counterName
		}
	}
	if of == table {
		f.sets = append(f.sets, s)
	}
}

func (f *found) addRule(table string, m nfnetlink.Message) {
	var r foundRule
	var of, chain string
	for typ, v := range m.Attributes() {
		switch typ {
		case unix.NFTA_RULE_TABLE:
			of = nfnetlink.Text(v)
		case unix.NFTA_RULE_CHAIN:
			chain = nfnetlink.Text(v)
		case unix.NFTA_RULE_EXPRESSIONS:
			r.expressions = bytes.Clone(v)
		case unix.NFTA_RULE_USERDATA:
			r.userData = bytes.Clone(v)
		}
	}
	if c := f.chain(chain); of == table && c != nil {
		c.rules = append(c.rules, r)
	}
}

func (s *foundSet) addEntries(m nfnetlink.Message) {
	for _, item := range nfnetlink.Attributes(elementsIn(m)) {
		var e entry
		for typ, v := range nfnetlink.Attributes(item) {
			switch typ {
			case unix.NFTA_SET_ELEM_FLAGS:
				e.end = nfnetlink.Number(v)&unix.NFT_SET_ELEM_INTERVAL_END != 0
			case unix.NFTA_SET_ELEM_KEY:
				for typ, v := range nfnetlink.Attributes(v) {
					if typ == unix.NFTA_DATA_VALUE {
						e.key = bytes.Clone(v)
					}
				}
			case unix.NFTA_SET_ELEM_USERDATA:
				if s.counted {
					e.words = comment(v)
				}
			}
		}
		s.entries = append(s.entries, e)
	}
}

// elementsIn is the list of the elements in a message.
func elementsIn(m nfnetlink.Message) []byte {
	for typ, list := range m.Attributes() {
		if typ == unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			return list
		}
	}
	return nil
}

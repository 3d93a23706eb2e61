package firewall

import (
	"bytes"
	"errors"

	"golang.org/x/sys/unix"

	"mesh/firewall/internal/nfnetlink"
)

// found is a table as the kernel holds it.
type found struct {
	flags  uint32
	owner  uint32 // port of the socket that owns it, 0 for none
	chains []foundChain
	sets   []foundSet
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

// layout reads a table without the content of its chains and sets, or nil when there is none.
func (k kernel) layout(name string) (*found, error) {
	f := &found{}
	err := k.Get(unix.NFT_MSG_GETTABLE, unix.NFPROTO_INET, func(m nfnetlink.Message) {
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
	if err := k.List(unix.NFT_MSG_GETCHAIN, unix.NFPROTO_INET, func(m nfnetlink.Message) { f.addChain(name, m) }, name); err != nil {
		return nil, err
	}
	return f, k.List(unix.NFT_MSG_GETSET, unix.NFPROTO_INET, func(m nfnetlink.Message) { f.addSet(name, m) }, name)
}

// read is layout with the rules and elements.
func (k kernel) read(name string) (*found, error) {
	f, err := k.layout(name)
	if f == nil || err != nil {
		return nil, err
	}
	if err := k.List(unix.NFT_MSG_GETRULE, unix.NFPROTO_INET, func(m nfnetlink.Message) { f.addRule(name, m) }, name); err != nil {
		return nil, err
	}
	for i := range f.sets {
		set := &f.sets[i]
		if err := k.List(unix.NFT_MSG_GETSETELEM, unix.NFPROTO_INET, set.addEntries, name, set.name); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// steady calls read between two equal generations: the kernel gives no sign of a listing that a
// commit cut short.
func (k kernel) steady(read func() error) (generation uint32, err error) {
	for range 10 {
		before, err := k.Generation()
		if err != nil {
			return 0, err
		}
		err = read()
		after, errGen := k.Generation()
		if errGen != nil {
			return 0, errGen
		}
		if before == after && !errors.Is(err, nfnetlink.ErrInterrupted) {
			return after, err
		}
	}
	return 0, nfnetlink.ErrInterrupted
}

func (f *found) addChain(table string, m nfnetlink.Message) {
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
	if of == table { // the kernel lists the chains of every table of the family
		f.chains = append(f.chains, c)
	}
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
	for typ, v := range m.Attributes() {
		if typ != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			continue
		}
		for _, item := range nfnetlink.Attributes(v) {
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
				}
			}
			s.entries = append(s.entries, e)
		}
	}
}

package firewall

import (
	"bytes"
	"errors"

	"golang.org/x/sys/unix"
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

// generation is the number of the rule set in force: each commit of anybody makes another one.
func (s *socket) generation() (id uint32, err error) {
	var w wire
	w.message(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN, 0, unix.NFPROTO_UNSPEC, 0)
	w.close()
	err = s.ask(w.b, func(m message) {
		for typ, v := range m.nft() {
			if typ == unix.NFTA_GEN_ID {
				id = number(v)
			}
		}
	})
	return id, err
}

// layout reads a table without the content of its chains and sets, or nil when there is none.
func (s *socket) layout(name string) (*found, error) {
	var w wire
	w.simple(unix.NFT_MSG_GETTABLE, name, "")
	f := &found{}
	err := s.ask(w.b, func(m message) {
		for typ, v := range m.nft() {
			switch typ {
			case attrTableFlags:
				f.flags = number(v)
			case attrTableOwner:
				f.owner = number(v)
			}
		}
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := s.dump(unix.NFT_MSG_GETCHAIN, name, "", func(m message) { f.addChain(name, m) }); err != nil {
		return nil, err
	}
	return f, s.dump(unix.NFT_MSG_GETSET, name, "", func(m message) { f.addSet(name, m) })
}

// read is layout with the rules and elements.
func (s *socket) read(name string) (*found, error) {
	f, err := s.layout(name)
	if f == nil || err != nil {
		return nil, err
	}
	if err := s.dump(unix.NFT_MSG_GETRULE, name, "", func(m message) { f.addRule(name, m) }); err != nil {
		return nil, err
	}
	for i := range f.sets {
		set := &f.sets[i]
		if err := s.dump(unix.NFT_MSG_GETSETELEM, name, set.name, set.addEntries); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// steady calls read between two equal generations: the kernel gives no sign of a listing that a
// commit cut short.
func (s *socket) steady(read func() error) (generation uint32, err error) {
	for range 10 {
		before, err := s.generation()
		if err != nil {
			return 0, err
		}
		err = read()
		after, errGen := s.generation()
		if errGen != nil {
			return 0, errGen
		}
		if before == after {
			return after, err
		}
	}
	return 0, errTorn
}

func (s *socket) dump(typ uint16, table, name string, each func(message)) error {
	var w wire
	w.nft(typ, unix.NLM_F_DUMP)
	w.str(1, table)
	if name != "" {
		w.str(2, name)
	}
	w.close()
	return s.ask(w.b, each)
}

func (f *found) addChain(table string, m message) {
	var c foundChain
	var of string
	for typ, v := range m.nft() {
		switch typ {
		case unix.NFTA_CHAIN_TABLE:
			of = text(v)
		case unix.NFTA_CHAIN_NAME:
			c.name = text(v)
		case unix.NFTA_CHAIN_TYPE:
			c.typ = text(v)
		case unix.NFTA_CHAIN_POLICY:
			c.policy = number(v)
		case unix.NFTA_CHAIN_HOOK:
			c.based = true
			for typ, v := range attributes(v) {
				switch typ {
				case unix.NFTA_HOOK_HOOKNUM:
					c.hook = number(v)
				case unix.NFTA_HOOK_PRIORITY:
					c.priority = number(v)
				}
			}
		}
	}
	if of == table { // the kernel lists the chains of every table of the family
		f.chains = append(f.chains, c)
	}
}

func (f *found) addSet(table string, m message) {
	var s foundSet
	var of string
	for typ, v := range m.nft() {
		switch typ {
		case unix.NFTA_SET_TABLE:
			of = text(v)
		case unix.NFTA_SET_NAME:
			s.name = text(v)
		case unix.NFTA_SET_FLAGS:
			s.flags = number(v)
		case unix.NFTA_SET_KEY_TYPE:
			s.key = number(v)
		case unix.NFTA_SET_KEY_LEN:
			s.len = number(v)
		case unix.NFTA_SET_USERDATA:
			s.userData = bytes.Clone(v)
		}
	}
	if of == table {
		f.sets = append(f.sets, s)
	}
}

func (f *found) addRule(table string, m message) {
	var r foundRule
	var of, chain string
	for typ, v := range m.nft() {
		switch typ {
		case unix.NFTA_RULE_TABLE:
			of = text(v)
		case unix.NFTA_RULE_CHAIN:
			chain = text(v)
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

func (s *foundSet) addEntries(m message) {
	for typ, v := range m.nft() {
		if typ != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			continue
		}
		for _, item := range attributes(v) {
			var e entry
			for typ, v := range attributes(item) {
				switch typ {
				case unix.NFTA_SET_ELEM_FLAGS:
					e.end = number(v)&unix.NFT_SET_ELEM_INTERVAL_END != 0
				case unix.NFTA_SET_ELEM_KEY:
					for typ, v := range attributes(v) {
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

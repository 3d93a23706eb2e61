package foreign

import (
	"bytes"
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"mesh/firewall/internal/nfnetlink"
)

// Line is one rule whole, as ReadAll keeps it.
type Line struct {
	// Handle is the kernel's number for it in its table.
	Handle uint64
	// Expressions are nf_tables' own, as netlink nests them: package evaluate understands them.
	Expressions []byte
	// Words are the rule in the words of iptables-save, of legacy xtables only, and never nil there.
	Words   []string
	Comment string
	// Counted says that the rule counts; Packets and Bytes are what it has counted.
	Counted        bool
	Packets, Bytes uint64
}

// Set is a set or map whole.
type Set struct {
	Name string
	// KeyLen is the size of a key in bytes.
	KeyLen int
	// Type is nft's number for the type of the key; concatenated types have six bits each.
	Type uint32
	// Map says that elements have data; Verdicts that the data are verdicts.
	Map, Verdicts bool
	// Interval says that elements are ranges; Fields are the sizes of a key's parts where there are
	// several.
	Interval bool
	Fields   []int
	// Elements are in the kernel's order.
	Elements []Element
}

// Element is one entry of a set. In an interval set of one field an element begins or, with End, ends
// a range; with several fields it reaches from Key to KeyEnd in each.
type Element struct {
	Key, KeyEnd []byte
	End         bool
	// Rest is the one element that matches what no other does.
	Rest bool
	// Data is what it maps to, as netlink nests it.
	Data []byte
	// Expires is how many milliseconds it still stays, Timeout how many in all; 0 for ever.
	Expires, Timeout uint64
	Comment          string
}

// ReadAll is Read that keeps of each rule its conditions, and what is in the sets that rules ask, for
// package evaluate. It takes some times the memory.
func ReadAll(ctx context.Context) (Ruleset, error) {
	rs, err := read(ctx, runSave, true)
	if err == nil {
		readIPSets(&rs)
	}
	return rs, err
}

// Attributes that x/sys lacks (linux/netfilter/nf_tables.h).
const (
	attrHookDevs       = 4
	attrCounterBytes   = 1
	attrCounterPackets = 2
	attrElementKeyEnd  = 10
	elementRest        = 2
	setConcat          = 0x80
	attrDescConcat     = 2
	attrFieldLen       = 1
)

// devices are the links that a chain of the family netdev is at.
func devices(hook []byte) []string {
	var names []string
	for typ, v := range nfnetlink.Attributes(hook) {
		switch typ {
		case unix.NFTA_HOOK_DEV:
			names = append(names, nfnetlink.Text(v))
		case attrHookDevs:
			for _, name := range nfnetlink.Attributes(v) {
				names = addWord(names, nfnetlink.Text(name))
			}
		}
	}
	return names
}

// keep adds a rule whole to c.
func keep(c *Chain, handle uint64, expressions []byte, comment string) {
	l := Line{Handle: handle, Expressions: bytes.Clone(expressions), Comment: comment}
	for _, item := range nfnetlink.Attributes(expressions) {
		var name, data []byte
		for typ, v := range nfnetlink.Attributes(item) {
			switch typ {
			case unix.NFTA_EXPR_NAME:
				name = nfnetlink.Chars(v)
			case unix.NFTA_EXPR_DATA:
				data = v
			}
		}
		if string(name) != "counter" {
			continue
		}
		l.Counted = true
		for typ, v := range nfnetlink.Attributes(data) {
			switch typ {
			case attrCounterBytes:
				l.Bytes = nfnetlink.Number64(v)
			case attrCounterPackets:
				l.Packets = nfnetlink.Number64(v)
			}
		}
	}
	c.Lines = append(c.Lines, l)
}

// whole decodes a set without its elements.
func whole(m nfnetlink.Message) (s Set) {
	flags := uint32(0)
	for typ, v := range m.Attributes() {
		switch typ {
		case unix.NFTA_SET_NAME:
			s.Name = nfnetlink.Text(v)
		case unix.NFTA_SET_FLAGS:
			flags = nfnetlink.Number(v)
		case unix.NFTA_SET_KEY_TYPE:
			s.Type = nfnetlink.Number(v)
		case unix.NFTA_SET_KEY_LEN:
			s.KeyLen = int(nfnetlink.Number(v))
		case unix.NFTA_SET_DATA_TYPE:
			s.Verdicts = nfnetlink.Number(v) == dataVerdict
		case unix.NFTA_SET_DESC:
			for typ, v := range nfnetlink.Attributes(v) {
				if typ != attrDescConcat {
					continue
				}
				for _, field := range nfnetlink.Attributes(v) {
					for typ, v := range nfnetlink.Attributes(field) {
						if typ == attrFieldLen {
							s.Fields = append(s.Fields, int(nfnetlink.Number(v)))
						}
					}
				}
			}
		}
	}
	s.Map, s.Interval = flags&unix.NFT_SET_MAP != 0, flags&unix.NFT_SET_INTERVAL != 0
	if s.KeyLen < 0 || s.KeyLen > 64 {
		s.KeyLen = 0
	}
	return s
}

// fill adds the elements of a message.
func (s *Set) fill(m nfnetlink.Message) {
	for typ, list := range m.Attributes() {
		if typ != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			continue
		}
		for _, item := range nfnetlink.Attributes(list) {
			s.Elements = append(s.Elements, element(item))
		}
	}
}

func element(item []byte) (e Element) {
	for typ, v := range nfnetlink.Attributes(item) {
		switch typ {
		case unix.NFTA_SET_ELEM_KEY:
			e.Key = nfData(v)
		case attrElementKeyEnd:
			e.KeyEnd = nfData(v)
		case unix.NFTA_SET_ELEM_DATA:
			e.Data = bytes.Clone(v)
		case unix.NFTA_SET_ELEM_FLAGS:
			flags := nfnetlink.Number(v)
			e.End, e.Rest = flags&unix.NFT_SET_ELEM_INTERVAL_END != 0, flags&elementRest != 0
		case unix.NFTA_SET_ELEM_TIMEOUT:
			e.Timeout = nfnetlink.Number64(v)
		case unix.NFTA_SET_ELEM_EXPIRATION:
			e.Expires = nfnetlink.Number64(v)
		case unix.NFTA_SET_ELEM_USERDATA:
			e.Comment = comment(v)
		}
	}
	return e
}

// nfData is one value of nf_tables.
func nfData(v []byte) []byte {
	for typ, v := range nfnetlink.Attributes(v) {
		if typ == unix.NFTA_DATA_VALUE {
			return bytes.Clone(v)
		}
	}
	return nil
}

// fillSets reads the elements of every set.
func (d *decoder) fillSets(ctx context.Context, s *nfnetlink.Socket) error {
	for i := range d.rs.Tables {
		t := &d.rs.Tables[i]
		for j := range t.Sets {
			if err := ctx.Err(); err != nil {
				return err
			}
			err := s.List(unix.NFT_MSG_GETSETELEM, d.families[i], t.Sets[j].fill, t.Name, t.Sets[j].Name)
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
		}
	}
	return nil
}

// Whose says whose single rules are, beside what Judge says of chains.
type Whose struct {
	new, legacy world
	here        map[*Table]here
	facts       facts
}

// WhoseOf makes a Whose for rs, whose tables it keeps.
func WhoseOf(rs *Ruleset) *Whose {
	return &Whose{new: look(rs.Tables, persistent, rs.Served), legacy: look(rs.Legacy, ferm, nil), here: map[*Table]here{}}
}

func (w *Whose) at(t *Table) here {
	h, ok := w.here[t]
	if !ok {
		h = w.new.at(t)
		if len(t.Chains) > 0 && len(t.Chains[0].Lines) > 0 && t.Chains[0].Lines[0].Words != nil {
			h = w.legacy.at(t)
		}
		w.here[t] = h
	}
	return h
}

// Policy is whose the policy of c is, or the chain where it has none.
func (w *Whose) Policy(t *Table, c *Chain) Words {
	bare := *c
	bare.Acts = nil
	return w.at(t).ownersOf(&bare)
}

// Rule is whose a rule of c is.
func (w *Whose) Rule(t *Table, c *Chain, l *Line) Words {
	h := w.at(t)
	if h.whole != "" {
		return Words{h.whole}
	}
	var act Act
	if l.Words != nil {
		act, _ = actOf(t, l.Words)
	} else {
		f := &w.facts
		f.read(l.Expressions)
		f.comment = append(f.comment[:0:0], f.comment...)
		if l.Comment != "" {
			f.comment = []byte(l.Comment)
		}
		act.Hint = f.hint()
		if len(f.acts) > 0 {
			act.Word = f.acts[0].Word
		}
	}
	owners := Words(h.ownersOfRule(c, ownerIn(chainNames, c.Name), act))
	if len(owners) == 0 {
		owners = w.Policy(t, c)
	}
	return owners
}

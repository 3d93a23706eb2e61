package evaluate

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"mesh/firewall/foreign"
	"mesh/firewall/internal/nfnetlink"
)

func chars(v []byte) []byte { return nfnetlink.Chars(v) }

// found is what a set answers: how sure it is that an element matches, and that element's data.
type found struct {
	t       truth
	data    []byte
	comment string // of the element; of several that match some senders, all there are
	// maybe are the data of the elements that may match, where t is perhaps.
	maybe [][]byte
}

// lookup asks a set or map.
func (s *step) lookup(x expression) (verdict, truth) {
	name := nfnetlink.Text(x.attribute(unix.NFTA_LOOKUP_SET))
	set := s.b.t.sets[name]
	if set == nil {
		return verdict{}, perhaps
	}
	key := s.regs.get(x.number(unix.NFTA_LOOKUP_SREG), set.KeyLen)
	f := search(set, key)
	inverted := x.number(unix.NFTA_LOOKUP_FLAGS)&unix.NFT_LOOKUP_F_INV != 0
	to := x.attribute(unix.NFTA_LOOKUP_DREG)
	switch {
	case to == nil:
		if inverted {
			return verdict{}, f.t.not()
		}
		if s.comment == "" {
			s.comment = f.comment
		}
		return verdict{}, f.t
	case !set.Map || f.t == no:
		return verdict{}, no
	case nfnetlink.Number(to) == unix.NFT_REG_VERDICT:
		return s.verdictOf(f)
	}
	if f.t == perhaps {
		s.regs.put(nfnetlink.Number(to), s.pick(f))
		return verdict{}, yes
	}
	s.regs.put(nfnetlink.Number(to), fixed(attribute(f.data, unix.NFTA_DATA_VALUE)...))
	return verdict{}, f.t
}

// verdictOf is what a verdict map says.
func (s *step) verdictOf(f found) (verdict, truth) {
	if f.t != perhaps {
		s.add(f.t, s.what)
		return s.verdict(attribute(f.data, unix.NFTA_DATA_VERDICT))
	}
	// Each verdict in it may be the one.
	var seen [][]byte
	for _, data := range f.maybe {
		if slices.ContainsFunc(seen, func(o []byte) bool { return bytes.Equal(o, data) }) {
			continue
		}
		seen = append(seen, data)
		v, known := decodeVerdict(attribute(data, unix.NFTA_DATA_VERDICT))
		if known && s.choose(fmt.Sprintf("%s says %s", s.what(), verdictWords(v)), s.here()) {
			return s.verdict(attribute(data, unix.NFTA_DATA_VERDICT))
		}
	}
	return verdict{}, no
}

// pick is a value of a map whose key is not known: one it holds, when it makes no difference which.
func (s *step) pick(f found) value {
	var last value
	for i, data := range f.maybe {
		last = fixed(attribute(data, unix.NFTA_DATA_VALUE)...)
		if i == len(f.maybe)-1 || s.choose(fmt.Sprintf("%s gives the value %d of it", s.what(), i+1), s.here()) {
			return last
		}
	}
	return unknownValue(16)
}

// broad is the share of all addresses, in 256ths, from which on a set is taken to hold somebody no
// rule names.
const broad = 128

// search looks a key up.
func search(set *foreign.Set, key value) found {
	if set.Interval && len(set.Fields) <= 1 {
		return searchIntervals(set, key)
	}
	var rest, maybe *foreign.Element
	var some []string
	best := found{t: no}
	for i := range set.Elements {
		e := &set.Elements[i]
		if e.Rest {
			rest = e
			continue
		}
		t := matches(e, set, key)
		switch {
		case t == yes:
			return found{t: yes, data: e.Data, comment: e.Comment}
		case t == perhaps:
			best.t = perhaps
			best.maybe = append(best.maybe, e.Data)
		case t == mostlyNo:
			if e.Comment != "" && !slices.Contains(some, e.Comment) && len(some) < mostComments {
				some = append(some, e.Comment)
			}
			if maybe == nil {
				maybe = e
			}
		}
	}
	switch {
	case best.t == perhaps:
		if rest != nil {
			best.maybe = append(best.maybe, rest.Data)
		}
		return best
	case rest != nil && maybe != nil:
		return found{t: mostlyYes, data: rest.Data}
	case rest != nil:
		return found{t: yes, data: rest.Data}
	case maybe != nil:
		return found{t: mostlyNo, data: maybe.Data, comment: strings.Join(some, "; ")}
	}
	return best
}

// mostComments bounds how many comments of elements are told.
const mostComments = 4

// matches says whether a key is an element: equal to it, or, with ranges, within it field by field.
func matches(e *foreign.Element, set *foreign.Set, key value) truth {
	if len(e.Key) > len(key.b) {
		return perhaps
	}
	if len(e.KeyEnd) != len(e.Key) {
		return key.equal(e.Key)
	}
	t, at := yes, 0
	for _, size := range set.Fields {
		padded := (size + 3) &^ 3
		if at+size > len(e.Key) {
			return perhaps
		}
		t = t.and(within(value{key.b[at : at+size], key.k[at : at+size]}, e.Key[at:at+size], e.KeyEnd[at:at+size]))
		at += padded
	}
	return t
}

// searchIntervals looks a key up in a set of intervals, which the kernel lists by their beginnings and
// ends: a key is in when the last of those at or before it is a beginning.
func searchIntervals(set *foreign.Set, key value) found {
	var data [][]byte
	for i := range set.Elements {
		if e := &set.Elements[i]; !e.End && !e.Rest {
			data = append(data, e.Data)
		}
	}
	switch {
	case len(data) == 0:
		if rest := restOf(set); rest != nil {
			return found{t: yes, data: rest.Data}
		}
		return found{t: no}
	case key.has(vague):
		return found{t: perhaps, maybe: data}
	case !key.has(source):
		return last(set, key.b)
	}
	share, sample := 0, bytes.Clone(key.b)
	var in found
	for i := range 256 {
		for j := range sample {
			sample[j] = 128
		}
		at := 0
		if len(sample) == 16 {
			sample[0], at = 0x20, 1 // where addresses are given out
		}
		sample[at] = byte(i)
		if f := last(set, sample); f.t == yes {
			share, in = share+1, f
		}
	}
	if share >= broad {
		return found{t: mostlyYes, data: in.data}
	}
	return found{t: mostlyNo, data: data[0]}
}

func restOf(set *foreign.Set) *foreign.Element {
	for i := range set.Elements {
		if set.Elements[i].Rest {
			return &set.Elements[i]
		}
	}
	return nil
}

func last(set *foreign.Set, key []byte) found {
	var best *foreign.Element
	for i := range set.Elements {
		e := &set.Elements[i]
		if e.Rest || len(e.Key) != len(key) || bytes.Compare(e.Key, key) > 0 {
			continue
		}
		order := 1
		if best != nil {
			order = bytes.Compare(e.Key, best.Key)
		}
		if order > 0 || order == 0 && best.End {
			best = e
		}
	}
	if best == nil || best.End {
		if best = restOf(set); best == nil {
			return found{t: no}
		}
	}
	return found{t: yes, data: best.Data, comment: best.Comment}
}

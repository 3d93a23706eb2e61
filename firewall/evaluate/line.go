package evaluate

import (
	"encoding/binary"
	"iter"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"mesh/firewall/foreign"
	"mesh/firewall/internal/nfnetlink"
)

// expression is one of a rule's, as the kernel lists it.
type expression struct {
	name string
	data []byte
}

// attribute is the value of the one attribute, or nil.
func (x expression) attribute(typ uint16) []byte { return attribute(x.data, typ) }

func (x expression) number(typ uint16) uint32 { return nfnetlink.Number(x.attribute(typ)) }

// value is the bytes of an attribute that nests one value.
func (x expression) value(typ uint16) []byte {
	return attribute(x.attribute(typ), unix.NFTA_DATA_VALUE)
}

func attribute(b []byte, typ uint16) []byte {
	for t, v := range nfnetlink.Attributes(b) {
		if t == typ {
			return v
		}
	}
	return nil
}

// expressions walks those of a rule with their places in it.
func expressions(b []byte) iter.Seq2[int, expression] {
	return func(yield func(int, expression) bool) {
		i := 0
		for _, item := range nfnetlink.Attributes(b) {
			x := expression{}
			for typ, v := range nfnetlink.Attributes(item) {
				switch typ {
				case unix.NFTA_EXPR_NAME:
					x.name = nfnetlink.Text(v)
				case unix.NFTA_EXPR_DATA:
					x.data = v
				}
			}
			if !yield(i, x) {
				return
			}
			i++
		}
	}
}

// doubts are what is not sure about a rule's conditions so far: they are settled when the rule comes
// to do something.
type doubts struct {
	unknown []string // the conditions that are not known
	rare    bool     // it applies to named senders only
	often   bool     // it applies to all but those
}

func (d *doubts) add(t truth, what func() string) {
	switch t {
	case perhaps:
		d.unknown = append(d.unknown, what())
	case mostlyNo:
		d.rare = true
	case mostlyYes:
		d.often = true
	}
}

// step is one rule being asked.
type step struct {
	*run
	b *base
	c *foreign.Chain
	l *foreign.Line
	doubts
	i int // of the expression
}

// what is the condition at hand in nft's words.
func (s *step) what() string {
	f := s.e.fragments(s.b.t, s.l)
	for i := range f {
		if f[i].at == s.i && f[i].text != "" {
			return f[i].text
		}
	}
	return s.e.text(s.b.t, s.l)
}

func (s *step) here() Place { return s.place(s.b, s.c, s.l) }

// applies settles the doubts, before the rule does what it is for.
func (s *step) applies() bool {
	if s.rare {
		s.exceptions = append(s.exceptions, exception{s.here(), true})
		return false
	}
	for _, what := range s.unknown {
		if !s.choose(what, s.here()) {
			return false
		}
	}
	s.unknown = nil
	if s.often {
		s.exceptions = append(s.exceptions, exception{s.here(), false})
		s.often = false
	}
	return true
}

// line asks one rule.
func (r *run) line(b *base, c *foreign.Chain, l *foreign.Line) verdict {
	s := &step{run: r, b: b, c: c, l: l}
	r.regs, r.comment = registers{}, l.Comment
	if l.Words != nil {
		return s.words()
	}
	for i, x := range expressions(l.Expressions) {
		s.i = i
		v, t := s.expression(x)
		if t == no {
			return verdict{}
		}
		s.add(t, s.what)
		if v.code != verdictNone {
			return v
		}
	}
	return verdict{}
}

// harmless are expressions that change nothing about where the packet goes.
var harmless = []string{"counter", "log", "last", "flow_offload", "dup"}

// expression does one. A truth of no ends the rule; a verdict ends it too.
func (s *step) expression(x expression) (verdict, truth) {
	none := verdict{}
	switch x.name {
	case "cmp":
		return none, s.cmp(x)
	case "range":
		return none, s.between(x)
	case "lookup":
		return s.lookup(x)
	case "immediate":
		return s.immediate(x)
	case "meta":
		return none, s.meta(x)
	case "payload":
		return none, s.payload(x)
	case "ct":
		return none, s.ct(x)
	case "fib":
		return none, s.fib(x)
	case "bitwise":
		s.bitwise(x)
	case "byteorder":
		s.byteorder(x)
	case "exthdr":
		return none, s.exthdr(x)
	case "limit":
		return none, above(x.number(unix.NFTA_LIMIT_FLAGS)&unix.NFT_LIMIT_F_INV != 0)
	case "connlimit":
		return none, above(x.number(2)&1 != 0)
	case "quota":
		return none, above(x.number(unix.NFTA_QUOTA_FLAGS)&unix.NFT_QUOTA_F_INV != 0)
	case "dynset":
		return none, s.dynset(x)
	case "match":
		return none, s.xtMatch(x)
	default:
		return s.act(x)
	}
	return none, yes
}

// above is a limit: an ordinary sender stays below it.
func above(inverted bool) truth {
	if inverted {
		return mostlyNo
	}
	return mostlyYes
}

// act does what is more than a condition.
func (s *step) act(x expression) (verdict, truth) {
	switch x.name {
	case "reject":
		return s.refuse()
	case "queue":
		return s.queue()
	case "target":
		return s.xtTarget(x)
	case "nat":
		return s.nat(x)
	case "redir":
		return s.redirect(s.regs.get(x.number(unix.NFTA_REDIR_REG_PROTO_MIN), 2), x.number(unix.NFTA_REDIR_REG_PROTO_MIN) != 0)
	case "masq":
		return verdict{code: verdictAccept}, truthOf(s.applies())
	case "notrack":
		if s.applies() {
			s.skip = true
		}
		return verdict{}, yes
	case "synproxy":
		return s.unknownAct("a SYN proxy answers")
	case "tproxy":
		return s.unknownAct("a transparent proxy takes it")
	case "fwd":
		return s.unknownAct("it is sent to another link")
	case "objref", "":
		return verdict{}, yes
	}
	for _, name := range harmless {
		if x.name == name {
			return verdict{}, yes
		}
	}
	// Not known: what it loads is not known either, and whether the rule goes on.
	for typ, v := range nfnetlink.Attributes(x.data) {
		if _, data := registerAt(nfnetlink.Number(v)); data && typ <= 2 {
			s.regs.put(nfnetlink.Number(v), unknownValue(16))
		}
	}
	if slices.Contains([]string{"numgen", "hash", "osf"}, x.name) {
		return verdict{}, yes // what it computes is compared by another expression
	}
	return verdict{}, perhaps
}

// unknownAct is one whose outcome is not known: the packet is taken, or goes on.
func (s *step) unknownAct(words string) (verdict, truth) {
	if s.applies() && s.choose("xt "+words, s.here()) {
		return verdict{code: verdictAccept}, yes
	}
	return verdict{}, no
}

func (s *step) refuse() (verdict, truth) {
	if !s.applies() {
		return verdict{}, no
	}
	return verdict{code: verdictDrop}, yes
}

func (s *step) queue() (verdict, truth) {
	if !s.applies() {
		return verdict{}, no
	}
	if s.choose("xt the program behind the queue refuses it", s.here()) {
		return verdict{code: verdictDrop}, yes
	}
	return verdict{code: verdictAccept}, yes
}

func (s *step) cmp(x expression) truth {
	data := x.value(unix.NFTA_CMP_DATA)
	have := s.regs.get(x.number(unix.NFTA_CMP_SREG), len(data))
	switch op := x.number(unix.NFTA_CMP_OP); op {
	case unix.NFT_CMP_EQ:
		return have.equal(data)
	case unix.NFT_CMP_NEQ:
		return have.equal(data).not()
	default:
		order, ok := have.compare(data)
		if !ok {
			return have.doubt()
		}
		switch op {
		case unix.NFT_CMP_LT:
			return truthOf(order < 0)
		case unix.NFT_CMP_LTE:
			return truthOf(order <= 0)
		case unix.NFT_CMP_GT:
			return truthOf(order > 0)
		case unix.NFT_CMP_GTE:
			return truthOf(order >= 0)
		}
		return perhaps
	}
}

// doubt is what a comparison of order is of what is not sure: an address no rule names is in no range.
func (v value) doubt() truth {
	if v.has(vague) {
		return perhaps
	}
	return mostlyNo
}

func (s *step) between(x expression) truth {
	from, to := x.value(unix.NFTA_RANGE_FROM_DATA), x.value(unix.NFTA_RANGE_TO_DATA)
	have := s.regs.get(x.number(unix.NFTA_RANGE_SREG), len(from))
	t := within(have, from, to)
	if x.number(unix.NFTA_RANGE_OP) == unix.NFT_RANGE_NEQ {
		return t.not()
	}
	return t
}

func within(v value, from, to []byte) truth {
	low, ok := v.compare(from)
	high, ok2 := v.compare(to)
	if !ok || !ok2 {
		return v.doubt()
	}
	return truthOf(low >= 0 && high <= 0)
}

func (s *step) immediate(x expression) (verdict, truth) {
	reg := x.number(unix.NFTA_IMMEDIATE_DREG)
	data := x.attribute(unix.NFTA_IMMEDIATE_DATA)
	if reg != unix.NFT_REG_VERDICT {
		s.regs.put(reg, fixed(attribute(data, unix.NFTA_DATA_VALUE)...))
		return verdict{}, yes
	}
	return s.verdict(attribute(data, unix.NFTA_DATA_VERDICT))
}

// verdict does what a verdict says, once the doubts about its rule are settled.
func (s *step) verdict(b []byte) (verdict, truth) {
	v, known := decodeVerdict(b)
	switch {
	case !known:
		return s.unknownAct("a verdict that is not known accepts it")
	case v.code == verdictNone && v.chain == "": // continue
		return v, yes
	case v.chain == queueChain:
		return s.queue()
	case !s.applies():
		return verdict{}, no
	}
	return v, yes
}

// queueChain marks a verdict that asks a program; no chain has that name.
const queueChain = "\x00queue"

func decodeVerdict(b []byte) (verdict, bool) {
	raw := attribute(b, unix.NFTA_VERDICT_CODE)
	if len(raw) != 4 {
		return verdict{}, false
	}
	chain := nfnetlink.Text(attribute(b, unix.NFTA_VERDICT_CHAIN))
	switch code := int32(binary.BigEndian.Uint32(raw)); code {
	case unix.NFT_JUMP:
		return verdict{verdictJump, chain}, true
	case unix.NFT_GOTO:
		return verdict{verdictGoto, chain}, true
	case unix.NFT_RETURN:
		return verdict{code: verdictReturn}, true
	case unix.NFT_CONTINUE, unix.NFT_BREAK:
		return verdict{}, true
	default:
		if code < 0 {
			return verdict{}, false
		}
		switch code & 0xff {
		case 0:
			return verdict{code: verdictDrop}, true
		case 1:
			return verdict{code: verdictAccept}, true
		case 3:
			return verdict{chain: queueChain}, true
		}
	}
	return verdict{}, false
}

// nat rewrites where the packet goes.
func (s *step) nat(x expression) (verdict, truth) {
	accept := verdict{code: verdictAccept}
	if !s.applies() {
		return verdict{}, no
	}
	if x.number(unix.NFTA_NAT_TYPE) != unix.NFT_NAT_DNAT {
		s.natted = true
		return accept, yes
	}
	to := s.to
	if reg := x.number(unix.NFTA_NAT_REG_ADDR_MIN); reg != 0 {
		size := 4
		if s.p.Six {
			size = 16
		}
		v := s.regs.get(reg, size)
		a, _ := netip.AddrFromSlice(v.b)
		if !v.sure() {
			a = netip.Addr{}
		}
		to = netip.AddrPortFrom(a, to.Port())
	}
	if reg := x.number(unix.NFTA_NAT_REG_PROTO_MIN); reg != 0 {
		v := s.regs.get(reg, 2)
		if v.sure() {
			to = netip.AddrPortFrom(to.Addr(), binary.BigEndian.Uint16(v.b))
		}
	}
	s.send(to)
	return accept, yes
}

// redirect sends the packet to this machine, to another port where one is given.
func (s *step) redirect(port value, given bool) (verdict, truth) {
	if !s.applies() {
		return verdict{}, no
	}
	to := netip.AddrPortFrom(s.own(), s.to.Port())
	if given && port.sure() {
		to = netip.AddrPortFrom(to.Addr(), binary.BigEndian.Uint16(port.b))
	}
	s.send(to)
	return verdict{code: verdictAccept}, yes
}

// send notes a new destination and writes it into the headers.
func (s *step) send(to netip.AddrPort) {
	s.natted = true
	if to == s.to {
		return // the kernel does not call that a redirection either
	}
	s.answer.NAT = append(s.answer.NAT, NAT{Place: s.here(), From: s.to, To: to})
	s.setDestination(to)
}

package evaluate

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"mesh/firewall/foreign"
)

// Priorities at which the kernel itself does something (linux/netfilter_ipv4.h).
const (
	priorityTrack = -200 // connections are known from here on
	priorityDNAT  = -100 // where all chains of type nat at prerouting are asked
	prioritySNAT  = 100  // and those at input and postrouting
)

// base is a base chain, of nftables or of legacy xtables.
type base struct {
	t        *table
	c        *foreign.Chain
	priority int32
}

// table is a table with what its rules look up by name.
type table struct {
	*foreign.Table
	legacy bool
	chains map[string]*foreign.Chain
	sets   map[string]*foreign.Set
}

// legacyPriorities are those at which the tables of xtables are hooked in.
var legacyPriorities = map[string]int32{"raw": -300, "mangle": -150, "nat": priorityDNAT, "filter": 0, "security": 50}

// order sorts the base chains of each hook as the kernel asks them.
func (e *Evaluator) order() {
	add := func(t *foreign.Table, legacy bool) {
		if slices.Contains(t.Flags, "dormant") {
			return
		}
		n := &table{Table: t, legacy: legacy, chains: map[string]*foreign.Chain{}, sets: map[string]*foreign.Set{}}
		for i := range t.Chains {
			n.chains[t.Chains[i].Name] = &t.Chains[i]
		}
		for i := range t.Sets {
			n.sets[t.Sets[i].Name] = &t.Sets[i]
		}
		for i := range t.Chains {
			c := &t.Chains[i]
			if !c.Base {
				continue
			}
			p := c.Priority
			switch {
			case legacy:
				p = legacyPriorities[t.Name]
			case c.Type == "nat" && (c.Hook == "prerouting" || c.Hook == "output"):
				p = priorityDNAT
			case c.Type == "nat":
				p = prioritySNAT
			}
			e.hooks[c.Hook] = append(e.hooks[c.Hook], &base{n, c, p})
		}
	}
	for i := range e.rs.Tables {
		add(&e.rs.Tables[i], false)
	}
	for i := range e.rs.Legacy {
		add(&e.rs.Legacy[i], true)
	}
	for _, list := range e.hooks {
		slices.SortStableFunc(list, func(a, b *base) int {
			return cmp.Or(cmp.Compare(a.priority, b.priority), cmp.Compare(a.c.Priority, b.c.Priority))
		})
	}
}

// sees says whether packets of the family pass a chain of the table.
func (b *base) sees(six bool) bool {
	switch b.t.Family {
	case "inet":
		return true
	case "ip":
		return !six
	case "ip6":
		return six
	}
	return false
}

// asked is a condition that was not known, with the answer this run went on with.
type asked struct {
	Condition
	answer bool
}

// run follows a packet once. The answers to unknown conditions come from given, then they are no; a
// condition met twice has one answer.
type run struct {
	e       *Evaluator
	p       Packet
	given   []bool
	asked   []asked
	answers map[string]bool

	ip, l4  value // the headers
	in, out *Link
	hook    string
	tracked bool // the hook and priority are past connection tracking
	skip    bool // a rule said not to track
	natted  bool
	mark    value
	ctMark  value
	wanted  netip.AddrPort // what the sender asked for: the original destination
	to      netip.AddrPort
	answer  Answer
	// exceptions are rules that would decide otherwise for some senders.
	exceptions []exception
	steps      *int // left
	regs       registers
	comment    string // of the rule at hand, or of the element of a set that it found
}

// mostSteps bounds the rules asked for one answer: in some rule sets chains lead to each other again and
// again, and each condition that is not known is followed both ways.
const mostSteps = 1 << 18

// choose answers a condition that is not known.
func (r *run) choose(what string, at Place) bool {
	key := strings.Replace(what, " != ", " ", 1)
	turned := key != what
	if strings.HasPrefix(what, "xt ") { // the name alone does not say what it matches
		key += at.String()
	}
	if a, ok := r.answers[key]; ok {
		return a != turned
	}
	a := len(r.asked) < len(r.given) && r.given[len(r.asked)]
	r.asked = append(r.asked, asked{Condition{what, at}, a})
	if r.answers == nil {
		r.answers = map[string]bool{}
	}
	r.answers[key] = a != turned
	return a
}

// ends is how a packet's way through a chain ended.
type ends uint8

const (
	on       ends = iota // after the last rule, or by return
	accepted             // of this base chain
	refused
)

func (r *run) follow() Answer {
	r.begin()
	if r.hookAt("ingress") == refused || r.frames() == refused || r.unread() == refused || r.hookAt("prerouting") == refused {
		return r.close(Refused)
	}
	r.route()
	switch r.answer.Way {
	case "":
		return r.close(Refused)
	case Forward:
		if r.hookAt("forward") == refused || r.hookAt("postrouting") == refused {
			return r.close(Refused)
		}
	default:
		if r.hookAt("input") == refused {
			return r.close(Refused)
		}
	}
	return r.close(Accepted)
}

// frames asks the rules of family bridge, which a packet passed that a bridge hands up. They speak of ports
// and hardware, of which nothing is known here: where one may refuse, that is a condition.
func (r *run) frames() ends {
	if !r.in.Bridge {
		return on
	}
	for _, hook := range []string{"prerouting", "input"} {
		for _, b := range r.e.hooks[hook] {
			if b.t.Family != "bridge" || !b.refuses() {
				continue
			}
			at := Place{Family: b.t.Family, Table: b.t.Name, Chain: b.c.Name, Hook: hook, Rule: "rules for frames", Owner: r.e.whose.Policy(b.t.Table, b.c)}
			if r.choose("xt a rule for frames refuses it", at) {
				r.answer.By = &at
				return refused
			}
		}
	}
	return on
}

// unread asks the tables of legacy xtables that are there and could not be read: what they do is not known.
func (r *run) unread() ends {
	for i := range r.e.rs.Legacy {
		t := &r.e.rs.Legacy[i]
		if len(t.Chains) > 0 || (t.Family == "ip6") != r.p.Six || t.Family != "ip" && t.Family != "ip6" {
			continue
		}
		at := Place{Family: t.Family, Table: t.Name, Rule: "rules that cannot be read", Legacy: true}
		if r.choose("xt legacy xtables, which cannot be read, refuse it", at) {
			r.answer.By = &at
			return refused
		}
	}
	return on
}

// refuses says whether something in the table may refuse, or the policy does.
func (b *base) refuses() bool {
	return b.c.Policy != "accept" || slices.ContainsFunc(b.t.Chains, func(c foreign.Chain) bool {
		return slices.ContainsFunc(c.Acts, func(a foreign.Act) bool { return a.Word != "" })
	})
}

func (r *run) close(v Verdict) Answer {
	r.answer.Verdict, r.answer.To = v, r.to
	if r.out != nil {
		r.answer.Out = r.out.Name
	}
	for _, x := range r.exceptions {
		if x.matters(v) {
			r.answer.Unless = append(r.answer.Unless, x.Place)
		}
	}
	return r.answer
}

// exception is a rule that decides otherwise for some senders: rare is one that applies to those alone.
type exception struct {
	Place
	rare bool
}

// matters says whether the verdict could be another for them.
func (x exception) matters(v Verdict) bool {
	accepts := strings.HasSuffix(x.Rule, "accept") || strings.HasSuffix(x.Rule, "ACCEPT")
	refuses := strings.HasSuffix(x.Rule, "drop") || strings.HasSuffix(x.Rule, "DROP") || strings.Contains(strings.ToLower(x.Rule), "reject")
	if x.rare {
		return !(v == Accepted && accepts) && !(v == Refused && refuses)
	}
	return !(v == Accepted && refuses) && !(v == Refused && accepts)
}

// hookAt asks the base chains of one hook in order. Chains of type nat are asked until one has decided
// on an address.
func (r *run) hookAt(hook string) ends {
	r.hook = hook
	r.natted = false
	for _, b := range r.e.hooks[hook] {
		if hook == "ingress" {
			if !slices.Contains(b.c.Devices, r.p.In) {
				continue
			}
		} else if !b.sees(r.p.Six) {
			continue
		}
		if b.c.Type == "nat" && (r.natted || r.skip) {
			continue
		}
		r.tracked = hook != "ingress" && (hook != "prerouting" || b.priority >= priorityTrack)
		if r.base(b) == refused {
			return refused
		}
	}
	return on
}

func (r *run) base(b *base) ends {
	end, place := r.chain(b, b.c, 0)
	if end == on {
		place = Place{Rule: "policy " + b.c.Policy}
		end = accepted
		if b.c.Policy != "accept" {
			end = refused
		}
		r.fill(&place, b, b.c, nil)
	}
	if end == refused {
		r.answer.By = &place
		return refused
	}
	if b.c.Type != "nat" {
		r.answer.Passed = append(r.answer.Passed, place)
	}
	return accepted
}

// depth is how deep jumps may lead; the kernel allows 16.
const depth = 16

// chain asks the rules of a chain in order.
func (r *run) chain(b *base, c *foreign.Chain, deep int) (ends, Place) {
	for i := range c.Lines {
		if *r.steps--; *r.steps <= 0 || deep > depth {
			*r.steps = 0
			at := r.place(b, c, nil)
			at.Rule = "more rules than are followed"
			return accepted, at
		}
		l := &c.Lines[i]
		v := r.line(b, c, l)
		switch v.code {
		case verdictNone:
			continue
		case verdictReturn:
			return on, Place{}
		case verdictJump, verdictGoto:
			next := b.t.chains[v.chain]
			if next == nil {
				continue
			}
			end, place := r.chain(b, next, deep+1)
			if end != on || v.code == verdictGoto {
				return end, place
			}
		case verdictAccept:
			return accepted, r.place(b, c, l)
		case verdictDrop:
			return refused, r.place(b, c, l)
		}
	}
	return on, Place{}
}

// place names a rule; l is nil for a chain as such.
func (r *run) place(b *base, c *foreign.Chain, l *foreign.Line) Place {
	p := Place{}
	r.fill(&p, b, c, l)
	return p
}

func (r *run) fill(p *Place, b *base, c *foreign.Chain, l *foreign.Line) {
	p.Family, p.Table, p.Chain, p.Hook, p.Legacy = b.t.Family, b.t.Name, c.Name, r.hook, b.t.legacy
	if l != nil {
		p.Rule, p.Comment = r.e.text(b.t, l), r.comment
		p.Owner = r.e.whose.Rule(b.t.Table, c, l)
	} else {
		p.Owner = r.e.whose.Policy(b.t.Table, c)
	}
}

// codes of verdicts, as this package follows them.
type verdictCode uint8

const (
	verdictNone verdictCode = iota // the next rule
	verdictAccept
	verdictDrop
	verdictReturn
	verdictJump
	verdictGoto
)

type verdict struct {
	code  verdictCode
	chain string
}

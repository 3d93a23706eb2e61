// Package evaluate says what the kernel would do with a packet that arrives, and which rule or chain
// decides it (NET-12, NET-14): every table at every hook it would pass, in the order of priorities,
// with the jumps, verdict maps, sets and NAT of whoever wrote them.
//
// It is pure: a rule set as foreign.ReadAll read it, what is known of the machine (World) and a Packet
// give the same Answer each time, and nothing is sent. An Answer is never a guess: where the outcome
// hangs on something this package cannot tell, such as a cgroup or an expression it does not know,
// both outcomes are followed, and when they differ the verdict is Depends, with what it depends on.
//
// The packet is the first of a flow, as anybody outside could send it: no connection is known for it,
// no IPsec carried it, nothing before the rules marked it. A limit is met (an ordinary client stays
// below it), and a source that is not given is one that no rule names; each such rule passed is listed
// in Answer.Unless.
package evaluate

import (
	"net/netip"
	"slices"
	"strings"

	"mesh/firewall/foreign"
	"mesh/shared/order"
)

// Packet is the first packet of a flow that arrives over a link.
type Packet struct {
	// In is the link it arrives over.
	In string
	// Six says IPv6.
	Six bool
	// Source is who sends it; invalid for somebody no rule names.
	Source netip.Addr
	// Destination is the address asked for; invalid for one of this machine's on In.
	Destination netip.Addr
	// Protocol is the number of the protocol in IP.
	Protocol uint8
	// Port is the one asked for, of protocols that have ports; for ICMP it is the type.
	Port uint16
}

// World is what is known of the machine besides its rules.
type World struct {
	Links  []Link
	Routes []Route
	// Forward4 and Forward6 say whether the machine forwards at all.
	Forward4, Forward6 bool
}

// Link is one network link.
type Link struct {
	Name  string
	Index uint32
	// Bridge says that it is one: a packet that it hands up has passed the bridge's own rules.
	Bridge bool
	// Steered says that an XDP or tc program sees packets before any rule, and may have marked them.
	Steered   bool
	Addresses []netip.Prefix
}

// Route is one route of any table.
type Route struct {
	Prefix netip.Prefix
	Link   string
	Table  int
	// Type is the kernel's: 1 unicast, 2 local, 3 broadcast, 5 multicast, and what refuses.
	Type uint8
}

// Verdict is what becomes of a packet.
type Verdict string

// The verdicts.
const (
	Accepted Verdict = "accepted"
	Refused  Verdict = "refused"
	Depends  Verdict = "depends"
)

// The ways of a packet.
const (
	Input   = "input"   // to a program of this machine
	Forward = "forward" // through it, such as to a container
)

// Answer is what becomes of a Packet.
type Answer struct {
	Verdict Verdict `json:"verdict"`
	// By is what refuses it; of several refusing it in turn, the first.
	By *Place `json:"by,omitempty"`
	// Passed are the base chains that let it on, in order, each with the rule that did; the last of
	// the hook input or forward is the last word.
	Passed []Place `json:"passed,omitempty"`
	// NAT is where it is sent instead of where it was sent to, in order.
	NAT []NAT `json:"nat,omitempty"`
	// Way is Input or Forward, empty when it was refused before that was decided.
	Way string `json:"way,omitempty"`
	// To is where it arrives at last.
	To netip.AddrPort `json:"to,omitzero"`
	// Out is the link it leaves over, when it is forwarded.
	Out string `json:"out,omitempty"`
	// On is what the verdict depends on.
	On []Condition `json:"on,omitempty"`
	// Unless are the rules that would decide otherwise for some senders: those that a set or an
	// address names, and those above a limit.
	Unless []Place `json:"unless,omitempty"`
}

// Condition is something about a packet or the machine that is not known.
type Condition struct {
	// What is the condition as the rule has it.
	What string `json:"what"`
	// Place is the rule.
	Place Place `json:"place"`
}

// Place is a rule, or a chain's policy.
type Place struct {
	Family string `json:"family"`
	Table  string `json:"table"`
	Chain  string `json:"chain"`
	Hook   string `json:"hook,omitempty"`
	// Rule is the rule in nft's words, or "policy drop".
	Rule string `json:"rule"`
	// Comment is the rule's own, or else that of the element of a set it found; mesh writes the manifest's words there.
	Comment string `json:"comment,omitempty"`
	// Owner is whose it is.
	Owner foreign.Words `json:"owner,omitempty"`
	// Legacy says that it stands in legacy xtables.
	Legacy bool `json:"legacy,omitempty"`
	// Kernel says that no rule decides but the machine itself, such as one that does not forward.
	Kernel bool `json:"kernel,omitempty"`
}

// String is the place in one line.
func (p Place) String() string {
	if p.Kernel {
		return p.Rule
	}
	var b strings.Builder
	b.WriteString(p.Family + " " + p.Table + " " + p.Chain + ": " + p.Rule)
	if p.Legacy {
		b.WriteString(" (legacy xtables)")
	}
	return b.String()
}

// NAT is one redirection.
type NAT struct {
	Place Place          `json:"place"`
	From  netip.AddrPort `json:"from"`
	To    netip.AddrPort `json:"to"`
}

// mostRuns bounds how often a packet is followed with other answers to what is not known.
const mostRuns = 256

// Evaluator holds a rule set in the order the kernel goes through it.
type Evaluator struct {
	rs    *foreign.Ruleset
	world World
	whose *foreign.Whose
	hooks map[string][]*base // by hook, those of both families, in order
	texts map[*foreign.Line][]fragment
}

// New makes an Evaluator of rs, read with foreign.ReadAll.
func New(rs *foreign.Ruleset, world World) *Evaluator {
	e := &Evaluator{rs: rs, world: world, whose: foreign.WhoseOf(rs), hooks: map[string][]*base{}, texts: map[*foreign.Line][]fragment{}}
	e.order()
	return e
}

// Evaluate follows one packet.
func (e *Evaluator) Evaluate(p Packet) Answer {
	if p.Source.IsValid() {
		p.Six = p.Source.Unmap().Is6()
		p.Source = p.Source.Unmap()
	}
	x := &explorer{e: e, p: p, steps: mostSteps}
	verdicts := x.explore(nil)
	a := x.first
	order.Sort(a.Unless, func(a, b Place) int { return strings.Compare(a.String(), b.String()) })
	a.Unless = slices.CompactFunc(a.Unless, samePlace)
	if x.runs >= mostRuns || x.steps <= 0 { // more than is followed
		verdicts.add(Accepted)
		verdicts.add(Refused)
	}
	if verdicts.many() {
		a.Verdict, a.On = Depends, x.matters
	}
	return a
}

func samePlace(a, b Place) bool { return a.String() == b.String() }

// verdicts is a set of two.
type verdicts struct{ accepted, refused bool }

func (v *verdicts) add(x Verdict) {
	v.accepted = v.accepted || x == Accepted
	v.refused = v.refused || x == Refused
}

func (v verdicts) many() bool { return v.accepted && v.refused }

// explorer follows a packet again and again, each time with other answers to the conditions that are
// not known, until all that they lead to is seen.
type explorer struct {
	e       *Evaluator
	p       Packet
	runs    int
	steps   int    // left
	first   Answer // with every unknown condition not met
	matters []Condition
}

// explore follows every continuation of the answers given, and says which verdicts come.
func (x *explorer) explore(given []bool) verdicts {
	var all verdicts
	if x.runs >= mostRuns || x.steps <= 0 {
		return all
	}
	x.runs++
	r := &run{e: x.e, p: x.p, given: given, steps: &x.steps}
	a := r.follow()
	if x.runs == 1 {
		x.first = a
	}
	all.add(a.Verdict)
	for i := len(r.asked) - 1; i >= len(given); i-- {
		other := make([]bool, i, i+1)
		for j := range other {
			other[j] = r.asked[j].answer
		}
		sub := x.explore(append(other, true))
		if sub != all && sub != (verdicts{}) {
			x.matter(r.asked[i].Condition)
		}
		all.accepted, all.refused = all.accepted || sub.accepted, all.refused || sub.refused
	}
	return all
}

func (x *explorer) matter(c Condition) {
	if !slices.ContainsFunc(x.matters, func(o Condition) bool { return o.What == c.What && samePlace(o.Place, c.Place) }) {
		x.matters = append(x.matters, c)
	}
}

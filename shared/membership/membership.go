// Package membership is what one instance, a module on a machine, is on the bus: the verbs it answers and
// where, where its events go, and what it may ask. It is composed by the coordinator, never written by
// hand, and the instance's rights are derived from it (shared/grant), so that what it is told to do and
// what the bus lets it do cannot differ (MEM-1). It is published on mesh.assignment.<node>.<module>, travels
// in the declaration, and lies beside the instance's credential on the machine (MEM-2).
//
// The package does no I/O.
package membership

import (
	"slices"
	"strings"

	"mesh/shared/order"
	"mesh/shared/refusal"
	"mesh/shared/subject"
)

// Format is the version of the JSON.
const Format = 1

// Membership is one instance's.
type Membership struct {
	Format int            `json:"format"`
	Mesh   string         `json:"mesh"`
	Node   subject.Node   `json:"node"`
	Module subject.Module `json:"module"`
	// Inbox is the prefix of every reply to this instance; the bus lets it listen below no other.
	Inbox string `json:"inbox"`
	// Self is where this text is published; the stream keeps the last one.
	Self string `json:"self"`
	// Serves are the verbs it answers.
	Serves []Verb `json:"serves,omitempty"`
	// Says are the events it says, each published to its stream.
	Says []Event `json:"says,omitempty"`
	// Asks are the verbs of others that it may ask.
	Asks []Ask `json:"asks,omitempty"`
}

// Verb is one verb an instance answers.
type Verb struct {
	Name subject.Verb `json:"name"`
	// Seat is the seat the verb belongs to; empty: it is the module's own.
	Seat subject.Seat `json:"seat,omitempty"`
	// At is to be subscribed: asks of this instance alone come there. Empty for a verb of a mesh seat.
	At string `json:"at,omitempty"`
	// Plain is to be subscribed in Queue: asks that name no machine come there. Empty while another instance
	// could be meant.
	Plain string `json:"plain,omitempty"`
	Queue string `json:"queue,omitempty"`
}

// Event is one event an instance says.
type Event struct {
	Name subject.Event `json:"name"`
	// Seat is the seat that says it; empty: it is the module's own.
	Seat subject.Seat `json:"seat,omitempty"`
	At   string       `json:"at"`
}

// Ask is a verb, or all verbs, of another.
type Ask struct {
	// What is the manifest's word for it.
	What Reach `json:"what"`
	// At is where it is asked; a last token "*" is to be replaced by the verb.
	At string `json:"at,omitempty"`
	// On is where it is asked of one machine: its last token "*" is to be replaced by the node's name.
	On string `json:"on,omitempty"`
}

// Label names an instance on the bus: what its inbox is called after. The dot, which no name has, tells n1.a-b
// from n1-a.b.
func Label(n subject.Node, m subject.Module) string { return "instance-" + string(n) + "." + string(m) }

// Reach is a verb, or all of them, of a seat or module: "seat:notes-store.list", "module:notes.*".
type Reach string

// Every is the verb that stands for all.
const Every = "*"

// Split takes r apart; exactly one of seat and module is given, and verb may be Every.
func (r Reach) Split() (seat subject.Seat, module subject.Module, verb string, err error) {
	what := `the reach "` + string(r) + `"`
	const do = `write "seat:<seat>.<verb>" or "module:<module>.<verb>", with * for every verb`
	kind, rest, _ := strings.Cut(string(r), ":")
	holder, verb, ok := strings.Cut(rest, ".")
	if !ok || kind != "seat" && kind != "module" {
		return "", "", "", refusal.New(what, "it names no verb of a seat or module", do)
	}
	if err := subject.Check(kind, holder); err != nil {
		return "", "", "", err
	}
	if verb != Every {
		if err := subject.Check("verb", verb); err != nil {
			return "", "", "", err
		}
	}
	if kind == "seat" {
		return subject.Seat(holder), "", verb, nil
	}
	return "", subject.Module(holder), verb, nil
}

// UnmarshalText refuses what Split does.
func (r *Reach) UnmarshalText(b []byte) error {
	_, _, _, err := Reach(b).Split()
	*r = Reach(b)
	return err
}

// Of is what a membership is composed of.
type Of struct {
	Mesh   string
	Node   subject.Node
	Module subject.Module
	// Tools are the verbs of the module itself, Events its events, Invokes what it asks.
	Tools   []subject.Verb
	Events  []subject.Event
	Invokes []Reach
	// Plain: it answers at the module's plain address too, being alone or one of many that are the same.
	Plain bool
	// Holds are the seats it holds.
	Holds []Seat
	// PerNode says of a seat whether there is one holder a machine.
	PerNode func(subject.Seat) bool
}

// Seat is a seat as its holder needs it.
type Seat struct {
	Name subject.Seat
	// PerNode: there is one holder a machine, and the machine stands in its subjects.
	PerNode bool
	Verbs   []subject.Verb
	Events  []subject.Event
}

// Make composes. The same values give the same membership, whatever their order.
func Make(o Of) *Membership {
	m := &Membership{Format: Format, Mesh: o.Mesh, Node: o.Node, Module: o.Module,
		Inbox: subject.Inbox(Label(o.Node, o.Module)), Self: subject.Membership(o.Node, o.Module)}
	for _, v := range sorted(o.Tools) {
		verb := Verb{Name: v, At: subject.Served(subject.ModuleToolOn(o.Module, v, o.Node))}
		if o.Plain {
			verb.Plain, verb.Queue = subject.Served(subject.ModuleTool(o.Module, v)), string(o.Module)
		}
		m.Serves = append(m.Serves, verb)
	}
	for _, e := range sorted(o.Events) {
		m.Says = append(m.Says, Event{Name: e, At: subject.ModuleEvent(o.Module, e, o.Node)})
	}
	holds := slices.Clone(o.Holds)
	order.Sort(holds, func(a, b Seat) int { return strings.Compare(string(a.Name), string(b.Name)) })
	for _, s := range holds {
		m.hold(s)
	}
	for _, r := range sorted(o.Invokes) {
		m.Asks = append(m.Asks, reach(o, r))
	}
	return m
}

func (m *Membership) hold(s Seat) {
	for _, v := range sorted(s.Verbs) {
		verb := Verb{Name: v, Seat: s.Name, Plain: subject.Served(subject.Tool(s.Name, v)), Queue: string(s.Name)}
		if s.PerNode {
			verb = Verb{Name: v, Seat: s.Name, At: subject.Served(subject.NodeTool(s.Name, v, m.Node))}
		}
		m.Serves = append(m.Serves, verb)
	}
	for _, e := range sorted(s.Events) {
		at := subject.SeatEvent(s.Name, e, "")
		if s.PerNode {
			at = subject.SeatEventOn(s.Name, e, m.Node)
		}
		m.Says = append(m.Says, Event{Name: e, Seat: s.Name, At: at})
	}
}

// reach resolves r, which was checked. A node seat is asked on the instance's own machine only.
func reach(o Of, r Reach) Ask {
	seat, module, verb, err := r.Split()
	if err != nil {
		return Ask{What: r}
	}
	v := subject.Verb(verb)
	switch {
	case module != "":
		return Ask{What: r, At: subject.ModuleTool(module, v), On: subject.ModuleToolOn(module, v, subject.Each)}
	case o.PerNode != nil && o.PerNode(seat):
		return Ask{What: r, At: subject.NodeTool(seat, v, o.Node)}
	}
	return Ask{What: r, At: subject.Tool(seat, v)}
}

func sorted[T ~string](all []T) []T {
	out := slices.Clone(all)
	slices.Sort(out)
	return slices.Compact(out)
}

// Package subject holds the names mesh uses on the bus: the tokens (node, module, seat, verb,
// event), the subjects made of them, and the names of streams and consumers. A name is checked once,
// here, on construction: one that could not stand in a subject, or in an acknowledgement subject
// ($JS.ACK.<stream>.<consumer>…), cannot be built (BUS-5). Subjects are those of design.md §5.
package subject

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"mesh/shared/refusal"
)

// MaxName is the longest name in characters (design §2).
const MaxName = 40

// wellFormed holds name against ^[a-z0-9]([a-z0-9-]*[a-z0-9])?$. It is written out because names are
// checked wherever something is decoded.
func wellFormed(name string) bool {
	for i := range len(name) {
		switch c := name[i]; {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
		case c == '-' && i > 0 && i < len(name)-1:
		default:
			return false
		}
	}
	return name != ""
}

// Node is the name of a machine.
type Node string

// Module is the name of a module.
type Module string

// Seat is the name of a seat.
type Seat string

// Verb is the name of a verb of a seat or module.
type Verb string

// Event is the name of an event.
type Event string

// The seats mesh itself defines in this version.
const (
	Controller Seat = "mesh-controller" // held by the coordinator
	NodeEngine Seat = "node-engine"     // held by every agent
	// NodePrevention says who is banned; held by every agent.
	NodePrevention Seat = "node-intrusion-prevention"
	Broker         Seat = "mesh-broker" // held by whoever runs the bus
)

// Check says why name cannot be a name of kind ("node", "module", …), or nil.
func Check(kind, name string) error {
	do := fmt.Sprintf("name the %s with a-z, 0-9 and inner hyphens, at most %d characters", kind, MaxName)
	switch {
	case name == "":
		return refusal.New("an empty "+kind+" name", "a name is a token of bus subjects", do)
	case len(name) > MaxName:
		return refusal.Newf(fmt.Sprintf("the %s name %q", kind, name), do, "it has %d characters", len(name))
	case !wellFormed(name):
		why := "it is a token of bus subjects, and only a-z, 0-9 and inner hyphens can stand there"
		for _, r := range name {
			if r == '.' {
				why = "a dot would split it into two tokens of a bus subject"
				break
			}
		}
		return refusal.New(fmt.Sprintf("the %s name %q", kind, name), why, do)
	}
	return nil
}

func parse[T ~string](kind, s string) (T, error) {
	if err := Check(kind, s); err != nil {
		return "", err
	}
	return T(s), nil
}

// ParseNode checks s as a node name.
func ParseNode(s string) (Node, error) { return parse[Node]("node", s) }

// ParseModule checks s as a module name.
func ParseModule(s string) (Module, error) { return parse[Module]("module", s) }

// ParseSeat checks s as a seat name.
func ParseSeat(s string) (Seat, error) { return parse[Seat]("seat", s) }

// ParseVerb checks s as a verb name.
func ParseVerb(s string) (Verb, error) { return parse[Verb]("verb", s) }

// ParseEvent checks s as an event name.
func ParseEvent(s string) (Event, error) { return parse[Event]("event", s) }

// Names unmarshal only when they are well formed, so a decoded message holds no bad token.

// UnmarshalText refuses what is no node name.
func (n *Node) UnmarshalText(b []byte) (err error) { *n, err = ParseNode(string(b)); return err }

// UnmarshalText refuses what is no module name.
func (m *Module) UnmarshalText(b []byte) (err error) { *m, err = ParseModule(string(b)); return err }

// UnmarshalText refuses what is no verb name.
func (v *Verb) UnmarshalText(b []byte) (err error) { *v, err = ParseVerb(string(b)); return err }

// UnmarshalText refuses what is no event name.
func (e *Event) UnmarshalText(b []byte) (err error) { *e, err = ParseEvent(string(b)); return err }

// UnmarshalText refuses what is no seat name.
func (s *Seat) UnmarshalText(b []byte) (err error) { *s, err = ParseSeat(string(b)); return err }

// Each is the wildcard in the place of a node, for those who hear all of them.
const Each Node = "*"

// Declaration carries the signed declaration of n (stream DECLARATIONS, last per subject).
func Declaration(n Node) string { return "mesh.node." + string(n) + ".declaration" }

// Membership carries the membership of one instance (stream ASSIGNMENTS).
func Membership(n Node, m Module) string { return "mesh.assignment." + string(n) + "." + string(m) }

// Report carries what n says of itself (stream CONTROL).
func Report(n Node) string { return "mesh.control." + string(n) + ".report" }

// Heartbeat says that n is alive; not kept.
func Heartbeat(n Node) string { return "mesh.control." + string(n) + ".heartbeat" }

// Enrol is where the holder of an invitation asks to be let in; "*" for the coordinator.
func Enrol(invitation string) string { return "mesh.enrol." + invitation }

// Tool is a verb of a mesh seat.
func Tool(s Seat, v Verb) string { return "mesh.seat." + string(s) + ".tool." + string(v) }

// NodeTool is a verb of a node seat on n.
func NodeTool(s Seat, v Verb, n Node) string { return Tool(s, v) + "." + string(n) }

// ModuleTool is a verb of a module at its plain address: any instance answers, when the module's instances
// are interchangeable or there is one.
func ModuleTool(m Module, v Verb) string { return "mesh.module." + string(m) + ".tool." + string(v) }

// ModuleToolOn is a verb of the instance of m on n.
func ModuleToolOn(m Module, v Verb, n Node) string { return ModuleTool(m, v) + "." + string(n) }

// ModuleEvent is an event of the instance of m on n.
func ModuleEvent(m Module, e Event, n Node) string {
	return "mesh.module." + string(m) + ".event." + string(e) + "." + string(n)
}

// SeatEventOn is an event of the holder of a node seat on n.
func SeatEventOn(s Seat, e Event, n Node) string { return SeatEvent(s, e, string(n)) }

// Work is where asks wait for a holder of s (stream WORK-<seat>).
func Work(s Seat) string { return "mesh.seat." + string(s) + ".work" }

// Served is where an instance subscribes for what is asked at sub. They differ because instances ask each
// other inside one account: the bus names the caller, and keeps an answer from being aimed, where an ask goes
// through an import, and it takes an import of a name to itself for a cycle.
func Served(sub string) string { return "mesh.serve" + strings.TrimPrefix(sub, "mesh") }

// Discovery are the subjects at which who serves name as instance id is asked for PING, INFO and STATS: of
// everybody, of the name, of the instance (NATS ADR-32). The first three are written out: a right to
// "$SRV.*" is taken by the server for one to subscribe "$SRV.>" too.
func Discovery(name, id string) []string {
	return []string{"$SRV.PING", "$SRV.INFO", "$SRV.STATS", "$SRV.*." + name, "$SRV.*." + name + "." + id}
}

// SeatEvent is an event of a mesh seat; id is left out when empty.
func SeatEvent(s Seat, e Event, id string) string {
	sub := "mesh.seat." + string(s) + ".event." + string(e)
	if id != "" {
		sub += "." + id
	}
	return sub
}

// Chunk is one piece of an artifact: digest in lower-case hex, chunks counted from 0.
func Chunk(digest string, n int) string { return "mesh.artifact." + digest + "." + strconv.Itoa(n) }

// Chunks covers every chunk of digest.
func Chunks(digest string) string { return "mesh.artifact." + digest + ".*" }

// DirectGet is the request that reads the last message of sub from stream. Never the bare form
// without the subject: with it a client reads any message of the stream (facts/bus.md §1.1).
func DirectGet(s Stream, sub string) string { return "$JS.API.DIRECT.GET." + string(s) + "." + sub }

// Inbox is the prefix of every reply to a principal; nobody else may subscribe below it.
func Inbox(principal string) string { return "_INBOX." + principal }

// Stream is the name of a stream.
type Stream string

// The streams of design.md §5 that exist in this version.
const (
	Declarations Stream = "DECLARATIONS"
	Assignments  Stream = "ASSIGNMENTS"
	Control      Stream = "CONTROL"
	Events       Stream = "EVENTS"
	Artifacts    Stream = "ARTIFACTS"
)

// Consumer is the name of a durable consumer; it comes from ParseConsumer, so it can stand in an
// acknowledgement subject.
type Consumer struct{ name string }

var consumerRule = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9]([a-z0-9_-]*[a-z0-9])?$`) })

// ParseConsumer checks a durable name: letters, digits, hyphen and underscore.
func ParseConsumer(s string) (Consumer, error) {
	if !consumerRule().MatchString(s) || len(s) > 2*MaxName {
		return Consumer{}, refusal.New(fmt.Sprintf("the consumer name %q", s),
			"it stands in acknowledgement subjects as one token", "use a-z, 0-9, - and _")
	}
	return Consumer{s}, nil
}

// String is the durable name.
func (c Consumer) String() string { return c.name }

// Acks are the two forms of acknowledgement subject of c on s: today's and that of the v2 layout
// (facts/bus.md §1.4); a permission names both.
func (c Consumer) Acks(s Stream) []string {
	return []string{
		"$JS.ACK." + string(s) + "." + c.name + ".>",
		"$JS.ACK.*.*." + string(s) + "." + c.name + ".>",
	}
}

// Package grant derives who may say and hear what on the bus: each principal's permissions, and the
// exports and imports that join the accounts. It is the one derivation, a pure function of the
// records, used to run the bus, to test it and to check it (design §5, MEM-3).
//
// Account CORE holds JetStream, the coordinator and the streams; FLEET holds machines and invitations;
// PEOPLE holds those who ask. The server never checks a message's reply subject against its sender's
// rights, so in one account a machine could make the stream's answer overwrite its neighbour's
// declaration; across accounts the answer goes back into the asker's, where those subjects mean nothing
// (facts/bus.md §2). Who answers verbs is for the same reason in another account than who asks them: a
// machine answers below _R_ alone, which the server makes for one ask and nobody can name in a reply, it
// has no right to anybody's inbox, and the server tells it who asks
// (docs/decisions/0006-people-in-an-account-of-their-own.md).
package grant

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"mesh/shared/credential"
	"mesh/shared/engine"
	"mesh/shared/membership"
	"mesh/shared/subject"
)

// Kind is what a principal is.
type Kind string

// The kinds of principals that exist in this version.
const (
	Coordinator Kind = "coordinator"
	Node        Kind = "node"
	Operator    Kind = "operator"
	Invitation  Kind = "invitation"
	// Instance is a module on a machine; its membership is what it may.
	Instance Kind = "instance"
)

// Account is a room of its own on the bus: what is said in one is not heard in another.
type Account string

// The accounts.
const (
	Core   Account = "CORE"
	Fleet  Account = "FLEET"
	People Account = "PEOPLE"
)

// Principal is whoever has a bus user.
type Principal struct {
	Kind Kind
	Name string
	// Key is the public NKEY; a principal without one is left out of the list and named.
	Key string
	// Artifacts are the digests a node may fetch: those of its own modules.
	Artifacts []string
	// Verbs are what an operator may ask of the seat mesh-controller.
	Verbs []subject.Verb
	// OnNodes are the verbs of node seats that an operator may ask, of every machine.
	OnNodes []OnNode
	// OfModules are the verbs of modules that an operator may ask; EveryTool lets it ask all of them.
	OfModules []OfModule
	EveryTool bool
	// Upload lets an operator put artifacts on the bus.
	Upload bool
	// Membership is an instance's: its rights are derived from it and from nothing else (MEM-1).
	Membership *membership.Membership
}

// OfModule is a verb of a module.
type OfModule struct {
	Module subject.Module
	Verb   subject.Verb
}

// OnNode is a verb of a node seat.
type OnNode struct {
	Seat subject.Seat
	Verb subject.Verb
}

// Label names p in its inbox prefix.
func (p Principal) Label() string {
	switch {
	case p.Kind == Coordinator:
		return string(Coordinator)
	case p.Kind == Instance && p.Membership != nil:
		return membership.Label(p.Membership.Node, p.Membership.Module)
	}
	return string(p.Kind) + "-" + p.Name
}

// Rights are subjects a user may publish and subscribe. Neither is ever empty: the server takes an
// empty list for everything (facts/bus.md §1.8).
type Rights struct{ Publish, Subscribe []string }

// none is a subject that nothing uses, in the place of an empty list.
const none = "mesh.none"

const (
	// artifactUpload covers what an uploader writes.
	artifactUpload = "mesh.artifact.*.*"
	// nodeVerbs covers the verbs of node seats: they have the node as one token more than those of mesh seats.
	nodeVerbs = "mesh.seat.*.tool.*.*"
	// moduleVerbs and moduleVerbsOn cover the verbs of modules, at their plain addresses and at one machine's.
	moduleVerbs   = "mesh.module.*.tool.*"
	moduleVerbsOn = "mesh.module.*.tool.*.*"
	// moduleEvents covers what modules say.
	moduleEvents = "mesh.module.*.event.*.*"
	// answers are those to askers in other accounts; static, a reload must not lose one (facts/bus.md §0).
	answers = "_R_.>"
)

// discover covers the questions of who answers which verbs (SEA-7): of everybody, of a name, of one
// instance of it.
var discover = [...]string{"$SRV.*", "$SRV.*.*", "$SRV.*.*.*"}

// For derives p's rights.
func For(p Principal) (Rights, error) {
	if p.Kind != Coordinator && p.Kind != Instance {
		if err := subject.Check(string(p.Kind), p.Name); err != nil {
			return Rights{}, err
		}
	}
	r := Rights{Subscribe: []string{subject.Inbox(p.Label()) + ".>"}}
	switch p.Kind {
	case Coordinator:
		r.Publish = []string{
			"$JS.API.>", "$JS.ACK.>", "$JS.FC.>",
			subject.Declaration(subject.Each),
			"mesh.seat." + string(subject.Controller) + ".event.>",
			answers,
			nodeVerbs, // it asks machines, too: the doctor does
			moduleVerbs, moduleVerbsOn,
			subject.Membership(subject.Each, "*"),
		}
		r.Publish = append(r.Publish, discover[:]...)
		r.Subscribe = append(r.Subscribe,
			subject.Heartbeat(subject.Each),
			subject.Enrol("*"),
			subject.Tool(subject.Controller, "*"),
			subject.Tool(subject.Controller, "*")+" "+string(subject.Controller),
		)
		r.Subscribe = append(r.Subscribe, subject.Discovery(string(subject.Controller), string(subject.Controller))...)
	case Node:
		r = nodeForm().fill(p.Name, len(p.Artifacts))
		for _, d := range p.Artifacts {
			if !isDigest(d) { // it becomes a token of a right: "*" would be everybody's
				return Rights{}, fmt.Errorf("artifact %q of %s is no SHA-256 in lower-case hex", d, p.Label())
			}
			r.Publish = append(r.Publish, subject.DirectGet(subject.Artifacts, subject.Chunks(d)))
		}
	case Operator:
		for _, v := range p.Verbs {
			if err := subject.Check("verb", string(v)); err != nil {
				return Rights{}, err
			}
			r.Publish = append(r.Publish, subject.Tool(subject.Controller, v))
		}
		for _, v := range p.OnNodes {
			if err := errors.Join(subject.Check("seat", string(v.Seat)), subject.Check("verb", string(v.Verb))); err != nil {
				return Rights{}, err
			}
			r.Publish = append(r.Publish, subject.NodeTool(v.Seat, v.Verb, subject.Each))
		}
		for _, v := range p.OfModules {
			if err := errors.Join(subject.Check("module", string(v.Module)), subject.Check("verb", string(v.Verb))); err != nil {
				return Rights{}, err
			}
			r.Publish = append(r.Publish, subject.ModuleTool(v.Module, v.Verb), subject.ModuleToolOn(v.Module, v.Verb, subject.Each))
		}
		if p.EveryTool {
			r.Publish = append(r.Publish, moduleVerbs, moduleVerbsOn)
		}
		if p.Upload {
			r.Publish = append(r.Publish, artifactUpload)
		}
		r.Publish = append(r.Publish, discover[:]...)
	case Invitation:
		r.Publish = []string{subject.Enrol(p.Name)}
	case Instance:
		var err error
		if r, err = instance(p.Membership); err != nil {
			return Rights{}, err
		}
	default:
		return Rights{}, fmt.Errorf("no rights are known for a principal of kind %q", p.Kind)
	}
	if len(r.Publish) == 0 {
		r.Publish = []string{none}
	}
	slices.Sort(r.Publish)
	slices.Sort(r.Subscribe)
	r.Publish = slices.Compact(r.Publish) // two modules of one node may share an artifact
	return r, nil
}

func isDigest(s string) bool {
	if len(s) != 2*sha256.Size {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// Export is a subject that one account offers to others, which import it under the same name.
type Export struct {
	Subject string
	// From offers it, To may use it.
	From Account
	To   []Account
	// Stream is an export of messages; otherwise it is a service, a request with an answer.
	Stream bool
	// Share tells the server of a verb who asks (header Nats-Request-Info); only for services.
	Share bool
	// Many says that several may answer one ask; otherwise the first answer is the only one.
	Many bool
	// Served says that who offers it subscribes under the subject.Served name.
	Served bool
}

// Seat is a seat whose verbs instances serve: its asks come into FLEET.
type Seat struct {
	Name    subject.Seat
	PerNode bool
}

// Exports join the accounts. A subject that is not here does not cross.
func Exports(seats ...Seat) []Export {
	fleet, people, both := []Account{Fleet}, []Account{People}, []Account{Fleet, People}
	askers, all := []Account{Core, People}, []Account{Core, Fleet, People}
	out := []Export{
		{Subject: subject.Declaration(subject.Each), From: Core, To: fleet, Stream: true},
		{Subject: subject.DirectGet(subject.Declarations, subject.Declaration(subject.Each)), From: Core, To: fleet},
		{Subject: subject.DirectGet(subject.Artifacts, artifactUpload), From: Core, To: fleet},
		{Subject: subject.Report(subject.Each), From: Core, To: fleet},
		{Subject: subject.Heartbeat(subject.Each), From: Core, To: fleet},
		{Subject: artifactUpload, From: Core, To: both},
		{Subject: subject.Enrol("*"), From: Core, To: fleet, Share: true},
		{Subject: subject.Tool(subject.Controller, "*"), From: Core, To: both, Share: true},
		{Subject: subject.Membership(subject.Each, "*"), From: Core, To: fleet, Stream: true},
		{Subject: subject.DirectGet(subject.Assignments, subject.Membership(subject.Each, "*")), From: Core, To: fleet},
		{Subject: moduleEvents, From: Core, To: fleet},
		{Subject: moduleVerbs, From: Fleet, To: all, Share: true, Served: true},
		{Subject: moduleVerbsOn, From: Fleet, To: all, Share: true, Served: true},
	}
	for _, s := range engine.Seats() {
		out = append(out, Export{Subject: subject.NodeTool(s, "*", subject.Each), From: Fleet, To: askers, Share: true})
	}
	for _, s := range seats {
		verbs, events := subject.Tool(s.Name, "*"), subject.SeatEvent(s.Name, "*", "")
		if s.PerNode {
			verbs, events = subject.NodeTool(s.Name, "*", subject.Each), subject.SeatEventOn(s.Name, "*", subject.Each)
		}
		out = append(out, Export{Subject: verbs, From: Fleet, To: all, Share: true, Served: true}, Export{Subject: events, From: Core, To: fleet})
	}
	// Discovery is answered by each who serves the name. What is asked of everybody reaches FLEET and CORE,
	// what is asked of a name the one account where it is served.
	for _, s := range discover {
		out = append(out, Export{Subject: s, From: Fleet, To: askers, Many: true})
	}
	for _, s := range subject.Discovery(string(subject.Controller), string(subject.Controller)) {
		out = append(out, Export{Subject: s, From: Core, To: people, Many: true})
	}
	return out
}

// User is one line of the bus's user list.
type User struct {
	Key       string
	Principal string
	Account   Account
	Rights
}

// List is the composed user list, sorted by key, with the seats that instances serve.
type List struct {
	Users []User
	// Seats are sorted by name.
	Seats []Seat
}

// Left is a principal that is not on the list, and why.
type Left struct {
	Principal string
	Why       string
}

// ErrEmpty is met by errors.Is when a list would hold nobody.
var ErrEmpty = errors.New("a user list with no users")

// Compose makes the list. Who has no credential, one that somebody else has, or a record that no right can
// be derived from, is left out and named (MEM-3): one bad record must not keep everybody else's changes
// from the bus. Of several with one key the first stays, by kind and then as given: who asks to be let in
// with another's key gains nothing by it.
func Compose(ps []Principal) (List, []Left, error) {
	var l List
	var left []Left
	l.Users = make([]User, 0, len(ps))
	owner := make(map[string]string, len(ps))
	add := func(p Principal) {
		out := func(why string) { left = append(left, Left{p.Label(), why}) }
		if p.Key == "" {
			out("it has no credential yet")
			return
		}
		if err := credential.CheckUserKey(p.Key); err != nil {
			out(err.Error())
			return
		}
		if other, taken := owner[p.Key]; taken {
			out("it has the key of " + other + "; give one of them a new credential")
			return
		}
		r, err := For(p)
		if err != nil {
			out(err.Error())
			return
		}
		owner[p.Key] = p.Label()
		account := Fleet
		switch p.Kind {
		case Coordinator:
			account = Core
		case Operator:
			account = People
		}
		l.Users = append(l.Users, User{p.Key, p.Label(), account, r})
	}
	kinds := []Kind{Coordinator, Operator, Node, Instance, Invitation}
	for _, k := range kinds {
		for i := range ps {
			if ps[i].Kind == k {
				add(ps[i])
			}
		}
	}
	for i := range ps {
		if !slices.Contains(kinds, ps[i].Kind) {
			add(ps[i])
		}
	}
	if len(l.Users) == 0 {
		return List{}, left, fmt.Errorf("compose the user list: %w", ErrEmpty)
	}
	slices.SortFunc(l.Users, func(a, b User) int {
		if a.Key < b.Key {
			return -1
		}
		return 1
	})
	return l, left, nil
}

// Digest is equal for equal lists: an unchanged list causes no reload.
func (l List) Digest() string {
	h := sha256.New()
	var b []byte
	add := func(s string) {
		b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
		b = append(b, s...)
	}
	for _, s := range l.Seats {
		b = fmt.Appendf(b, "seat %s %v\n", s.Name, s.PerNode)
	}
	h.Write(b)
	for _, u := range l.Users {
		b = b[:0]
		add(u.Key)
		add(string(u.Account))
		for _, s := range u.Publish {
			add(s)
		}
		add("")
		for _, s := range u.Subscribe {
			add(s)
		}
		add("")
		h.Write(b) // a hash never fails
	}
	return hex.EncodeToString(h.Sum(nil))
}

package testbus

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"mesh/shared/engine"
	"mesh/shared/grant"
	"mesh/shared/membership"
	"mesh/shared/subject"
)

// Mesh is a mesh made at random, with at least one of every kind of principal.
type Mesh struct {
	Principals []grant.Principal
	Seats      []grant.Seat
}

var (
	someVerbs  = []subject.Verb{"list", "put", "get", "stop", "a", "tool"}
	someEvents = []subject.Event{"added", "gone", "event", "b"}
)

func some[T any](r *rand.Rand, all []T) (out []T) {
	for _, x := range all {
		if r.IntN(2) == 0 {
			out = append(out, x)
		}
	}
	return out
}

// RandomMesh makes a mesh of two or three machines whose names are hard to tell apart, with modules that hold
// seats, serve, say and ask at random.
func RandomMesh(r *rand.Rand) Mesh {
	names := []string{"n1", "n1-a", "a", "a-n1", "n", "tool"}
	r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	nodes, modules := names[:2+r.IntN(2)], []subject.Module{"a", "a-b", "b", "n1"}
	var m Mesh
	m.Principals = append(m.Principals, grant.Principal{Kind: grant.Coordinator})
	digest := func(i int) string { return fmt.Sprintf("%064x", i) }
	for i, n := range nodes {
		m.Principals = append(m.Principals, Node(n, digest(i), digest(i+100)))
	}
	m.Principals = append(m.Principals, Invitation("i1"), Invitation("i2"))
	viewer, operator := Operator("eve", "status"), Operator("ada", "status", "push")
	viewer.Upload = false
	viewer.OnNodes = []grant.OnNode{{Seat: subject.NodeEngine, Verb: "show"}}
	operator.OnNodes, operator.EveryTool = []grant.OnNode{{Seat: subject.NodeEngine, Verb: "show"}, {Seat: subject.NodeEngine, Verb: "restart"}}, true
	viewer.OfModules = []grant.OfModule{{Module: modules[0], Verb: "list"}}
	m.Principals = append(m.Principals, viewer, operator)
	m.Seats = []grant.Seat{{Name: "clock", PerNode: true}, {Name: "store"}}
	held := false
	for i, mod := range modules {
		on := some(r, nodes)
		if i == 0 && len(on) == 0 {
			on = nodes[:1]
		}
		tools, events := some(r, someVerbs), some(r, someEvents)
		var invokes []membership.Reach
		for _, other := range modules {
			if other != mod && r.IntN(3) == 0 {
				verb := "*"
				if r.IntN(2) == 0 {
					verb = string(someVerbs[r.IntN(len(someVerbs))])
				}
				invokes = append(invokes, membership.Reach("module:"+string(other)+"."+verb))
			}
		}
		invokes = append(invokes, some(r, []membership.Reach{"seat:mesh-controller.status", "seat:store.get", "seat:clock.*"})...)
		for _, n := range on {
			of := membership.Of{Mesh: "m", Node: subject.Node(n), Module: mod, Tools: tools, Events: events, Invokes: invokes, Plain: len(on) == 1,
				PerNode: func(s subject.Seat) bool { return s == "clock" }}
			if !held && r.IntN(3) == 0 {
				held = true
				of.Holds = []membership.Seat{{Name: "store", Verbs: []subject.Verb{"get"}, Events: []subject.Event{"stored"}}}
			}
			if mod == "b" {
				of.Holds = append(of.Holds, membership.Seat{Name: "clock", PerNode: true, Verbs: []subject.Verb{"read"}, Events: []subject.Event{"ticked"}})
			}
			m.Principals = append(m.Principals, Instance(membership.Make(of)))
		}
	}
	return m
}

// Needs are what p does on the bus, each a subject to publish, and to subscribe ("subject queue").
func Needs(p grant.Principal) (publish, hear []string) {
	hear = []string{subject.Inbox(p.Label()) + ".x"}
	n := subject.Node(p.Name)
	switch p.Kind {
	case grant.Coordinator:
		publish = []string{"$JS.API.STREAM.INFO.CONTROL", "$JS.ACK.CONTROL.coordinator.1.1.1.1.1", subject.Declaration("n1"), subject.Membership("n1", "a"), "_R_.x"}
		hear = append(hear, subject.Heartbeat("n1"), subject.Enrol("i1"), subject.Tool(subject.Controller, "status")+" mesh-controller")
	case grant.Node:
		publish = []string{subject.DirectGet(subject.Declarations, subject.Declaration(n)), subject.Report(n), subject.Heartbeat(n), "_R_.x"}
		for _, d := range p.Artifacts {
			publish = append(publish, subject.DirectGet(subject.Artifacts, subject.Chunk(d, 0)))
		}
		hear = append(hear, subject.Declaration(n))
		for _, s := range engine.Seats() {
			hear = append(hear, subject.NodeTool(s, "show", n))
		}
	case grant.Operator:
		for _, v := range p.Verbs {
			publish = append(publish, subject.Tool(subject.Controller, v))
		}
		for _, v := range p.OnNodes {
			publish = append(publish, subject.NodeTool(v.Seat, v.Verb, "n1"), subject.NodeTool(v.Seat, v.Verb, "a"))
		}
		for _, v := range p.OfModules {
			publish = append(publish, subject.ModuleTool(v.Module, v.Verb), subject.ModuleToolOn(v.Module, v.Verb, "n1"))
		}
		if p.EveryTool {
			publish = append(publish, subject.ModuleTool("b", "anything"), subject.ModuleToolOn("b", "anything", "a"))
		}
		if p.Upload {
			publish = append(publish, subject.Chunk(fmt.Sprintf("%064x", 7), 3))
		}
		publish = append(publish, "$SRV.PING", "$SRV.INFO.a")
	case grant.Invitation:
		publish = []string{subject.Enrol(p.Name)}
	case grant.Instance:
		m := p.Membership
		publish = []string{subject.DirectGet(subject.Assignments, m.Self)}
		hear = append(hear, m.Self)
		for _, v := range m.Serves {
			if v.At != "" {
				hear = append(hear, v.At)
			}
			if v.Plain != "" {
				hear = append(hear, v.Plain+" "+v.Queue)
			}
			publish = append(publish, "_R_.x")
		}
		for _, e := range m.Says {
			publish = append(publish, e.At)
		}
		for _, a := range m.Asks {
			publish = append(publish, a.At)
		}
	}
	slices.Sort(publish)
	return slices.Compact(publish), hear
}

// Theirs are what q may do and nobody else: for a list of what p, another, must not. What p may for its own sake
// is not among them: what everybody may ask, and what is of one machine, instance or person alone.
func Theirs(q grant.Principal) (publish, hear []string) {
	hear = []string{subject.Inbox(q.Label()) + ".x", subject.Inbox(q.Label()) + ".>"}
	publish = []string{subject.Inbox(q.Label()) + ".x"}
	n := subject.Node(q.Name)
	switch q.Kind {
	case grant.Node:
		publish = append(publish, subject.DirectGet(subject.Declarations, subject.Declaration(n)), subject.Report(n), subject.Heartbeat(n))
		for _, d := range q.Artifacts {
			publish = append(publish, subject.DirectGet(subject.Artifacts, subject.Chunk(d, 0)))
		}
		hear = append(hear, subject.Declaration(n), subject.NodeTool(subject.NodeEngine, "show", n), "$SRV.PING.node-engine."+q.Name)
	case grant.Invitation:
		publish = append(publish, subject.Enrol(q.Name))
	case grant.Instance:
		publish = append(publish, subject.DirectGet(subject.Assignments, q.Membership.Self))
		hear = append(hear, q.Membership.Self)
		for _, v := range q.Membership.Serves {
			if v.At != "" {
				publish, hear = append(publish, v.At), append(hear, v.At)
			}
			if v.Plain != "" {
				publish, hear = append(publish, v.Plain), append(hear, v.Plain)
			}
		}
		for _, e := range q.Membership.Says {
			publish = append(publish, e.At)
		}
	case grant.Coordinator:
		publish = append(publish, Nobodys()...)
	}
	return publish, hear
}

// Nobodys are what the coordinator may at most: streams, consumers, buckets, acknowledgements, and what is said
// in its name.
func Nobodys() []string {
	return []string{"$JS.API.INFO", "$JS.API.STREAM.DELETE.DECLARATIONS", "$JS.API.STREAM.PURGE.CONTROL", "$JS.API.STREAM.INFO.ASSIGNMENTS", "$JS.API.STREAM.CREATE.MINE",
		"$JS.API.CONSUMER.CREATE.EVENTS.x.mesh.module.a.event.added.n1", "$JS.API.CONSUMER.MSG.NEXT.CONTROL.coordinator", "$JS.ACK.CONTROL.coordinator.1.1.1.1.1", "$JS.ACK._.x.CONTROL.coordinator.1.1.1.1.1",
		"$JS.API.DIRECT.GET.ASSIGNMENTS", "$JS.API.DIRECT.GET.DECLARATIONS", "$JS.FC.EVENTS.x", "$KV.mesh-controller_calls.x", "$O.x.C.y", "$SYS.REQ.SERVER.PING",
		subject.Declaration("n1"), subject.Declaration("a"), subject.Membership("n1", "a"), subject.SeatEvent(subject.Controller, "node-runs", ""), subject.Tool(subject.Controller, "operator-issue")}
}

// Example is a principal of a kind, for tables.
type Example struct {
	Who       string
	Principal grant.Principal
}

// Examples are one of each kind.
func Examples() []Example {
	node := Node("db1", fmt.Sprintf("%064x", 171))
	viewer := grant.Principal{Kind: grant.Operator, Name: "eve", Verbs: []subject.Verb{"status"}, OnNodes: []grant.OnNode{{Seat: subject.NodeEngine, Verb: "show"}}, OfModules: []grant.OfModule{{Module: "notes", Verb: "list"}}}
	operator := viewer
	operator.Name, operator.OfModules, operator.EveryTool, operator.Upload = "ada", nil, true, true
	operator.Verbs = []subject.Verb{"push", "status"}
	instance := membership.Make(membership.Of{Mesh: "m", Node: "db1", Module: "notes", Tools: []subject.Verb{"list"}, Events: []subject.Event{"added"}, Invokes: []membership.Reach{"seat:mesh-controller.status", "module:backup.start"}, Plain: true})
	return []Example{
		{"the coordinator", grant.Principal{Kind: grant.Coordinator}},
		{"the machine `db1`", node},
		{"the instance of `notes` on `db1`, which serves `list`, says `added` and invokes two", Instance(instance)},
		{"the viewer `eve` (of its verbs, one each)", viewer},
		{"the operator `ada` (of its verbs, some)", operator},
		{"the invitation `k3v9`", Invitation("k3v9")},
	}
}

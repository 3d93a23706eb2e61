// Package verbs answers the seat mesh-controller: one handler for each verb of the protocol, a function
// of values over the records, the composer and the pushes. Who asks is known by the key the bus
// authenticated (CAL-0) and mapped to an operator and a role here too, besides the bus's permissions.
// Arguments are checked before anything runs (SEA-10); refusals are answers.
//
// Run owns the goroutines of asks under way.
package verbs

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go/jetstream"

	"mesh/coordinator/calls"
	"mesh/coordinator/compose"
	"mesh/coordinator/hear"
	"mesh/coordinator/issue"
	"mesh/coordinator/push"
	"mesh/coordinator/records"
	"mesh/shared/bus"
	"mesh/shared/clock"
	"mesh/shared/controller"
	"mesh/shared/discovery"
	"mesh/shared/engine"
	"mesh/shared/grant"
	"mesh/shared/refusal"
	"mesh/shared/subject"
	"mesh/shared/verb"
)

// workers is how many asks of one verb run side by side.
const workers = 16

// Config is what a Server works with.
type Config struct {
	Conn     *bus.Conn
	Records  *records.Store
	Composer *compose.Composer
	Push     *push.Engine
	Issuer   *issue.Issuer
	Calls    *calls.Keeper
	Hear     *hear.Hearer
	// Artifacts looks after what is on the bus by digest.
	Artifacts artifacts
	// Users puts the bus's user list in force: Kick soon, Now before it returns.
	Users users
	Clock clock.Clock
	Log   *slog.Logger
	// Version is the coordinator's.
	Version string
	// Served is called once every verb is answered.
	Served func()
}

type users interface {
	Kick()
	Now(ctx context.Context) error
}

// Server answers.
type Server struct {
	cfg   Config
	js    jetstream.JetStream
	tools []controller.Tool
	// discovery says which verbs are answered here (SEA-8).
	discovery *discovery.Service
	turn      chan struct{} // capacity 1: whose turn it is to compose and start a push
}

// New makes a Server; Run starts it.
func New(c Config) (*Server, error) {
	js, err := jetstream.New(c.Conn.NATS())
	if err != nil {
		return nil, fmt.Errorf("serve %s: %w", subject.Controller, err)
	}
	s := &Server{cfg: c, js: js, turn: make(chan struct{}, 1)}
	for _, v := range controller.Table() {
		t, err := Tool(v)
		if err != nil {
			return nil, err
		}
		s.tools = append(s.tools, t)
	}
	if s.discovery, err = s.spoken(); err != nil {
		return nil, err
	}
	onNodes, err := nodeTools()
	if err != nil {
		return nil, err
	}
	s.tools = append(s.tools, onNodes...)
	return s, nil
}

// Run answers until ctx ends, and waits for answers under way.
func (s *Server) Run(ctx context.Context) error {
	handlers := s.handlers()
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	table := controller.Table()
	spoken := s.discovery.Work(s.cfg.Conn)
	errs := make(chan error, len(table)+len(spoken))
	var waiting atomic.Int32
	waiting.Store(int32(len(table)))
	for _, v := range table {
		h, ok := handlers[v.Name]
		if !ok {
			return fmt.Errorf("verb %s of %s has no handler", v.Name, subject.Controller)
		}
		var once sync.Once
		served := func() {
			once.Do(func() {
				if waiting.Add(-1) == 0 && s.cfg.Served != nil {
					s.cfg.Served()
				}
			})
		}
		wg.Add(1)
		go func() { // ends with ctx
			defer wg.Done()
			errs <- verb.Serve(ctx, s.cfg.Conn, subject.Tool(subject.Controller, v.Name), string(subject.Controller), workers, s.cfg.Log, s.discovery.Counted(subject.Controller, v.Name, h), served)
		}()
	}
	for _, work := range spoken {
		wg.Go(func() { errs <- work(ctx) }) // ends with ctx
	}
	for range cap(errs) {
		if err := <-errs; err != nil {
			return fmt.Errorf("serve %s: %w", subject.Controller, err)
		}
	}
	return nil
}

func (s *Server) handlers() map[subject.Verb]verb.Handler {
	return map[subject.Verb]verb.Handler{
		controller.Status:           handle(s, controller.Status, s.status),
		controller.Nodes:            handle(s, controller.Nodes, s.nodes),
		controller.NodeShow:         handle(s, controller.NodeShow, s.node),
		controller.NodeInvite:       handle(s, controller.NodeInvite, s.invite),
		controller.Invitations:      handle(s, controller.Invitations, s.invitations),
		controller.InvitationRevoke: handle(s, controller.InvitationRevoke, s.revokeInvitation),
		controller.NodeRemove:       handle(s, controller.NodeRemove, s.removeNode),
		controller.NodeSet:          handle(s, controller.NodeSet, s.setNode),
		controller.NodeConvergence:  handle(s, controller.NodeConvergence, s.convergence),
		controller.NodeConverge:     handle(s, controller.NodeConverge, s.converge),
		controller.NodeUnconverge:   handle(s, controller.NodeUnconverge, s.unconverge),
		controller.NodeKeep:         handle(s, controller.NodeKeep, s.keep),
		controller.HeldThings:       handle(s, controller.HeldThings, s.held),
		controller.Take:             handle(s, controller.Take, s.take),
		controller.GiveBack:         handle(s, controller.GiveBack, s.giveBack),
		controller.Modules:          handle(s, controller.Modules, s.modules),
		controller.ModuleShow:       handle(s, controller.ModuleShow, s.module),
		controller.ModuleRegister:   handle(s, controller.ModuleRegister, s.register),
		controller.ArtifactReady:    handle(s, controller.ArtifactReady, s.artifactReady),
		controller.Artifacts:        handle(s, controller.Artifacts, s.listArtifacts),
		controller.ArtifactVerify:   handle(s, controller.ArtifactVerify, s.verifyArtifacts),
		controller.Assign:           handle(s, controller.Assign, s.assign),
		controller.Unassign:         handle(s, controller.Unassign, s.unassign),
		controller.UnassignWithData: handle(s, controller.UnassignWithData, s.unassignWithData),
		controller.Plan:             handle(s, controller.Plan, s.plan),
		controller.PushSend:         handle(s, controller.PushSend, s.push),
		controller.PushShow:         handle(s, controller.PushShow, s.pushShow),
		controller.Seats:            handle(s, controller.Seats, s.seats),
		controller.Tools:            handle(s, controller.Tools, s.listTools),
		controller.OperatorIssue:    handle(s, controller.OperatorIssue, s.issue),
		controller.Operators:        handle(s, controller.Operators, s.operators),
		controller.OperatorRevoke:   handle(s, controller.OperatorRevoke, s.revokeOperator),
		controller.Changes:          handle(s, controller.Changes, s.changes),
		controller.Calls:            handle(s, controller.Calls, s.calls),
		controller.CallShow:         handle(s, controller.CallShow, s.callShow),
	}
}

// handle binds fn to verb v: who asks, whether they may, and the arguments are checked before it runs.
// After an act the user list is looked at again.
func handle[A, R any](s *Server, v subject.Verb, fn func(context.Context, records.By, A) (R, error)) verb.Handler {
	line, ok := controller.Find(v)
	if !ok || reflect.TypeOf(line.Ask) != reflect.TypeFor[A]() || reflect.TypeOf(line.Answer) != reflect.TypeFor[R]() {
		panic(fmt.Sprintf("the handler of %s does not have the types of the protocol", v))
	}
	work := bound(s, line, fn)
	return func(ctx context.Context, caller verb.Caller, args []byte) (any, error) {
		who, err := s.authorize(ctx, caller.Key, line)
		call := calls.Ask{Caller: who.Who, Verb: string(v), Args: args, Acts: line.Level != controller.Read, Secret: v == controller.NodeInvite}
		if err != nil {
			if call.Caller == "" {
				call.Caller = "key " + caller.Key
			}
			s.cfg.Calls.Refused(call, err)
			return nil, err
		}
		work := func(ctx context.Context) (any, error) { return work(ctx, who, caller, args) }
		if v == controller.Calls || v == controller.CallShow || v == controller.PushShow { // they look on, again and again
			return work(ctx)
		}
		return s.cfg.Calls.Do(ctx, call, work)
	}
}

// bound is fn with its arguments checked before it runs.
func bound[A, R any](s *Server, line controller.Verb, fn func(context.Context, records.By, A) (R, error)) func(context.Context, records.By, verb.Caller, []byte) (any, error) {
	return func(ctx context.Context, who records.By, caller verb.Caller, args []byte) (any, error) {
		if err := verb.Required(reflect.TypeFor[A](), args); err != nil {
			return nil, err
		}
		answer, err := verb.Typed(func(ctx context.Context, _ verb.Caller, a A) (R, error) {
			if err := reason(a); err != nil {
				var none R
				return none, err
			}
			return fn(ctx, who, a)
		})(ctx, caller, args)
		if line.Level != controller.Read && err == nil {
			s.cfg.Users.Kick()
		}
		return answer, records.Told(err)
	}
}

// mostWhy bounds a reason in bytes: the journal keeps it for ever, and shows a thousand at once.
const mostWhy = 1000

// reason refuses a reason without end.
func reason(ask any) error {
	f := reflect.ValueOf(ask).FieldByName("Why")
	if f.IsValid() && f.Len() > mostWhy {
		return refusal.Newf("the arguments", "say it shorter, or where it is written", "why: it has %d bytes, at most %d are kept", f.Len(), mostWhy)
	}
	return nil
}

// authorize names the caller and refuses one whose role does not take the verb. The bus does so too; a
// person revoked a moment ago is stopped here before the list is reloaded, and one revoked while the verb
// is under way by the records.
func (s *Server) authorize(ctx context.Context, key string, v controller.Verb) (who records.By, err error) {
	what := "the verb " + string(v.Name)
	if key == "" {
		return records.By{}, refusal.New(what, "the bus does not say who asks", "ask with an operator's credential")
	}
	all, err := s.cfg.Records.Operators(ctx)
	if err != nil {
		return records.By{}, err
	}
	for _, o := range all {
		if o.Key != key || !o.Revoked.IsZero() {
			continue
		}
		if role := RoleOf(o.Role); !role.Covers(v.Least) {
			return records.By{}, refusal.Newf(what, "ask somebody who may, or an admin for another role", "%s is %s, and it takes %s", o.Name, role, v.Least)
		}
		return records.By{Who: "operator-" + o.Name, Key: key}, nil
	}
	if who, ok, err := s.authorizeInstance(ctx, key, v); ok || err != nil {
		return who, err
	}
	return records.By{}, refusal.New(what, "the asker is no operator of this mesh (any more)", "ask an admin for a credential: mesh-coordinator operator issue <name>")
}

// by is who acts, for the journal.
func by(who records.By, why string) records.By { who.Why = why; return who }

// RoleOf is a role of the records in the protocol's words.
func RoleOf(r records.Role) controller.Role {
	switch r {
	case records.RoleAdmin:
		return controller.Admin
	case records.RoleOperate:
		return controller.Operator
	case records.RoleRead:
		return controller.Viewer
	}
	return ""
}

// recordRole is the other way; what is no role is none, and the records refuse it.
func recordRole(r controller.Role) records.Role {
	switch r {
	case controller.Admin:
		return records.RoleAdmin
	case controller.Operator:
		return records.RoleOperate
	case controller.Viewer:
		return records.RoleRead
	}
	return ""
}

// Rights are what a role of the records may do on the bus: the protocol's table says.
func Rights(r records.Role) (verbs []subject.Verb, upload bool) {
	role := RoleOf(r)
	return role.Verbs(), role.Upload()
}

// OnNodes are what a role of the records may ask of every machine: the tables of the node seats say.
func OnNodes(r records.Role) (out []grant.OnNode) {
	role := RoleOf(r)
	for _, p := range engine.Protocols() {
		for _, v := range p.Verbs {
			if role.Covers(v.Least) {
				out = append(out, grant.OnNode{Seat: p.Seat, Verb: v.Name})
			}
		}
	}
	return out
}

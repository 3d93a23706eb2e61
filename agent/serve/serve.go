// Package serve answers the verbs of the node seats that the agent holds for its machine, each at
// mesh.seat.<seat>.tool.<verb>.<node>, and discovery of them in the NATS services format (SEA-8). It is the
// one place between the bus and the functions that answer: arguments are decoded strictly and checked
// before anything runs (SEA-10), an ask is bounded in size, time and number, a verb this agent does not
// have is refused at once, and what touches the machine is logged with the key of who asked. Any package of
// the agent adds a verb by a line in the seat's table (shared/engine) and a Bind where the agent is wired:
//
//	serve.Bind(subject.NodeEngine, engine.Restart, m.restart)
//
// Run owns the goroutines of asks under way.
package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"

	"mesh/shared/bus"
	"mesh/shared/clock"
	"mesh/shared/controller"
	"mesh/shared/discovery"
	"mesh/shared/engine"
	"mesh/shared/metrics"
	"mesh/shared/refusal"
	"mesh/shared/subject"
	"mesh/shared/verb"
)

const (
	// workers is how many asks of one seat run side by side.
	workers = 16
	// MostArguments bounds the arguments of an ask in bytes.
	MostArguments = 64 << 10
	// MostAnswer bounds an answer in bytes: what several machines are asked for has to fit their links.
	MostAnswer = 1 << 20
)

// Verb is one verb and what answers it.
type Verb struct {
	seat   subject.Seat
	line   controller.Verb
	handle verb.Handler
	err    error // of Bind
}

// Bind has fn answer the verb called name of seat. The verb must stand in the seat's table with fn's types;
// New refuses it otherwise.
func Bind[A, R any](seat subject.Seat, name subject.Verb, fn func(ctx context.Context, who verb.Caller, args A) (R, error)) Verb {
	line, ok := engine.Find(seat, name)
	v := Verb{seat: seat, line: line}
	switch {
	case !ok:
		v.err = fmt.Errorf("the verb %s of %s is in no table of shared/engine", name, seat)
	case reflect.TypeOf(line.Ask) != reflect.TypeFor[A]() || reflect.TypeOf(line.Answer) != reflect.TypeFor[R]():
		v.err = fmt.Errorf("what answers %s of %s does not have the types of the protocol", name, seat)
	}
	typed := verb.Typed(fn)
	v.handle = func(ctx context.Context, who verb.Caller, args []byte) (any, error) {
		if err := verb.Required(reflect.TypeFor[A](), args); err != nil {
			return nil, err
		}
		return typed(ctx, who, args)
	}
	return v
}

// Config is what a Server works with.
type Config struct {
	Node  subject.Node
	Conn  *bus.Conn
	Verbs []Verb
	// Version is the agent's.
	Version string
	Clock   clock.Clock
	Log     *slog.Logger
}

// Server answers.
type Server struct {
	cfg       Config
	discovery *discovery.Service
}

// New makes a Server; Run starts it.
func New(c Config) (*Server, error) {
	for i, v := range c.Verbs {
		if v.err != nil {
			return nil, fmt.Errorf("serve verbs: %w", v.err)
		}
		if slices.ContainsFunc(c.Verbs[:i], func(o Verb) bool { return o.seat == v.seat && o.line.Name == v.line.Name }) {
			return nil, fmt.Errorf("serve verbs: %s of %s is bound twice", v.line.Name, v.seat)
		}
	}
	schemas, err := engine.Schemas()
	if err != nil {
		return nil, err
	}
	d := discovery.Config{Name: string(subject.NodeEngine), ID: string(c.Node), Version: c.Version, Description: "the agent of " + string(c.Node), Clock: c.Clock}
	for _, v := range c.Verbs {
		d.Endpoints = append(d.Endpoints, discovery.Endpoint{Seat: v.seat, Line: v.line, At: subject.NodeTool(v.seat, v.line.Name, c.Node), Schema: schemas[v.seat][v.line.Name].Ask})
	}
	s := &Server{cfg: c}
	s.discovery, err = discovery.New(d)
	return s, err
}

// Metrics are the numbers of the verbs.
func (s *Server) Metrics() []metrics.Metric { return s.discovery.Metrics() }

// Run answers until ctx ends, and waits for answers under way.
func (s *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	work := s.discovery.Work(s.cfg.Conn)
	for _, seat := range s.seats() {
		work = append(work, func(ctx context.Context) error {
			return verb.ServeAll(ctx, s.cfg.Conn, subject.NodeTool(seat, "*", s.cfg.Node), "", workers, s.cfg.Log, s.route)
		})
	}
	var wg sync.WaitGroup
	errs := make([]error, len(work))
	for i, w := range work {
		wg.Go(func() { // ends with ctx
			if errs[i] = w(ctx); errs[i] != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (s *Server) seats() (out []subject.Seat) {
	for _, v := range s.cfg.Verbs {
		if !slices.Contains(out, v.seat) {
			out = append(out, v.seat)
		}
	}
	return out
}

// route finds what answers the subject mesh.seat.<seat>.tool.<verb>.<node>.
func (s *Server) route(sub string) verb.Handler {
	tokens := strings.Split(sub, ".")
	if len(tokens) == 6 {
		for i := range s.cfg.Verbs {
			if v := &s.cfg.Verbs[i]; string(v.seat) == tokens[2] && string(v.line.Name) == tokens[4] {
				return s.bounded(v)
			}
		}
	}
	return func(context.Context, verb.Caller, []byte) (any, error) {
		return nil, refusal.Newf("the verb "+sub, "upgrade the agent there, or see what it answers: mesh-coordinator tool list", "the agent of %s (%s) does not have it", s.cfg.Node, s.cfg.Version)
	}
}

// bounded is v's handler with the bounds of an ask, the log line of an act and the numbers of discovery.
func (s *Server) bounded(v *Verb) verb.Handler {
	return s.discovery.Counted(v.seat, v.line.Name, func(ctx context.Context, who verb.Caller, args []byte) (any, error) {
		if len(args) > MostArguments {
			return nil, refusal.Newf("the arguments", "ask for less at once", "they have %d bytes, at most %d are read", len(args), MostArguments)
		}
		if v.line.Level != controller.Read {
			s.cfg.Log.Info("asked to act", "seat", v.seat, "verb", v.line.Name, "caller", who.Key)
		}
		answer, err := v.handle(ctx, who, args)
		if err != nil {
			return nil, err
		}
		return fit(answer)
	})
}

// fit encodes answer, and refuses one that is too large.
func fit(answer any) (json.RawMessage, error) {
	b, err := json.Marshal(answer)
	if err != nil {
		return nil, fmt.Errorf("encode the answer: %w", err)
	}
	if len(b) > MostAnswer {
		return nil, refusal.Newf("the answer", "ask for less, or look on the machine: mesh-agent show", "it has %d bytes, at most %d travel", len(b), MostAnswer)
	}
	return b, nil
}

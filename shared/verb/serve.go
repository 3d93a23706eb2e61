package verb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"mesh/shared/bus"
	"mesh/shared/refusal"
)

// waiting is how many asks may wait for each one under way.
const waiting = 16

// Serve answers on subject at (in queue) until ctx ends, and waits for answers under way. Asks run side by
// side, at most workers of them; some more wait their turn. No ask is left without an answer: one that
// finds the line full, waits too long or comes while the holder stops is refused, and one whose handler
// panics or does not end in time has failed. served, when given, is called each time the bus hands asks on.
func Serve(ctx context.Context, c *bus.Conn, at, queue string, workers int, log *slog.Logger, h Handler, served ...func()) error {
	return ServeAll(ctx, c, at, queue, workers, log, func(string) Handler { return h }, served...)
}

// ServeAll is Serve for the many verbs below a subject with wildcards: route names the handler of each
// subject an ask came on, and must not block.
func ServeAll(ctx context.Context, c *bus.Conn, at, queue string, workers int, log *slog.Logger, route func(subject string) Handler, served ...func()) error {
	s := newServer(workers, log, route)
	defer s.stop()
	return c.Answer(ctx, at, queue, func(m *nats.Msg) { s.take(ctx, m) }, func() {
		for _, fn := range served {
			fn()
		}
	})
}

type server struct {
	route func(subject string) Handler
	log   *slog.Logger
	bound time.Duration
	line  chan struct{} // capacity: all who are here
	room  chan struct{} // capacity workers: those worked on

	mu      sync.Mutex // guards stopped, and lets nobody in after it is set
	stopped bool
	here    sync.WaitGroup
}

func newServer(workers int, log *slog.Logger, route func(string) Handler) *server {
	return &server{route: route, log: log, bound: Bound, line: make(chan struct{}, workers*(1+waiting)), room: make(chan struct{}, workers)}
}

// take never blocks: it runs on the goroutine that hears the asks.
func (s *server) take(ctx context.Context, m *nats.Msg) {
	if !Answerable(m.Reply) {
		s.log.Debug("verb: an ask wants its answer where no asker listens; dropped", "subject", m.Subject, "reply", m.Reply)
		return
	}
	select {
	case s.line <- struct{}{}:
	default:
		s.respond(m, Reply{Refused: busy})
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		<-s.line
		s.respond(m, Reply{Refused: stopping})
		return
	}
	s.here.Add(1)
	go func() { // ends with its handler, which ends within the bound
		defer func() { <-s.line; s.here.Done() }()
		s.answer(ctx, m)
	}()
}

func (s *server) stop() {
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	s.here.Wait()
}

var (
	busy     = refusal.Of(refusal.New("the ask", "its holder has too many to answer", "ask again in a moment"))
	stopping = refusal.Of(refusal.New("the ask", "its holder is stopping", "ask again in a moment"))
)

// answer waits for room and works. What is under way when ctx ends is finished.
func (s *server) answer(ctx context.Context, m *nats.Msg) {
	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.bound)
	defer cancel()
	select {
	case s.room <- struct{}{}:
		defer func() { <-s.room }()
	case <-ctx.Done():
	case <-work.Done():
		s.respond(m, Reply{Refused: busy})
		return
	}
	if ctx.Err() != nil {
		s.respond(m, Reply{Refused: stopping})
		return
	}
	done := make(chan Reply, 1)
	go func() { // answer waits for it
		r := Reply{Failed: broken}
		defer func() { done <- r }()
		r = s.run(work, m)
	}()
	select {
	case r := <-done:
		s.respond(m, r)
	case <-work.Done():
		s.log.Warn("verb takes too long", "subject", m.Subject, "bound", s.bound)
		s.respond(m, Reply{Failed: fmt.Sprintf("it takes longer than %v, and may still be done", s.bound)})
		<-done
	}
}

// Answerable reports whether an asker can listen at reply. The bus does not check it: an answer sent
// elsewhere would be said in this holder's name (facts/bus.md §2). What no answer was asked for is no ask.
func Answerable(reply string) bool {
	return strings.HasPrefix(reply, acrossAccounts) || strings.HasPrefix(reply, "_INBOX.")
}

// acrossAccounts begins the reply of an ask from another account: the server makes it, and lets no client
// name one.
const acrossAccounts = "_R_."

// broken is what a caller hears of a fault in the program; the log has the rest.
const broken = "a fault in the program of its holder, whose log says more"

func (s *server) run(ctx context.Context, m *nats.Msg) (r Reply) {
	who := callerOf(m)
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("verb panicked", "subject", m.Subject, "caller", who.Key, "err", fmt.Sprint(p), "stack", string(debug.Stack()))
			r = Reply{Failed: broken}
		}
	}()
	v, err := s.route(m.Subject)(ctx, who, m.Data)
	if err == nil {
		r.Answer, err = json.Marshal(v)
	}
	if on := (Running{}); errors.As(err, &on) {
		return Reply{Running: on.Call}
	}
	if err != nil {
		r = Reply{Refused: refusal.Of(err)}
		if r.Refused == nil {
			r.Failed = err.Error()
		}
		s.log.Info("verb", "subject", m.Subject, "caller", who.Key, "err", err)
	}
	return r
}

func (s *server) respond(m *nats.Msg, r Reply) {
	b, err := json.Marshal(r)
	if err == nil {
		err = m.Respond(b)
	}
	if errors.Is(err, nats.ErrMaxPayload) {
		s.log.Warn("verb: the answer is too large for the bus", "subject", m.Subject, "bytes", len(b))
		s.respond(m, Reply{Failed: fmt.Sprintf("its answer has %d bytes, more than the bus takes", len(b))})
		return
	}
	if err != nil && !errors.Is(err, nats.ErrMsgNoReply) {
		s.log.Warn("verb: no answer could be sent", "subject", m.Subject, "err", err)
	}
}

// Package discovery answers who serves which verbs, in the NATS services format (ADR-32), for one service:
// its name is the seat's, its instance says who holds it, and it has an endpoint for each verb with
// description and schema (SEA-8). nats.go's micro package serves verbs too, in its own way and with a
// subscription for each; here verbs are served by shared/verb, and this only speaks of them.
//
// A Service owns no goroutine; Work gives the functions that follow the subjects until their context ends.
package discovery

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"mesh/shared/bus"
	"mesh/shared/clock"
	"mesh/shared/controller"
	"mesh/shared/metrics"
	"mesh/shared/subject"
	"mesh/shared/verb"
)

// Endpoint is one verb.
type Endpoint struct {
	Seat subject.Seat
	Line controller.Verb
	// At is the subject it is asked on, Queue its queue group; empty for none.
	At, Queue string
	// Schema is the JSON schema of its argument.
	Schema json.RawMessage
}

// Config says what is spoken of.
type Config struct {
	// Name is the seat's, ID the holder's, Version the program's.
	Name, ID, Version string
	Description       string
	Endpoints         []Endpoint
	Clock             clock.Clock
}

// Service answers discovery.
type Service struct {
	id        micro.ServiceIdentity
	clk       clock.Clock
	endpoints []Endpoint
	ping      []byte
	info      []byte

	mu      sync.Mutex // guards the fields below
	started time.Time
	stats   []*micro.EndpointStats
}

// New makes a Service.
func New(c Config) (*Service, error) {
	s := &Service{clk: c.Clock, endpoints: c.Endpoints, started: c.Clock.Now().UTC(),
		id: micro.ServiceIdentity{Name: c.Name, ID: c.ID, Version: semver(c.Version), Metadata: map[string]string{"holder": c.ID, "program": c.Version}}}
	info := micro.Info{ServiceIdentity: s.id, Type: micro.InfoResponseType, Description: c.Description, Endpoints: []micro.EndpointInfo{}}
	for _, e := range c.Endpoints {
		var schema bytes.Buffer
		if err := json.Compact(&schema, e.Schema); err != nil {
			return nil, fmt.Errorf("the schema of %s of %s: %w", e.Line.Name, e.Seat, err)
		}
		name := string(e.Line.Name)
		info.Endpoints = append(info.Endpoints, micro.EndpointInfo{Name: name, Subject: e.At, QueueGroup: e.Queue, Metadata: map[string]string{
			"seat": string(e.Seat), "description": e.Line.Description, "schema": schema.String(), "level": string(e.Line.Level), "role": string(e.Line.Least),
		}})
		s.stats = append(s.stats, &micro.EndpointStats{Name: name, Subject: e.At, QueueGroup: e.Queue})
	}
	var err error
	if s.info, err = json.Marshal(info); err != nil {
		return nil, fmt.Errorf("discovery: %w", err)
	}
	if s.ping, err = json.Marshal(micro.Ping{ServiceIdentity: s.id, Type: micro.PingResponseType}); err != nil {
		return nil, fmt.Errorf("discovery: %w", err)
	}
	return s, nil
}

// semver is version as the format wants it: three numbers, and what follows them.
func semver(version string) string {
	version, _, _ = strings.Cut(strings.TrimPrefix(version, "v"), " ")
	var a, b, c int
	if n, err := fmt.Sscanf(version, "%d.%d.%d", &a, &b, &c); n == 3 && err == nil {
		return version
	}
	return "0.0.0"
}

// Work follows each of the subjects on conn; each function runs until its context ends.
func (s *Service) Work(conn *bus.Conn) (out []func(context.Context) error) {
	for _, at := range subject.Discovery(s.id.Name, s.id.ID) {
		out = append(out, func(ctx context.Context) error { return conn.Follow(ctx, at, "", s.answer, nil) })
	}
	return out
}

// answer runs on a subscription's goroutine. An answer that cannot be sent is missed by who asked; they
// gather what comes in their time.
func (s *Service) answer(m *nats.Msg) {
	if !verb.Answerable(m.Reply) {
		return
	}
	what, _, _ := strings.Cut(strings.TrimPrefix(m.Subject, "$SRV."), ".")
	switch what {
	case "PING":
		_ = m.Respond(s.ping)
	case "INFO":
		_ = m.Respond(s.info)
	case "STATS":
		if b, err := s.numbers(); err == nil {
			_ = m.Respond(b)
		}
	}
}

func (s *Service) numbers() ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return json.Marshal(micro.Stats{ServiceIdentity: s.id, Type: micro.StatsResponseType, Started: s.started, Endpoints: s.stats})
}

// Counted is h, whose asks are counted as those of the verb called name of seat.
func (s *Service) Counted(seat subject.Seat, name subject.Verb, h verb.Handler) verb.Handler {
	i := slices.IndexFunc(s.endpoints, func(e Endpoint) bool { return e.Seat == seat && e.Line.Name == name })
	if i < 0 {
		return h
	}
	return func(ctx context.Context, who verb.Caller, args []byte) (any, error) {
		began := s.clk.Now()
		answer, err := h(ctx, who, args)
		s.count(s.stats[i], s.clk.Now().Sub(began), err)
		return answer, err
	}
}

// mostError bounds a kept error in bytes.
const mostError = 300

func (s *Service) count(e *micro.EndpointStats, took time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.NumRequests++
	e.ProcessingTime += took
	e.AverageProcessingTime = e.ProcessingTime / time.Duration(e.NumRequests)
	if err != nil {
		e.NumErrors++
		e.LastError = strings.ToValidUTF8(err.Error()[:min(len(err.Error()), mostError)], "")
	}
}

// Metrics are the numbers of the verbs (OPS-4).
func (s *Service) Metrics() []metrics.Metric {
	asks := metrics.Metric{Name: "mesh_verb_asks_total", Help: "Asks of a verb.", Kind: metrics.Counter}
	errs := metrics.Metric{Name: "mesh_verb_errors_total", Help: "Asks of a verb that were refused or failed.", Kind: metrics.Counter}
	took := metrics.Metric{Name: "mesh_verb_seconds_total", Help: "Time spent answering a verb.", Kind: metrics.Counter}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, e := range s.stats {
		labels := []string{"seat", string(s.endpoints[i].Seat), "verb", e.Name}
		asks.Samples = append(asks.Samples, metrics.Sample{Labels: labels, Value: float64(e.NumRequests)})
		errs.Samples = append(errs.Samples, metrics.Sample{Labels: labels, Value: float64(e.NumErrors)})
		took.Samples = append(took.Samples, metrics.Sample{Labels: labels, Value: e.ProcessingTime.Seconds()})
	}
	return []metrics.Metric{asks, errs, took}
}

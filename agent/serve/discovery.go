package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"mesh/shared/bus"
	"mesh/shared/engine"
	"mesh/shared/metrics"
	"mesh/shared/refusal"
	"mesh/shared/subject"
	"mesh/shared/verb"
)

// discovery answers who serves which verbs, in the NATS services format (ADR-32): one service named after
// the seat node-engine, whose instance is the node, with an endpoint for each verb of every seat.
type discovery struct {
	id   micro.ServiceIdentity
	ping []byte
	info []byte

	mu      sync.Mutex // guards the fields below
	started time.Time
	stats   []*micro.EndpointStats
}

func newDiscovery(c Config) (*discovery, error) {
	d := &discovery{started: c.Clock.Now().UTC(), id: micro.ServiceIdentity{Name: string(subject.NodeEngine), ID: string(c.Node), Version: semver(c.Version), Metadata: map[string]string{"node": string(c.Node), "agent": c.Version}}}
	schemas, err := engine.Schemas()
	if err != nil {
		return nil, err
	}
	info := micro.Info{ServiceIdentity: d.id, Type: micro.InfoResponseType, Description: "the agent of " + string(c.Node), Endpoints: []micro.EndpointInfo{}}
	for _, v := range c.Verbs {
		var schema bytes.Buffer
		if err := json.Compact(&schema, schemas[v.seat][v.line.Name].Ask); err != nil {
			return nil, fmt.Errorf("the schema of %s of %s: %w", v.line.Name, v.seat, err)
		}
		at, name := subject.NodeTool(v.seat, v.line.Name, c.Node), string(v.line.Name)
		info.Endpoints = append(info.Endpoints, micro.EndpointInfo{Name: name, Subject: at, Metadata: map[string]string{
			"seat": string(v.seat), "description": v.line.Description, "schema": schema.String(), "level": string(v.line.Level), "role": string(v.line.Least),
		}})
		d.stats = append(d.stats, &micro.EndpointStats{Name: name, Subject: at})
	}
	if d.info, err = json.Marshal(info); err != nil {
		return nil, fmt.Errorf("discovery: %w", err)
	}
	if d.ping, err = json.Marshal(micro.Ping{ServiceIdentity: d.id, Type: micro.PingResponseType}); err != nil {
		return nil, fmt.Errorf("discovery: %w", err)
	}
	return d, nil
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

// work follows each of the subjects.
func (d *discovery) work(conn *bus.Conn) (out []func(context.Context) error) {
	for _, at := range subject.Discovery(d.id.Name, d.id.ID) {
		out = append(out, func(ctx context.Context) error { return conn.Follow(ctx, at, "", d.answer, nil) })
	}
	return out
}

// answer runs on a subscription's goroutine. An answer that cannot be sent is missed by who asked; they
// gather what comes in their time.
func (d *discovery) answer(m *nats.Msg) {
	if !verb.Answerable(m.Reply) {
		return
	}
	what, _, _ := strings.Cut(strings.TrimPrefix(m.Subject, "$SRV."), ".")
	switch what {
	case "PING":
		_ = m.Respond(d.ping)
	case "INFO":
		_ = m.Respond(d.info)
	case "STATS":
		if b, err := d.numbers(); err == nil {
			_ = m.Respond(b)
		}
	}
}

func (d *discovery) numbers() ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return json.Marshal(micro.Stats{ServiceIdentity: d.id, Type: micro.StatsResponseType, Started: d.started, Endpoints: d.stats})
}

// count notes one ask of v.
func (d *discovery) count(v *Verb, took time.Duration, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.stats {
		if s.Name != string(v.line.Name) || !strings.HasPrefix(s.Subject, "mesh.seat."+string(v.seat)+".") {
			continue
		}
		s.NumRequests++
		s.ProcessingTime += took
		s.AverageProcessingTime = s.ProcessingTime / time.Duration(s.NumRequests)
		if err != nil {
			s.NumErrors++
			s.LastError = err.Error()[:min(len(err.Error()), mostError)]
		}
	}
}

// Metrics are the numbers of the verbs (OPS-4).
func (s *Server) Metrics() []metrics.Metric {
	asks := metrics.Metric{Name: "mesh_verb_asks_total", Help: "Asks of a verb.", Kind: metrics.Counter}
	errs := metrics.Metric{Name: "mesh_verb_errors_total", Help: "Asks of a verb that were refused or failed.", Kind: metrics.Counter}
	took := metrics.Metric{Name: "mesh_verb_seconds_total", Help: "Time spent answering a verb.", Kind: metrics.Counter}
	d := s.discovery
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, e := range d.stats {
		labels := []string{"seat", string(s.cfg.Verbs[i].seat), "verb", e.Name}
		asks.Samples = append(asks.Samples, metrics.Sample{Labels: labels, Value: float64(e.NumRequests)})
		errs.Samples = append(errs.Samples, metrics.Sample{Labels: labels, Value: float64(e.NumErrors)})
		took.Samples = append(took.Samples, metrics.Sample{Labels: labels, Value: e.ProcessingTime.Seconds()})
	}
	return []metrics.Metric{asks, errs, took}
}

// mostError bounds a kept error in bytes.
const mostError = 300

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

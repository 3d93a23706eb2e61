package show

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"mesh/agent/state"
	"mesh/shared/order"
	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/subject"
)

// The parts a machine is remembered by (NOD-15); each module is one more, "module/<name>".
const (
	partDeclared = "declared"
	partLinks    = "links"
	partFilter   = "filter"
	partLeft     = "left"
	partStrays   = "strays"
	partVersions = "versions"
	partAgent    = "agent"
	partModule   = "module/"
)

// The most of a list that is remembered: what is beyond is counted.
const (
	maxThenRules = 500
	maxThenThing = 100
)

type thenLinks struct {
	Uplinks []string `json:"uplinks"`
	Tunnel  string   `json:"tunnel,omitempty"`
	Exposed []string `json:"exposed,omitempty"`
}

type thenFilter struct {
	Filter   *report.Filter   `json:"filter,omitempty"`
	Converge *report.Converge `json:"converge,omitempty"`
}

type thenVersions struct {
	Agent   report.Agent   `json:"agent"`
	Profile report.Profile `json:"profile"`
}

// thenAgent is whether the agent ran, and in which boot of the machine.
type thenAgent struct {
	Up   bool   `json:"up"`
	Boot string `json:"boot,omitempty"`
}

// Parts are the parts of next that are other than in last, as JSON, for the store to remember; all of them
// when last is nil. An empty one is no more.
func Parts(last, next *Document, boot string) (map[string][]byte, error) {
	out := map[string][]byte{}
	var err error
	part := func(name string, was, is any) {
		if err != nil || last != nil && reflect.DeepEqual(was, is) {
			return
		}
		out[name], err = json.Marshal(is)
	}
	old := last
	if old == nil {
		old = &Document{}
	}
	part(partDeclared, declaredOf(old), declaredOf(next))
	part(partLinks, linksOf(old), linksOf(next))
	part(partFilter, filterThen(old), filterThen(next))
	part(partLeft, upTo(old.Left, maxThenThing), upTo(next.Left, maxThenThing))
	part(partStrays, upTo(old.Strays, maxThenThing), upTo(next.Strays, maxThenThing))
	part(partAgent, thenAgent{old.Daemon.Up, boot}, thenAgent{next.Daemon.Up, boot})
	if next.Profile != nil {
		is := thenVersions{next.Agent, *next.Profile}
		was := thenVersions{Agent: old.Agent}
		if old.Profile != nil {
			was.Profile = *old.Profile
		}
		part(partVersions, was, is)
	}
	was := map[subject.Module]report.Module{}
	for _, m := range old.Modules {
		was[m.Name] = plain(m)
	}
	for _, m := range next.Modules {
		m = plain(m)
		if before, ok := was[m.Name]; !ok || before != m {
			out[partModule+string(m.Name)], err = json.Marshal(m)
		}
		delete(was, m.Name)
	}
	for name := range was {
		out[partModule+string(name)] = nil
	}
	if err != nil {
		return nil, fmt.Errorf("remember how the machine is: %w", err)
	}
	return out, nil
}

// plain leaves out what counts up.
func plain(m report.Module) report.Module {
	m.Restarts, m.Detail = 0, report.Cut(m.Detail, 1000)
	return m
}

func declaredOf(d *Document) Declaration {
	x := d.Declaration
	x.TookMS = 0
	return x
}

func linksOf(d *Document) thenLinks { return thenLinks{d.Uplinks, d.Tunnel, d.Exposed} }

// filterThen leaves out what counts up.
func filterThen(d *Document) thenFilter {
	x := thenFilter{Converge: d.Converge}
	if f := d.Filter; f != nil {
		x.Filter = &report.Filter{Loaded: f.Loaded, Why: f.Why, Rules: f.Rules}
		if n := len(f.Rules) - maxThenRules; n > 0 {
			x.Filter.Rules = append(slices.Clone(f.Rules[:maxThenRules]), fmt.Sprintf("… and %d more", n))
		}
	}
	return x
}

func upTo[T any](all []T, n int) []T { return all[:min(len(all), n)] }

// Then is how a machine was at a time, from its own history.
type Then struct {
	At time.Time
	// Document is what was known. Its daemon is up when the agent ran, as far as it could tell.
	Document *Document
	// From is the earliest time that the history tells of.
	From time.Time
	// SetBack counts how often the machine's clock was set back within the history.
	SetBack int

	bodies map[string][]byte
}

// Past is a machine's history of itself.
type Past struct {
	moments []state.Moment
	first   int // of moments, the first from which on everything is known
}

// NewPast makes the history from the store's moments, and what the daemon says now, which may not be in the
// store yet; nil for nothing.
func NewPast(moments []state.Moment, from int64, now *Document) (*Past, error) {
	p := &Past{moments: moments, first: slices.IndexFunc(moments, func(m state.Moment) bool { return m.N >= from })}
	if now == nil || len(moments) == 0 {
		return p, nil
	}
	last := p.fold(len(moments) - 1)
	parts, err := Parts(nil, now, "")
	if err != nil {
		return nil, err
	}
	delete(parts, partAgent) // the daemon wrote that it is up before it said so
	add := func(name string, body []byte) {
		p.moments = append(p.moments, state.Moment{At: time.UnixMilli(now.At).UTC(), Part: name, Body: body})
	}
	for name, body := range parts {
		if m, ok := last[name]; !ok || string(m.Body) != string(body) {
			add(name, body)
		}
	}
	for name := range last {
		if _, is := parts[name]; !is && strings.HasPrefix(name, partModule) {
			add(name, nil)
		}
	}
	return p, nil
}

// fold is the newest of each part up to the i-th moment. They are in the order in which they happened,
// whatever the clock said (NOD-14).
func (p *Past) fold(i int) map[string]state.Moment {
	is := map[string]state.Moment{}
	for _, m := range p.moments[:i+1] {
		if is[m.Part] = m; len(m.Body) == 0 {
			delete(is, m.Part)
		}
	}
	return is
}

// At is how the machine was at t; a time that the history does not reach is refused.
func (p *Past) At(t time.Time, clk time.Time) (*Then, error) {
	if len(p.moments) == 0 || p.first < 0 {
		return nil, refusal.New("how this machine was", "it has no history yet: its agent made no pass since it can keep one", "start the agent, and ask later")
	}
	from := p.moments[p.first].At
	i := -1
	for k := len(p.moments) - 1; k >= p.first && i < 0; k-- {
		if !p.moments[k].At.After(t) {
			i = k
		}
	}
	if i < 0 {
		return nil, refusal.Newf("how this machine was at "+when(t), fmt.Sprintf("ask for a time from %s on", when(from)),
			"its history begins at %s, %s ago: the last %d changes are kept, and at most %d KiB of them", when(from), age(clk.Sub(from)), state.MaxMoments, state.MaxMomentBytes>>10)
	}
	then := &Then{At: t, From: from, bodies: map[string][]byte{}, Document: &Document{Format: Format, At: t.UnixMilli(), Since: map[string]int64{}}}
	for name, m := range p.fold(i) {
		then.Document.Since[name], then.bodies[name] = m.At.UnixMilli(), m.Body
		if err := then.Document.put(name, m.Body); err != nil {
			return nil, err
		}
	}
	for k := range p.moments {
		if k > 0 && p.moments[k].At.Before(p.moments[k-1].At) {
			then.SetBack++
		}
	}
	order.Sort(then.Document.Modules, func(a, b report.Module) int { return strings.Compare(string(a.Name), string(b.Name)) })
	then.Document.fill()
	return then, nil
}

// put takes one part back into d. What a newer agent wrote and this one does not know is left out.
func (d *Document) put(name string, body []byte) (err error) {
	switch name {
	case partDeclared:
		err = json.Unmarshal(body, &d.Declaration)
	case partLinks:
		var x thenLinks
		err = json.Unmarshal(body, &x)
		d.Uplinks, d.Tunnel, d.Exposed = x.Uplinks, x.Tunnel, x.Exposed
	case partFilter:
		var x thenFilter
		err = json.Unmarshal(body, &x)
		d.Filter, d.Converge = x.Filter, x.Converge
	case partLeft:
		err = json.Unmarshal(body, &d.Left)
	case partStrays:
		err = json.Unmarshal(body, &d.Strays)
	case partVersions:
		var x thenVersions
		err = json.Unmarshal(body, &x)
		d.Agent, d.Profile = x.Agent, &x.Profile
	case partAgent:
		var x thenAgent
		err = json.Unmarshal(body, &x)
		d.Daemon.Up = x.Up
	default:
		if strings.HasPrefix(name, partModule) {
			var m report.Module
			err = json.Unmarshal(body, &m)
			d.Modules = append(d.Modules, m)
		}
	}
	if err != nil {
		return fmt.Errorf("the history of %s is not understood: %w", name, err)
	}
	return nil
}

// when is a time as it is printed.
func when(t time.Time) string { return t.UTC().Format(time.RFC3339) }

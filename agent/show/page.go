package show

import (
	"time"

	"mesh/agent/state"
	"mesh/shared/report"
	"mesh/shared/subject"
)

// Page is d as --json prints it: the Document with times as people and programs read them (RFC 3339).
func (d *Document) Page() any {
	return page{
		Format: d.Format, Node: d.Node, Mesh: d.Mesh, At: stamp(d.At), Agent: d.Agent, Daemon: d.Daemon,
		Bus:         pageBus{d.Bus.Up, d.Bus.Address, stamp(d.Bus.Since), d.Bus.Why},
		Declaration: pageDeclaration{Declaration: d.Declaration, Accepted: stamp(d.Declaration.Accepted)},
		Modules:     each(d.Modules, func(m report.Module) any { return ModulePage(m) }), Uplinks: d.Uplinks, Tunnel: d.Tunnel, Filter: filterOf(d.Filter), Converge: d.Converge,
		Drift: each(d.Drift, driftPage), Left: each(d.Left, driftPage), Exposed: d.Exposed, Strays: d.Strays, Held: d.Held, Taken: takenPage(d.Taken), Outbox: d.Outbox, FreeDisk: d.FreeDisk,
		Problems: each(d.Problems, func(p report.Problem) any { return pageProblem{stamp(p.At), p.Text} }), Profile: d.Profile, Since: stamps(d.Since),
	}
}

type page struct {
	Format      int              `json:"format"`
	Node        subject.Node     `json:"node"`
	Mesh        string           `json:"mesh"`
	At          time.Time        `json:"at"`
	Agent       report.Agent     `json:"agent"`
	Daemon      Daemon           `json:"daemon"`
	Bus         pageBus          `json:"bus"`
	Declaration pageDeclaration  `json:"declaration"`
	Modules     []any            `json:"modules"`
	Uplinks     []string         `json:"uplinks"`
	Tunnel      string           `json:"tunnel,omitempty"`
	Filter      any              `json:"filter"`
	Drift       []any            `json:"drift"`
	Left        []any            `json:"left"`
	Converge    *report.Converge `json:"converge,omitempty"`
	Exposed     []string         `json:"exposed,omitempty"`
	Strays      []string         `json:"strays"`
	Held        []report.Held    `json:"held,omitempty"`
	Taken       []any            `json:"taken,omitempty"`
	Outbox      Outbox           `json:"outbox"`
	FreeDisk    int64            `json:"free_disk"`
	Problems    []any            `json:"problems"`
	Profile     *report.Profile  `json:"profile,omitempty"`
	// Since is of the parts of the machine: declared, links, filter, left, strays, versions, agent, module/<name>.
	Since map[string]time.Time `json:"since,omitempty"`
}

type pageBus struct {
	Up      bool      `json:"up"`
	Address string    `json:"address,omitempty"`
	Since   time.Time `json:"since,omitzero"`
	Why     string    `json:"why,omitempty"`
}

type pageDeclaration struct {
	Declaration
	Accepted time.Time `json:"accepted,omitzero"`
}

type pageProblem struct {
	At   time.Time `json:"at"`
	Text string    `json:"text"`
}

// ModulePage is one module as --json prints it.
func ModulePage(m report.Module) any {
	return struct {
		report.Module
		Since time.Time `json:"since,omitzero"`
	}{m, stamp(m.Since)}
}

// filterOf is the packet filter within the page of everything; null when none was ever declared.
func filterOf(f *report.Filter) any {
	if f == nil {
		return nil
	}
	return struct {
		report.Filter
		Since time.Time `json:"since,omitzero"`
	}{*f, stamp(f.Since)}
}

func driftPage(d report.Drift) any {
	return struct {
		report.Drift
		At time.Time `json:"at"`
	}{d, stamp(d.At)}
}

// takenPage is how takes stand, with times as people read them.
func takenPage(all []report.Take) []any {
	if len(all) == 0 {
		return nil
	}
	return each(all, func(t report.Take) any {
		return struct {
			report.Take
			At time.Time `json:"at,omitzero"`
		}{t, stamp(t.At)}
	})
}

// HistoryPage is the past as --json prints it.
func HistoryPage(past []state.Past, drift []report.Drift) any {
	type apply struct {
		At      time.Time      `json:"at"`
		Seq     uint64         `json:"seq"`
		Outcome report.Outcome `json:"outcome"`
		Why     string         `json:"why,omitempty"`
		Steps   int            `json:"steps"`
		TookMS  int64          `json:"took_ms"`
	}
	return struct {
		Applies []any `json:"applies"`
		Drift   []any `json:"drift"`
	}{each(past, func(p state.Past) any {
		return apply{p.At.UTC(), p.Seq, p.Outcome, p.Why, p.Steps, p.Took.Milliseconds()}
	}), each(drift, driftPage)}
}

// each is never nil: a list is never null in the JSON.
func each[T any](all []T, page func(T) any) []any {
	out := make([]any, len(all))
	for i, x := range all {
		out[i] = page(x)
	}
	return out
}

func stamps(all map[string]int64) map[string]time.Time {
	out := make(map[string]time.Time, len(all))
	for part, ms := range all {
		out[part] = stamp(ms)
	}
	return out
}

// stamp is a time of the Document; zero for none.
func stamp(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

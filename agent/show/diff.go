package show

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"mesh/agent/state"
	"mesh/shared/order"
	"mesh/shared/report"
)

// The sections of a Diff.
const (
	SectionDeclared = "declared"
	SectionFound    = "found"
	SectionFilter   = "filter"
	SectionVersions = "versions"
)

// sections is what belongs to which, and in which order it is printed.
var sections = []string{SectionDeclared, SectionFound, SectionFilter, SectionVersions}

var sectionOf = map[string]string{partDeclared: SectionDeclared, partFilter: SectionFilter, partVersions: SectionVersions}

// Change is one thing that is other at the second time than at the first.
type Change struct {
	Section string `json:"section"`
	What    string `json:"what"`
	// Was and Is are words; empty: it was not there, or is no more.
	Was string `json:"was,omitempty"`
	Is  string `json:"is,omitempty"`
	// Since is when it last changed before the second time; zero when it is no more.
	Since time.Time `json:"since,omitzero"`
}

// Diff is what changed on a machine between two times, and what happened in between.
type Diff struct {
	From    time.Time `json:"from"`
	To      time.Time `json:"to"`
	Changes []Change  `json:"changes"`
	// Unkept are the declarations whose text is not there any more, so that it could not be compared.
	Unkept  []uint64 `json:"unkept,omitempty"`
	SetBack int      `json:"clock_set_back,omitempty"`

	applies []state.Past
	drift   []report.Drift
}

// Compare says what changed from a to b; texts are the declarations that are kept, by seq.
func Compare(a, b *Then, texts map[uint64][]byte, applies []state.Past, drift []report.Drift) (*Diff, error) {
	d := &Diff{From: a.At.UTC(), To: b.At.UTC(), Changes: []Change{}, SetBack: b.SetBack}
	names := slices.Sorted(maps.Keys(maps.Collect(both(a.bodies, b.bodies))))
	for _, name := range names {
		section := sectionOf[name]
		if section == "" {
			section = SectionFound
		}
		if err := d.part(section, strings.TrimPrefix(strings.Replace(name, "/", " ", 1), section), a.bodies[name], b.bodies[name], b.Document.Since[name]); err != nil {
			return nil, fmt.Errorf("the history of %s is not understood: %w", name, err)
		}
	}
	if was, is := a.Document.Declaration.Seq, b.Document.Declaration.Seq; was != is {
		for _, seq := range []uint64{was, is} {
			if texts[seq] == nil && seq > 0 {
				d.Unkept = append(d.Unkept, seq)
			}
		}
		if len(d.Unkept) == 0 {
			if err := d.part(SectionDeclared, "", texts[was], texts[is], b.Document.Since[partDeclared]); err != nil {
				return nil, fmt.Errorf("a kept declaration is not understood: %w", err)
			}
		}
	}
	order.Sort(d.Changes, func(x, y Change) int {
		return slices.Index(sections, x.Section) - slices.Index(sections, y.Section)
	})
	between := func(t time.Time) bool { return t.After(a.At) && !t.After(b.At) }
	for _, p := range applies {
		if between(p.At) {
			d.applies = append(d.applies, p)
		}
	}
	for _, x := range drift {
		if between(time.UnixMilli(x.At)) {
			d.drift = append(d.drift, x)
		}
	}
	return d, nil
}

func both(a, b map[string][]byte) func(func(string, []byte) bool) {
	return func(yield func(string, []byte) bool) {
		for _, m := range []map[string][]byte{a, b} {
			for k, v := range m {
				if !yield(k, v) {
					return
				}
			}
		}
	}
}

// part compares two bodies of JSON.
func (d *Diff) part(section, name string, was, is []byte, since int64) error {
	if bytes.Equal(was, is) {
		return nil
	}
	x, err := decode(was)
	if err != nil {
		return err
	}
	y, err := decode(is)
	if err != nil {
		return err
	}
	at := time.Time{}
	if len(is) > 0 {
		at = stamp(since)
	}
	compare(strings.TrimSpace(name), x, y, func(what, was, is string) {
		if c := (Change{section, what, was, is, at}); !slices.Contains(d.Changes, c) { // seq stands in the text, too
			d.Changes = append(d.Changes, c)
		}
	})
	return nil
}

// decode keeps numbers as they are written.
func decode(b []byte) (v any, err error) {
	if len(b) == 0 {
		return nil, nil
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	return v, dec.Decode(&v)
}

// unsaid are the fields that say nothing by themselves.
var unsaid = []string{"accepted", "since", "at", "name", "thing"}

// compare walks two values and says what differs, in order.
func compare(path string, was, is any, say func(what, was, is string)) {
	x, okX := object(was)
	y, okY := object(is)
	if okX && okY {
		keys := map[string]bool{}
		for k := range x {
			keys[k] = true
		}
		for k := range y {
			keys[k] = true
		}
		for _, k := range slices.Sorted(maps.Keys(keys)) {
			if !slices.Contains(unsaid, k) {
				compare(join(path, k), x[k], y[k], say)
			}
		}
		return
	}
	a, okA := words(was)
	b, okB := words(is)
	if okA && okB {
		for _, w := range a {
			if !slices.Contains(b, w) {
				say(path, w, "")
			}
		}
		for _, w := range b {
			if !slices.Contains(a, w) {
				say(path, "", w)
			}
		}
		return
	}
	if w, i := inWords(was), inWords(is); w != i {
		if strings.Contains(path, "secrets") && w != "" && i != "" {
			w, i = "sealed", "sealed anew"
		}
		say(path, w, i)
	}
}

func join(path, key string) string {
	if path == "" {
		return strings.ReplaceAll(key, "_", " ")
	}
	return path + " " + strings.ReplaceAll(key, "_", " ")
}

// object is v as one: a list of things with names is one too, and what is not there is an empty one.
func object(v any) (map[string]any, bool) {
	switch v := v.(type) {
	case map[string]any:
		return v, true
	case []any:
		out := make(map[string]any, len(v))
		for _, x := range v {
			m, ok := x.(map[string]any)
			name := nameOf(m)
			if !ok || name == "" {
				return nil, false
			}
			out[name] = m
		}
		return out, len(out) > 0
	}
	return nil, v == nil
}

// nameOf tells one thing of a list from another.
func nameOf(m map[string]any) string {
	for _, key := range []string{"name", "path", "thing"} {
		if name, ok := m[key].(string); ok {
			return name
		}
	}
	return ""
}

// words is a list of single things.
func words(v any) ([]string, bool) {
	all, ok := v.([]any)
	out := make([]string, len(all))
	for i, x := range all {
		out[i] = inWords(x)
	}
	return out, ok || v == nil
}

// maxWords bounds one value of a Diff.
const maxWords = 160

// inWords is a value in one line.
func inWords(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		if strings.ContainsAny(v, "\n\t") {
			v = strconv.Quote(v)
		}
		return report.Cut(v, maxWords)
	case json.Number:
		return v.String()
	case bool:
		return either(v, "yes", "no")
	}
	b, err := json.Marshal(v)
	if err != nil { // it was JSON a moment ago
		return "?"
	}
	return report.Cut(string(b), maxWords)
}

// Page is d as --json prints it.
func (d *Diff) Page() any {
	return struct {
		*Diff
		Between any `json:"between"`
	}{d, HistoryPage(d.applies, d.drift)}
}

// RenderDiff prints d for a person; now is only for ages.
func RenderDiff(w io.Writer, d *Diff, now time.Time) error {
	p := &printer{w: w, now: now}
	p.line("from %s (%s ago) to %s (%s ago): %s", when(d.From), p.ago(d.From.UnixMilli()), when(d.To), p.ago(d.To.UnixMilli()),
		either(len(d.Changes) == 0, "nothing is other than it was", either(len(d.Changes) == 1, "1 change", fmt.Sprintf("%d changes", len(d.Changes)))))
	p.setBack(d.SetBack)
	for _, section := range sections {
		p.section(section, d.Changes)
		if section == SectionDeclared {
			for _, seq := range d.Unkept {
				p.line("  the text of declaration %d is not kept any more: the last %d are", seq, state.Kept)
			}
		}
	}
	for i, x := range d.applies {
		if i == 0 {
			p.line("")
			p.line("in between")
		}
		p.line("  %s ago  declaration %d: %s, %d steps in %s%s", p.ago(x.At.UnixMilli()), x.Seq, x.Outcome, x.Steps, took(x.Took.Milliseconds()), either(x.Why == "", "", ": "+oneLine(x.Why)))
	}
	p.drift(d.drift)
	return p.err
}

func (p *printer) setBack(n int) {
	if n > 0 {
		p.line("  the clock of this machine was set back %s in its history: a time may have been twice, and the later one counts", times(n))
	}
}

func (p *printer) section(name string, all []Change) {
	first := true
	for _, c := range all {
		if c.Section != name {
			continue
		}
		if first {
			first = false
			p.line("")
			p.line("%s", name)
		}
		since := ""
		if !c.Since.IsZero() {
			since = fmt.Sprintf("  (for %s)", p.ago(c.Since.UnixMilli()))
		}
		switch {
		case c.Was == "":
			p.line("  + %s: %s%s", c.What, c.Is, since)
		case c.Is == "":
			p.line("  - %s: %s", c.What, c.Was)
		default:
			p.line("  ~ %s: %s -> %s%s", c.What, c.Was, c.Is, since)
		}
	}
}

// Well says whether the machine was well then, and what was amiss.
func (t *Then) Well() (Verdict, []string) {
	d := *t.Document
	d.Bus.Up = true // it is not remembered
	up := d.Daemon.Up
	d.Daemon.Up = true
	v, amiss := d.Judge()
	for i := range amiss { // what to do then is not what to do now
		amiss[i], _, _ = strings.Cut(amiss[i], "\ndo: ")
	}
	if !up {
		v, amiss = Unknown, append([]string{"the agent was not running; this is what it last knew"}, amiss...)
	}
	return v, amiss
}

// RenderThen prints t for a person. Ages of its states are as they were then.
func RenderThen(w io.Writer, t *Then, now time.Time) error {
	p, d := &printer{w: w, now: t.At}, t.Document
	v, amiss := t.Well()
	p.line("%s of mesh %s at %s, %s ago: %s", d.Node, short(d.Mesh), when(t.At), age(now.Sub(t.At)), map[Verdict]string{Well: "well", Amiss: "NOT WELL", Unknown: "UNKNOWN"}[v])
	for _, a := range amiss {
		p.amiss(a)
	}
	p.setBack(t.SetBack)
	p.line("")
	p.field("agent", "%s, %s%s", d.Agent.Version, either(d.Daemon.Up, "running", "not running"), p.since(d, partAgent))
	if x := d.Profile; x != nil {
		p.field("machine", "%s %s, kernel %s%s%s", x.OS, x.OSVersion, x.Kernel, either(x.Engine == "", "", ", "+x.Engine), p.since(d, partVersions))
	}
	p.field("declaration", "%s", p.declarationWords(d))
	if links := d.outside(); links != "" {
		p.field("uplinks", "%s%s", links, p.since(d, partLinks))
	}
	switch f := d.Filter; {
	case f == nil:
		p.field("filter", "none was declared%s", p.since(d, partFilter))
	case !f.Loaded:
		p.field("filter", "NOT in force: %s%s", oneLine(orUnknown(f.Why)), p.since(d, partFilter))
	default:
		p.field("filter", "in force%s", p.since(d, partFilter))
		for _, r := range f.Rules {
			p.line("%-12s %s", "", r)
		}
	}
	p.modules(d.Modules)
	for _, x := range d.Exposed {
		p.line("  not open as declared: %s", x)
	}
	for _, x := range d.Left {
		p.line("  changed by hand and left so for %s: %s: %s", p.ago(x.At), x.Thing, x.What)
	}
	for _, x := range d.Strays {
		p.line("  stray: %s%s", x, p.since(d, partStrays))
	}
	return p.err
}

// Page is t as --json prints it.
func (t *Then) Page() any {
	v, amiss := t.Well()
	d := t.Document
	if amiss == nil {
		amiss = []string{}
	}
	return struct {
		Format      int             `json:"format"`
		Node        any             `json:"node"`
		Mesh        string          `json:"mesh"`
		At          time.Time       `json:"at"`
		From        time.Time       `json:"history_from"`
		SetBack     int             `json:"clock_set_back,omitempty"`
		Well        bool            `json:"well"`
		Amiss       []string        `json:"amiss"`
		AgentUp     bool            `json:"agent_up"`
		Agent       report.Agent    `json:"agent"`
		Profile     *report.Profile `json:"profile,omitempty"`
		Declaration pageDeclaration `json:"declaration"`
		Modules     []any           `json:"modules"`
		Uplinks     []string        `json:"uplinks"`
		Tunnel      string          `json:"tunnel,omitempty"`
		Filter      any             `json:"filter"`
		Left        []any           `json:"left"`
		Exposed     []string        `json:"exposed,omitempty"`
		Strays      []string        `json:"strays"`
		// Since says of each part since when it was so.
		Since map[string]time.Time `json:"since"`
	}{Format, d.Node, d.Mesh, t.At.UTC(), t.From.UTC(), t.SetBack, v == Well, amiss, d.Daemon.Up, d.Agent, d.Profile,
		pageDeclaration{Declaration: d.Declaration, Accepted: stamp(d.Declaration.Accepted)}, each(d.Modules, func(m report.Module) any { return ModulePage(m) }),
		d.Uplinks, d.Tunnel, filterOf(d.Filter), each(d.Left, driftPage), d.Exposed, d.Strays, stamps(d.Since)}
}

// RenderThenFilter prints the packet filter as it was.
func RenderThenFilter(w io.Writer, t *Then) error {
	p, d := &printer{w: w, now: t.At}, t.Document
	p.line("packet filter of %s at %s%s", d.Node, when(t.At), p.since(d, partFilter))
	p.field("links", "%s%s", orNone(d.outside()), p.since(d, partLinks))
	switch f := d.Filter; {
	case f == nil:
		p.line("none was declared")
	case !f.Loaded:
		p.amiss("NOT in force: " + orUnknown(f.Why))
	default:
		for _, r := range f.Rules {
			p.line("  %s", r)
		}
	}
	return p.err
}

// FilterPage is the packet filter as it was, as --json prints it.
func (t *Then) FilterPage() any {
	d := t.Document
	return struct {
		At      time.Time `json:"at"`
		Since   time.Time `json:"since,omitzero"`
		Uplinks []string  `json:"uplinks"`
		Tunnel  string    `json:"tunnel,omitempty"`
		Filter  any       `json:"filter"`
	}{t.At.UTC(), stamp(d.Since[partFilter]), d.Uplinks, d.Tunnel, filterOf(d.Filter)}
}

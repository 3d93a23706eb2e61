package compose

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"mesh/coordinator/records"
	"mesh/shared/credential"
	"mesh/shared/declaration"
	"mesh/shared/refusal"
	"mesh/shared/rule"
	"mesh/shared/strict"
	"mesh/shared/subject"
)

// Change is one thing a push would change on a node.
type Change struct {
	// Module it concerns; empty: the node itself.
	Module subject.Module `json:"module,omitempty"`
	// What changes: "module" (comes or goes), "build", "setting port", "secret key", "open", "open the bus",
	// "close", "filter", "tunnel", "inside", "converge", "take", "drift", "bus", "membership".
	What string `json:"what"`
	// From and To are what is and what would be; empty: nothing.
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
	// Why is who did what to cause it, from the journal.
	Why string `json:"why,omitempty"`
}

// NodePlan is what a push to one node would do.
type NodePlan struct {
	Node subject.Node `json:"node"`
	// Seq is the last declaration's; a push would send the next when there are Changes, else this again.
	Seq uint64 `json:"seq"`
	// Unsent: the last declaration never reached the bus.
	Unsent  bool     `json:"unsent,omitempty"`
	Changes []Change `json:"changes,omitempty"`
	Left    []Left   `json:"left,omitempty"`
	// Err says why no declaration can be made.
	Err error `json:"-"`
}

// Diff lists what next changes, against the last content or nil. It decides nothing and reads nothing.
func Diff(last, next *declaration.Content) []Change {
	if last == nil {
		last = &declaration.Content{}
	}
	var all []Change
	add := func(m subject.Module, what, from, to string) {
		if from != to {
			all = append(all, Change{Module: m, What: what, From: from, To: to})
		}
	}
	if last.Drift != "" {
		add("", "drift", string(last.Drift), string(next.Drift))
		add("", "bus", strings.Join(last.Bus.Addresses, ", "), strings.Join(next.Bus.Addresses, ", "))
		if last.Bus.CA != next.Bus.CA {
			add("", "bus's CA", short(last.Bus.CA), short(next.Bus.CA))
		}
	}
	diffFilter(add, last.Filter, next.Filter)
	diffRemove(add, last.Remove, next.Remove)
	had := make(map[subject.Module]*declaration.Module, len(last.Modules))
	for i := range last.Modules {
		had[last.Modules[i].Name] = &last.Modules[i]
	}
	for i := range next.Modules {
		n := &next.Modules[i]
		if h := had[n.Name]; h != nil {
			diffModule(add, h, n)
		} else {
			add(n.Name, "module", "", n.Build)
		}
		delete(had, n.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(had)) {
		add(name, "module", had[name].Build, "")
	}
	diffTakes(add, last.Takes, next.Takes)
	add("", "keep", kept(last.Keeps), kept(next.Keeps))
	return all
}

// kept is what stays as it was changed by hand, in words.
func kept(all []declaration.Keep) string {
	words := make([]string, len(all))
	for i, k := range all {
		words[i] = k.Thing + " until " + time.UnixMilli(k.Until).UTC().Format("2006-01-02 15:04 UTC")
	}
	return strings.Join(words, ", ")
}

// diffTakes says which words about things that mesh did not put there are new.
func diffTakes(add addChange, had, next []declaration.Take) {
	words := func(all []declaration.Take) map[subject.Module]string {
		out := make(map[subject.Module]string, len(all))
		for _, t := range all {
			out[t.Module] = fmt.Sprintf("%s (word %d)", strings.Join(slices.Sorted(maps.Keys(t.Things)), ", "), t.ID)
			if t.Back {
				out[t.Module] = fmt.Sprintf("all is given back (word %d)", t.ID)
			}
		}
		return out
	}
	a, b := words(had), words(next)
	for _, m := range slices.Sorted(maps.Keys(b)) {
		add(m, "take", a[m], b[m])
	}
}

// openBus is Change.What of an opening that no person asked for.
const openBus = "open the bus"

type addChange func(m subject.Module, what, from, to string)

func diffModule(add addChange, had, next *declaration.Module) {
	add(next.Name, "build", had.Build, next.Build)
	if had.Build == next.Build && string(had.Manifest) != string(next.Manifest) {
		add(next.Name, "manifest", short(string(had.Manifest)), short(string(next.Manifest)))
	}
	if had.Build == next.Build {
		add(next.Name, "membership", short(string(had.Membership)), short(string(next.Membership)))
	}
	for _, k := range keys(had.Settings, next.Settings) {
		add(next.Name, "setting "+k, had.Settings[k], next.Settings[k])
	}
	for _, k := range keys(had.Secrets, next.Secrets) {
		add(next.Name, "secret "+k, sealed(had.Secrets[k]), sealed(next.Secrets[k]))
	}
}

// diffRemove says what a push deletes: nothing of it comes back.
func diffRemove(add addChange, had, next *declaration.Remove) {
	before := removedThings(had)
	for _, id := range removedThings(next) {
		if !slices.Contains(before, id) {
			module, thing, _ := strings.Cut(id, " ")
			add(subject.Module(module), "delete "+thing, "", "for good")
		}
	}
}

// removedThings are "module thing", of strays " thing".
func removedThings(r *declaration.Remove) (all []string) {
	if r == nil {
		return nil
	}
	for _, d := range r.Data {
		for _, thing := range d.Things {
			all = append(all, string(d.Module)+" "+thing)
		}
	}
	for _, thing := range r.Strays {
		all = append(all, " "+thing)
	}
	return all
}

func keys[V any](a, b map[string]V) []string {
	all := slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
	slices.Sort(all)
	return slices.Compact(all)
}

// sealed tells one sealed text from another, and from none.
func sealed(s credential.Sealed) string {
	if s == "" {
		return ""
	}
	return "(sealed " + short(string(s)) + ")"
}

func short(text string) string {
	if text == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:4])
}

func diffFilter(add addChange, had, next *declaration.Filter) {
	if next == nil && had == nil {
		return
	}
	if had == nil {
		add("", "filter", "", "sent")
		had = &declaration.Filter{}
	}
	if next == nil {
		add("", "filter", "sent", "")
		next = &declaration.Filter{}
	}
	add("", "tunnel", had.Tunnel, next.Tunnel)
	add("", "inside", strings.Join(had.Inside, ", "), strings.Join(next.Inside, ", "))
	add("", "converge", givesWay(had.Converge), givesWay(next.Converge))
	for _, a := range without(next.Allow, had.Allow) {
		what := "open"
		if a.Owner == records.BusOwner {
			what = openBus
		}
		add(owner(a), what, "", a.What()+" from "+a.From.String())
	}
	for _, a := range without(had.Allow, next.Allow) {
		add(owner(a), "close", a.What()+" from "+a.From.String(), "")
	}
}

// givesWay is a word that hands the packet filter to mesh; said twice, it is another.
func givesWay(c *declaration.Converge) string {
	if c == nil {
		return ""
	}
	retired := "nothing is retired"
	if len(c.Retire) > 0 {
		retired = strings.Join(c.Retire, ", ") + " retired"
	}
	return fmt.Sprintf("%s (word %d)", retired, c.ID)
}

func owner(a rule.Allow) subject.Module {
	if a.Owner == records.AdminOwner || a.Owner == records.BusOwner {
		return ""
	}
	return subject.Module(a.Owner)
}

// without are those of a that are not in b.
func without(a, b []rule.Allow) (out []rule.Allow) {
	have := make(map[string]bool, len(b))
	for _, x := range b {
		have[x.String()] = true
	}
	for _, x := range a {
		if !have[x.String()] {
			out = append(out, x)
		}
	}
	return out
}

// Plan says what a push to the nodes named would change (PSH-1). It writes nothing.
func (c *Composer) Plan(ctx context.Context, names []subject.Node) ([]NodePlan, error) {
	if len(names) == 0 {
		return nil, refusal.New("an empty selection of nodes", "nothing is named, and nothing never means all", "name the nodes")
	}
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	if err := c.know(ctx, names); err != nil {
		return nil, err
	}
	waiting, err := c.store.Waiting(ctx)
	if err != nil {
		return nil, err
	}
	composed, err := c.peek(ctx, names, toShow)
	if err != nil {
		return nil, err
	}
	plans := make([]NodePlan, len(composed))
	for i, d := range composed {
		p := NodePlan{Node: d.Node, Seq: d.before.Seq, Left: d.Left, Err: d.Err}
		p.Unsent = p.Seq > 0 && strings.HasSuffix(waiting[d.Node], "was not sent")
		if d.Changed {
			if p.Changes, err = c.changes(ctx, &d); err != nil {
				return nil, fmt.Errorf("plan %s: %w", d.Node, err)
			}
		}
		plans[i] = p
	}
	return plans, nil
}

// peeked is what composing would come to, and what is.
type peeked struct {
	Composed
	before records.Declared
	base   uint64
}

// peek composes without giving a seq. What it finds unchanged is clean from now on.
func (c *Composer) peek(ctx context.Context, names []subject.Node, p purpose) ([]peeked, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.refresh(ctx); err != nil {
		return nil, err
	}
	composed := c.work(names, p)
	all := make([]peeked, len(composed))
	for i, d := range composed {
		s := c.nodes[d.Node]
		all[i] = peeked{d, s.in.Declared, s.in.Base}
		if d.Err == nil && !d.Changed {
			s.clean, s.left = true, d.Left
		}
	}
	return all, nil
}

// changes are what d changes, each with its cause.
func (c *Composer) changes(ctx context.Context, d *peeked) ([]Change, error) {
	var next declaration.Content
	if err := strict.Decode(d.content, &next); err != nil {
		return nil, err
	}
	var last *declaration.Content
	if d.before.Seq > 0 {
		text, _, err := c.store.DeclaredText(ctx, d.Node)
		if err != nil {
			return nil, err
		}
		if last, err = contentOf(text); err != nil {
			return nil, err
		}
	}
	all := Diff(last, &next)
	if len(all) == 0 { // another signer, or a seq the node spoke of and the records do not know
		all = []Change{{What: "seq", From: fmt.Sprint(d.before.Seq), To: fmt.Sprint(d.Seq), Why: "the node or the signing key has moved past what these records sent"}}
	}
	journal, err := c.store.ChangesSince(ctx, d.Node, d.before.Composed)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if all[i].Why == "" {
			all[i].Why = cause(all[i], journal)
		}
	}
	return all, nil
}

// contentOf reads a declaration of our own records; who signed it is not asked.
func contentOf(text declaration.Signed) (*declaration.Content, error) {
	_, body, ok := strings.Cut(string(text), "\n")
	if !ok {
		return nil, errors.New("the last declaration in the records is no signed declaration")
	}
	var d declaration.Declaration
	if err := strict.Decode([]byte(body), &d); err != nil {
		return nil, fmt.Errorf("the last declaration in the records: %w", err)
	}
	return &d.Content, nil
}

// cause is the newest entry of the journal that explains ch; journal is newest first. A change that no
// person made comes from what the node reported.
func cause(ch Change, journal []records.Change) string {
	if ch.What == openBus {
		return "the bus of the mesh runs on this machine"
	}
	for _, j := range journal {
		if j.Module == ch.Module && (ch.Module != "" || j.Node != "" || ch.What == "bus") {
			why := fmt.Sprintf("%s %s, by %s %s", j.What, j.Object, j.Who, j.At.Format(time.RFC3339))
			if j.Why != "" {
				why += ": " + j.Why
			}
			return why
		}
	}
	return "the node reports other facts than before"
}

// Behind are the nodes a push would bring forward, and why, by name: the content is new, the last
// declaration was not sent, or it is not known to be applied.
func (c *Composer) Behind(ctx context.Context) (map[subject.Node]string, error) {
	names, err := c.Names(ctx)
	if err != nil || len(names) == 0 {
		return nil, err
	}
	all, err := c.store.Waiting(ctx)
	if err != nil {
		return nil, err
	}
	composed, err := c.peek(ctx, names, toCompare)
	if err != nil {
		return nil, err
	}
	for _, d := range composed {
		switch {
		case d.Err != nil:
			all[d.Node] = d.Err.Error()
		case d.before.Seq == 0 && d.base == 0:
			all[d.Node] = "nothing was ever pushed to it"
		case d.Changed && d.base > d.before.Seq:
			all[d.Node] = fmt.Sprintf("it has been sent declaration %d, and these records know of %d: they are an older copy", d.base, d.before.Seq)
		case d.Changed:
			all[d.Node] = fmt.Sprintf("what it should be has changed since declaration %d", d.before.Seq)
		}
	}
	return all, nil
}

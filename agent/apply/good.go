package apply

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"mesh/agent/plan"
	"mesh/agent/resource"
	"mesh/agent/state"
	"mesh/shared/declaration"
	"mesh/shared/manifest"
	"mesh/shared/subject"
)

// proof is what is known of the builds of one module. An instance, a build with its settings, is told by the sum
// of how it was declared.
type proof struct {
	// Sum is of the last good instance, Build its build; "" when none was ever good.
	Sum   string `json:"sum,omitempty"`
	Build string `json:"build,omitempty"`
	// Keeps are the ids of the bundle and the images that it is started from.
	Keeps []string `json:"keeps,omitempty"`
	// Failed is of the instance that did not get well and is not tried again; "" for none.
	Failed      string `json:"failed,omitempty"`
	FailedBuild string `json:"failed_build,omitempty"`
	// Why says what it met, and Log the last it said, in lines.
	Why string `json:"why,omitempty"`
	Log string `json:"log,omitempty"`
}

// staging is p as the store takes it; body is how the good instance was declared, nil when it is there already.
func (p *proof) staging(m subject.Module, body []byte) (state.Good, error) {
	known, err := json.Marshal(p)
	if err != nil {
		err = fmt.Errorf("encode what is known of the builds of %s: %w", m, err)
	}
	return state.Good{Module: string(m), Known: known, Body: body}, err
}

// goodBuild is a last good instance, once it was read.
type goodBuild struct {
	sum      string
	module   declaration.Module
	manifest manifest.Manifest
}

// sumOf is the sum of an instance that a declaration.Reader gave, whose text may have been told before.
type sumOf struct {
	at  *byte
	sum string
}

// healthState is what an Engine holds for APP-7; a pass owns it.
type healthState struct {
	proofs map[subject.Module]*proof // nil until they were read
	trials map[subject.Module]*trial
	goods  map[subject.Module]*goodBuild
	sums   map[subject.Module]sumOf
	kept   map[subject.Module]string // the sum of the good instance whose text the store keeps for itself
	due    []due
	heard  uint64 // the prober's news that a pass took in
}

// due is a module that has to go back.
type due struct {
	module subject.Module
	proof  *proof
}

// loadProofs reads once what the store knows. What cannot be read is as if it had never been.
func (e *Engine) loadProofs(ctx context.Context) error {
	if e.health.proofs != nil {
		return nil
	}
	all, err := e.cfg.Store.Goods(ctx)
	if err != nil {
		return err
	}
	e.health.proofs = make(map[subject.Module]*proof, len(all))
	for m, text := range all {
		p := &proof{}
		if err := json.Unmarshal(text, p); err != nil {
			e.cfg.Log.Warn("which build of a module was good is not known any more", "module", m, "err", err)
			continue
		}
		e.health.proofs[subject.Module(m)] = p
	}
	return nil
}

// instance is the sum of how m was declared.
func (e *Engine) instance(m *declaration.Module) string {
	at := (*byte)(nil)
	if len(m.Manifest) > 0 {
		at = &m.Manifest[0]
	}
	if known, ok := e.health.sums[m.Name]; ok && known.at == at {
		return known.sum
	}
	sum := sha256.Sum256(declaration.AppendModule(nil, m))
	known := sumOf{at, hex.EncodeToString(sum[:])}
	e.health.sums[m.Name] = known
	return known.sum
}

// stand puts the last good instance in the place of each declared one that failed; w.d is then another than the
// declaration held.
func (e *Engine) stand(ctx context.Context, w *work, manifests []manifest.Manifest) ([]manifest.Manifest, error) {
	if err := e.loadProofs(ctx); err != nil {
		return nil, err
	}
	if w.whole == nil {
		w.whole = w.d
	}
	w.d = w.whole
	w.sums, w.back, w.keep = make(map[subject.Module]string, len(w.d.Modules)), map[subject.Module]*proof{}, map[string]bool{}
	copied := false
	for i := range w.d.Modules {
		m := &w.d.Modules[i]
		sum, p := e.instance(m), e.health.proofs[m.Name]
		w.sums[m.Name] = sum
		if j := slices.IndexFunc(w.due, func(d due) bool { return d.module == m.Name }); j >= 0 {
			p = w.due[j].proof
		}
		if p == nil {
			continue
		}
		for _, id := range p.Keeps {
			w.keep[id] = true
		}
		if p.Failed != sum || p.Sum == "" || p.Sum == sum {
			continue
		}
		g := e.good(ctx, m.Name, p.Sum)
		if g == nil {
			continue
		}
		if !copied {
			d := *w.d
			d.Modules, manifests, copied = slices.Clone(d.Modules), slices.Clone(manifests), true
			w.d = &d
		}
		w.back[m.Name] = p
		w.d.Modules[i], manifests[i] = g.module, g.manifest
	}
	return manifests, nil
}

// good is the last good instance of a module; nil when it cannot be read, or is not what it was.
func (e *Engine) good(ctx context.Context, m subject.Module, sum string) *goodBuild {
	if g := e.health.goods[m]; g != nil && g.sum == sum {
		return g
	}
	g := &goodBuild{sum: sum}
	body, err := e.body(ctx, m, sum)
	if err == nil {
		err = json.Unmarshal(body, &g.module)
	}
	if err == nil {
		var all []manifest.Manifest
		if all, err = resource.Decode(&declaration.Declaration{Content: declaration.Content{Modules: []declaration.Module{g.module}}}); err == nil {
			g.manifest = all[0]
		}
	}
	if err != nil {
		e.cfg.Log.Error("the last good build of a module cannot be read", "module", m, "err", err)
		return nil
	}
	e.health.goods[m] = g
	return g
}

var errNoBody = errors.New("it is not in the store as it was")

// body is how the instance of that sum was declared: what the store keeps for itself, or what a declaration has
// that it keeps.
func (e *Engine) body(ctx context.Context, m subject.Module, sum string) ([]byte, error) {
	body, ok, err := e.cfg.Store.GoodBody(ctx, string(m))
	if err != nil {
		return nil, err
	}
	if got := sha256.Sum256(body); ok && hex.EncodeToString(got[:]) == sum {
		e.health.kept[m] = sum
		return body, nil
	}
	all, err := e.cfg.Store.Accepted(ctx)
	if err != nil {
		return nil, err
	}
	for _, a := range all {
		d, err := declaration.Signed(a.Signed).Open(e.cfg.Verifier, e.cfg.Mesh, e.cfg.Node)
		if err != nil {
			continue // of another agent's, or rotten
		}
		i := slices.IndexFunc(d.Modules, func(x declaration.Module) bool { return x.Name == m })
		if i < 0 {
			continue
		}
		body := declaration.AppendModule(nil, &d.Modules[i])
		if got := sha256.Sum256(body); hex.EncodeToString(got[:]) == sum {
			return body, nil
		}
	}
	return nil, errNoBody
}

// keepBody has the store keep for itself how the last good instance was declared, once another is declared: the
// declaration it is in is kept for a while only. It returns nil when it does already.
func (e *Engine) keepBody(ctx context.Context, m subject.Module, p *proof) []byte {
	if p.Sum == "" || e.health.kept[m] == p.Sum {
		return nil
	}
	body, err := e.body(ctx, m, p.Sum)
	if err != nil {
		e.cfg.Log.Error("the last good build of a module is not kept", "module", m, "err", err)
	} else if e.health.kept[m] == p.Sum {
		return nil
	}
	e.health.kept[m] = p.Sum
	return body
}

// goBack carries out what a pass found due: it puts the last good builds in the place of those that failed, as
// an apply of its own. d and manifests are the declaration held.
func (e *Engine) goBack(ctx context.Context, d *declaration.Declaration, manifests []manifest.Manifest, before Result) (Result, error) {
	all := e.health.due
	if e.health.due = nil; len(all) == 0 {
		return before, nil
	}
	w := &work{start: e.cfg.Clock.Now(), cause: Reconcile, d: d, due: all}
	if err := e.look(ctx, w, manifests); err != nil {
		return Result{}, err
	}
	goods := make([]state.Good, len(all))
	for i, x := range all {
		var err error
		if goods[i], err = x.proof.staging(x.module, e.keepBody(ctx, x.module, x.proof)); err != nil {
			return Result{}, err
		}
		e.cfg.Log.Error("a build did not get well; the last good one takes its place", "module", x.module, "build", x.proof.FailedBuild, "good", x.proof.Build, "why", x.proof.Why)
	}
	e.cfg.FailPoint(beforeBack)
	if err := e.cfg.Store.RollBack(ctx, goods, w.plan.Intents()); err != nil {
		return Result{}, state.Named(err, "to go back to the last good build")
	}
	e.cfg.FailPoint(afterBack)
	for _, x := range all {
		e.health.proofs[x.module] = x.proof
		delete(e.health.trials, x.module)
		delete(e.pauses, x.module)
	}
	r, err := e.carry(ctx, w)
	r.News = before.News
	r.Steps += before.Steps
	r.Drift = append(before.Drift, r.Drift...)
	r.Took = e.cfg.Clock.Now().Sub(w.start) + before.Took
	if len(e.health.due) > 0 { // of others; the next pass finds them again
		e.health.due = nil
		r.NextTry = e.cfg.Clock.Now().Add(lookAgain)
	}
	return r, err
}

// tryAgain forgets what failed, of all modules: somebody asked.
func (e *Engine) tryAgain(ctx context.Context) error {
	if err := e.loadProofs(ctx); err != nil {
		return err
	}
	var goods []state.Good
	for m, p := range e.health.proofs {
		if p.Failed == "" {
			continue
		}
		next := *p
		next.Failed, next.FailedBuild, next.Why, next.Log = "", "", "", ""
		g, err := next.staging(m, nil)
		if err != nil {
			return err
		}
		e.health.proofs[m] = &next
		goods = append(goods, g)
		delete(e.pauses, m)
	}
	if len(goods) > 0 {
		e.fast = nil
		e.cfg.Store.Stage(state.Batch{Good: goods})
	}
	return nil
}

// keptBy are the ids of what an instance is started from.
func (r *run) keptBy(m subject.Module) (ids []string) {
	for _, res := range r.w.resources {
		if res.Module == m && (res.Kind == resource.KindBundle || res.Kind == resource.KindImage) {
			ids = append(ids, res.ID)
		}
	}
	return ids
}

// input is what the plan of w is made from.
func (e *Engine) input(w *work, boot bool) plan.Input {
	return plan.Input{Node: e.cfg.Node, Kept: keptNow(w.d.Keeps, e.cfg.Clock.Now()), Resources: w.resources, Unreadable: w.unreadable, Ledger: w.ledger,
		Observed: w.see, Drift: w.d.Drift, Boot: boot, Keep: w.keep, Remove: w.d.Remove}
}

package agent

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"mesh/agent/filter"
	"mesh/agent/show"
	"mesh/agent/state"
	"mesh/shared/declaration"
	"mesh/shared/report"
	"mesh/shared/subject"
)

const (
	// lastProblems is how many problems a report carries.
	lastProblems = 5
	// digestBound is how long a report waits for the digest of the agent's own file.
	digestBound = time.Second
)

// report makes a report when it is news, or when somebody waits for it. News goes through the outbox, and
// waits is true then. An answer that is none goes past it: nothing of it is lost with this process, since
// the next one begins with a report.
func (a *Agent) report(ctx context.Context) (waits bool, err error) {
	a.knowDigest(ctx)
	r, now := a.compose(ctx), a.cfg.Clock.Now()
	isNews, key, err := a.news.is(r, now)
	if err != nil || !isNews && !a.owed {
		return false, err
	}
	if r.Number, err = a.store.NextReportNumber(ctx); err != nil {
		return false, fmt.Errorf("number a report: %w", err)
	}
	a.made.Store(r.Number) // before it can be heard: what was said before stands no more
	b, err := encode(r)
	if err != nil {
		return false, err
	}
	o := state.Out{Subject: subject.Report(a.node), Kind: state.KindReport, Body: b}
	if isNews {
		put := a.store.Put
		if up, _, _ := a.conn.State(); up && len(r.Drift) == 0 { // all it says can be looked up again
			put = a.store.Offer
		}
		if _, err := put(ctx, o); err != nil {
			return false, err
		}
		a.link.Kick()
	} else {
		if o.ID, err = a.messageID(); err != nil {
			return false, err
		}
		a.link.Answer(o)
	}
	a.news.said(r, key, now)
	a.drift, a.owed = nil, false
	return isNews, nil
}

// messageID is unguessable: ids are one namespace a stream (facts/bus.md §2).
func (a *Agent) messageID() (string, error) {
	var b [16]byte
	if _, err := io.ReadFull(a.cfg.Rand, b[:]); err != nil {
		return "", fmt.Errorf("make a message id: %w", err)
	}
	return hex.EncodeToString(b[:]), nil
}

// knowDigest waits for the digest of the agent's own file, which was begun at the start: without it the
// first report would be followed by another.
func (a *Agent) knowDigest(ctx context.Context) {
	if a.digest == nil {
		return
	}
	select {
	case a.me.Digest = <-a.digest:
		a.digest = nil
	case <-a.cfg.Clock.After(digestBound): // a disk that hangs
	case <-ctx.Done():
	}
}

// encode makes the message. What would be too large for the bus loses its long lists first.
func encode(r report.Report) ([]byte, error) {
	b, err := json.Marshal(r)
	for _, shorten := range []func(){
		func() { r.Drift, r.Problems, r.Strays = nil, nil, nil },
		func() {
			for i := range r.Held {
				r.Held[i].Difference = nil
			}
		},
		func() {
			modules := make([]report.Module, len(r.Modules))
			for i, m := range r.Modules {
				m.Detail = m.Detail[:min(len(m.Detail), 200)]
				modules[i] = m
			}
			r.Modules = modules
		},
	} {
		if err != nil || len(b) <= report.MaxSize {
			break
		}
		shorten()
		b, err = json.Marshal(r)
	}
	if err != nil {
		return nil, fmt.Errorf("encode report: %w", err)
	}
	return b, nil
}

// compose is what the node says of itself now.
func (a *Agent) compose(ctx context.Context) report.Report {
	_, account := a.account()
	r := report.Report{
		Format: report.Format, Mesh: a.cfg.Credential.Mesh, Node: a.node, Boot: a.boot, At: a.cfg.Clock.Now().UnixMilli(), Agent: a.me,
		Apply: account, Modules: a.withOwn(a.store.Modules()), Profile: a.profile, Drift: a.drift, Strays: a.view.last.Strays, FreeDisk: freeDisk(a.cfg.Dir),
	}
	s := a.filterState()
	r.Uplinks, r.Tunnel = s.Uplinks, strings.Join(s.Tunnel, ",")
	r.Filter, r.Refusals, r.Exposed = filterWords(a.declaredFilter(), s), a.refuses, report.Few(a.exposed)
	r.Converge = a.converge()
	r.Held, r.Taken = slices.Clone(a.view.last.Held), slices.Clone(a.view.last.Taken)
	r.ShortenHeld()
	r.Keys = a.instanceKeys()
	var err error
	if r.Dropped, err = a.store.Dropped(ctx); err == nil {
		r.Problems, err = a.store.Problems(ctx, lastProblems)
	}
	if err != nil {
		a.cfg.Log.Error("a report lacks what the store would not tell", "err", err)
	}
	return r
}

// account is the declaration held, and how it stands with it.
func (a *Agent) account() (held uint64, account report.Apply) {
	held, _ = a.store.Newest()
	return held, a.view.account(held)
}

// converge is how the packet filter was handed over; nil when it never was.
func (a *Agent) converge() *report.Converge {
	if a.machine.Converge == nil {
		return nil
	}
	return a.machine.Converge.Status()
}

func (a *Agent) filterState() filter.State {
	if a.machine.Filter == nil {
		return filter.State{}
	}
	return a.machine.Filter.State()
}

func (a *Agent) declaredFilter() *declaration.Filter {
	if d := a.engine.Declared(); d != nil {
		return d.Filter
	}
	return nil
}

// filterWords is the packet filter as report and show say it; nil when none was ever declared here.
func filterWords(declared *declaration.Filter, s filter.State) *report.Filter {
	if declared == nil && !s.Loaded && len(s.Rules) == 0 {
		return nil
	}
	out := &report.Filter{Loaded: s.Loaded, Repairs: s.Repairs}
	if !s.Since.IsZero() {
		out.Since = s.Since.UnixMilli()
	}
	for _, a := range s.Rules {
		out.Rules = append(out.Rules, a.String())
	}
	if s.Repairs > 0 {
		out.Repaired = fmt.Sprintf("%s, by %s", s.LastDrift, s.LastRepairBy)
	}
	out.Why = filterTrouble(s)
	return out
}

// filterTrouble is what is amiss with the packet filter, the worst first, or "".
func filterTrouble(s filter.State) string {
	switch {
	case s.LastRefusal != nil:
		return s.LastRefusal.Error()
	case s.Conceded != "":
		return fmt.Sprintf("%s puts into mesh's table again and again what is not mesh's, and mesh left it there: %s", s.LastRepairBy, s.Conceded)
	case s.Fought:
		return fmt.Sprintf("%s undoes mesh's repairs (%s); it is repaired twice a second at most", s.LastRepairBy, s.LastDrift)
	case !s.Loaded && len(s.Rules) > 0:
		return "the kernel's table is not as it should be: " + s.LastDrift
	case !s.Loaded:
		return "it is declared and not put in force yet"
	case len(s.NotInside) > 0:
		return "declared inside, and outside all the same, since the default route leaves over it or it is the tunnel: " + strings.Join(s.NotInside, ", ")
	case s.BootWhy != "":
		return "what stands at the next boot is not this: " + s.BootWhy
	}
	return ""
}

// document is what show is told, and what the history keeps.
func (a *Agent) document(ctx context.Context) (*show.Document, error) {
	d, err := show.Gather(ctx, a.store, a.runtime())
	if err == nil {
		err = a.keep(ctx, d)
	}
	return d, err
}

// changed notes that this machine is other than it was. That is looked at in full when somebody asks or within a
// minute: at once where nobody can ask, and when something is amiss, since the end may be near.
func (a *Agent) changed(ctx context.Context) {
	if a.change.IsZero() {
		a.change = a.cfg.Clock.Now()
	}
	if _, account := a.account(); !a.asked || account.Outcome == report.Failed || account.Outcome == report.Refused {
		a.layDown(ctx)
	}
}

// layDown writes what show reads when the daemon is down. While it lives it is asked.
func (a *Agent) layDown(ctx context.Context) {
	if a.cfg.Run == "" {
		return
	}
	d, err := a.document(ctx)
	if err == nil {
		err = a.write(d)
	}
	if err != nil && ctx.Err() == nil {
		a.cfg.Log.Error("status could not be written", "err", err)
	}
}

// write lays d down, unless it says what was laid down before; where nobody can ask, a moment before.
func (a *Agent) write(d *show.Document) error {
	now := a.cfg.Clock.Now()
	if a.laid != nil && (a.asked || now.Sub(a.laidAt) < reconcileEvery) {
		same := *d
		same.At, same.FreeDisk, same.Since = a.laid.At, a.laid.FreeDisk, a.laid.Since // times and log lines are no news
		if reflect.DeepEqual(&same, a.laid) {
			return nil
		}
	}
	if err := d.Write(filepath.Join(a.cfg.Run, StatusFile)); err != nil {
		return err
	}
	a.laid, a.laidAt = d, now
	return nil
}

// keep has the store remember what of d is other than it was (NOD-15), from the first look on: what is not known
// before it did not change.
func (a *Agent) keep(ctx context.Context, d *show.Document) error {
	if !a.looked {
		return nil
	}
	at := a.change
	if at.IsZero() {
		at = a.cfg.Clock.Now()
	}
	parts, err := show.Parts(a.kept, d, a.boot)
	if err == nil && len(parts) > 0 {
		err = a.store.Remember(ctx, at, parts, a.kept == nil)
	}
	if err != nil {
		return err
	}
	a.kept, a.change, d.Since = d, time.Time{}, a.store.Since()
	return nil
}

func (a *Agent) runtime() show.Runtime {
	up, since, why := a.conn.State()
	s := a.filterState()
	held, account := a.account()
	r := show.Runtime{
		Node: a.node, Mesh: a.cfg.Credential.Mesh, Agent: a.me, Daemon: a.self, Sending: a.sending, At: a.cfg.Clock.Now().UnixMilli(),
		Bus:     show.Bus{Up: up, Since: since.UnixMilli(), Address: strings.Join(a.cfg.Credential.Bus.Addresses, ", ")},
		Uplinks: s.Uplinks, Tunnel: strings.Join(s.Tunnel, ","), Filter: filterWords(a.declaredFilter(), s),
		Converge: a.converge(), Exposed: report.Few(a.exposed), Strays: a.view.last.Strays, Left: a.view.last.Left, Held: a.view.last.Held, Taken: a.view.last.Taken, FreeDisk: freeDisk(a.cfg.Dir), Profile: a.profile,
		Declaration: show.Declaration{Seq: held, Outcome: account.Outcome, Refused: account.Refused, TookMS: account.TookMS},
	}
	switch {
	case !up && why != nil:
		r.Bus.Why = why.Error()
	case up: // otherwise the client may be in the middle of a try, and would let us wait
		if at := a.conn.NATS().ConnectedAddr(); at != "" {
			r.Bus.Address = at
		}
	}
	if account.Seq != held {
		r.Declaration.RefusedSeq = account.Seq
	}
	if d := a.engine.Declared(); d != nil {
		r.Declaration.Drift = string(d.Drift)
	}
	if at := a.store.NewestAt(); !at.IsZero() {
		r.Declaration.Accepted = at.UnixMilli()
	}
	return r
}

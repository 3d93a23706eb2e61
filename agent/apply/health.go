package apply

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"mesh/agent/health"
	"mesh/agent/host/engine"
	"mesh/agent/host/systemd"
	"mesh/agent/plan"
	"mesh/agent/resource"
	"mesh/agent/state"
	"mesh/shared/manifest"
	"mesh/shared/report"
	"mesh/shared/subject"
)

// Programs is what *systemd.Conn does to run what is asked of health.
type Programs interface {
	RunAs(ctx context.Context, name string, p systemd.Program) (exit int, output string, err error)
}

// trial is an instance that has to prove itself. It is of this life: an agent that begins anew gives the whole
// time again.
type trial struct {
	health.Trial
	sum   string
	since time.Time // by the clock on the wall, for the journal
}

// Run asks how what runs is, until ctx ends.
func (e *Engine) Run(ctx context.Context) error { return e.prober.Run(ctx) }

// Changed says that the health of something changed, and a pass is due.
func (e *Engine) Changed() <-chan struct{} { return e.prober.Changed() }

// runProgram runs what is asked by. What a killed command leaves in a container is killed after it.
func (e *Engine) runProgram(ctx context.Context, p health.Program) (int, string, error) {
	if e.cfg.Host.Programs == nil {
		return 0, "", errNoUnits
	}
	name := engine.UnitPrefix + "health-" + strings.TrimSuffix(p.Unit, ".service")
	exit, out, err := e.cfg.Host.Programs.RunAs(ctx, name, systemd.Program{Argv: p.Argv, User: p.User, Directory: p.Directory, Env: p.Env, EnvFile: p.EnvFile})
	if ctx.Err() != nil && p.Container != "" {
		e.killProbes(context.WithoutCancel(ctx), name, p.Unit)
	}
	return exit, out, err
}

// killBound is for the end of what was asked in a container.
const killBound = 10 * time.Second

// killProbes ends what bears the mark of unit's probes, wherever it hid.
func (e *Engine) killProbes(ctx context.Context, name, unit string) {
	ctx, cancel := context.WithTimeout(ctx, killBound)
	defer cancel()
	const script = `grep -lzx -- "$1" /proc/[0-9]*/environ 2>/dev/null | while IFS=/ read -r _ _ p _; do kill -9 "$p"; done`
	_, _, err := e.cfg.Host.Programs.RunAs(ctx, name+"-kill", systemd.Program{Argv: []string{"sh", "-c", script, "sh", engine.ProbeVar + "=" + unit}})
	if err != nil {
		e.cfg.Log.Warn("what was asked in a container may go on there", "unit", unit, "err", err)
	}
}

// checkOf is what is asked about a unit; ok is false when nothing is.
func (e *Engine) checkOf(u *resource.Unit) (c health.Check, ok bool) {
	if u == nil || !u.Started || u.Health == nil || u.Health.Check == nil {
		return health.Check{}, false
	}
	c = *u.Health.Check
	c.Key = checkKey(u)
	if p := c.Program; p != nil && p.Container != "" {
		if e.box == nil {
			return health.Check{}, false
		}
		in := *p
		in.Name = p.Argv[0]
		in.Argv = e.box.ExecWords(p.Container, p.Unit, p.Argv)
		c.Program = &in
	}
	return c, true
}

func checkKey(u *resource.Unit) string { return u.Name + " " + u.Trigger }

// watch has asked about what runs now.
func (r *run) watch(states map[string]plan.Unit) {
	var all []health.Check
	for i := range r.w.resources {
		u := r.w.resources[i].Unit
		if c, ok := r.checkOf(u); ok && states[u.Name].Running() {
			all = append(all, c)
		}
	}
	r.prober.Watch(all)
}

// ask begins to ask about a unit that was just started.
func (r *run) ask(name string) {
	for i := range r.w.resources {
		if u := r.w.resources[i].Unit; u != nil && u.Name == name {
			if c, ok := r.checkOf(u); ok {
				r.prober.Add(c)
			}
		}
	}
}

// answers is what the asked units of a module say: what is not known well, and what is known to be unwell.
func (r *run) answers(m subject.Module) (amiss, unwell string) {
	var doubt, bad []string
	for i := range r.w.resources {
		res := &r.w.resources[i]
		if res.Module != m {
			continue
		}
		if _, ok := r.checkOf(res.Unit); !ok {
			continue
		}
		s := r.prober.Standing(checkKey(res.Unit))
		if s.Well {
			continue
		}
		why := s.Why
		if why == "" {
			why = "it has not answered yet"
		}
		why = strings.TrimSuffix(res.Unit.Name, ".service") + ": " + why
		doubt = append(doubt, why)
		if s.Known {
			bad = append(bad, why)
		}
	}
	return strings.Join(doubt, "; "), strings.Join(bad, "; ")
}

// prove judges the instances of this pass: what is new has to prove itself, what fails to goes back, and what is
// good is said to be unhealthy while it is.
func (r *run) prove(ctx context.Context, mods []report.Module, states map[string]plan.Unit, paused map[subject.Module]string) (goods []state.Good) {
	r.health.heard = r.prober.News()
	before := map[subject.Module]report.Module{}
	for _, m := range r.cfg.Store.Modules() {
		before[m.Name] = m
	}
	for i := range mods {
		m := &mods[i]
		p := r.health.proofs[m.Name]
		if p == nil {
			p = &proof{}
		}
		switch sum := r.w.sums[m.Name]; {
		case r.w.back[m.Name] != nil:
			r.sayBack(m, p)
		case p.Sum == sum:
			delete(r.health.trials, m.Name)
			r.sayHealth(m, before[m.Name])
		default:
			if g := r.try(ctx, m, p, sum, states, paused[m.Name] != ""); g != nil {
				goods = append(goods, *g)
			} else if body := r.keepBody(ctx, m.Name, p); body != nil {
				if g, err := p.staging(m.Name, body); err == nil {
					goods = append(goods, g)
				}
			}
		}
	}
	for m := range r.health.proofs {
		if _, declared := r.w.sums[m]; !declared {
			delete(r.health.proofs, m)
			delete(r.health.goods, m)
			delete(r.health.sums, m)
			delete(r.health.kept, m)
			delete(r.health.trials, m)
			goods = append(goods, state.Good{Module: string(m)})
		}
	}
	return goods
}

// sayHealth says of what is good, and up, whether it is well. As long as that is not known it is as it was.
func (r *run) sayHealth(m *report.Module, before report.Module) {
	if m.State != report.Running {
		return
	}
	amiss, unwell := r.answers(m.Name)
	switch {
	case unwell != "":
		m.State, m.Detail = report.Unwell, unwell
	case amiss != "" && before.State == report.Unwell && before.Build == m.Build:
		m.State, m.Detail = report.Unwell, before.Detail
	}
}

// sayBack says of a module that went back what failed and what runs.
func (r *run) sayBack(m *report.Module, p *proof) {
	now := m.Build + ", which runs"
	if p.FailedBuild == m.Build {
		now = "how it was declared before, which runs"
	}
	_, unwell := r.answers(m.Name)
	switch {
	case m.State == report.Pending:
		now = m.Build + ", which is on its way: " + m.Detail
	case m.State != report.Running:
		now = m.Build + ", which is not well either: " + m.Detail
	case unwell != "":
		now = m.Build + ", which is not well either: " + unwell
	}
	m.State, m.Log, m.FailedBuild = report.Broken, p.Log, p.FailedBuild
	m.Detail = fmt.Sprintf("%s: %s; rolled back to %s", p.FailedBuild, p.Why, now)
}

// try judges an instance that is not good yet. It returns what is to be kept of it; nil for nothing.
func (r *run) try(ctx context.Context, m *report.Module, p *proof, sum string, states map[string]plan.Unit, paused bool) *state.Good {
	signs := r.signs(m, states)
	if p.Failed == sum { // there is nothing to go back to; it may still get well
		if signs.Up && signs.Amiss == "" {
			return r.proved(m, p, sum)
		}
		if m.State == report.Running {
			m.State, m.Detail = report.Broken, signs.Amiss
		}
		m.Log, m.FailedBuild = p.Log, p.FailedBuild
		return nil
	}
	t := r.trial(m, sum, paused)
	if t == nil || !r.judged(m.Name) {
		return nil
	}
	switch v, why := t.Judge(signs, r.cfg.Clock.Now()); v {
	case health.Proved:
		return r.proved(m, p, sum)
	case health.Failed:
		return r.didNot(ctx, m, p, t, why)
	}
	if (t.Asked || p.Sum != "") && m.State != report.Pending {
		m.State, m.Detail = report.Pending, "it is given "+t.Within.String()+" to get well: "+signs.Amiss
		r.waits(m.Name, &late{m.Detail, lookAgain, true})
	}
	return nil
}

// trial is the trial of an instance; nil before it began: as long as it was not started nothing is its fault.
func (r *run) trial(m *report.Module, sum string, paused bool) *trial {
	t := r.health.trials[m.Name]
	if t != nil && t.sum == sum {
		return t
	}
	l := r.late[m.Name]
	if paused || !r.judged(m.Name) || l != nil && !l.taken {
		return nil
	}
	t = &trial{sum: sum, since: r.w.start}
	t.Began = r.cfg.Clock.Now()
	for _, res := range r.w.resources {
		if res.Module == m.Name && res.Kind == resource.KindUnit && res.Unit.Health != nil {
			t.Asked, t.Within = true, max(t.Within, res.Unit.Health.Within)
		}
	}
	if !t.Asked {
		t.Within = manifest.DefaultWithin
	}
	r.health.trials[m.Name] = t
	return t
}

// judged reports whether what is seen of a module is the instance's doing: not that it could not be fetched, that
// something else stands in its way, or that systemd is not there.
func (r *run) judged(m subject.Module) bool {
	if err := r.why(m); err != nil && !errors.Is(err, plan.ErrBadUnit) && !errors.Is(err, systemd.ErrBadUnit) {
		return false
	}
	return r.w.plan.Unknown[m] == nil && (r.w.see.UnitsError == nil || !r.hasUnits(m))
}

// signs are what is seen of an instance.
func (r *run) signs(m *report.Module, states map[string]plan.Unit) (s health.Signs) {
	s.Up, s.Moving = m.State == report.Running, m.State == report.Pending
	if s.Amiss, _ = r.answers(m.Name); !s.Up {
		s.Amiss = m.Detail
	}
	for _, res := range r.w.resources {
		if res.Module != m.Name || res.Kind != resource.KindUnit || !res.Unit.Started {
			continue
		}
		if have := states[res.Unit.Name]; have.Active == "failed" && !have.Job {
			s.GaveUp = res.Unit.Name + ": " + unwell(res.Unit, have)
		}
	}
	if err := r.why(m.Name); err != nil {
		s.GaveUp = oneLine(err)
	}
	return s
}

// proved notes that an instance is good from now on.
func (r *run) proved(m *report.Module, p *proof, sum string) *state.Good {
	next := &proof{Sum: sum, Build: m.Build, Keeps: r.keptBy(m.Name)}
	g, err := next.staging(m.Name, nil) // the declaration has the rest
	if err != nil {
		r.cfg.Log.Error("a good build is not kept", "module", m.Name, "err", err)
		return nil
	}
	r.health.proofs[m.Name] = next
	delete(r.health.trials, m.Name)
	delete(r.health.goods, m.Name)
	if p.Sum != "" || p.Failed != "" {
		r.cfg.Log.Info("a build got well", "module", m.Name, "build", m.Build)
	}
	return &g
}

// didNot notes that an instance failed: it goes back, or stays for want of a better one.
func (r *run) didNot(ctx context.Context, m *report.Module, p *proof, t *trial, why string) *state.Good {
	next := *p
	next.Failed, next.FailedBuild, next.Why, next.Log = t.sum, m.Build, why, r.lines(ctx, m.Name, t.since)
	m.State, m.Detail, m.Log, m.FailedBuild = report.Broken, why, next.Log, m.Build
	if p.Sum != "" && r.good(ctx, m.Name, p.Sum) != nil {
		r.health.due = append(r.health.due, due{m.Name, &next})
		return nil
	}
	r.health.proofs[m.Name] = &next
	delete(r.health.trials, m.Name)
	r.cfg.Log.Error("a build did not get well, and there is none to go back to", "module", m.Name, "build", m.Build, "why", why)
	g, err := next.staging(m.Name, nil)
	if err != nil {
		r.cfg.Log.Error("a build that failed is not kept in mind", "module", m.Name, "err", err)
		return nil
	}
	return &g
}

const (
	// lastLines is how many lines of the journal are told of what failed.
	lastLines = 10
	// maxLine bounds one of them in bytes.
	maxLine = 240
)

// lines are the last that the module's units said since a time.
func (r *run) lines(ctx context.Context, m subject.Module, since time.Time) string {
	if r.cfg.Journal == nil {
		return ""
	}
	var units []string
	for _, res := range r.w.resources {
		if res.Module == m && res.Kind == resource.KindUnit && strings.HasSuffix(res.Unit.Name, ".service") {
			units = append(units, res.Unit.Name)
		}
	}
	if len(units) == 0 {
		return ""
	}
	said, err := r.cfg.Journal(ctx, units, since, lastLines)
	if err != nil {
		r.cfg.Log.Warn("what a build said last could not be read", "module", m, "err", err)
		return ""
	}
	size, first := 0, len(said)
	for i := len(said) - 1; i >= 0; i-- { // the end tells most
		said[i] = report.Cut(strings.Map(printable, said[i]), maxLine)
		if size += len(said[i]) + 1; size > report.MaxLog {
			break
		}
		first = i
	}
	return strings.Join(said[first:], "\n")
}

// printable keeps a line of a program's a line, and from steering a terminal.
func printable(c rune) rune {
	if c < 0x20 && c != '\t' || c >= 0x7f && c < 0xa0 {
		return ' '
	}
	return c
}

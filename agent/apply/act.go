package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"mesh/agent/host/file"
	"mesh/agent/host/systemd"
	"mesh/agent/host/user"
	"mesh/agent/plan"
	"mesh/agent/resource"
	"mesh/agent/state"
	"mesh/shared/refusal"
	"mesh/shared/subject"
)

// run is one plan being acted out.
type run struct {
	*Engine
	w     *work
	slots chan struct{} // bounds what is done side by side
	until time.Time     // the pass waits for nothing longer
	// filtered is closed once the packet filter was seen to; no unit starts before.
	filtered chan struct{}

	mu      sync.Mutex // guards the fields below
	failed  map[subject.Module]error
	late    map[subject.Module]*late
	outcome state.Batch
	steps   int
	started map[string]systemd.Verdict
	begun   map[string]bool // units started: for a reason of their own, or (false) because they had failed
}

// act performs the plan: what all modules stand on first, bundles beside each other, then the modules in
// one wave, with one reload. Modules whose bundle takes long follow in a second wave.
func (r *run) act(ctx context.Context) {
	r.outcome.Delete = append(r.outcome.Delete, r.w.plan.Forget...)
	r.ground(ctx)
	late := r.fetch(ctx)
	r.wave(ctx, func(m subject.Module) bool { return !late.has(m) })
	if late.wait() {
		r.wave(ctx, late.has)
	}
}

func (r *run) ground(ctx context.Context) {
	for _, s := range r.w.plan.Steps {
		if s.Op.Phase() != plan.Ground {
			continue
		}
		shared := s.Op == plan.MakeDir && s.Want.Dir.Implied
		if r.failure(s.Module) == nil || shared {
			_, _ = r.step(ctx, s) // it took its failure down
		}
	}
}

// lateness is which modules' bundles are still on their way.
type lateness struct {
	modules map[subject.Module]bool
	done    <-chan struct{}
}

func (l lateness) has(m subject.Module) bool { return l.modules[m] }

// wait returns whether there were late ones, once they are there.
func (l lateness) wait() bool {
	if len(l.modules) == 0 {
		return false
	}
	<-l.done
	return true
}

// fetch starts all fetches and waits a moment for them. Modules that have one bundle wait for each other.
func (r *run) fetch(ctx context.Context) lateness {
	var wg sync.WaitGroup
	all := make(chan struct{})
	var mu sync.Mutex // guards pending
	pending := map[subject.Module]bool{}
	same := map[string][]plan.Step{} // by digest
	for _, s := range r.w.plan.Steps {
		if s.Op.Phase() == plan.Fetching && r.failure(s.Module) == nil {
			pending[s.Module] = true
			digest := digestOf(s.Want)
			same[digest] = append(same[digest], s)
		}
	}
	if len(pending) == 0 {
		return lateness{}
	}
	for _, steps := range same {
		wg.Add(1)
		go func() { // ends with the fetch, which ends with ctx
			defer wg.Done()
			for _, s := range steps {
				if r.slot(ctx) {
					_, _ = r.step(ctx, s) // it took its failure down
					r.free()
				}
				mu.Lock()
				delete(pending, s.Module)
				mu.Unlock()
			}
		}()
	}
	go func() { // ends with the fetches
		wg.Wait()
		close(all)
	}()
	select {
	case <-all:
		return lateness{}
	case <-r.cfg.Clock.After(fetchGrace):
	}
	mu.Lock()
	defer mu.Unlock()
	return lateness{modules: maps.Clone(pending), done: all}
}

// digestOf tells what is fetched from what else is.
func digestOf(r *resource.Resource) string {
	if r.Kind == resource.KindImage {
		return r.Image.Word()
	}
	return r.Bundle.Artifact.Digest
}

// wave brings the modules it is for to their end.
func (r *run) wave(ctx context.Context, mine func(subject.Module) bool) {
	r.each(ctx, mine, plan.Making, nil)
	r.enable(ctx, mine)
	r.reload(ctx, mine)
	<-r.filtered
	r.each(ctx, mine, plan.Starting, r.settle)
	r.each(ctx, mine, plan.Cleaning, nil)
}

// each performs the steps of one phase, module beside module, each up to its first failure; then does
// then, for modules that had steps.
func (r *run) each(ctx context.Context, mine func(subject.Module) bool, phase plan.Phase, then func(context.Context, subject.Module, []systemd.JobResult)) {
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := r.slots
	if n := cap(slots); phase == plan.Starting && n > 1 {
		slots = make(chan struct{}, n*startsAtOnce)
	}
	steps := r.w.plan.Steps
	for len(steps) > 0 {
		m, n := steps[0].Module, 1
		for n < len(steps) && steps[n].Module == m && steps[n].Op.Phase() == steps[0].Op.Phase() {
			n++
		}
		group := steps[:n]
		steps = steps[n:]
		if group[0].Op.Phase() != phase || !mine(m) || r.failure(m) != nil {
			continue
		}
		wg.Add(1)
		go func() { // ends with its steps
			defer wg.Done()
			jobs, ok := r.group(ctx, slots, group)
			if then != nil && ok {
				then(ctx, m, jobs)
			}
		}()
	}
}

// startsAtOnce is how many modules start side by side for each that is worked on otherwise: it is systemd that
// works then, and orders what has an order.
const startsAtOnce = 8

// group performs steps in turn, with a slot; ok is false when ctx ended before they began.
func (r *run) group(ctx context.Context, slots chan struct{}, group []plan.Step) (jobs []systemd.JobResult, ok bool) {
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	case <-ctx.Done():
		return nil, false
	}
	for _, s := range group {
		job, err := r.step(ctx, s)
		if err != nil {
			break
		}
		if job != nil {
			jobs = append(jobs, *job)
		}
	}
	return jobs, true
}

// slot waits for leave to work.
func (r *run) slot(ctx context.Context) bool {
	select {
	case r.slots <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (r *run) free() { <-r.slots }

// settle waits until the module's units proved that they stay up, without a slot: others go on.
func (r *run) settle(ctx context.Context, m subject.Module, jobs []systemd.JobResult) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, job := range jobs {
		wg.Add(1)
		go func() { // ends after the settling time, or with ctx
			defer wg.Done()
			r.ask(job.State.Name)
			v, err := r.cfg.Host.Units.Settle(ctx, job, r.cfg.Settle)
			if err != nil {
				r.fail(ctx, m, err)
				return
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			r.started[job.State.Name] = v
		}()
	}
}

// enable enables all units in one call.
func (r *run) enable(ctx context.Context, mine func(subject.Module) bool) {
	var steps []plan.Step
	var names []string
	for _, s := range r.w.plan.Steps {
		if s.Op == plan.Enable && mine(s.Module) && r.failure(s.Module) == nil {
			steps, names = append(steps, s), append(names, s.Name())
		}
	}
	if len(steps) == 0 || ctx.Err() != nil {
		return
	}
	r.cfg.FailPoint(before(plan.Enable))
	_, err := r.cfg.Host.Units.Enable(ctx, names)
	r.cfg.FailPoint(after(plan.Enable))
	for _, s := range steps {
		one := err
		if err != nil && len(steps) > 1 { // one that cannot be enabled is no reason for the others
			_, one = r.cfg.Host.Units.Enable(ctx, []string{s.Name()})
		}
		if one != nil {
			one = fmt.Errorf("%s %s: %w", s.Op, s.Name(), one)
		}
		r.close(ctx, s, one)
	}
}

// reload makes systemd read its files once, if any of these modules changed one.
func (r *run) reload(ctx context.Context, mine func(subject.Module) bool) {
	due, planned := false, false
	for _, s := range r.w.plan.Steps {
		switch s.Op {
		case plan.WriteUnit, plan.RemoveUnit, plan.Enable, plan.Disable:
			due = due || mine(s.Module)
		case plan.Reload:
			planned = true
		}
	}
	// A reload that no step asks for is for a file that somebody else changed: the first wave's.
	others := planned && !slices.ContainsFunc(r.w.plan.Steps, func(s plan.Step) bool {
		return s.Op == plan.WriteUnit || s.Op == plan.RemoveUnit || s.Op == plan.Enable || s.Op == plan.Disable
	})
	if !due && !others || ctx.Err() != nil {
		return
	}
	r.cfg.FailPoint(before(plan.Reload))
	err := r.cfg.Host.Units.Reload(ctx)
	r.cfg.FailPoint(after(plan.Reload))
	r.mu.Lock()
	r.steps++
	r.mu.Unlock()
	if err == nil {
		return
	}
	for _, s := range r.w.plan.Steps { // none of them can go on: systemd would start what it knew before
		if s.Op.Phase() == plan.Starting && mine(s.Module) {
			r.fail(ctx, s.Module, err)
		}
	}
}

// step performs one act and takes its outcome down.
func (r *run) step(ctx context.Context, s plan.Step) (*systemd.JobResult, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r.cfg.FailPoint(before(s.Op))
	job, err := r.do(ctx, s)
	r.cfg.FailPoint(after(s.Op))
	if l := (*late)(nil); errors.As(err, &l) {
		if l.taken {
			err = r.close(ctx, s, nil)
		}
		r.waits(s.Module, l)
		return nil, cmp.Or(err, error(l))
	}
	if err != nil {
		err = named(fmt.Errorf("%s %s: %w", s.Op, s.Name(), err), s)
	}
	return job, r.close(ctx, s, err)
}

// close takes the outcome of a step down. Starts are written at once: a repeated one is felt.
func (r *run) close(ctx context.Context, s plan.Step, err error) error {
	if err != nil {
		r.fail(ctx, s.Module, err)
		return err
	}
	r.cfg.Log.Info("step done", "module", s.Module, "step", string(s.Op), "thing", s.ID, "why", s.Reason)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.steps++
	var now state.Batch
	into := &r.outcome
	if s.Op.Phase() == plan.Starting {
		into = &now
	}
	if s.Done != nil {
		into.Put = append(into.Put, *s.Done)
	}
	if s.Forget {
		into.Delete = append(into.Delete, s.ID)
	}
	if s.OverFile {
		into.Delete = append(into.Delete, resource.ID(resource.KindFile, s.Name()))
	}
	if s.Op.Phase() != plan.Starting {
		return nil
	}
	r.cfg.FailPoint(beforeOutcome)
	err = r.cfg.Store.Done(context.WithoutCancel(ctx), now)
	r.cfg.FailPoint(afterOutcome)
	return err
}

// fail stops a module. That the agent itself is ending is no failure of the module's.
func (r *run) fail(ctx context.Context, m subject.Module, err error) {
	if ctx.Err() != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed[m] == nil {
		r.failed[m] = err
	}
}

// failure says why no more is to be done for a module in this pass.
func (r *run) failure(m subject.Module) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.late[m]; l != nil {
		return l
	}
	return r.failed[m]
}

func (r *run) do(ctx context.Context, s plan.Step) (*systemd.JobResult, error) {
	units := r.cfg.Host.Units
	var err error
	switch s.Op {
	case plan.MakeUser:
		u := s.Want.User
		_, err = user.Ensure(ctx, r.root, r.cfg.Host.Runner, user.Spec{Name: u.Name, Home: u.Home, Shell: u.Shell, Groups: u.Groups})
		err = errors.Join(err, r.readAccounts())
	case plan.MakeDir, plan.ChangeDir:
		err = r.makeDir(s)
	case plan.Fetch:
		err = r.fetchBundle(ctx, s.Want.Bundle)
	case plan.WriteFile:
		f := s.Want.File
		err = r.write(s, f.Path, f.Owner, f.Group, file.Spec{Content: f.Content, Mode: f.Mode})
	case plan.WriteUnit:
		u := s.Want.Unit
		err = r.write(s, u.Path(), "root", "root", file.Spec{Content: u.Content, Mode: 0o644})
	case plan.Stop:
		_, err = r.job(ctx, s, units.Stop)
		if errors.Is(err, systemd.ErrNoUnit) {
			err = nil
		}
	case plan.Disable:
		_, err = units.Disable(ctx, []string{s.Name()})
	case plan.RemoveUnit:
		// A unit that failed would stay in systemd's list without a file.
		if err = units.ResetFailed(ctx, s.Name()); err != nil {
			break
		}
		_, err = r.root.Remove(resource.UnitFolder + "/" + s.Name())
	case plan.Start, plan.Restart:
		return r.startUnit(ctx, s)
	case plan.RemoveFile:
		_, err = r.root.Remove(s.Name())
	case plan.RemoveDir:
		if _, err = r.root.RemoveDir(s.Name()); errors.Is(err, file.ErrNotEmpty) {
			r.cfg.Log.Info("a folder stays: something is in it", "module", s.Module, "folder", s.Name())
			err = nil
		}
	case plan.RemoveBundle:
		err = r.removeBundle(s.ID)
	default:
		err = r.doThing(ctx, s)
	}
	return nil, err
}

func (r *run) startUnit(ctx context.Context, s plan.Step) (*systemd.JobResult, error) {
	units := r.cfg.Host.Units
	if s.Retry {
		if err := units.ResetFailed(ctx, s.Name()); err != nil {
			return nil, err
		}
	}
	start := units.Start
	if s.Op == plan.Restart {
		start = units.Restart
	}
	r.mu.Lock()
	r.begun[s.Name()] = s.Fresh || !s.Retry
	r.mu.Unlock()
	job, err := r.job(ctx, s, start)
	if err != nil {
		return nil, err
	}
	job.State.Name = s.Name()
	return &job, nil
}

// owner finds the ids of owner and group.
func (r *run) owner(owner, group string) (uid, gid int, err error) {
	u, ok := r.accounts.Users[owner]
	if !ok {
		return 0, 0, refusal.New("the owner "+owner, "this machine has no such user", "declare it under run.users, or choose another")
	}
	g, ok := r.accounts.Groups[group]
	if !ok {
		return 0, 0, refusal.New("the group "+group, "this machine has no such group", "make it, or choose another")
	}
	return u.UID, g.GID, nil
}

func (r *run) write(s plan.Step, path, owner, group string, spec file.Spec) (err error) {
	if spec.UID, spec.GID, err = r.owner(owner, group); err != nil {
		return err
	}
	// The store writes that it is done once its folder was synced (state.Store.Before).
	spec.Path, spec.MustNotExist, spec.OverLink, spec.LateFolder = path, s.New, s.OverLink, true
	_, err = r.root.Write(spec)
	return err
}

func (r *run) makeDir(s plan.Step) error {
	d := s.Want.Dir
	uid, gid, err := r.owner(d.Owner, d.Group)
	if err != nil {
		return err
	}
	if s.OverFile {
		if _, err := r.root.Remove(d.Path); err != nil {
			return err
		}
	}
	_, err = r.root.MakeDir(file.DirSpec{Path: d.Path, Mode: d.Mode, UID: uid, GID: gid})
	return err
}

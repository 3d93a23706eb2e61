package apply

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"mesh/agent/host/engine"
	"mesh/agent/host/user"
	"mesh/agent/plan"
	"mesh/agent/resource"
	"mesh/shared/manifest"
	"mesh/shared/refusal"
)

// container is the machine's engine; nil when it has none, or none is asked for.
func (e *Engine) container() *engine.Engine {
	if e.cfg.Host.Runner == nil {
		return nil
	}
	if e.box != nil {
		if st, err := e.root.Stat(e.box.Program()); err == nil && st.Exists {
			return e.box
		}
	}
	box, err := engine.Find(e.root, e.cfg.Host.Runner)
	if err != nil { // that there is none is said of each module that needs one
		box = nil
	}
	e.box = box
	return box
}

// endedAs is ended, with the engine's own words where it was the engine that failed (APP-14). They are read once:
// as long as the unit ends in the same way, before stands.
func (r *run) endedAs(ctx context.Context, unit string, have plan.Unit, before string) string {
	how := ended(have)
	if !have.Container || engine.Status(have.Status) == "" || r.cfg.Host.Runner == nil {
		return how
	}
	if strings.HasPrefix(before, how) {
		return before
	}
	_, out, err := r.cfg.Host.Runner.Run(ctx, engine.UnitPrefix+"words-"+strings.TrimSuffix(unit, ".service"),
		[]string{"journalctl", "--no-pager", "--quiet", "--output=cat", "--lines=20", "--unit=" + unit})
	if err != nil {
		return how
	}
	said := ""
	for line := range strings.Lines(out) {
		if line = strings.TrimSpace(line); strings.Contains(strings.ToLower(line), "error") {
			said = line
		}
	}
	if why, do := engine.Explain(said); why != "" {
		return how + ": " + why + "; " + do
	}
	return how
}

// machine is what modules need of it, and how units name the engine.
func (e *Engine) machine(manifests []manifest.Manifest) (resource.Machine, resource.Engine) {
	m := e.cfg.Host.Machine
	if !slices.ContainsFunc(manifests, func(m manifest.Manifest) bool { return m.NeedsEngine() }) {
		return m, resource.Engine{}
	}
	box := e.container()
	if box == nil {
		return m, resource.Engine{}
	}
	m.Engine = m.Engine || m != (resource.Machine{}) // one may have been installed since the start
	return m, resource.Engine{Docker: box.Kind() == engine.Docker, Program: box.Program()}
}

func imageOf(i *resource.Image) engine.Image {
	return engine.Image{Name: i.Name, Digest: i.Digest, ID: i.ID}
}

func networkOf(r *resource.Resource) engine.Network {
	n := r.Network
	return engine.Network{Name: n.Name, Subnet: n.Subnet, Internal: n.Internal, IPv6: n.IPv6, Labels: labelsOf(r)}
}

func labelsOf(r *resource.Resource) map[string]string {
	return map[string]string{engine.ModuleLabel: string(r.Module), engine.DigestLabel: resource.Sum([]byte(r.Text()))[:16]}
}

// doThing performs one act on what is neither a file nor a unit.
func (r *run) doThing(ctx context.Context, s plan.Step) error {
	switch s.Op {
	case plan.MakeGroup:
		_, err := user.EnsureGroup(ctx, r.root, r.cfg.Host.Runner, s.Name())
		return errors.Join(err, r.readAccounts())
	case plan.MakeLink:
		_, err := r.root.Link(s.Want.Link.Path, s.Want.Link.Target)
		return err
	case plan.RemoveLink:
		_, err := r.root.Remove(s.Name())
		return err
	case plan.LoadModule:
		return r.loadModule(ctx, s.Name())
	case plan.SetSysctl:
		return r.setSysctl(ctx, s.Want.Sysctl.Key, s.Want.Sysctl.Value)
	case plan.RestoreSysctl:
		back := s.Row.Trigger
		if back == "" {
			back = s.Row.WantTrigger
		}
		return r.setSysctl(ctx, s.Name(), back)
	case plan.Retire:
		return r.retire(ctx, s)
	case plan.DeleteFolder:
		return r.root.RemoveTree(ctx, s.Name())
	}
	box := r.box // the look found it; modules are worked on side by side, and none of them looks again
	if box == nil {
		return engine.Missing(s.ID)
	}
	switch s.Op {
	case plan.Pull:
		return r.pull(ctx, box, s)
	case plan.MakeNetwork:
		return r.makeNetwork(ctx, box, s)
	case plan.MakeVolume:
		return box.EnsureVolume(ctx, engine.Volume{Name: s.Name(), Labels: labelsOf(s.Want)})
	case plan.DeleteVolume:
		return box.RemoveVolume(ctx, s.Name())
	case plan.RemoveNetwork:
		if err := box.RemoveNetwork(ctx, s.Name()); !errors.Is(err, engine.ErrInUse) {
			return err
		}
		r.cfg.Log.Info("a network stays: a container is on it", "module", s.Module, "network", s.Name())
		return nil
	case plan.RemoveContainer:
		if s.Module == plan.Strays {
			if err := markedAsMeshs(ctx, box, s.Name()); err != nil {
				return err
			}
		}
		if all, known, err := box.Containers(); err == nil && known && !slices.Contains(all, s.Name()) {
			return nil // its unit ended it
		}
		return box.RemoveContainer(ctx, s.Name())
	case plan.RemoveImage:
		return box.RemoveImage(ctx, imageNamed(plan.ImageWord(s.ID)))
	}
	return fmt.Errorf("this agent does not know the step %q", s.Op)
}

// imageNamed is an image by the word a container is started from.
func imageNamed(word string) engine.Image {
	if name, digest, ok := strings.Cut(word, "@"); ok {
		return engine.Image{Name: name, Digest: digest}
	}
	return engine.Image{Digest: word, ID: word}
}

// makeNetwork makes a network, or makes it anew when it is another than declared. The units on it stand still.
func (r *run) makeNetwork(ctx context.Context, box *engine.Engine, s plan.Step) error {
	want := networkOf(s.Want)
	have, known, err := box.Network(want.Name)
	if err != nil {
		return err
	}
	if have != nil && known && have.Differs(want) != "" {
		if err := box.RemoveNetwork(ctx, want.Name); err != nil {
			return err
		}
	}
	var taken []netip.Prefix
	if r.cfg.Host.Taken != nil {
		if taken, err = r.cfg.Host.Taken(ctx); err != nil {
			return fmt.Errorf("which addresses are in use: %w", err)
		}
	}
	return box.EnsureNetwork(ctx, want, taken)
}

// retire ends a unit once those that take over from it are up.
func (r *run) retire(ctx context.Context, s plan.Step) error {
	units := r.cfg.Host.Units
	states, err := units.List(ctx, s.After)
	if err != nil {
		return err
	}
	for _, by := range s.After {
		r.mu.Lock()
		v, judged := r.started[by]
		r.mu.Unlock()
		if states[by].Active != "active" || judged && !v.OK {
			return &late{fmt.Sprintf("%s stays until %s is up", s.Name(), by), lookAgain, false}
		}
	}
	if _, err := r.job(ctx, s, units.Stop); err != nil {
		return err
	}
	if _, err := units.Disable(ctx, []string{s.Name()}); err != nil {
		return err
	}
	if err := units.ResetFailed(ctx, s.Name()); err != nil {
		return err
	}
	if _, err := r.root.Remove(resource.UnitFolder + "/" + s.Name()); err != nil {
		return err
	}
	return units.Reload(ctx)
}

// markedAsMeshs refuses a container that only bears a name as mesh gives it.
func markedAsMeshs(ctx context.Context, box *engine.Engine, name string) error {
	c, err := box.Inspect(ctx, name)
	if errors.Is(err, engine.ErrNoContainer) {
		return nil
	}
	if err == nil && c.Labels[engine.ModuleLabel] == "" {
		return refusal.New("the end of the container "+name, "it bears no label of mesh's: it is somebody's", "remove it by hand if nobody needs it")
	}
	return err
}

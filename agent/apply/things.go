package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"mesh/agent/host/engine"
	"mesh/agent/host/file"
	"mesh/agent/plan"
	"mesh/agent/resource"
	"mesh/agent/state"
	"mesh/shared/subject"
)

// containerUnits are the units among resources that are containers.
func containerUnits(all []resource.Resource) map[string]bool {
	out := map[string]bool{}
	for _, r := range all {
		if r.Kind == resource.KindUnit && r.Unit.Container != "" {
			out[r.Unit.Name] = true
		}
	}
	return out
}

// ofEngine are the kinds that only an engine has.
func ofEngine(kind resource.Kind) bool {
	switch kind {
	case resource.KindNetwork, resource.KindVolume, resource.KindImage, resource.KindContainer:
		return true
	}
	return false
}

// things looks at what is neither a file nor a unit, declared or in the ledger. Only for a container that is
// there and that the ledger does not know is the engine asked.
func (e *Engine) things(ctx context.Context, w *work) error {
	see := plan.Things{Sysctls: map[string]string{}, Modules: map[string]bool{}, Networks: map[string]plan.Network{},
		Volumes: map[string]bool{}, Images: map[string]bool{}, Containers: map[string]plan.Container{}}
	defer func() { w.see.Things = see }()
	rows := map[string]state.Row{}
	var box *engine.Engine
	asked := false
	look := func(kind resource.Kind, id string, r *resource.Resource) error {
		if ofEngine(kind) && !asked {
			box, asked = e.container(), true
			see.NoEngine = box == nil
		}
		if ofEngine(kind) && box == nil {
			return nil
		}
		_, name, _ := strings.Cut(id, ":")
		switch kind {
		case resource.KindSysctl:
			if v, ok := e.sysctlNow(name); ok {
				see.Sysctls[name] = v
			}
		case resource.KindModule:
			see.Modules[name] = e.moduleLoaded(name)
		case resource.KindNetwork:
			return e.seeNetwork(box, &see, name, r, rows[id].Phase == state.Done)
		case resource.KindVolume:
			there, known, err := box.HasVolume(name)
			see.Volumes[name] = there || !known && rows[id].Phase == state.Done
			return err
		case resource.KindImage:
			if r == nil {
				return nil
			}
			there, known, err := box.HasImage(imageOf(r.Image))
			see.Images[id] = there || !known && rows[id].Phase == state.Done
			return err
		case resource.KindContainer:
			if _, held := rows[id]; r == nil || held {
				return nil
			}
			return e.seeContainer(ctx, box, &see, name)
		}
		return nil
	}
	for _, row := range w.ledger {
		rows[row.ID] = row
	}
	declared := map[string]bool{}
	for i := range w.resources {
		r := &w.resources[i]
		declared[r.ID] = true
		if err := look(r.Kind, r.ID, r); err != nil {
			w.unreadable[r.Module] = errors.Join(w.unreadable[r.Module], err)
		}
	}
	for _, row := range w.ledger {
		if declared[row.ID] {
			continue
		}
		if err := look(resource.Kind(row.Kind), row.ID, nil); err != nil {
			m := subject.Module(row.Module)
			w.unreadable[m] = errors.Join(w.unreadable[m], err)
		}
	}
	return ctx.Err()
}

// seeNetwork believes the ledger, made, where files do not tell.
func (e *Engine) seeNetwork(box *engine.Engine, see *plan.Things, name string, r *resource.Resource, made bool) error {
	have, known, err := box.Network(name)
	if err != nil || have == nil && (known || !made) {
		return err
	}
	if have == nil {
		have = &engine.Network{}
	}
	n := plan.Network{Module: have.Labels[engine.ModuleLabel]}
	if known && r != nil {
		n.Differs = have.Differs(networkOf(r))
	}
	see.Networks[name] = n
	return nil
}

func (e *Engine) seeContainer(ctx context.Context, box *engine.Engine, see *plan.Things, name string) error {
	all, known, err := box.Containers()
	if err != nil || known && !slices.Contains(all, name) {
		return err
	}
	c, err := box.Inspect(ctx, name)
	if errors.Is(err, engine.ErrNoContainer) {
		return nil
	}
	if err != nil {
		return err
	}
	see.Containers[name] = plan.Container{Module: c.Labels[engine.ModuleLabel], Facts: facts(c)}
	return nil
}

// facts are what a person compares (APP-9).
func facts(c engine.Container) string {
	out := fmt.Sprintf("image %s, %s since %s", c.ImageName, c.Status, c.Created.Format("2006-01-02 15:04 UTC"))
	for what, all := range map[string][]string{"networks": c.Networks, "ports": c.Ports, "mounts": c.Mounts} {
		if len(all) > 0 {
			out += ", " + what + " " + strings.Join(all, " and ")
		}
	}
	if c.Unit != "" {
		out += ", unit " + c.Unit
	}
	return out
}

// strayThings are those of the container engine: what files tell without asking it.
func (e *Engine) strayThings(known map[string]bool) (out []string) {
	if e.box == nil { // nothing here ever asked for an engine
		return nil
	}
	if all, err := e.box.Networks(); err == nil {
		for _, n := range all {
			if id := resource.ID(resource.KindNetwork, n.Name); n.Labels[engine.ModuleLabel] != "" && !known[id] {
				out = append(out, id)
			}
		}
	}
	if all, ok, err := e.box.Containers(); err == nil && ok {
		for _, n := range all {
			if id := resource.ID(resource.KindContainer, n); strings.HasPrefix(n, "mesh-") && !known[id] {
				out = append(out, id)
			}
		}
	}
	return out
}

// watched is something whose being there, or whose content, a quick look compares.
type watched struct {
	path   string
	exists bool
	print  file.Fingerprint // zero: only that it is there
	value  string           // of a kernel setting
}

// rememberThing notes what has to stay as it is for a resource to be in order; ok is false when that cannot
// be told by looking.
func (e *Engine) rememberThing(s *settled, w *work, r *resource.Resource) (ok bool) {
	there := func(p string) bool {
		s.things = append(s.things, watched{path: p, exists: true})
		return true
	}
	switch r.Kind {
	case resource.KindSysctl:
		s.things = append(s.things, watched{path: r.Sysctl.Key, value: r.Sysctl.Value})
		return true
	case resource.KindModule:
		return !e.moduleLoaded(nameOf(r.ID)) || there(modulePath(nameOf(r.ID)))
	case resource.KindGroup, resource.KindContainer:
		return true
	}
	box := e.container()
	if box == nil {
		return false
	}
	switch r.Kind {
	case resource.KindNetwork:
		p := box.NetworkPath(r.Network.Name)
		st, err := e.root.Stat(p)
		if err != nil || !st.Exists {
			return false
		}
		print := st.Fingerprint
		if box.Kind() == engine.Docker || !st.Settled(w.start) {
			print = file.Fingerprint{}
		}
		s.things = append(s.things, watched{path: p, exists: true, print: print})
	case resource.KindVolume:
		return there(box.VolumeFolder(nameOf(r.ID)))
	case resource.KindImage:
		for _, p := range box.Files() {
			st, err := e.root.Stat(p)
			if err != nil || !st.Exists || !st.Settled(w.start) {
				return false
			}
			if !slices.ContainsFunc(s.things, func(t watched) bool { return t.path == p }) {
				s.things = append(s.things, watched{path: p, exists: true, print: st.Fingerprint})
			}
		}
	}
	return true
}

// thingsUnchanged reports whether all that was noted is as it was.
func (e *Engine) thingsUnchanged(s *settled) bool {
	for i := range s.things {
		t := &s.things[i]
		switch {
		case t.value != "":
			if v, ok := e.sysctlNow(t.path); !ok || v != t.value {
				return false
			}
		case t.print != (file.Fingerprint{}):
			if !e.root.Unchanged(t.path, t.print) {
				return false
			}
		default:
			if st, err := e.root.Stat(t.path); err != nil || st.Exists != t.exists {
				return false
			}
		}
	}
	return true
}

func nameOf(id string) string {
	_, n, _ := strings.Cut(id, ":")
	return n
}

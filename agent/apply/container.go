package apply

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"mesh/agent/host/engine"
	"mesh/agent/host/file"
	"mesh/agent/host/user"
	"mesh/agent/plan"
	"mesh/agent/resource"
	"mesh/agent/state"
	"mesh/shared/declaration"
	"mesh/shared/manifest"
	"mesh/shared/subject"
)

// Offer is an image of the mesh's that the engine can pull while it stands.
type Offer interface {
	// Reference is by what the engine pulls it.
	Reference() string
	// Err is why something of it could not be served, or nil.
	Err() error
	Close() error
}

// pullBound ends a pull that does not come to an end by itself.
const pullBound = time.Hour

// pulls are the images on their way. They go on between passes, and end with the Engine.
type pulls struct {
	mu    sync.Mutex // guards under and ended
	under map[string]*pull
	ended bool
	all   sync.WaitGroup
}

type pull struct {
	done   chan struct{}
	err    error // once done is closed
	cancel context.CancelFunc
}

// begin starts do unless it is under way for key, and returns it; nil once the Engine is closed.
func (p *pulls) begin(ctx context.Context, key string, do func(context.Context) error) *pull {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return nil
	}
	if one := p.under[key]; one != nil {
		return one
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pullBound)
	one := &pull{done: make(chan struct{}), cancel: cancel}
	if p.under == nil {
		p.under = map[string]*pull{}
	}
	p.under[key] = one
	p.all.Go(func() { // ends with the pull, which end cancels
		defer close(one.done)
		defer cancel()
		one.err = do(ctx)
	})
	return one
}

// take forgets a pull that is over, so that the next of its key is a new one.
func (p *pulls) take(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.under, key)
}

// end breaks all off and waits for them.
func (p *pulls) end() {
	p.mu.Lock()
	p.ended = true
	for _, one := range p.under {
		one.cancel()
	}
	p.mu.Unlock()
	p.all.Wait()
}

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

// ofEngine are the kinds that only an engine has.
func ofEngine(kind resource.Kind) bool {
	switch kind {
	case resource.KindNetwork, resource.KindVolume, resource.KindImage, resource.KindContainer:
		return true
	}
	return false
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
	case plan.RemoveNetwork:
		if err := box.RemoveNetwork(ctx, s.Name()); !errors.Is(err, engine.ErrInUse) {
			return err
		}
		r.cfg.Log.Info("a network stays: a container is on it", "module", s.Module, "network", s.Name())
		return nil
	case plan.RemoveContainer:
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

// pull brings an image, and waits for it as long as the pass waits for anything; it goes on by itself.
func (r *run) pull(ctx context.Context, box *engine.Engine, s plan.Step) (err error) {
	i := s.Want.Image
	key := i.Word()
	one := r.pulls.begin(ctx, key, func(ctx context.Context) error { return r.bring(ctx, box, s.Module, i) })
	if one == nil {
		return context.Canceled
	}
	over := false
	r.bounded(ctx, func(ctx context.Context) {
		select {
		case <-one.done:
			over = true
		case <-ctx.Done():
		}
	})
	if !over {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return &late{"image " + key + " is on its way", fetchOn, false}
	}
	r.pulls.take(key)
	return one.err
}

// bring has the engine pull the image: from the registry its name says, or from an offer of the agent's own.
func (e *Engine) bring(ctx context.Context, box *engine.Engine, module subject.Module, i *resource.Image) error {
	if i.Carried == nil {
		return box.EnsureImage(ctx, imageOf(i), "")
	}
	if there, known, err := box.HasImage(imageOf(i)); err == nil && known && there {
		return nil
	}
	if e.cfg.Offer == nil {
		return errors.New("this agent carries no images")
	}
	offer, err := e.cfg.Offer(ctx, "mesh/"+string(module)+"-"+i.Carried.Name, i.Carried)
	if err != nil {
		return err
	}
	err = box.EnsureImage(ctx, imageOf(i), offer.Reference())
	if err != nil && offer.Err() != nil { // the engine only saw that an answer broke off
		err = errors.Join(offer.Err(), err)
	}
	return errors.Join(err, offer.Close())
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

// strayNetworks are podman's networks with mesh's label that neither the declaration nor the ledger knows.
func (e *Engine) strayNetworks(known map[string]bool) (out []string) {
	if e.box == nil { // nothing here ever asked for an engine
		return nil
	}
	all, err := e.box.Networks()
	if err != nil {
		return nil
	}
	for _, n := range all {
		if id := resource.ID(resource.KindNetwork, n.Name); n.Labels[engine.ModuleLabel] != "" && !known[id] {
			out = append(out, id)
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

// OfferFunc makes an offer; see Config.Offer.
type OfferFunc func(ctx context.Context, name string, image *declaration.Image) (Offer, error)

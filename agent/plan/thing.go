package plan

import (
	"cmp"
	"fmt"
	"slices"

	"mesh/agent/host/file"
	"mesh/agent/resource"
	"mesh/agent/state"
	"mesh/shared/order"
	"mesh/shared/refusal"
	"mesh/shared/subject"
)

// The operations on what is neither a file nor a unit.
const (
	MakeGroup       Op = "make group"
	MakeLink        Op = "make link"
	LoadModule      Op = "load kernel module"
	SetSysctl       Op = "set sysctl"
	MakeNetwork     Op = "make network"
	MakeVolume      Op = "make volume"
	Pull            Op = "fetch image"
	Retire          Op = "retire unit"
	RemoveContainer Op = "remove container"
	RemoveNetwork   Op = "remove network"
	RemoveLink      Op = "remove link"
	RestoreSysctl   Op = "restore sysctl"
	RemoveImage     Op = "remove image"
)

// Things are what was seen of what is neither a file nor a unit.
type Things struct {
	// Sysctls are the kernel's settings that it has, by name with dots.
	Sysctls map[string]string
	// Modules are the kernel modules that are loaded.
	Modules map[string]bool
	// Networks are the engine's networks, by name; what is not in it is absent.
	Networks map[string]Network
	// Volumes and Images are those that are there, images by id.
	Volumes, Images map[string]bool
	// Containers are those on the machine that the ledger does not know, and who they belong to.
	Containers map[string]Container
	// NoEngine: there is none, or it could not be looked at; nothing of its things is planned.
	NoEngine bool
}

// Network is how a network of the engine is.
type Network struct {
	// Differs says how it is not as declared, or "".
	Differs string
	// Module is whose label it bears.
	Module string
}

// Container is a container that somebody made.
type Container struct {
	// Module is whose label it bears.
	Module string
	// Facts say what it is, for a person.
	Facts string
}

// thing plans one resource of these kinds.
func (p *planner) thing(r *resource.Resource) {
	switch r.Kind {
	case resource.KindGroup:
		p.group(r)
	case resource.KindLink:
		p.link(r)
	case resource.KindModule:
		p.kernelModule(r)
	case resource.KindSysctl:
		p.sysctl(r)
	case resource.KindNetwork:
		p.network(r)
	case resource.KindVolume:
		p.volume(r)
	case resource.KindImage:
		p.image(r)
	case resource.KindContainer:
		p.container(r)
	}
}

func (p *planner) made(id string) bool {
	old, held := p.ledger[id]
	return held && old.Made
}

func (p *planner) group(r *resource.Resource) {
	if _, there := p.in.Observed.Accounts.Groups[name(r.ID)]; there {
		p.inOrder(r, p.made(r.ID))
		return
	}
	p.act(MakeGroup, r, missing(p.drifted(r)), true)
}

func (p *planner) link(r *resource.Resource) {
	st := p.in.Observed.Paths[r.Link.Path]
	switch {
	case !st.Exists:
		before := len(p.out.Steps)
		p.act(MakeLink, r, missing(p.drifted(r)), true)
		p.markNew(before)
	case st.Kind == file.Symlink && st.Target == r.Link.Target:
		p.inOrder(r, p.made(r.ID))
	case st.Kind == file.Symlink && p.ownLink(p.ledger[r.ID], st):
		p.act(MakeLink, r, fmt.Sprintf("it leads to %s, declared %s", st.Target, r.Link.Target), true)
	case st.Kind == file.Symlink:
		p.fail(r.Module, refusal.Newf(p.what(r), "move it away, or declare another path", "it is there, mesh did not put it there, and it leads to %s", st.Target))
	default:
		p.fail(r.Module, p.held(r, st))
	}
}

// ownLink reports whether the link is mesh's to change: it made it, and somebody may have turned it since.
func (p *planner) ownLink(row state.Row, st file.State) bool {
	return row.Made && (row.Sum != "" || row.Want == st.Target)
}

func (p *planner) kernelModule(r *resource.Resource) {
	if p.in.Observed.Modules[name(r.ID)] {
		p.inOrder(r, p.made(r.ID))
		return
	}
	p.act(LoadModule, r, "it is not loaded", true)
}

// sysctl keeps what the setting was before in its row, as the trigger: the value that comes back.
func (p *planner) sysctl(r *resource.Resource) {
	have, there := p.in.Observed.Sysctls[r.Sysctl.Key]
	if there && have == r.Sysctl.Value {
		p.inOrder(r, p.made(r.ID))
		return
	}
	why := fmt.Sprintf("it is %s, declared %s", have, r.Sysctl.Value)
	if !there { // it may come with a kernel module of the same declaration
		why = "the kernel does not have it yet"
	}
	p.act(SetSysctl, r, why, true)
}

// before is what a kernel setting was before mesh changed it.
func (p *planner) before(r *resource.Resource) string {
	old, held := p.ledger[r.ID]
	if held && old.Made {
		return cmp.Or(old.Trigger, old.WantTrigger)
	}
	if have := p.in.Observed.Sysctls[r.Sysctl.Key]; have != r.Sysctl.Value {
		return have
	}
	return ""
}

func (p *planner) network(r *resource.Resource) {
	have, there := p.in.Observed.Networks[r.Network.Name]
	switch {
	case p.in.Observed.NoEngine:
		p.noEngine(r)
	case !there:
		p.act(MakeNetwork, r, missing(p.drifted(r)), true)
	case have.Differs == "":
		p.inOrder(r, p.made(r.ID) || have.Module == string(r.Module))
	case p.made(r.ID) || have.Module == string(r.Module):
		// It cannot be changed, only made anew, and nothing may be on it meanwhile.
		if p.drifted(r) && !p.repairs(r) {
			p.find(r, have.Differs)
			return
		}
		p.halt(r, "its network "+r.Network.Name+" is made anew")
		p.act(MakeNetwork, r, have.Differs, true)
	default:
		p.fail(r.Module, refusal.New(p.what(r), "it is there and mesh did not make it: "+have.Differs, "declare it as it is, as external, or under another name"))
	}
}

// halt stops the units that use r, so that it can be made anew; they are started again.
func (p *planner) halt(r *resource.Resource, why string) {
	for i := range p.units {
		u := p.units[i]
		if u.Module != r.Module || !slices.Contains(u.Unit.Uses, r.ID) || p.stopped[u.Unit.Name] != "" {
			continue
		}
		p.stopped[u.Unit.Name] = why
		if have := p.in.Observed.Units[u.Unit.Name]; have.Running() || have.Moving() {
			p.out.Steps = append(p.out.Steps, Step{Op: Stop, ID: u.ID, Module: u.Module, Reason: why, Want: u})
		}
	}
}

func (p *planner) volume(r *resource.Resource) {
	switch {
	case p.in.Observed.NoEngine:
		p.noEngine(r)
	case p.in.Observed.Volumes[name(r.ID)]:
		p.inOrder(r, p.made(r.ID))
	default:
		if p.drifted(r) && p.repairs(r) {
			p.halt(r, "its volume "+name(r.ID)+" is gone")
		}
		p.act(MakeVolume, r, missing(p.drifted(r)), true)
	}
}

func (p *planner) image(r *resource.Resource) {
	switch {
	case p.in.Observed.NoEngine:
		p.noEngine(r)
	case p.in.Observed.Images[r.ID]:
		p.inOrder(r, p.made(r.ID))
	default:
		p.act(Pull, r, missing(p.drifted(r)), true)
	}
}

func (p *planner) noEngine(r *resource.Resource) {
	if p.out.Failed[r.Module] == nil {
		p.fail(r.Module, refusal.New("module "+string(r.Module), "the container engine's files cannot be read", "see whether podman or docker is installed; it is tried again by itself"))
	}
}

// container claims a container's name. One that is there, and that the ledger does not know, is somebody's
// unless it bears the module's label.
func (p *planner) container(r *resource.Resource) {
	have, foreign := p.in.Observed.Containers[r.Container.Name]
	if _, held := p.ledger[r.ID]; foreign && !held && have.Module != string(r.Module) {
		if have.Module != "" {
			p.fail(r.Module, refusal.New(p.what(r), "it is the module "+have.Module+"'s ("+have.Facts+")", "declare another name"))
			return
		}
		p.hold(r, refusal.New(p.what(r), "it is there and mesh did not put it there ("+have.Facts+")", p.takeIt(r)+", remove it, or declare another name"))
		return
	}
	p.inOrder(r, true)
}

// removeThing plans the end of a thing of these kinds that is not declared any more.
func (p *planner) removeThing(row state.Row) {
	see := p.in.Observed.Things
	step := func(op Op, there bool) {
		if !there {
			p.out.Forget = append(p.out.Forget, row.ID)
			return
		}
		p.out.Steps = append(p.out.Steps, Step{Op: op, ID: row.ID, Module: subject.Module(row.Module), Reason: gone, Forget: true, Row: row})
	}
	n := name(row.ID)
	switch resource.Kind(row.Kind) {
	case resource.KindLink:
		st := p.in.Observed.Paths[n]
		step(RemoveLink, st.Exists && st.Kind == file.Symlink && p.ownLink(row, st))
	case resource.KindSysctl:
		have, there := see.Sysctls[n]
		back := cmp.Or(row.Trigger, row.WantTrigger)
		step(RestoreSysctl, there && back != "" && (have == row.Sum || have == row.Want))
	case resource.KindNetwork:
		if _, there := see.Networks[n]; !see.NoEngine {
			step(RemoveNetwork, there)
		}
	case resource.KindContainer:
		if !see.NoEngine {
			step(RemoveContainer, true) // its unit may end it before
		}
	}
}

// images plans the end of images: of a module that is still declared all but those in use and as many from
// before (APP-13), else all.
func (p *planner) images(wanted []resource.Resource) {
	if p.in.Observed.NoEngine {
		return
	}
	current, others, using := map[string]int{}, map[string][]state.Row{}, map[string]int{}
	declared := map[string]bool{}
	for _, r := range wanted {
		declared[string(r.Module)] = true
		if r.Kind == resource.KindImage {
			current[string(r.Module)]++
			using[r.Image.Word()]++
		}
	}
	for m := range p.in.Unreadable {
		declared[string(m)] = true
	}
	for _, row := range p.in.Ledger {
		if row.Kind == string(resource.KindImage) && !p.wanted[row.ID] {
			others[row.Module] = append(others[row.Module], row)
		}
	}
	for _, m := range sortedKeys(others) {
		rows := others[m]
		if _, unreadable := p.in.Unreadable[subject.Module(m)]; unreadable {
			continue
		}
		order.Sort(rows, func(a, b state.Row) int { return cmp.Or(b.At.Compare(a.At), cmp.Compare(a.ID, b.ID)) })
		keep := 0
		if declared[m] {
			keep = current[m]
		}
		for _, row := range p.older(rows, keep) {
			if !row.Made || using[ImageWord(row.ID)] > 0 {
				p.out.Forget = append(p.out.Forget, row.ID)
				continue
			}
			p.out.Steps = append(p.out.Steps, Step{Op: RemoveImage, ID: row.ID, Module: subject.Module(m), Reason: "older than the last two", Forget: true, Row: row})
		}
	}
}

// ImageWord is by what the engine knows the image of that id.
func ImageWord(id string) string {
	n := name(id)
	for i := range n {
		if n[i] == '/' {
			return n[i+1:]
		}
	}
	return n
}

// retire plans the end of a unit that another takes over from: after that one is up.
func (p *planner) retire(row state.Row, by []string) bool {
	if have := p.in.Observed.Units[name(row.ID)]; !have.Running() && !have.Moving() {
		return false // it is down already, so there is nothing to wait with
	}
	p.out.Steps = append(p.out.Steps, Step{Op: Retire, ID: row.ID, Module: subject.Module(row.Module),
		Reason: "replaced by " + by[0], Forget: true, After: by, Row: row})
	return true
}

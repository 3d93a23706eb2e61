package plan

import (
	"fmt"
	"slices"
	"strings"

	"mesh/agent/host/file"
	"mesh/agent/resource"
	"mesh/agent/state"
	"mesh/shared/declaration"
	"mesh/shared/subject"
)

// The operations on what stays unless a person says otherwise (APP-11).
const (
	DeleteFolder Op = "delete folder with data"
	DeleteVolume Op = "delete volume with data"
)

// Strays stands for a module in the steps that end strays; no module has such a name.
const Strays subject.Module = "of strays"

const deleteData = "its module ended, and its data are to be deleted"

// deleted plans the end of data of a module that ended here, and reports whether row is such. What mesh did not
// make, what is something else by now, and what holds something else than that module's data stays, and is said.
func (p *planner) deleted(row state.Row) bool {
	r := p.in.Remove
	if r == nil || p.wanted[row.ID] || !slices.ContainsFunc(r.Data, func(d declaration.RemoveData) bool {
		return string(d.Module) == row.Module && slices.Contains(d.Things, row.ID)
	}) {
		return false
	}
	stays := func(why string) bool {
		p.out.Found = append(p.out.Found, Finding{subject.Module(row.Module), row.ID, "its data were to be deleted, and stay: " + why, false})
		return true
	}
	step := Step{ID: row.ID, Module: subject.Module(row.Module), Reason: deleteData, Forget: true, Row: row}
	if !row.Made {
		return stays("it was there before mesh")
	}
	switch resource.Kind(row.Kind) {
	case resource.KindDir:
		if st := p.in.Observed.Paths[name(row.ID)]; st.Exists && st.Kind != file.Dir {
			return stays(fmt.Sprintf("it is no folder any more, but a %v that somebody put there", st.Kind))
		}
		if why := p.below(row); why != "" {
			return stays(why)
		}
		step.Op = DeleteFolder // also when it is not there: a kill may have left it half gone, under another name
	case resource.KindVolume:
		if p.in.Observed.NoEngine {
			return stays("the container engine's files cannot be read")
		}
		if !p.in.Observed.Volumes[name(row.ID)] {
			p.out.Forget = append(p.out.Forget, row.ID)
			return true
		}
		step.Op = DeleteVolume
	default:
		return false
	}
	p.out.Steps = append(p.out.Steps, step)
	return true
}

// below says what is in the folder of row that is not to go with it, or "".
func (p *planner) below(row state.Row) string {
	inside := func(id string) bool { return strings.HasPrefix(name(id), name(row.ID)+"/") && isPath(id) }
	for id := range p.wanted {
		if inside(id) {
			return id + " is in it, and declared"
		}
	}
	for _, other := range p.in.Ledger {
		switch {
		case !inside(other.ID):
		case other.Module != row.Module:
			return fmt.Sprintf("%s of module %s is in it", other.ID, other.Module)
		case !other.Made && other.Kind == string(resource.KindDir):
			return other.ID + " is in it, and was there before mesh"
		}
	}
	return ""
}

func isPath(id string) bool {
	kind, _, _ := strings.Cut(id, ":")
	return kind == string(resource.KindDir) || kind == string(resource.KindFile) || kind == string(resource.KindLink)
}

// prune plans the end of the strays that a person named, as far as they are strays.
func (p *planner) prune() {
	if p.in.Remove == nil {
		return
	}
	for _, id := range p.in.Remove.Strays {
		if !p.in.Observed.Strays[id] {
			continue
		}
		kind, n, _ := strings.Cut(id, ":")
		module := Strays
		add := func(op Op) {
			p.out.Steps = append(p.out.Steps, Step{Op: op, ID: id, Module: module, Reason: "a stray, and a person had it removed"})
		}
		switch resource.Kind(kind) {
		case resource.KindUnit:
			if err := p.in.Observed.UnitsError; err != nil {
				p.out.Unknown[module] = err
				continue
			}
			add(Stop)
			add(Disable)
			add(RemoveUnit)
			p.reload[n] = module
		case resource.KindNetwork:
			add(RemoveNetwork)
		case resource.KindContainer:
			add(RemoveContainer)
		}
	}
}

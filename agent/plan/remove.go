package plan

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"mesh/agent/host/file"
	"mesh/agent/resource"
	"mesh/agent/state"
	"mesh/shared/order"
	"mesh/shared/subject"
)

const gone = "not declared any more"

// keptBundles is how many bundles of a module stay: the one in use and the one before (APP-13).
const keptBundles = 2

// removals plans the end of what the ledger has and nothing declares: units first, then files, then
// folders from below. What was there before mesh, data and users are only forgotten or kept.
func (p *planner) removals() {
	rows := slices.Clone(p.in.Ledger)
	rank := map[string]int{string(resource.KindUnit): 0, string(resource.KindContainer): 1, string(resource.KindNetwork): 2, string(resource.KindSysctl): 2,
		string(resource.KindFile): 3, string(resource.KindLink): 3, string(resource.KindDir): 4}
	order.Sort(rows, func(a, b state.Row) int {
		if c := cmp.Compare(rank[a.Kind], rank[b.Kind]); c != 0 {
			return c
		}
		if a.Kind == string(resource.KindDir) { // what is below comes first
			return cmp.Or(cmp.Compare(strings.Count(b.ID, "/"), strings.Count(a.ID, "/")), cmp.Compare(a.ID, b.ID))
		}
		return cmp.Compare(a.ID, b.ID)
	})
	for _, row := range rows {
		_, unreadable := p.in.Unreadable[subject.Module(row.Module)]
		if !unreadable && p.deleted(row) {
			continue
		}
		if p.wanted[row.ID] || unreadable || row.Keep || row.Kind == string(resource.KindBundle) || row.Kind == string(resource.KindImage) {
			continue
		}
		if p.over[row.ID] {
			continue
		}
		if !row.Made {
			p.out.Forget = append(p.out.Forget, row.ID)
			continue
		}
		switch resource.Kind(row.Kind) {
		case resource.KindUnit:
			p.removeUnit(row)
		case resource.KindFile:
			p.remove(RemoveFile, row, file.File)
		case resource.KindDir:
			p.remove(RemoveDir, row, file.Dir)
		default:
			p.removeThing(row)
		}
	}
}

func (p *planner) remove(op Op, row state.Row, kind file.Kind) {
	st := p.in.Observed.Paths[name(row.ID)]
	if !st.Exists || st.Kind != kind || kind == file.File && !p.ours(row, true, sumOf(st)) {
		p.out.Forget = append(p.out.Forget, row.ID)
		return
	}
	p.out.Steps = append(p.out.Steps, Step{Op: op, ID: row.ID, Module: subject.Module(row.Module), Reason: gone, Forget: true})
}

func (p *planner) removeUnit(row state.Row) {
	module := subject.Module(row.Module)
	if err := p.in.Observed.UnitsError; err != nil {
		p.out.Unknown[module] = err
		return
	}
	n := name(row.ID)
	if by := p.replaced[row.Module+"/"+n]; len(by) > 0 && p.retire(row, by) {
		return
	}
	have := p.in.Observed.Units[n]
	st := p.in.Observed.Paths[resource.UnitFolder+"/"+n]
	var steps []Step
	add := func(op Op) { steps = append(steps, Step{Op: op, ID: row.ID, Module: module, Reason: gone}) }
	if have.Running() || have.Moving() {
		add(Stop)
	}
	if have.Enabled == "enabled" {
		add(Disable)
	}
	if st.Exists && st.Kind == file.File && (p.in.Observed.Marked[resource.UnitFolder+"/"+n] || p.ours(row, true, sumOf(st))) {
		add(RemoveUnit)
	}
	if len(steps) > 0 || have.NeedReload && !st.Exists { // killed after the file went: systemd has it in mind still
		p.reload[n] = module
	}
	if len(steps) == 0 {
		p.out.Forget = append(p.out.Forget, row.ID)
		return
	}
	steps[len(steps)-1].Forget = true
	p.out.Steps = append(p.out.Steps, steps...)
}

// bundles plans the end of bundles: of a module that is still declared all but the newest two, else all.
func (p *planner) bundles(wanted []resource.Resource) {
	type owned struct{ current, others []state.Row }
	modules := map[string]*owned{}
	declared := map[string]bool{}
	for _, r := range wanted {
		declared[string(r.Module)] = true
	}
	for m := range p.in.Unreadable {
		declared[string(m)] = true
	}
	using := map[string]int{}
	for _, row := range p.in.Ledger {
		if row.Kind != string(resource.KindBundle) {
			continue
		}
		using[digestOf(row.ID)]++
		o := modules[row.Module]
		if o == nil {
			o = &owned{}
			modules[row.Module] = o
		}
		if slices.ContainsFunc(wanted, func(r resource.Resource) bool { return r.ID == row.ID }) {
			o.current = append(o.current, row)
		} else {
			o.others = append(o.others, row)
		}
	}
	for _, r := range wanted {
		if _, known := p.ledger[r.ID]; r.Kind == resource.KindBundle && !known {
			using[digestOf(r.ID)]++
		}
	}
	names := make([]string, 0, len(modules))
	for m := range modules {
		names = append(names, m)
	}
	slices.Sort(names)
	for _, m := range names {
		o := modules[m]
		order.Sort(o.others, func(a, b state.Row) int { return cmp.Or(b.At.Compare(a.At), cmp.Compare(a.ID, b.ID)) })
		keep := 0
		if declared[m] {
			keep = keptBundles - 1
			if _, unreadable := p.in.Unreadable[subject.Module(m)]; unreadable {
				keep = keptBundles
			}
		}
		for _, row := range p.older(o.others, keep) {
			digest := digestOf(row.ID)
			if using[digest]--; using[digest] > 0 { // another module has the same one
				p.out.Forget = append(p.out.Forget, row.ID)
				continue
			}
			p.out.Steps = append(p.out.Steps, Step{Op: RemoveBundle, ID: row.ID, Module: subject.Module(m), Reason: "older than the last two", Forget: true})
		}
	}
}

// older are those of rows, newest first, that go when keep of them stay. What has to stay counts among those.
func (p *planner) older(rows []state.Row, keep int) (old []state.Row) {
	for _, row := range rows {
		if p.in.Keep[row.ID] {
			keep--
		}
	}
	for _, row := range rows {
		switch {
		case p.in.Keep[row.ID]:
		case keep > 0:
			keep--
		default:
			old = append(old, row)
		}
	}
	return old
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// digestOf is the digest in a bundle's id.
func digestOf(id string) string { return id[strings.LastIndexByte(id, '/')+1:] }

// Package plan decides what has to be done on a machine so that it becomes as declared: a function of
// values, the same plan whatever the order of its input, so a preview, the tests and the real run share
// it. It reads and writes nothing. Each step says why it is there; where nothing differs there is no step.
//
// What is not mesh's is held: left alone, and its module fails with a refusal. What is there already
// and equal is adopted. What the ledger says mesh made and nothing declares any more is removed, but
// not data, users, or what was there before mesh (APP-9, APP-11). What a person changed since mesh made
// it is drift: repaired, or only said, as the node's policy is (APP-6).
package plan

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"mesh/agent/host/file"
	"mesh/agent/host/user"
	"mesh/agent/resource"
	"mesh/agent/state"
	"mesh/shared/declaration"
	"mesh/shared/order"
	"mesh/shared/subject"
)

// Op is what a step does.
type Op string

// The operations.
const (
	MakeUser     Op = "make user"
	MakeDir      Op = "make folder"
	ChangeDir    Op = "change folder"
	Fetch        Op = "fetch bundle"
	WriteFile    Op = "write file"
	WriteUnit    Op = "write unit"
	Stop         Op = "stop"
	Disable      Op = "disable"
	RemoveUnit   Op = "remove unit"
	Enable       Op = "enable"
	Reload       Op = "reload systemd"
	Start        Op = "start"
	Restart      Op = "restart"
	RemoveFile   Op = "remove file"
	RemoveDir    Op = "remove folder"
	RemoveBundle Op = "remove bundle"
)

// Ops are all operations in the order they are done in.
var Ops = [...]Op{MakeGroup, MakeUser, MakeDir, ChangeDir, Fetch, Pull, Stop, Disable, RemoveUnit, WriteFile, MakeLink, LoadModule, SetSysctl,
	MakeNetwork, MakeVolume, WriteUnit, Enable, Reload, Start, Restart,
	Retire, RemoveContainer, RemoveNetwork, RestoreSysctl, RemoveFile, RemoveLink, DeleteFolder, DeleteVolume, RemoveDir, RemoveBundle, RemoveImage}

// Phase orders steps: all of one come before those of the next.
type Phase int

// The phases.
const (
	Ground   Phase = iota // users and folders, of all modules in turn
	Fetching              // bundles and images, beside each other
	Making                // units that go, files, what containers need, units
	Enabling              // all in one call
	Loading               // one reload
	Starting
	Cleaning
)

// Phase is when o is done.
func (o Op) Phase() Phase {
	switch o {
	case MakeGroup, MakeUser, MakeDir, ChangeDir:
		return Ground
	case Fetch, Pull:
		return Fetching
	case Stop, Disable, RemoveUnit, WriteFile, WriteUnit, MakeLink, LoadModule, SetSysctl, MakeNetwork, MakeVolume:
		return Making
	case Enable:
		return Enabling
	case Reload:
		return Loading
	case Start, Restart:
		return Starting
	}
	return Cleaning
}

// Step is one act.
type Step struct {
	Op Op
	// ID is the resource's; of Reload, "systemd".
	ID     string
	Module subject.Module
	Reason string
	// Want is the declared resource; nil for what is removed.
	Want *resource.Resource
	// New: nothing stood there, and what appears meanwhile is somebody else's.
	New bool
	// OverLink: a symlink stands there that somebody put in the place of mesh's file.
	OverLink bool
	// OverFile: a file of mesh that is not declared any more stands where the folder shall be, and goes first;
	// the ledger forgets it with the act.
	OverFile bool
	// After, of Retire, are the units that have to be up before.
	After []string
	// Row is what the ledger holds of what is removed; for the kinds beside files and units only.
	Row state.Row
	// Intent is what the ledger has to hold before the act, when it does not yet.
	Intent *state.Row
	// Done is what the ledger holds after the act; nil when a later step of the resource brings it.
	Done *state.Row
	// Forget: after the act the ledger holds nothing about it.
	Forget bool
	// Drift: it undoes a change by hand, and brings nothing new.
	Drift bool
	// Retry: the unit failed by itself, and systemd has to be told to forget that before it starts.
	Retry bool
	// Fresh: the unit starts for something new, however it was before.
	Fresh bool
}

// Name is the thing's path or name: the id without its kind.
func (s Step) Name() string { return name(s.ID) }

func name(id string) string {
	_, n, _ := strings.Cut(id, ":")
	return n
}

// Unit is how a systemd unit is.
type Unit struct {
	// Load is systemd's LoadState: "loaded", "not-found", "masked", "bad-setting".
	Load string
	// Fragment is the file systemd read it from.
	Fragment string
	// Enabled is systemd's UnitFileState: "enabled", "disabled", "static".
	Enabled string
	// Active, Sub and Result are systemd's ActiveState, SubState and Result.
	Active, Sub, Result string
	// NeedReload: its file changed since systemd read it.
	NeedReload bool
	// Invocation tells two lives of it apart; Restarts counts the automatic ones.
	Invocation string
	Restarts   int
	// Status is the exit status of its main program.
	Status int
	// Job: systemd has something to do with it that is not over, such as a start that waits.
	Job bool
	// Container: its main program is a container engine's, whose exit statuses from 125 on are its own words.
	Container bool
	// DropIns are files beside its own that change it.
	DropIns []string
}

// Running reports whether it runs, or is on its way.
func (u Unit) Running() bool {
	switch u.Active {
	case "active", "reloading", "activating", "refreshing":
		return true
	}
	return false
}

// Moving reports whether it is on its way to another state, by systemd's or its own doing.
func (u Unit) Moving() bool {
	return u.Job || u.Active == "deactivating" || u.Active == "activating" && u.Sub != "auto-restart"
}

// Observed is what was seen of everything declared and everything in the ledger.
type Observed struct {
	// Paths has files and folders by path. What is not in it is absent.
	Paths    map[string]file.State
	Accounts user.Accounts
	Units    map[string]Unit
	// UnitsError says why systemd could not be asked; then nothing about units is planned.
	UnitsError error
	// Bundles has the folders of bundles that are there.
	Bundles map[string]bool
	// Altered says of such a folder what in it is not as it was unpacked. Fought: it was put right a
	// moment ago, and something on the machine alters it again.
	Altered map[string]string
	Fought  map[string]bool
	// Marked has the unit files, by path, that bear mesh's mark.
	Marked map[string]bool
	// Strays are things with mesh's mark that neither the declaration nor the ledger knows, by id.
	Strays map[string]bool
	Things
}

// Input is what a plan is a function of.
type Input struct {
	Node      subject.Node
	Resources []resource.Resource
	// Unreadable are modules that could not be expanded; what they have is left alone.
	Unreadable map[subject.Module]error
	Ledger     []state.Row
	Observed   Observed
	Drift      declaration.Drift
	// Kept are things that stay as somebody changed them, and until when, in words (APP-19).
	Kept map[string]string
	// Boot: the machine came up; a unit that does not run yet was stopped by nobody.
	Boot bool
	// Keep are ids of bundles and images that stay though nothing declares them: of last good builds (APP-7).
	Keep map[string]bool
	// Remove is what a person had removed; Observed.Strays are all that may go as strays.
	Remove *declaration.Remove
}

// Finding is something that a person changed.
type Finding struct {
	Module subject.Module
	ID     string
	What   string
	// Repaired: a step of the plan undoes it.
	Repaired bool
}

// Plan is what has to be done and what was found.
type Plan struct {
	// Steps are in the order they are done in.
	Steps []Step
	// Adopt are rows the ledger should have although nothing has to be done.
	Adopt []state.Row
	// Forget are rows the ledger should not have any more although nothing has to be done.
	Forget []string
	// Failed are modules with something that cannot be done, and why; the errors are refusals.
	Failed map[subject.Module]error
	// Unknown are modules with something that could not be seen.
	Unknown map[subject.Module]error
	// Held are declared things that are there and not mesh's, and that could be taken (APP-9). Their modules failed.
	Held []*resource.Resource
	// Stuck are modules that failed for something else than a held thing.
	Stuck map[subject.Module]bool
	Found []Finding
}

// Intents are the rows the ledger must hold before the first act.
func (p *Plan) Intents() []state.Row {
	rows := slices.Clone(p.Adopt)
	for _, s := range p.Steps {
		if s.Intent != nil {
			rows = append(rows, *s.Intent)
		}
	}
	return rows
}

type planner struct {
	in     Input
	ledger map[string]state.Row
	wanted map[string]bool // ids that are declared
	over   map[string]bool // ids that go with a step of another
	out    Plan
	// changed are modules with a file to write, whose units cannot be taken as started with it.
	changed map[subject.Module]bool
	// altered are modules whose bundle is put right: what runs may run what was changed in it.
	altered map[subject.Module]bool
	reload  map[string]subject.Module // units whose files change, and whose they are
	// units are the declared ones; stopped says of those that are stopped for something else why.
	units   []*resource.Resource
	stopped map[string]string
	// replaced are the units that take over from one that goes, by "module/unit".
	replaced map[string][]string
}

// New makes the plan.
func New(in Input) Plan {
	p := &planner{in: in, reload: map[string]subject.Module{}, stopped: map[string]string{}, replaced: map[string][]string{}, ledger: make(map[string]state.Row, len(in.Ledger)), changed: map[subject.Module]bool{},
		altered: map[subject.Module]bool{}, over: map[string]bool{},
		out: Plan{Failed: map[subject.Module]error{}, Unknown: map[subject.Module]error{}, Stuck: map[subject.Module]bool{}}}
	for _, r := range in.Ledger {
		p.ledger[r.ID] = r
	}
	sorted := resource.Sort(in.Resources)
	p.wanted = make(map[string]bool, len(sorted))
	for i := range sorted {
		p.wanted[sorted[i].ID] = true
		if u := sorted[i].Unit; u != nil {
			p.units = append(p.units, &sorted[i])
			for _, old := range u.Replaces {
				key := string(sorted[i].Module) + "/" + old
				p.replaced[key] = append(p.replaced[key], u.Name)
			}
		}
	}
	for i := range sorted {
		p.resource(&sorted[i])
	}
	p.removals()
	p.bundles(sorted)
	p.images(sorted)
	p.prune()
	p.dropFailed()
	if len(p.reload) > 0 {
		why := "changed: " + strings.Join(slices.Sorted(maps.Keys(p.reload)), " ")
		p.out.Steps = append(p.out.Steps, Step{Op: Reload, ID: "systemd", Reason: why})
	}
	order.Sort(p.out.Steps, func(a, b Step) int {
		if c := cmp.Compare(a.Op.Phase(), b.Op.Phase()); c != 0 {
			return c
		}
		if a.Op.Phase() == Ground { // users, then folders from above, whosever they are
			return cmp.Or(cmp.Compare(groundRank(a.Op), groundRank(b.Op)), cmp.Compare(a.ID, b.ID))
		}
		// Within a module what goes makes room first; the rest stays in the order it is needed in.
		return cmp.Or(cmp.Compare(a.Module, b.Module), cmp.Compare(makesRoom(a), makesRoom(b)))
	})
	return p.out
}

// dropFailed leaves a module that cannot be brought where it should be as it is: not half of the new
// beside half of the old (APP-5). Only what a person changed is put back. Folders that others may need too
// are made all the same, and the images of a module that is only held come: their age is compared before a take.
func (p *planner) dropFailed() {
	drop := func(m subject.Module) bool {
		_, failed := p.out.Failed[m]
		_, unknown := p.out.Unknown[m]
		return failed || unknown
	}
	p.out.Steps = slices.DeleteFunc(p.out.Steps, func(s Step) bool {
		_, failed := p.out.Failed[s.Module]
		return drop(s.Module) && !s.Drift && !(s.Op == MakeDir && s.Want.Dir.Implied && !s.OverFile) && !(s.Op == Pull && failed && !p.out.Stuck[s.Module])
	})
	maps.DeleteFunc(p.reload, func(unit string, m subject.Module) bool {
		return drop(m) && !slices.ContainsFunc(p.out.Steps, func(s Step) bool { return s.Drift && s.Name() == unit })
	})
}

func makesRoom(s Step) int {
	if s.Want == nil {
		return 0
	}
	return 1
}

func groundRank(o Op) int {
	switch o {
	case MakeGroup:
		return 0
	case MakeUser:
		return 1
	}
	return 2
}

func (p *planner) resource(r *resource.Resource) {
	switch r.Kind {
	case resource.KindUser:
		p.user(r)
	case resource.KindDir:
		p.dir(r)
	case resource.KindBundle:
		p.bundle(r)
	case resource.KindFile:
		p.file(r)
	case resource.KindUnit:
		p.unit(r)
	default:
		p.thing(r)
	}
}

// row is what the ledger shall hold of r once it is in order, given what it holds now.
func (p *planner) row(r *resource.Resource, made bool) state.Row {
	row := state.Row{ID: r.ID, Module: string(r.Module), Kind: string(r.Kind), Phase: state.Done, Made: made, Sum: r.Text()}
	switch r.Kind {
	case resource.KindUser, resource.KindGroup, resource.KindModule, resource.KindVolume:
		row.Keep = true
	case resource.KindSysctl:
		row.Trigger = p.before(r)
	case resource.KindDir:
		row.Keep = r.Dir.Data
	case resource.KindUnit:
		row.Trigger = r.Unit.Trigger
	}
	return row
}

// intent is the row that announces done; nil when old announces it already.
func intent(old state.Row, held bool, done state.Row) *state.Row {
	row := done
	row.Phase, row.Sum, row.Trigger = state.Intended, old.Sum, old.Trigger
	row.Want, row.WantTrigger = done.Sum, done.Trigger
	if held && old.Sum == done.Sum && old.Module == done.Module {
		return nil // it is known to be mesh's already: a repair
	}
	row.At = old.At
	if held && row == old {
		return nil
	}
	return &row
}

// inOrder settles a resource that needs no act.
func (p *planner) inOrder(r *resource.Resource, made bool) {
	old, held := p.ledger[r.ID]
	row := p.row(r, made)
	row.At = old.At
	if !held || row != old {
		p.out.Adopt = append(p.out.Adopt, row)
	}
}

// drifted reports whether what differs is a change by hand: mesh left there just what is declared.
func (p *planner) drifted(r *resource.Resource) bool {
	row, ok := p.ledger[r.ID]
	return ok && row.Phase == state.Done && row.Sum == r.Text()
}

// act plans a step that brings r in order, unless it undoes a change by hand and the policy is to only
// say so. what is the difference in words, for the step and for the finding.
func (p *planner) act(op Op, r *resource.Resource, what string, made bool) {
	old, held := p.ledger[r.ID]
	if p.drifted(r) && !p.find(r, what) {
		return
	}
	done := p.row(r, made)
	p.out.Steps = append(p.out.Steps, Step{Op: op, ID: r.ID, Module: r.Module, Reason: what, Want: r, Drift: p.drifted(r),
		Intent: intent(old, held, done), Done: &done})
}

// repairs reports whether a change of r by hand is undone.
func (p *planner) repairs(r *resource.Resource) bool {
	return p.in.Drift != declaration.ReportOnly && p.in.Kept[r.ID] == ""
}

// find notes a change by hand and reports whether it is to be undone.
func (p *planner) find(r *resource.Resource, what string) bool {
	repair := p.repairs(r)
	if words := p.in.Kept[r.ID]; words != "" {
		what += " (" + words + ")"
	}
	p.out.Found = append(p.out.Found, Finding{Module: r.Module, ID: r.ID, What: what, Repaired: repair})
	return repair
}

func (p *planner) fail(m subject.Module, err error) {
	p.out.Failed[m] = join(p.out.Failed[m], err)
	p.out.Stuck[m] = true
}

// hold leaves a thing that is not mesh's alone, and its module with it, until somebody takes it.
func (p *planner) hold(r *resource.Resource, err error) {
	p.out.Failed[r.Module] = join(p.out.Failed[r.Module], err)
	p.out.Held = append(p.out.Held, r)
}

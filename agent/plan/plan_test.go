package plan_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mesh/agent/host/file"
	"mesh/agent/host/user"
	"mesh/agent/plan"
	"mesh/agent/resource"
	"mesh/agent/state"
	"mesh/shared/declaration"
	"mesh/shared/refusal"
	"mesh/shared/subject"
)

// machine is a machine on paper: what a plan does to it, and what people do.
type machine struct {
	see    plan.Observed
	ledger map[string]state.Row
	tick   time.Time
}

func newMachine() *machine {
	return &machine{ledger: map[string]state.Row{}, see: plan.Observed{
		Paths: map[string]file.State{}, Units: map[string]plan.Unit{}, Bundles: map[string]bool{}, Marked: map[string]bool{},
		Accounts: user.Accounts{
			Users:  map[string]user.User{"root": {Name: "root", Home: "/root", Shell: "/bin/sh"}},
			Groups: map[string]user.Group{"root": {Name: "root"}},
		},
	}}
}

func (m *machine) plan(in plan.Input) plan.Plan {
	in.Ledger = slices.Collect(maps.Values(m.ledger))
	in.Observed, in.Node = m.see, "n1"
	if in.Drift == "" {
		in.Drift = declaration.Repair
	}
	return plan.New(in)
}

func (m *machine) put(rows ...state.Row) {
	for _, r := range rows {
		m.tick = m.tick.Add(time.Second)
		r.At = m.tick
		m.ledger[r.ID] = r
	}
}

func (m *machine) file(path, content string, mode fs.FileMode) {
	m.see.Paths[path] = file.State{Exists: true, Kind: file.File, Sum: sha256.Sum256([]byte(content)), Mode: mode}
	m.see.Marked[path] = strings.HasPrefix(content, resource.Mark)
}

// do acts as the executor does, up to n steps.
func (m *machine) do(p plan.Plan, n int) {
	m.put(p.Intents()...)
	for _, id := range p.Forget {
		delete(m.ledger, id)
	}
	for _, s := range p.Steps[:min(n, len(p.Steps))] {
		m.act(s)
		if s.Done != nil {
			m.put(*s.Done)
		}
		if s.Forget {
			delete(m.ledger, s.ID)
		}
	}
}

func (m *machine) act(s plan.Step) {
	u := m.see.Units[s.Name()]
	switch s.Op {
	case plan.MakeUser:
		w := s.Want.User
		m.see.Accounts.Users[w.Name] = user.User{Name: w.Name, UID: 900, GID: 900, Home: w.Home, Shell: w.Shell, Groups: w.Groups}
		m.see.Accounts.Groups[w.Name] = user.Group{Name: w.Name, GID: 900}
	case plan.MakeDir, plan.ChangeDir:
		d := s.Want.Dir
		m.see.Paths[d.Path] = file.State{Exists: true, Kind: file.Dir, Mode: d.Mode, UID: m.see.Accounts.Users[d.Owner].UID, GID: m.see.Accounts.Groups[d.Group].GID}
	case plan.Fetch:
		m.see.Bundles[s.Want.Bundle.Folder] = true
	case plan.WriteFile:
		f := s.Want.File
		m.file(f.Path, string(f.Content), f.Mode)
		st := m.see.Paths[f.Path]
		st.UID, st.GID = m.see.Accounts.Users[f.Owner].UID, m.see.Accounts.Groups[f.Group].GID
		m.see.Paths[f.Path] = st
	case plan.WriteUnit:
		m.file(s.Want.Unit.Path(), string(s.Want.Unit.Content), 0o644)
		u.NeedReload = true
	case plan.Stop:
		u.Active = "inactive"
	case plan.Disable:
		u.Enabled = "disabled"
	case plan.RemoveUnit:
		delete(m.see.Paths, resource.UnitFolder+"/"+s.Name())
		delete(m.see.Units, s.Name())
		return
	case plan.Enable:
		u.Enabled = "enabled"
	case plan.Reload:
		for n, u := range m.see.Units {
			u.NeedReload, u.Load, u.Fragment = false, "loaded", resource.UnitFolder+"/"+n
			m.see.Units[n] = u
		}
		return
	case plan.Start, plan.Restart:
		u.Active = "active"
	case plan.RemoveFile, plan.RemoveDir:
		delete(m.see.Paths, s.Name())
		return
	case plan.RemoveBundle:
		delete(m.see.Bundles, "/bundles/"+s.ID[strings.LastIndexByte(s.ID, '/')+1:])
		return
	}
	if strings.HasPrefix(s.ID, "unit:") {
		m.see.Units[s.Name()] = u
	}
}

func aFile(module subject.Module, path, content string) resource.Resource {
	return resource.Resource{ID: resource.ID(resource.KindFile, path), Module: module, Kind: resource.KindFile,
		File: &resource.File{Path: path, Content: []byte(content), Sum: resource.Sum([]byte(content)), Mode: 0o644, Owner: "root", Group: "root"}}
}

func aDir(module subject.Module, path string, data, implied bool) resource.Resource {
	return resource.Resource{ID: resource.ID(resource.KindDir, path), Module: module, Kind: resource.KindDir,
		Dir: &resource.Dir{Path: path, Mode: 0o755, Owner: "root", Group: "root", Data: data, Implied: implied}}
}

func aUnit(module subject.Module, name, text, trigger string) resource.Resource {
	content := resource.Mark + string(module) + ".\n" + text
	return resource.Resource{ID: resource.ID(resource.KindUnit, name), Module: module, Kind: resource.KindUnit,
		Unit: &resource.Unit{Name: name, Content: []byte(content), Sum: resource.Sum([]byte(content)), Enabled: true, Started: true, Trigger: trigger}}
}

func aBundle(module subject.Module, digest string) resource.Resource {
	return resource.Resource{ID: resource.BundleID(module, digest), Module: module, Kind: resource.KindBundle,
		Bundle: &resource.Bundle{Artifact: declaration.Artifact{Digest: digest, Size: 1, Chunks: 1}, Folder: "/bundles/" + digest}}
}

func lines(p plan.Plan) []string {
	var out []string
	for _, s := range p.Steps {
		out = append(out, fmt.Sprintf("%s %s: %s", s.Op, s.ID, s.Reason))
	}
	return out
}

func expect(t *testing.T, p plan.Plan, want ...string) {
	t.Helper()
	if d := cmp.Diff(want, lines(p)); d != "" {
		t.Errorf("steps (-want +got):\n%s", d)
	}
}

func settled(t *testing.T, m *machine, in plan.Input) {
	t.Helper()
	p := m.plan(in)
	if len(p.Steps)+len(p.Adopt)+len(p.Forget)+len(p.Found)+len(p.Failed) != 0 {
		t.Errorf("not settled: steps %v, adopt %v, forget %v, found %v, failed %v", lines(p), p.Adopt, p.Forget, p.Found, p.Failed)
	}
}

const unitFile = resource.UnitFolder + "/mesh-notes-web.service"

func notes() []resource.Resource {
	return []resource.Resource{
		aDir("notes", "/etc/notes", false, true), aFile("notes", "/etc/notes/conf", "one"), aDir("notes", "/srv/notes", true, false),
		aBundle("notes", "d1"), aUnit("notes", "mesh-notes-web.service", "v1", "t1"),
	}
}

func TestFirstApplyThenNothing(t *testing.T) {
	m := newMachine()
	in := plan.Input{Resources: notes()}
	p := m.plan(in)
	expect(t, p,
		"make folder dir:/etc/notes: declared, not there",
		"make folder dir:/srv/notes: declared, not there",
		"fetch bundle bundle:notes/d1: declared, not there",
		"write file file:/etc/notes/conf: declared, not there",
		"write unit unit:mesh-notes-web.service: declared, not there",
		"enable unit:mesh-notes-web.service: declared to start at boot",
		"reload systemd systemd: changed: mesh-notes-web.service",
		"start unit:mesh-notes-web.service: declared to run",
	)
	if len(p.Intents()) != 5 {
		t.Errorf("%d intents, want one a resource", len(p.Intents()))
	}
	m.do(p, 99)
	settled(t, m, in)
}

func TestUnassign(t *testing.T) {
	m := newMachine()
	m.do(m.plan(plan.Input{Resources: notes()}), 99)
	p := m.plan(plan.Input{})
	expect(t, p,
		"stop unit:mesh-notes-web.service: not declared any more",
		"disable unit:mesh-notes-web.service: not declared any more",
		"remove unit unit:mesh-notes-web.service: not declared any more",
		"reload systemd systemd: changed: mesh-notes-web.service",
		"remove file file:/etc/notes/conf: not declared any more",
		"remove folder dir:/etc/notes: not declared any more",
		"remove bundle bundle:notes/d1: older than the last two",
	)
	m.do(p, 99)
	settled(t, m, plan.Input{})
	if !m.see.Paths["/srv/notes"].Exists || !m.ledger["dir:/srv/notes"].Keep {
		t.Error("data did not survive the unassign")
	}
	again := plan.Input{Resources: notes()}
	m.do(m.plan(again), 99)
	settled(t, m, again)
}

func TestUnreadableModuleIsLeftAlone(t *testing.T) {
	m := newMachine()
	m.do(m.plan(plan.Input{Resources: notes()}), 99)
	settled(t, m, plan.Input{Unreadable: map[subject.Module]error{"notes": errors.New("x")}})
}

func TestHeld(t *testing.T) {
	for _, tt := range []struct {
		name  string
		there func(m *machine)
		want  string
	}{
		{"a file that differs", func(m *machine) { m.file("/etc/notes/conf", "other", 0o644) }, "file /etc/notes/conf of module notes on n1: it is there and mesh did not put it there (root, 0644"},
		{"a folder in its place", func(m *machine) { m.see.Paths["/etc/notes/conf"] = file.State{Exists: true, Kind: file.Dir} }, "a folder stands there"},
		{"a symlink in its place", func(m *machine) { m.see.Paths["/etc/notes/conf"] = file.State{Exists: true, Kind: file.Symlink} }, "a symlink stands there"},
		{"a file where a folder is declared", func(m *machine) { m.file("/srv/notes", "", 0o644) }, "folder /srv/notes of module notes on n1: a file stands there"},
		{"a unit that differs", func(m *machine) { m.file(unitFile, "mine", 0o644) }, "unit mesh-notes-web.service of module notes"},
		{"a unit of the distribution", func(m *machine) {
			m.see.Units["mesh-notes-web.service"] = plan.Unit{Load: "loaded", Fragment: "/lib/systemd/system/mesh-notes-web.service"}
		}, "the machine has a unit of this name, /lib/systemd"},
		{"a masked unit", func(m *machine) { m.see.Units["mesh-notes-web.service"] = plan.Unit{Load: "masked"} }, "systemctl unmask"},
		{"a file that came between intent and act", func(m *machine) {
			m.put(state.Row{ID: "file:/etc/notes/conf", Module: "notes", Kind: "file", Phase: state.Intended, Made: true, Want: resource.Sum([]byte("one")) + " x"})
			m.file("/etc/notes/conf", "other", 0o644)
		}, "it is there and mesh did not put it there"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newMachine()
			tt.there(m)
			p := m.plan(plan.Input{Resources: append(notes(), aFile("other", "/etc/other", "x"))})
			err := p.Failed["notes"]
			if refusal.Of(err) == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("failed: %v, want %q", p.Failed, tt.want)
			}
			if !slices.ContainsFunc(p.Steps, func(s plan.Step) bool { return s.Module == "other" }) {
				t.Error("the other module has no step")
			}
			for _, s := range p.Steps {
				if s.Module == "notes" && s.Op != plan.MakeDir {
					t.Errorf("half a module: %s %s", s.Op, s.ID)
				}
			}
			before := maps.Clone(m.see.Paths)
			m.do(p, 99)
			for path, st := range before {
				if m.see.Paths[path] != st {
					t.Errorf("%s was touched", path)
				}
			}
			m.do(m.plan(plan.Input{}), 99)
			for path, st := range before {
				if m.see.Paths[path] != st {
					t.Errorf("%s was touched by the unassign", path)
				}
			}
		})
	}
}

func TestEqualIsAdoptedAndNotRemoved(t *testing.T) {
	m := newMachine()
	m.file("/etc/notes/conf", "one", 0o644)
	m.see.Paths["/etc/notes"] = file.State{Exists: true, Kind: file.Dir, Mode: 0o700}
	m.see.Paths["/srv/notes"] = file.State{Exists: true, Kind: file.Dir, Mode: 0o755}
	in := plan.Input{Resources: notes()[:3]}
	p := m.plan(in)
	expect(t, p)
	m.do(p, 99)
	settled(t, m, in)
	p = m.plan(plan.Input{})
	expect(t, p)
	m.do(p, 99)
	settled(t, m, plan.Input{})
}

func TestDrift(t *testing.T) {
	setUnit := func(m *machine, change func(*plan.Unit)) {
		u := m.see.Units["mesh-notes-web.service"]
		change(&u)
		m.see.Units["mesh-notes-web.service"] = u
	}
	for _, tt := range []struct {
		name   string
		change func(m *machine)
		found  string
		steps  []string
	}{
		{"content", func(m *machine) { m.file("/etc/notes/conf", "two", 0o644) }, "file:/etc/notes/conf: content differs", []string{"write file"}},
		{"mode", func(m *machine) { m.file("/etc/notes/conf", "one", 0o666) }, "file:/etc/notes/conf: mode is 0666, declared 0644", []string{"write file"}},
		{"owner", func(m *machine) {
			m.file("/etc/notes/conf", "one", 0o644)
			st := m.see.Paths["/etc/notes/conf"]
			st.UID = 7
			m.see.Paths["/etc/notes/conf"] = st
		}, "file:/etc/notes/conf: owner is 7, declared root", []string{"write file"}},
		{"file gone", func(m *machine) { delete(m.see.Paths, "/etc/notes/conf") }, "file:/etc/notes/conf: it is gone", []string{"write file"}},
		{"folder gone", func(m *machine) { delete(m.see.Paths, "/srv/notes") }, "dir:/srv/notes: it is gone", []string{"make folder"}},
		{"bundle gone", func(m *machine) { delete(m.see.Bundles, "/bundles/d1") }, "bundle:notes/d1: it is gone", []string{"fetch bundle"}},
		{"unit stopped", func(m *machine) { setUnit(m, func(u *plan.Unit) { u.Active = "inactive" }) }, "unit:mesh-notes-web.service: it was stopped", []string{"start"}},
		{"unit disabled", func(m *machine) { setUnit(m, func(u *plan.Unit) { u.Enabled = "disabled" }) }, "unit:mesh-notes-web.service: it does not start at boot any more", []string{"enable", "reload systemd"}},
		{"unit edited, not loaded", func(m *machine) {
			m.file(unitFile, "mine", 0o644)
			setUnit(m, func(u *plan.Unit) { u.NeedReload = true })
		}, "unit:mesh-notes-web.service: content differs", []string{"write unit", "enable", "reload systemd"}},
		{"unit edited and loaded", func(m *machine) { m.file(unitFile, "mine", 0o644) },
			"unit:mesh-notes-web.service: content differs", []string{"write unit", "enable", "reload systemd", "restart"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newMachine()
			in := plan.Input{Resources: notes()}
			m.do(m.plan(in), 99)
			tt.change(m)
			in.Drift = declaration.ReportOnly
			p := m.plan(in)
			said := func(p plan.Plan) string {
				var all []string
				for _, f := range p.Found {
					all = append(all, f.ID+": "+f.What)
				}
				return strings.Join(all, "\n")
			}
			if got := said(p); got != tt.found || len(p.Steps) > 0 || p.Found[0].Repaired || len(p.Adopt) > 0 {
				t.Errorf("drift=report: found %q, steps %v, adopt %v", got, lines(p), p.Adopt)
			}
			in.Drift = declaration.Repair
			p = m.plan(in)
			if got := said(p); got != tt.found || !p.Found[0].Repaired {
				t.Errorf("found %q, want %q", got, tt.found)
			}
			var ops []string
			for _, s := range p.Steps {
				ops = append(ops, string(s.Op))
				if s.Intent != nil {
					t.Errorf("a repair intends %v: mesh has it already", s.Intent)
				}
			}
			if !slices.Equal(ops, tt.steps) {
				t.Errorf("steps %v, want %v", ops, tt.steps)
			}
			m.do(p, 99)
			settled(t, m, in)
		})
	}
}

func TestUnitsStartAgainOnlyForAReason(t *testing.T) {
	const id = "unit:mesh-notes-web.service"
	unit := func(text, trigger string, change func(*resource.Unit)) plan.Input {
		r := aUnit("notes", "mesh-notes-web.service", text, trigger)
		if change != nil {
			change(r.Unit)
		}
		return plan.Input{Resources: []resource.Resource{r}}
	}
	active := func(a string) func(*machine) {
		return func(m *machine) {
			u := m.see.Units["mesh-notes-web.service"]
			u.Active, u.Result, u.Status = a, "exit-code", 3
			m.see.Units["mesh-notes-web.service"] = u
		}
	}
	none := func(*machine) {}
	for _, tt := range []struct {
		name  string
		then  func(*machine)
		in    plan.Input
		steps []string
	}{
		{"nothing", none, unit("v1", "t1", nil), nil},
		{"a new trigger", none, unit("v1", "t2", nil), []string{"restart " + id + ": its bundle, files or settings changed"}},
		{"a new text", none, unit("v2", "t2", nil), []string{"write unit " + id + ": content differs", "enable " + id + ": declared to start at boot",
			"reload systemd systemd: changed: mesh-notes-web.service", "restart " + id + ": its unit changed"}},
		{"it failed", active("failed"), unit("v1", "t1", nil), []string{"start " + id + ": it failed (exit-code, status 3)"}},
		{"it starts again by itself", active("activating"), unit("v1", "t1", nil), nil},
		{"it ended and may", active("inactive"), unit("v1", "t1", func(u *resource.Unit) { u.Ends = true }), nil},
		{"it failed and runs once", active("failed"), unit("v1", "t1", func(u *resource.Unit) { u.Ends, u.Once = true, true }), nil},
		{"it ran once, and is declared anew", active("inactive"), unit("v1", "t2", func(u *resource.Unit) { u.Ends, u.Once = true, true }), []string{"start " + id + ": declared to run"}},
		{"it is not to run any more", none, unit("v1", "", func(u *resource.Unit) { u.Started, u.Enabled = false, false }),
			[]string{"disable " + id + ": not declared to start at boot any more", "stop " + id + ": not declared to run any more", "reload systemd systemd: changed: mesh-notes-web.service"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newMachine()
			m.do(m.plan(unit("v1", "t1", nil)), 99)
			tt.then(m)
			p := m.plan(tt.in)
			expect(t, p, tt.steps...)
			m.do(p, 99)
			if len(tt.steps) > 0 {
				settled(t, m, tt.in)
			}
		})
	}
}

func TestLostLedgerRestartsNothing(t *testing.T) {
	m := newMachine()
	in := plan.Input{Resources: notes()}
	m.do(m.plan(in), 99)
	clear(m.ledger)
	p := m.plan(in)
	expect(t, p)
	m.do(p, 99)
	settled(t, m, in)
	// A unit with mesh's mark is mesh's, whatever it says now.
	clear(m.ledger)
	in.Resources[4] = aUnit("notes", "mesh-notes-web.service", "v2", "t2")
	if p := m.plan(in); len(p.Failed) > 0 || len(p.Steps) == 0 {
		t.Errorf("failed %v, steps %v", p.Failed, lines(p))
	}
}

func TestUnitsUnseen(t *testing.T) {
	m := newMachine()
	m.see.UnitsError = errors.New("no D-Bus")
	p := m.plan(plan.Input{Resources: append(notes(), aFile("plain", "/etc/plain", "x"))})
	if p.Unknown["notes"] == nil || p.Unknown["plain"] != nil {
		t.Errorf("unknown: %v", p.Unknown)
	}
	for _, s := range p.Steps {
		if s.Module == "notes" && s.Op != plan.MakeDir {
			t.Errorf("half a module: %s %s", s.Op, s.ID)
		}
	}
}

func TestOlderBundlesGo(t *testing.T) {
	m := newMachine()
	for _, d := range []string{"d1", "d2", "d3", "d4"} {
		in := plan.Input{Resources: []resource.Resource{aBundle("notes", d)}}
		m.do(m.plan(in), 99)
		settled(t, m, in)
	}
	if got := slices.Sorted(maps.Keys(m.see.Bundles)); !slices.Equal(got, []string{"/bundles/d3", "/bundles/d4"}) {
		t.Errorf("bundles left: %v", got)
	}
	// A bundle that another module has too is forgotten, not removed.
	two := plan.Input{Resources: []resource.Resource{aBundle("notes", "d4"), aBundle("other", "d4")}}
	m.do(m.plan(two), 99)
	one := plan.Input{Resources: []resource.Resource{aBundle("other", "d4")}}
	m.do(m.plan(one), 99)
	settled(t, m, one)
	if got := slices.Sorted(maps.Keys(m.see.Bundles)); !slices.Equal(got, []string{"/bundles/d4"}) {
		t.Errorf("bundles left: %v", got)
	}
}

// APP-7: the bundle of the last good build stays, in the place of another.
func TestTheLastGoodBundleStays(t *testing.T) {
	m := newMachine()
	for i, d := range []string{"d1", "d2", "d3", "d4"} {
		in := plan.Input{Resources: []resource.Resource{aBundle("notes", d)}}
		if i > 0 {
			in.Keep = map[string]bool{resource.BundleID("notes", "d1"): true}
		}
		m.do(m.plan(in), 99)
		settled(t, m, in)
	}
	if got := slices.Sorted(maps.Keys(m.see.Bundles)); !slices.Equal(got, []string{"/bundles/d1", "/bundles/d4"}) {
		t.Errorf("bundles left: %v", got)
	}
}

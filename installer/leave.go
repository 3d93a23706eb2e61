package installer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"mesh/installer/unit"
	"mesh/shared/credential"
	"mesh/shared/manifest"
	"mesh/shared/refusal"
)

// What becomes of the packet filter when a machine leaves. mesh writes one table, which both take away.
// FilterFound puts back the front ends that a converge retired; FilterNone leaves them off, and names them and
// the tables of others that stay.
const (
	FilterFound = "found"
	FilterNone  = "none"
)

// LeaveOptions say how mesh is removed.
type LeaveOptions struct {
	// StopWorkloads ends what modules run here and removes their units; otherwise they run on.
	StopWorkloads bool
	// Filter is FilterFound or FilterNone.
	Filter string
	// CoordinatorToo removes the whole mesh when its coordinator is here.
	CoordinatorToo bool
}

// leaving is what of mesh is on the machine.
type leaving struct {
	i           *Installer
	o           LeaveOptions
	agent       bool
	coordinator bool
	node, mesh  string
	workloads   []workload
	// things are the ids of what the agent put here besides units, when it could tell.
	things []string
	// fronts are the front ends of the packet filter that a converge retired.
	fronts []string
}

// workload is a unit that an agent made for a module.
type workload struct{ unit, module string }

// Left says what stays on the machine and what is to be done elsewhere.
type Left struct {
	// Node and Mesh are what the machine was; empty when it was in no mesh.
	Node, Mesh string
	// Coordinator: the mesh's coordinator was here, and the mesh has ended with it.
	Coordinator bool
	// Stays are the things that are left, in words.
	Stays []string
}

// Leave removes mesh from this machine. Each step looks first, so a run that was cut short is gone on
// with by the next one; nothing is undone.
func (i *Installer) Leave(ctx context.Context, o LeaveOptions) (Left, error) {
	o.Filter = firstOf(o.Filter, FilterFound)
	if o.Filter != FilterFound && o.Filter != FilterNone {
		return Left{}, refusal.New(fmt.Sprintf("the packet filter %q", o.Filter), "there is no such choice", "use --filter found or --filter none")
	}
	release, err := i.alone()
	if err != nil {
		return Left{}, err
	}
	defer func() { _ = release() }() // the end of the program does so too
	l := &leaving{i: i, o: o}
	if err := i.steps(ctx, []Step{{What: "check who runs this", Reads: true, Do: i.checkRoot}, {What: "look for mesh on this machine", Reads: true, Do: l.look}}); err != nil {
		return Left{}, err
	}
	if !l.agent && !l.coordinator && len(l.workloads) == 0 {
		return Left{}, nil
	}
	if err := i.steps(ctx, l.steps()); err != nil {
		return Left{}, err
	}
	stays, err := l.stays(ctx)
	return Left{Node: l.node, Mesh: l.mesh, Coordinator: l.coordinator, Stays: stays}, err
}

// look finds what is here.
func (l *leaving) look(ctx context.Context) (string, error) {
	m := l.i.Machine
	l.agent = exists(m.at(agentFolder)) || exists(m.at(filepath.Join(unit.Folder, unit.AgentName))) || exists(m.at(filepath.Join(unit.Folder, unit.FilterName))) || exists(m.at(filepath.Join(programFolder, agentProgram)))
	l.coordinator = exists(m.at(coordinatorFolder)) || exists(m.at(filepath.Join(unit.Folder, unit.CoordinatorName)))
	if l.coordinator && !l.o.CoordinatorToo {
		return "", refusal.New("to take this machine out of its mesh", "the coordinator of the mesh is here, and the mesh would end with it",
			"if that is meant: mesh-installer leave --coordinator-too")
	}
	if f, err := credential.Load(m.at(credentialFile)); err == nil && f.Signer != "" {
		l.node, l.mesh = f.Name, f.Mesh
	}
	var err error
	if l.workloads, err = m.workloads(); err != nil {
		return "", err
	}
	// An agent that cannot say it must not keep mesh on a machine.
	if out, err := m.Run(ctx, filepath.Join(programFolder, agentProgram), "ledger"); err == nil {
		for id := range strings.Lines(out) {
			if name, ok := strings.CutPrefix(strings.TrimSpace(id), "front-end:"); ok {
				l.fronts = append(l.fronts, name)
				continue
			}
			if id = strings.TrimSpace(id); strings.Contains(id, ":/") || strings.HasPrefix(id, "user:") {
				l.things = append(l.things, id)
			}
		}
	}
	var found []string
	if l.agent {
		found = append(found, "the agent"+prefixed(" of ", l.node))
	}
	if l.coordinator {
		found = append(found, "the coordinator")
	}
	if n := len(l.workloads); n > 0 {
		found = append(found, fmt.Sprintf("%d units of modules", n))
	}
	if len(found) == 0 {
		return "mesh is not on this machine", nil
	}
	return "found " + strings.Join(found, ", "), nil
}

func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}

// workloads are the units with an agent's mark, by name: the mark counts, also when the agent's ledger
// is lost.
func (m Machine) workloads() ([]workload, error) {
	entries, err := os.ReadDir(m.at(unit.Folder))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var all []workload
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}
		first := m.line(filepath.Join(unit.Folder, e.Name()))
		if rest, ok := strings.CutPrefix(first, manifest.UnitMark); ok {
			module, _, _ := strings.Cut(rest, ",")
			all = append(all, workload{e.Name(), strings.TrimSuffix(module, ".")})
		}
	}
	return all, nil
}

// steps are what removes mesh; the programs go last, so that a run that was cut short can be repeated.
func (l *leaving) steps() []Step {
	steps := []Step{l.end(unit.AgentName), l.end(unit.FilterName)}
	for _, name := range []string{"mesh-agent-fallback.timer", "mesh-agent-fallback.service"} { // an agent is being tried
		if exists(l.i.Machine.at(filepath.Join(unit.Folder, name))) {
			steps = append([]Step{l.end(name)}, steps...)
		}
	}
	if l.coordinator {
		steps = append(steps, l.end(unit.CoordinatorName))
	}
	if l.o.StopWorkloads && len(l.workloads) > 0 {
		steps = append(steps, l.stopWorkloads())
	}
	if len(l.fronts) > 0 && l.o.Filter == FilterFound { // before mesh's own goes: the machine is never open
		steps = append(steps, Step{What: "put back what filtered before mesh: " + strings.Join(l.fronts, ", "),
			Do: func(ctx context.Context) (string, error) {
				_, err := l.i.Machine.Run(ctx, filepath.Join(programFolder, agentProgram), "firewall", "give-back")
				return "", err
			}})
	}
	steps = append(steps, Step{What: "remove mesh's packet filter (table inet mesh)",
		Do: func(ctx context.Context) (string, error) { return "", l.i.Machine.DropFilter(ctx) }})
	steps = append(steps, l.forget())
	if l.coordinator {
		steps = append(steps, l.delete("remove the records, keys and bus of the mesh in "+coordinatorFolder, coordinatorFolder, coordinatorFolder+".new"), // of an init that was killed
			l.delete("remove "+operatorFile, operatorFile),
			l.delete("remove "+coordinatorProgram, filepath.Join(programFolder, coordinatorProgram)))
	}
	return append(steps, l.delete("remove "+agentProgram+" and "+installerProgram, filepath.Join(programFolder, agentProgram), filepath.Join(programFolder, installerProgram)))
}

// end stops a daemon and removes its unit. A drop-in is a person's and stays.
func (l *leaving) end(name string) Step {
	return Step{What: "stop and remove " + name,
		Do: func(ctx context.Context) (string, error) {
			file := l.i.Machine.at(filepath.Join(unit.Folder, name))
			if !exists(file) {
				return name + " is not there", nil
			}
			if _, err := l.i.Machine.Run(ctx, "systemctl", "disable", "--now", "--quiet", name); err != nil {
				return "", err
			}
			if err := remove(file); err != nil {
				return "", err
			}
			_, err := l.i.Machine.Run(ctx, "systemctl", "daemon-reload")
			return "", err
		}}
}

func (l *leaving) stopWorkloads() Step {
	names := make([]string, len(l.workloads))
	for n, w := range l.workloads {
		names[n] = w.unit
	}
	return Step{What: "stop and remove " + strings.Join(names, ", "),
		Do: func(ctx context.Context) (string, error) {
			if _, err := l.i.Machine.Run(ctx, append([]string{"systemctl", "disable", "--now", "--quiet"}, names...)...); err != nil {
				return "", err
			}
			for _, n := range names {
				if err := remove(l.i.Machine.at(filepath.Join(unit.Folder, n))); err != nil {
					return "", err
				}
			}
			_, err := l.i.Machine.Run(ctx, "systemctl", "daemon-reload")
			return "", err
		}}
}

// kept are the folders of the agent that workloads need: their programs and their environments.
var kept = [...]string{"bundles", "env"}

// forget removes the agent's state, and with workloads that stay all of it but what they need.
func (l *leaving) forget() Step {
	if l.o.StopWorkloads || len(l.workloads) == 0 {
		return l.delete("remove the agent's state in "+agentFolder, agentFolder, agentRun)
	}
	return Step{What: "remove the agent's state in " + agentFolder + ", but not the programs that run on",
		Do: func(context.Context) (string, error) {
			at := l.i.Machine.at(agentFolder)
			entries, err := os.ReadDir(at)
			if errors.Is(err, fs.ErrNotExist) {
				return agentFolder + " is not there", nil
			}
			for _, e := range entries {
				if !slices.Contains(kept[:], e.Name()) {
					err = errors.Join(err, os.RemoveAll(filepath.Join(at, e.Name())))
				}
			}
			return "", errors.Join(err, os.RemoveAll(l.i.Machine.at(agentRun)))
		}}
}

// delete removes files and folders that are mesh's own.
func (l *leaving) delete(what string, paths ...string) Step {
	return Step{What: what, Do: func(context.Context) (string, error) {
		var errs []error
		for _, p := range paths {
			errs = append(errs, os.RemoveAll(l.i.Machine.at(p)))
		}
		if len(paths) == 1 && paths[0] == operatorFile {
			_ = os.Remove(l.i.Machine.at(meshFolder)) // other things in it stay
		}
		return "", errors.Join(errs...)
	}}
}

// stays names what is left.
func (l *leaving) stays(ctx context.Context) ([]string, error) {
	var out []string
	if len(l.workloads) > 0 && !l.o.StopWorkloads {
		for _, w := range l.workloads {
			out = append(out, w.unit+" of module "+w.module+" runs on")
		}
		out = append(out, agentFolder+" with the programs of these")
	}
	for _, id := range l.things {
		kind, name, _ := strings.Cut(id, ":")
		if kind == "unit" || kind == "bundle" || strings.HasPrefix(name, agentFolder+"/") {
			continue
		}
		word := map[string]string{"dir": "folder", "file": "file", "user": "user"}[kind]
		out = append(out, strings.TrimSpace(firstOf(word, kind)+" "+name))
	}
	if l.o.Filter == FilterNone && len(l.fronts) > 0 {
		out = append(out, "switched off, as mesh left them: "+strings.Join(l.fronts, ", "))
	}
	if l.o.Filter == FilterNone {
		if tables, err := l.i.Machine.Run(ctx, "nft", "list", "tables"); err == nil && strings.TrimSpace(tables) != "" {
			out = append(out, "packet filters that are not mesh's: "+strings.Join(strings.Split(strings.TrimSpace(tables), "\n"), ", "))
		}
	}
	return out, nil
}

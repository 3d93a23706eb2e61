package agent

import (
	"context"
	"path/filepath"

	"mesh/agent/apply"
	"mesh/agent/host/user"
	"mesh/agent/upgrade"
	"mesh/shared/manifest"
	"mesh/shared/report"
)

// upgradeUnits is what an upgrade does with systemd.
type upgradeUnits struct {
	apply.Units
	user.Runner
}

// ownUpgrade makes what changes the agent itself (NOD-12); nil where the program that runs is not known, or
// there is no systemd.
func (a *Agent) ownUpgrade() (*upgrade.Upgrader, error) {
	h := a.machine.Host
	if a.cfg.Self == "" || h.Units == nil || h.Runner == nil {
		return nil, nil
	}
	u, err := upgrade.New(upgrade.Config{Dir: a.cfg.Dir, Root: a.cfg.Root, Self: a.cfg.Self, Window: a.cfg.Window, Copy: a.store.CopyTo,
		Units: upgradeUnits{h.Units, h.Runner}, Clock: a.cfg.Clock, Log: a.cfg.Log})
	if err == nil {
		a.me.Bundle = u.Bundle()
	}
	return u, err
}

// wantAgent tells which bundle the declaration wants the agent from, once it is here.
func (a *Agent) wantAgent(ctx context.Context, r apply.Result) {
	d := a.engine.Declared()
	if a.upgrade == nil || d == nil {
		return
	}
	digest := ""
	for i := range d.Modules {
		m := &d.Modules[i]
		if !apply.HoldsAgent(m) || m.Artifact == nil {
			continue
		}
		for _, is := range r.Modules {
			if is.Name == m.Name && is.State == report.Running {
				digest, a.agentModule = m.Artifact.Digest, m.Name
			}
		}
	}
	a.upgrade.Want(digest, filepath.Join(a.cfg.Dir, bundlesFolder, digest, manifest.AgentProgram))
	a.agentBundle = digest
	why, waits := a.upgrade.Trouble(digest)
	if waits || why == a.agentTrouble {
		return
	}
	if a.agentTrouble = why; why != "" {
		if err := a.store.AddProblem(ctx, "the agent is not the one of module "+string(a.agentModule)+": "+why); err != nil {
			a.cfg.Log.Error("a problem could not be remembered", "err", err)
		}
	}
}

// bundlesFolder is where bundles are unpacked, below the state directory.
const bundlesFolder = "bundles"

// told notes that the bus has a report of this life's.
func (a *Agent) told() {
	if a.upgrade != nil && a.made.Load() > 0 && a.store.Depth() == 0 {
		a.upgrade.Reported()
	}
}

// withOwn says of the module that holds the agent's seat how the agent stands with it: its bundle being here
// is not all.
func (a *Agent) withOwn(modules []report.Module) []report.Module {
	if a.upgrade == nil || a.agentBundle == "" {
		return modules
	}
	why, waits := a.upgrade.Trouble(a.agentBundle)
	if why == "" {
		return modules
	}
	out := make([]report.Module, len(modules))
	copy(out, modules)
	for i := range out {
		if out[i].Name != a.agentModule || out[i].State != report.Running {
			continue
		}
		out[i].State, out[i].Detail = report.Broken, why
		if waits {
			out[i].State = report.Pending
		}
	}
	return out
}

package resource

import (
	"maps"
	"slices"
	"time"

	"mesh/agent/health"
	"mesh/shared/manifest"
)

// Health is how a unit is told to be well.
type Health struct {
	// Check is what is asked, without a Key; nil when systemd calling it active is enough.
	Check *health.Check
	// Within is how long a new build may take to get well.
	Within time.Duration
}

// health is the declared health of a process: a program is asked by beside it, as its user and with its
// environment.
func (e *expander) health(unit string, p manifest.Process) *Health {
	h := ask(p.Health)
	if h == nil || h.Check == nil || h.Check.Program == nil {
		return h
	}
	x := h.Check.Program
	x.Unit, x.Directory = unit, e.place(p.Directory, true)
	if user := p.RunsAs(); user != "root" {
		x.User = user
	}
	x.Argv = slices.Clone(x.Argv)
	x.Argv[0] = e.place(x.Argv[0], false)
	private := privateVars(p.Env, e.plainEnv(unit))
	for _, k := range slices.Sorted(maps.Keys(p.Env)) {
		if !slices.Contains(private, k) {
			x.Env = append(x.Env, k+"="+p.Env[k])
		}
	}
	if len(private) > 0 {
		x.EnvFile = e.envPath(unit)
	}
	return h
}

// plainEnv is the environment of the process that unit is, with its placeholders.
func (e *expander) plainEnv(unit string) map[string]string {
	for name, p := range e.plain.Run.Processes {
		if manifest.UnitName(e.module.Name, name, ".service") == unit {
			return p.Env
		}
	}
	return nil
}

// containerHealth is the declared health of a container: a program is asked by in it.
func (e *expander) containerHealth(unit, container string, c manifest.Container) *Health {
	h := ask(c.Health)
	if h != nil && h.Check != nil && h.Check.Program != nil {
		h.Check.Program.Unit, h.Check.Program.Container = unit, container
	}
	return h
}

// ask is a manifest's health with its defaults; nil for none.
func ask(m *manifest.Health) *Health {
	if m == nil {
		return nil
	}
	h := &Health{Within: m.Within.Std(manifest.DefaultWithin)}
	if m.Systemd {
		return h
	}
	h.Check = &health.Check{URL: m.HTTP, Address: m.TCP, Every: m.Every.Std(manifest.DefaultEvery), Timeout: m.Timeout.Std(manifest.DefaultTimeout), Retries: m.Count()}
	if len(m.Command) > 0 {
		h.Check.Program = &health.Program{Argv: m.Command}
	}
	return h
}

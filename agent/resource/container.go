package resource

import (
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"mesh/shared/manifest"
)

// The pause before a container is started again, and the bound on how often (facts/host.md §4.1). The starts
// themselves take a second or two each, so the interval is long; burst times pause stays well below it.
const (
	containerPause    = "5s"
	containerBurst    = "10"
	containerInterval = "300s"
	containerStart    = "90s"
	// stopGrace is what systemd waits beyond the container's own time to end, for the engine to clean up.
	stopGrace = 10 * time.Second
)

func (e *expander) container(name string, c manifest.Container) error {
	image, err := e.image(c.Image)
	if err != nil {
		return err
	}
	unit := manifest.UnitName(e.module.Name, name, ".service")
	after, needs := e.others(c.After)
	t := newText(string(e.module.Name), "container "+name)
	t.section("Unit")
	t.set("Description", string(e.module.Name)+" "+name+" (mesh)")
	base := []string{"network-online.target"}
	if e.in.Engine.Docker {
		t.set("Requires", "docker.service")
		base = append(base, "docker.service")
	} else {
		t.set("RequiresMountsFor", "%t/containers")
	}
	t.set("Wants", strings.Join(append([]string{"network-online.target"}, after...), " "))
	t.set("After", strings.Join(append(base, after...), " "))
	t.set("StartLimitIntervalSec", containerInterval)
	t.set("StartLimitBurst", containerBurst)
	t.section("Service")
	own := e.filled.ContainerName(name)
	run := e.runWords(name, c, image)
	if e.in.Engine.Docker {
		e.dockerService(t, own, c, run)
	} else {
		e.podmanService(t, own, c, run)
	}
	t.set("Restart", string(c.RestartPolicy()))
	if c.RestartPolicy() != manifest.Never {
		t.set("RestartSec", containerPause)
	}
	t.set("SuccessExitStatus", "143") // what a program that ends at SIGTERM says
	t.set("TimeoutStartSec", containerStart)
	t.set("TimeoutStopSec", seconds(c.StopWithin()+stopGrace))
	if c.Log.Lines != "" {
		t.set("LogRateLimitBurst", string(c.Log.Lines))
		t.set("LogRateLimitIntervalSec", seconds(c.Log.Per.Std(30*time.Second)))
	}
	if private := privateVars(c.Env, e.plain.Run.Containers[name].Env); len(private) > 0 {
		t.set("EnvironmentFile", escapePath(e.envFile(unit, private, c.Env)))
	}
	t.set("SyslogIdentifier", strings.TrimSuffix(unit, ".service"))
	t.section("Install")
	t.set("WantedBy", "multi-user.target")
	e.unit(Unit{Name: unit, Enabled: true, Started: true, Ends: c.RestartPolicy() != manifest.Always, Once: c.RestartPolicy() == manifest.Never,
		Container: own, Uses: e.uses(c), Replaces: e.replaced(c.Replaces), Health: e.containerHealth(unit, own, c)}, t.String(), needs...)
	return nil
}

// others are the units that a process or container waits for, and the ids of them.
func (e *expander) others(names []string) (units, ids []string) {
	for _, a := range slices.Sorted(slices.Values(names)) {
		u := manifest.UnitName(e.module.Name, a, ".service")
		units, ids = append(units, u), append(ids, ID(KindUnit, u))
	}
	return units, ids
}

// replaced are the units that one takes over from.
func (e *expander) replaced(names []string) (units []string) {
	for _, n := range slices.Sorted(slices.Values(names)) {
		units = append(units, manifest.UnitName(e.module.Name, n, ".service"))
	}
	return units
}

// uses are the ids of what has to stand still while it is made anew.
func (e *expander) uses(c manifest.Container) (ids []string) {
	for _, n := range c.Networks {
		if net, ours := e.filled.Run.Networks[n]; ours && !net.External {
			ids = append(ids, ID(KindNetwork, e.filled.NetworkName(n)))
		}
	}
	for _, v := range c.Volumes {
		if v.Name != "" {
			ids = append(ids, ID(KindVolume, e.filled.VolumeName(v.Name)))
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

func (e *expander) podmanService(t *text, own string, c manifest.Container, run []string) {
	podman := e.in.Engine.program()
	t.set("Type", "notify")
	t.set("NotifyAccess", "all")
	t.set("KillMode", "mixed")
	t.set("Delegate", "yes")
	t.set("Environment", "PODMAN_SYSTEMD_UNIT=%n")
	head := []string{podman, "run", "--name=" + own, "--replace", "--rm", "--pull=never", "--cgroups=split", "--sdnotify=conmon", "--detach",
		"--log-driver=journald", "--stop-timeout=" + strconv.Itoa(int(c.StopWithin()/time.Second))}
	t.set("ExecStart", commandLine(append(head, run...)))
	end := commandLine([]string{podman, "rm", "-v", "-f", "-i", own})
	t.set("ExecStop", end)
	t.set("ExecStopPost", "-"+end)
}

// dockerService is of docker, whose payload lives below its daemon: the unit's processes are only the
// engine's program, so what ends the container is ExecStopPost (facts/host.md §4.8).
func (e *expander) dockerService(t *text, own string, c manifest.Container, run []string) {
	docker := e.in.Engine.program()
	stop := strconv.Itoa(int(c.StopWithin() / time.Second))
	t.set("Type", "exec")
	gone := "-" + commandLine([]string{docker, "rm", "-v", "-f", own})
	t.set("ExecStartPre", gone)
	head := []string{docker, "run", "--name=" + own, "--rm", "--pull=never", "--log-driver=none", "--stop-timeout=" + stop}
	t.set("ExecStart", commandLine(append(head, run...)))
	t.set("ExecStop", commandLine([]string{docker, "stop", "-t", stop, own}))
	t.set("ExecStopPost", gone)
}

// commandLine is a command in a unit file.
func commandLine(words []string) string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = quote(w, i > 0)
	}
	return strings.Join(out, " ")
}

// runWords are the arguments of "run" that both engines take: options, image, arguments.
func (e *expander) runWords(name string, c manifest.Container, image *Image) []string {
	var o []string
	add := func(option string, values ...string) {
		for _, v := range values {
			if v != "" {
				o = append(o, "--"+option+"="+v)
			}
		}
	}
	o = append(o, "--no-healthcheck") // the agent asks, at one pace
	if c.ReadOnly {
		o = append(o, "--read-only")
	}
	private := privateVars(c.Env, e.plain.Run.Containers[name].Env)
	for _, k := range slices.Sorted(maps.Keys(c.Env)) {
		if slices.Contains(private, k) {
			add("env", k) // its value is in the engine's environment, and in no command line
		} else {
			add("env", k+"="+c.Env[k])
		}
	}
	add("env-file", c.EnvFiles...)
	add("user", c.User)
	add("workdir", c.Directory)
	add("cap-drop", capabilities(c.Capabilities.Drop)...)
	add("cap-add", capabilities(c.Capabilities.Add)...)
	add("device", c.Devices...)
	for _, f := range c.Tmpfs {
		if f.Size == "" {
			add("tmpfs", f.At)
		} else {
			add("tmpfs", f.At+":size="+strings.ToLower(string(f.Size)))
		}
	}
	add("memory", strings.ToLower(string(c.Limits.Memory)))
	add("cpus", string(c.Limits.CPUs))
	add("pids-limit", string(c.Limits.Pids))
	add("stop-signal", c.StopSignal)
	for _, p := range c.Ports {
		add("publish", p.Word())
	}
	for _, v := range c.Volumes {
		e.mount(add, v)
	}
	for _, n := range c.Networks {
		if _, ours := e.filled.Run.Networks[n]; ours {
			n = e.filled.NetworkName(n)
		}
		add("network", n)
	}
	if len(c.Networks) > 0 && len(e.filled.Run.Networks) > 0 && !slices.Contains([]string{manifest.HostNetwork, manifest.NoNetwork}, c.Networks[0]) { // the others find it by its name in the manifest
		add("network-alias", name)
	}
	for _, k := range slices.Sorted(maps.Keys(c.Labels)) {
		add("label", k+"="+c.Labels[k])
	}
	rest := []string{image.Word()}
	if len(c.Entrypoint) > 0 { // docker takes one word there
		add("entrypoint", c.Entrypoint[0])
		rest = append(rest, c.Entrypoint[1:]...)
	}
	rest = append(rest, c.Command...)
	digest := Sum([]byte(strings.Join(append(slices.Clone(o), rest...), "\x00")))
	add("label", "mesh.module="+string(e.module.Name), "mesh.digest="+digest)
	return append(o, rest...)
}

// mount tells the engine of a folder of the machine by --mount, for then a missing one is an error and not made.
func (e *expander) mount(add func(string, ...string), v manifest.Mount) {
	if v.Path != "" {
		s := "type=bind,source=" + path.Clean(v.Path) + ",target=" + v.At
		if v.ReadOnly {
			s += ",readonly"
		}
		add("mount", s)
		return
	}
	s := e.filled.VolumeName(v.Name) + ":" + v.At
	if v.ReadOnly {
		s += ":ro"
	}
	add("volume", s)
}

// capabilities are names as both engines take them.
func capabilities(names []string) []string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = strings.TrimPrefix(strings.ToUpper(n), "CAP_")
	}
	slices.Sort(out)
	return out
}

// privateVars are the variables with a secret in them.
func privateVars(env, plain map[string]string) (names []string) {
	for _, k := range slices.Sorted(maps.Keys(env)) {
		if hasSecret(plain[k]) {
			names = append(names, k)
		}
	}
	return names
}

func seconds(d time.Duration) string {
	return strconv.Itoa(int(d.Round(time.Second)/time.Second)) + "s"
}

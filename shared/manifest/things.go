package manifest

import (
	"cmp"
	"maps"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Std is the time span, or fallback when none was declared. It is right only for one that passed Check.
func (d Duration) Std(fallback time.Duration) time.Duration {
	t, err := time.ParseDuration(string(d))
	if err != nil {
		return fallback
	}
	return t
}

// DefaultStop is how long a container may take to end.
const DefaultStop = 10 * time.Second

// StopWithin is how long the container may take to end before it is killed.
func (c Container) StopWithin() time.Duration { return c.StopTimeout.Std(DefaultStop) }

// The defaults of health's keys.
const (
	DefaultEvery   = 10 * time.Second
	DefaultWithin  = time.Minute
	DefaultTimeout = 5 * time.Second
	DefaultRetries = 3
)

// Count is how many asks in a row have to fail. It is right only for one that passed Check.
func (h *Health) Count() int {
	n, err := strconv.Atoi(string(h.Retries))
	if err != nil {
		return DefaultRetries
	}
	return n
}

// RestartPolicy is the restart policy that holds.
func (c Container) RestartPolicy() Restart { return cmp.Or(c.Restart, Always) }

// Word is the port as the engines take it: "0.0.0.0:80:8080/tcp" without the address when every one is meant.
func (p Port) Word() string {
	s := string(cmp.Or(p.Publish, p.Container)) + ":" + string(p.Container) + "/" + string(cmp.Or(p.Protocol, "tcp"))
	if p.Address == "" {
		return s
	}
	host := p.Address
	if strings.Contains(host, ":") {
		host = net.JoinHostPort(host, "")
		host = strings.TrimSuffix(host, ":")
	}
	return host + ":" + s
}

// stem is how everything of this module is called that has to be told from other modules'.
func (m *Manifest) stem(name string) string {
	return strings.TrimSuffix(UnitName(m.Module, name, ""), ".")
}

// ContainerName is the name of a container of the module in the engine.
func (m *Manifest) ContainerName(name string) string {
	return cmp.Or(m.Run.Containers[name].Name, m.stem(name))
}

// NetworkName is the name of a network of the module in the engine.
func (m *Manifest) NetworkName(name string) string {
	return cmp.Or(m.Run.Networks[name].Name, m.stem(name))
}

// VolumeName is the name of a volume of the module in the engine.
func (m *Manifest) VolumeName(name string) string {
	return cmp.Or(m.Run.Volumes[name].Name, m.stem(name))
}

// VolumeNames are the module's volumes: those under run.volumes and those that containers mount, sorted.
func (m *Manifest) VolumeNames() []string {
	names := slices.Collect(maps.Keys(m.Run.Volumes))
	for _, c := range m.Run.Containers {
		for _, v := range c.Volumes {
			if v.Name != "" {
				names = append(names, v.Name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// NeedsEngine reports whether a machine must have a container engine for the module.
func (m *Manifest) NeedsEngine() bool {
	return m.Needs.Engine || len(m.Run.Containers)+len(m.Run.Networks)+len(m.Run.Volumes) > 0
}

// SysctlFile and ModulesFile are the files by which the module's kernel settings and kernel modules hold after a
// boot (sysctl.d(5), modules-load.d(5)).
func (m *Manifest) SysctlFile() string {
	return path.Join("/etc/sysctl.d", "60-"+m.stem("sysctls")+".conf")
}

// ModulesFile is where the kernel modules stand that are loaded at boot.
func (m *Manifest) ModulesFile() string {
	return path.Join("/etc/modules-load.d", m.stem("modules")+".conf")
}

// SysctlName is a kernel setting by its name with dots: slashes and dots mean the other there (sysctl.d(5)).
func SysctlName(key string) string {
	if i := strings.IndexAny(key, "./"); i >= 0 && key[i] == '/' {
		return strings.Map(func(r rune) rune {
			switch r {
			case '/':
				return '.'
			case '.':
				return '/'
			}
			return r
		}, key)
	}
	return key
}

// thingClaims are Claims of what an engine, the kernel and the groups of the machine hold.
func (m *Manifest) thingClaims() (all []string) {
	for _, l := range m.Run.Links {
		all = append(all, "file "+Place(l.Path))
	}
	for c := range m.Run.Containers {
		all = append(all, "container "+m.ContainerName(c))
	}
	for n, net := range m.Run.Networks {
		if !net.External {
			all = append(all, "network "+m.NetworkName(n))
		}
	}
	for _, v := range m.VolumeNames() {
		all = append(all, "volume "+m.VolumeName(v))
	}
	for k := range m.Run.Sysctls {
		all = append(all, "sysctl "+SysctlName(k))
	}
	for g := range m.Run.Groups {
		all = append(all, "group "+g)
	}
	return all
}

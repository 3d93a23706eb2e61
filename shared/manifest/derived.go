package manifest

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"mesh/shared/subject"
)

// UnitMark is how the file of every unit begins that an agent makes for a module: by it the unit is known for
// mesh's, also when the agent's ledger is lost.
const UnitMark = "# Made by mesh for module "

// UnitName is the systemd unit that module's process or timer name becomes; suffix is ".service" or
// ".timer".
func UnitName(module subject.Module, name, suffix string) string {
	return "mesh-" + string(module) + "-" + name + suffix
}

// Bits is the mode as a number, or fallback (0644, 0755) when none was declared. It is right only for
// a mode that passed Check.
func (m Mode) Bits(fallback uint32) uint32 {
	n, err := strconv.ParseUint(string(m), 8, 32)
	if err != nil {
		return fallback
	}
	return uint32(n)
}

// AgentProgram is the agent in the bundle of a module that holds the seat node-engine.
const AgentProgram = "bin/mesh-agent"

// Holds reports whether the module holds the seat.
func (m *Manifest) Holds(seat Claim) bool { return slices.Contains(m.Seats.Claims, seat) }

// Built is the word by which a container names an image of its own module's.
const Built = "built"

// BuiltImage is the name, in build.images, of the image that a container's word means: "built" is the only
// one, "built:<name>" the one of that name. ok is false when there is none of that name, or the word names
// an image that is not the module's own.
func (m *Manifest) BuiltImage(word string) (name string, ok bool) {
	if word == Built && len(m.Build.Images) == 1 {
		for name = range m.Build.Images {
			return name, true
		}
	}
	name, own := strings.CutPrefix(word, Built+":")
	if _, known := m.Build.Images[name]; own && known {
		return name, true
	}
	return "", false
}

// The defaults of the keys that may be left out, as the reference has them.

// Policy is the upgrade policy that holds.
func (m *Manifest) Policy() Upgrade { return cmp.Or(m.Upgrade, Record) }

// RestartPolicy is the restart policy that holds.
func (p Process) RestartPolicy() Restart { return cmp.Or(p.Restart, Always) }

// RunsAs is the user the process runs as.
func (p Process) RunsAs() string { return cmp.Or(p.User, "root") }

// RunsAs is the user the timer's program runs as.
func (t Timer) RunsAs() string { return cmp.Or(t.User, "root") }

// Owned is who owns the file.
func (f File) Owned() (owner, group string) { return cmp.Or(f.Owner, "root"), cmp.Or(f.Group, "root") }

// Owned is who owns the directory.
func (d Directory) Owned() (owner, group string) {
	return cmp.Or(d.Owner, "root"), cmp.Or(d.Group, "root")
}

// HomeDir is the user's home.
func (u User) HomeDir() string { return cmp.Or(u.Home, "/nonexistent") }

// LoginShell is the user's shell.
func (u User) LoginShell() string { return cmp.Or(u.Shell, "/usr/sbin/nologin") }

// Claims lists what the module alone may hold on a machine, as "file /etc/x", "directory /srv/x",
// "unit x.service", "user x", sorted. Two modules whose claims meet do not go on one machine: module
// a with process b-c and module a-b with process c would share a unit.
func (m *Manifest) Claims() []string {
	var all []string
	for _, f := range m.Run.Files {
		all = append(all, "file "+Place(f.Path))
	}
	for _, d := range m.Run.Directories {
		all = append(all, "directory "+Place(d.Path))
	}
	for name := range m.Run.Users {
		all = append(all, "user "+name)
	}
	all = append(all, m.thingClaims()...)
	for _, name := range m.UnitNames() {
		all = append(all, "unit "+name)
	}
	for _, seat := range m.Seats.Claims {
		all = append(all, "seat "+string(seat))
	}
	slices.Sort(all)
	return all
}

// UnitNames lists every systemd unit of the module, sorted.
func (m *Manifest) UnitNames() []string {
	names := slices.Collect(maps.Keys(m.Run.Units))
	for p := range m.Run.Processes {
		names = append(names, UnitName(m.Module, p, ".service"))
	}
	for c := range m.Run.Containers {
		names = append(names, UnitName(m.Module, c, ".service"))
	}
	for t := range m.Run.Timers {
		names = append(names, UnitName(m.Module, t, ".service"), UnitName(m.Module, t, ".timer"))
	}
	slices.Sort(names)
	return names
}

package resource

import (
	"fmt"
	"strings"

	"mesh/shared/manifest"
	"mesh/shared/refusal"
	"mesh/shared/subject"
)

// claims are the modules that hold each path, unit and user, and how: no two modules may have one thing,
// whatever each would make of it. Folders that are only implied belong to whoever came first.
type claims map[string]claim

type claim struct {
	module subject.Module
	kind   Kind
	soft   bool // an implied folder
}

// key is a thing's id, in which a file, a link and a folder of one path are the same.
func key(id string) string {
	kind, p, _ := strings.Cut(id, ":")
	if kind == string(KindDir) || kind == string(KindFile) || kind == string(KindLink) {
		return ID(KindFile, manifest.Place(p))
	}
	return id
}

// take claims what a module has, or refuses the second of two that meet.
func (c claims) take(found []Resource, module subject.Module) error {
	for _, r := range found {
		had, taken := c[key(r.ID)]
		both := had.soft || implied(r)
		if !taken || had.module == module || r.Kind == KindModule || both && had.kind == r.Kind {
			continue
		}
		other := "module " + string(had.module) + " declares it too"
		if had.kind != r.Kind {
			other = fmt.Sprintf("module %s has a %s there", had.module, had.kind.word())
		}
		return refusal.New(fmt.Sprintf("%s of module %s", r.ID, module), other, "change one of the two modules")
	}
	for _, r := range found {
		if _, taken := c[key(r.ID)]; !taken || !implied(r) {
			c[key(r.ID)] = claim{module, r.Kind, implied(r)}
		}
	}
	return nil
}

// note claims what a module names that is left alone: it may have it on the machine, where no other is to
// take it over.
func (c claims) note(module subject.Module, m *manifest.Manifest) {
	hold := func(kind Kind, name string) {
		if _, taken := c[key(ID(kind, name))]; !taken {
			c[key(ID(kind, name))] = claim{module: module, kind: kind}
		}
	}
	for _, f := range m.Run.Files {
		hold(KindFile, f.Path)
	}
	for _, d := range m.Run.Directories {
		hold(KindDir, d.Path)
	}
	for name := range m.Run.Users {
		hold(KindUser, name)
	}
	for _, l := range m.Run.Links {
		hold(KindLink, l.Path)
	}
	for name := range m.Run.Groups {
		hold(KindGroup, name)
	}
	for k := range m.Run.Sysctls {
		hold(KindSysctl, manifest.SysctlName(k))
	}
	for name, n := range m.Run.Networks {
		if !n.External {
			hold(KindNetwork, m.NetworkName(name))
		}
	}
	for _, name := range m.VolumeNames() {
		hold(KindVolume, m.VolumeName(name))
	}
	for name := range m.Run.Containers {
		hold(KindContainer, m.ContainerName(name))
	}
	for _, name := range m.UnitNames() {
		hold(KindUnit, name)
	}
}

// word is the kind as a person calls it.
func (k Kind) word() string {
	if k == KindDir {
		return "folder"
	}
	return string(k)
}

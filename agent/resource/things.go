package resource

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"path"
	"runtime"
	"slices"
	"strings"

	"mesh/shared/manifest"
	"mesh/shared/refusal"
)

func (e *expander) groups() {
	for _, name := range slices.Sorted(maps.Keys(e.filled.Run.Groups)) {
		e.add(Resource{ID: ID(KindGroup, name), Kind: KindGroup})
	}
}

func (e *expander) links() {
	for _, l := range e.filled.Run.Links {
		e.add(Resource{ID: ID(KindLink, l.Path), Kind: KindLink, Needs: e.folder(l.Path), Link: &Link{Path: l.Path, Target: l.Target}})
	}
}

// kernel adds the kernel modules and settings, with the files by which they hold after a boot.
func (e *expander) kernel() {
	if all := slices.Sorted(slices.Values(e.filled.Run.KernelModules)); len(all) > 0 {
		at := e.filled.ModulesFile()
		e.generated(at, strings.Join(all, "\n")+"\n")
		for _, name := range all {
			e.add(Resource{ID: ID(KindModule, name), Kind: KindModule, Needs: []string{ID(KindFile, at)}})
		}
	}
	if len(e.filled.Run.Sysctls) == 0 {
		return
	}
	values := map[string]string{}
	for k, v := range e.filled.Run.Sysctls {
		values[manifest.SysctlName(k)] = strings.Join(strings.Fields(v), " ")
	}
	var text strings.Builder
	for _, k := range slices.Sorted(maps.Keys(values)) {
		fmt.Fprintf(&text, "%s = %s\n", k, values[k])
	}
	at := e.filled.SysctlFile()
	e.generated(at, text.String())
	needs := []string{ID(KindFile, at)}
	for _, name := range e.filled.Run.KernelModules { // some settings come with a kernel module
		needs = append(needs, ID(KindModule, name))
	}
	for _, k := range slices.Sorted(maps.Keys(values)) {
		e.add(Resource{ID: ID(KindSysctl, k), Kind: KindSysctl, Needs: needs, Sysctl: &Sysctl{Key: k, Value: values[k]}})
	}
}

// generatedFiles are the files that stand for something else in the manifest.
func (e *expander) generatedFiles() (all []string) {
	if len(e.filled.Run.KernelModules) > 0 {
		all = append(all, e.filled.ModulesFile())
	}
	if len(e.filled.Run.Sysctls) > 0 {
		all = append(all, e.filled.SysctlFile())
	}
	return all
}

func (e *expander) generated(at, text string) {
	content := []byte(Mark + string(e.module.Name) + ".\n" + text)
	e.add(Resource{ID: ID(KindFile, at), Kind: KindFile, Needs: e.folder(at),
		File: &File{Path: at, Content: content, Sum: Sum(content), Mode: 0o644, Owner: "root", Group: "root"}})
}

// engine adds the networks, volumes, images and names that containers need.
func (e *expander) engine() error {
	for _, name := range slices.Sorted(maps.Keys(e.filled.Run.Networks)) {
		n := e.filled.Run.Networks[name]
		if n.External {
			continue
		}
		net := &Network{Name: e.filled.NetworkName(name), Internal: n.Internal, IPv6: n.IPv6}
		if n.Subnet != "" {
			net.Subnet, _ = netip.ParsePrefix(n.Subnet) // the check of the manifest took it
		}
		e.add(Resource{ID: ID(KindNetwork, net.Name), Kind: KindNetwork, Network: net})
	}
	for _, name := range e.filled.VolumeNames() {
		e.add(Resource{ID: ID(KindVolume, e.filled.VolumeName(name)), Kind: KindVolume})
	}
	for _, name := range slices.Sorted(maps.Keys(e.filled.Run.Containers)) {
		image, err := e.image(e.filled.Run.Containers[name].Image)
		if err != nil {
			return err
		}
		if id := ImageID(string(e.module.Name), image.Word()); !slices.ContainsFunc(e.out, func(r Resource) bool { return r.ID == id }) {
			e.add(Resource{ID: id, Kind: KindImage, Image: image})
		}
		c := &Container{Name: e.filled.ContainerName(name), Unit: manifest.UnitName(e.module.Name, name, ".service"), Image: image}
		e.compared(c, e.filled.Run.Containers[name])
		e.add(Resource{ID: ID(KindContainer, c.Name), Kind: KindContainer, Container: c})
	}
	return nil
}

// compared fills in what of a container is compared with one that is there.
func (e *expander) compared(to *Container, c manifest.Container) {
	for _, n := range c.Networks {
		if _, ours := e.filled.Run.Networks[n]; ours {
			n = e.filled.NetworkName(n)
		}
		to.Networks = append(to.Networks, n)
	}
	for _, p := range c.Ports {
		to.Ports = append(to.Ports, fmt.Sprintf("%s/%s -> %s:%s", p.Container, cmp.Or(p.Protocol, "tcp"), cmp.Or(p.Address, "0.0.0.0"), cmp.Or(p.Publish, p.Container)))
	}
	to.Sources = make(map[string]string, len(c.Volumes))
	for _, v := range c.Volumes {
		source := path.Clean(v.Path)
		words := source + " at " + v.At
		if v.Path == "" {
			source = e.filled.VolumeName(v.Name)
			words = "volume " + source + " at " + v.At
		}
		if v.ReadOnly {
			words += ", read only"
		}
		to.Mounts = append(to.Mounts, words)
		to.Sources[path.Clean(v.At)] = source
	}
	slices.Sort(to.Networks)
	slices.Sort(to.Ports)
	slices.Sort(to.Mounts)
}

// ImageID is the id of a module's image. The module stands in it, for two may have the same one.
func ImageID(module, word string) string { return ID(KindImage, module+"/"+word) }

// image is what a container's word for its image means on this machine.
func (e *expander) image(word string) (*Image, error) {
	name, own := e.plain.BuiltImage(word)
	if !own {
		ref, digest, _ := strings.Cut(word, "@")
		return &Image{Name: ref, Digest: digest}, nil
	}
	arch := cmp.Or(e.in.Machine.Arch, runtime.GOARCH)
	i, ok := e.module.ImageFor(name, arch)
	if !ok {
		var have []string
		for _, other := range e.module.Images {
			if other.Name == name {
				have = append(have, other.Arch)
			}
		}
		why := "the declaration names none of that name"
		if len(have) > 0 {
			why = fmt.Sprintf("it is for %s, and this machine is %s", strings.Join(have, " and "), arch)
		}
		return nil, refusal.New(fmt.Sprintf("image %s of module %s", name, e.module.Name), why, "register the module again with an image for this machine, and push")
	}
	return &Image{Digest: "sha256:" + i.Digest(), ID: "sha256:" + i.ID, Carried: i}, nil
}

// spec is the network as containers depend on it.
func spec(m *manifest.Manifest, name string) string {
	n := m.Run.Networks[name]
	return fmt.Sprintf("%s %s %v %v %v", m.NetworkName(name), n.Subnet, n.Internal, n.IPv6, n.External)
}

// needsEngine refuses a module with containers where the machine is known to have no engine.
func needsEngine(have Machine, m *manifest.Manifest) error {
	if have == (Machine{}) || have.Engine || !m.NeedsEngine() {
		return nil
	}
	return refusal.New("module "+string(m.Module), "it needs a container engine, and this machine has none", "install podman or docker, or unassign it here")
}

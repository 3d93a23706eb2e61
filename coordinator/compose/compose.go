// Package compose makes, from the records, what each node should be and who may use the bus. Content,
// Principals and Diff are pure functions of values: a preview, the tests and the real run share them.
// A Composer keeps the decoded records in memory, composes again only what a change touched, gives each
// new content its seq and signs it (design §8).
//
// It sends nothing: the push does. A Composer starts goroutines only inside a call, which waits for
// them; it is safe for concurrent use, one composition at a time.
package compose

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"mesh/coordinator/records"
	"mesh/shared/credential"
	"mesh/shared/declaration"
	"mesh/shared/manifest"
	"mesh/shared/rule"
	"mesh/shared/subject"
)

// View is all that one node's content is made of.
type View struct {
	Node  subject.Node
	Bus   credential.Bus
	Drift declaration.Drift
	// Tunnel is the overlay link by name; empty: the one the node reports.
	Tunnel string
	// Admin are the node's own openings, Served those of what mesh itself serves there: the bus.
	Admin, Served []rule.Allow
	// Inside are links a person declared inside.
	Inside []string
	// Converge hands the packet filter to mesh; nil: it is as it was (NET-9).
	Converge *records.Converge
	// Takes are people's words about things that mesh did not put there, by module (APP-10).
	Takes []records.Take
	// Keeps are what was changed by hand and stays for a while, by thing (APP-19).
	Keeps []records.Keep
	Facts records.Facts
	// Remove is what a person had removed (APP-11); what is there again stays.
	Remove *declaration.Remove
	// Modules are the instances, in any order.
	Modules []Instance
}

// Instance is a module as it shall run on the node.
type Instance struct {
	Build    *records.Build
	Settings map[string]string
	Secrets  map[string]credential.Sealed
	// Membership is what it is on the bus, as JSON; nil for nothing.
	Membership []byte
}

// Left is something that is not in the content although the records ask for it.
type Left struct {
	// Module is the module it concerns; empty: the node itself.
	Module subject.Module `json:"module,omitempty"`
	// What is left out: "module", "setting port", "packet filter".
	What string `json:"what"`
	Why  string `json:"why"`
}

// String is Left in one line.
func (l Left) String() string {
	if l.Module == "" {
		return l.What + ": " + l.Why
	}
	return l.What + " of " + string(l.Module) + ": " + l.Why
}

// moduleLeft is Left.What of a module that is not sent.
const moduleLeft = "module"

// Content composes what the node should be. The same view gives the same content, whatever the order
// of its modules. A module that the machine cannot run is left out and named (NOD-5); a node that has
// reported no uplink gets no filter and keeps the one it has (NET-3).
func Content(v View) (*declaration.Content, []Left) {
	var left []Left
	c := &declaration.Content{Bus: v.Bus, Drift: v.Drift, Modules: make([]declaration.Module, 0, len(v.Modules))}
	for _, k := range v.Keeps {
		c.Keeps = append(c.Keeps, k.Declared())
	}
	for _, t := range v.Takes {
		c.Takes = append(c.Takes, t.Declared())
	}
	instances := v.Modules
	if !slices.IsSortedFunc(instances, byName) {
		instances = slices.SortedFunc(slices.Values(instances), byName)
	}
	c.Remove = removed(v.Remove, instances)
	sent := make([]*records.Build, 0, len(instances))
	for _, i := range instances {
		if why := unfit(i, v.Facts); why != "" {
			left = append(left, Left{i.Build.Module, moduleLeft, why})
			continue
		}
		settings, dropped := knownSettings(i)
		left = append(left, dropped...)
		c.Modules = append(c.Modules, declaration.Module{Name: i.Build.Module, Build: i.Build.ID, Artifact: i.Build.Artifact, Images: i.Build.ImagesFor(v.Facts.Arch),
			Manifest: i.Build.Text, Settings: settings, Secrets: i.Secrets, Membership: i.Membership})
		sent = append(sent, i.Build)
	}
	if v.Facts.Uplinks == 0 {
		return c, append(left, Left{What: "packet filter", Why: "the node has reported no uplink yet, so it is sent no filter and keeps the one it has"})
	}
	c.Filter = &declaration.Filter{Allow: openings(v.Admin, v.Served, sent), Tunnel: cmp.Or(v.Tunnel, v.Facts.Tunnel), Inside: v.Inside, Converge: v.Converge.Declared()}
	return c, left
}

// removed is r without the data of modules that are assigned.
func removed(r *declaration.Remove, instances []Instance) *declaration.Remove {
	if r.Nothing() {
		return nil
	}
	out := &declaration.Remove{Strays: r.Strays}
	for _, d := range r.Data {
		if !slices.ContainsFunc(instances, func(i Instance) bool { return i.Build.Module == d.Module }) {
			out.Data = append(out.Data, d)
		}
	}
	if out.Nothing() {
		return nil
	}
	return out
}

func byName(a, b Instance) int { return cmp.Compare(a.Build.Module, b.Build.Module) }

// unfit says why the instance cannot run on a machine like this, or "". What the machine has not said
// is not held against it.
func unfit(i Instance, f records.Facts) string {
	m := i.Build.Manifest
	needs := m.Needs
	switch {
	case len(needs.Arch) > 0 && f.Arch != "" && !slices.Contains(needs.Arch, manifest.Arch(f.Arch)):
		return fmt.Sprintf("it needs a machine of %s, this one is %s", orList(needs.Arch), f.Arch)
	case len(needs.OS) > 0 && f.OS != "" && !slices.Contains(needs.OS, f.OS):
		return fmt.Sprintf("it needs the system %s, this one has %s", orList(needs.OS), f.OS)
	case m.NeedsEngine() && f.OS != "" && f.Engine == "":
		return "it needs a container engine, this machine has none"
	}
	if why := noImage(i.Build, f.Arch); why != "" {
		return why
	}
	if len(m.Settings)+len(m.Secrets) == 0 {
		return ""
	}
	if missing := records.Missing(m, i.Settings, i.Secrets); len(missing) > 0 {
		return "the assignment lacks " + strings.Join(missing, ", ")
	}
	return ""
}

// noImage says which image the build has not for the architecture, or "".
func noImage(b *records.Build, arch string) string {
	if arch == "" || len(b.Images) == 0 {
		return ""
	}
	there := map[string]bool{}
	for _, i := range b.Images {
		there[i.Name] = there[i.Name] || i.Arch == arch
	}
	for _, i := range b.Images { // in their order
		if !there[i.Name] {
			return fmt.Sprintf("its image %s is for %s, this machine is %s", i.Name, i.Arch, arch)
		}
	}
	return ""
}

func orList[T ~string](words []T) string {
	s := make([]string, len(words))
	for i, w := range words {
		s[i] = string(w)
	}
	return strings.Join(s, " or ")
}

// knownSettings are those the build has: one that only an earlier build had is not sent, and named.
// Defaults are the manifest's to give, which travels beside them.
func knownSettings(i Instance) (map[string]string, []Left) {
	known := i.Build.Manifest.Settings
	var left []Left
	for k := range i.Settings {
		if _, ok := known[k]; !ok {
			left = append(left, Left{i.Build.Module, "setting " + k, fmt.Sprintf("%s has no such setting any more", i.Build.ID)})
		}
	}
	if left == nil {
		return i.Settings, nil
	}
	slices.SortFunc(left, func(a, b Left) int { return cmp.Compare(a.What, b.What) })
	kept := make(map[string]string, len(i.Settings))
	for k, v := range i.Settings {
		if _, ok := known[k]; ok {
			kept[k] = v
		}
	}
	return kept, left
}

// openings are the way in for people first, then mesh's own, then each module's by name, port and from.
func openings(admin, served []rule.Allow, builds []*records.Build) []rule.Allow {
	all := make([]rule.Allow, 0, len(admin)+len(served)+len(builds))
	all = append(all, admin...)
	slices.SortStableFunc(all, rule.Allow.Compare)
	all = append(all, served...)
	for _, b := range builds {
		first := len(all)
		for _, a := range b.Manifest.Firewall.Allow {
			all = append(all, rule.Allow{Owner: string(b.Module), Port: a.Port, Protocol: a.Protocol, From: a.From})
		}
		slices.SortStableFunc(all[first:], rule.Allow.Compare)
	}
	return all
}

// Artifacts are the digests the content names, sorted, each once.
func Artifacts(c *declaration.Content) []string {
	var all []string
	for i := range c.Modules {
		all = addDigests(all, c.Modules[i].Artifact, c.Modules[i].Images, "")
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// addDigests adds those of a bundle and of images for arch to all; of every architecture when it is "".
func addDigests(all []string, bundle *declaration.Artifact, images []declaration.Image, arch string) []string {
	if bundle != nil {
		all = append(all, bundle.Digest)
	}
	for i := range images {
		if arch != "" && images[i].Arch != arch {
			continue
		}
		for k := range images[i].Blobs {
			all = append(all, images[i].Blobs[k].Digest)
		}
	}
	return all
}

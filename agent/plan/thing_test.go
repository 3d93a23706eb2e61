package plan_test

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mesh/agent/host/file"
	"mesh/agent/host/user"
	"mesh/agent/plan"
	"mesh/agent/resource"
	"mesh/shared/declaration"
	"mesh/shared/refusal"
)

// withThings is a machine with an engine and a kernel.
func withThings() *machine {
	m := newMachine()
	m.see.Things = plan.Things{Sysctls: map[string]string{"net.x": "0"}, Modules: map[string]bool{}, Networks: map[string]plan.Network{},
		Volumes: map[string]bool{}, Images: map[string]bool{}, Containers: map[string]plan.Container{}}
	return m
}

// doThings is do for these kinds too.
func (m *machine) doThings(p plan.Plan) {
	m.do(p, 99)
	for _, s := range p.Steps {
		switch s.Op {
		case plan.MakeGroup:
			m.see.Accounts.Groups[s.Name()] = user.Group{Name: s.Name()}
		case plan.MakeLink:
			m.see.Paths[s.Name()] = file.State{Exists: true, Kind: file.Symlink, Target: s.Want.Link.Target}
		case plan.RemoveLink:
			delete(m.see.Paths, s.Name())
		case plan.LoadModule:
			m.see.Modules[s.Name()] = true
		case plan.SetSysctl:
			m.see.Sysctls[s.Name()] = s.Want.Sysctl.Value
		case plan.RestoreSysctl:
			m.see.Sysctls[s.Name()] = s.Row.Trigger
		case plan.MakeNetwork:
			m.see.Networks[s.Name()] = plan.Network{Module: string(s.Module)}
		case plan.RemoveNetwork:
			delete(m.see.Networks, s.Name())
		case plan.MakeVolume:
			m.see.Volumes[s.Name()] = true
		case plan.Pull:
			m.see.Images[s.ID] = true
		case plan.RemoveImage:
			delete(m.see.Images, s.ID)
		case plan.Retire:
			delete(m.see.Units, s.Name())
			delete(m.see.Paths, resource.UnitFolder+"/"+s.Name())
		}
	}
}

func thing(kind resource.Kind, name string) resource.Resource {
	r := resource.Resource{ID: resource.ID(kind, name), Module: "box", Kind: kind}
	switch kind {
	case resource.KindLink:
		r.Link = &resource.Link{Path: name, Target: "there"}
	case resource.KindSysctl:
		r.Sysctl = &resource.Sysctl{Key: name, Value: "1"}
	case resource.KindNetwork:
		r.Network = &resource.Network{Name: name}
	case resource.KindImage:
		r.ID, r.Image = resource.ImageID("box", name), &resource.Image{Name: "r.x/" + name, Digest: "sha256:1", ID: name}
	case resource.KindContainer:
		r.Container = &resource.Container{Name: name, Unit: name + ".service"}
	}
	return r
}

func box(unit, text, image string) []resource.Resource {
	u := aUnit("box", unit, text, text+image)
	u.Unit.Container, u.Unit.Uses = "web", []string{"network:net", "volume:data"}
	u.Needs = []string{"network:net", "volume:data", "container:web", resource.ImageID("box", image)}
	return []resource.Resource{
		u, thing(resource.KindContainer, "web"), thing(resource.KindImage, image), thing(resource.KindVolume, "data"), thing(resource.KindNetwork, "net"),
		thing(resource.KindSysctl, "net.x"), thing(resource.KindModule, "tun"), thing(resource.KindLink, "/etc/link"), thing(resource.KindGroup, "boxers"),
	}
}

const web = "mesh-box-web.service"

// APP-4: what a container needs is there before it, whatever order it was declared in.
func TestContainersComeAfterWhatTheyNeed(t *testing.T) {
	m := withThings()
	all := box(web, "v1", "i1")
	in := plan.Input{Resources: all}
	p := m.plan(in)
	expect(t, p,
		"make group group:boxers: declared, not there",
		"fetch image image:box/i1: declared, not there",
		"make link link:/etc/link: declared, not there",
		"load kernel module kernel-module:tun: it is not loaded",
		"set sysctl sysctl:net.x: it is 0, declared 1",
		"make network network:net: declared, not there",
		"make volume volume:data: declared, not there",
		"write unit unit:"+web+": declared, not there",
		"enable unit:"+web+": declared to start at boot",
		"reload systemd systemd: changed: "+web,
		"start unit:"+web+": declared to run",
	)
	for range 20 {
		rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		if d := cmp.Diff(lines(p), lines(m.plan(plan.Input{Resources: all}))); d != "" {
			t.Fatalf("another order, another plan:\n%s", d)
		}
	}
	m.doThings(p)
	settled(t, m, in)
}

// APP-11: the end takes what mesh made, in the order in which nothing is in use any more, and leaves data.
func TestContainersGo(t *testing.T) {
	m := withThings()
	m.doThings(m.plan(plan.Input{Resources: box(web, "v1", "i1")}))
	p := m.plan(plan.Input{})
	expect(t, p,
		"stop unit:"+web+": not declared any more",
		"disable unit:"+web+": not declared any more",
		"remove unit unit:"+web+": not declared any more",
		"reload systemd systemd: changed: "+web,
		"remove container container:web: not declared any more",
		"remove network network:net: not declared any more",
		"restore sysctl sysctl:net.x: not declared any more",
		"remove link link:/etc/link: not declared any more",
		"remove image image:box/i1: older than the last two",
	)
	m.doThings(p)
	settled(t, m, plan.Input{})
	if !m.see.Volumes["data"] || !m.ledger["volume:data"].Keep || m.see.Sysctls["net.x"] != "0" {
		t.Errorf("volumes %v, sysctls %v", m.see.Volumes, m.see.Sysctls)
	}
}

// What mesh found and did not make is not mesh's to remove.
func TestThingsThatWereThereStay(t *testing.T) {
	m := withThings()
	m.see.Sysctls["net.x"], m.see.Modules["tun"], m.see.Volumes["data"] = "1", true, true
	m.see.Networks["net"], m.see.Images[resource.ImageID("box", "i1")] = plan.Network{}, true
	m.see.Paths["/etc/link"] = file.State{Exists: true, Kind: file.Symlink, Target: "there"}
	m.doThings(m.plan(plan.Input{Resources: box(web, "v1", "i1")}))
	for _, s := range m.plan(plan.Input{}).Steps {
		if s.ID != "unit:"+web && s.ID != "systemd" && s.ID != "container:web" {
			t.Errorf("%s %s", s.Op, s.ID)
		}
	}
}

func TestThingsOfOthersAreHeld(t *testing.T) {
	for name, tt := range map[string]struct {
		there func(*machine)
		says  string
	}{
		"a container": {func(m *machine) {
			m.see.Containers["web"] = plan.Container{Facts: "image nginx, running"}
		}, "image nginx, running"},
		"a network of another shape": {func(m *machine) { m.see.Networks["net"] = plan.Network{Differs: "internal is true"} }, "internal is true"},
		"a link elsewhere": {func(m *machine) {
			m.see.Paths["/etc/link"] = file.State{Exists: true, Kind: file.Symlink, Target: "elsewhere"}
		}, "elsewhere"},
		"a file for a link": {func(m *machine) { m.file("/etc/link", "x", 0o644) }, "a file stands there"},
	} {
		t.Run(name, func(t *testing.T) {
			m := withThings()
			tt.there(m)
			p := m.plan(plan.Input{Resources: box(web, "v1", "i1")})
			if r := refusal.Of(p.Failed["box"]); r == nil || !strings.Contains(r.Why, tt.says) {
				t.Errorf("it says %v, want %q", p.Failed["box"], tt.says)
			}
			// The image of a module that is only held comes, so that its age can be compared (APP-10).
			image := []string{"fetch image " + resource.ImageID("box", "i1") + ": declared, not there"}
			if held := name == "a container"; len(p.Held) == 1 != held || held && !slices.Equal(lines(p), image) || !held && len(p.Steps) > 0 {
				t.Errorf("held %v, and yet %v", p.Held, lines(p))
			}
		})
	}
	m := withThings() // the ledger was lost, and it is the module's own
	m.see.Containers["web"] = plan.Container{Module: "box"}
	if p := m.plan(plan.Input{Resources: box(web, "v1", "i1")}); len(p.Failed) > 0 {
		t.Errorf("its own container is held: %v", p.Failed)
	}
	m.see.Containers["web"] = plan.Container{Module: "other"}
	if p := m.plan(plan.Input{Resources: box(web, "v1", "i1")}); len(p.Held) > 0 || p.Failed["box"] == nil {
		t.Errorf("another module's container could be taken: %v", p.Held)
	}
}

// APP-6: what vanished is made anew; what cannot be made under a running container stops it before.
func TestThingsThatDrift(t *testing.T) {
	for name, tt := range map[string]struct {
		hand func(*machine)
		want []string
	}{
		"a network is gone": {func(m *machine) { delete(m.see.Networks, "net") }, []string{"make network network:net: it is gone"}},
		"a network is another": {func(m *machine) { m.see.Networks["net"] = plan.Network{Differs: "internal is true, declared false"} },
			[]string{"stop unit:" + web + ": its network net is made anew", "make network network:net: internal is true, declared false",
				"start unit:" + web + ": its network net is made anew"}},
		"a volume is gone": {func(m *machine) { delete(m.see.Volumes, "data") },
			[]string{"stop unit:" + web + ": its volume data is gone", "make volume volume:data: it is gone", "start unit:" + web + ": its volume data is gone"}},
		"an image is gone": {func(m *machine) { clear(m.see.Images) }, []string{"fetch image image:box/i1: it is gone"}},
		"a sysctl":         {func(m *machine) { m.see.Sysctls["net.x"] = "7" }, []string{"set sysctl sysctl:net.x: it is 7, declared 1"}},
		"a link": {func(m *machine) {
			m.see.Paths["/etc/link"] = file.State{Exists: true, Kind: file.Symlink, Target: "elsewhere"}
		}, []string{"make link link:/etc/link: it leads to elsewhere, declared there"}},
		"a kernel module": {func(m *machine) { clear(m.see.Modules) }, []string{"load kernel module kernel-module:tun: it is not loaded"}},
	} {
		t.Run(name, func(t *testing.T) {
			m := withThings()
			in := plan.Input{Resources: box(web, "v1", "i1")}
			m.doThings(m.plan(in))
			tt.hand(m)
			p := m.plan(in)
			expect(t, p, tt.want...)
			if len(p.Found) != 1 || !p.Found[0].Repaired {
				t.Errorf("found %+v", p.Found)
			}
			m.doThings(p)
			settled(t, m, in)
			if m.ledger["sysctl:net.x"].Trigger != "0" {
				t.Errorf("what the sysctl was before mesh is forgotten: %+v", m.ledger["sysctl:net.x"])
			}
			tt.hand(m)
			in.Drift = declaration.ReportOnly
			if p := m.plan(in); len(p.Steps) > 0 || len(p.Found) != 1 || p.Found[0].Repaired {
				t.Errorf("that is only to be said, and yet %v, found %+v", lines(p), p.Found)
			}
		})
	}
}

// APP-8.
func TestTheOldRunsUntilTheNewIsUp(t *testing.T) {
	m := withThings()
	m.doThings(m.plan(plan.Input{Resources: box(web, "v1", "i1")}))
	next := aUnit("box", "mesh-box-server.service", "v2", "t2")
	next.Unit.Replaces = []string{web}
	in := plan.Input{Resources: []resource.Resource{next, thing(resource.KindVolume, "data")}}
	p := m.plan(in)
	ops := lines(p)
	start, retire := slices.Index(ops, "start unit:mesh-box-server.service: declared to run"), slices.Index(ops, "retire unit unit:"+web+": replaced by mesh-box-server.service")
	remove := slices.IndexFunc(ops, func(s string) bool { return strings.HasPrefix(s, "remove container") })
	if start < 0 || retire < start || remove < retire || slices.ContainsFunc(ops, func(s string) bool { return strings.HasPrefix(s, "stop ") }) {
		t.Errorf("the order is\n%s", strings.Join(ops, "\n"))
	}
	i := slices.IndexFunc(p.Steps, func(s plan.Step) bool { return s.Op == plan.Retire })
	if d := cmp.Diff([]string{"mesh-box-server.service"}, p.Steps[i].After); d != "" {
		t.Error(d)
	}
	m.doThings(p)
	settled(t, m, in)
}

// APP-13: of a module's images those in use and as many from before stay.
func TestOlderImagesGo(t *testing.T) {
	m := withThings()
	for _, i := range []string{"i1", "i2", "i3", "i4"} {
		in := plan.Input{Resources: box(web, "v", i)}
		m.doThings(m.plan(in))
		settled(t, m, in)
	}
	if d := cmp.Diff([]string{"image:box/i3", "image:box/i4"}, slices.Sorted(maps.Keys(m.see.Images))); d != "" {
		t.Errorf("images (-want +got)\n%s", d)
	}
}

func TestWithoutAnEngineNothingOfItIsPlanned(t *testing.T) {
	m := withThings()
	in := plan.Input{Resources: box(web, "v1", "i1")}
	m.doThings(m.plan(in))
	rows := len(m.ledger)
	m.see.NoEngine = true
	m.see.Networks, m.see.Volumes, m.see.Images = nil, nil, nil
	if p := m.plan(in); len(p.Steps) > 0 || refusal.Of(p.Failed["box"]) == nil || len(m.ledger) != rows {
		t.Errorf("%v, failed %v", lines(p), p.Failed)
	}
}

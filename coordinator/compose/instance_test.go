package compose_test

import (
	"encoding/json"
	"slices"
	"testing"

	"mesh/coordinator/compose"
	"mesh/shared/declaration"
	"mesh/shared/grant"
	"mesh/shared/membership"
	"mesh/shared/report"
	"mesh/shared/subject"
)

// MEM-1: what an instance is follows who else is there, and its machine is behind for it; what is on the user
// list is what the machine was last composed, with the key it said.
func TestMembershipsFollowTheRecords(t *testing.T) {
	f := newFleet(t)
	for _, n := range []subject.Node{"n1", "n2", "n3"} {
		f.node(n)
		f.hear(n, func(r *report.Report) { r.Uplinks = []string{"eth0"} })
	}
	f.module(`{"module":"notes","tools":{"list":{"description":"L","level":"read"}},"events":["added"]}`)
	f.module(`{"module":"any","tools":{"get":{"description":"G"}},"instances":"interchangeable"}`)
	f.module(`{"module":"plain"}`)
	f.assign("notes", nil, "n1")
	f.assign("any", nil, "n1", "n3")
	f.assign("plain", nil, "n1")
	c := f.composer()
	of := func(d *declaration.Declaration, m subject.Module) *membership.Membership {
		t.Helper()
		for _, x := range d.Modules {
			if x.Name == m && len(x.Membership) > 0 {
				var out membership.Membership
				f.ok(json.Unmarshal(x.Membership, &out))
				return &out
			}
		}
		return nil
	}
	d := f.opened(c, f.compose(c, "n1"))
	if m := of(d, "notes"); m == nil || m.Serves[0].Plain != "mesh.serve.module.notes.tool.list" || m.Serves[0].Queue != "notes" || m.Serves[0].At != "mesh.serve.module.notes.tool.list.n1" || m.Says[0].At != "mesh.module.notes.event.added.n1" {
		t.Errorf("alone: %+v", m)
	}
	if m := of(d, "any"); m == nil || m.Serves[0].Plain == "" {
		t.Errorf("interchangeable: %+v", m)
	}
	if m := of(d, "plain"); m != nil {
		t.Errorf("with nothing to do on the bus: %+v", m)
	}
	if d := f.compose(c, "n1"); d.Changed {
		t.Error("the same again is another declaration")
	}
	labels := func() (all []string) {
		t.Helper()
		ps, _, err := c.Principals(t.Context())
		f.ok(err)
		for _, p := range ps {
			if p.Kind == grant.Instance {
				all = append(all, p.Label()+" "+p.Key)
			}
		}
		return all
	}
	if got, want := labels(), []string{"instance-n1.any ", "instance-n1.notes "}; !slices.Equal(got, want) {
		t.Errorf("on the list: %v, want %v", got, want)
	}
	_, before, err := c.Principals(t.Context())
	f.ok(err)
	key := userKey()
	f.hear("n1", func(r *report.Report) { r.Keys = []report.Key{{Module: "notes", Key: key}} })
	if got := labels(); !slices.Contains(got, "instance-n1.notes "+key) {
		t.Errorf("its key is not on the list: %v", got)
	}
	if _, after, _ := c.Principals(t.Context()); after == before {
		t.Error("a new key is no new version of the list")
	}
	// A second instance changes the first: it cascades, and holds from its composition on.
	f.assign("notes", nil, "n2")
	behind, err := c.Behind(t.Context())
	f.ok(err)
	if behind["n1"] == "" || behind["n2"] == "" {
		t.Errorf("behind: %v", behind)
	}
	all, err := c.Memberships(t.Context(), []subject.Node{"n1", "n2"})
	f.ok(err)
	if len(all["n1"]) != 2 || len(all["n2"]) != 0 {
		t.Errorf("in force before they were composed: %v", all)
	}
	for name, c := range map[string]*compose.Composer{"at once": c, "after a restart": f.composer()} {
		if m := of(f.opened(c, f.compose(c, "n1")), "notes"); m.Serves[0].Plain != "" {
			t.Errorf("%s: one of two has the plain address: %+v", name, m)
		}
	}
	f.ok(f.store.Unassign(t.Context(), by, []subject.Node{"n1"}, "notes"))
	if m := of(f.opened(c, f.compose(c, "n2")), "notes"); m.Serves[0].Plain == "" {
		t.Errorf("alone again: %+v", m)
	}
	if got := labels(); !slices.Contains(got, "instance-n1.notes "+key) {
		t.Errorf("off the list before its machine hears of it: %v", got)
	}
	f.compose(c, "n1")
	if got := labels(); slices.Contains(got, "instance-n1.notes "+key) {
		t.Errorf("unassigned and composed, it is still on the list: %v", got)
	}
}

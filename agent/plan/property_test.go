package plan_test

import (
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"mesh/agent/host/file"
	"mesh/agent/plan"
	"mesh/agent/resource"
	"mesh/shared/subject"
)

// world draws what is declared and what people did.
func world(t *rapid.T) []resource.Resource {
	var all []resource.Resource
	for _, mod := range []subject.Module{"a", "b", "c"} {
		if !rapid.Bool().Draw(t, "declared") {
			continue
		}
		n := rapid.IntRange(0, 3).Draw(t, "files")
		if n > 0 {
			all = append(all, aDir(mod, "/etc/"+string(mod), false, rapid.Bool().Draw(t, "implied")))
		}
		for i := range n {
			f := aFile(mod, fmt.Sprintf("/etc/%s/%d", mod, i), rapid.SampledFrom([]string{"x", "y"}).Draw(t, "content"))
			f.File.Mode = rapid.SampledFrom([]fs.FileMode{0o644, 0o600}).Draw(t, "mode")
			f.Needs = []string{"dir:/etc/" + string(mod)}
			all = append(all, f)
		}
		if rapid.Bool().Draw(t, "unit") {
			tr := rapid.SampledFrom([]string{"1", "2"}).Draw(t, "trigger")
			u := aUnit(mod, "mesh-"+string(mod)+"-p.service", rapid.SampledFrom([]string{"x", "y"}).Draw(t, "text"), tr)
			u.Unit.Ends = rapid.Bool().Draw(t, "ends")
			u.Unit.Enabled = rapid.Bool().Draw(t, "enabled")
			all = append(all, u)
		}
		if rapid.Bool().Draw(t, "bundle") {
			all = append(all, aBundle(mod, rapid.SampledFrom([]string{"d1", "d2", "d3"}).Draw(t, "digest")))
		}
	}
	return all
}

// Whatever was declared before, however far that apply came, and whatever people changed: one plan,
// done, leaves nothing to do.
func TestOnePlanSettlesAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMachine()
		for range rapid.IntRange(1, 3).Draw(t, "declarations") {
			m.do(m.plan(plan.Input{Resources: world(t)}), rapid.IntRange(0, 20).Draw(t, "steps done"))
			for path, st := range m.see.Paths {
				if st.Kind == file.File && !strings.HasPrefix(path, resource.UnitFolder) && rapid.IntRange(0, 9).Draw(t, "edit") == 0 {
					st.Mode = 0o777
					m.see.Paths[path] = st
				}
			}
		}
		in := plan.Input{Resources: world(t)}
		p := m.plan(in)
		m.do(p, 99)
		again := m.plan(in)
		if len(again.Steps)+len(again.Adopt)+len(again.Forget)+len(again.Found)+len(again.Failed) > 0 {
			t.Fatalf("first %v\nthen %v, adopt %v, forget %v, found %v, failed %v", lines(p), lines(again), again.Adopt, again.Forget, again.Found, again.Failed)
		}
		for _, r := range in.Resources {
			if _, ok := m.ledger[r.ID]; !ok && (r.Kind != resource.KindDir || !r.Dir.Implied) {
				t.Fatalf("%s is not in the ledger", r.ID)
			}
		}
	})
}

func TestTheSamePlanForAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMachine()
		m.do(m.plan(plan.Input{Resources: world(t)}), rapid.IntRange(0, 20).Draw(t, "steps done"))
		all := world(t)
		want := m.plan(plan.Input{Resources: all})
		got := m.plan(plan.Input{Resources: rapid.Permutation(all).Draw(t, "order")})
		if d := cmp.Diff(lines(want), lines(got)); d != "" {
			t.Fatal(d)
		}
		if d := cmp.Diff(want.Intents(), got.Intents()); d != "" {
			t.Fatal(d)
		}
	})
}

package compose_test

import (
	"slices"
	"testing"

	"mesh/coordinator/compose"
	"mesh/shared/declaration"
)

// APP-11: what is to be deleted is named by a plan, and no word deletes what is assigned.
func TestWhatIsDeletedIsNamed(t *testing.T) {
	v := view()
	before, _ := compose.Content(v)
	if before.Remove != nil {
		t.Errorf("a node of which nothing is removed is told %+v", before.Remove)
	}
	there := before.Modules[0].Name
	v.Remove = &declaration.Remove{Data: []declaration.RemoveData{{Module: there, Things: []string{"dir:/srv/there"}}, {Module: "zz-gone", Things: []string{"dir:/srv/gone"}}},
		Strays: []string{"unit:mesh-old-web.service"}}
	after, _ := compose.Content(v)
	if r := after.Remove; len(r.Data) != 1 || r.Data[0].Module != "zz-gone" {
		t.Errorf("%+v", r)
	}
	var said []string
	for _, c := range compose.Diff(before, after) {
		said = append(said, string(c.Module)+" "+c.What+" "+c.To)
	}
	if !slices.Equal(said, []string{"zz-gone delete dir:/srv/gone for good", " delete unit:mesh-old-web.service for good"}) {
		t.Errorf("the plan says %q", said)
	}
	v.Remove = &declaration.Remove{Data: v.Remove.Data[:1]}
	if c, _ := compose.Content(v); c.Remove != nil {
		t.Errorf("only what is assigned: %+v", c.Remove)
	}
}

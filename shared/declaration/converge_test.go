package declaration_test

import (
	"errors"
	"testing"

	"mesh/shared/declaration"
	"mesh/shared/strict"
)

// TestConvergeIsChecked: a converge that is not understood whole is not begun (NET-9, APP-1).
func TestConvergeIsChecked(t *testing.T) {
	check := func(c *declaration.Converge) error {
		d := declaration.Declaration{Head: declaration.Head{Format: declaration.Format, Mesh: "m", Node: "db1", Seq: 1}, Content: *content()}
		d.Filter.Converge = c
		return d.Check()
	}
	for name, c := range map[string]*declaration.Converge{
		"no id": {Retire: []string{"ufw"}}, "a path": {ID: 1, Retire: []string{"../ufw"}}, "twice": {ID: 1, Retire: []string{"ufw", "ufw"}},
		"an option": {ID: 1, Retire: []string{"-f"}}, "too many": {ID: 1, Retire: make([]string, 33)},
	} {
		var e *strict.Error
		if err := check(c); !errors.As(err, &e) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, c := range map[string]*declaration.Converge{"none": nil, "nothing to retire": {ID: 1}, "two": {ID: 7, Retire: []string{"nftables.service", "ufw"}}} {
		if err := check(c); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

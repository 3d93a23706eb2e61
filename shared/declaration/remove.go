package declaration

import (
	"fmt"
	"slices"
	"strings"

	"mesh/shared/strict"
	"mesh/shared/subject"
)

// Remove is what goes although it would stay, each thing by a person's word (APP-11). An agent takes a word for
// nothing but what its own ledger says mesh made, or what bears mesh's mark: said again it finds nothing.
type Remove struct {
	// Data are those of modules that ended here, sorted by module, one each.
	Data []RemoveData `json:"data,omitempty"`
	// Strays are things with mesh's mark that nothing declares, by id.
	Strays []string `json:"strays,omitempty"`
}

// RemoveData are the folders and volumes with the data of a module that is not declared any more.
type RemoveData struct {
	Module subject.Module `json:"module"`
	// Things are "dir:/srv/notes" and "volume:mesh-notes-data".
	Things []string `json:"things"`
}

// maxRemoved bounds each list.
const maxRemoved = 1000

// Nothing says that r asks for nothing.
func (r *Remove) Nothing() bool { return r == nil || len(r.Data)+len(r.Strays) == 0 }

// CanDelete says whether a thing may stand in RemoveData, CanPrune whether it may in Strays.
func CanDelete(thing string) bool {
	return strings.HasPrefix(thing, "dir:/") && thing != "dir:/" || strings.HasPrefix(thing, "volume:") && thing != "volume:"
}

// CanPrune says whether a thing may stand in Strays: nothing that has data.
func CanPrune(thing string) bool {
	return strings.HasPrefix(thing, "unit:mesh-") || strings.HasPrefix(thing, "network:") || strings.HasPrefix(thing, "container:mesh-")
}

func (r *Remove) check(modules []Module) error {
	if r == nil {
		return nil
	}
	if len(r.Data) > maxRemoved || len(r.Strays) > maxRemoved {
		return &strict.Error{Path: "remove", Why: fmt.Sprintf("names more than %d things", maxRemoved)}
	}
	for i, d := range r.Data {
		at := fmt.Sprintf("remove.data[%d]", i)
		switch {
		case i > 0 && r.Data[i-1].Module >= d.Module:
			return &strict.Error{Path: at + ".module", Why: "modules are sorted, each once"}
		case slices.ContainsFunc(modules, func(m Module) bool { return m.Name == d.Module }):
			return &strict.Error{Path: at + ".module", Why: fmt.Sprintf("%s is declared: its data stay", d.Module)}
		case d.Module == "" || len(d.Things) == 0 || len(d.Things) > maxRemoved:
			return &strict.Error{Path: at, Why: "module and things must be given"}
		}
		for _, thing := range d.Things {
			if !CanDelete(thing) {
				return &strict.Error{Path: at + ".things", Why: fmt.Sprintf("%q is no folder or volume", thing)}
			}
		}
	}
	for _, thing := range r.Strays {
		if !CanPrune(thing) {
			return &strict.Error{Path: "remove.strays", Why: fmt.Sprintf("%q is no unit, network or container", thing)}
		}
	}
	return nil
}

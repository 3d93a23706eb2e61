package declaration

import (
	"fmt"

	"mesh/shared/strict"
)

// Keep is a person's word that what was changed by hand of a thing stays until a time, whatever the node's policy
// (APP-19). It ends by itself.
type Keep struct {
	// Thing is its id: "file:/etc/notes.conf".
	Thing string `json:"thing"`
	// Until is by the node's own clock, Unix milliseconds.
	Until int64 `json:"until"`
}

// maxKeeps bounds Content.Keeps.
const maxKeeps = 100

func checkKeeps(all []Keep) error {
	if len(all) > maxKeeps {
		return &strict.Error{Path: "keeps", Why: fmt.Sprintf("has %d, at most %d are taken", len(all), maxKeeps)}
	}
	for i, k := range all {
		if k.Thing == "" || k.Until <= 0 || i > 0 && all[i-1].Thing >= k.Thing {
			return &strict.Error{Path: fmt.Sprintf("keeps[%d]", i), Why: "thing and until must be given, sorted by thing, each once"}
		}
	}
	return nil
}

package declaration

import (
	"fmt"
	"path"

	"mesh/shared/strict"
	"mesh/shared/subject"
)

// Take is a person's word that things on the machine which a module declares, and which mesh did not put there,
// are the module's from now on; with Back, that what was taken for it shall be as it was found. Each word is
// carried out once.
type Take struct {
	Module subject.Module `json:"module"`
	// ID tells one such word from another; it grows.
	ID int64 `json:"id"`
	// Back gives back. The module is not assigned then: it would be held again.
	Back bool `json:"back,omitempty"`
	// Things are what is taken, by id, and how each was when it was compared: report.Held.Seen. What is another
	// since is refused.
	Things map[string]string `json:"things,omitempty"`
	// Downgrade allows an image older than the one that runs, Replace files with other content, by path.
	Downgrade bool     `json:"downgrade,omitempty"`
	Replace   []string `json:"replace,omitempty"`
}

// maxThings bounds Take.Things, and Take.Replace.
const maxThings = 100

// Check refuses a word that could not be carried out.
func (t *Take) Check() error {
	switch {
	case t.Module == "":
		return fmt.Errorf("module must be given")
	case t.ID <= 0:
		return fmt.Errorf("id must be given")
	case t.Back && (len(t.Things) > 0 || t.Downgrade || len(t.Replace) > 0):
		return fmt.Errorf("what is given back is what was taken")
	case !t.Back && len(t.Things) == 0:
		return fmt.Errorf("things must be given")
	case len(t.Things) > maxThings || len(t.Replace) > maxThings:
		return fmt.Errorf("%d things and %d paths are named, at most %d are taken", len(t.Things), len(t.Replace), maxThings)
	}
	for _, p := range t.Replace {
		if !path.IsAbs(p) {
			return fmt.Errorf("replace: %q is no absolute path", p)
		}
	}
	return nil
}

func checkTakes(all []Take) error {
	for i := range all {
		at := fmt.Sprintf("takes[%d]", i)
		if err := all[i].Check(); err != nil {
			return &strict.Error{Path: at, Why: err.Error()}
		}
		if i > 0 && all[i-1].Module >= all[i].Module {
			return &strict.Error{Path: at + ".module", Why: "takes are sorted by module, each once"}
		}
	}
	return nil
}

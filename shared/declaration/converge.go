package declaration

import (
	"fmt"
	"regexp"
	"slices"
	"sync"

	"mesh/shared/strict"
)

// Converge is a person's word that the machine's packet filter is mesh's from now on (NET-9). It is there on
// converged nodes only: an agent that does not know it refuses the declaration whole, as it does any field
// it does not know.
type Converge struct {
	// ID tells one such word from another: each is carried out once.
	ID int64 `json:"id"`
	// Retire are the front ends that give way. Others, and such as come later, are named and left.
	Retire []string `json:"retire"`
}

// maxRetire bounds Converge.Retire; there are a dozen front ends.
const maxRetire = 32

var frontEndName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,39}$`) })

// CanRetire reports whether name may stand in Converge.Retire.
func CanRetire(name string) bool { return frontEndName().MatchString(name) }

func (c *Converge) check() error {
	switch {
	case c == nil:
		return nil
	case c.ID <= 0:
		return &strict.Error{Path: "filter.converge.id", Why: "must be given"}
	case len(c.Retire) > maxRetire:
		return &strict.Error{Path: "filter.converge.retire", Why: fmt.Sprintf("has %d names, at most %d are taken", len(c.Retire), maxRetire)}
	}
	for i, name := range c.Retire {
		if !CanRetire(name) || slices.Index(c.Retire, name) != i {
			return &strict.Error{Path: fmt.Sprintf("filter.converge.retire[%d]", i), Why: fmt.Sprintf("%q is no name of a front end, or is there twice", name)}
		}
	}
	return nil
}

package records

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"mesh/shared/declaration"
	"mesh/shared/refusal"
	"mesh/shared/subject"
)

// Converge is a person's word that a node's packet filter is mesh's (NET-9).
type Converge struct {
	// ID is told to the node: each word is carried out once. It grows.
	ID  int64     `json:"id"`
	At  time.Time `json:"at"`
	Who string    `json:"who"`
	Why string    `json:"why"`
	// Retire are the front ends that give way, sorted.
	Retire []string `json:"retire"`
}

// Declared is c as a declaration says it; nil for nil.
func (c *Converge) Declared() *declaration.Converge {
	if c == nil {
		return nil
	}
	return &declaration.Converge{ID: c.ID, Retire: append([]string{}, c.Retire...)}
}

// Converge keeps the word that name's packet filter is mesh's, and which front ends give way. Each is a new
// word: saying it again has the node look again. It is a hand act, and takes a reason.
func (s *Store) Converge(ctx context.Context, by By, name subject.Node, retire []string) (Converge, error) {
	what := "converge " + string(name)
	retire = slices.Compact(slices.Sorted(slices.Values(retire)))
	for _, f := range retire {
		if !declaration.CanRetire(f) {
			return Converge{}, refusal.New(what, fmt.Sprintf("%q is no name of a front end", f), "name those that the preview names: mesh-coordinator node converge "+string(name))
		}
	}
	if strings.TrimSpace(by.Why) == "" {
		return Converge{}, refusal.New(what+" without a reason", "it is kept in the journal, for whoever looks later", `say why: --why "mesh filters here now"`)
	}
	var c Converge
	err := s.act(ctx, by, what, func(t *tx) error {
		n, err := findNode(ctx, t, name)
		if err != nil {
			return err
		}
		c = Converge{ID: t.now.UnixMilli(), At: t.now.UTC().Truncate(time.Millisecond), Who: by.Who, Why: by.Why, Retire: retire}
		if n.Converge != nil {
			c.ID = max(c.ID, n.Converge.ID+1)
		}
		if err := t.exec(`UPDATE node SET converge = ? WHERE id = ?`, encode(c), n.id); err != nil {
			return err
		}
		t.touch(touch{node: name})
		gives := "nothing gives way"
		if len(retire) > 0 {
			gives = strings.Join(retire, ", ") + " give way"
		}
		return t.note("converge", fmt.Sprintf("node %s: the packet filter is mesh's, %s", name, gives), name, "")
	})
	return c, err
}

// Unconverge takes that word back. One that was never given is no change.
func (s *Store) Unconverge(ctx context.Context, by By, name subject.Node) (changed bool, err error) {
	err = s.act(ctx, by, "unconverge "+string(name), func(t *tx) error {
		n, err := findNode(ctx, t, name)
		if err != nil || n.Converge == nil {
			return err
		}
		if strings.TrimSpace(by.Why) == "" {
			return refusal.New("unconverge "+string(name)+" without a reason", "it is kept in the journal, for whoever looks later", `say why: --why "ufw stays"`)
		}
		changed = true
		if err := t.exec(`UPDATE node SET converge = '' WHERE id = ?`, n.id); err != nil {
			return err
		}
		t.touch(touch{node: name})
		return t.note("unconverge", fmt.Sprintf("node %s: what filtered before mesh comes back", name), name, "")
	})
	return changed, err
}

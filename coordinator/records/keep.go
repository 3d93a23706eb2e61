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

// Keep is a person's word that what was changed by hand of a thing on a node stays until a time (APP-19).
type Keep struct {
	Thing string    `json:"thing"`
	Until time.Time `json:"until"`
	At    time.Time `json:"at"`
	Who   string    `json:"who"`
	Why   string    `json:"why"`
}

// Declared is k as a declaration says it.
func (k Keep) Declared() declaration.Keep {
	return declaration.Keep{Thing: k.Thing, Until: k.Until.UnixMilli()}
}

// mostKept is how long a keep lasts at most: what is for longer belongs into the manifest; mostKeeps bounds a node's.
const (
	mostKept  = 90 * 24 * time.Hour
	mostKeeps = 100
)

// Keep keeps that word, in the place of an earlier one about the thing; until now or before ends it. It is a hand act,
// and takes a reason. Words that are over are dropped.
func (s *Store) Keep(ctx context.Context, by By, name subject.Node, thing string, until time.Time) (Node, error) {
	what := fmt.Sprintf("keep %s on %s", thing, name)
	if kind, of, ok := strings.Cut(thing, ":"); !ok || kind == "" || of == "" || len(thing) > 4096 {
		return Node{}, refusal.New(what, fmt.Sprintf("%q is no thing", thing), "name it as mesh-agent show does: file:/etc/notes.conf")
	}
	if strings.TrimSpace(by.Why) == "" {
		return Node{}, refusal.New(what+" without a reason", "it is kept in the journal, for whoever looks later", `say why: --why "we try this over the week-end"`)
	}
	var n Node
	err := s.act(ctx, by, what, func(t *tx) (err error) {
		if n, err = findNode(ctx, t, name); err != nil {
			return err
		}
		if until.Sub(t.now) > mostKept {
			return refusal.Newf(what, "declare it in the module's manifest, or keep it for less", "it would stay for %d days, and at most %d are taken", int(until.Sub(t.now).Hours()/24), int(mostKept.Hours()/24))
		}
		n.Keeps = slices.DeleteFunc(n.Keeps, func(k Keep) bool { return k.Thing == thing || !k.Until.After(t.now) })
		said := "ends"
		if until.After(t.now) {
			said = "until " + until.UTC().Format(time.RFC3339)
			n.Keeps = append(n.Keeps, Keep{Thing: thing, Until: until.UTC().Truncate(time.Millisecond), At: t.now.UTC().Truncate(time.Millisecond), Who: by.Who, Why: by.Why})
		}
		if len(n.Keeps) > mostKeeps {
			return refusal.Newf(what, "end others first, or set drift=report", "%d things are kept there already", mostKeeps)
		}
		slices.SortFunc(n.Keeps, func(a, b Keep) int { return strings.Compare(a.Thing, b.Thing) })
		if err := t.exec(`UPDATE node SET keeps = ? WHERE id = ?`, encode(n.Keeps), n.id); err != nil {
			return err
		}
		t.touch(touch{node: name})
		return t.note("keep", fmt.Sprintf("node %s: %s as it was changed by hand, %s", name, thing, said), name, "")
	})
	return n, err
}

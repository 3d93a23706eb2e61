package records

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"mesh/shared/declaration"
	"mesh/shared/refusal"
	"mesh/shared/subject"
)

// Take is a person's word about things on a node that mesh did not put there: that a module has them from now on, or
// gives them back (APP-10, APP-18).
type Take struct {
	Module subject.Module `json:"module"`
	// ID is told to the node: each word is carried out once. It grows.
	ID  int64     `json:"id"`
	At  time.Time `json:"at"`
	Who string    `json:"who"`
	Why string    `json:"why"`
	// Back: they come back as they were found.
	Back bool `json:"back,omitempty"`
	// Things are taken, by id, each as it was when it was compared.
	Things map[string]string `json:"things,omitempty"`
	// Downgrade and Replace are what the word allows besides.
	Downgrade bool     `json:"downgrade,omitempty"`
	Replace   []string `json:"replace,omitempty"`
}

// Declared is the word as a declaration says it.
func (t Take) Declared() declaration.Take {
	return declaration.Take{Module: t.Module, ID: t.ID, Back: t.Back, Things: t.Things, Downgrade: t.Downgrade, Replace: t.Replace}
}

// TakeSet is what a take names and allows.
type TakeSet struct {
	Things    map[string]string
	Downgrade bool
	Replace   []string
}

// Take keeps the word that a module assigned to a node has things that are there from now on. Each is a new word:
// saying it again has the node look again. It is a hand act, and takes a reason.
func (s *Store) Take(ctx context.Context, by By, name subject.Node, module subject.Module, set TakeSet) (Take, error) {
	what := fmt.Sprintf("take for %s on %s", module, name)
	w := Take{Module: module, Things: maps.Clone(set.Things), Downgrade: set.Downgrade, Replace: slices.Compact(slices.Sorted(slices.Values(set.Replace)))}
	object := "node " + string(name) + ", module " + string(module) + ": " + strings.Join(slices.Sorted(maps.Keys(w.Things)), ", ")
	if w.Downgrade {
		object += "; an older image is allowed"
	}
	if len(w.Replace) > 0 {
		object += "; replaced " + strings.Join(w.Replace, ", ")
	}
	return s.handWord(ctx, by, name, w, "take", what, object)
}

// GiveBack keeps the word that what was taken for a module on a node comes back. The module is not assigned there.
func (s *Store) GiveBack(ctx context.Context, by By, name subject.Node, module subject.Module) (Take, error) {
	return s.handWord(ctx, by, name, Take{Module: module, Back: true}, "give back", fmt.Sprintf("give back what was taken for %s on %s", module, name),
		"node "+string(name)+", module "+string(module)+": what was taken comes back as it was found")
}

func (s *Store) handWord(ctx context.Context, by By, name subject.Node, w Take, verb, what, object string) (Take, error) {
	if strings.TrimSpace(by.Why) == "" {
		return Take{}, refusal.New(what+" without a reason", "it is kept in the journal, for whoever looks later", `say why: --why "mesh runs it from now on"`)
	}
	err := s.act(ctx, by, what, func(t *tx) error {
		n, err := findNode(ctx, t, name)
		if err != nil {
			return err
		}
		var assigned int
		if err := t.QueryRowContext(ctx, `SELECT count(*) FROM assignment WHERE node = ? AND module = ?`, n.id, string(w.Module)).Scan(&assigned); err != nil {
			return err
		}
		switch {
		case w.Back && assigned > 0:
			return refusal.New(what, "it is assigned there, so what is given back would be held again at once",
				fmt.Sprintf("mesh-coordinator unassign %s %s, then this again: one push does both", name, w.Module))
		case !w.Back && assigned == 0:
			return refusal.New(what, "it is not assigned there", fmt.Sprintf("mesh-coordinator assign %s %s, and push", name, w.Module))
		}
		w.ID, w.At, w.Who, w.Why = t.now.UnixMilli(), t.now.UTC().Truncate(time.Millisecond), by.Who, by.Why
		for _, old := range n.Takes {
			w.ID = max(w.ID, old.ID+1)
		}
		d := w.Declared()
		if err := d.Check(); err != nil {
			return refusal.New(what, err.Error(), "compare, and name what that shows")
		}
		all := append(slices.DeleteFunc(n.Takes, func(old Take) bool { return old.Module == w.Module }), w)
		slices.SortFunc(all, func(a, b Take) int { return strings.Compare(string(a.Module), string(b.Module)) })
		if err := t.exec(`UPDATE node SET takes = ? WHERE id = ?`, encode(all), n.id); err != nil {
			return err
		}
		t.touch(touch{node: name})
		return t.note(verb, object, name, w.Module)
	})
	return w, err
}

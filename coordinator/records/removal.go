package records

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"

	"mesh/shared/declaration"
	"mesh/shared/refusal"
	"mesh/shared/subject"
)

// UnassignWithData takes a module off a node, and has the things with its data that are named deleted there when
// that is pushed (APP-11). It is a hand act, and takes a reason. To assign the module again takes the word back.
func (s *Store) UnassignWithData(ctx context.Context, by By, name subject.Node, module subject.Module, things []string) error {
	what := fmt.Sprintf("delete the data of %s on %s", module, name)
	things = slices.Compact(slices.Sorted(slices.Values(things)))
	switch {
	case strings.TrimSpace(by.Why) == "":
		return refusal.New(what+" without a reason", "it is kept in the journal, for whoever looks later", `say why: --why "not needed any more"`)
	case len(things) == 0:
		return refusal.New(what, "no data are named", "name them: mesh-coordinator unassign <node> <module> --delete-data shows them")
	}
	for _, thing := range things {
		if !declaration.CanDelete(thing) {
			return refusal.Newf(what, `name folders and volumes: "dir:/srv/notes", "volume:mesh-notes-data"`, "%q is neither", thing)
		}
	}
	return s.act(ctx, by, what, func(t *tx) error {
		n, err := findNode(ctx, t, name)
		if err != nil {
			return err
		}
		have, err := texts(ctx, t, `SELECT module FROM assignment WHERE node = ? AND module = ?`, n.id, string(module))
		if err != nil {
			return err
		}
		if len(have) > 0 { // or it ended before, and its data stayed
			if err := s.unassign(t, n, module); err != nil {
				return err
			}
		}
		return t.remove(n, module, things, "delete data", fmt.Sprintf("of module %s on %s: %s", module, name, strings.Join(things, ", ")))
	})
}

// Prune has the strays that are named removed from a node when it is pushed to; they take the place of those
// named before.
func (s *Store) Prune(ctx context.Context, by By, name subject.Node, strays []string) error {
	strays = slices.Compact(slices.Sorted(slices.Values(strays)))
	for _, id := range strays {
		if !declaration.CanPrune(id) {
			return refusal.Newf("prune "+string(name), "remove it by hand", "%q is no unit, network or container of mesh's", id)
		}
	}
	return s.act(ctx, by, "prune "+string(name), func(t *tx) error {
		n, err := findNode(ctx, t, name)
		if err != nil {
			return err
		}
		return t.remove(n, "", strays, "prune", fmt.Sprintf("node %s: %s", name, strings.Join(strays, ", ")))
	})
}

// remove keeps the word.
func (t *tx) remove(n Node, module subject.Module, things []string, act, object string) error {
	if err := t.exec(`INSERT INTO removal (node, module, things) VALUES (?, ?, ?) ON CONFLICT (node, module) DO UPDATE SET things = excluded.things`,
		n.id, string(module), encode(things)); err != nil {
		return err
	}
	t.touch(touch{node: n.Name})
	return t.note(act, object, n.Name, module)
}

// removals reads those of the nodes that tail picks.
func (s *Store) removals(ctx context.Context, into func(node int64) *Inputs, tail string, args ...any) error {
	err := each(ctx, s.db.Read(), func(r *sql.Rows) error {
		var node int64
		var module, text string
		if err := r.Scan(&node, &module, &text); err != nil {
			return err
		}
		in := into(node)
		if in == nil { // of a removed node
			return nil
		}
		var things []string
		if err := decode(text, &things); err != nil {
			return err
		}
		if in.Remove == nil {
			in.Remove = &declaration.Remove{}
		}
		if module == "" {
			in.Remove.Strays = things
		} else {
			in.Remove.Data = append(in.Remove.Data, declaration.RemoveData{Module: subject.Module(module), Things: things})
		}
		return nil
	}, `SELECT node, module, things FROM removal`+tail+` ORDER BY node, module`, args...)
	if err != nil {
		return fmt.Errorf("read what is to be removed: %w", err)
	}
	return nil
}

package records

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"mesh/shared/refusal"
	"mesh/shared/subject"
)

// Change is one entry of the journal: who changed what, when and why.
type Change struct {
	ID     int64
	At     time.Time
	Who    string
	What   string // "assign", "set", "remove", …
	Object string // "assignment notes on db1", "node db1", …
	Node   subject.Node
	Module subject.Module
	Why    string
}

// Note appends an act that changes no record (a push, a hand act) to the journal.
func (s *Store) Note(ctx context.Context, by By, what, object string, n subject.Node, m subject.Module) error {
	if what == "" || object == "" {
		return refusal.New("a note in the journal", "it does not say what was done to what", "name both")
	}
	return s.act(ctx, by, "note "+what+" "+object, func(t *tx) error { return t.note(what, object, n, m) })
}

// Changes are the last of the journal, newest first. Node and module narrow it when not empty.
func (s *Store) Changes(ctx context.Context, n subject.Node, m subject.Module, limit int) ([]Change, error) {
	query, args := changeColumns+` WHERE 1`, []any{}
	if n != "" {
		query, args = query+` AND node = ?`, append(args, string(n))
	}
	if m != "" {
		query, args = query+` AND module = ?`, append(args, string(m))
	}
	return changes(ctx, s.db.Read(), query+` ORDER BY id DESC LIMIT ?`, append(args, limit)...)
}

// ChangesSince are those after t that concern n itself, its assignments, or the builds of a module,
// newest first: why its declaration is another one now.
func (s *Store) ChangesSince(ctx context.Context, n subject.Node, t time.Time) ([]Change, error) {
	return changes(ctx, s.db.Read(), changeColumns+` WHERE at >= ? AND (node = ? OR node = '') ORDER BY id DESC LIMIT 1000`,
		t.UnixMilli(), string(n))
}

const changeColumns = `SELECT id, at, who, what, object, node, module, why FROM change`

func changes(ctx context.Context, q querier, query string, args ...any) (all []Change, err error) {
	err = each(ctx, q, func(r *sql.Rows) error {
		var c Change
		var ms int64
		err := r.Scan(&c.ID, &ms, &c.Who, &c.What, &c.Object, &c.Node, &c.Module, &c.Why)
		c.At = at(ms)
		all = append(all, c)
		return err
	}, query, args...)
	if err != nil {
		return nil, fmt.Errorf("read the journal: %w", err)
	}
	return all, nil
}

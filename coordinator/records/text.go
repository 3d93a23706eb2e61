package records

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"

	"mesh/shared/declaration"
	"mesh/shared/report"
	"mesh/shared/subject"
)

// DeclaredTexts calls fn with the last declaration of each node named that has one, as it was signed.
// It is one query: at thousands of nodes, asking for each takes longer than sending them.
func (s *Store) DeclaredTexts(ctx context.Context, names []subject.Node, fn func(n subject.Node, seq uint64, signed declaration.Signed) error) error {
	err := each(ctx, s.db.Read(), func(r *sql.Rows) error {
		var name subject.Node
		var seq uint64
		var packed []byte
		if err := r.Scan(&name, &seq, &packed); err != nil {
			return err
		}
		signed, err := Packed(packed).unpack()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return fn(name, seq, signed)
	}, `SELECT n.name, d.seq, t.packed FROM node n JOIN declaration d ON d.node = n.id JOIN declaration_text t ON t.node = n.id
		WHERE n.removed IS NULL AND n.name IN (SELECT value FROM json_each(?))`, encode(names))
	if err != nil {
		return fmt.Errorf("read declarations: %w", err)
	}
	return nil
}

// DeclaredSeqs are the last seq of every node that has a declaration.
func (s *Store) DeclaredSeqs(ctx context.Context) (map[subject.Node]uint64, error) {
	all := make(map[subject.Node]uint64)
	err := each(ctx, s.db.Read(), func(r *sql.Rows) error {
		var name subject.Node
		var seq uint64
		err := r.Scan(&name, &seq)
		all[name] = seq
		return err
	}, `SELECT n.name, d.seq FROM node n JOIN declaration d ON d.node = n.id WHERE n.removed IS NULL`)
	if err != nil {
		return nil, fmt.Errorf("read the seqs of the declarations: %w", err)
	}
	return all, nil
}

// Unrecorded are the nodes whose last declaration is not known to have been sent, with its seq: a send
// that could not be recorded, or none at all.
func (s *Store) Unrecorded(ctx context.Context) (map[subject.Node]uint64, error) {
	all := make(map[subject.Node]uint64)
	err := each(ctx, s.db.Read(), func(r *sql.Rows) error {
		var name subject.Node
		var seq uint64
		err := r.Scan(&name, &seq)
		all[name] = seq
		return err
	}, `SELECT n.name, d.seq FROM node n JOIN declaration d ON d.node = n.id WHERE n.removed IS NULL AND d.sent < d.seq`)
	if err != nil {
		return nil, fmt.Errorf("read what was not sent: %w", err)
	}
	return all, nil
}

// Unheard are the nodes whose last declaration was sent and whose last report is about an older one, with its seq.
func (s *Store) Unheard(ctx context.Context) (map[subject.Node]uint64, error) {
	all := make(map[subject.Node]uint64)
	err := each(ctx, s.db.Read(), func(r *sql.Rows) error {
		var name subject.Node
		var seq uint64
		err := r.Scan(&name, &seq)
		all[name] = seq
		return err
	}, `SELECT n.name, d.seq FROM node n JOIN declaration d ON d.node = n.id LEFT JOIN report r ON r.node = n.id
		WHERE n.removed IS NULL AND d.sent >= d.seq AND coalesce(r.seq, 0) < d.seq`)
	if err != nil {
		return nil, fmt.Errorf("read what was sent and not answered: %w", err)
	}
	return all, nil
}

// Raise keeps that seqs are taken which these records, an older copy, do not know of: no node is sent one
// of them again, for it would refuse it.
func (s *Store) Raise(ctx context.Context, by By, seqs map[subject.Node]uint64) error {
	return s.act(ctx, by, "raise seqs", func(t *tx) error {
		for _, name := range slices.Sorted(maps.Keys(seqs)) {
			n, err := findNode(ctx, t, name)
			if errors.Is(err, ErrUnknown) {
				continue
			}
			if err != nil {
				return err
			}
			res, err := t.ExecContext(ctx, `UPDATE report SET top = max(top, ?) WHERE node = ?`, int64(seqs[name]), n.id)
			if err != nil {
				return err
			}
			if rows, err := res.RowsAffected(); err != nil {
				return err
			} else if rows == 0 { // it never spoke
				r := report.Report{Format: report.Format, Node: name, Apply: report.Apply{Outcome: report.None}}
				if err := putReport(ctx, t.Tx, n.id, &r, t.now, Account{Outcome: report.None, Heard: t.now}, seqs[name]); err != nil {
					return err
				}
			}
			t.touch(touch{node: name})
			t.after = append(t.after, func() { s.forget(name) })
			if err := t.note("raise", fmt.Sprintf("the seq of node %s to %d", name, seqs[name]), name, ""); err != nil {
				return err
			}
		}
		return nil
	})
}

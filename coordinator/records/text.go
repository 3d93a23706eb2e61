package records

import (
	"context"
	"database/sql"
	"fmt"

	"mesh/shared/declaration"
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

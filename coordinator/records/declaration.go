package records

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"mesh/shared/declaration"
	"mesh/shared/refusal"
	"mesh/shared/subject"
)

// Declared is the last declaration composed for a node, without its text.
type Declared struct {
	Seq  uint64
	Hash [32]byte
	// Composed is when its seq was given.
	Composed time.Time
	// Sent is the last seq that was put on the bus; 0: none yet.
	Sent uint64
	// Artifacts are the digests it names, sorted; Before those of the last declaration that named others,
	// which the node may still run.
	Artifacts, Before []string
}

// NewDeclared is a declaration to keep.
type NewDeclared struct {
	Node      subject.Node
	Seq       uint64
	Hash      [32]byte
	Artifacts []string
	Signed    declaration.Signed
}

// ErrStale is met by errors.Is when a declaration's seq does not grow.
var ErrStale = errors.New("composed from records that have changed since")

// KeepDeclared keeps new declarations as the last ones, in one transaction that is on disk when it
// returns: only then may they be sent, for a seq is never given twice. One of a node that was removed
// meanwhile is dropped.
func (s *Store) KeepDeclared(ctx context.Context, all []NewDeclared) error {
	if len(all) == 0 {
		return nil
	}
	now := s.clk.Now().UnixMilli()
	err := s.db.Write(ctx, func(t *sql.Tx) (err error) {
		row, err := t.PrepareContext(ctx, `INSERT INTO declaration (node, seq, hash, composed, sent, artifacts, before)
			SELECT id, ?2, ?3, ?4, 0, ?5, '[]' FROM node WHERE name = ?1 AND removed IS NULL
			ON CONFLICT (node) DO UPDATE SET seq = excluded.seq, hash = excluded.hash, composed = excluded.composed,
				before = CASE WHEN excluded.artifacts = artifacts THEN before ELSE artifacts END, artifacts = excluded.artifacts
				WHERE excluded.seq > seq
			RETURNING node`)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, row.Close()) }()
		text, err := t.PrepareContext(ctx, `INSERT INTO declaration_text (node, signed) VALUES (?, ?)
			ON CONFLICT (node) DO UPDATE SET signed = excluded.signed`)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, text.Close()) }()
		for i := range all {
			d := &all[i]
			artifacts := "[]"
			if len(d.Artifacts) > 0 {
				artifacts = encode(d.Artifacts)
			}
			var id int64
			switch err := row.QueryRowContext(ctx, string(d.Node), int64(d.Seq), d.Hash[:], now, artifacts).Scan(&id); {
			case errors.Is(err, sql.ErrNoRows):
				if gone, err := nodeGone(ctx, t, d.Node); err != nil || !gone {
					return errors.Join(fmt.Errorf("%s seq %d: %w", d.Node, d.Seq, ErrStale), err)
				}
				continue
			case err != nil:
				return fmt.Errorf("%s: %w", d.Node, err)
			}
			if _, err := text.ExecContext(ctx, id, []byte(d.Signed)); err != nil {
				return fmt.Errorf("%s: %w", d.Node, err)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("keep declarations: %w", err)
	}
	return nil
}

func nodeGone(ctx context.Context, q querier, name subject.Node) (bool, error) {
	var n int
	err := q.QueryRowContext(ctx, `SELECT count(*) FROM node WHERE name = ? AND removed IS NULL`, string(name)).Scan(&n)
	return n == 0, err
}

// Declared returns the last declaration composed for a node; Seq 0 when there is none.
func (s *Store) Declared(ctx context.Context, node subject.Node) (Declared, error) {
	in, err := s.Inputs(ctx, node)
	return in.Declared, err
}

// DeclaredText returns the last declaration composed for a node as it was signed, with its seq.
func (s *Store) DeclaredText(ctx context.Context, node subject.Node) (declaration.Signed, uint64, error) {
	var b []byte
	var seq uint64
	err := s.db.Read().QueryRowContext(ctx, `SELECT t.signed, d.seq FROM node n JOIN declaration d ON d.node = n.id JOIN declaration_text t ON t.node = n.id
		WHERE n.name = ? AND n.removed IS NULL`, string(node)).Scan(&b, &seq)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, 0, fmt.Errorf("%w: %w", refusal.New("the declaration of "+string(node), "none was composed yet", "push to it"), ErrUnknown)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read the declaration of %s: %w", node, err)
	}
	return b, seq, nil
}

// Waiting are the nodes whose last declaration was not sent or is not known to be applied, and why, by
// name.
func (s *Store) Waiting(ctx context.Context) (map[subject.Node]string, error) {
	all := make(map[subject.Node]string)
	err := each(ctx, s.db.Read(), func(r *sql.Rows) error {
		var name subject.Node
		var seq, sent, applied uint64
		var outcome string
		if err := r.Scan(&name, &seq, &sent, &applied, &outcome); err != nil {
			return err
		}
		switch {
		case sent < seq:
			all[name] = fmt.Sprintf("declaration %d was not sent", seq)
		case applied < seq:
			all[name] = fmt.Sprintf("it has not spoken of declaration %d", seq)
		default:
			all[name] = fmt.Sprintf("declaration %d is %s", seq, outcome)
		}
		return nil
	}, `SELECT n.name, d.seq, d.sent, coalesce(r.seq, 0), coalesce(r.outcome, 'none') FROM node n JOIN declaration d ON d.node = n.id LEFT JOIN report r ON r.node = n.id
		WHERE n.removed IS NULL AND (d.sent < d.seq OR r.seq IS NULL OR r.seq < d.seq OR r.outcome <> 'applied')`)
	if err != nil {
		return nil, fmt.Errorf("read who waits: %w", err)
	}
	return all, nil
}

// Send is one declaration put on the bus, with the build of each module it carried (PSH-3).
type Send struct {
	Node   subject.Node
	Seq    uint64
	At     time.Time // set by RecordSends when zero
	Push   string    // id of the push
	Builds map[subject.Module]string
}

// RecordSends keeps what was put on the bus. It costs no sync: a send that a power cut takes away was
// of a declaration that is kept, and is sent again under the same seq.
func (s *Store) RecordSends(ctx context.Context, all []Send) error {
	if len(all) == 0 {
		return nil
	}
	now := s.clk.Now()
	err := s.db.WriteLazy(ctx, func(t *sql.Tx) (err error) {
		sent, err := t.PrepareContext(ctx, `UPDATE declaration SET sent = max(sent, ?2) WHERE node = (SELECT id FROM node WHERE name = ?1 AND removed IS NULL) RETURNING node`)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, sent.Close()) }()
		row, err := t.PrepareContext(ctx, `INSERT INTO send (node, seq, at, push, builds) VALUES (?, ?, ?, ?, ?)`)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, row.Close()) }()
		for _, x := range all {
			if x.At.IsZero() {
				x.At = now
			}
			var id int64
			switch err := sent.QueryRowContext(ctx, string(x.Node), int64(x.Seq)).Scan(&id); {
			case errors.Is(err, sql.ErrNoRows):
				continue // removed meanwhile
			case err != nil:
				return fmt.Errorf("%s: %w", x.Node, err)
			}
			if _, err := row.ExecContext(ctx, id, int64(x.Seq), x.At.UnixMilli(), x.Push, encode(x.Builds)); err != nil {
				return fmt.Errorf("%s: %w", x.Node, err)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("record sends: %w", err)
	}
	return nil
}

// Sends are the last of a node, newest first.
func (s *Store) Sends(ctx context.Context, node subject.Node, limit int) (all []Send, err error) {
	err = each(ctx, s.db.Read(), func(r *sql.Rows) error {
		x := Send{Node: node}
		var ms int64
		var builds string
		if err := r.Scan(&x.Seq, &ms, &x.Push, &builds); err != nil {
			return err
		}
		x.At = at(ms)
		if err := decode(builds, &x.Builds); err != nil {
			return err
		}
		all = append(all, x)
		return nil
	}, `SELECT s.seq, s.at, s.push, s.builds FROM send s JOIN node n ON n.id = s.node AND n.removed IS NULL WHERE n.name = ? ORDER BY s.id DESC LIMIT ?`, string(node), limit)
	if err != nil {
		return nil, fmt.Errorf("read the sends to %s: %w", node, err)
	}
	return all, nil
}

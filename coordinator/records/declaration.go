package records

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/klauspost/compress/s2"

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
	// Node is the node it was composed for, as it was read: another machine that has its name since gets
	// nothing of it.
	Node      Node
	Seq       uint64
	Hash      [32]byte
	Artifacts []string
	// Text is the signed declaration, from Pack.
	Text Packed
}

// Packed is a signed declaration as it is kept: a tenth of its size, for a push to all writes them all.
type Packed []byte

// Pack packs s. It is apart from KeepDeclared because many nodes' can be packed side by side.
func Pack(s declaration.Signed) Packed { return s2.Encode(nil, s) }

// unpack reads what Pack wrote.
func (p Packed) unpack() (declaration.Signed, error) {
	if n, err := s2.DecodedLen(p); err != nil || n > declaration.MaxSize {
		return nil, fmt.Errorf("the records hold a declaration that is damaged (%d bytes unpacked): %w", n, err)
	}
	b, err := s2.Decode(nil, p)
	if err != nil {
		return nil, fmt.Errorf("the records hold a declaration that is damaged: %w", err)
	}
	return b, nil
}

// ErrStale is met by errors.Is when a declaration's seq does not grow.
var ErrStale = errors.New("composed from records that have changed since")

// KeepDeclared keeps new declarations as the last ones, in one transaction. It survives the death of this
// process at once, and a power cut with the next synced write: that is the note in the journal without which
// nothing is sent, so a push costs one sync. A seq that a power cut takes was never sent, and may be given
// again. One of a node that was removed meanwhile is dropped; one whose seq does not grow is ErrStale, and
// then nothing is kept.
func (s *Store) KeepDeclared(ctx context.Context, all []NewDeclared) error {
	if len(all) == 0 {
		return nil
	}
	// In the order of the file: neighbours share pages.
	all = slices.SortedFunc(slices.Values(all), func(a, b NewDeclared) int { return cmp.Compare(a.Node.id, b.Node.id) })
	now := s.clk.Now().UnixMilli()
	err := s.db.WriteLazy(ctx, func(t *sql.Tx) error {
		if err := keepRows(ctx, t, all, now); err != nil {
			return err
		}
		return keepTexts(ctx, t, all)
	})
	if err != nil {
		return fmt.Errorf("keep declarations: %w", err)
	}
	return nil
}

func keepRows(ctx context.Context, t *sql.Tx, all []NewDeclared, now int64) (err error) {
	put, err := t.PrepareContext(ctx, `INSERT INTO declaration (node, seq, hash, composed, sent, artifacts, before)
		SELECT id, ?2, ?3, ?4, 0, ?5, '[]' FROM node WHERE id = ?1 AND removed IS NULL
		ON CONFLICT (node) DO UPDATE SET seq = excluded.seq, hash = excluded.hash, composed = excluded.composed,
			before = CASE WHEN excluded.artifacts = artifacts THEN before ELSE artifacts END, artifacts = excluded.artifacts
			WHERE excluded.seq > seq`)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, put.Close()) }()
	for i := range all {
		d := &all[i]
		artifacts := "[]"
		if len(d.Artifacts) > 0 {
			artifacts = encode(d.Artifacts)
		}
		res, err := put.ExecContext(ctx, d.Node.id, int64(d.Seq), d.Hash[:], now, artifacts)
		if err != nil {
			return fmt.Errorf("%s: %w", d.Node.Name, err)
		}
		if n, err := res.RowsAffected(); err != nil || n > 0 {
			if err != nil {
				return err
			}
			continue
		}
		var here int
		if err := t.QueryRowContext(ctx, `SELECT count(*) FROM node WHERE id = ? AND removed IS NULL`, d.Node.id).Scan(&here); err != nil {
			return err
		}
		if here > 0 {
			return fmt.Errorf("%s seq %d: %w", d.Node.Name, d.Seq, ErrStale)
		}
	}
	return nil
}

func keepTexts(ctx context.Context, t *sql.Tx, all []NewDeclared) (err error) {
	put, err := t.PrepareContext(ctx, `INSERT INTO declaration_text (node, packed)
		SELECT ?1, ?2 WHERE EXISTS (SELECT 1 FROM node WHERE id = ?1 AND removed IS NULL)
		ON CONFLICT (node) DO UPDATE SET packed = excluded.packed`)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, put.Close()) }()
	for i := range all {
		if _, err := put.ExecContext(ctx, all[i].Node.id, []byte(all[i].Text)); err != nil {
			return fmt.Errorf("%s: %w", all[i].Node.Name, err)
		}
	}
	return nil
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
	err := s.db.Read().QueryRowContext(ctx, `SELECT t.packed, d.seq FROM node n JOIN declaration d ON d.node = n.id JOIN declaration_text t ON t.node = n.id
		WHERE n.name = ? AND n.removed IS NULL`, string(node)).Scan(&b, &seq)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, 0, fmt.Errorf("%w: %w", refusal.New("the declaration of "+string(node), "none was composed yet", "push to it"), ErrUnknown)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read the declaration of %s: %w", node, err)
	}
	signed, err := Packed(b).unpack()
	if err != nil {
		return nil, 0, fmt.Errorf("read the declaration of %s: %w", node, err)
	}
	return signed, seq, nil
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
		case max(sent, applied) < seq: // one that speaks of it was sent it, recorded or not
			all[name] = fmt.Sprintf("declaration %d was not sent", seq)
		case applied < seq:
			all[name] = fmt.Sprintf("it has not spoken of declaration %d", seq)
		default:
			all[name] = fmt.Sprintf("declaration %d is %s", seq, outcome)
		}
		return nil
	}, `SELECT n.name, d.seq, d.sent, coalesce(r.seq, 0), coalesce(r.outcome, 'none') FROM node n JOIN declaration d ON d.node = n.id LEFT JOIN report r ON r.node = n.id
		WHERE n.removed IS NULL AND (r.seq IS NULL OR r.seq < d.seq OR r.outcome <> 'applied')`)
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
	type line struct {
		Node   string `json:"n"`
		Seq    int64  `json:"s"`
		At     int64  `json:"a"`
		Push   string `json:"p"`
		Builds string `json:"b"`
	}
	lines := make([]line, len(all))
	for i, x := range all {
		if x.At.IsZero() {
			x.At = now
		}
		lines[i] = line{string(x.Node), int64(x.Seq), x.At.UnixMilli(), x.Push, encode(x.Builds)}
	}
	// Two statements for all: those of each node took longer than the rest of a push to thousands. A node that was
	// removed meanwhile is none of these.
	text := encode(lines)
	err := s.db.WriteLazy(ctx, func(t *sql.Tx) (err error) {
		if _, err := t.ExecContext(ctx, `UPDATE declaration SET sent = max(sent, x.seq)
			FROM (SELECT n.id, max(j.value ->> 's') AS seq FROM json_each(?) j JOIN node n ON n.name = j.value ->> 'n' AND n.removed IS NULL GROUP BY n.id) x
			WHERE node = x.id`, text); err != nil {
			return err
		}
		_, err = t.ExecContext(ctx, `INSERT INTO send (node, seq, at, push, builds)
			SELECT n.id, j.value ->> 's', j.value ->> 'a', j.value ->> 'p', j.value ->> 'b' FROM json_each(?) j
			JOIN node n ON n.name = j.value ->> 'n' AND n.removed IS NULL JOIN declaration d ON d.node = n.id ORDER BY j.key`, text)
		return err
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

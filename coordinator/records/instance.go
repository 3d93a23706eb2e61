package records

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/subject"
)

// Instance is a module on a machine with a key of its own on the bus.
type Instance struct {
	Node   subject.Node
	Module subject.Module
	Key    string
}

// Label names i as a principal.
func (i Instance) Label() string { return "instance-" + string(i.Node) + "." + string(i.Module) }

// InstanceByKey is the instance that has this key, ErrUnknown when none that is assigned has.
func (s *Store) InstanceByKey(ctx context.Context, key string) (Instance, error) {
	i := Instance{Key: key}
	err := s.db.Read().QueryRowContext(ctx, `SELECT n.name, i.module FROM instance i JOIN node n ON n.id = i.node AND n.removed IS NULL
		JOIN assignment a ON a.node = i.node AND a.module = i.module WHERE i.key = ?`, key).Scan(&i.Node, &i.Module)
	if errors.Is(err, sql.ErrNoRows) {
		return i, fmt.Errorf("%w: %w", refusal.New("the key "+clip(key), "no instance of this mesh has it", "push to its machine again"), ErrUnknown)
	}
	return i, err
}

// Instances are all that are assigned and have a key, by module and node.
func (s *Store) Instances(ctx context.Context) (all []Instance, err error) {
	err = each(ctx, s.db.Read(), func(r *sql.Rows) error {
		var i Instance
		err := r.Scan(&i.Node, &i.Module, &i.Key)
		all = append(all, i)
		return err
	}, `SELECT n.name, i.module, i.key FROM instance i JOIN node n ON n.id = i.node AND n.removed IS NULL
		JOIN assignment a ON a.node = i.node AND a.module = i.module ORDER BY i.module, n.name`)
	return all, err
}

// keyed keeps the keys a machine made for its instances, and reports whether one is new. A machine speaks for
// the modules assigned to it only, and for no key that is another's.
func (rec *recorder) keyed(s *Store, node int64, r *report.Report, at int64) (news bool, err error) {
	for _, k := range r.Keys {
		var have sql.NullString
		err := rec.QueryRowContext(rec.ctx, `SELECT i.key FROM assignment a LEFT JOIN instance i ON i.node = a.node AND i.module = a.module
			WHERE a.node = ? AND a.module = ?`, node, string(k.Module)).Scan(&have)
		if errors.Is(err, sql.ErrNoRows) || err == nil && have.String == k.Key {
			continue
		}
		if err != nil {
			return news, err
		}
		t := &tx{Tx: rec.Tx, s: s, ctx: rec.ctx}
		owner, err := t.keyOwner(k.Key)
		if err != nil {
			return news, err
		}
		if owner != "" {
			continue // whoever had it first keeps it
		}
		if _, err := rec.ExecContext(rec.ctx, `INSERT INTO instance (node, module, key, heard) VALUES (?, ?, ?, ?)
			ON CONFLICT (node, module) DO UPDATE SET key = excluded.key, heard = excluded.heard`, node, string(k.Module), k.Key, at); err != nil {
			return news, err
		}
		news = true
	}
	return news, nil
}

// keyAll fills in the keys of all instances; like placeAll, one text a node.
func (s *Store) keyAll(ctx context.Context, all []Inputs, byID map[int64]int) error {
	err := each(ctx, s.db.Read(), func(r *sql.Rows) error {
		var id int64
		var text string
		if err := r.Scan(&id, &text); err != nil {
			return err
		}
		k, here := byID[id]
		if !here {
			return nil
		}
		for part := range strings.SplitSeq(text, group) {
			module, key, _ := strings.Cut(part, unit)
			all[k].key(subject.Module(module), key)
		}
		return nil
	}, `SELECT node, group_concat(module || char(31) || key, char(30)) FROM instance GROUP BY node`)
	if err != nil {
		return fmt.Errorf("read the instances: %w", err)
	}
	return nil
}

func (in *Inputs) key(m subject.Module, key string) {
	if i := slices.IndexFunc(in.Placed, func(p Placed) bool { return p.Module == m }); i >= 0 {
		in.Placed[i].Key = key
	}
}

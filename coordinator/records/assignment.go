package records

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"strings"

	"mesh/shared/credential"
	"mesh/shared/manifest"
	"mesh/shared/refusal"
	"mesh/shared/subject"
)

// Assignment is a module on a node.
type Assignment struct {
	Node     subject.Node
	Module   subject.Module
	Settings map[string]string
	// Secrets are sealed to the node: nobody else can open them.
	Secrets map[string]credential.Sealed
}

// AssignSet is what an assignment changes; what it does not name stays.
type AssignSet struct {
	Set   map[string]string // settings
	Unset []string          // settings that go back to the manifest's default
	// Secrets are in clear here and sealed before anything is written.
	Secrets map[string]string
	// Sealed are secrets that were sealed where they were known, to the key of the one node that is named.
	Sealed map[string]credential.Sealed
}

// Assigned is what became of one node.
type Assigned struct {
	Node    subject.Node
	New     bool // it did not have the module
	Changed bool // false: it was so already
}

// Assign puts a module on nodes, or changes its settings there, in one transaction. What is so already
// is no change and gets no line in the journal.
func (s *Store) Assign(ctx context.Context, by By, names []subject.Node, module subject.Module, set AssignSet) ([]Assigned, error) {
	var all []Assigned
	err := s.act(ctx, by, "assign module "+string(module), func(t *tx) error {
		b, err := s.current(ctx, t, module)
		if err != nil {
			return err
		}
		if err := set.known(b.Manifest); err != nil {
			return err
		}
		nodes, err := selected(ctx, t, names)
		if err != nil {
			return err
		}
		if len(set.Sealed) > 0 && len(nodes) != 1 {
			return refusal.New("sealed secrets for several nodes", "each is sealed to one node's key", "assign to one node at a time")
		}
		for _, n := range nodes {
			a, err := s.assign(t, n, b, set)
			if err != nil {
				return err
			}
			all = append(all, a)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// known refuses settings and secrets the module does not have.
func (set AssignSet) known(m *manifest.Manifest) error {
	for _, k := range slices.Sorted(maps.Keys(set.Set)) {
		if err := m.KnowsSetting(k); err != nil {
			return err
		}
		if slices.Contains(set.Unset, k) {
			return refusal.New("the setting "+k, "it is set and unset at once", "name it once")
		}
		if len(set.Set[k]) > manifest.MaxText {
			return refusal.Newf("the setting "+k, "carry large content in a bundle", "it has %d bytes, at most %d are taken", len(set.Set[k]), manifest.MaxText)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(set.Secrets)) {
		if err := m.KnowsSecret(k); err != nil {
			return err
		}
		if len(set.Secrets[k]) > manifest.MaxText {
			return refusal.Newf("the secret "+k, "carry large content in a bundle", "it has %d bytes, at most %d are taken", len(set.Secrets[k]), manifest.MaxText)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(set.Sealed)) {
		if err := m.KnowsSecret(k); err != nil {
			return err
		}
		if len(set.Sealed[k]) > 2*manifest.MaxText {
			return refusal.Newf("the secret "+k, "carry large content in a bundle", "it has %d bytes sealed, at most %d are taken", len(set.Sealed[k]), 2*manifest.MaxText)
		}
	}
	return nil
}

func (s *Store) assign(t *tx, n Node, b *Build, set AssignSet) (Assigned, error) {
	out := Assigned{Node: n.Name}
	have, err := assignments(t.ctx, t, ` WHERE a.node = ? AND a.module = ?`, n.id, string(b.Module))
	if err != nil {
		return out, err
	}
	a := Assignment{Settings: map[string]string{}, Secrets: map[string]credential.Sealed{}}
	if out.New = len(have) == 0; !out.New {
		a = have[0]
	} else if err := s.claimsFree(t, n.id, b.Manifest); err != nil {
		return out, err
	}
	before := encode(a.Settings)
	words := make([]string, 0, len(set.Set)+len(set.Unset)+len(set.Secrets))
	for _, k := range slices.Sorted(maps.Keys(set.Set)) {
		a.Settings[k] = set.Set[k]
		words = append(words, k+"="+clip(set.Set[k]))
	}
	for _, k := range set.Unset {
		if err := b.Manifest.KnowsSetting(k); err != nil && a.Settings[k] == "" {
			return out, err // one that only an older build had may be taken away
		}
		delete(a.Settings, k)
		words = append(words, k+" unset")
	}
	for _, k := range slices.Sorted(maps.Keys(set.Secrets)) {
		if a.Secrets[k], err = credential.Seal(s.rand, n.Curve, n.Name, b.Module, k, set.Secrets[k]); err != nil {
			return out, err
		}
		words = append(words, "secret "+k)
	}
	for _, k := range slices.Sorted(maps.Keys(set.Sealed)) {
		a.Secrets[k] = set.Sealed[k]
		words = append(words, "secret "+k)
	}
	if missing := Missing(b.Manifest, a.Settings, a.Secrets); len(missing) > 0 {
		return out, refusal.Newf(fmt.Sprintf("the assignment of %s to %s", b.Module, n.Name), "give what is missing with --set or --secret",
			"it lacks %s, for which the manifest has no default", strings.Join(missing, ", "))
	}
	if out.Changed = out.New || before != encode(a.Settings) || len(set.Secrets)+len(set.Sealed) > 0; !out.Changed {
		return out, nil
	}
	if err := t.exec(`INSERT INTO assignment (node, module, settings, secrets) VALUES (?, ?, ?, ?)
		ON CONFLICT (node, module) DO UPDATE SET settings = excluded.settings, secrets = excluded.secrets`,
		n.id, string(b.Module), encode(a.Settings), encode(a.Secrets)); err != nil {
		return out, err
	}
	if out.New { // what it brings is not to be deleted
		if err := t.exec(`DELETE FROM removal WHERE node = ? AND module = ?`, n.id, string(b.Module)); err != nil {
			return out, err
		}
	}
	t.touch(touch{node: n.Name})
	object := fmt.Sprintf("module %s on %s", b.Module, n.Name)
	if len(words) > 0 {
		object += ": " + strings.Join(words, ", ")
	}
	return out, t.note("assign", object, n.Name, b.Module)
}

// claimsFree refuses a module that would hold a path, unit, user or open port that another module of the
// node holds.
func (s *Store) claimsFree(t *tx, node int64, m *manifest.Manifest) error {
	ids, err := texts(t.ctx, t, `SELECT m.build FROM assignment a JOIN module m ON m.name = a.module WHERE a.node = ? AND a.module <> ? ORDER BY a.module`, node, string(m.Module))
	if err != nil {
		return err
	}
	for _, id := range ids {
		other, err := s.build(t.ctx, t, id)
		if err != nil {
			return err
		}
		both := clash(m, other.Manifest)
		if both == "" {
			continue
		}
		var name string
		if err := t.QueryRowContext(t.ctx, `SELECT name FROM node WHERE id = ?`, node).Scan(&name); err != nil {
			return err
		}
		return refusal.New(fmt.Sprintf("module %s on %s", m.Module, name), fmt.Sprintf("module %s has the %s there too", other.Module, both),
			fmt.Sprintf("unassign %s from %s, or declare another one", other.Module, name))
	}
	return nil
}

// clash is what both modules would hold, as b has it, or "".
func clash(a, b *manifest.Manifest) string {
	mine := make(map[string]bool)
	for _, c := range a.Claims() {
		mine[claimed(c)] = true
	}
	for _, c := range b.Claims() {
		if mine[claimed(c)] {
			return c
		}
	}
	for _, x := range a.Firewall.Allow {
		for _, y := range b.Firewall.Allow {
			if x.Port.Protocol == y.Port.Protocol && x.Port.First <= y.Port.Last && y.Port.First <= x.Port.Last {
				return "open port " + y.Port.String()
			}
		}
	}
	return ""
}

// claimed is what a claim is of: one path is one thing, whether a file or a directory.
func claimed(claim string) string {
	kind, name, _ := strings.Cut(claim, " ")
	if kind == "file" || kind == "directory" {
		return name
	}
	return claim
}

// Unassign takes a module off nodes. A node that does not have it is refused by name.
func (s *Store) Unassign(ctx context.Context, by By, names []subject.Node, module subject.Module) error {
	return s.act(ctx, by, "unassign module "+string(module), func(t *tx) error {
		nodes, err := selected(ctx, t, names)
		if err != nil {
			return err
		}
		for _, n := range nodes {
			if err := s.unassign(t, n, module); err != nil {
				return err
			}
		}
		return nil
	})
}

// unassign takes a module off one node.
func (s *Store) unassign(t *tx, n Node, module subject.Module) error {
	res, err := t.ExecContext(t.ctx, `DELETE FROM assignment WHERE node = ? AND module = ?`, n.id, string(module))
	if err != nil {
		return err
	}
	if gone, err := res.RowsAffected(); err != nil {
		return err
	} else if gone == 0 {
		known, err := texts(t.ctx, t, `SELECT module FROM assignment WHERE node = ?`, n.id)
		if err != nil {
			return err
		}
		return refusal.New(fmt.Sprintf("unassign %s from %s", module, n.Name), "it is not assigned there",
			didYouMean(string(module), known, "it has: "+strings.Join(known, ", ")))
	}
	t.touch(touch{node: n.Name})
	return t.note("unassign", fmt.Sprintf("module %s from %s", module, n.Name), n.Name, module)
}

// Assignments are those of one node, by module.
func (s *Store) Assignments(ctx context.Context, node subject.Node) ([]Assignment, error) {
	n, err := s.Node(ctx, node)
	if err != nil {
		return nil, err
	}
	return assignments(ctx, s.db.Read(), ` WHERE a.node = ? ORDER BY a.module`, n.id)
}

// AssignmentsOf are those of one module, by node.
func (s *Store) AssignmentsOf(ctx context.Context, module subject.Module) ([]Assignment, error) {
	return assignments(ctx, s.db.Read(), ` WHERE a.module = ? ORDER BY n.name`, string(module))
}

func assignments(ctx context.Context, q querier, tail string, args ...any) (all []Assignment, err error) {
	err = each(ctx, q, func(r *sql.Rows) error {
		var a Assignment
		var settings, secrets string
		if err := r.Scan(&a.Node, &a.Module, &settings, &secrets); err != nil {
			return err
		}
		if err := decode(settings, &a.Settings); err != nil {
			return err
		}
		if err := decode(secrets, &a.Secrets); err != nil {
			return err
		}
		all = append(all, a)
		return nil
	}, `SELECT n.name, a.module, a.settings, a.secrets FROM assignment a JOIN node n ON n.id = a.node AND n.removed IS NULL`+tail, args...)
	if err != nil {
		return nil, fmt.Errorf("read assignments: %w", err)
	}
	return all, nil
}

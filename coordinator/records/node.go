package records

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"mesh/shared/declaration"
	"mesh/shared/refusal"
	"mesh/shared/rule"
	"mesh/shared/subject"
)

// Who owns the openings that no module declares. No module has these names.
const (
	// AdminOwner owns a node's own openings, the way in for people (NET-7).
	AdminOwner = "admin"
	// BusOwner owns the way in to the bus, on the machine that runs it: nothing a person sets closes it.
	BusOwner = "bus"
)

// Node is a machine that was enrolled.
type Node struct {
	id   int64
	Name subject.Node
	// Key is its bus user's public key, Curve what secrets for it are sealed to.
	Key, Curve string
	MachineID  string
	Enrolled   time.Time
	Removed    time.Time // zero: it is in the mesh
	Drift      declaration.Drift
	// Tunnel names the overlay link; empty: what the node reports.
	Tunnel string
	// Inside are links a person declared inside (NET-15).
	Inside []string
	// Admin are the node's own openings, owned by AdminOwner.
	Admin []rule.Allow
	// AsleepOK: silence is no trouble (NOD-11).
	AsleepOK bool
	// Converge is whose the packet filter is; nil: not mesh's alone (NET-9).
	Converge *Converge
	// Takes are people's words about things that mesh did not put there, by module (APP-10).
	Takes []Take
	// Keeps are what was changed by hand and stays for a while, by thing (APP-19).
	Keeps []Keep
}

// defaultAdmin lets people in by SSH.
func defaultAdmin() []rule.Allow {
	return []rule.Allow{{Owner: AdminOwner, Port: rule.Port{First: 22, Last: 22, Protocol: "tcp"}, From: rule.Anywhere()}}
}

// NodeSet is what SetNode changes; nil leaves a thing as it is.
type NodeSet struct {
	Drift    *declaration.Drift
	Tunnel   *string
	Inside   *[]string
	Admin    *[]rule.Allow
	AsleepOK *bool
}

// SetNode changes a node's own policies and returns it as it is then. What is so already is no change.
func (s *Store) SetNode(ctx context.Context, by By, name subject.Node, set NodeSet) (Node, error) {
	if set == (NodeSet{}) {
		return Node{}, refusal.New("set nothing on "+string(name), "no change is named", "name one: drift, tunnel, inside, admin, asleep-ok")
	}
	var n Node
	err := s.act(ctx, by, "set node "+string(name), func(t *tx) (err error) {
		if n, err = findNode(ctx, t, name); err != nil {
			return err
		}
		changed, err := set.apply(&n)
		if err != nil || len(changed) == 0 {
			return err
		}
		if err := t.exec(`UPDATE node SET drift = ?, tunnel = ?, inside = ?, admin = ?, asleep_ok = ? WHERE id = ?`,
			string(n.Drift), n.Tunnel, encode(n.Inside), encode(n.Admin), n.AsleepOK, n.id); err != nil {
			return err
		}
		t.touch(touch{node: name})
		return t.note("set", fmt.Sprintf("node %s: %s", name, strings.Join(changed, ", ")), name, "")
	})
	return n, err
}

// apply changes n and says what changed.
func (set NodeSet) apply(n *Node) (changed []string, err error) {
	if set.Drift != nil && *set.Drift != n.Drift {
		if *set.Drift != declaration.Repair && *set.Drift != declaration.ReportOnly {
			return nil, refusal.New(fmt.Sprintf("the drift policy %q", string(*set.Drift)), "there is no such policy", "the policies are repair, report")
		}
		n.Drift = *set.Drift
		changed = append(changed, "drift="+string(n.Drift))
	}
	if set.Tunnel != nil && *set.Tunnel != n.Tunnel {
		if err := checkLink(*set.Tunnel, true); err != nil {
			return nil, err
		}
		n.Tunnel = *set.Tunnel
		changed = append(changed, "tunnel="+n.Tunnel)
	}
	if set.Inside != nil {
		links := slices.Compact(slices.Sorted(slices.Values(*set.Inside)))
		for _, l := range links {
			if err := checkLink(l, false); err != nil {
				return nil, err
			}
		}
		if !slices.Equal(links, n.Inside) {
			n.Inside = links
			changed = append(changed, "inside="+strings.Join(links, ","))
		}
	}
	if set.Admin != nil {
		admin := slices.Clone(*set.Admin)
		words := make([]string, len(admin))
		for i := range admin {
			admin[i].Owner = AdminOwner
			words[i] = admin[i].Port.String() + " from " + admin[i].From.String()
		}
		if encode(admin) != encode(n.Admin) {
			n.Admin = admin
			changed = append(changed, "admin="+strings.Join(words, "; "))
		}
	}
	if set.AsleepOK != nil && *set.AsleepOK != n.AsleepOK {
		n.AsleepOK = *set.AsleepOK
		changed = append(changed, fmt.Sprintf("asleep-ok=%v", n.AsleepOK))
	}
	return changed, nil
}

// checkLink refuses what cannot be the name of a network link (IFNAMSIZ, dev_valid_name in the kernel).
func checkLink(name string, mayBeEmpty bool) error {
	if name == "" && mayBeEmpty {
		return nil
	}
	if name == "" || len(name) > 15 || name == "." || name == ".." || strings.ContainsAny(name, "/:\"\\ \t\n\r\v\f\x00") {
		return refusal.New(fmt.Sprintf("the link %q", name), "a link's name has 1 to 15 characters without / : and blanks", "name it as ip link shows it")
	}
	return nil
}

// RemoveNode archives a node: its credential leaves the user list at the next composition, its name is
// free again (NOD-13).
func (s *Store) RemoveNode(ctx context.Context, by By, name subject.Node) error {
	return s.act(ctx, by, "remove node "+string(name), func(t *tx) error {
		n, err := findNode(ctx, t, name)
		if err != nil {
			return err
		}
		if err := t.exec(`DELETE FROM instance WHERE node = ?`, n.id); err != nil {
			return err
		}
		if err := t.exec(`UPDATE node SET removed = ? WHERE id = ?`, t.now.UnixMilli(), n.id); err != nil {
			return err
		}
		t.after = append(t.after, func() { s.forget(name) })
		t.touch(touch{node: name, users: true})
		return t.note("remove", "node "+string(name), name, "")
	})
}

const nodeColumns = `SELECT id, name, key, curve, machine_id, enrolled, removed, drift, tunnel, inside, admin, asleep_ok, converge, takes, keeps FROM node`

func scanNode(row interface{ Scan(...any) error }) (Node, error) {
	var n Node
	var enrolled int64
	var removed sql.NullInt64
	var inside, admin, converge, takes, keeps string
	err := row.Scan(&n.id, &n.Name, &n.Key, &n.Curve, &n.MachineID, &enrolled, &removed, &n.Drift, &n.Tunnel, &inside, &admin, &n.AsleepOK, &converge, &takes, &keeps)
	if err != nil {
		return Node{}, err
	}
	n.Enrolled, n.Removed = at(enrolled), atOrZero(removed)
	if converge != "" {
		if err := decode(converge, &n.Converge); err != nil {
			return Node{}, err
		}
	}
	if takes != "[]" {
		if err := decode(takes, &n.Takes); err != nil {
			return Node{}, err
		}
	}
	if keeps != "[]" {
		if err := decode(keeps, &n.Keeps); err != nil {
			return Node{}, err
		}
	}
	if inside != "[]" {
		if err := decode(inside, &n.Inside); err != nil {
			return Node{}, err
		}
	}
	if admin == defaultAdminText {
		n.Admin = defaultAdmin()
		return n, nil
	}
	return n, decode(admin, &n.Admin)
}

// defaultAdminText spares decoding what nearly every node has.
var defaultAdminText = encode(defaultAdmin())

// Node returns a node of the mesh; an unknown name is refused with the one probably meant.
func (s *Store) Node(ctx context.Context, name subject.Node) (Node, error) {
	return findNode(ctx, s.db.Read(), name)
}

func findNode(ctx context.Context, q querier, name subject.Node) (Node, error) {
	n, err := scanNode(q.QueryRowContext(ctx, nodeColumns+` WHERE name = ? AND removed IS NULL`, string(name)))
	if errors.Is(err, sql.ErrNoRows) {
		return Node{}, unknownNode(ctx, q, name)
	}
	if err != nil {
		return Node{}, fmt.Errorf("read node %s: %w", name, err)
	}
	return n, nil
}

func unknownNode(ctx context.Context, q querier, name subject.Node) error {
	known, err := texts(ctx, q, `SELECT name FROM node WHERE removed IS NULL`)
	if err != nil {
		return err
	}
	why := "there is none of this name"
	var removed sql.NullInt64
	if err := q.QueryRowContext(ctx, `SELECT max(removed) FROM node WHERE name = ?`, string(name)).Scan(&removed); err != nil {
		return err
	}
	if removed.Valid {
		why = "it was removed " + at(removed.Int64).Format(time.RFC3339)
	}
	return fmt.Errorf("%w: %w", refusal.New("the node "+string(name), why, didYouMean(string(name), known, "list them: mesh-coordinator node list")), ErrUnknown)
}

// ErrUnknown is met by errors.Is when a node, module, build, operator or invitation is not known.
var ErrUnknown = errors.New("not in the records")

// Nodes are those in the mesh, by name.
func (s *Store) Nodes(ctx context.Context) ([]Node, error) {
	return nodes(ctx, s.db.Read(), nodeColumns+` WHERE removed IS NULL ORDER BY name`)
}

// Archive are the nodes that were removed, the last one first.
func (s *Store) Archive(ctx context.Context) ([]Node, error) {
	return nodes(ctx, s.db.Read(), nodeColumns+` WHERE removed IS NOT NULL ORDER BY removed DESC, id DESC`)
}

func nodes(ctx context.Context, q querier, query string) (all []Node, err error) {
	err = each(ctx, q, func(r *sql.Rows) error {
		n, err := scanNode(r)
		all = append(all, n)
		return err
	}, query)
	if err != nil {
		return nil, fmt.Errorf("read the nodes: %w", err)
	}
	return all, nil
}

// selected reads the nodes named, each once, by name. No name is an error, never "all" (PSH-11).
func selected(ctx context.Context, q querier, names []subject.Node) ([]Node, error) {
	if len(names) == 0 {
		return nil, refusal.New("an empty selection of nodes", "nothing is named, and nothing never means all", "name the nodes")
	}
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	all := make([]Node, len(names))
	for i, name := range names {
		n, err := findNode(ctx, q, name)
		if err != nil {
			return nil, err
		}
		all[i] = n
	}
	return all, nil
}

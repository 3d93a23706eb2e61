package records

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"mesh/shared/credential"
	"mesh/shared/refusal"
	"mesh/shared/subject"
)

// Role is what an operator may ask of the coordinator.
type Role string

// The roles: each may do what the one before it may.
const (
	RoleRead    Role = "viewer"   // look
	RoleOperate Role = "operator" // and change what can be undone
	RoleAdmin   Role = "admin"    // and everything else
)

// Roles are all of them.
func Roles() []Role { return []Role{RoleRead, RoleOperate, RoleAdmin} }

// Operator is a person with a bus user.
type Operator struct {
	Name string
	// Key is the public NKEY; the seed stays where it was made.
	Key     string
	Role    Role
	Made    time.Time
	Revoked time.Time // zero: in force
}

// AddOperator records a credential; it works from the next composition (MEM-4).
func (s *Store) AddOperator(ctx context.Context, by By, o Operator) error {
	return s.act(ctx, by, "add the operator "+o.Name, func(t *tx) error { return t.addOperator(o) })
}

func (t *tx) addOperator(o Operator) error {
	if err := subject.Check("operator", o.Name); err != nil {
		return err
	}
	if err := credential.CheckUserKey(o.Key); err != nil {
		return err
	}
	if !slices.Contains(Roles(), o.Role) {
		return refusal.New(fmt.Sprintf("the role %q", string(o.Role)), "there is no such role", "the roles are "+rolesText())
	}
	var n int
	if err := t.QueryRowContext(t.ctx, `SELECT count(*) FROM operator WHERE name = ? AND revoked IS NULL`, o.Name).Scan(&n); err != nil {
		return err
	}
	if n > 0 {
		return refusal.New("the operator "+o.Name, "the name is taken", "choose another, or revoke that one first")
	}
	if owner, err := t.keyOwner(o.Key); err != nil {
		return err
	} else if owner != "" {
		return refusal.New("the operator "+o.Name, "the key is that of "+owner, "make a new key")
	}
	if err := t.exec(`INSERT INTO operator (name, key, role, made) VALUES (?, ?, ?, ?)`, o.Name, o.Key, string(o.Role), t.now.UnixMilli()); err != nil {
		return err
	}
	t.touch(touch{users: true})
	return t.note("add", "operator "+o.Name+" as "+string(o.Role), "", "")
}

func rolesText() string {
	var words []string
	for _, r := range Roles() {
		words = append(words, string(r))
	}
	return strings.Join(words, ", ")
}

// keyOwner names who has this key now, or "": one key is one principal.
func (t *tx) keyOwner(key string) (string, error) {
	if key == t.s.own {
		return "the coordinator", nil // two with one key, and no user list could be made any more
	}
	all, err := texts(t.ctx, t, `
		SELECT 'node ' || name FROM node WHERE key = ?1 AND removed IS NULL
		UNION ALL SELECT 'operator ' || name FROM operator WHERE key = ?1 AND revoked IS NULL
		UNION ALL SELECT 'invitation ' || id FROM invitation WHERE key = ?1
		UNION ALL SELECT 'instance ' || module FROM instance WHERE key = ?1`, key)
	if err != nil || len(all) == 0 {
		return "", err
	}
	return all[0], nil
}

// RevokeOperator takes the credential from the next user list on. The last admin stays.
func (s *Store) RevokeOperator(ctx context.Context, by By, name string) error {
	return s.act(ctx, by, "revoke the operator "+name, func(t *tx) error {
		all, err := operators(ctx, t)
		if err != nil {
			return err
		}
		var names []string
		var found *Operator
		admins := 0
		for i, o := range all {
			if !o.Revoked.IsZero() {
				continue
			}
			names = append(names, o.Name)
			if o.Role == RoleAdmin {
				admins++
			}
			if o.Name == name {
				found = &all[i]
			}
		}
		switch {
		case found == nil:
			return refusal.New("the operator "+name, "there is none of this name", didYouMean(name, names, "there are: "+strings.Join(names, ", ")))
		case found.Role == RoleAdmin && admins == 1:
			return refusal.New("the operator "+name, "it is the last admin, and nobody could make another", "add another admin first")
		}
		t.touch(touch{users: true})
		if err := t.exec(`UPDATE operator SET revoked = ? WHERE name = ? AND revoked IS NULL`, t.now.UnixMilli(), name); err != nil {
			return err
		}
		return t.note("revoke", "operator "+name, "", "")
	})
}

// people are the operators as they were read last.
type people struct {
	changes uint64 // how often they may have changed
	known   bool
	all     []Operator
}

// Operators are all, those in force first, by name. They are read once, and again after a change: each verb asks
// who may. Nobody may change what it returned.
func (s *Store) Operators(ctx context.Context) ([]Operator, error) {
	s.mu.Lock()
	p := s.people
	s.mu.Unlock()
	if p.known {
		return p.all, nil
	}
	all, err := operators(ctx, s.db.Read())
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.people.changes == p.changes { // not changed while they were read
		s.people.known, s.people.all = true, all
	}
	return all, nil
}

func (s *Store) forgetOperators() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.people = people{changes: s.people.changes + 1}
}

func operators(ctx context.Context, q querier) (all []Operator, err error) {
	err = each(ctx, q, func(r *sql.Rows) error {
		var o Operator
		var made int64
		var revoked sql.NullInt64
		err := r.Scan(&o.Name, &o.Key, &o.Role, &made, &revoked)
		o.Made, o.Revoked = at(made), atOrZero(revoked)
		all = append(all, o)
		return err
	}, `SELECT name, key, role, made, revoked FROM operator ORDER BY revoked IS NOT NULL, name, id`)
	return all, err
}

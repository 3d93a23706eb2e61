package records

import (
	"context"
	"database/sql"
	"encoding/base32"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"mesh/shared/credential"
	"mesh/shared/refusal"
	"mesh/shared/subject"
)

// How long an invitation is good (NOD-1).
const (
	InvitationLife    = time.Hour
	InvitationLongest = 7 * 24 * time.Hour
)

// Invitation is what the records know of one; its seed is in the pasted line only.
type Invitation struct {
	ID      string
	Node    subject.Node
	Key     string
	Made    time.Time
	Expires time.Time
	Revoked time.Time // zero: not revoked
	Used    time.Time // zero: not used
	// UsedBy is the public key of the machine that used it.
	UsedBy string
}

// Invite makes an invitation for a machine that shall be called node; life 0 is InvitationLife. The
// answer holds the seed, which is kept nowhere.
func (s *Store) Invite(ctx context.Context, by By, node subject.Node, life time.Duration) (credential.Invitation, error) {
	if life == 0 {
		life = InvitationLife
	}
	if life < time.Minute || life > InvitationLongest {
		return credential.Invitation{}, refusal.Newf("an invitation", "choose a time between 1m and 168h", "it would be good for %v", life)
	}
	if _, err := subject.ParseNode(string(node)); err != nil {
		return credential.Invitation{}, err
	}
	id, seed, key, err := s.invitationKey()
	if err != nil {
		return credential.Invitation{}, err
	}
	var inv credential.Invitation
	err = s.act(ctx, by, "invite "+string(node), func(t *tx) error {
		m, err := meshRow(ctx, t)
		if err != nil {
			return err
		}
		if err := t.nameFree(node); err != nil {
			return err
		}
		expires := t.now.Add(life).UnixMilli()
		if err := t.exec(`INSERT INTO invitation (id, node, key, made, expires) VALUES (?, ?, ?, ?, ?)`,
			id, string(node), key, t.now.UnixMilli(), expires); err != nil {
			return err
		}
		inv = credential.Invitation{Format: credential.Format, Mesh: m.ID, ID: id, Node: node, Seed: seed, Expires: expires,
			Bus: credential.Bus{Addresses: m.Bus.Addresses, Pin: m.Bus.Pin}}
		t.touch(touch{users: true})
		return t.note("invite", fmt.Sprintf("node %s with invitation %s until %s", node, id, at(expires).Format(time.RFC3339)), node, "")
	})
	return inv, err
}

func (s *Store) invitationKey() (id string, seed credential.Seed, key string, err error) {
	var b [10]byte
	if _, err := io.ReadFull(s.rand, b[:]); err != nil {
		return "", "", "", fmt.Errorf("make an invitation: %w", err)
	}
	if seed, err = credential.NewUser(s.rand); err != nil {
		return "", "", "", err
	}
	key, err = seed.Public()
	return strings.ToLower(base32.StdEncoding.EncodeToString(b[:])), seed, key, err
}

func (t *tx) nameFree(node subject.Node) error {
	var enrolled int64
	err := t.QueryRowContext(t.ctx, `SELECT enrolled FROM node WHERE name = ? AND removed IS NULL`, string(node)).Scan(&enrolled)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	return refusal.Newf("the node name "+string(node), fmt.Sprintf("choose another name, or remove that one first: mesh-coordinator node remove %s", node),
		"it is taken: a machine was enrolled under it on %s", at(enrolled).Format(time.RFC3339))
}

// RevokeInvitation ends an invitation that was not used. Twice is no error.
func (s *Store) RevokeInvitation(ctx context.Context, by By, id string) error {
	return s.act(ctx, by, "revoke invitation "+id, func(t *tx) error {
		in, err := invitation(ctx, t, id)
		if err != nil {
			return err
		}
		if !in.Used.IsZero() {
			return refusal.New("the invitation "+id, fmt.Sprintf("it was used %s", in.Used.Format(time.RFC3339)),
				fmt.Sprintf("remove the machine instead: mesh-coordinator node remove %s", in.Node))
		}
		if !in.Revoked.IsZero() {
			return nil
		}
		t.touch(touch{users: true})
		if err := t.exec(`UPDATE invitation SET revoked = ? WHERE id = ?`, t.now.UnixMilli(), id); err != nil {
			return err
		}
		return t.note("revoke", "invitation "+id+" for "+string(in.Node), in.Node, "")
	})
}

// Invitations are all, the newest first.
func (s *Store) Invitations(ctx context.Context) ([]Invitation, error) {
	return invitations(ctx, s.db.Read(), ` ORDER BY made DESC, id`)
}

// InvitationOf is the one with this key; a key of none is refused.
func (s *Store) InvitationOf(ctx context.Context, key string) (Invitation, error) {
	all, err := invitations(ctx, s.db.Read(), ` WHERE key = ?`, key)
	if err != nil || len(all) > 0 && key != "" {
		return append(all, Invitation{})[0], err
	}
	return Invitation{}, fmt.Errorf("%w: %w", refusal.New("the question to be let in", "its key is of no invitation", "make an invitation: mesh-coordinator node invite <name>"), ErrUnknown)
}

func invitations(ctx context.Context, q querier, tail string, args ...any) (all []Invitation, err error) {
	err = each(ctx, q, func(r *sql.Rows) error {
		var in Invitation
		var made, expires int64
		var revoked, used sql.NullInt64
		err := r.Scan(&in.ID, &in.Node, &in.Key, &made, &expires, &revoked, &used, &in.UsedBy)
		in.Made, in.Expires, in.Revoked, in.Used = at(made), at(expires), atOrZero(revoked), atOrZero(used)
		all = append(all, in)
		return err
	}, `SELECT id, node, key, made, expires, revoked, used, used_by FROM invitation`+tail, args...)
	return all, err
}

func invitation(ctx context.Context, q querier, id string) (Invitation, error) {
	all, err := invitations(ctx, q, ` WHERE id = ?`, id)
	if err != nil {
		return Invitation{}, err
	}
	if len(all) == 0 {
		return Invitation{}, fmt.Errorf("%w: %w", refusal.New("the invitation "+id, "it is not one of this mesh", "make a new one: mesh-coordinator node invite <name>"), ErrUnknown)
	}
	return all[0], nil
}

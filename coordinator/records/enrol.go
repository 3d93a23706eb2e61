package records

import (
	"context"
	"fmt"
	"regexp"
	"time"

	"mesh/shared/credential"
	"mesh/shared/declaration"
	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/subject"
)

// EnrolAsk is an invited machine's word. Its keys were made there.
type EnrolAsk struct {
	// Invitation is the id the asker's subject names, or of the key the bus knows it by.
	Invitation string
	Key        string
	Curve      string
	MachineID  string
	// Profile is what the machine is (NOD-5), nil when not known.
	Profile *report.Profile
}

// EnrolAnswer is all a machine needs beside its own keys.
type EnrolAnswer struct {
	Mesh   string              `json:"mesh"`
	Node   subject.Node        `json:"node"`
	Signer credential.Verifier `json:"signer"`
	Bus    credential.Bus      `json:"bus"`
	// New: it was let in by this ask, and not before. Namesake: a removed node had its name.
	New      bool `json:"-"`
	Namesake bool `json:"-"`
}

var machineID = regexp.MustCompile(`^[0-9a-f]{32}$`) // machine-id(5)

// Enrol lets an invited machine in. The same machine that asks again gets the same answer, so a lost
// answer costs nothing; another one with a used invitation is refused (NOD-1). The time is the
// coordinator's: the machine's clock is not asked.
func (s *Store) Enrol(ctx context.Context, ask EnrolAsk) (EnrolAnswer, error) {
	if err := ask.check(); err != nil {
		return EnrolAnswer{}, err
	}
	// Who asks again and again, or with an invitation that is over, holds up nobody who writes.
	in, err := invitation(ctx, s.db.Read(), ask.Invitation)
	if err == nil && in.Used.IsZero() {
		err = open(in, s.clk.Now())
	}
	if err != nil {
		return EnrolAnswer{}, err
	}
	if !in.Used.IsZero() {
		return answerAgain(ctx, s.db.Read(), in, ask)
	}
	var answer EnrolAnswer
	err = s.act(ctx, By{Who: "invitation-" + ask.Invitation}, "enrol", func(t *tx) error {
		in, err := invitation(ctx, t, ask.Invitation)
		if err != nil {
			return err
		}
		if !in.Used.IsZero() {
			answer, err = answerAgain(ctx, t, in, ask)
			return err
		}
		if err := open(in, t.now); err != nil {
			return err
		}
		answer, err = t.letIn(in, ask)
		return err
	})
	if err != nil {
		return EnrolAnswer{}, err
	}
	return answer, nil
}

func (a EnrolAsk) check() error {
	if err := credential.CheckUserKey(a.Key); err != nil {
		return err
	}
	if err := credential.CheckCurveKey(a.Curve); err != nil {
		return err
	}
	if !machineID.MatchString(a.MachineID) {
		return refusal.New(fmt.Sprintf("the machine id %q", clip(a.MachineID)), "it is not 32 hex digits as /etc/machine-id holds",
			"make one on the machine: systemd-machine-id-setup")
	}
	return nil
}

// open refuses an invitation that no longer lets anybody in.
func open(in Invitation, now time.Time) error {
	do := fmt.Sprintf("make a new one: mesh-coordinator node invite %s", in.Node)
	switch {
	case !in.Revoked.IsZero():
		return refusal.New("the invitation "+in.ID, "it was revoked "+in.Revoked.Format(time.RFC3339), do)
	case !now.Before(in.Expires):
		return refusal.Newf("the invitation "+in.ID, do, "it expired %s, and it is %s here", in.Expires.Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	return nil
}

func answerAgain(ctx context.Context, q querier, in Invitation, ask EnrolAsk) (EnrolAnswer, error) {
	what, do := "the invitation "+in.ID, fmt.Sprintf("make a new one for this machine: mesh-coordinator node invite %s", in.Node)
	var answer, curve, id string
	var here bool
	if err := q.QueryRowContext(ctx, `SELECT i.answer, n.curve, n.machine_id, n.removed IS NULL FROM invitation i JOIN node n ON n.id = i.used_for WHERE i.id = ?`, in.ID).
		Scan(&answer, &curve, &id, &here); err != nil {
		return EnrolAnswer{}, err
	}
	switch {
	case in.UsedBy != ask.Key && id == ask.MachineID && here:
		return EnrolAnswer{}, refusal.Newf(what, fmt.Sprintf("if those keys are lost, remove it and invite it again: mesh-coordinator node remove %s; mesh-coordinator node invite %s", in.Node, in.Node),
			"this machine used it %s, with other keys", in.Used.Format(time.RFC3339))
	case in.UsedBy != ask.Key:
		return EnrolAnswer{}, refusal.Newf(what,
			fmt.Sprintf("make one under another name: mesh-coordinator node invite <name>; if that machine is none of yours: mesh-coordinator node remove %s", in.Node), "another machine used it %s", in.Used.Format(time.RFC3339))
	case !here:
		return EnrolAnswer{}, refusal.New(what, "the machine it let in was removed since", do)
	case curve != ask.Curve || id != ask.MachineID:
		return EnrolAnswer{}, refusal.New(what, "it was used with this bus key but another curve key or machine id", do)
	}
	var a EnrolAnswer
	err := decode(answer, &a)
	if err == nil {
		a.Namesake, err = hadName(ctx, q, in.Node)
	}
	return a, err
}

// hadName reports whether a removed node had the name.
func hadName(ctx context.Context, q querier, name subject.Node) (bool, error) {
	var n int
	err := q.QueryRowContext(ctx, `SELECT count(*) FROM node WHERE name = ? AND removed IS NOT NULL`, string(name)).Scan(&n)
	return n > 0, err
}

func (t *tx) letIn(in Invitation, ask EnrolAsk) (EnrolAnswer, error) {
	if err := t.nameFree(in.Node); err != nil {
		return EnrolAnswer{}, err
	}
	twins, err := texts(t.ctx, t, `SELECT name FROM node WHERE machine_id = ? AND removed IS NULL`, ask.MachineID)
	if err != nil {
		return EnrolAnswer{}, err
	}
	if len(twins) > 0 {
		return EnrolAnswer{}, refusal.New("the machine for "+string(in.Node), fmt.Sprintf("its machine id is that of %s, which is enrolled: a cloned image", twins[0]),
			fmt.Sprintf("give the clone its own (rm /etc/machine-id; systemd-machine-id-setup), or, if it is the same machine, mesh-coordinator node remove %s", twins[0]))
	}
	if owner, err := t.keyOwner(ask.Key); err != nil {
		return EnrolAnswer{}, err
	} else if owner != "" {
		return EnrolAnswer{}, refusal.New("the machine for "+string(in.Node), "its bus key is that of "+owner, "make new keys on the machine")
	}
	m, err := meshRow(t.ctx, t)
	if err != nil {
		return EnrolAnswer{}, err
	}
	answer := EnrolAnswer{Mesh: m.ID, Node: in.Node, Signer: m.Signer, Bus: m.Bus}
	id, err := t.insertNode(in.Node, ask)
	if err != nil {
		return EnrolAnswer{}, err
	}
	if err := t.exec(`UPDATE invitation SET used = ?, used_by = ?, used_for = ?, answer = ? WHERE id = ?`,
		t.now.UnixMilli(), ask.Key, id, encode(answer), in.ID); err != nil {
		return EnrolAnswer{}, err
	}
	answer.New = true
	if answer.Namesake, err = hadName(t.ctx, t, in.Node); err != nil {
		return EnrolAnswer{}, err
	}
	return answer, t.note("enrol", "node "+string(in.Node), in.Node, "")
}

// AddNode enrols a machine without an invitation: the one mesh begins on, at genesis (NOD-3).
func (s *Store) AddNode(ctx context.Context, by By, node subject.Node, ask EnrolAsk) (EnrolAnswer, error) {
	if _, err := subject.ParseNode(string(node)); err != nil {
		return EnrolAnswer{}, err
	}
	if err := ask.check(); err != nil {
		return EnrolAnswer{}, err
	}
	var answer EnrolAnswer
	err := s.act(ctx, by, "add node "+string(node), func(t *tx) error {
		m, err := meshRow(ctx, t)
		if err != nil {
			return err
		}
		answer = EnrolAnswer{Mesh: m.ID, Node: node, Signer: m.Signer, Bus: m.Bus}
		if n, err := findNode(ctx, t, node); err == nil && n.Key == ask.Key && n.Curve == ask.Curve && n.MachineID == ask.MachineID {
			return nil // asked again
		}
		if err := t.nameFree(node); err != nil {
			return err
		}
		if owner, err := t.keyOwner(ask.Key); err != nil {
			return err
		} else if owner != "" {
			return refusal.New("the node "+string(node), "its bus key is that of "+owner, "make new keys on the machine")
		}
		if _, err := t.insertNode(node, ask); err != nil {
			return err
		}
		return t.note("enrol", "node "+string(node), node, "")
	})
	return answer, err
}

func (t *tx) insertNode(name subject.Node, ask EnrolAsk) (int64, error) {
	res, err := t.ExecContext(t.ctx, `INSERT INTO node (name, key, curve, machine_id, enrolled, drift, tunnel, inside, admin, asleep_ok)
		VALUES (?, ?, ?, ?, ?, ?, '', '[]', ?, 0)`,
		string(name), ask.Key, ask.Curve, ask.MachineID, t.now.UnixMilli(), string(declaration.Repair), defaultAdminText)
	if err != nil {
		return 0, err
	}
	id, err := res.LastInsertId()
	if err != nil {
		return 0, err
	}
	t.after = append(t.after, func() { t.s.forget(name) }) // of a removed node of the same name
	t.touch(touch{node: name, users: true})
	if ask.Profile == nil {
		return id, nil
	}
	r := report.Report{Format: report.Format, Node: name, Profile: ask.Profile, Apply: report.Apply{Outcome: report.None}}
	return id, putReport(t.ctx, t.Tx, id, &r, t.now, Account{Outcome: report.None, Heard: t.now}, 0)
}

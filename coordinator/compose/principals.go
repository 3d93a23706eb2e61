package compose

import (
	"slices"
	"time"

	"mesh/coordinator/records"
	"mesh/shared/grant"
	"mesh/shared/subject"
)

// InvitationKept is how long after its end or use an invitation may still reach the coordinator: to get
// a lost answer again, or to hear in words why it is refused.
const InvitationKept = 24 * time.Hour

// Users are the records that the bus's user list is made of (MEM-3).
type Users struct {
	// Coordinator is the coordinator's own key.
	Coordinator string
	Nodes       []NodeUser
	Operators   []records.Operator
	Invitations []records.Invitation
	Now         time.Time
	// Rights says what a role may ask of the coordinator's seat, and whether it may upload artifacts.
	Rights Rights
	// OnNodes says what a role may ask of every machine; nil for nothing.
	OnNodes func(role records.Role) []grant.OnNode
	// Reads are the verbs of modules that change nothing: viewers may ask those, and everybody else all.
	Reads []grant.OfModule
}

// Rights derives an operator's rights from the role.
type Rights func(role records.Role) (verbs []subject.Verb, upload bool)

// NodeUser is a node with what it may fetch.
type NodeUser struct {
	Name      subject.Node
	Key       string
	Artifacts []string
}

// Principals are all who shall be on the list. Operators revoked and invitations revoked are not;
// invitations that ended or were used leave it InvitationKept later.
func Principals(u Users) []grant.Principal {
	ps := make([]grant.Principal, 0, 1+len(u.Nodes)+len(u.Operators)+len(u.Invitations))
	ps = append(ps, grant.Principal{Kind: grant.Coordinator, Name: string(grant.Coordinator), Key: u.Coordinator})
	for _, n := range u.Nodes {
		ps = append(ps, grant.Principal{Kind: grant.Node, Name: string(n.Name), Key: n.Key, Artifacts: n.Artifacts})
	}
	for _, o := range u.Operators {
		if !o.Revoked.IsZero() {
			continue
		}
		verbs, upload := u.Rights(o.Role)
		p := grant.Principal{Kind: grant.Operator, Name: o.Name, Key: o.Key, Verbs: verbs, Upload: upload}
		if o.Role == records.RoleRead {
			p.OfModules = u.Reads
		} else {
			p.EveryTool = true
		}
		if u.OnNodes != nil {
			p.OnNodes = u.OnNodes(o.Role)
		}
		ps = append(ps, p)
	}
	for _, in := range u.Invitations {
		if in.Revoked.IsZero() && u.Now.Before(leaves(in)) {
			ps = append(ps, grant.Principal{Kind: grant.Invitation, Name: in.ID, Key: in.Key})
		}
	}
	return ps
}

// leaves is when the invitation leaves the list.
func leaves(in records.Invitation) time.Time {
	if !in.Used.IsZero() {
		return in.Used.Add(InvitationKept)
	}
	return in.Expires.Add(InvitationKept)
}

// nextLeave is when the list changes by itself next; zero: never.
func nextLeave(all []records.Invitation, now time.Time) time.Time {
	var next time.Time
	for _, in := range all {
		if at := leaves(in); in.Revoked.IsZero() && now.Before(at) && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next
}

// fetchable are the digests a node may fetch: those its assignments name now, and those of its last
// declarations, which it may be applying at this moment.
func fetchable(lists ...[]string) []string {
	var all []string
	for _, l := range lists {
		all = append(all, l...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

package verbs

import (
	"cmp"
	"context"
	"slices"
	"time"

	"mesh/coordinator/records"
	"mesh/shared/controller"
)

func (s *Server) invite(ctx context.Context, who records.By, ask controller.InviteAsk) (controller.InviteAnswer, error) {
	// Bounded before it is multiplied, so that no large number comes round to a good one.
	life := time.Duration(max(-1, min(ask.ValidS, int64(records.InvitationLongest/time.Second)+1))) * time.Second
	in, err := s.cfg.Records.Invite(ctx, by(who, ask.Why), ask.Node, life)
	if err != nil {
		return controller.InviteAnswer{}, err
	}
	line, err := in.Encode()
	if err != nil {
		return controller.InviteAnswer{}, err
	}
	return controller.InviteAnswer{ID: in.ID, Line: line, Expires: in.ExpiresAt().UTC()}, s.inForce(ctx)
}

func (s *Server) invitations(ctx context.Context, _ records.By, _ controller.Nothing) (controller.InvitationsAnswer, error) {
	all, err := s.cfg.Records.Invitations(ctx)
	out := controller.InvitationsAnswer{Invitations: make([]controller.Invitation, len(all))}
	now := s.cfg.Clock.Now()
	for i, in := range all {
		out.Invitations[i] = controller.Invitation{ID: in.ID, Node: in.Node, State: invitationState(in, now), Made: in.Made, Expires: in.Expires, Used: in.Used}
	}
	// Open ones first; the records give the newest first.
	slices.SortStableFunc(out.Invitations, func(a, b controller.Invitation) int {
		return cmp.Compare(closed(a), closed(b))
	})
	out.Invitations = out.Invitations[:min(len(out.Invitations), mostListed)]
	return out, err
}

// mostListed bounds lists that only grow: an answer has to fit one message.
const mostListed = 5000

func closed(in controller.Invitation) int {
	if in.State == controller.InvitationOpen {
		return 0
	}
	return 1
}

func (s *Server) revokeInvitation(ctx context.Context, who records.By, ask controller.InvitationRevokeAsk) (controller.Done, error) {
	all, err := s.cfg.Records.Invitations(ctx)
	if err != nil {
		return controller.Done{}, err
	}
	already := slices.ContainsFunc(all, func(in records.Invitation) bool { return in.ID == ask.ID && !in.Revoked.IsZero() })
	if err := s.cfg.Records.RevokeInvitation(ctx, by(who, ask.Why), ask.ID); err != nil {
		return controller.Done{}, err
	}
	return controller.Done{Changed: !already}, s.inForce(ctx)
}

func (s *Server) issue(ctx context.Context, who records.By, ask controller.OperatorIssueAsk) (controller.OperatorIssueAnswer, error) {
	mesh, err := s.cfg.Records.Mesh(ctx)
	if err != nil {
		return controller.OperatorIssueAnswer{}, err
	}
	if err := s.cfg.Records.AddOperator(ctx, by(who, ask.Why), records.Operator{Name: ask.Name, Key: ask.Key, Role: recordRole(ask.Role)}); err != nil {
		return controller.OperatorIssueAnswer{}, err
	}
	return controller.OperatorIssueAnswer{Mesh: mesh.ID, Bus: mesh.Bus}, s.inForce(ctx)
}

func (s *Server) operators(ctx context.Context, _ records.By, _ controller.Nothing) (controller.OperatorsAnswer, error) {
	all, err := s.cfg.Records.Operators(ctx)
	out := controller.OperatorsAnswer{Operators: []controller.Person{}}
	for _, o := range all {
		if o.Revoked.IsZero() {
			out.Operators = append(out.Operators, controller.Person{Name: o.Name, Role: RoleOf(o.Role), Key: o.Key, Issued: o.Made})
		}
	}
	return out, err
}

func (s *Server) revokeOperator(ctx context.Context, who records.By, ask controller.OperatorRevokeAsk) (controller.Done, error) {
	if err := s.cfg.Records.RevokeOperator(ctx, by(who, ask.Why), ask.Name); err != nil {
		return controller.Done{}, err
	}
	return controller.Done{Changed: true}, s.inForce(ctx)
}

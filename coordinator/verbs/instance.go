package verbs

import (
	"context"
	"errors"

	"mesh/coordinator/records"
	"mesh/shared/controller"
	"mesh/shared/membership"
	"mesh/shared/refusal"
	"mesh/shared/subject"
)

// authorizeInstance names an instance that asks, and refuses one whose membership does not say so. No module
// lets machines or people in or out: who may register modules would be an admin by it.
func (s *Server) authorizeInstance(ctx context.Context, key string, v controller.Verb) (who records.By, ok bool, err error) {
	i, err := s.cfg.Records.InstanceByKey(ctx, key)
	if errors.Is(err, records.ErrUnknown) {
		return who, false, nil
	}
	if err != nil {
		return who, false, err
	}
	m, err := s.cfg.Composer.MembershipOf(ctx, i)
	if err != nil {
		return who, false, err
	}
	what := "the verb " + string(v.Name)
	if v.Least == controller.Admin {
		return who, false, refusal.Newf(what, "have a person ask it", "it takes %s, and %s is a module", v.Least, i.Label())
	}
	if m != nil && invokes(m, v.Name) {
		return records.By{Who: i.Label()}, true, nil
	}
	return who, false, refusal.Newf(what, "name it under invokes in its manifest, register and push", "%s does not say that it asks it", i.Label())
}

// invokes reports whether m says that it asks the verb of this seat.
func invokes(m *membership.Membership, v subject.Verb) bool {
	for _, a := range m.Asks {
		seat, _, verb, err := a.What.Split()
		if err == nil && seat == subject.Controller && (verb == membership.Every || verb == string(v)) {
			return true
		}
	}
	return false
}

package verbs

import (
	"context"

	"mesh/coordinator/records"
	"mesh/shared/controller"
	"mesh/shared/subject"
)

// keep has what was changed by hand stay for a while, and tells the node (APP-19).
func (s *Server) keep(ctx context.Context, who records.By, ask controller.NodeKeepAsk) (controller.NodeKeepAnswer, error) {
	n, err := s.cfg.Records.Keep(ctx, by(who, ask.Why), ask.Node, ask.Thing, ask.Until)
	if err != nil {
		return controller.NodeKeepAnswer{}, err
	}
	out := controller.NodeKeepAnswer{Keeps: keeps(n)}
	out.Push, err = s.start(ctx, by(who, ask.Why), "node "+string(ask.Node)+", to keep "+ask.Thing, []subject.Node{ask.Node})
	return out, err
}

func keeps(n records.Node) []controller.Keep {
	out := make([]controller.Keep, len(n.Keeps))
	for i, k := range n.Keeps {
		out[i] = controller.Keep{Thing: k.Thing, Until: k.Until, By: k.Who, Why: k.Why}
	}
	return out
}

package verbs

import (
	"context"

	"mesh/coordinator/records"
	"mesh/shared/controller"
	"mesh/shared/metrics"
)

// Overview is what the verb status answers, and how many nodes are in each state: for the daemon's metrics.
func (s *Server) Overview(ctx context.Context) (controller.StatusAnswer, map[controller.NodeState]int, error) {
	status, err := s.status(ctx, records.By{}, controller.Nothing{})
	if err != nil {
		return status, nil, err
	}
	nodes, err := s.all(ctx)
	if err != nil {
		return status, nil, err
	}
	states := map[controller.NodeState]int{}
	for _, state := range []controller.NodeState{controller.NodeWell, controller.NodeBehind, controller.NodeFailed, controller.NodeRefused, controller.NodeSilent, controller.NodeAsleep, controller.NodeUnknown, controller.NodeNew} {
		states[state] = 0 // a metric that comes and goes cannot be watched
	}
	for _, n := range nodes {
		states[n.State]++
	}
	return status, states, nil
}

// Metrics are the numbers of the verbs.
func (s *Server) Metrics() []metrics.Metric { return s.discovery.Metrics() }

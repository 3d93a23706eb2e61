package agent

import (
	"context"

	"mesh/agent/bans"
	"mesh/agent/exposure"
	"mesh/shared/controller"
	"mesh/shared/engine"
	"mesh/shared/report"
	"mesh/shared/verb"
)

// exposureVerb says what of this machine can be reached from outside, evaluated now (NET-14).
func (a *Agent) exposureVerb(ctx context.Context, _ verb.Caller, _ controller.Nothing) (report.Exposure, error) {
	m, err := exposure.Read(ctx, a.cfg.Root, a.declaredFilter())
	if err != nil {
		return report.Exposure{}, err
	}
	return *m.Of(), nil
}

// probeVerb tries to reach another machine, as anybody could.
func (a *Agent) probeVerb(ctx context.Context, _ verb.Caller, ask engine.ProbeAsk) (engine.ProbeAnswer, error) {
	results, err := exposure.Probe(ctx, a.cfg.Clock, ask)
	return engine.ProbeAnswer{Node: a.node, Results: results}, err
}

// bannedVerb says who is banned here (NET-11).
func (a *Agent) bannedVerb(ctx context.Context, _ verb.Caller, ask engine.BannedAsk) (engine.BannedAnswer, error) {
	out, err := bans.Read(ctx, a.cfg.Clock, ask)
	out.Node = a.node
	return out, err
}

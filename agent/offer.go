package agent

import (
	"context"

	"mesh/agent/apply"
	"mesh/agent/registry"
	"mesh/shared/declaration"
)

// offers has images of the mesh's served to the machine's engine, their blobs from the bus.
func (a *Agent) offers() apply.OfferFunc {
	r := registry.New(registry.Config{Fetch: a.link.Fetch, Clock: a.cfg.Clock, Log: a.cfg.Log})
	return func(ctx context.Context, name string, image *declaration.Image) (apply.Offer, error) {
		o, err := r.Offer(ctx, name, image)
		if err != nil {
			return nil, err
		}
		return o, nil
	}
}

package apply

import (
	"context"
	"errors"
	"sync"
	"time"

	"mesh/agent/host/engine"
	"mesh/agent/plan"
	"mesh/agent/resource"
	"mesh/shared/declaration"
	"mesh/shared/subject"
)

// Offer is an image of the mesh's that the engine can pull while it stands.
type Offer interface {
	// Reference is by what the engine pulls it.
	Reference() string
	// Err is why something of it could not be served, or nil.
	Err() error
	Close() error
}

// pullBound ends a pull that does not come to an end by itself.
const pullBound = time.Hour

// pulls are the images on their way. They go on between passes, and end with the Engine.
type pulls struct {
	mu    sync.Mutex // guards under and ended
	under map[string]*pull
	ended bool
	all   sync.WaitGroup
}

type pull struct {
	done   chan struct{}
	err    error // once done is closed
	cancel context.CancelFunc
}

// begin starts do unless it is under way for key, and returns it; nil once the Engine is closed.
func (p *pulls) begin(ctx context.Context, key string, do func(context.Context) error) *pull {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return nil
	}
	if one := p.under[key]; one != nil {
		return one
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pullBound)
	one := &pull{done: make(chan struct{}), cancel: cancel}
	if p.under == nil {
		p.under = map[string]*pull{}
	}
	p.under[key] = one
	p.all.Go(func() { // ends with the pull, which end cancels
		defer close(one.done)
		defer cancel()
		one.err = do(ctx)
	})
	return one
}

// take forgets a pull that is over, so that the next of its key is a new one.
func (p *pulls) take(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.under, key)
}

// end breaks all off and waits for them.
func (p *pulls) end() {
	p.mu.Lock()
	p.ended = true
	for _, one := range p.under {
		one.cancel()
	}
	p.mu.Unlock()
	p.all.Wait()
}

// pull brings an image, and waits for it as long as the pass waits for anything; it goes on by itself.
func (r *run) pull(ctx context.Context, box *engine.Engine, s plan.Step) (err error) {
	i := s.Want.Image
	key := i.Word()
	one := r.pulls.begin(ctx, key, func(ctx context.Context) error { return r.bring(ctx, box, s.Module, i) })
	if one == nil {
		return context.Canceled
	}
	over := false
	r.bounded(ctx, func(ctx context.Context) {
		select {
		case <-one.done:
			over = true
		case <-ctx.Done():
		}
	})
	if !over {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return &late{"image " + key + " is on its way", fetchOn, false}
	}
	r.pulls.take(key)
	return one.err
}

// bring has the engine pull the image: from the registry its name says, or from an offer of the agent's own.
func (e *Engine) bring(ctx context.Context, box *engine.Engine, module subject.Module, i *resource.Image) error {
	if i.Carried == nil {
		return box.EnsureImage(ctx, imageOf(i), "")
	}
	if there, known, err := box.HasImage(imageOf(i)); err == nil && known && there {
		return nil
	}
	if e.cfg.Offer == nil {
		return errors.New("this agent carries no images")
	}
	offer, err := e.cfg.Offer(ctx, "mesh/"+string(module)+"-"+i.Carried.Name, i.Carried)
	if err != nil {
		return err
	}
	err = box.EnsureImage(ctx, imageOf(i), offer.Reference())
	if err != nil && offer.Err() != nil { // the engine only saw that an answer broke off
		err = errors.Join(offer.Err(), err)
	}
	return errors.Join(err, offer.Close())
}

// OfferFunc makes an offer; see Config.Offer.
type OfferFunc func(ctx context.Context, name string, image *declaration.Image) (Offer, error)

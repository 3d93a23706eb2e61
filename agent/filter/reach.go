package filter

import "context"

// Reachable tries once to reach the bus over a new connection; nil without a Probe.
func (f *Filter) Reachable(ctx context.Context) error {
	if f.cfg.Probe == nil {
		return nil
	}
	return f.try(ctx)
}

// Reach confirms a change that is not the filter's own, as the filter confirms its: it tries to reach the bus
// over new connections until the window ends, and returns why it could not (NET-7).
func (f *Filter) Reach(ctx context.Context) error {
	if f.cfg.Probe == nil {
		return nil
	}
	trying, cancel := context.WithCancel(ctx)
	defer cancel()
	end := f.cfg.Clock.After(f.cfg.Window)
	result := make(chan error, 1)
	last := errWindow
	for {
		go func() { result <- f.try(trying) }() // ends with trying
		select {
		case err := <-result:
			if err == nil {
				return nil
			}
			last = err
		case <-end:
			cancel()
			if err := <-result; err == nil {
				return nil // in the last moment
			}
			return last
		}
		select {
		case <-f.cfg.Clock.After(tryEvery):
		case <-end:
			return last
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

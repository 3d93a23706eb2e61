package exposure

import "context"

// Mend is what Differences does about the containers that Lost finds.
func (w *Watch) Mend(ctx context.Context, lost []Holder) bool { return w.mend(ctx, lost) }

// Look is what Differences does first, in the agent's sandbox: who has a socket cannot be told there.
func (w *Watch) Look(ctx context.Context, m *Machine) {
	m.Held = nil
	w.look(ctx, m)
	w.looked = true
}

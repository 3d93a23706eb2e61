package exposure

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"mesh/firewall/foreign"
	"mesh/shared/clock"
	"mesh/shared/declaration"
)

// readEvery is how often everything is read although nothing has changed that can be told cheaply.
const readEvery = time.Hour

// Watch keeps what of the machine is not as declared, and evaluates it anew only when rules, links,
// listening sockets or the declaration changed. It is for one goroutine.
type Watch struct {
	// Root is where the machine's files begin.
	Root  string
	Clock clock.Clock

	signature string
	at        time.Time
	found     []string
}

// Differences are the ports that are not as declared (NET-14), each in a sentence. While no filter of
// mesh is in force there are none: then everything that listens would be one.
func (w *Watch) Differences(ctx context.Context, declared *declaration.Filter) []string {
	signature, err := signatureOf(ctx, declared)
	now := w.Clock.Now()
	if err == nil && signature == w.signature && now.Sub(w.at) < readEvery {
		return w.found
	}
	m, err := Read(ctx, w.Root, declared)
	if err != nil {
		w.signature = "" // and is tried again
		if ctx.Err() != nil {
			return w.found
		}
		return []string{"what can be reached cannot be told: " + err.Error()}
	}
	w.signature, w.at, w.found = signature, now, nil
	if m.Filtered() {
		w.found = m.Of().Differences()
	}
	return w.found
}

func signatureOf(ctx context.Context, declared *declaration.Filter) (string, error) {
	rules, err := foreign.Signature()
	if err != nil {
		return "", err
	}
	sockets, _, err := listSockets(ctx)
	if err != nil {
		return "", err
	}
	filter, err := json.Marshal(declared)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s\n", rules, filter)
	for _, s := range sockets {
		fmt.Fprintf(&b, "%d %s %d\n", s.Protocol, s.Address, s.Port)
	}
	return b.String(), nil
}

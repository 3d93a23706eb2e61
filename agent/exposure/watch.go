package exposure

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"mesh/firewall/foreign"
	"mesh/shared/clock"
	"mesh/shared/declaration"
)

// readEvery is how often everything is read although nothing has changed that can be told cheaply.
const readEvery = time.Hour

// Watch keeps what of the machine is not as declared, and evaluates it anew only when rules, links,
// listening sockets or the declaration changed. What somebody removed of the engine's rules for mesh's own
// containers it has written anew (facts/host.md §4.7). It is for one goroutine.
type Watch struct {
	// Root is where the machine's files begin.
	Root  string
	Clock clock.Clock
	// Engine finds the machine's container engine; nil for none.
	Engine func() (Engine, error)
	Log    *slog.Logger

	signature string
	at        time.Time
	found     []string
	looked    bool // once
	published bool // the engine had rules for ports of containers
	suspect   bool // and they are gone, or have never been seen
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
	w.look(ctx, m)
	if lost := m.Lost(); len(lost) > 0 && w.mend(ctx, lost) {
		if again, err := Read(ctx, w.Root, declared); err == nil {
			again.Held = m.Held
			m = again
			signature, _ = signatureOf(ctx, declared) // without one it is read again next time
			w.published, w.suspect = publishes(&m.Rules), len(m.Lost()) > 0
		}
	}
	w.looked = true
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
	for _, forwards := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		word, err := os.ReadFile("/proc/sys/net/" + forwards)
		fmt.Fprintf(&b, "%s %v\n", word, err == nil)
	}
	for _, s := range sockets {
		fmt.Fprintf(&b, "%d %s %d\n", s.Protocol, s.Address, s.Port)
	}
	return b.String(), nil
}

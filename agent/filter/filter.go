// Package filter drives the packet filter of one node: it puts the declared rules in force around the
// links found outside, confirms each change, and keeps the table as it should be.
//
// A change of rules is confirmed by reaching the bus anew within the window (30 s); otherwise the
// rules before it are restored and the change is refused (NET-7). What is under way is kept in the
// store, so an agent that dies inside the window restores when it starts. Rules confirmed once are
// put in force at boot without a window, bus or no bus. Changes of links, and repairs of a table that
// somebody else touched, need none either: the rules stay the same.
//
// A new change while the bus cannot be reached waits, since nothing could confirm it; a person at the
// machine may put it in force in so many words (Wanted.ByHand).
//
// Run owns one goroutine's worth of loop and whatever Kernel.Watch starts; Apply works in its
// caller's. Which links are outside is agent/host/link's to judge, the table firewall's to write.
package filter

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"mesh/agent/host/link"
	"mesh/firewall"
	"mesh/shared/clock"
	"mesh/shared/refusal"
	"mesh/shared/rule"
)

// Window is how long a change has to reach the bus (NET-7).
const Window = 30 * time.Second

const (
	tryFor     = 8 * time.Second       // bound of one try to reach the bus
	tryEvery   = time.Second           // between two tries
	lookEvery  = time.Minute           // at the least
	settle     = 50 * time.Millisecond // between two looks that events asked for
	brakeAfter = 3                     // repairs in a minute, then one a minute
	farewell   = 10 * time.Second      // for a restore when the agent stops
)

// kernel is what *firewall.Driver does.
type kernel interface {
	Load(context.Context, firewall.Table) error
	Differs(context.Context, firewall.Table) (string, error)
	Delete(context.Context) error
	Watch(context.Context) (<-chan firewall.Event, error)
}

// store is what *state.Store does.
type store interface {
	Meta(ctx context.Context, key string) (value []byte, ok bool, err error)
	SetMeta(ctx context.Context, key string, value []byte) error
}

// Links are the links of the machine as the filter needs them, by name.
type Links struct {
	Uplinks []string // links of a default route
	Outside []string // all that count as outside, the uplinks among them
	Bridges []string // those of Outside that are bridges
}

// ReadLinks finds the links in the network namespace of the calling thread.
func ReadLinks(ctx context.Context) (Links, error) {
	links, routes, err := link.Read(ctx)
	if err != nil {
		return Links{}, err
	}
	found := link.Outside(links, routes)
	l := Links{Uplinks: link.Uplinks(found)}
	for _, f := range found {
		l.Outside = append(l.Outside, f.Name)
		if slices.ContainsFunc(links, func(l link.Link) bool { return l.Name == f.Name && l.Kind == "bridge" }) {
			l.Bridges = append(l.Bridges, f.Name)
		}
	}
	return l, nil
}

// Config is what a Filter works with.
type Config struct {
	Kernel kernel
	Store  store
	Clock  clock.Clock
	Log    *slog.Logger
	// Links finds the links of now; ReadLinks on a machine.
	Links func(context.Context) (Links, error)
	// LinksChanged hints that they may be others; nil for none.
	LinksChanged <-chan struct{}
	// Probe reaches the bus over a new connection, since one that stands proves nothing. It returns
	// when ctx ends. Without it no change is confirmed: each is as one by hand.
	Probe func(context.Context) error
}

// Wanted is what the declaration, or a person at the machine, says the filter should be.
type Wanted struct {
	Allow  []rule.Allow // with the rules of the owner "admin"
	Tunnel []string
	// Seq numbers the declaration. Rules refused once are tried again when they come under another.
	Seq uint64
	// ByHand is a person at the machine who takes the change as confirmed.
	ByHand bool
}

// Outcome is what became of a Wanted.
type Outcome string

// The outcomes. Only after the first two is what was wanted in force.
const (
	Unchanged Outcome = "unchanged" // it was in force already
	Applied   Outcome = "applied"   // it is in force, and confirmed
	Refused   Outcome = "refused"   // what was before it is in force
	Waiting   Outcome = "waiting"   // for the bus; what was before it is in force
	Kept      Outcome = "kept"      // no uplink is known: the filter is left as it is (NET-3)
	Failed    Outcome = "failed"    // the kernel or the store said no; what was before it is in force
)

// State is what report and show say of the filter.
type State struct {
	Loaded       bool             `json:"loaded"` // as of the last look, the kernel's table is exactly ours
	Confirming   bool             `json:"confirming,omitempty"`
	Digest       string           `json:"digest,omitempty"`
	Rules        []rule.Allow     `json:"rules,omitempty"`
	Uplinks      []string         `json:"uplinks,omitempty"`
	Outside      []string         `json:"outside,omitempty"`
	Tunnel       []string         `json:"tunnel,omitempty"`
	Since        time.Time        `json:"since,omitzero"` // when these rules came into force
	LastRefusal  *refusal.Refusal `json:"refusal,omitempty"`
	Repairs      int              `json:"repairs,omitempty"` // since the agent started
	LastRepairBy string           `json:"repairs-because-of,omitempty"`
	LastDrift    string           `json:"drift,omitempty"`  // what a repair found, in a few words
	Fought       bool             `json:"fought,omitempty"` // somebody undoes the repairs: one a minute
}

// Filter is the packet filter of this node. Make it with New, call Start, then Apply and Run.
type Filter struct {
	cfg      Config
	applying chan struct{} // token: one Start, Apply or Remove at a time; memory is its
	turn     chan struct{} // token: one at a time changes the table and the fields of now
	memory   memory        // as in the store
	started  bool          // has the token applying

	// Those with the token turn write these; mu guards them for readers besides.
	mu      sync.Mutex
	links   Links
	now     firewall.Filter // what should be in force
	table   firewall.Table  // now, compiled; without a digest there is nothing to keep
	state   State
	repairs []time.Time // of the last minute
}

// New returns a Filter that has done nothing yet.
func New(cfg Config) *Filter {
	f := &Filter{cfg: cfg, applying: make(chan struct{}, 1), turn: make(chan struct{}, 1)}
	f.applying <- struct{}{}
	f.turn <- struct{}{}
	return f
}

// State is how the filter is.
func (f *Filter) State() State {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.state
	s.Rules, s.Uplinks, s.Outside, s.Tunnel = slices.Clone(s.Rules), slices.Clone(s.Uplinks), slices.Clone(s.Outside), slices.Clone(s.Tunnel)
	return s
}

// set changes the state.
func (f *Filter) set(change func(*State)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.state)
}

// take waits for a token.
func take(ctx context.Context, token chan struct{}) (give func(), err error) {
	select {
	case <-token:
		return func() { token <- struct{}{} }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// key names rules and tunnel, whatever their order.
func key(allow []rule.Allow, tunnel []string) string {
	var words []string
	for _, a := range allow {
		words = append(words, a.String())
	}
	for _, name := range tunnel {
		words = append(words, "tunnel "+name)
	}
	slices.Sort(words)
	return strings.Join(slices.Compact(words), "\n")
}

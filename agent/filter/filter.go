// Package filter drives the packet filter of one node: it puts the declared rules in force around the
// links found outside, confirms each change, and keeps the table as it should be.
//
// A change of rules is tried first: the new rules are loaded as a second table beside the one confirmed,
// so that only what both let in passes, and the bus has to be reached anew within the window (30 s). Only
// then do they take the place of the old ones; otherwise the trial ends and the change is refused (NET-7).
// The trial belongs to this process: the kernel ends it with the agent, whatever ends that. Rules confirmed
// once are put in force at a start without a window, bus or no bus, and are kept in a second place: the
// file that is loaded at boot before the network (NET-10). Changes of links, and repairs of a table that
// somebody else touched, need no window either: the rules stay the same. Nothing here takes a table away
// but Remove: what is not known is kept.
//
// A new change while the bus cannot be reached waits, since nothing could confirm it.
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
	pollEvery  = time.Second           // where others can touch the table, or the kernel's word does not come
	settle     = 50 * time.Millisecond // between two looks that events asked for
	fightPause = time.Second / 2       // between two looks after brakeAfter repairs in a minute: NET-6 gives a second
	brakeAfter = 3                     // repairs of the same in a minute
	farewell   = 10 * time.Second      // for the end of a trial when the agent stops
)

// kernel is what *firewall.Driver does.
type kernel interface {
	Load(context.Context, firewall.Table) error
	Drift(context.Context, firewall.Table) (firewall.Drift, error)
	Delete(context.Context) error
	Try(context.Context, firewall.Table) error
	Trying(context.Context) (bool, error)
	EndTrial(context.Context) error
	DropBoot(context.Context) error
	Owned() bool
	Watch(context.Context) (<-chan firewall.Event, error)
}

// store is what *state.Store does.
type store interface {
	Meta(ctx context.Context, key string) (value []byte, ok bool, err error)
	SetMeta(ctx context.Context, key string, value []byte) error
}

// boot is what boot.File does.
type boot interface {
	// Keep has table loaded at boot, and note beside it.
	Keep(table firewall.Table, note []byte) (changed bool, err error)
	// Loaded says why it would not be loaded, or nil.
	Loaded() error
	// Recall returns the note, or nil when there is none.
	Recall() (note []byte, err error)
	Remove() error
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
	// Boot is what stands at boot before the agent runs; nil for nothing.
	Boot  boot
	Clock clock.Clock
	Log   *slog.Logger
	// Links finds the links of now; ReadLinks on a machine.
	Links func(context.Context) (Links, error)
	// LinksChanged hints that they may be others; nil for none.
	LinksChanged <-chan struct{}
	// Probe reaches the bus over a new connection, since one that stands proves nothing. It returns
	// when ctx ends. Without it no change is confirmed: each counts at once.
	Probe func(context.Context) error
	// Window is how long a change has to reach the bus; 0 for the package's Window. A test has a short one.
	Window time.Duration
}

// Wanted is what the declaration says the filter should be.
type Wanted struct {
	Allow  []rule.Allow // with the rules of the owner "admin"
	Tunnel []string
	// Inside are the links a person declared inside (NET-15). The link of a default route and the tunnel
	// stay outside all the same.
	Inside []string
	// Seq numbers the declaration. Rules refused once are tried again when they come under another.
	Seq uint64
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
	NotInside    []string         `json:"not-inside,omitempty"` // declared inside, and outside all the same
	Tunnel       []string         `json:"tunnel,omitempty"`
	Since        time.Time        `json:"since,omitzero"` // when these rules came into force
	LastRefusal  *refusal.Refusal `json:"refusal,omitempty"`
	Repairs      int              `json:"repairs,omitempty"`            // since the agent started
	LastRepairBy string           `json:"repairs-because-of,omitempty"` // the process and its pid, where the kernel said
	LastDrift    string           `json:"drift,omitempty"`              // what a repair found, in a few words
	Fought       bool             `json:"fought,omitempty"`             // somebody undoes the repairs: two a second at most
	Conceded     string           `json:"conceded,omitempty"`           // what others put into the table again and again, and is left there
	BootWhy      string           `json:"boot-why,omitempty"`           // why what stands at the next boot is not this
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
	now     rules          // what should be in force
	table   firewall.Table // now around links, compiled; without a digest there is nothing to keep
	trial   *rules         // those being tried, nil for none
	state   State
	repairs map[string][]time.Time // of the last minute, by what was found
}

// rules are what a declaration says, without the links of the machine.
type rules struct {
	allow          []rule.Allow
	tunnel, inside []string
}

// New returns a Filter that has done nothing yet.
func New(cfg Config) *Filter {
	if cfg.Window == 0 {
		cfg.Window = Window
	}
	f := &Filter{cfg: cfg, repairs: map[string][]time.Time{}, applying: make(chan struct{}, 1), turn: make(chan struct{}, 1)}
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
	s.NotInside = slices.Clone(s.NotInside)
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

// key names r, whatever its order.
func (r rules) key() string {
	var words []string
	for _, a := range r.allow {
		words = append(words, a.String())
	}
	for _, name := range r.tunnel {
		words = append(words, "tunnel "+name)
	}
	for _, name := range r.inside {
		words = append(words, "inside "+name)
	}
	slices.Sort(words)
	return strings.Join(slices.Compact(words), "\n")
}

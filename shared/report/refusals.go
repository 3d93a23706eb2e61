package report

import (
	"fmt"
	"slices"
)

// The bounds of what a report says of packet filters; what is beyond them is counted.
const (
	MaxChains    = 100
	maxFrontEnds = 20
	maxNotes     = 20
	maxName      = 128
)

// Refusals are all that refuses traffic on the machine, whoever wrote it (NET-8), as it was when it last
// changed.
type Refusals struct {
	// Chains are those that can refuse a packet: what is nobody's and what is a front end's first, then what a
	// runtime, a ban or a tunnel has there, then mesh's own.
	Chains []Chain `json:"chains,omitempty"`
	// More counts chains left out.
	More int `json:"more,omitempty"`
	// FrontEnds are those found in force.
	FrontEnds []FrontEnd `json:"front_ends,omitempty"`
	// Bypass is what passes the rules by (NET-16), in words.
	Bypass []string `json:"bypass,omitempty"`
	// Legacy are the tables of legacy xtables, as "ip filter".
	Legacy []string `json:"legacy,omitempty"`
	// NotUnderstood names what was met and is not known (NET-13).
	NotUnderstood []string `json:"not_understood,omitempty"`
	// Why says why nothing could be read.
	Why string `json:"why,omitempty"`
}

// Chain is a chain that refuses.
type Chain struct {
	Family string `json:"family"`
	Table  string `json:"table"`
	Chain  string `json:"chain"`
	// Legacy: it is one of legacy xtables, which nft does not show.
	Legacy bool `json:"legacy,omitempty"`
	// Hooks are those it can be reached from.
	Hooks []string `json:"hooks,omitempty"`
	// Priority and Policy are of base chains only.
	Priority *int32 `json:"priority,omitempty"`
	Policy   string `json:"policy,omitempty"`
	// How are the ways it refuses: "policy drop", "drop", "reject", …
	How []string `json:"how,omitempty"`
	// Owner, Kind and Fate have a word for each owner, in the same order. Fate is what a converge makes of it:
	// "keep" (mesh's), "retire" (with its front end), "leave" (a runtime's, a ban, a tunnel's) or "leave and
	// name" (it stays in force, and is not mesh's).
	Owner []string `json:"owner"`
	Kind  []string `json:"kind"`
	Fate  []string `json:"fate"`
}

// The fates of Chain.Fate.
const (
	FateKeep   = "keep"
	FateRetire = "retire"
	FateLeave  = "leave"
	FateName   = "leave and name"
)

// FrontEnd is a program that fills packet filters for people (ufw, firewalld, …), found in force.
type FrontEnd struct {
	Name string `json:"name"`
	// State is how its units are: "ufw.service enabled, running".
	State string `json:"state,omitempty"`
	// How is what retires it.
	How string `json:"how,omitempty"`
	// Cannot says why a converge leaves it in force; empty: it does not.
	Cannot string `json:"cannot,omitempty"`
	// Notes are what goes with it.
	Notes []string `json:"notes,omitempty"`
}

// ConvergeState is how a converge stands.
type ConvergeState string

// The states.
const (
	Converging  ConvergeState = "converging"  // under way, or begun and to be finished
	Converged   ConvergeState = "converged"   // the front ends are retired
	Unconverged ConvergeState = "unconverged" // what was is back
	NotTaken    ConvergeState = "refused"     // it was not done, or undone; Why says why
)

// Converge is how handing the packet filter to mesh, or back, went (NET-9).
type Converge struct {
	// ID is the wish it is about; 0 is the one to go back.
	ID    int64         `json:"id"`
	State ConvergeState `json:"state"`
	// At is when it came to State, Unix milliseconds.
	At int64 `json:"at,omitempty"`
	// Retired are the front ends that are out of force now, and come back with an unconverge.
	Retired []string `json:"retired,omitempty"`
	// Left are those that were to be retired and were not, with why.
	Left []string `json:"left,omitempty"`
	// Lost is what should have been left alone and is not there any more.
	Lost []string `json:"lost,omitempty"`
	Why  string   `json:"why,omitempty"`
}

// Others are the owners that refuse traffic on a machine whose filter is mesh's, beside mesh, runtimes and
// bans: a front end that is in force, and what is nobody's.
func (r *Refusals) Others() []string {
	if r == nil {
		return nil
	}
	var all []string
	for _, c := range r.Chains {
		for i, fate := range c.Fate {
			if (fate == FateRetire || fate == FateName) && i < len(c.Owner) && !slices.Contains(all, c.Owner[i]) {
				all = append(all, c.Owner[i])
			}
		}
	}
	slices.Sort(all)
	return all
}

// shorten bounds what a node says: one node must not fill a list of many.
func (r *Refusals) shorten() {
	if r == nil {
		return
	}
	if n := len(r.Chains) - MaxChains; n > 0 {
		r.Chains, r.More = r.Chains[:MaxChains], r.More+n
	}
	for i := range r.Chains {
		c := &r.Chains[i]
		c.Family, c.Table, c.Chain, c.Policy = Cut(c.Family, maxName), Cut(c.Table, maxName), Cut(c.Chain, maxName), Cut(c.Policy, maxName)
		for _, words := range []*[]string{&c.Hooks, &c.How, &c.Owner, &c.Kind, &c.Fate} {
			*words = few(*words, maxName)
		}
	}
	r.FrontEnds = r.FrontEnds[:min(len(r.FrontEnds), maxFrontEnds)]
	for i := range r.FrontEnds {
		f := &r.FrontEnds[i]
		f.Name, f.State, f.How, f.Cannot = Cut(f.Name, maxName), Cut(f.State, maxFact), Cut(f.How, maxFact), Cut(f.Cannot, maxText)
		f.Notes = few(f.Notes, maxText)
	}
	r.Bypass, r.Legacy, r.NotUnderstood = few(r.Bypass, maxFact), few(r.Legacy, maxName), few(r.NotUnderstood, maxFact)
	r.Why = Cut(r.Why, maxText)
}

func (c *Converge) shorten() {
	if c == nil {
		return
	}
	c.Retired, c.Left, c.Lost, c.Why = few(c.Retired, maxName), few(c.Left, maxText), few(c.Lost, maxFact), Cut(c.Why, maxText)
}

// few is the first of all, each cut to n bytes, and how many more there were.
func few(all []string, n int) []string {
	if len(all) > maxNotes {
		all = append(slices.Clone(all[:maxNotes-1]), fmt.Sprintf("… and %d more", len(all)-maxNotes+1))
	}
	for i := range all {
		all[i] = Cut(all[i], n)
	}
	return all
}

// Shorten bounds r before it is sent, as the coordinator does when it takes it in.
func (r *Refusals) Shorten() { r.shorten() }

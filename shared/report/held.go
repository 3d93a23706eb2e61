package report

import (
	"fmt"
	"slices"

	"mesh/shared/subject"
)

// The bounds of what a report says of held things; what is beyond them is counted.
const (
	MaxHeld       = 50
	maxHeldFacts  = 16
	MaxDifference = 40
	maxTaken      = 50
)

// Held is a thing that a module declares, that is on the machine, and that mesh did not put there: it is left
// alone until somebody takes it (APP-9). It says what a person compares before that.
type Held struct {
	Module subject.Module `json:"module"`
	// Thing is its id: "container:web", "file:/etc/notes.conf", "unit:notes.service".
	Thing string `json:"thing"`
	// Seen tells this find from another: what is taken is what was compared.
	Seen string `json:"seen"`
	// Facts put what is there beside what is declared.
	Facts []HeldFact `json:"facts"`
	// Difference is how a text differs, a line each: "- " what is there, "+ " what is declared, "  " both. It is
	// empty for a text with a secret in it.
	Difference []string `json:"difference,omitempty"`
	// Needs is what a take needs besides the word: NeedsDowngrade or NeedsReplace; empty: nothing.
	Needs string `json:"needs,omitempty"`
	// Notes are what a take brings with it.
	Notes []string `json:"notes,omitempty"`
	// Cannot says why it cannot be taken; empty: it can.
	Cannot string `json:"cannot,omitempty"`
}

// The words of Held.Needs.
const (
	NeedsDowngrade = "downgrade" // the declared image is older than the one that runs
	NeedsReplace   = "replace"   // the content of a file differs
)

// HeldFact is one thing compared.
type HeldFact struct {
	What string `json:"what"`
	// Have is how it is on the machine, Want how it is declared; empty: it has none, or nothing is declared of it.
	Have string `json:"have,omitempty"`
	Want string `json:"want,omitempty"`
}

// TakenState is how a take, or the way back, stands on the machine.
type TakenState string

// The states.
const (
	Taking    TakenState = "taking"     // under way, or begun and to be finished
	Taken     TakenState = "taken"      // the things are mesh's, and what was is written down
	TakeNot   TakenState = "refused"    // nothing was taken, or given back; Why says why
	GivingOut TakenState = "giving"     // what was comes back
	GivenBack TakenState = "given back" // it is back
)

// Take is how the last take of a module's things, or their way back, went (APP-10, APP-18).
type Take struct {
	Module subject.Module `json:"module"`
	// ID is the word it is about.
	ID    int64      `json:"id"`
	State TakenState `json:"state"`
	// At is when it came to State, Unix milliseconds.
	At int64 `json:"at,omitempty"`
	// Things are the ids of what was taken, and comes back.
	Things []string `json:"things,omitempty"`
	Why    string   `json:"why,omitempty"`
}

// ShortenHeld bounds what r says of held and taken things before it is sent, as the coordinator does when it takes it in.
func (r *Report) ShortenHeld() { r.shortenHeld() }

// shortenHeld bounds what a node says of held and taken things.
func (r *Report) shortenHeld() {
	if n := len(r.Held) - MaxHeld; n > 0 {
		r.Held, r.MoreHeld = r.Held[:MaxHeld], r.MoreHeld+n
	}
	for i := range r.Held {
		h := &r.Held[i]
		h.Thing, h.Seen, h.Needs, h.Cannot = Cut(h.Thing, maxText), Cut(h.Seen, maxName), Cut(h.Needs, maxName), Cut(h.Cannot, maxText)
		h.Notes = few(slices.Clone(h.Notes), maxFact)
		h.Facts = slices.Clone(h.Facts[:min(len(h.Facts), maxHeldFacts)])
		for j := range h.Facts {
			f := &h.Facts[j]
			f.What, f.Have, f.Want = Cut(f.What, maxName), Cut(f.Have, maxText), Cut(f.Want, maxText)
		}
		if n := len(h.Difference); n > MaxDifference {
			h.Difference = append(h.Difference[:MaxDifference-1:MaxDifference-1], fmt.Sprintf("… and %d more lines", n-MaxDifference+1))
		}
		h.Difference = slices.Clone(h.Difference)
		for j := range h.Difference {
			h.Difference[j] = Cut(h.Difference[j], maxFact)
		}
	}
	r.Taken = r.Taken[:min(len(r.Taken), maxTaken)]
	for i := range r.Taken {
		t := &r.Taken[i]
		t.Things, t.Why = few(slices.Clone(t.Things), maxFact), Cut(t.Why, maxText)
	}
}

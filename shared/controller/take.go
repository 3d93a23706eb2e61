package controller

import (
	"time"

	"mesh/shared/report"
	"mesh/shared/subject"
)

// The verbs by which things that somebody else put on a machine become a module's, and come back (APP-9, APP-10,
// APP-18).
const (
	HeldThings subject.Verb = "held"
	Take       subject.Verb = "take"
	GiveBack   subject.Verb = "give-back"
)

// HeldAsk asks what of a module is held on a node.
type HeldAsk struct {
	Node   subject.Node   `json:"node"`
	Module subject.Module `json:"module"`
}

// HeldAnswer is what a take compares, by the report kept.
type HeldAnswer struct {
	Node     subject.Node   `json:"node"`
	Module   subject.Module `json:"module"`
	Assigned bool           `json:"assigned"`
	// ReportedAt is when the report was heard.
	ReportedAt time.Time     `json:"reported_at,omitzero"`
	Held       []report.Held `json:"held"`
	// Word is the last one, Outcome how it, or one at the machine, stands there.
	Word    *TakeWord    `json:"word,omitempty"`
	Outcome *report.Take `json:"outcome,omitempty"`
	// Other counts changes that a push to the node sends besides.
	Other int `json:"other,omitempty"`
}

// TakeWord is a person's word about things that mesh did not put on a machine.
type TakeWord struct {
	ID        int64     `json:"id"`
	At        time.Time `json:"at"`
	By        string    `json:"by"`
	Why       string    `json:"why"`
	Back      bool      `json:"back,omitempty"`
	Things    []string  `json:"things,omitempty"`
	Downgrade bool      `json:"downgrade,omitempty"`
	Replace   []string  `json:"replace,omitempty"`
}

// TakeAsk has a module take all that is held of it on a node. Things are those, by id, with HeldAnswer's seen: what
// is another since is refused. Why is required.
type TakeAsk struct {
	Node   subject.Node      `json:"node"`
	Module subject.Module    `json:"module"`
	Things map[string]string `json:"things"`
	// Downgrade allows a declared image that is older than the one that runs, Replace files with other content, by path.
	Downgrade bool     `json:"downgrade,omitempty"`
	Replace   []string `json:"replace,omitempty"`
	Why       string   `json:"why"`
}

// TakeAnswer is the word that was kept, and the push that tells the node.
type TakeAnswer struct {
	Word TakeWord `json:"word"`
	Push Push     `json:"push"`
}

// GiveBackAsk has what was taken for a module put back as it was found. The module is not assigned to the node any
// more; the push ends it there first. Why is required.
type GiveBackAsk struct {
	Node   subject.Node   `json:"node"`
	Module subject.Module `json:"module"`
	Why    string         `json:"why"`
}

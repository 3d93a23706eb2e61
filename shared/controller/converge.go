package controller

import (
	"time"

	"mesh/shared/report"
	"mesh/shared/subject"
)

// The verbs by which a machine's packet filter is handed to mesh, and back (NET-9).
const (
	NodeConvergence subject.Verb = "node-convergence"
	NodeConverge    subject.Verb = "node-converge"
	NodeUnconverge  subject.Verb = "node-unconverge"
)

// Convergence is whose a machine's packet filter is, and what a converge makes of it, by the report kept.
type Convergence struct {
	Node subject.Node `json:"node"`
	// Word is the one that handed the filter to mesh; nil: nobody's.
	Word *ConvergeWord `json:"word,omitempty"`
	// ReportedAt is when the report was heard; zero: it has not said what filters packets on it.
	ReportedAt time.Time `json:"reported_at,omitzero"`
	// Fates are of each chain that refuses, once for each of its owners.
	Fates []ChainFate `json:"fates"`
	// More counts chains that the node left out of its report.
	More int `json:"more,omitempty"`
	// FrontEnds are those in force, with what retires each, or why nothing does.
	FrontEnds []report.FrontEnd `json:"front_ends,omitempty"`
	// Retires are those that a converge retires now.
	Retires []string `json:"retires,omitempty"`
	// Others filter packets besides mesh, runtimes and bans: a machine that is converged is not well with any.
	Others []string `json:"others,omitempty"`
	// Outcome is how the last converge or unconverge stands on the machine.
	Outcome *report.Converge `json:"outcome,omitempty"`
	// Bypass, Legacy and NotUnderstood are as reported.
	Bypass        []string `json:"bypass,omitempty"`
	Legacy        []string `json:"legacy,omitempty"`
	NotUnderstood []string `json:"not_understood,omitempty"`
	// Unseen says why the rules could not be read.
	Unseen string `json:"unseen,omitempty"`
	// Other counts changes that a push to the node sends besides.
	Other int `json:"other,omitempty"`
}

// ConvergeWord is a person's word that a node's packet filter is mesh's.
type ConvergeWord struct {
	ID     int64     `json:"id"`
	At     time.Time `json:"at"`
	By     string    `json:"by"`
	Why    string    `json:"why"`
	Retire []string  `json:"retire"`
}

// ChainFate is what becomes of one owner's part in a chain that refuses.
type ChainFate struct {
	Family string `json:"family"`
	Table  string `json:"table"`
	Chain  string `json:"chain"`
	// Legacy: it is one of legacy xtables.
	Legacy bool     `json:"legacy,omitempty"`
	Hooks  []string `json:"hooks,omitempty"`
	How    []string `json:"how,omitempty"`
	Owner  string   `json:"owner"`
	Kind   string   `json:"kind"`
	// Fate is the word of report.Chain, after what the machine can do: a front end that cannot be retired is
	// left and named.
	Fate string `json:"fate"`
	// Says is Fate in a sentence.
	Says string `json:"says"`
}

// NodeConvergeAsk hands a node's packet filter to mesh: the front ends that its report names and that can be
// retired give way. Why is required.
type NodeConvergeAsk struct {
	Node subject.Node `json:"node"`
	Why  string       `json:"why"`
}

// NodeConvergeAnswer says what gives way, and the push that tells the node.
type NodeConvergeAnswer struct {
	Retire []string `json:"retire"`
	Push   Push     `json:"push"`
}

// NodeUnconvergeAsk gives a node's packet filter back to what was there. Why is required.
type NodeUnconvergeAsk struct {
	Node subject.Node `json:"node"`
	Why  string       `json:"why"`
}

// NodeUnconvergeAnswer is the push that tells the node; nil when it was not converged.
type NodeUnconvergeAnswer struct {
	Changed bool  `json:"changed"`
	Push    *Push `json:"push,omitempty"`
}

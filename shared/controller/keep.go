package controller

import (
	"time"

	"mesh/shared/subject"
)

// NodeKeep has what was changed by hand stay for a while (APP-19).
const NodeKeep subject.Verb = "node-keep"

// NodeKeepAsk keeps what was changed by hand of a thing on a node until a time; one that is past, or none, ends it.
// Why is required.
type NodeKeepAsk struct {
	Node subject.Node `json:"node"`
	// Thing is its id, as show and the reports have it: "file:/etc/notes.conf".
	Thing string    `json:"thing"`
	Until time.Time `json:"until,omitzero"`
	Why   string    `json:"why"`
}

// Keep is one thing that stays as it was changed by hand.
type Keep struct {
	Thing string    `json:"thing"`
	Until time.Time `json:"until"`
	By    string    `json:"by"`
	Why   string    `json:"why"`
}

// NodeKeepAnswer is all that is kept on the node, and the push that tells it.
type NodeKeepAnswer struct {
	Keeps []Keep `json:"keeps"`
	Push  Push   `json:"push"`
}

package controller

import (
	"time"

	"mesh/shared/subject"
)

// The events of the seat.
const (
	// NodeRunsEvent: a node runs a module with a build it did not run before (NOD-9).
	NodeRunsEvent subject.Event = "node-runs"
	// NodeRefusedEvent: a node refuses a declaration since this report.
	NodeRefusedEvent subject.Event = "node-refused"
)

// NodeRuns is the payload of NodeRunsEvent.
type NodeRuns struct {
	Node   subject.Node   `json:"node"`
	Module subject.Module `json:"module"`
	Build  string         `json:"build"`
	At     time.Time      `json:"at"`
}

// NodeRefusal is the payload of NodeRefusedEvent.
type NodeRefusal struct {
	Node subject.Node `json:"node"`
	Seq  uint64       `json:"seq"`
	Why  string       `json:"why"`
	At   time.Time    `json:"at"`
}

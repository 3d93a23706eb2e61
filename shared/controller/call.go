package controller

import (
	"encoding/json"
	"time"

	"mesh/shared/subject"
)

// The states of a call.
const (
	CallRunning   = "running"
	CallAnswered  = "answered"
	CallRefused   = "refused"
	CallFailed    = "failed"
	CallAbandoned = "abandoned"
)

// Call is one verb asked of the seat (CAL-1).
type Call struct {
	ID     string       `json:"id"`
	Caller string       `json:"caller"`
	Verb   subject.Verb `json:"verb"`
	State  string       `json:"state"`
	Began  time.Time    `json:"began"`
	// Ended is when it did; zero while it runs.
	Ended  time.Time `json:"ended,omitzero"`
	TookMS int64     `json:"took_ms,omitempty"`
	// Args are the arguments; of long ones, how long.
	Args json.RawMessage `json:"args,omitempty"`
	// Answer is the answer, the refusal, or why it failed; left out of lists, and where it is not kept.
	Answer json.RawMessage `json:"answer,omitempty"`
	// Bytes is how long the whole answer was.
	Bytes int `json:"bytes,omitempty"`
}

// CallsAsk asks for the last calls, the newest first.
type CallsAsk struct {
	// Limit is at most 1000; 0 means 50.
	Limit int `json:"limit,omitempty"`
	// Verb and Caller narrow them when not empty.
	Verb   subject.Verb `json:"verb,omitempty"`
	Caller string       `json:"caller,omitempty"`
}

// CallsAnswer is a page of them.
type CallsAnswer struct {
	Calls []Call `json:"calls"`
}

// CallShowAsk names a call.
type CallShowAsk struct {
	ID string `json:"id"`
}

// Package refusal is mesh's word to a person: what was refused, why, and what to do about it. It is
// an error value that survives the bus, so a refusal reads the same wherever it was met (design §10,
// promise 5).
package refusal

import (
	"errors"
	"fmt"
)

// Refusal says no. What names the thing refused, Why the reason with the value and its source, Do the
// way out.
type Refusal struct {
	What string `json:"refused"`
	Why  string `json:"why"`
	Do   string `json:"do"`
}

// New makes a refusal: New("pause builds on n2", "this is n1", "ask the holder on n2").
func New(what, why, do string) error { return &Refusal{What: what, Why: why, Do: do} }

// Newf is New with a formatted reason.
func Newf(what, do, why string, args ...any) error {
	return &Refusal{What: what, Why: fmt.Sprintf(why, args...), Do: do}
}

// Because is New that keeps the cause for errors.Is; its words are the refusal's alone.
func Because(cause error, what, why, do string) error {
	return &caused{Refusal{What: what, Why: why, Do: do}, cause}
}

type caused struct {
	Refusal
	cause error
}

// Unwrap gives both.
func (c *caused) Unwrap() []error { return []error{&c.Refusal, c.cause} }

// Error is the refusal in two lines.
func (r *Refusal) Error() string {
	s := "refused: " + r.What
	if r.Why != "" {
		s += ": " + r.Why
	}
	if r.Do != "" {
		s += "\ndo: " + r.Do
	}
	return s
}

// Of returns the refusal inside err, or nil.
func Of(err error) *Refusal {
	var r *Refusal
	if errors.As(err, &r) {
		return r
	}
	return nil
}

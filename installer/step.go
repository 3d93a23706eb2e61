package installer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"mesh/shared/refusal"
)

// undoBound is how long undoing may take altogether, also after an interrupt.
const undoBound = time.Minute

// Step is one act on the machine.
type Step struct {
	// What is the act, as an order: "write mesh-agent.service".
	What string
	// Reads marks a step that changes nothing; a dry run makes it too.
	Reads bool
	// Do acts, unless there is nothing to do. What it says stands in the place of What.
	Do func(ctx context.Context) (said string, err error)
	// Undo makes the machine as it was before Do, which may have failed midway or found nothing to do.
	// nil: there is nothing to undo.
	Undo func(ctx context.Context) error
	// Hint is what to look at when Do fails, before the command is run again.
	Hint string
}

// Failure is a step that failed, when that was no refusal.
type Failure struct {
	What string
	Err  error
	// Do says how to go on.
	Do string
}

// Error is the failure in two lines.
func (f *Failure) Error() string {
	return "failed: " + f.What + ": " + strings.ReplaceAll(strings.TrimSpace(f.Err.Error()), "\n", "; ") + "\ndo: " + f.Do
}

// Unwrap is what went wrong.
func (f *Failure) Unwrap() error { return f.Err }

// steps runs steps in order and says each. The first that fails ends it: what was done is undone, the
// last first.
func (i *Installer) steps(ctx context.Context, steps []Step) error {
	for n, s := range steps {
		if i.DryRun && !s.Reads {
			i.say("·", "would "+s.What)
			continue
		}
		err := ctx.Err()
		said := ""
		if err == nil {
			said, err = s.Do(ctx)
		}
		if err == nil {
			i.say("✓", firstOf(said, s.What))
			continue
		}
		i.say("✗", s.What)
		did, left := i.undo(ctx, steps[:n+1])
		return s.failed(err, did, left)
	}
	return nil
}

// undo takes back what steps did and says whether there was anything, and what could not be taken back.
func (i *Installer) undo(ctx context.Context, steps []Step) (did bool, left []string) {
	if i.DryRun {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoBound)
	defer cancel()
	for n := len(steps) - 1; n >= 0; n-- {
		s := steps[n]
		if s.Undo == nil {
			continue
		}
		did = true
		if err := s.Undo(ctx); err != nil {
			i.say("✗", "could not undo: "+s.What+": "+oneLine(err))
			left = append(left, s.What)
		}
	}
	if did && len(left) == 0 {
		i.say("✓", "undid what was done")
	}
	return did, left
}

func (s Step) failed(err error, did bool, left []string) error {
	r := refusal.Of(err)
	if r != nil && len(left) == 0 {
		return err
	}
	again := "run the same command again"
	if did {
		again = "what was done is undone; " + again
	}
	if len(left) > 0 {
		again = "this could not be undone: " + strings.Join(left, ", ") + "; run the same command again to repair it"
	}
	if r != nil {
		return refusal.New(r.What, r.Why, r.Do+"; "+again)
	}
	if errors.Is(err, context.Canceled) {
		return &Failure{s.What, errors.New("it was interrupted"), again}
	}
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		again = "make room on the disk; " + again
	case s.Hint != "":
		again = s.Hint + "; " + again
	}
	return &Failure{s.What, err, again}
}

func (i *Installer) say(mark, line string) {
	for n, l := range strings.Split(strings.TrimSpace(line), "\n") {
		if n > 0 {
			mark = " "
		}
		fmt.Fprintf(i.Say, "%s %s\n", mark, l) // nobody to tell that a terminal is gone
	}
}

func firstOf(words ...string) string {
	for _, w := range words {
		if w != "" {
			return w
		}
	}
	return ""
}

func oneLine(err error) string {
	return strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; ")
}

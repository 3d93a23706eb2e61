package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"mesh/coordinator/client"
	"mesh/shared/controller"
	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/subject"
)

// take is "mesh-coordinator take" (APP-10).
func (a *app) take() *cobra.Command {
	cmd := a.verb(controller.Take, "take <node> <module>", cobra.ExactArgs(2))
	cmd.Short = "Compare what a node holds for a module with what is declared; with --yes, take it"
	cmd.Example = "  mesh-coordinator take db1 notes\n  mesh-coordinator take db1 notes --yes --replace /etc/notes.conf --why \"mesh runs it now\""
	cmd.Long = `A thing that a module declares, that is on the machine and that mesh did not put there is held: it is left alone,
and the module waits. Show, by the node's last report, each such container, file and unit beside what is declared.
With --yes they are the module's from then on: a container is set aside, stopped, and the declared one started with
the very same volumes and folders; files and units get the declared content. What was is written down on the node,
and "give-back" puts it back. An older image takes --downgrade, a file with other content --replace.`
	sure := cmd.Flags().Bool("yes", false, "carry it out")
	downgrade := cmd.Flags().Bool("downgrade", false, "take although the declared image is older than the one that runs")
	replace := cmd.Flags().StringArray("replace", nil, "take although the `file` has other content than is declared; can be given again")
	reason := why(cmd)
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		ask, err := heldAsk(given)
		if err != nil {
			return err
		}
		if *sure && strings.TrimSpace(*reason) == "" {
			return refusal.New(fmt.Sprintf("the take for %s without a reason", ask.Module), "it is kept in the journal, for whoever looks later", `say why: --why "mesh runs it now"`)
		}
		c, err := a.connect(cmd.Context())
		if err != nil {
			return err
		}
		defer c.Close()
		found, err := client.Ask[controller.HeldAnswer](cmd.Context(), c, controller.HeldThings, ask)
		if err != nil {
			return err
		}
		if !*sure {
			return a.show(cmd, found, func() error { return writeHeld(a.out, found, a.clk.Now(), true) })
		}
		take := controller.TakeAsk{Node: ask.Node, Module: ask.Module, Things: map[string]string{}, Downgrade: *downgrade, Replace: *replace, Why: *reason}
		for _, h := range found.Held {
			take.Things[h.Thing] = h.Seen
		}
		r, err := client.Ask[controller.TakeAnswer](cmd.Context(), c, controller.Take, take)
		if err != nil {
			return err
		}
		fmt.Fprintf(a.err, "takes %s\n", strings.Join(r.Word.Things, ", "))
		return a.taken(cmd, c, ask, r)
	}
	return cmd
}

// giveBack is "mesh-coordinator give-back" (APP-18).
func (a *app) giveBack() *cobra.Command {
	cmd := a.verb(controller.GiveBack, "give-back <node> <module>", cobra.ExactArgs(2))
	cmd.Long = `Put each thing that was taken for a module on a node back as it was found: a container under its name with its
data, a unit with its text, enabled and started as it was, a file with its content, mode, owner and attributes. The
module must not be assigned to the node any more, or its things would be held again at once: unassign it first; the
one push that this makes ends it there and puts the rest back.`
	reason := why(cmd)
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		ask, err := heldAsk(given)
		if err != nil {
			return err
		}
		c, err := a.connect(cmd.Context())
		if err != nil {
			return err
		}
		defer c.Close()
		r, err := client.Ask[controller.TakeAnswer](cmd.Context(), c, controller.GiveBack, controller.GiveBackAsk{Node: ask.Node, Module: ask.Module, Why: *reason})
		if err != nil {
			return err
		}
		return a.taken(cmd, c, ask, r)
	}
	return cmd
}

func heldAsk(given []string) (ask controller.HeldAsk, err error) {
	if ask.Node, err = subject.ParseNode(given[0]); err == nil {
		ask.Module, err = subject.ParseModule(given[1])
	}
	return ask, err
}

// outcomeEvery is how often the node's word about a take is looked for.
const outcomeEvery = 500 * time.Millisecond

// taken waits for the push that tells the node, and for what the node says of the word, and shows it.
func (a *app) taken(cmd *cobra.Command, c *client.Client, ask controller.HeldAsk, r controller.TakeAnswer) error {
	p := progress{w: a.err, fancy: a.fancy, states: map[subject.Node]controller.PushState{}}
	last, err := c.Watch(cmd.Context(), r.Push, handWait, p.news)
	p.end()
	if err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("push %s goes on without this command, see mesh-coordinator push show %s: %w", r.Push.ID, r.Push.ID, err)
	}
	found, err := a.spoken(cmd.Context(), c, ask, r.Word.ID)
	if err != nil {
		return err
	}
	err = a.show(cmd, struct {
		controller.HeldAnswer
		Push controller.Push `json:"push"`
	}{found, last}, func() error {
		if err := writePush(a.out, last); err != nil {
			return err
		}
		return writeHeld(a.out, found, a.clk.Now(), false)
	})
	switch o := found.Outcome; {
	case err != nil:
		return err
	case o == nil || o.ID != r.Word.ID || o.State == report.Taking || o.State == report.GivingOut:
		fmt.Fprintf(a.err, "not over yet; it goes on by itself: mesh-coordinator take %s %s\n", ask.Node, ask.Module)
		return errUnknown
	case o.State == report.TakeNot, last.Counts[controller.PushFailed]+last.Counts[controller.PushRefused] > 0:
		return errNotWell
	}
	return nil
}

// spoken waits until the node has said how the word went.
func (a *app) spoken(ctx context.Context, c *client.Client, ask controller.HeldAsk, word int64) (controller.HeldAnswer, error) {
	end := a.clk.Now().Add(handWait)
	for {
		found, err := client.Ask[controller.HeldAnswer](ctx, c, controller.HeldThings, ask)
		if err != nil {
			return found, err
		}
		if o := found.Outcome; o != nil && o.ID == word && o.State != report.Taking && o.State != report.GivingOut || a.clk.Now().After(end) {
			return found, nil
		}
		select {
		case <-ctx.Done():
			return found, ctx.Err()
		case <-a.clk.After(outcomeEvery):
		}
	}
}

// writeHeld prints what a node holds for a module; preview says how to take it.
func writeHeld(w io.Writer, r controller.HeldAnswer, now time.Time, preview bool) error {
	pairs := []string{"node", string(r.Node), "module", string(r.Module), "assigned", map[bool]string{true: "yes", false: "no"}[r.Assigned]}
	if x := r.Word; x != nil {
		what := "take " + strings.Join(x.Things, ", ")
		if x.Back {
			what = "give back"
		}
		pairs = append(pairs, "last word", fmt.Sprintf("%s, %s by %s: %s", what, since(now, x.At), x.By, x.Why))
	}
	pairs = append(pairs, "on it", takeOutcome(r.Outcome, now), "as of", "nothing was reported yet")
	if !r.ReportedAt.IsZero() {
		pairs[len(pairs)-1] = "its report, heard " + since(now, r.ReportedAt)
	}
	if preview && r.Other > 0 {
		pairs = append(pairs, "note", fmt.Sprintf("a push sends %s besides: mesh-coordinator plan %s", plural(r.Other, "other change"), r.Node))
	}
	if err := facts(w, pairs...); err != nil {
		return err
	}
	for _, h := range r.Held {
		if err := writeThing(w, h); err != nil {
			return err
		}
	}
	if !preview {
		return nil
	}
	if len(r.Held) == 0 {
		_, err := fmt.Fprintln(w, "nothing is held")
		return err
	}
	_, err := fmt.Fprintf(w, "\nnothing was taken; take it with: mesh-coordinator take %s %s --yes%s --why …\n", r.Node, r.Module, flagsFor(r.Held))
	return err
}

// flagsFor are what a take of these things takes besides.
func flagsFor(held []report.Held) (flags string) {
	for _, h := range held {
		switch h.Needs {
		case report.NeedsDowngrade:
			flags += " --downgrade"
		case report.NeedsReplace:
			flags += " --replace " + strings.TrimPrefix(h.Thing, "file:")
		}
	}
	return flags
}

func takeOutcome(o *report.Take, now time.Time) string {
	if o == nil {
		return ""
	}
	text := string(o.State)
	if o.At > 0 {
		text += ", " + since(now, time.UnixMilli(o.At))
	}
	if len(o.Things) > 0 {
		text += ": " + strings.Join(o.Things, ", ")
	}
	if o.Why != "" {
		text += "; " + o.Why
	}
	return text
}

// writeThing prints one held thing beside what is declared.
func writeThing(w io.Writer, h report.Held) error {
	rows := make([][]string, 0, len(h.Facts))
	for _, f := range h.Facts {
		rows = append(rows, []string{f.What, or(f.Have, "-"), or(f.Want, "-")})
	}
	if _, err := fmt.Fprintf(w, "\n%s\n", printable(h.Thing)); err != nil {
		return err
	}
	if err := table(w, "WHAT | ON THE MACHINE | DECLARED", rows); err != nil {
		return err
	}
	for _, l := range h.Difference {
		if _, err := fmt.Fprintln(w, "  "+printable(l)); err != nil {
			return err
		}
	}
	words := append([]string{}, h.Notes...)
	switch h.Needs {
	case report.NeedsDowngrade:
		words = append(words, "the declared image is older: taking it needs --downgrade")
	case report.NeedsReplace:
		words = append(words, "its content differs: taking it needs --replace "+strings.TrimPrefix(h.Thing, "file:"))
	}
	if h.Cannot != "" {
		words = append(words, "it cannot be taken: "+h.Cannot)
	}
	for _, x := range words {
		if _, err := fmt.Fprintf(w, "note: %s\n", oneLine(x)); err != nil {
			return err
		}
	}
	return nil
}

// heldOn prints what a node holds, a line a thing (APP-9).
func heldOn(w io.Writer, r *report.Report) error {
	if r == nil || len(r.Held) == 0 {
		return nil
	}
	rows := make([][]string, 0, len(r.Held))
	for _, h := range r.Held {
		var differs []string
		for _, f := range h.Facts {
			if f.Want != "" && f.Have != f.Want {
				differs = append(differs, f.What+" "+or(f.Have, "none"))
			}
		}
		rows = append(rows, []string{h.Thing, string(h.Module), or(strings.Join(differs, "; "), "its text differs"), or(h.Cannot, "mesh-coordinator take "+string(r.Node)+" "+string(h.Module))})
	}
	if err := table(w, "HELD | FOR | DIFFERS | TAKE IT", rows); err != nil {
		return err
	}
	if r.MoreHeld > 0 {
		_, err := fmt.Fprintf(w, "and %d more\n", r.MoreHeld)
		return err
	}
	return nil
}

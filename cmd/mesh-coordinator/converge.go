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

// handWait is how long a converge or unconverge is waited for: the programs of front ends, the window of 30 s
// to reach the bus, and the way back when it is not.
const handWait = 3 * time.Minute

func (a *app) nodeConverge() *cobra.Command {
	cmd := a.verb(controller.NodeConvergence, "converge <node>", cobra.ExactArgs(1))
	cmd.Short = "Show what filters packets on a node and what becomes of each; with --yes, hand it to mesh"
	cmd.Example = "  mesh-coordinator node converge db1\n  mesh-coordinator node converge db1 --yes --why \"mesh filters here\""
	cmd.Long = `Show, by the node's last report, which chains refuse traffic, whose they are and what a converge makes of
each: retired with its front end, left as a runtime's, left as a ban, or left in force and not mesh's. With
--yes the front ends are retired: mesh's own filter is in force and confirmed first, the node reaches the bus
anew within 30 s or all is put back, then it reads the rules again. "node unconverge" puts back what was.
With --yes it exits 1 when something that is neither mesh's, a runtime's nor a ban still filters.`
	sure := cmd.Flags().Bool("yes", false, "carry it out")
	reason := why(cmd)
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		n, err := subject.ParseNode(given[0])
		if err != nil {
			return err
		}
		if *sure && strings.TrimSpace(*reason) == "" {
			return refusal.New("converge "+string(n)+" without a reason", "it is kept in the journal, for whoever looks later", `say why: --why "mesh filters here"`)
		}
		c, err := a.connect(cmd.Context())
		if err != nil {
			return err
		}
		defer c.Close()
		if !*sure {
			r, err := client.Ask[controller.Convergence](cmd.Context(), c, controller.NodeConvergence, controller.NodeAsk{Node: n})
			if err != nil {
				return err
			}
			return a.show(cmd, r, func() error { return writeConvergence(a.out, r, a.clk.Now(), true) })
		}
		r, err := client.Ask[controller.NodeConvergeAnswer](cmd.Context(), c, controller.NodeConverge, controller.NodeConvergeAsk{Node: n, Why: *reason})
		if err != nil {
			return err
		}
		fmt.Fprintf(a.err, "retires %s\n", or(strings.Join(r.Retire, ", "), "nothing"))
		return a.handed(cmd, c, n, r.Push)
	}
	return cmd
}

func (a *app) nodeUnconverge() *cobra.Command {
	cmd := a.verb(controller.NodeUnconverge, "unconverge <node>", cobra.ExactArgs(1))
	cmd.Long = `Put back the front ends that a converge retired, as they were. mesh's own filter stays in force beside them:
what comes from outside has to pass both. The node reaches the bus anew within 30 s, or they are retired again.`
	reason := why(cmd)
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		n, err := subject.ParseNode(given[0])
		if err != nil {
			return err
		}
		c, err := a.connect(cmd.Context())
		if err != nil {
			return err
		}
		defer c.Close()
		r, err := client.Ask[controller.NodeUnconvergeAnswer](cmd.Context(), c, controller.NodeUnconverge, controller.NodeUnconvergeAsk{Node: n, Why: *reason})
		if err != nil {
			return err
		}
		if !r.Changed {
			return a.show(cmd, r, func() error { _, err := fmt.Fprintln(a.out, "it was not converged"); return err })
		}
		return a.handed(cmd, c, n, *r.Push)
	}
	return cmd
}

// handed waits for the push that tells the node, then shows what filters packets there.
func (a *app) handed(cmd *cobra.Command, c *client.Client, n subject.Node, first controller.Push) error {
	p := progress{w: a.err, fancy: a.fancy, states: map[subject.Node]controller.PushState{}}
	last, err := c.Watch(cmd.Context(), first, handWait, p.news)
	p.end()
	if err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("push %s goes on without this command, see mesh-coordinator push show %s: %w", first.ID, first.ID, err)
	}
	r, err := client.Ask[controller.Convergence](cmd.Context(), c, controller.NodeConvergence, controller.NodeAsk{Node: n})
	if err != nil {
		return err
	}
	err = a.show(cmd, struct {
		controller.Convergence
		Push controller.Push `json:"push"`
	}{r, last}, func() error {
		if err := writePush(a.out, last); err != nil {
			return err
		}
		return writeConvergence(a.out, r, a.clk.Now(), false)
	})
	switch {
	case err != nil:
		return err
	case last.Counts[controller.PushFailed]+last.Counts[controller.PushRefused] > 0:
		return errNotWell
	case !last.Done:
		fmt.Fprintf(a.err, "not heard of yet; it goes on: mesh-coordinator push show %s --wait 2m\n", last.ID)
		return errUnknown
	case r.Word != nil && len(r.Others) > 0, r.Outcome != nil && len(r.Outcome.Lost) > 0:
		return errNotWell
	}
	return nil
}

// writeConvergence prints what filters packets on a node; preview says what is still to be done.
func writeConvergence(w io.Writer, r controller.Convergence, now time.Time, preview bool) error {
	pairs := []string{"node", string(r.Node), "converged", "no"}
	if r.Word != nil {
		pairs[3] = fmt.Sprintf("%s by %s: %s", since(now, r.Word.At), r.Word.By, r.Word.Why)
	}
	pairs = append(pairs, "on it", outcome(r.Outcome, now), "as of", "nothing was reported yet")
	if !r.ReportedAt.IsZero() {
		pairs[len(pairs)-1] = "its report, heard " + since(now, r.ReportedAt)
	}
	if o := r.Outcome; o != nil {
		for _, left := range o.Left {
			pairs = append(pairs, "not retired", left)
		}
		for _, lost := range o.Lost {
			pairs = append(pairs, "lost", lost)
		}
	}
	pairs = append(pairs, "unseen", r.Unseen)
	for _, n := range r.NotUnderstood {
		pairs = append(pairs, "not understood", n)
	}
	for _, b := range r.Bypass {
		pairs = append(pairs, "passes by", b)
	}
	if preview && r.Other > 0 {
		pairs = append(pairs, "note", fmt.Sprintf("a push sends %s besides: mesh-coordinator plan %s", plural(r.Other, "other change"), r.Node))
	}
	if err := facts(w, pairs...); err != nil {
		return err
	}
	if err := writeFates(w, r); err != nil {
		return err
	}
	if err := writeFrontEnds(w, r.FrontEnds); err != nil {
		return err
	}
	if !preview || r.ReportedAt.IsZero() {
		return nil
	}
	what := "nothing would be retired"
	if len(r.Retires) > 0 {
		what = "would be retired: " + strings.Join(r.Retires, ", ")
	}
	_, err := fmt.Fprintf(w, "%s; carry it out with: mesh-coordinator node converge %s --yes --why …\n", what, r.Node)
	return err
}

// outcome is how the last converge stands on the machine.
func outcome(o *report.Converge, now time.Time) string {
	if o == nil {
		return ""
	}
	text := string(o.State)
	if o.At > 0 {
		text += ", " + since(now, time.UnixMilli(o.At))
	}
	if len(o.Retired) > 0 {
		text += "; retired: " + strings.Join(o.Retired, ", ")
	}
	if o.Why != "" {
		text += "; " + o.Why
	}
	return text
}

func writeFates(w io.Writer, r controller.Convergence) error {
	if len(r.Fates) == 0 {
		return nil
	}
	rows := make([][]string, 0, len(r.Fates))
	for _, f := range r.Fates {
		name := f.Family + " " + f.Table
		if f.Legacy {
			name += " (legacy)"
		}
		rows = append(rows, []string{name, f.Chain, strings.Join(f.Hooks, ", "), strings.Join(f.How, ", "), f.Owner, f.Says})
	}
	if err := table(w, "TABLE | CHAIN | HOOKS | HOW | OWNER | WHAT BECOMES OF IT", rows); err != nil {
		return err
	}
	if r.More > 0 {
		_, err := fmt.Fprintf(w, "and %s more; on the machine: sudo mesh-agent firewall read\n", plural(r.More, "chain"))
		return err
	}
	return nil
}

func writeFrontEnds(w io.Writer, all []report.FrontEnd) error {
	if len(all) == 0 {
		return nil
	}
	rows := make([][]string, 0, len(all))
	for _, f := range all {
		how := f.How
		if f.Cannot != "" {
			how = "stays: " + f.Cannot
		}
		rows = append(rows, []string{f.Name, f.State, how, strings.Join(f.Notes, "; ")})
	}
	return table(w, "FRONT END | IS | HOW IT IS RETIRED | NOTE", rows)
}

// refusals prints which chains refuse traffic on a node, whoever wrote them (NET-8).
func refusals(w io.Writer, r *report.Refusals) error {
	if r == nil || len(r.Chains) == 0 {
		return nil
	}
	rows := make([][]string, 0, len(r.Chains))
	for _, c := range r.Chains {
		name := c.Family + " " + c.Table
		if c.Legacy {
			name += " (legacy)"
		}
		priority := ""
		if c.Priority != nil {
			priority = fmt.Sprint(*c.Priority)
		}
		rows = append(rows, []string{name, c.Chain, strings.Join(c.Hooks, ", "), priority, or(c.Policy, "-"), strings.Join(c.How, ", "), strings.Join(c.Owner, ", "), strings.Join(c.Fate, ", ")})
	}
	if err := table(w, "REFUSES | CHAIN | HOOKS | PRIORITY | POLICY | HOW | OWNER | FATE", rows); err != nil {
		return err
	}
	if r.More > 0 {
		_, err := fmt.Fprintf(w, "and %s more\n", plural(r.More, "chain"))
		return err
	}
	return nil
}

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
	"mesh/shared/subject"
)

func (a *app) plan() *cobra.Command {
	return asking(a, a.verb(controller.Plan, "plan [<node>…]", cobra.ArbitraryArgs), controller.Plan,
		func(given []string) (any, error) {
			nodes, err := nodesOf(given)
			return controller.PlanAsk{Nodes: nodes}, err
		},
		func(r controller.PlanAnswer) error { return writePlan(a.out, r) })
}

func writePlan(w io.Writer, r controller.PlanAnswer) error {
	var rows [][]string
	for _, n := range r.Nodes {
		if n.Refused != nil {
			rows = append(rows, []string{string(n.Node), "-", "refused", n.Refused.What + ": " + n.Refused.Why + "; " + n.Refused.Do})
		}
		last := ""
		for _, c := range n.Changes {
			why := c.Why
			if why != "" && why == last {
				why = asAbove
			}
			last = c.Why
			rows = append(rows, []string{string(n.Node), or(string(c.Module), "-"), change(c), why})
		}
		if n.Unsent {
			rows = append(rows, []string{string(n.Node), "-", "send", fmt.Sprintf("declaration %d never reached the bus", n.Seq)})
		}
		for _, note := range n.Notes {
			rows = append(rows, []string{string(n.Node), "-", "note", note})
		}
	}
	if len(rows) > 0 {
		if err := table(w, "NODE | MODULE | CHANGE | WHY", rows); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "%s to change, %d unchanged\n", plural(changing(r)+r.More, "node"), r.Unchanged)
	return err
}

// asAbove stands for the reason of the row above of the same node: one act often makes several changes.
const asAbove = "as above"

// change is one change in words.
func change(c controller.PlanChange) string {
	switch {
	case strings.HasPrefix(c.What, "secret ") && c.From != "" && c.To != "": // what it is sealed as tells nobody anything
		return c.What + ": another value"
	case c.What == "module" && c.From == "":
		return "add " + c.To
	case c.What == "module" && c.To == "":
		return "remove " + c.From
	case c.From == "" && c.To == "":
		return c.What
	case c.From == "":
		return c.What + ": " + c.To
	case c.To == "":
		return c.What + ": no more " + c.From
	}
	return c.What + ": " + c.From + " -> " + c.To
}

func changing(r controller.PlanAnswer) (n int) {
	for _, p := range r.Nodes {
		if len(p.Changes) > 0 || p.Unsent {
			n++
		}
	}
	return n
}

func (a *app) push() *cobra.Command {
	cmd := a.verb(controller.PushSend, "push <node>… | --all | --behind", cobra.ArbitraryArgs)
	cmd.Long = "Send declarations, and show each report as it arrives. Exits 0 when every node applied its own, 1 when one refused or failed, 2 when one was not heard in time."
	all := cmd.Flags().Bool("all", false, "every node")
	behind := cmd.Flags().Bool("behind", false, "the nodes whose records changed since they were sent to, or that have not applied what they were sent")
	prune := cmd.Flags().Bool("prune", false, "have the strays removed that these nodes name (node show): units, networks and containers of mesh's that nothing declares")
	wait := cmd.Flags().Duration("wait", 2*time.Minute, "how long to wait for the reports; 0 returns at once")
	reason := why(cmd)
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		nodes, err := nodesOf(given)
		if err != nil {
			return err
		}
		if strings.TrimSpace(*reason) == "" {
			return refusal.New("a push without a reason", "it is kept in the journal, for whoever looks later", `say why: --why "new greeting"`)
		}
		c, err := a.connect(cmd.Context())
		if err != nil {
			return err
		}
		defer c.Close()
		first, err := client.Ask[controller.Push](cmd.Context(), c, controller.PushSend, controller.PushAsk{Nodes: nodes, All: *all, Behind: *behind, Prune: *prune, Why: *reason})
		if err != nil {
			return err
		}
		return a.follow(cmd, c, first, *wait)
	}
	cmd.AddCommand(a.pushShow())
	return cmd
}

func (a *app) pushShow() *cobra.Command {
	cmd := a.verb(controller.PushShow, "show <push>", cobra.ExactArgs(1))
	wait := cmd.Flags().Duration("wait", 0, "how long to wait for the reports")
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		c, err := a.connect(cmd.Context())
		if err != nil {
			return err
		}
		defer c.Close()
		first, err := client.Ask[controller.Push](cmd.Context(), c, controller.PushShow, controller.PushShowAsk{ID: given[0]})
		if err != nil {
			return err
		}
		return a.follow(cmd, c, first, *wait)
	}
	return cmd
}

// follow waits for a push and prints how it went.
func (a *app) follow(cmd *cobra.Command, c *client.Client, first controller.Push, wait time.Duration) error {
	p := progress{w: a.err, fancy: a.fancy, states: map[subject.Node]controller.PushState{}}
	last, err := c.Watch(cmd.Context(), first, wait, p.news)
	p.end()
	if err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("push %s goes on without this command, see mesh-coordinator push show %s: %w", first.ID, first.ID, err)
	}
	if err := a.show(cmd, last, func() error { return writePush(a.out, last) }); err != nil {
		return err
	}
	switch {
	case last.Counts[controller.PushFailed]+last.Counts[controller.PushRefused] > 0:
		return errNotWell
	case !last.Done && wait > 0:
		fmt.Fprintf(a.err, "not heard of all; it goes on: mesh-coordinator push show %s --wait 2m\n", last.ID)
		return errUnknown
	}
	return nil
}

func writePush(w io.Writer, p controller.Push) error {
	rows := make([][]string, 0, len(p.Nodes))
	for _, n := range p.Nodes {
		why := n.Note
		if n.Why != nil {
			why = n.Why.What + ": " + n.Why.Why + "; " + n.Why.Do
		}
		took := ""
		if n.TookMS > 0 {
			took = (time.Duration(n.TookMS) * time.Millisecond).String()
		}
		rows = append(rows, []string{string(n.Node), string(n.State), fmt.Sprint(n.Seq), took, why})
	}
	if err := table(w, "NODE | STATE | SEQ | TOOK | WHY", rows); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "push %s: %s\n", p.ID, counts(p))
	return err
}

// counts says the states that occur, trouble first.
func counts(p controller.Push) string {
	text := ""
	for _, s := range []controller.PushState{controller.PushRefused, controller.PushFailed, controller.PushWaiting, controller.PushSent, controller.PushHeard, controller.PushApplied} {
		if n := p.Counts[s]; n > 0 {
			if text != "" {
				text += ", "
			}
			text += fmt.Sprintf("%d %s", n, s)
		}
	}
	return or(text, "no nodes")
}

// progress says how a push goes: one line that changes on a terminal, else a line when a node is done.
type progress struct {
	w      io.Writer
	fancy  bool
	states map[subject.Node]controller.PushState
}

// manyNodes is from how many nodes on plain progress counts instead of naming each.
const manyNodes = 50

func (p *progress) news(push controller.Push) {
	if p.fancy {
		fmt.Fprintf(p.w, "\r\033[Kpush %s: %s", push.ID, counts(push))
		return
	}
	total := 0
	for _, n := range push.Counts {
		total += n
	}
	if total > manyNodes {
		fmt.Fprintf(p.w, "push %s: %s\n", push.ID, counts(push))
		return
	}
	for _, n := range push.Nodes {
		if p.states[n.Node] != n.State {
			p.states[n.Node] = n.State
			fmt.Fprintf(p.w, "%s: %s\n", n.Node, n.State)
		}
	}
}

func (p *progress) end() {
	if p.fancy {
		fmt.Fprint(p.w, "\r\033[K")
	}
}

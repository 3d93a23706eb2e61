package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"mesh/shared/controller"
	"mesh/shared/subject"
)

func (a *app) status() *cobra.Command {
	cmd := a.verb(controller.Status, "status", cobra.NoArgs)
	cmd.Long = "How the mesh is. Exits 0 when all is well, 1 when something is not, 2 when it cannot be told."
	return asking(a, cmd, controller.Status, nothing, func(s controller.StatusAnswer) error {
		err := writeStatus(a.out, s)
		if err == nil && !s.Well {
			err = errNotWell
		}
		return err
	})
}

func writeStatus(w io.Writer, s controller.StatusAnswer) error {
	how := "all well"
	if !s.Well {
		how = "not well: " + plural(len(s.Problems), "problem")
	}
	fmt.Fprintf(w, "%s: %s\n", s.Name, how)
	if len(s.Problems) > 0 {
		rows := make([][]string, 0, len(s.Problems))
		for _, p := range s.Problems {
			rows = append(rows, []string{or(string(p.Node), "-"), p.What, p.Show})
		}
		if err := table(w, "NODE | PROBLEM | LOOK CLOSER", rows); err != nil {
			return err
		}
	}
	if len(s.Notes) > 0 {
		rows := make([][]string, 0, len(s.Notes))
		for _, p := range s.Notes {
			rows = append(rows, []string{or(string(p.Node), "-"), p.What, p.Show})
		}
		if err := table(w, "NODE | NO PROBLEM | LOOK CLOSER", rows); err != nil {
			return err
		}
	}
	c := s.Counts
	fmt.Fprintf(w, "%s: %d well, %d behind, %d not heard, %d failed", plural(c.Nodes, "node"), c.Well, c.Behind, c.Silent, c.Failed)
	if c.New > 0 {
		fmt.Fprintf(w, ", %d new", c.New)
	}
	if rest := c.Nodes - c.Well - c.Behind - c.New - c.Silent - c.Failed; rest > 0 { // no trouble, but nobody should look for them among the well
		fmt.Fprintf(w, ", %d asleep", rest)
	}
	fmt.Fprintln(w)
	fmt.Fprintf(w, "%s, %s, %s, %s open\n", plural(c.Modules, "module"), plural(c.Assignments, "assignment"), plural(c.Operators, "operator"), plural(c.Invitations, "invitation"))
	_, err := fmt.Fprintf(w, "bus at %s, coordinator %s, as of %s (%d ms)\n", strings.Join(s.Bus, ", "), s.Version, s.At.UTC().Format(time.RFC3339), s.TookMS)
	return err
}

func (a *app) changes() *cobra.Command {
	cmd := a.verb(controller.Changes, "changes", cobra.NoArgs)
	limit := cmd.Flags().Int("limit", 50, "how many, at most 1000")
	node := cmd.Flags().String("node", "", "only what concerns this node")
	module := cmd.Flags().String("module", "", "only what concerns this module")
	return asking(a, cmd, controller.Changes,
		func([]string) (any, error) {
			return controller.ChangesAsk{Limit: *limit, Node: subject.Node(*node), Module: subject.Module(*module)}, nil
		},
		func(r controller.ChangesAnswer) error { return writeChanges(a.out, r, a.clk.Now()) })
}

func writeChanges(w io.Writer, r controller.ChangesAnswer, now time.Time) error {
	rows := make([][]string, 0, len(r.Changes))
	for _, c := range r.Changes {
		rows = append(rows, []string{fmt.Sprint(c.ID), ago(now, c.At), c.Who, c.What, c.Object, c.Why})
	}
	return table(w, "ID | AGO | WHO | DID | TO | WHY", rows)
}

func (a *app) seat() *cobra.Command {
	list := a.verb(controller.Seats, "list", cobra.NoArgs)
	asking(a, list, controller.Seats, nothing, func(r controller.SeatsAnswer) error { return writeSeats(a.out, r) })
	return group("seat", "The seats and who holds them", "mesh-coordinator seat list", list)
}

func writeSeats(w io.Writer, r controller.SeatsAnswer) error {
	rows := make([][]string, 0, len(r.Seats))
	for _, s := range r.Seats {
		rows = append(rows, []string{string(s.Name), s.Scope, or(s.Holder, "nobody"), fmt.Sprint(len(s.Verbs)), s.Description})
	}
	return table(w, "SEAT | SCOPE | HOLDER | VERBS | WHAT FOR", rows)
}

func (a *app) tool() *cobra.Command {
	list := a.verb(controller.Tools, "list", cobra.NoArgs)
	asking(a, list, controller.Tools, nothing, func(r controller.ToolsAnswer) error { return writeTools(a.out, r) })
	return group("tool", "The verbs that can be asked", "mesh-coordinator tool list --json", list)
}

func writeTools(w io.Writer, r controller.ToolsAnswer) error {
	rows := make([][]string, 0, len(r.Tools))
	for _, t := range r.Tools {
		rows = append(rows, []string{holder(t), string(t.Verb), string(t.Level), string(t.Role), t.Description})
	}
	return table(w, "SEAT OR MODULE | VERB | LEVEL | ROLE | WHAT IT DOES", rows)
}

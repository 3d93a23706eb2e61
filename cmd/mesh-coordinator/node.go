package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"mesh/shared/controller"
	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/subject"
)

func (a *app) node() *cobra.Command {
	return group("node", "The machines of the mesh", "mesh-coordinator node list",
		a.nodeList(), a.nodeShow(), a.nodeInvite(), a.nodeInvitations(), a.nodeRevoke(), a.nodeRemove(), a.nodeSet(), a.nodeConverge(), a.nodeUnconverge(), a.nodeKeep(), a.nodeApplyNow(), a.nodeRestart(), a.nodeAsk())
}

func (a *app) nodeList() *cobra.Command {
	return asking(a, a.verb(controller.Nodes, "list", cobra.NoArgs), controller.Nodes, nothing,
		func(r controller.NodesAnswer) error {
			a.none(len(r.Nodes), "no machine is enrolled; let one in: mesh-coordinator node invite <name>")
			return writeNodes(a.out, r, a.clk.Now())
		})
}

func writeNodes(w io.Writer, r controller.NodesAnswer, now time.Time) error {
	rows := make([][]string, 0, len(r.Nodes))
	for _, n := range r.Nodes {
		rows = append(rows, []string{string(n.Name), string(n.State), ago(now, n.Seen), fmt.Sprintf("%d/%d", n.Applied, n.Sent), fmt.Sprint(n.Modules), or(n.Agent, "not reported"), n.Why})
	}
	return table(w, "NODE | STATE | SEEN | SEQ | MODULES | AGENT | WHY", rows)
}

func (a *app) nodeShow() *cobra.Command {
	return asking(a, a.verb(controller.NodeShow, "show <node>", cobra.ExactArgs(1)), controller.NodeShow,
		func(given []string) (any, error) {
			n, err := subject.ParseNode(given[0])
			return controller.NodeAsk{Node: n}, err
		},
		func(r controller.NodeAnswer) error { return writeNode(a.out, r, a.clk.Now()) })
}

// facts prints "name: value" lines, aligned.
func facts(w io.Writer, pairs ...string) error {
	rows := make([][]string, 0, len(pairs)/2)
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			rows = append(rows, []string{pairs[i] + ":", pairs[i+1]})
		}
	}
	width := 0
	for _, r := range rows {
		width = max(width, len(r[0]))
	}
	for _, r := range rows {
		if _, err := fmt.Fprintf(w, "%-*s  %s\n", width, r[0], oneLine(r[1])); err != nil {
			return err
		}
	}
	return nil
}

func writeNode(w io.Writer, n controller.NodeAnswer, now time.Time) error {
	sent := fmt.Sprintf("declaration %d", n.Sent)
	if n.Sent == 0 {
		sent = "nothing yet"
	}
	apply := "nothing was reported yet"
	switch {
	case n.Report != nil && n.Applied == 0:
		apply = "nothing yet, reported " + since(now, n.ReportedAt)
	case n.Report != nil:
		apply = fmt.Sprintf("declaration %d %s, reported %s", n.Applied, n.Outcome, since(now, n.ReportedAt))
	}
	offset := ""
	if n.ClockOffsetMS != 0 {
		offset = fmt.Sprintf("%v off", time.Duration(n.ClockOffsetMS)*time.Millisecond)
	}
	pairs := []string{
		"node", string(n.Name), "state", string(n.State), "why", n.Why,
		"seen", ago(now, n.Seen), "sent", sent, "applied", apply,
		"agent", or(n.Agent, "not reported"), "clock", offset, "enrolled", n.Enrolled.UTC().Format(time.DateOnly),
		"drift", string(n.Settings.Drift), "may sleep", yes(n.Settings.AsleepOK), "admin", strings.Join(n.Settings.Admin, "; "), "tunnel", n.Settings.Tunnel, "inside", strings.Join(n.Settings.Inside, ", "),
	}
	if p := n.Profile; p != nil {
		pairs = append(pairs, "machine", machine(p))
	} else {
		pairs = append(pairs, "machine", "not reported")
	}
	if r := n.Report; r != nil {
		pairs = append(pairs, "uplinks", or(strings.Join(r.Uplinks, ", "), "none"), "free disk", size(r.FreeDisk))
	}
	if c := n.Settings.Converge; c != nil {
		pairs = append(pairs, "converged", fmt.Sprintf("%s by %s: %s", since(now, c.At), c.By, c.Why))
	}
	if r := n.Report; r != nil {
		pairs = append(pairs, "hand-over", outcome(r.Converge, now))
		if r.Refusals != nil {
			pairs = append(pairs, "unseen", r.Refusals.Why, "not understood", strings.Join(r.Refusals.NotUnderstood, "; "))
		}
	}
	if r := n.Report; r != nil {
		for _, difference := range r.Exposed {
			pairs = append(pairs, "exposed", difference)
		}
	}
	if r := n.Report; r != nil {
		for _, t := range r.Taken {
			pairs = append(pairs, "took", string(t.Module)+": "+takeOutcome(&t, now))
		}
	}
	if r := n.Report; r != nil {
		for _, s := range r.Strays {
			pairs = append(pairs, "stray", s+": nothing declares it; mesh-coordinator push "+string(n.Name)+" --prune removes it")
		}
	}
	for _, note := range n.Notes {
		pairs = append(pairs, "note", note)
	}
	if err := facts(w, pairs...); err != nil {
		return err
	}
	if n.Report != nil {
		if err := refusals(w, n.Report.Refusals); err != nil {
			return err
		}
	}
	if err := heldOn(w, n.Report); err != nil {
		return err
	}
	if len(n.Assigned) == 0 {
		return nil
	}
	rows := make([][]string, 0, len(n.Assigned))
	for _, m := range n.Assigned {
		rows = append(rows, []string{string(m.Module), or(string(m.State), "not reported"), or(m.Runs, "-"), or(m.Sent, "-"), m.Build, m.Detail})
	}
	if err := table(w, "MODULE | STATE | RUNS | SENT | NEWEST | DETAIL", rows); err != nil {
		return err
	}
	return lastWords(w, n.Assigned)
}

// lastWords prints what builds that did not get well said last.
func lastWords(w io.Writer, all []controller.Assigned) error {
	for _, m := range all {
		if m.Log == "" {
			continue
		}
		if _, err := fmt.Fprintf(w, "\nwhat %s said last before it failed\n", m.Module); err != nil {
			return err
		}
		for line := range strings.Lines(m.Log) {
			if _, err := fmt.Fprintf(w, "  %s\n", strings.TrimRight(line, "\n")); err != nil {
				return err
			}
		}
	}
	return nil
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return ""
}

func machine(p *report.Profile) string {
	return strings.Join(strings.Fields(strings.Join([]string{p.OS, p.OSVersion, p.Arch, p.Kernel, p.Virtualization}, " ")), ", ")
}

func (a *app) nodeInvite() *cobra.Command {
	cmd := a.verb(controller.NodeInvite, "invite <node>", cobra.ExactArgs(1))
	cmd.Long = "Make an invitation: one line to paste on the machine after \"mesh-installer enrol\". It lets in one machine, once."
	valid := cmd.Flags().Duration("valid", time.Hour, "how long it is good for, at most 168h")
	reason := why(cmd)
	return asking(a, cmd, controller.NodeInvite,
		func(given []string) (any, error) {
			n, err := subject.ParseNode(given[0])
			return controller.InviteAsk{Node: n, ValidS: int64(valid.Seconds()), Why: *reason}, err
		},
		func(r controller.InviteAnswer) error {
			fmt.Fprintf(a.err, "invitation %s is good for %s; on the machine, as root: mesh-installer enrol <line>\n", r.ID, left(a.clk.Now(), r.Expires))
			_, err := fmt.Fprintln(a.out, r.Line)
			return err
		})
}

func (a *app) nodeInvitations() *cobra.Command {
	return asking(a, a.verb(controller.Invitations, "invitations", cobra.NoArgs), controller.Invitations, nothing,
		func(r controller.InvitationsAnswer) error {
			a.none(len(r.Invitations), "there is none; make one: mesh-coordinator node invite <name>")
			return writeInvitations(a.out, r, a.clk.Now())
		})
}

func writeInvitations(w io.Writer, r controller.InvitationsAnswer, now time.Time) error {
	rows := make([][]string, 0, len(r.Invitations))
	for _, i := range r.Invitations {
		ends := "-"
		if i.State == controller.InvitationOpen {
			ends = "in " + left(now, i.Expires)
		}
		rows = append(rows, []string{i.ID, string(i.Node), string(i.State), ago(now, i.Made), ends})
	}
	return table(w, "INVITATION | NODE | STATE | MADE | ENDS", rows)
}

func (a *app) nodeRevoke() *cobra.Command {
	cmd := a.verb(controller.InvitationRevoke, "revoke <invitation>", cobra.ExactArgs(1))
	reason := why(cmd)
	return asking(a, cmd, controller.InvitationRevoke,
		func(given []string) (any, error) {
			return controller.InvitationRevokeAsk{ID: given[0], Why: *reason}, nil
		},
		a.done("revoked", "it was revoked already"))
}

func (a *app) nodeRemove() *cobra.Command {
	cmd := a.verb(controller.NodeRemove, "remove <node>", cobra.ExactArgs(1))
	reason := why(cmd)
	return asking(a, cmd, controller.NodeRemove,
		func(given []string) (any, error) {
			n, err := subject.ParseNode(given[0])
			return controller.NodeRemoveAsk{Node: n, Why: *reason}, err
		},
		a.done("removed; on the machine itself: mesh-installer leave", "it was removed already"))
}

func (a *app) nodeSet() *cobra.Command {
	cmd := a.verb(controller.NodeSet, "set <node> <key>=<value>…", cobra.MinimumNArgs(2))
	cmd.Long = `Set how a node is treated:
  drift=repair|report     what was changed by hand is put right, or only reported
  asleep-ok               it is not called silent (asleep-ok=no takes that back)
  admin="22/tcp from anywhere; 2222/tcp from 192.0.2.0/24"
                          the way in for people, which no filter of mesh closes (admin=none for none)
  tunnel=wg0              the overlay link to the other machines (tunnel= for what the machine reports)
  inside=lan0,lan1        links that are inside: what comes over them is not filtered (inside= for none)`
	lock := cmd.Flags().Bool("yes-lock-ssh", false, "let admin leave out 22/tcp: SSH listens elsewhere, or nobody shall come in by it")
	reason := why(cmd)
	return asking(a, cmd, controller.NodeSet,
		func(given []string) (any, error) {
			n, err := subject.ParseNode(given[0])
			if err != nil {
				return nil, err
			}
			ask := controller.NodeSetAsk{Node: n, Set: map[string]string{}, LockSSH: *lock, Why: *reason}
			for _, pair := range given[1:] {
				k, v, ok := strings.Cut(pair, "=")
				if !ok {
					if k != "asleep-ok" {
						return nil, refusal.New("the setting "+pair, "it has no value", "write it as "+k+"=<value>")
					}
					v = "yes"
				}
				ask.Set[k] = v
			}
			return ask, nil
		},
		func(r controller.NodeSetAnswer) error {
			said := "written down; what the machine has to know reaches it with the next push"
			if !r.Changed {
				said = "it was so already"
			}
			fmt.Fprintln(a.err, said)
			s := r.Settings
			return facts(a.out, "drift", string(s.Drift), "may sleep", or(yes(s.AsleepOK), "no"), "admin", strings.Join(s.Admin, "; "), "tunnel", or(s.Tunnel, "as reported"), "inside", strings.Join(s.Inside, ", "))
		})
}

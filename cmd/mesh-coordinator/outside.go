package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"mesh/coordinator/client"
	"mesh/shared/controller"
	"mesh/shared/engine"
	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/subject"
)

// exposed is what is known of a machine's exposure: declared and let in by what it says itself, reached by
// what another one found (NET-14).
type exposed struct {
	Node     subject.Node    `json:"node"`
	Exposure report.Exposure `json:"exposure"`
	// From is the machine that tried; empty: none did, and Untried says why.
	From    subject.Node `json:"from,omitempty"`
	Untried string       `json:"untried,omitempty"`
	// Reached is by link and port, as "eth0 22/tcp": "yes", or why not.
	Reached map[string]string `json:"reached,omitempty"`
	// Differences are all that does not agree.
	Differences []string `json:"differences"`
}

// exposure is "mesh-coordinator exposure".
func (a *app) exposure() *cobra.Command {
	cmd := a.onNode(engine.Exposure, "exposure <node>", cobra.ExactArgs(1))
	cmd.Long = `What of a machine can be reached from outside, for each uplink and the tunnel: what is declared, what its kernel
would let in, and what another machine really reaches by TCP. The last one is --from, or one that is well.
Exits 1 when the three do not agree.`
	from := cmd.Flags().String("from", "", "the machine that tries; \"none\" for nobody")
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
		x := exposed{Node: n}
		if x.Exposure, err = client.AskNode[report.Exposure](cmd.Context(), c, subject.NodeEngine, engine.Exposure, n, controller.Nothing{}); err != nil {
			return err
		}
		report.Clean(&x.Exposure) // the machine may be in somebody else's hands
		x.Exposure.Shorten()
		if err := x.try(cmd.Context(), c, *from); err != nil {
			return err
		}
		x.Differences = slices.Concat([]string{}, x.Exposure.Differences(), x.disagreements())
		err = a.show(cmd, x, func() error { return writeExposure(a.out, x) })
		if err == nil && len(x.Differences) > 0 {
			err = errNotWell
		}
		return err
	}
	return cmd
}

// try has another machine try to reach the ports. That none can is no failure of the command.
func (x *exposed) try(ctx context.Context, c *client.Client, from string) error {
	targets, keys := x.targets()
	switch {
	case from == "none":
		x.Untried = "nobody was asked to"
		return nil
	case len(targets) == 0:
		x.Untried = "there is nothing to try by TCP"
		return nil
	case from != "":
		n, err := subject.ParseNode(from)
		if err != nil {
			return err
		}
		if n == x.Node {
			return refusal.New("the probe from "+from, "it is the machine itself", "name another one, or none")
		}
		x.From = n
	default:
		nodes, err := client.Ask[controller.NodesAnswer](ctx, c, controller.Nodes, controller.Nothing{})
		if err != nil {
			return err
		}
		i := slices.IndexFunc(nodes.Nodes, func(n controller.Node) bool { return n.Name != x.Node && n.State == controller.NodeWell })
		if i < 0 {
			x.Untried = "no other machine is well"
			return nil
		}
		x.From = nodes.Nodes[i].Name
	}
	got, err := client.AskNode[engine.ProbeAnswer](ctx, c, subject.NodeEngine, engine.Probe, x.From, engine.ProbeAsk{Targets: targets})
	if err != nil {
		if from != "" || ctx.Err() != nil {
			return err
		}
		x.Untried, x.From = fmt.Sprintf("%s could not be asked: %s", x.From, oneLine(err.Error())), ""
		return nil
	}
	report.Clean(&got)
	x.Reached = map[string]string{}
	for i, r := range got.Results {
		if i >= len(keys) {
			break
		}
		said := or(report.Cut(r.Why, maxWhy), "no")
		if r.Reached {
			said = "yes"
		}
		if x.Reached[keys[i]] != "yes" { // by one of its addresses is enough
			x.Reached[keys[i]] = said
		}
	}
	return nil
}

// targets are the TCP ports at each address of a link, with the key of each in Reached. Tunnels are tried
// from other machines too: they are who uses them.
func (x *exposed) targets() (targets, keys []string) {
	for _, l := range x.Exposure.Links {
		for _, p := range l.Ports {
			number, tcp := strings.CutSuffix(p.Port, "/tcp")
			number, _, _ = strings.Cut(number, "-") // the first of a range stands for it
			if !tcp {
				continue
			}
			for _, address := range l.Addresses {
				six := strings.Contains(address, ":")
				if p.Family == "ip" && six || p.Family == "ip6" && !six || len(targets) == engine.MostProbes {
					continue
				}
				targets = append(targets, net.JoinHostPort(address, number))
				keys = append(keys, reachedKey(l, p))
			}
		}
	}
	return targets, keys
}

// maxWhy bounds what a machine says of one try, in bytes.
const maxWhy = 200

func reachedKey(l report.ExposedLink, p report.ExposedPort) string {
	return strings.TrimSpace(l.Name + " " + p.Port + " " + p.Family)
}

// disagreements are where what was reached is not what the kernel is said to do.
func (x *exposed) disagreements() (all []string) {
	for _, l := range x.Exposure.Links {
		for _, p := range l.Ports {
			said, tried := x.Reached[reachedKey(l, p)]
			there := len(p.Programs) > 0 || p.To != ""
			switch {
			case !tried:
			case said == "yes" && p.Kernel == report.PortRefused:
				all = append(all, fmt.Sprintf("%s over %s: %s reaches it, although its rules refuse it", p.Port, l.Name, x.From))
			case said != "yes" && p.Kernel == report.PortOpen && p.From == "" && there:
				all = append(all, fmt.Sprintf("%s over %s: open there, and %s does not reach it (%s): something on the way refuses it", p.Port, l.Name, x.From, said))
			}
		}
	}
	return all
}

func writeExposure(w io.Writer, x exposed) error {
	e := x.Exposure
	if e.Why != "" {
		_, err := fmt.Fprintf(w, "%s: it cannot be told: %s\n", x.Node, e.Why)
		return err
	}
	if !e.Filtered {
		fmt.Fprintf(w, "%s: no packet filter of mesh is in force there\n", x.Node)
	}
	for _, l := range e.Links {
		fmt.Fprintf(w, "%s%s, %s\n", l.Name, map[bool]string{true: " (tunnel)"}[l.Tunnel], strings.Join(l.Addresses, ", "))
		columns, rows := report.Columns, l.Rows()
		if x.From != "" {
			columns += " | REACHED FROM " + strings.ToUpper(string(x.From))
			for i := range rows {
				rows[i] = append(rows[i], or(x.Reached[reachedKey(l, l.Ports[i])], "-"))
			}
		}
		if err := table(w, columns, rows); err != nil {
			return err
		}
	}
	if e.More > 0 {
		fmt.Fprintf(w, "and %d more ports\n", e.More)
	}
	if x.Untried != "" {
		fmt.Fprintf(w, "not tried from another machine: %s\n", x.Untried)
	}
	for _, d := range x.Differences {
		if _, err := fmt.Fprintf(w, "! %s\n", d); err != nil {
			return err
		}
	}
	return nil
}

// bans is "mesh-coordinator bans": who is banned on a machine (NET-11).
func (a *app) bans() *cobra.Command {
	line := engine.Prevention()[0]
	cmd := &cobra.Command{Use: "bans <node> [address...]", Short: line.Description, Example: "  " + line.Example + "\n  mesh-coordinator bans db1 198.51.100.7", Args: cobra.MinimumNArgs(1)}
	a.clientFlags(cmd)
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
		answer, err := client.AskNode[engine.BannedAnswer](cmd.Context(), c, subject.NodePrevention, engine.Banned, n, engine.BannedAsk{Addresses: given[1:]})
		if err != nil {
			return err
		}
		report.Clean(&answer)
		return a.show(cmd, answer, func() error { return writeBans(a.out, answer, a.clk.Now()) })
	}
	return cmd
}

func writeBans(w io.Writer, answer engine.BannedAnswer, now time.Time) error {
	if len(answer.Bans) == 0 {
		_, err := fmt.Fprintf(w, "%s bans nobody of those asked for; it bans in %s\n", answer.Node, plural(len(answer.Jails), "jail"))
		return err
	}
	rows := make([][]string, 0, len(answer.Bans))
	for _, b := range answer.Bans {
		since, left := "-", "-"
		if b.SinceMS > 0 {
			since = now.Sub(time.UnixMilli(b.SinceMS)).Round(time.Second).String() + " ago"
		}
		if b.UntilMS > 0 {
			left = time.UnixMilli(b.UntilMS).Sub(now).Round(time.Second).String()
		}
		where := b.Where
		if b.Idle != "" {
			where += " (refuses nobody: " + b.Idle + ")"
		}
		rows = append(rows, []string{b.Address, b.Tool, or(b.Jail, "-"), since, left, where})
	}
	if err := table(w, "ADDRESS | TOOL | JAIL | SINCE | LEFT | WHERE", rows); err != nil {
		return err
	}
	if answer.More > 0 {
		_, err := fmt.Fprintf(w, "and %d more\n", answer.More)
		return err
	}
	return nil
}

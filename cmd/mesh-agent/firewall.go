package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"mesh/agent/filter"
	"mesh/firewall"
	"mesh/firewall/foreign"
	"mesh/shared/declaration"
	"mesh/shared/refusal"
	"mesh/shared/rule"
	"mesh/shared/strict"
)

// firewallCommand is "mesh-agent firewall": the packet filter without the daemon, in whatever network
// namespace it is run.
func firewallCommand(at *places) *cobra.Command {
	cmd := &cobra.Command{
		Use: "firewall", Short: "Read every packet filter rule set here, or write mesh's as text", Args: cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		Example: "  mesh-agent firewall read\n  mesh-agent firewall render --declaration declaration.json | nft -c -f -",
	}
	cmd.AddCommand(firewallReadCommand(at), firewallRenderCommand(), firewallGiveBackCommand(at), firewallEndCommand())
	return cmd
}

func firewallReadCommand(at *places) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "read", Short: "Say what refuses traffic here, whose it is, and what a converge makes of it", Args: cobra.NoArgs,
		Long: `Say which chains refuse traffic in this network namespace, whoever wrote them (NET-8): nftables,
iptables over nftables, and legacy xtables. It changes nothing and needs no daemon, but root.`,
		Example: "  sudo mesh-agent firewall read\n  sudo mesh-agent firewall read --json | jq '.refusing[].owner'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			rs, err := foreign.Read(cmd.Context())
			if err != nil {
				return err
			}
			rs.Served = foreign.Served(at.root)
			r := foreign.Judge(rs)
			if asJSON {
				return encode(cmd.OutOrStdout(), r)
			}
			return printForeign(cmd.OutOrStdout(), r)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// printForeign prints r for a person.
func printForeign(w io.Writer, r foreign.Report) error {
	var b bytes.Buffer
	tab := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	all := append(append([]foreign.Refusing{}, r.Refusing...), r.Legacy...)
	if len(all) == 0 {
		fmt.Fprintf(tab, "nothing refuses traffic here (%d tables)\n", len(r.Tables)+len(r.LegacyTables))
	} else {
		fmt.Fprintln(tab, "TABLE\tCHAIN\tHOOKS\tPRIORITY\tHOW\tOWNER\tFATE")
	}
	for _, c := range all {
		table := c.Family + " " + c.Table
		if c.XTables != "" {
			table += " (legacy)"
		}
		priority := ""
		if c.Priority != nil {
			priority = fmt.Sprint(*c.Priority)
		}
		fmt.Fprintf(tab, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", table, c.Chain, strings.Join(c.Hooks, ", "), priority,
			strings.Join(c.How, ", "), owners(c), strings.Join(c.Fate, "; "))
	}
	for i, h := range r.Held {
		if i == 0 {
			fmt.Fprintln(tab, "\nholds refusals, but does not refuse")
		}
		fmt.Fprintf(tab, "%s %s\t%s\t%s\t%s\n", h.Family, h.Table, h.Chain, strings.Join(h.Owner, ", "), h.Why)
	}
	for i, x := range r.Bypass {
		if i == 0 {
			fmt.Fprintln(tab, "\npasses the rules by")
		}
		fmt.Fprintf(tab, "%s\t%s\t%s\n", x.What, x.Name, x.Why)
	}
	for i, n := range r.NotUnderstood {
		if i == 0 {
			fmt.Fprintln(tab, "\nnot understood")
		}
		fmt.Fprintln(tab, n)
	}
	if err := tab.Flush(); err != nil {
		return err
	}
	_, err := b.WriteTo(w)
	return err
}

func owners(c foreign.Refusing) string {
	words := make([]string, len(c.Owner))
	for i, o := range c.Owner {
		words[i] = o
		if c.Kind[i] != o {
			words[i] += " (" + c.Kind[i] + ")"
		}
	}
	return strings.Join(words, ", ")
}

func firewallRenderCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "render --declaration FILE", Short: "Write the table a declaration makes here, as nft reads it", Args: cobra.NoArgs,
		Long: `Write the table that a declaration makes around the uplinks of this network namespace, as text for nft.
The file is a declaration as it travels or as "mesh-agent show declaration" prints it, - for standard input;
its signature is not looked at, and nothing is loaded.`,
		Example: "  mesh-agent show declaration | mesh-agent firewall render --declaration - | nft -c -f -",
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := readWhole(cmd.InOrStdin(), file)
			if err != nil {
				return err
			}
			want, err := filterIn(text)
			if err != nil {
				return err
			}
			return render(cmd.Context(), cmd.OutOrStdout(), want)
		},
	}
	cmd.Flags().StringVar(&file, "declaration", "", "the file of the declaration, - for standard input")
	_ = cmd.MarkFlagRequired("declaration") // the flag is there
	return cmd
}

func readWhole(in io.Reader, file string) ([]byte, error) {
	if file != "-" {
		return os.ReadFile(file)
	}
	return io.ReadAll(io.LimitReader(in, declaration.MaxSize+1))
}

// filterIn finds the packet filter in a declaration, signed or not.
func filterIn(text []byte) (*declaration.Filter, error) {
	if !bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		_, text, _ = bytes.Cut(text, []byte{'\n'}) // who signed it
	}
	var d declaration.Declaration
	if err := strict.Decode(text, &d); err != nil {
		return nil, refusal.New("render the packet filter", err.Error(), `hand in a declaration, as "mesh-agent show declaration" prints it`)
	}
	if d.Filter == nil {
		return nil, refusal.New("render the packet filter", "the declaration says nothing of one, so the machine keeps the filter it has",
			"converge the node first, or hand in another declaration")
	}
	return d.Filter, nil
}

// noUplink stands for the uplink of a namespace without one. A name of hardware is always outside, so
// the table is the one that any card would be met with.
const noUplink = "eth0"

func render(ctx context.Context, w io.Writer, want *declaration.Filter) error {
	links, err := filter.ReadLinks(ctx)
	if err != nil {
		return err
	}
	wanted := filter.Wanted{Allow: want.Allow, Inside: want.Inside}
	if want.Tunnel != "" {
		wanted.Tunnel = []string{want.Tunnel}
	}
	head := ""
	if len(links.Outside) == 0 {
		links.Outside = []string{noUplink}
		head = "# no uplink here: outside are the names that hardware comes under\n"
	}
	table, err := filter.Compile(wanted, links)
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, head+table.Text())
	return err
}

// firewallEndCommand is "mesh-agent firewall end": a withdrawn rule bites at once.
func firewallEndCommand() *cobra.Command {
	return &cobra.Command{
		Use: "end RULE...", Short: "End the flows under way of rules that were withdrawn", Args: cobra.MinimumNArgs(1),
		Long: `Have the kernel forget the flows that came in under these rules. A withdrawn rule lets nothing new in, but
flows under way live on; forgotten, their next packet meets the rules as they are now. One that another rule
lets in goes on.`,
		Example: "  sudo mesh-agent firewall end '8080/tcp from anywhere' 'gre from 192.0.2.0/24'",
		RunE: func(cmd *cobra.Command, args []string) error {
			withdrawn := make([]rule.Allow, len(args))
			for i, words := range args {
				var err error
				if withdrawn[i], err = rule.ParseAllow(words); err != nil {
					return err
				}
			}
			ended, err := firewall.EndFlows(cmd.Context(), withdrawn)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%d flows ended\n", ended)
			return err
		},
	}
}

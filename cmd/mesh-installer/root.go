package main

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"mesh/installer"
	"mesh/shared/refusal"
	"mesh/shared/version"
)

// app is what the commands stand on.
type app struct {
	in       io.Reader
	out, err io.Writer
	machine  installer.Machine
	// self is the folder of this program.
	self string
	// started is set once flags and arguments were understood: an error before is wrong usage.
	started bool

	from   string
	dryRun bool
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use: "mesh-installer", Short: "Bring mesh to this machine, or take it away",
		Long: `Bring mesh to this machine, or take it away.

Every command says its steps on standard error. Run again, it repairs what is not in order and leaves
the rest alone. When it fails it undoes what it did and says how to go on.`,
		Version:      version.String(),
		SilenceUsage: true, SilenceErrors: true,
		PersistentPreRun: func(*cobra.Command, []string) { a.started = true },
		Args:             cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		Example: "  mesh-installer genesis --address 192.0.2.1\n  mesh-installer enrol <invitation>\n  mesh-installer leave --dry-run",
	}
	root.AddCommand(a.genesis(), a.enrol(), a.leave())
	return root
}

func (a *app) installer() *installer.Installer {
	return &installer.Installer{Machine: a.machine, From: a.from, DryRun: a.dryRun, Say: a.err}
}

func (a *app) dryRunFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&a.dryRun, "dry-run", false, "check the machine and print the steps; change nothing")
}

func (a *app) fromFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&a.from, "from", a.self, "the `folder` that the programs to install are in")
	cmd.Flags().Lookup("from").DefValue = "" // the folder of this program, which help says in words
	cmd.Flags().Lookup("from").Usage = "the `folder` that the programs to install are in (default this program's)"
}

func (a *app) genesis() *cobra.Command {
	var o installer.GenesisOptions
	cmd := &cobra.Command{
		Use: "genesis --address <host[:port]>…", Short: "Make a mesh on this machine: its coordinator, its bus and its first node",
		Long: `Make a mesh on this machine: its coordinator with the bus in it, the credential of the first operator in
/etc/mesh/operator.json, and this machine as the first node. The bus's port stays open on it.

Run again on the same machine it repairs; what is not said then is as it was.`,
		Example: "  mesh-installer genesis --address 192.0.2.1\n  mesh-installer genesis --address bus.example.com --address [2001:db8::1]:4222 --name db1 --mesh home",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			joined, err := a.installer().Genesis(cmd.Context(), o)
			if err != nil || a.dryRun {
				return err
			}
			if joined.Repaired {
				_, err = fmt.Fprintf(a.out, "the mesh is in order on %s\nlook: mesh-coordinator status\n", joined.Node)
				return err
			}
			_, err = fmt.Fprintf(a.out, "the mesh %s is made, and %s is its first node\nlook: mesh-coordinator status; its packet filter: mesh-coordinator push %s --why …; the next machine: mesh-coordinator node invite <name>\n", joined.Mesh, joined.Node, joined.Node)
			return err
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&o.Addresses, "address", nil, "where the other machines reach the bus, as `host[:port]`; once for each address (port 4222 unless said)")
	f.StringVar(&o.Node, "name", "", "this machine's node `name` (default its hostname)")
	f.StringVar(&o.Mesh, "mesh", "", "the mesh's `name` (default "+installer.DefaultMesh+")")
	f.StringVar(&o.Operator, "operator", installer.DefaultOperator, "the `name` of the first person")
	f.StringVar(&o.Listen, "listen", "", "where the bus listens, as `[host:]port` (default every address, at the first address's port)")
	a.fromFlag(cmd)
	a.dryRunFlag(cmd)
	return cmd
}

func (a *app) enrol() *cobra.Command {
	cmd := &cobra.Command{
		Use: "enrol [<invitation>]", Short: "Let this machine into a mesh by an invitation",
		Long: `Let this machine into a mesh by an invitation: the line that "mesh-coordinator node invite <name>" printed.
With - in its place the line is read from standard input, where no list of processes shows it.

The machine's keys are made here and do not leave it. Run again it repairs, which includes putting newer
programs in place; a machine that is in a mesh needs no line for that.`,
		Example: "  mesh-installer enrol mesh1-eyJmb3JtYXQ…\n  mesh-installer enrol - <invitation.txt\n  mesh-installer enrol",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, given []string) error {
			line := ""
			if len(given) > 0 {
				var err error
				if line, err = a.line(given[0]); err != nil {
					return err
				}
			}
			joined, err := a.installer().Enrol(cmd.Context(), line)
			if err != nil || a.dryRun {
				return err
			}
			if line == "" {
				_, err = fmt.Fprintf(a.out, "this machine is %s of the mesh, and mesh is in order on it\nlook: mesh-agent show\n", joined.Node)
				return err
			}
			_, err = fmt.Fprintf(a.out, "this machine is %s of the mesh\nlook: mesh-agent show; what it shall be, its packet filter too, comes with a push: mesh-coordinator push %s --why …\n", joined.Node, joined.Node)
			return err
		},
	}
	a.fromFlag(cmd)
	a.dryRunFlag(cmd)
	return cmd
}

// line is the invitation given, or the one on standard input.
func (a *app) line(given string) (string, error) {
	if given != "-" {
		return given, nil
	}
	s := bufio.NewScanner(a.in)
	s.Scan()
	if err := s.Err(); err != nil {
		return "", refusal.New("the invitation", "standard input could not be read: "+err.Error(), "give the line as the argument")
	}
	line := strings.TrimSpace(s.Text())
	if line == "" {
		return "", refusal.New("the invitation", "nothing came on standard input", "put the line there that mesh-coordinator node invite <name> printed, or give it as the argument")
	}
	return line, nil
}

func (a *app) leave() *cobra.Command {
	var o installer.LeaveOptions
	var keep bool
	cmd := &cobra.Command{
		Use: "leave", Short: "Remove mesh from this machine",
		Long: `Remove mesh from this machine: the agent, its state, and its packet filter. What modules run here runs on
unless --stop-workloads is given; data, files and users of modules stay in any case and are named.

The mesh still lists the machine afterwards: mesh-coordinator node remove <name>.`,
		Example: "  mesh-installer leave --dry-run\n  mesh-installer leave --stop-workloads",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if keep && o.StopWorkloads {
				return refusal.New("to keep and to stop the workloads", "only one of them can be done", "give one of --keep-workloads and --stop-workloads")
			}
			left, err := a.installer().Leave(cmd.Context(), o)
			if err != nil {
				return err
			}
			return a.tellLeft(left)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&keep, "keep-workloads", false, "what modules run here runs on (the default)")
	f.BoolVar(&o.StopWorkloads, "stop-workloads", false, "stop what modules run here and remove its units")
	f.StringVar(&o.Filter, "filter", installer.FilterFound, `the packet filter afterwards: "found" puts back what a converge retired as mesh's table goes, "none" leaves it off and names what others filter`)
	f.BoolVar(&o.CoordinatorToo, "coordinator-too", false, "end the whole mesh, when its coordinator is on this machine")
	a.dryRunFlag(cmd)
	return cmd
}

// tellLeft says what stays and what is to be done.
func (a *app) tellLeft(left installer.Left) error {
	for _, thing := range left.Stays {
		if _, err := fmt.Fprintf(a.out, "stays: %s\n", thing); err != nil {
			return err
		}
	}
	if left.Node == "" || a.dryRun {
		return nil
	}
	if left.Coordinator {
		_, err := fmt.Fprintln(a.out, "the mesh has ended; the machines that were in it go on as they are until each leaves: mesh-installer leave")
		return err
	}
	_, err := fmt.Fprintf(a.out, "this machine is in no mesh any more; take it off the records: mesh-coordinator node remove %s\n", left.Node)
	return err
}

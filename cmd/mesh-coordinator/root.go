package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"

	"crypto/rand"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"mesh/coordinator/client"
	"mesh/shared/clock"
	"mesh/shared/controller"
	"mesh/shared/engine"
	"mesh/shared/subject"
	"mesh/shared/version"
)

// app is what the commands stand on.
type app struct {
	out, err io.Writer
	clk      clock.Clock
	places   client.Places
	// notify and watchdog are systemd's words to a service.
	notify, watchdog string
	// fancy is whether progress may rewrite its line.
	fancy bool
	// started is set once flags and arguments were understood: an error before is wrong usage.
	started bool
}

func terminal(f interface{ Fd() uintptr }) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use: "mesh-coordinator", Short: "Say what runs on which machine, push it, and see that it holds",
		Version:      version.String(),
		SilenceUsage: true, SilenceErrors: true,
		PersistentPreRun: func(*cobra.Command, []string) { a.started = true },
		Args:             cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		Example: "  mesh-coordinator status\n  mesh-coordinator node invite db1",
	}
	root.AddCommand(a.initState(), a.serve(), a.status(), a.node(), a.module(), a.artifact(), a.assign(), a.unassign(), a.plan(), a.push(), a.take(), a.giveBack(), a.logs(),
		a.seat(), a.tool(), a.operator(), a.changes())
	root.AddCommand(a.diagnose(), a.exposure(), a.bans(), a.call(), a.calls())
	return root
}

// group is a noun: it holds its verbs and does nothing itself.
func group(use, short, example string, verbs ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Example: "  " + example, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	cmd.AddCommand(verbs...)
	return cmd
}

// connect finds the credential and connects.
func (a *app) connect(ctx context.Context) (*client.Client, error) {
	f, err := client.Find(a.places)
	if err != nil {
		return nil, err
	}
	return client.Connect(ctx, f, client.Options{Clock: a.clk, Rand: rand.Reader, Log: slog.New(slog.DiscardHandler)})
}

// verb starts the command of a verb: its help comes from the table, so that help and protocol agree.
func (a *app) verb(v subject.Verb, use string, args cobra.PositionalArgs) *cobra.Command {
	line, ok := controller.Find(v)
	if !ok {
		panic("no verb " + string(v) + " in the table of mesh-controller")
	}
	cmd := &cobra.Command{Use: use, Short: line.Description, Example: "  " + line.Example, Args: args}
	a.clientFlags(cmd)
	return cmd
}

// onNode starts the command of a verb of node-engine: its help comes from the table.
func (a *app) onNode(v subject.Verb, use string, args cobra.PositionalArgs) *cobra.Command {
	line, ok := engine.Find(subject.NodeEngine, v)
	if !ok {
		panic("no verb " + string(v) + " in the table of node-engine")
	}
	cmd := &cobra.Command{Use: use, Short: line.Description, Example: "  " + line.Example, Args: args}
	a.clientFlags(cmd)
	return cmd
}

// clientFlags are those of every command that asks.
func (a *app) clientFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&a.places.Flag, "credential", "", "credential `file` (default $MESH_CREDENTIAL, "+a.places.Etc+", ~/.config/mesh/operator.json)")
	cmd.Flags().Bool("json", false, "print JSON")
}

// why adds the flag of an act that is written down with its reason.
func why(cmd *cobra.Command) *string {
	return cmd.Flags().String("why", "", "the reason, kept in the journal")
}

// asking makes cmd ask v and print the answer.
func asking[R any](a *app, cmd *cobra.Command, v subject.Verb, args func(given []string) (any, error), print func(R) error) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		ask, err := args(given)
		if err != nil {
			return err
		}
		c, err := a.connect(cmd.Context())
		if err != nil {
			return err
		}
		defer c.Close()
		answer, err := client.Ask[R](cmd.Context(), c, v, ask)
		if err != nil {
			return err
		}
		return a.show(cmd, answer, func() error { return print(answer) })
	}
	return cmd
}

// show prints answer as JSON when asked to, else as print does.
func (a *app) show(cmd *cobra.Command, answer any, print func() error) error {
	if asJSON, err := cmd.Flags().GetBool("json"); err != nil || !asJSON {
		if err != nil {
			return err
		}
		return print()
	}
	enc := json.NewEncoder(a.out)
	enc.SetIndent("", "  ")
	return enc.Encode(answer)
}

func nothing([]string) (any, error) { return controller.Nothing{}, nil }

// done prints the answer of a verb that only does.
func (a *app) done(did, already string) func(controller.Done) error {
	return func(d controller.Done) error {
		if !d.Changed {
			did = already
		}
		_, err := fmt.Fprintln(a.out, did)
		return err
	}
}

// none says what to do about a list that has nothing in it; the header alone looks like something broken.
func (a *app) none(n int, do string) {
	if n == 0 {
		fmt.Fprintln(a.err, do)
	}
}

// nodesOf checks names before anything is asked.
func nodesOf(given []string) ([]subject.Node, error) {
	nodes := make([]subject.Node, 0, len(given))
	for _, g := range given {
		n, err := subject.ParseNode(g)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

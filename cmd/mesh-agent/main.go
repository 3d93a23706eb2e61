// Command mesh-agent is the program on every machine: the daemon that keeps the machine as declared, and
// show, which says how it is.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"mesh/shared/refusal"
	"mesh/shared/usage"
	"mesh/shared/version"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run runs one command line and says its exit code.
func run(ctx context.Context, args []string, out, errs io.Writer) int {
	var at places
	root := root(&at)
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errs)
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil && !at.started {
		fmt.Fprintln(errs, usage.Wrong(cmd, err))
		return 2
	}
	return exit(errs, err)
}

// verdict is an exit code that needs no words: the page has said it.
type verdict int

func (v verdict) Error() string { return fmt.Sprintf("exit %d", int(v)) }

// exit prints err in two lines at most and returns the exit code: 1 something is not well or was refused,
// 2 cannot tell or wrong usage.
func exit(errs io.Writer, err error) int {
	var v verdict
	switch {
	case err == nil:
		return 0
	case errors.As(err, &v):
		return int(v)
	}
	text, do, found := strings.Cut(err.Error(), "\ndo: ")
	if text = strings.ReplaceAll(text, "\n", "; "); found {
		text += "\ndo: " + strings.ReplaceAll(do, "\n", "; ")
	}
	if refusal.Of(err) == nil {
		text = "mesh-agent: " + text
	}
	fmt.Fprintln(errs, text)
	var untold cannotTell
	if refusal.Of(err) != nil && !errors.As(err, &untold) {
		return 1
	}
	return 2
}

// places are the folders the agent uses.
type places struct {
	state, run, root string
	// started is set once flags and arguments were understood: an error before is wrong usage.
	started bool
}

func root(at *places) *cobra.Command {
	cmd := &cobra.Command{
		Use: "mesh-agent", Short: "Keep this machine as the mesh declares it, and say how it is",
		Version: version.String(), SilenceErrors: true, SilenceUsage: true, Args: cobra.NoArgs,
		// A command that runs: of one that does not, cobra takes any word for a call for help.
		RunE:             func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRun: func(*cobra.Command, []string) { at.started = true },
		Example:          "  mesh-agent show\n  mesh-agent show --json",
	}
	cmd.PersistentFlags().StringVar(&at.state, "state-dir", "/var/lib/mesh-agent", "where the agent keeps its state")
	cmd.PersistentFlags().StringVar(&at.run, "run-dir", "/run/mesh-agent", "where the running agent says how it is")
	cmd.PersistentFlags().StringVar(&at.root, "root", "/", "where the paths of declarations begin")
	cmd.AddCommand(runCommand(at), showCommand(at), diffCommand(at), ledgerCommand(at), firewallCommand(at), whyCommand(at), bansCommand())
	cmd.AddCommand(diagnoseCommand(at), planCommand(at), giveBackCommand(at), fallBackCommand(at))
	return cmd
}

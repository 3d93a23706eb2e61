// Command mesh-coordinator keeps a mesh: "serve" is the daemon, "init" makes its state, and everything
// else asks the seat mesh-controller as an operator, from any machine that reaches the bus. This folder
// holds flags, wiring and printing; the work is in mesh/coordinator and mesh/coordinator/client.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/nats-io/nats.go"

	"mesh/coordinator/client"
	"mesh/shared/bus"
	"mesh/shared/clock"
	"mesh/shared/manifest"
	"mesh/shared/refusal"
	"mesh/shared/usage"
)

// Exit codes (OPS-2).
const (
	exitWell    = 0
	exitNotWell = 1 // something is not well, or was refused
	exitUnknown = 2 // it cannot be told, or the command was used wrongly
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	a := &app{
		out: os.Stdout, err: os.Stderr, clk: clock.Real(),
		places: client.Places{Env: os.Getenv("MESH_CREDENTIAL"), Etc: operatorFile, Home: home()},
		notify: os.Getenv("NOTIFY_SOCKET"), watchdog: os.Getenv("WATCHDOG_USEC"),
		fancy: terminal(os.Stderr) && os.Getenv("TERM") != "dumb",
	}
	code := run(ctx, a, os.Args[1:])
	stop()
	os.Exit(code)
}

func home() string {
	dir, err := os.UserConfigDir()
	if err != nil { // no home: a service, for instance
		return ""
	}
	return filepath.Join(dir, "mesh", "operator.json")
}

// errNotWell and errUnknown end a command that has said all in its answer.
var (
	errNotWell = errors.New("not well")
	errUnknown = errors.New("cannot tell")
)

// run runs one command line and says its exit code.
func run(ctx context.Context, a *app, args []string) int {
	root := a.root()
	root.SetArgs(args)
	root.SetOut(a.out)
	root.SetErr(a.err)
	cmd, err := root.ExecuteContextC(ctx)
	switch {
	case err == nil:
		return exitWell
	case errors.Is(err, errNotWell):
		return exitNotWell
	case errors.Is(err, errUnknown):
		return exitUnknown
	case !a.started:
		fmt.Fprintln(a.err, usage.Wrong(cmd, err))
		return exitUnknown
	}
	say(a.err, err)
	return code(err)
}

func code(err error) int {
	for _, away := range []error{nats.ErrNoResponders, bus.ErrAway, client.ErrNoAnswer, client.ErrNoCredential, context.Canceled, nats.ErrConnectionClosed} {
		if errors.Is(err, away) {
			return exitUnknown
		}
	}
	return exitNotWell
}

// say prints an error as a person reads it: what, and what to do.
func say(w io.Writer, err error) {
	var problems manifest.Problems
	switch r := refusal.Of(err); {
	case errors.As(err, &problems):
		fmt.Fprintln(w, problems.Error())
	case r != nil:
		fmt.Fprintln(w, r.Error())
	case errors.Is(err, bus.ErrAway), errors.Is(err, nats.ErrConnectionClosed):
		fmt.Fprintf(w, "cannot tell: %s\ndo: look at the coordinator on its machine: systemctl status mesh-coordinator\n", firstLine(err))
	case errors.Is(err, client.ErrNoAnswer):
		fmt.Fprintf(w, "cannot tell: %s\ndo: ask again; what was asked may have been done\n", firstLine(err))
	default:
		fmt.Fprintf(w, "mesh-coordinator: %s\n", firstLine(err))
	}
}

func firstLine(err error) string {
	return strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; ")
}

// Command mesh-installer brings mesh to a machine and takes it away: "genesis" makes a mesh on one
// machine, "enrol" joins an invited one, "leave" removes mesh. This folder holds flags, wiring and
// printing; the work is in mesh/installer.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"mesh/installer"
	"mesh/shared/refusal"
	"mesh/shared/usage"
)

// Exit codes (OPS-2).
const (
	exitWell    = 0
	exitNotWell = 1 // something failed or was refused
	exitUsage   = 2 // the command was used wrongly
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	a := &app{in: os.Stdin, out: os.Stdout, err: os.Stderr, machine: installer.This(rand.Reader), self: self()}
	code := run(ctx, a, os.Args[1:])
	stop()
	os.Exit(code)
}

// self is the folder of this program: the others lie beside it.
func self() string {
	path, err := os.Executable()
	if err != nil {
		return "."
	}
	return filepath.Dir(path)
}

// run runs one command line and says its exit code.
func run(ctx context.Context, a *app, args []string) int {
	root := a.root()
	root.SetArgs(args)
	root.SetOut(a.out)
	root.SetErr(a.err)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitWell
	}
	if !a.started {
		fmt.Fprintln(a.err, usage.Wrong(cmd, err))
		return exitUsage
	}
	say(a.err, err)
	return exitNotWell
}

// say prints an error as a person reads it: what, and what to do.
func say(w io.Writer, err error) {
	var failed *installer.Failure
	switch r := refusal.Of(err); {
	case errors.As(err, &failed):
		fmt.Fprintln(w, failed.Error())
	case r != nil:
		fmt.Fprintln(w, r.Error())
	default:
		fmt.Fprintf(w, "failed: %s\ndo: run the same command again\n", oneLine(err))
	}
}

func oneLine(err error) string {
	return strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; ")
}

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"mesh/coordinator/client"
	"mesh/shared/controller"
	"mesh/shared/engine"
	"mesh/shared/refusal"
	"mesh/shared/subject"
)

// unassign is "mesh-coordinator unassign": data stay, unless --delete-data names them and somebody says yes
// (APP-11).
func (a *app) unassign() *cobra.Command {
	cmd := a.verb(controller.Unassign, "unassign <node> <module>", cobra.ExactArgs(2))
	cmd.Long = `Say that a module does not run on a node any more. It stops with the next push, and its data stay.

With --delete-data the machine is asked what data of the module it holds. They are named with how much is in
each; then it asks, unless --yes is given. The next push deletes exactly those, for good. What was there before
mesh, and what is not named, stays. Assigning the module again before that push takes it back.`
	cmd.Example += "\n  mesh-coordinator unassign db1 notes --delete-data --why \"not needed any more\""
	reason := why(cmd)
	deletes := cmd.Flags().Bool("delete-data", false, "delete the module's data on that node too, after they were named")
	yes := cmd.Flags().Bool("yes", false, "do not ask before data are deleted")
	cmd = asking(a, cmd, controller.Unassign,
		func(given []string) (any, error) {
			ask, err := assignAsk(given)
			return controller.UnassignAsk{Node: ask.Node, Module: ask.Module, Why: *reason}, err
		},
		a.done("unassigned; it stops with the next push, its data stays", "it was not assigned"))
	plain := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		if !*deletes {
			return plain(cmd, given)
		}
		ask, err := assignAsk(given)
		if err != nil {
			return err
		}
		return a.unassignWithData(cmd, controller.UnassignWithDataAsk{Node: ask.Node, Module: ask.Module, Why: *reason}, *yes)
	}
	return cmd
}

func (a *app) unassignWithData(cmd *cobra.Command, ask controller.UnassignWithDataAsk, yes bool) error {
	if strings.TrimSpace(ask.Why) == "" {
		return refusal.New(fmt.Sprintf("delete the data of %s on %s without a reason", ask.Module, ask.Node), "it is kept in the journal, for whoever looks later", `say why: --why "not needed any more"`)
	}
	c, err := a.connect(cmd.Context())
	if err != nil {
		return err
	}
	defer c.Close()
	data, err := client.AskNode[engine.DataAnswer](cmd.Context(), c, subject.NodeEngine, engine.Data, ask.Node, engine.DataAsk{Module: ask.Module})
	if err != nil {
		return fmt.Errorf("its data cannot be named, so nothing was changed: %w", err)
	}
	if err := writeData(a.err, data.Things); err != nil {
		return err
	}
	for _, d := range data.Things {
		if d.Stays == "" {
			ask.Things = append(ask.Things, d.Thing)
		}
	}
	if len(ask.Things) == 0 {
		return refusal.New(fmt.Sprintf("delete the data of %s on %s", ask.Module, ask.Node), "it has none there that mesh made", "unassign it without --delete-data")
	}
	if !yes {
		if err := a.confirmed(cmd, fmt.Sprintf("Delete these of %s on %s, for good? Type the module's name: ", ask.Module, ask.Node), string(ask.Module)); err != nil {
			return err
		}
	}
	done, err := client.Ask[controller.Done](cmd.Context(), c, controller.UnassignWithData, ask)
	if err != nil {
		return err
	}
	return a.show(cmd, done, func() error {
		_, err := fmt.Fprintf(a.out, "unassigned; with the next push it stops and its data are deleted: mesh-coordinator push %s --why \"…\"\n", ask.Node)
		return err
	})
}

func writeData(w io.Writer, all []engine.DataThing) error {
	rows := make([][]string, len(all))
	for i, d := range all {
		holds := fmt.Sprintf("%s in %d files", size(d.Bytes), d.Files)
		if d.More {
			holds = "more than " + holds
		}
		rows[i] = []string{d.Thing, or(d.Path, "?"), holds, or(d.Stays, "is deleted")}
	}
	return table(w, "THING | AT | HOLDS | WHAT BECOMES OF IT", rows)
}

// confirmed asks at a terminal; without one it refuses.
func (a *app) confirmed(cmd *cobra.Command, question, want string) error {
	no := func(why string) error {
		return refusal.New("to delete data", why, "say --yes if you mean it")
	}
	in := cmd.InOrStdin()
	if f, ok := in.(*os.File); ok {
		if _, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); err != nil {
			return no("there is no terminal to ask at")
		}
	}
	if _, err := fmt.Fprint(a.err, question); err != nil {
		return err
	}
	line, err := bufio.NewReader(in).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if strings.TrimSpace(line) != want {
		return no("it was not confirmed")
	}
	return nil
}

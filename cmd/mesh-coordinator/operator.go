package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"mesh/coordinator/client"
	"mesh/shared/controller"
)

func (a *app) operator() *cobra.Command {
	return group("operator", "The people who may ask", "mesh-coordinator operator list", a.operatorIssue(), a.operatorList(), a.operatorRevoke())
}

func (a *app) operatorIssue() *cobra.Command {
	cmd := a.verb(controller.OperatorIssue, "issue <name>", cobra.ExactArgs(1))
	cmd.Short = "Let a person in: writes the credential file to give to them"
	role := cmd.Flags().String("role", string(controller.Viewer), "admin, operator or viewer")
	out := cmd.Flags().String("out", "", "the `file` to write (default <name>.json)")
	reason := why(cmd)
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		r, err := controller.ParseRole(*role)
		if err != nil {
			return err
		}
		path := or(*out, given[0]+".json")
		if err := client.CheckFree(path); err != nil { // before somebody is let in whose key would be lost
			return err
		}
		c, err := a.connect(cmd.Context())
		if err != nil {
			return err
		}
		defer c.Close()
		f, err := c.Issue(cmd.Context(), given[0], r, *reason)
		if err != nil {
			return err
		}
		if err := client.SaveCredential(path, f); err != nil {
			return err
		}
		return a.show(cmd, map[string]string{"name": f.Name, "role": string(r), "file": path}, func() error {
			fmt.Fprintf(a.err, "%s is let in as %s by this file; it is a key: hand it over, and keep no copy\n", f.Name, r)
			_, err := fmt.Fprintln(a.out, path)
			return err
		})
	}
	return cmd
}

func (a *app) operatorList() *cobra.Command {
	return asking(a, a.verb(controller.Operators, "list", cobra.NoArgs), controller.Operators, nothing,
		func(r controller.OperatorsAnswer) error { return writeOperators(a.out, r, a.clk.Now()) })
}

func writeOperators(w io.Writer, r controller.OperatorsAnswer, now time.Time) error {
	rows := make([][]string, 0, len(r.Operators))
	for _, o := range r.Operators {
		rows = append(rows, []string{o.Name, string(o.Role), ago(now, o.Issued), o.Key})
	}
	return table(w, "OPERATOR | ROLE | ISSUED | KEY", rows)
}

func (a *app) operatorRevoke() *cobra.Command {
	cmd := a.verb(controller.OperatorRevoke, "revoke <name>", cobra.ExactArgs(1))
	reason := why(cmd)
	return asking(a, cmd, controller.OperatorRevoke,
		func(given []string) (any, error) {
			return controller.OperatorRevokeAsk{Name: given[0], Why: *reason}, nil
		},
		a.done("revoked", "nobody of that name was let in"))
}

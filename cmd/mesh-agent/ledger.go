package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"mesh/agent/converge"
	"mesh/shared/clock"
)

// ledgerCommand is "mesh-agent ledger": what mesh put on this machine, one id a line, daemon up or down.
// The installer asks for it before it takes mesh away, to name what stays; people have show.
func ledgerCommand(at *places) *cobra.Command {
	return &cobra.Command{
		Use: "ledger", Short: "Say what mesh put on this machine", Hidden: true, Args: cobra.NoArgs,
		Example: "  mesh-agent ledger",
		RunE: func(cmd *cobra.Command, _ []string) error {
			store, err := shower{at: *at, clk: clock.Real()}.open(cmd.Context())
			if err != nil {
				return err
			}
			defer store.Close() // read only: nothing is lost
			rows, err := store.Ledger(cmd.Context())
			if err != nil {
				return err
			}
			for _, r := range rows {
				if _, err := fmt.Fprintln(cmd.OutOrStdout(), r.ID); err != nil {
					return err
				}
			}
			fronts, err := converge.Retired(cmd.Context(), store)
			if err != nil {
				return err
			}
			for _, name := range fronts {
				if _, err := fmt.Fprintln(cmd.OutOrStdout(), "front-end:"+name); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

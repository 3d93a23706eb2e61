package main

import (
	"runtime"

	"github.com/spf13/cobra"

	"mesh/agent/bans"
	"mesh/shared/clock"
	"mesh/shared/engine"
)

// bansCommand is "mesh-agent bans": who is banned on this machine (NET-11).
func bansCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "bans [ADDRESS...]", Short: "Say who is banned here, by which tool, in which jail and since when",
		Long: `Say whom fail2ban, crowdsec, sshguard and psad refuse here, as the kernel has it: the elements of their sets and
their rules about one sender. With addresses: only bans that cover one of them. It needs no daemon, but root.`,
		Example: "  sudo mesh-agent bans\n  sudo mesh-agent bans 198.51.100.7 --json",
		RunE: func(cmd *cobra.Command, args []string) error {
			runtime.LockOSThread() // the network namespace is the thread's
			defer runtime.UnlockOSThread()
			clk := clock.Real()
			a, err := bans.Read(cmd.Context(), clk, engine.BannedAsk{Addresses: args})
			if err != nil {
				return err
			}
			if asJSON {
				return encode(cmd.OutOrStdout(), a)
			}
			return bans.Render(cmd.OutOrStdout(), a, clk.Now())
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

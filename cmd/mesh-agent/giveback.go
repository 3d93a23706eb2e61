package main

import (
	"crypto/rand"
	"fmt"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"mesh/agent"
)

// firewallGiveBackCommand is "mesh-agent firewall give-back".
func firewallGiveBackCommand(at *places) *cobra.Command {
	return &cobra.Command{
		Use: "give-back", Short: "Put back the front ends that a converge retired, without the mesh", Args: cobra.NoArgs,
		Long: `Put back the front ends of the packet filter (ufw, firewalld, …) that "mesh-coordinator node converge"
retired here, as they were. It is for a machine that has lost its mesh: the agent must not run. While the
mesh is there, "mesh-coordinator node unconverge" does it, with a way back.`,
		Example: "  sudo systemctl disable --now mesh-agent\n  sudo mesh-agent firewall give-back",
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn, ReplaceAttr: withoutTime}))
			names, err := agent.GiveBack(cmd.Context(), at.state, at.root, rand.Reader, log)
			if err != nil {
				return err
			}
			said := "nothing was retired here"
			if len(names) > 0 {
				said = "in force again: " + strings.Join(names, ", ")
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), said)
			return err
		},
	}
}

package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"mesh/agent"
	"mesh/agent/host/systemd"
	"mesh/agent/state"
	"mesh/agent/upgrade"
	"mesh/shared/clock"
)

// fallBackCommand is "mesh-agent fall-back": the way back to the agent of before an upgrade. systemd runs it
// when a new agent does not report; a person may.
func fallBackCommand(at *places) *cobra.Command {
	var unlessConfirmed bool
	cmd := &cobra.Command{
		Use: "fall-back", Short: "Go back to the agent of before the last upgrade",
		Long:    "Go back to the agent of before the last upgrade. Workloads go on. The one that is left is not taken again until a module brings another.",
		Example: "  mesh-agent fall-back", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{ReplaceAttr: withoutTime}))
			self, err := upgrade.Self()
			if err != nil {
				return err
			}
			units := systemd.New(clock.Real())
			defer units.Close()
			u, err := upgrade.New(upgrade.Config{Dir: at.state, Root: at.root, Self: self, Units: units, Clock: clock.Real(), Log: log})
			if err != nil {
				return err
			}
			did, err := u.FallBack(cmd.Context(), unlessConfirmed, func(ctx context.Context) error { return readable(ctx, at) })
			if err == nil {
				_, err = fmt.Fprintln(cmd.OutOrStdout(), did)
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&unlessConfirmed, "unless-confirmed", false, "do nothing when the new agent has reported")
	return cmd
}

// readable says why this program cannot work with the store at its place.
func readable(ctx context.Context, at *places) error {
	s, err := state.OpenReadOnly(ctx, filepath.Join(at.state, agent.StateFile), clock.Real())
	if err != nil {
		return err
	}
	return s.Close()
}

// windowEnv is for the tests of upgrades: how long a new agent has.
const windowEnv = "MESH_UPGRADE_WINDOW"

// upgradeWindow is how long a new agent has for its first report; 0 for the usual.
func upgradeWindow() time.Duration {
	d, err := time.ParseDuration(os.Getenv(windowEnv))
	if err != nil {
		return 0
	}
	return d
}

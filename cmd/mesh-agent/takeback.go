package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"mesh/agent"
	"mesh/shared/credential"
	"mesh/shared/report"
	"mesh/shared/subject"
)

// giveBackCommand is "mesh-agent give-back" (APP-18).
func giveBackCommand(at *places) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "give-back [module]", Short: "Put back what a module took on this machine, without the mesh; alone, list what was taken", Args: cobra.MaximumNArgs(1),
		Long: `Put each container, file and unit that "mesh-coordinator take" made a module's back as it was found, and end the
module here. It is for a machine that has lost its mesh: the agent must not run. While the mesh is there,
"mesh-coordinator give-back" does it. Without a module, list what was taken; that works beside a running agent.`,
		Example: "  sudo mesh-agent give-back\n  sudo systemctl disable --now mesh-agent\n  sudo mesh-agent give-back notes",
		RunE: func(cmd *cobra.Command, given []string) error {
			if len(given) == 0 {
				all, err := agent.Taken(cmd.Context(), at.state)
				if err != nil {
					return err
				}
				return printTaken(cmd.OutOrStdout(), all, asJSON)
			}
			m, err := subject.ParseModule(given[0])
			if err != nil {
				return err
			}
			cred, err := credential.Load(filepath.Join(at.state, agent.CredentialFile))
			if err != nil {
				return fmt.Errorf("%w\ndo: enrol this machine: mesh-installer enrol <line>", err)
			}
			log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn, ReplaceAttr: withoutTime}))
			things, err := agent.GiveBackThings(cmd.Context(), cred, at.state, at.root, m, log)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), "as it was found: "+strings.Join(things, ", "))
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func printTaken(w io.Writer, all []report.Take, asJSON bool) error {
	if asJSON {
		if all == nil {
			all = []report.Take{}
		}
		return json.NewEncoder(w).Encode(all)
	}
	if len(all) == 0 {
		_, err := fmt.Fprintln(w, "nothing was taken here")
		return err
	}
	for _, t := range all {
		if _, err := fmt.Fprintf(w, "%s  %s  %s\n", t.Module, t.State, strings.TrimSpace(strings.Join(t.Things, ", ")+" "+t.Why)); err != nil {
			return err
		}
	}
	return nil
}

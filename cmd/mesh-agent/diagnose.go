package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"

	"github.com/spf13/cobra"

	"mesh/agent"
	"mesh/agent/diagnose"
	"mesh/firewall/foreign"
	"mesh/shared/clock"
	"mesh/shared/diagnosis"
	"mesh/shared/refusal"
	"mesh/shared/version"
)

// diagnoseCommand is "mesh-agent diagnose": one archive for a maintainer (OPS-5).
func diagnoseCommand(at *places) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use: "diagnose", Short: "Write one archive with what a maintainer needs to know of this machine", Args: cobra.NoArgs,
		Long: `Write one .tar.gz with what a maintainer needs: what show says, the declaration, the agent's store in
numbers, the last journal lines of mesh's units, the packet filter, links and routes, systemd's view, versions.

Secrets are masked: the node's keys, what was sealed to this machine, and what looks like one. Contents of
declared files are left out. The daemon may be up or down. Look through the archive before you hand it on.`,
		Example: "  sudo mesh-agent diagnose\n  sudo mesh-agent diagnose --output /tmp/db1.tar.gz",
		RunE: func(cmd *cobra.Command, _ []string) error {
			clk := clock.Real()
			file := output
			if file == "" {
				node, _ := whose(filepath.Join(at.state, agent.CredentialFile))
				file = fmt.Sprintf("mesh-agent-%s-%s.tar.gz", cmp.Or(string(node), "unknown"), clk.Now().UTC().Format("20060102-150405"))
			}
			s := shower{at: *at, clk: clk}
			err := diagnosis.Create(file, func(w io.Writer) error {
				return diagnose.Write(cmd.Context(), w, diagnose.Config{
					Store: filepath.Join(at.state, agent.StateFile), Credential: filepath.Join(at.state, agent.CredentialFile), Root: at.root,
					Show: func(ctx context.Context) (any, error) {
						d, err := s.document(ctx)
						if err != nil {
							return nil, err
						}
						return d.Page(), nil
					},
					Foreign: func(ctx context.Context) (any, error) {
						rs, err := foreign.Read(ctx)
						if err != nil {
							return nil, err
						}
						rs.Served = foreign.Served(at.root)
						return foreign.Judge(rs), nil
					},
					Version: version.String(), Clock: clk,
				})
			})
			switch {
			case errors.Is(err, fs.ErrExist):
				return refusal.New("to write "+file, "there is a file already", "name another with --output")
			case errors.Is(err, fs.ErrPermission):
				return fmt.Errorf("%w\ndo: run it as root, in a folder that may be written", err)
			case err != nil:
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), file)
			return err
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "where to write the archive (default mesh-agent-<node>-<time>.tar.gz here)")
	return cmd
}

// diagnoseItself makes an archive in a process of its own: what it takes is not the daemon's for good.
func diagnoseItself(at *places) func(ctx context.Context, file string) error {
	return func(ctx context.Context, file string) error {
		out, err := diagnosis.Run(ctx, []string{"/proc/self/exe", "diagnose", "--state-dir", at.state, "--run-dir", at.run, "--root", at.root, "--output", file})
		if err == nil {
			_, err = diagnosis.Size(file)
		}
		if err != nil {
			return fmt.Errorf("%w: %.500s", err, out)
		}
		return nil
	}
}

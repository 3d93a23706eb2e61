package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"

	"github.com/spf13/cobra"

	"mesh/coordinator/client"
	"mesh/coordinator/diagnose"
	"mesh/coordinator/keys"
	"mesh/shared/controller"
	"mesh/shared/diagnosis"
	"mesh/shared/engine"
	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/subject"
	"mesh/shared/version"
)

// diagnose is "mesh-coordinator diagnose": one archive for a maintainer (OPS-5), of the coordinator's machine
// or, over the bus, of a node.
func (a *app) diagnose() *cobra.Command {
	var dir, output string
	cmd := &cobra.Command{
		Use: "diagnose [node]", Short: "Write one archive with what a maintainer needs, of the coordinator's machine or of a node", Args: cobra.MaximumNArgs(1),
		Long: `Write one .tar.gz with what a maintainer needs. Without a node it is of the coordinator's machine, where
it is run as root: what the verbs say of the mesh, the records in numbers, the journal, systemd's view,
versions. With a node it is what mesh-agent diagnose writes there, brought here over the bus.

Secrets are masked. Look through the archive before you hand it on.`,
		Example: "  sudo mesh-coordinator diagnose\n  mesh-coordinator diagnose db1 --output db1.tar.gz",
	}
	cmd.Flags().StringVar(&a.places.Flag, "credential", "", "credential `file` (default $MESH_CREDENTIAL, "+a.places.Etc+", ~/.config/mesh/operator.json)")
	cmd.Flags().StringVar(&dir, "dir", stateDir, "the coordinator's `folder`")
	cmd.Flags().StringVarP(&output, "output", "o", "", "where to write the archive, a `file` (default mesh-<machine>-<time>.tar.gz here)")
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		machine, fill := "coordinator", func(w io.Writer) error { return a.diagnoseHere(cmd.Context(), w, dir) }
		if len(given) > 0 {
			n, err := subject.ParseNode(given[0])
			if err != nil {
				return err
			}
			machine, fill = string(n), func(w io.Writer) error { return a.diagnoseNode(cmd.Context(), w, n) }
		}
		file := output
		if file == "" {
			file = fmt.Sprintf("mesh-%s-%s.tar.gz", machine, a.clk.Now().UTC().Format("20060102-150405"))
		}
		err := diagnosis.Create(file, fill)
		switch {
		case errors.Is(err, fs.ErrExist):
			return refusal.New("to write "+file, "there is a file already", "name another with --output")
		case err != nil:
			return err
		}
		_, err = fmt.Fprintln(a.out, file)
		return err
	}
	return cmd
}

func (a *app) diagnoseNode(ctx context.Context, w io.Writer, n subject.Node) error {
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Diagnose(ctx, n, w)
}

// diagnoseHere gathers what is on this machine; with the coordinator down, or without a credential, the rest.
func (a *app) diagnoseHere(ctx context.Context, w io.Writer, dir string) error {
	cfg := diagnose.Config{Dir: dir, Records: filepath.Join(dir, keys.RecordsFile), Version: version.String(), Clock: a.clk}
	c, err := a.connect(ctx)
	if err != nil {
		cfg.Alone = err
		return diagnose.Write(ctx, w, cfg)
	}
	defer c.Close()
	cfg.Ask = func(ctx context.Context, v subject.Verb, args any) (any, error) {
		return client.Ask[json.RawMessage](ctx, c, v, args)
	}
	cfg.Machines = machines{c}
	return diagnose.Write(ctx, w, cfg)
}

// machines asks them over the bus.
type machines struct{ c *client.Client }

func (m machines) Exposure(ctx context.Context, n subject.Node) (report.Exposure, error) {
	return client.AskNode[report.Exposure](ctx, m.c, subject.NodeEngine, engine.Exposure, n, controller.Nothing{})
}

func (m machines) Banned(ctx context.Context, n subject.Node, addresses []string) (engine.BannedAnswer, error) {
	return client.AskNode[engine.BannedAnswer](ctx, m.c, subject.NodePrevention, engine.Banned, n, engine.BannedAsk{Addresses: addresses})
}

package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"mesh/coordinator"
	"mesh/coordinator/client"
	"mesh/coordinator/keys"
	"mesh/shared/refusal"
	"mesh/shared/version"
)

const (
	// stateDir is where the coordinator's state is.
	stateDir = "/var/lib/mesh-coordinator"
	// operatorFile is the credential of whoever administers this machine.
	operatorFile = "/etc/mesh/operator.json"
)

// initState is "mesh-coordinator init".
func (a *app) initState() *cobra.Command {
	var o keys.InitOptions
	var dir, out, listen string
	cmd := &cobra.Command{
		Use: "init", Short: "Make a mesh: keys, records and the first operator (mesh-installer genesis does this and more)", Args: cobra.NoArgs,
		Example: "  mesh-coordinator init --name home --address 203.0.113.5:4222",
		Long:    "Make the coordinator's state. Asked again it changes nothing and says the same; another mesh in the folder is refused.",
	}
	cmd.Flags().StringVar(&dir, "dir", stateDir, "the coordinator's `folder`")
	cmd.Flags().StringVar(&o.Mesh, "name", "", "the mesh's name")
	cmd.Flags().StringSliceVar(&o.Addresses, "address", nil, "where machines reach the bus, `host:port`; may be given several times")
	cmd.Flags().StringVar(&listen, "listen", "", "where the bus listens, `host:port` (default: every address, the port of the first --address)")
	cmd.Flags().StringVar(&o.Operator, "operator", "admin", "the first operator's name")
	cmd.Flags().StringVar(&out, "out", "", "also write the first operator's credential to this `file`")
	cmd.Flags().Bool("json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if o.Mesh == "" || len(o.Addresses) == 0 {
			return refusal.New("to make a mesh", "it needs a name and an address", "give --name and --address")
		}
		o.Clock, o.Rand = a.clk, rand.Reader
		made, err := keys.Init(cmd.Context(), dir, o)
		if err != nil {
			return err
		}
		if listen != "" {
			if err := coordinator.SetListen(dir, listen); err != nil {
				return err
			}
		}
		if out != "" && made.Operator.Seed != "" {
			if err := client.SaveCredential(out, made.Operator); err != nil {
				return err
			}
		}
		return a.show(cmd, map[string]any{"mesh": made.MeshID, "dir": dir, "already": made.Already, "operator": filepath.Join(dir, keys.OperatorFile)}, func() error {
			if made.Already {
				fmt.Fprintln(a.err, "the mesh is there already")
			}
			_, err := fmt.Fprintf(a.out, "mesh %s (%s) in %s\n", o.Mesh, made.MeshID, dir)
			return err
		})
	}
	return cmd
}

// serve is "mesh-coordinator serve".
func (a *app) serve() *cobra.Command {
	var dir, listen, metrics string
	var debug bool
	cmd := &cobra.Command{
		Use: "serve", Short: "Run the coordinator (the unit mesh-coordinator.service does)", Args: cobra.NoArgs,
		Example: "  mesh-coordinator serve --dir " + stateDir,
		RunE: func(cmd *cobra.Command, _ []string) error {
			level := slog.LevelInfo
			if debug {
				level = slog.LevelDebug
			}
			log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level, ReplaceAttr: a.journalTime}))
			return a.daemon(cmd.Context(), coordinator.Config{Dir: dir, Listen: listen, Metrics: metrics, Log: log})
		},
	}
	cmd.Flags().StringVar(&dir, "dir", stateDir, "the coordinator's `folder`")
	cmd.Flags().StringVar(&listen, "listen", "", "where the bus listens, `host:port` (default: as init was told)")
	cmd.Flags().BoolVar(&debug, "debug", false, "log everything")
	cmd.Flags().StringVar(&metrics, "metrics", os.Getenv("MESH_COORDINATOR_METRICS"), "serve /metrics and /healthz at this `address` on loopback, such as 127.0.0.1:9464 (default $MESH_COORDINATOR_METRICS; empty: nowhere)")
	return cmd
}

func (a *app) daemon(ctx context.Context, cfg coordinator.Config) error {
	id, err := os.ReadFile("/etc/machine-id")
	if err != nil {
		cfg.Log.Warn("this machine cannot be told among the nodes: no opening for the bus is declared on it", "err", err)
	}
	cfg.MachineID, cfg.Version, cfg.Notify, cfg.Watchdog = strings.TrimSpace(string(id)), version.String(), a.notify, a.watchdogInterval()
	cfg.Clock, cfg.Rand = a.clk, rand.Reader
	cfg.Ready = func(address string) {
		cfg.Log.Info("the mesh is served", "bus", address, "dir", cfg.Dir, "version", version.String())
	}
	return coordinator.New(cfg).Run(ctx)
}

// journalTime leaves the time out where the journal writes its own.
func (a *app) journalTime(groups []string, attr slog.Attr) slog.Attr {
	if a.notify != "" && len(groups) == 0 && attr.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return attr
}

func (a *app) watchdogInterval() time.Duration {
	us, err := strconv.ParseInt(a.watchdog, 10, 64)
	if err != nil || us <= 0 {
		return 0
	}
	return time.Duration(us) * time.Microsecond
}

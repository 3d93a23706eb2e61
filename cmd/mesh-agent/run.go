package main

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"mesh/agent"
	"mesh/agent/upgrade"
	"mesh/shared/clock"
	"mesh/shared/credential"
)

// runCommand is "mesh-agent run": the daemon. systemd starts it.
func runCommand(at *places) *cobra.Command {
	var verbose bool
	var metrics string
	cmd := &cobra.Command{
		Use: "run", Short: "Run the daemon; the unit mesh-agent.service does",
		Example: "  systemctl start mesh-agent", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			level := slog.LevelInfo
			if verbose {
				level = slog.LevelDebug
			}
			// The journal adds the time.
			log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: level, ReplaceAttr: withoutTime}))
			cred, err := credential.Load(filepath.Join(at.state, agent.CredentialFile))
			if err != nil {
				return fmt.Errorf("%w\ndo: enrol this machine: mesh-installer enrol <line>", err)
			}
			interval, err := daemon.SdWatchdogEnabled(false)
			if err != nil {
				return fmt.Errorf("the watchdog's environment: %w", err)
			}
			self, err := upgrade.Self()
			if err != nil {
				return fmt.Errorf("find the running program: %w", err)
			}
			debug.SetGCPercent(gcPercent)
			go giveBack(cmd.Context(), clock.Real(), log) // ends with the command's context
			return agent.Run(cmd.Context(), agent.Config{
				Credential: cred, Dir: at.state, Run: at.run, Root: at.root, Digest: ownDigest, Metrics: metrics,
				Clock: clock.Real(), Rand: rand.Reader, Log: log, Self: self, Window: upgradeWindow(),
				Diagnose: diagnoseItself(at),
				Machine:  agent.OnHost(at.root, log),
				Notify: func(state string) {
					if _, err := daemon.SdNotify(false, state); err != nil {
						log.Warn("systemd was not told", "state", state, "err", err)
					}
				},
				Watchdog: interval, FailPoint: failPoint(os.Getenv("MESH_FAILPOINT_FILE")),
			})
		},
	}
	cmd.Flags().BoolVar(&verbose, "debug", false, "log every detail")
	cmd.Flags().StringVar(&metrics, "metrics", os.Getenv("MESH_AGENT_METRICS"), "serve /metrics and /healthz at this `address` on loopback, such as 127.0.0.1:9463 (default $MESH_AGENT_METRICS; empty: nowhere)")
	return cmd
}

func withoutTime(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}

// failPoint kills the agent at each step whose name stands in file, once each, for the tests of what a
// kill leaves behind (APP-5). Without a file, which is how it is on a machine, there are no fail points.
func failPoint(file string) func(string) {
	if file == "" {
		return nil
	}
	return func(at string) {
		b, err := os.ReadFile(file)
		if err != nil {
			return
		}
		names := strings.Split(strings.TrimSpace(string(b)), "\n")
		rest := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == at })
		if len(rest) < len(names) && os.WriteFile(file, []byte(strings.Join(rest, "\n")), 0o600) == nil {
			_ = unix.Kill(unix.Getpid(), unix.SIGKILL) // there is nobody left to hear of a failure
		}
	}
}

// ownDigest is the SHA-256 of the running program's file.
func ownDigest() (string, error) {
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

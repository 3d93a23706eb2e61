package main

import (
	"bytes"
	"context"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"mesh/agent/exposure"
	"mesh/firewall/evaluate"
	"mesh/shared/clock"
	"mesh/shared/declaration"
	"mesh/shared/refusal"
	"mesh/shared/strict"
)

// whyCommand is "mesh-agent why": which rule lets a packet in, or whose chain refuses it (NET-12).
func whyCommand(at *places) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "why PROTOCOL [PORT] [from ADDRESS|LINK|uplink|tunnel]",
		Short: "Say which rule lets a packet in, or whose chain refuses it",
		Long: `Say what becomes of a packet that arrives: which rule of which module lets it in, or which chain refuses it
and whose that is, and what it is redirected to. All rule sets of this network namespace are evaluated as the
kernel would, whoever wrote them; nothing is sent. It needs no daemon, but root.

Without "from" the sender is anybody over the uplinks whom no rule names.
The exit code is 0 when it is let in, 1 when it is refused, 2 when that cannot be told.`,
		Example: "  sudo mesh-agent why tcp 22\n  sudo mesh-agent why 8080/tcp from 198.51.100.7\n  sudo mesh-agent why udp 53 from tunnel\n  sudo mesh-agent why vrrp --json",
		Args:    whyArguments,
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := readMachine(cmd.Context(), at)
			if err != nil {
				return cannotTell{err}
			}
			w, err := m.Why(whyAsk(args))
			if err != nil {
				return cannotTell{err}
			}
			if asJSON {
				err = encode(cmd.OutOrStdout(), w)
			} else {
				err = w.Render(cmd.OutOrStdout())
			}
			switch {
			case err != nil:
				return err
			case w.Verdict == evaluate.Refused:
				return verdict(1)
			case w.Verdict == evaluate.Depends:
				return verdict(2)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// whyArguments takes a protocol, perhaps a port, and perhaps "from" with who.
func whyArguments(_ *cobra.Command, args []string) error {
	rest := len(args)
	if rest >= 3 && args[rest-2] == "from" {
		rest -= 2
	}
	if rest < 1 || rest > 2 || rest == 2 && args[1] == "from" {
		return fmt.Errorf(`say a protocol, a port and who asks, as in "why tcp 22 from 198.51.100.7"`)
	}
	return nil
}

func whyAsk(args []string) (ask exposure.Ask) {
	if n := len(args); n >= 3 && args[n-2] == "from" {
		ask.From, args = args[n-1], args[:n-2]
	}
	ask.Protocol = args[0]
	if len(args) > 1 {
		ask.Port = args[1]
	}
	return ask
}

// readMachine reads the machine that the command runs on, on one thread: the network namespace is the
// thread's.
func readMachine(ctx context.Context, at *places) (*exposure.Machine, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return exposure.Read(ctx, at.root, declaredFilter(ctx, at))
}

// declaredFilter is the packet filter of the declaration accepted last; nil where there is none, or where
// it cannot be read: the machine's rules are evaluated all the same.
func declaredFilter(ctx context.Context, at *places) *declaration.Filter {
	store, err := shower{at: *at, clk: clock.Real()}.open(ctx)
	if err != nil {
		return nil
	}
	defer store.Close() // read only: nothing is lost
	a, ok, err := store.Current(ctx)
	if err != nil || !ok {
		return nil
	}
	var d declaration.Declaration
	if _, body, signed := bytes.Cut(a.Signed, []byte{'\n'}); signed && strict.Decode(body, &d) == nil {
		return d.Filter
	}
	return nil
}

// exposure is "mesh-agent show exposure".
func (s shower) exposure(ctx context.Context) error {
	m, err := readMachine(ctx, &s.at)
	if err != nil {
		return cannotTell{err}
	}
	e := m.Of()
	if s.asJSON {
		err = encode(s.out, e)
	} else {
		err = exposure.Render(s.out, e)
	}
	if err == nil && len(e.Differences()) > 0 {
		return verdict(1)
	}
	return err
}

var errNoWatch = refusal.New("show exposure --watch", "the exposure is evaluated anew each time", `call "mesh-agent show exposure" again`)

// cannotTell is a refusal of a command whose exit code 1 is an answer: with it the code is 2.
type cannotTell struct{ error }

func (c cannotTell) Unwrap() error { return c.error }

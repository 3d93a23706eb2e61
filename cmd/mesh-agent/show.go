package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"mesh/agent"
	"mesh/agent/show"
	"mesh/agent/state"
	"mesh/shared/clock"
	"mesh/shared/credential"
	"mesh/shared/manifest"
	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/subject"
	"mesh/shared/version"
)

// watchEvery is how often --watch looks whether something changed.
const watchEvery = 500 * time.Millisecond

// pastLines is how much of the history show prints.
const pastLines = 20

// showCommand is "mesh-agent show": how this machine is, bus or no bus, daemon up or down (NOD-10).
func showCommand(at *places) *cobra.Command {
	var asJSON, watch bool
	cmd := &cobra.Command{
		Use:   "show [module|firewall|history|declaration]",
		Short: "Say how this machine is: its declaration, modules, uplinks, rules and problems",
		Long: `Say how this machine is, bus or no bus, with the agent running or not.

The argument is the name of a module, or one of firewall, history, declaration.
The exit code is 0 when all is well, 1 when something is not, 2 when it cannot be told.`,
		Example: "  mesh-agent show\n  mesh-agent show notes\n  mesh-agent show firewall\n  mesh-agent show --json | jq .modules",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			what := ""
			if len(args) > 0 {
				what = args[0]
			}
			s := shower{at: *at, what: what, asJSON: asJSON, clk: clock.Real(), out: cmd.OutOrStdout()}
			if watch {
				return s.watch(cmd.Context())
			}
			return s.once(cmd.Context(), s.out)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&watch, "watch", false, "print again whenever something changed, until interrupted")
	return cmd
}

type shower struct {
	at     places
	what   string
	asJSON bool
	clk    clock.Clock
	out    io.Writer
}

func (s shower) once(ctx context.Context, w io.Writer) error {
	switch s.what {
	case "history":
		return s.history(ctx, w)
	case "declaration":
		return s.declaration(ctx, w)
	}
	d, err := s.document(ctx)
	if err != nil {
		return err
	}
	if err := s.print(w, d); err != nil {
		return err
	}
	if v, _ := d.Judge(); v != show.Well && s.what == "" {
		return verdict(v)
	}
	return nil
}

func (s shower) print(w io.Writer, d *show.Document) error {
	now := s.clk.Now()
	switch s.what {
	case "":
		if s.asJSON {
			return encode(w, d)
		}
		return show.Render(w, d, now)
	case "firewall":
		if s.asJSON {
			return encode(w, d.Filter)
		}
		return show.RenderFirewall(w, d, now)
	}
	var names []string
	for _, m := range d.Modules {
		if string(m.Name) != s.what {
			names = append(names, string(m.Name))
			continue
		}
		if s.asJSON {
			return encode(w, m)
		}
		if err := show.RenderModule(w, d, m, now); err != nil {
			return err
		}
		if m.State != report.Running {
			return verdict(show.Amiss)
		}
		return nil
	}
	do := `see what there is: "mesh-agent show"`
	if near := manifest.Suggest(s.what, names); near != "" {
		do = fmt.Sprintf("did you mean %q?", near)
	}
	return refusal.New("show "+s.what, "no module of that name is assigned to this machine", do)
}

func encode(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// document is the daemon's, or with it down one made from the store.
func (s shower) document(ctx context.Context) (*show.Document, error) {
	d, err := show.Read(filepath.Join(s.at.run, agent.StatusFile))
	if err == nil || !errors.Is(err, show.ErrDown) {
		return d, err
	}
	store, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	defer store.Close()
	r := show.Runtime{At: s.clk.Now().UnixMilli(), Agent: report.Agent{Version: version.String()}}
	if f, err := credential.Load(filepath.Join(s.at.state, agent.CredentialFile)); err == nil {
		r.Node, r.Mesh = subject.Node(f.Name), f.Mesh
	}
	return show.Gather(ctx, store, r)
}

func (s shower) open(ctx context.Context) (*state.Store, error) {
	path := filepath.Join(s.at.state, agent.StateFile)
	if _, err := os.Stat(path); err != nil {
		do := `enrol it: "mesh-coordinator node invite <name>" on the coordinator, then "mesh-installer enrol <line>" here`
		if errors.Is(err, os.ErrPermission) {
			return nil, fmt.Errorf("%w: the agent is down and its state is for root; run it with sudo", err)
		}
		return nil, fmt.Errorf("this machine is in no mesh: there is no %s\ndo: %s", path, do)
	}
	return state.OpenReadOnly(ctx, path, s.clk)
}

func (s shower) history(ctx context.Context, w io.Writer) error {
	store, err := s.open(ctx)
	if err != nil {
		return err
	}
	defer store.Close()
	past, err := store.History(ctx, pastLines)
	if err != nil {
		return err
	}
	if s.asJSON {
		return encode(w, past)
	}
	return show.RenderHistory(w, past, s.clk.Now())
}

// declaration prints the JSON that was signed: it is for people who want to see exactly what was said.
func (s shower) declaration(ctx context.Context, w io.Writer) error {
	store, err := s.open(ctx)
	if err != nil {
		return err
	}
	defer store.Close()
	a, ok, err := store.Current(ctx)
	if err != nil {
		return err
	}
	if !ok {
		return refusal.New("show declaration", "the coordinator has not sent one", `send it: "mesh-coordinator push <node>"`)
	}
	_, body, _ := bytes.Cut(a.Signed, []byte{'\n'})
	var b bytes.Buffer
	if err := json.Indent(&b, body, "", "  "); err != nil {
		return fmt.Errorf("the stored declaration is not JSON: %w", err)
	}
	b.WriteByte('\n')
	_, err = b.WriteTo(w)
	return err
}

// watch prints again whenever the daemon has said something new.
func (s shower) watch(ctx context.Context) error {
	ticks, stop := s.clk.Every(watchEvery)
	defer stop()
	var last []byte
	for {
		var b bytes.Buffer
		err := s.once(ctx, &b)
		var v verdict
		if err != nil && !errors.As(err, &v) {
			return err
		}
		if !bytes.Equal(b.Bytes(), last) {
			last = bytes.Clone(b.Bytes())
			if _, err := fmt.Fprintf(s.out, "%s\n", last); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticks:
		}
	}
}

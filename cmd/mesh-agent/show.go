package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"mesh/agent"
	"mesh/agent/show"
	"mesh/agent/state"
	"mesh/shared/clock"
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
	var when string
	cmd := &cobra.Command{
		Use:   "show [module|firewall|exposure|history|declaration]",
		Short: "Say how this machine is: its declaration, modules, uplinks, rules and problems",
		Long: `Say how this machine is, bus or no bus, with the agent running or not.

The argument is the name of a module, or one of firewall, exposure, history, declaration.
The exit code is 0 when all is well, 1 when something is not, 2 when it cannot be told.`,
		Example: "  mesh-agent show\n  mesh-agent show notes\n  mesh-agent show firewall\n  sudo mesh-agent show exposure\n  mesh-agent show --json | jq .modules\n  mesh-agent show --watch\n  sudo mesh-agent show --at 10m",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			what := ""
			if len(args) > 0 {
				what = args[0]
			}
			s := shower{at: *at, what: what, asJSON: asJSON, clk: clock.Real(), out: cmd.OutOrStdout()}
			if what == "exposure" && when == "" {
				if watch {
					return errNoWatch
				}
				return s.exposure(cmd.Context())
			}
			if when != "" {
				if watch {
					return errWatchPast
				}
				return s.pastPage(cmd.Context(), s.out, when)
			}
			if watch {
				return s.watch(cmd.Context())
			}
			return s.once(cmd.Context(), s.out)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&watch, "watch", false, "print again whenever something changed, until interrupted")
	cmd.Flags().StringVar(&when, "at", "", `as it was at a time: an age such as "10m" or "3d", "yesterday 22:00", or as in RFC 3339`)
	return cmd
}

type shower struct {
	at     places
	what   string
	asJSON bool
	clk    clock.Clock
	out    io.Writer
}

// words are what show takes that is no module's name.
var words = []string{"firewall", "exposure", "history", "declaration"}

// once prints what is asked for; the error is a verdict when the page itself says what is wrong.
func (s shower) once(ctx context.Context, w io.Writer) error {
	switch s.what {
	case "history":
		past, drift, err := s.past(ctx)
		if err != nil {
			return err
		}
		if s.asJSON {
			return encode(w, show.HistoryPage(past, drift))
		}
		return show.RenderHistory(w, past, drift, s.clk.Now())
	case "declaration":
		return s.declaration(ctx, w)
	}
	d, err := s.document(ctx)
	if err != nil {
		return err
	}
	return s.print(ctx, w, d)
}

func (s shower) print(ctx context.Context, w io.Writer, d *show.Document) error {
	v, err := show.Unknown, error(nil)
	switch s.what {
	case "":
		v, _ = d.Judge()
		if s.asJSON {
			err = encode(w, d.Page())
		} else {
			err = show.Render(w, d, s.clk.Now())
		}
	case "firewall":
		switch {
		case d.Daemon.Up && d.Filter != nil && (!d.Filter.Loaded || d.Filter.Why != ""):
			v = show.Amiss
		case d.Daemon.Up:
			v = show.Well
		}
		if s.asJSON {
			err = encode(w, show.FilterPage(d.Filter, s.live(ctx)))
		} else {
			err = show.RenderFirewall(w, d, s.live(ctx), s.clk.Now())
		}
	default:
		v, err = s.module(w, d)
	}
	if err == nil && v != show.Well {
		return verdict(v)
	}
	return err
}

// live asks the kernel of the thread's network namespace.
func (s shower) live(ctx context.Context) show.Live {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return show.ReadLive(ctx)
}

// module prints one. With the agent down it is not called well, whatever it was last.
func (s shower) module(w io.Writer, d *show.Document) (show.Verdict, error) {
	i := slices.IndexFunc(d.Modules, func(m report.Module) bool { return string(m.Name) == s.what })
	if i < 0 {
		return show.Unknown, s.noModule(d)
	}
	m, v := d.Modules[i], show.Well
	switch {
	case m.State == report.Unknown, !d.Daemon.Up && m.State == report.Running:
		v = show.Unknown
	case m.State != report.Running:
		v = show.Amiss
	}
	if s.asJSON {
		return v, encode(w, show.ModulePage(m))
	}
	return v, show.RenderModule(w, d, m, s.clk.Now())
}

func (s shower) noModule(d *show.Document) error {
	names := slices.Clone(words)
	for _, m := range d.Modules {
		names = append(names, string(m.Name))
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

// running is the daemon's; ErrDown is met with it down.
func (s shower) running(ctx context.Context) (*show.Document, error) {
	d, err := show.Ask(ctx, filepath.Join(s.at.run, show.Socket))
	if errors.Is(err, show.ErrDown) { // or it could not listen
		return show.Read(filepath.Join(s.at.run, agent.StatusFile))
	}
	return d, err
}

// document is the daemon's, or with it down one made from the store.
func (s shower) document(ctx context.Context) (*show.Document, error) {
	d, err := s.running(ctx)
	if err == nil || !errors.Is(err, show.ErrDown) {
		return d, err
	}
	r := show.Runtime{At: s.clk.Now().UnixMilli(), Agent: report.Agent{Version: version.String()}}
	r.Node, r.Mesh = whose(filepath.Join(s.at.state, agent.CredentialFile))
	if d, ok := show.Last(filepath.Join(s.at.run, agent.StatusFile), filepath.Join(s.at.state, agent.StateFile), r); ok {
		return d, nil
	}
	store, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	defer store.Close()
	return show.Gather(ctx, store, r)
}

// whose says whose machine it is, from the credential. It looks at no key: that would be half the time of
// the command.
func whose(path string) (subject.Node, string) {
	var f struct{ Name, Mesh string }
	b, err := os.ReadFile(path)
	if err != nil || json.Unmarshal(b, &f) != nil {
		return "", "" // the rest is worth showing
	}
	return subject.Node(f.Name), f.Mesh
}

func (s shower) open(ctx context.Context) (*state.Store, error) {
	path := filepath.Join(s.at.state, agent.StateFile)
	_, err := os.Stat(path)
	if err == nil {
		var f *os.File // SQLite's own words for it do not say what to do
		if f, err = os.Open(path); err == nil {
			err = f.Close()
		}
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("%w\ndo: run it as root: what the agent keeps is for root alone", err)
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("this machine is in no mesh: there is no %s\ndo: enrol it: %s", path,
			`"mesh-coordinator node invite <name>" on the coordinator, then "mesh-installer enrol <line>" here`)
	case err != nil:
		return nil, err
	}
	return state.OpenReadOnly(ctx, path, s.clk)
}

func (s shower) past(ctx context.Context) (past []state.Past, drift []report.Drift, err error) {
	store, err := s.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer store.Close()
	if past, err = store.History(ctx, pastLines); err != nil {
		return nil, nil, err
	}
	drift, err = store.Drift(ctx, pastLines)
	return past, drift, err
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
	return indented(w, body)
}

func indented(w io.Writer, body []byte) error {
	var b bytes.Buffer
	if err := json.Indent(&b, body, "", "  "); err != nil {
		return fmt.Errorf("the stored declaration is not JSON: %w", err)
	}
	b.WriteByte('\n')
	_, err := b.WriteTo(w)
	return err
}

// watch prints again whenever something is other than it was; that the same is older is no change.
func (s shower) watch(ctx context.Context) error {
	ticks, stop := s.clk.Every(watchEvery)
	defer stop()
	var last []byte
	for {
		now, err := s.content(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if !bytes.Equal(now, last) {
			if last != nil {
				if _, err := fmt.Fprintln(s.out); err != nil {
					return err
				}
			}
			var v verdict
			if err := s.once(ctx, s.out); err != nil && !errors.As(err, &v) {
				return err
			}
			last = now
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticks:
		}
	}
}

// content is all that the page says, but ages and what changes all the time.
func (s shower) content(ctx context.Context) ([]byte, error) {
	switch s.what {
	case "history":
		past, drift, err := s.past(ctx)
		if err != nil {
			return nil, err
		}
		return json.Marshal(show.HistoryPage(past, drift))
	case "declaration":
		var b bytes.Buffer
		err := s.declaration(ctx, &b)
		return b.Bytes(), err
	}
	d, err := s.document(ctx)
	if err != nil {
		return nil, err
	}
	d.At, d.FreeDisk = 0, 0
	return json.Marshal(d)
}

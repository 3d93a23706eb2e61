package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"mesh/agent"
	"mesh/agent/show"
	"mesh/agent/state"
	"mesh/shared/clock"
	"mesh/shared/refusal"
	"mesh/shared/report"
)

var errWatchPast = errors.New("what was does not change: --at and --watch are not for each other\ndo: leave one out")

// diffCommand is "mesh-agent diff": what changed on this machine between two times (NOD-15).
func diffCommand(at *places) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "diff <time> [time]",
		Short: "Say what changed on this machine between two times: declared, found, packet filter, versions",
		Long: `Say what changed on this machine between two times, the second of them now unless given: what was
declared, what was found, the packet filter, the versions, and what happened in between. It is told from
the agent's own history, bus or no bus, with the agent running or not.

A time is an age ("10m", "3d"), "22:00", "yesterday 22:00", "2026-11-30 22:00", or as in RFC 3339.`,
		Example: "  sudo mesh-agent diff 1h\n  sudo mesh-agent diff \"yesterday 22:00\" 2h\n  sudo mesh-agent diff 2026-11-30T10:00:00Z 2026-11-30T11:00:00Z --json",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			s := shower{at: *at, asJSON: asJSON, clk: clock.Real(), out: cmd.OutOrStdout()}
			return s.diff(cmd.Context(), args)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// history is what this machine remembers of itself.
type history struct {
	*show.Past
	applies []state.Past
	drift   []report.Drift
	kept    []state.Accepted
}

func (s shower) history(ctx context.Context) (*history, error) {
	store, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	defer store.Close()
	h := &history{}
	moments, from, err := store.Moments(ctx)
	if err != nil {
		return nil, err
	}
	live, err := s.running(ctx)
	if err != nil && !errors.Is(err, show.ErrDown) {
		return nil, err
	}
	if h.Past, err = show.NewPast(moments, from, live); err != nil {
		return nil, err
	}
	if h.applies, err = store.History(ctx, state.MaxHistory); err != nil {
		return nil, err
	}
	if h.drift, err = store.Drift(ctx, state.MaxDrift); err != nil {
		return nil, err
	}
	h.kept, err = store.Accepted(ctx)
	return h, err
}

// then is how the machine was at the time in text.
func (s shower) then(h *history, text string) (*show.Then, error) {
	now := s.clk.Now()
	t, err := show.ParseTime(text, now)
	if err != nil {
		return nil, err
	}
	then, err := h.At(t, now)
	if err != nil {
		return nil, cannotTell{err}
	}
	then.Document.Node, then.Document.Mesh = whose(filepath.Join(s.at.state, agent.CredentialFile))
	return then, nil
}

// past prints what is asked for as it was at a time; the error is a verdict when the page says what was wrong.
func (s shower) pastPage(ctx context.Context, w io.Writer, text string) error {
	if s.what == "history" || s.what == "exposure" {
		return fmt.Errorf("of %s nothing is kept for a time\ndo: leave --at out", s.what)
	}
	h, err := s.history(ctx)
	if err != nil {
		return err
	}
	then, err := s.then(h, text)
	if err != nil {
		return err
	}
	v := show.Unknown
	switch s.what {
	case "":
		v, _ = then.Well()
		if s.asJSON {
			err = encode(w, then.Page())
		} else {
			err = show.RenderThen(w, then, s.clk.Now())
		}
	case "firewall":
		return s.pastFilter(w, then)
	case "declaration":
		return h.declaration(w, then)
	default:
		s.clk = clock.NewFake(then.At) // ages as they were
		v, err = s.module(w, then.Document)
	}
	if err == nil && v != show.Well {
		return verdict(v)
	}
	return err
}

func (s shower) pastFilter(w io.Writer, then *show.Then) error {
	d := then.Document
	if s.asJSON {
		return encode(w, then.FilterPage())
	}
	if err := show.RenderThenFilter(w, then); err != nil {
		return err
	}
	if d.Filter != nil && !d.Filter.Loaded {
		return verdict(show.Amiss)
	}
	return nil
}

// declaration prints the text that was in force.
func (h *history) declaration(w io.Writer, then *show.Then) error {
	seq := then.Document.Declaration.Seq
	i := slices.IndexFunc(h.kept, func(a state.Accepted) bool { return a.Seq == seq })
	switch {
	case seq == 0:
		return refusal.New("show declaration", "none was in force then", "ask for a later time")
	case i < 0:
		return cannotTell{refusal.Newf(fmt.Sprintf("the text of declaration %d", seq), `ask the coordinator's journal: "mesh-coordinator changes"`,
			"it is not kept any more: the last %d are", state.Kept)}
	}
	_, body, _ := bytes.Cut(h.kept[i].Signed, []byte{'\n'})
	return indented(w, body)
}

func (s shower) diff(ctx context.Context, times []string) error {
	if len(times) == 1 {
		times = append(times, "now")
	}
	h, err := s.history(ctx)
	if err != nil {
		return err
	}
	var at [2]*show.Then
	for i := range at {
		if at[i], err = s.then(h, times[i]); err != nil {
			return err
		}
	}
	if at[1].At.Before(at[0].At) {
		at[0], at[1] = at[1], at[0]
	}
	texts := map[uint64][]byte{}
	for _, a := range h.kept {
		_, texts[a.Seq], _ = bytes.Cut(a.Signed, []byte{'\n'})
	}
	d, err := show.Compare(at[0], at[1], texts, h.applies, h.drift)
	if err != nil {
		return err
	}
	if s.asJSON {
		return encode(s.out, d.Page())
	}
	return show.RenderDiff(s.out, d, s.clk.Now().Round(time.Millisecond))
}

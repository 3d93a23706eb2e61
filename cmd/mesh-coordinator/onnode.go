package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"mesh/coordinator/client"
	"mesh/shared/engine"
	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/subject"
)

// askingNode makes cmd ask v of the node that is the first argument, and print the answer.
func askingNode[R any](a *app, cmd *cobra.Command, v subject.Verb, args func(given []string) (any, error), print func(R) error) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		n, err := subject.ParseNode(given[0])
		if err != nil {
			return err
		}
		ask, err := args(given[1:])
		if err != nil {
			return err
		}
		c, err := a.connect(cmd.Context())
		if err != nil {
			return err
		}
		defer c.Close()
		answer, err := client.AskNode[R](cmd.Context(), c, subject.NodeEngine, v, n, ask)
		if err != nil {
			return err
		}
		return a.show(cmd, answer, func() error { return print(answer) })
	}
	return cmd
}

// nodeApplyNow is "mesh-coordinator node apply-now".
func (a *app) nodeApplyNow() *cobra.Command {
	return askingNode(a, a.onNode(engine.ApplyNow, "apply-now <node>", cobra.ExactArgs(1)), engine.ApplyNow, nothing,
		func(r engine.ApplyAnswer) error { return writeApply(a.out, r) })
}

func writeApply(w io.Writer, r engine.ApplyAnswer) error {
	if r.Running {
		_, err := fmt.Fprintf(w, "declaration %d: the pass takes long and goes on; see how it went: mesh-coordinator node show\n", r.Seq)
		return err
	}
	words := fmt.Sprintf("declaration %d %s: %d steps in %s", r.Seq, r.Outcome, r.Steps, (time.Duration(r.TookMS) * time.Millisecond).String())
	if r.Outcome == report.None {
		words = "nothing is declared for it yet"
	}
	if _, err := fmt.Fprintln(w, words); err != nil {
		return err
	}
	for _, d := range r.Differed {
		done := "stays so"
		if d.Repaired {
			done = "repaired"
		}
		if _, err := fmt.Fprintf(w, "  %s: %s (%s)\n", d.Thing, oneLine(d.What), done); err != nil {
			return err
		}
		if d.Who != "" {
			if _, err := fmt.Fprintf(w, "    around then: %s\n", oneLine(d.Who)); err != nil {
				return err
			}
		}
	}
	if r.Refused != nil {
		return r.Refused
	}
	return nil
}

// nodeRestart is "mesh-coordinator node restart".
func (a *app) nodeRestart() *cobra.Command {
	cmd := a.onNode(engine.Restart, "restart <node> <module> [process]", cobra.RangeArgs(2, 3))
	because := why(cmd)
	return askingNode(a, cmd, engine.Restart, func(given []string) (any, error) {
		m, err := subject.ParseModule(given[0])
		ask := engine.RestartAsk{Module: m, Why: *because}
		if len(given) > 1 {
			ask.Process = given[1]
		}
		return ask, err
	}, func(r engine.RestartAnswer) error {
		rows := make([][]string, 0, len(r.Units))
		bad := ""
		for _, u := range r.Units {
			rows = append(rows, []string{u.Unit, u.State, u.Why})
			if u.State != "active" {
				bad = u.Unit
			}
		}
		if err := table(a.out, "UNIT | STATE | WHY", rows); err != nil {
			return err
		}
		if bad != "" {
			return refusal.New("the restart", bad+" is not up yet, or not any more", "look at its lines: mesh-coordinator logs <node> <module>")
		}
		return nil
	})
}

// nodeAsk is "mesh-coordinator node ask": any verb of node-engine, as it is.
func (a *app) nodeAsk() *cobra.Command {
	cmd := &cobra.Command{Use: "ask <node> <verb> [arguments as JSON]", Short: "Ask a machine's agent any of its verbs, and print the answer as JSON",
		Example: "  mesh-coordinator node ask db1 show\n  mesh-coordinator node ask db1 facts", Args: cobra.RangeArgs(2, 3)}
	a.clientFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		n, err := subject.ParseNode(given[0])
		if err != nil {
			return err
		}
		v, err := subject.ParseVerb(given[1])
		if err != nil {
			return err
		}
		args := json.RawMessage("{}")
		if len(given) > 2 {
			if args = json.RawMessage(given[2]); !json.Valid(args) {
				return refusal.New("the arguments", "they are not JSON", `write them as '{"module":"notes"}'`)
			}
		}
		c, err := a.connect(cmd.Context())
		if err != nil {
			return err
		}
		defer c.Close()
		answer, err := client.AskNode[json.RawMessage](cmd.Context(), c, subject.NodeEngine, v, n, args)
		if err != nil {
			return err
		}
		enc := json.NewEncoder(a.out)
		enc.SetIndent("", "  ")
		return enc.Encode(answer)
	}
	return cmd
}

// logs is "mesh-coordinator logs" (APP-16).
func (a *app) logs() *cobra.Command {
	var follow bool
	var since string
	var lines int
	cmd := &cobra.Command{Use: "logs <node> <module>", Short: "Read a module's lines in a machine's journal, over the bus", Args: cobra.ExactArgs(2),
		Example: "  mesh-coordinator logs db1 notes\n  mesh-coordinator logs db1 notes --since 2h\n  mesh-coordinator logs db1 notes -f"}
	a.clientFlags(cmd)
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until interrupted")
	cmd.Flags().StringVar(&since, "since", "", `from then on: "90m", "2h", or a time as 2026-01-31T15:04:05Z`)
	cmd.Flags().IntVarP(&lines, "lines", "n", 0, "how many of the last lines (default 100, or all with --since)")
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		n, err := subject.ParseNode(given[0])
		if err != nil {
			return err
		}
		ask := engine.LogsAsk{Follow: follow, Lines: lines}
		if ask.Module, err = subject.ParseModule(given[1]); err != nil {
			return err
		}
		if ask.SinceMS, err = sinceMS(since, a.clk.Now()); err != nil {
			return err
		}
		if ask.Lines == 0 && ask.SinceMS == 0 {
			ask.Lines = 100
		}
		asJSON, err := cmd.Flags().GetBool("json")
		if err != nil {
			return err
		}
		c, err := a.connect(cmd.Context())
		if err != nil {
			return err
		}
		defer c.Close()
		some := false
		err = c.Logs(cmd.Context(), n, ask, func(batch []engine.LogLine) error {
			some = some || len(batch) > 0
			return writeLines(a.out, ask.Module, batch, asJSON)
		}, func(why error) {
			fmt.Fprintf(a.err, "%s; trying again\n", oneLine(why.Error()))
		})
		if err == nil && !some && !follow {
			fmt.Fprintf(a.err, "the journal of %s has no such lines of %s\n", n, ask.Module)
		}
		return err
	}
	return cmd
}

// sinceMS reads a time or how long ago it was; 0 for none.
func sinceMS(s string, now time.Time) (int64, error) {
	if s == "" {
		return 0, nil
	}
	if d, err := time.ParseDuration(s); err == nil && d > 0 {
		return now.Add(-d).UnixMilli(), nil
	}
	if days, ok := strings.CutSuffix(s, "d"); ok {
		if n, err := strconv.Atoi(days); err == nil && n > 0 && n < 10_000 {
			return now.AddDate(0, 0, -n).UnixMilli(), nil
		}
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02 15:04", time.DateOnly} {
		if at, err := time.ParseInLocation(layout, s, now.Location()); err == nil && at.UnixMilli() > 0 {
			return at.UnixMilli(), nil
		}
	}
	return 0, refusal.New(fmt.Sprintf("--since %q", s), "it is neither a time nor how long ago", "write 90m, 2h, 7d, 2026-01-31 or 2026-01-31T15:04:05Z")
}

// line is a line as JSON prints it.
type line struct {
	At       time.Time `json:"at"`
	Unit     string    `json:"unit"`
	Priority int       `json:"priority"`
	Text     string    `json:"text"`
	Cut      bool      `json:"cut,omitempty"`
}

func writeLines(w io.Writer, m subject.Module, batch []engine.LogLine, asJSON bool) error {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	for _, l := range batch {
		at := time.UnixMilli(l.AtMS)
		if asJSON {
			if err := enc.Encode(line{at.UTC(), l.Unit, l.Priority, l.Text, l.Cut}); err != nil {
				return err
			}
			continue
		}
		unit := strings.TrimSuffix(strings.TrimPrefix(l.Unit, "mesh-"+string(m)+"-"), ".service")
		fmt.Fprintf(&b, "%s %s: %s", at.Format("2006-01-02 15:04:05.000"), printable(unit), printable(l.Text))
		if l.Cut {
			b.WriteString(" …")
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// printable takes from a program's line what would drive a terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\t' || unicode.IsPrint(r) {
			return r
		}
		if r == '\n' {
			return ' '
		}
		return '·'
	}, s)
}

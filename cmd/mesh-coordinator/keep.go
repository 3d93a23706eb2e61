package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"mesh/coordinator/client"
	"mesh/shared/controller"
	"mesh/shared/refusal"
	"mesh/shared/subject"
)

// nodeKeep is "mesh-coordinator node keep" (APP-19).
func (a *app) nodeKeep() *cobra.Command {
	cmd := a.verb(controller.NodeKeep, "keep <node> <thing>", cobra.ExactArgs(2))
	cmd.Long = `Have what was changed by hand of a thing stay as it is until a time, whatever the node's policy: it is reported,
and not repaired. It ends by itself, on the machine, also while that is cut off; a build that declares the thing otherwise
ends it too. Without --until it ends now. The thing is named as mesh-agent show does: file:/etc/notes.conf.`
	until := cmd.Flags().String("until", "", `how long, or until when: "90m", "7d", 2026-01-31 or 2026-01-31T15:04:05Z`)
	reason := why(cmd)
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		n, err := subject.ParseNode(given[0])
		if err != nil {
			return err
		}
		ask := controller.NodeKeepAsk{Node: n, Thing: given[1], Why: *reason}
		if ask.Until, err = untilTime(*until, a.clk.Now()); err != nil {
			return err
		}
		c, err := a.connect(cmd.Context())
		if err != nil {
			return err
		}
		defer c.Close()
		r, err := client.Ask[controller.NodeKeepAnswer](cmd.Context(), c, controller.NodeKeep, ask)
		if err != nil {
			return err
		}
		p := progress{w: a.err, fancy: a.fancy, states: map[subject.Node]controller.PushState{}}
		r.Push, err = c.Watch(cmd.Context(), r.Push, handWait, p.news)
		if p.end(); err != nil && !errors.Is(err, context.Canceled) {
			return fmt.Errorf("push %s goes on without this command, see mesh-coordinator push show %s: %w", r.Push.ID, r.Push.ID, err)
		}
		err = a.show(cmd, r, func() error {
			rows := make([][]string, 0, len(r.Keeps))
			for _, k := range r.Keeps {
				rows = append(rows, []string{k.Thing, k.Until.UTC().Format("2006-01-02 15:04 UTC"), k.By, k.Why})
			}
			a.none(len(rows), "nothing is kept on "+string(n)+" that was changed by hand")
			return table(a.out, "KEPT | UNTIL | BY | WHY", rows)
		})
		if err == nil && r.Push.Counts[controller.PushRefused] > 0 {
			return errNotWell
		}
		return err
	}
	return cmd
}

// untilTime reads a time to come, or how long it is until then; the zero time for none.
func untilTime(s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(s); err == nil && d > 0 {
		return now.Add(d), nil
	}
	if days, ok := strings.CutSuffix(s, "d"); ok {
		if n, err := strconv.Atoi(days); err == nil && n > 0 && n < 10_000 {
			return now.AddDate(0, 0, n), nil
		}
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02 15:04", time.DateOnly} {
		if at, err := time.ParseInLocation(layout, s, now.Location()); err == nil && at.After(now) {
			return at, nil
		}
	}
	return time.Time{}, refusal.New(fmt.Sprintf("--until %q", s), "it is neither a time to come nor how long", "write 90m, 7d, 2026-01-31 or 2026-01-31T15:04:05Z")
}

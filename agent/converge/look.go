package converge

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"mesh/firewall/foreign"
	"mesh/shared/order"
	"mesh/shared/report"
)

// readEvery is how old a reading may be though nothing is seen to have changed: rules in legacy tables and
// programs of links change unseen.
const readEvery = time.Hour

// reading is what was found, and when.
type reading struct {
	signature string
	at        time.Time
	found     *report.Refusals
}

// Refusals are all that refuses traffic on the machine. While nothing has changed the same is returned, and
// nothing is read but a few numbers. It never fails: what could not be read or understood is named in it.
func (c *Converger) Refusals(ctx context.Context) *report.Refusals {
	signature, err := c.cfg.Signature()
	now := c.cfg.Clock.Now()
	if err == nil && c.seen.found != nil && signature == c.seen.signature && now.Sub(c.seen.at) < readEvery {
		return c.seen.found
	}
	rs, errRead := c.read(ctx)
	if ctx.Err() != nil {
		return c.seen.found
	}
	found := &report.Refusals{}
	if errRead != nil {
		found.Why = "the rules cannot be read: " + errRead.Error()
		c.seen = reading{found: found} // and is tried again
		return found
	}
	judged := foreign.Judge(rs)
	found = refusals(judged)
	for _, p := range c.prospects(ctx, rs, judged) {
		found.FrontEnds = append(found.FrontEnds, p.FrontEnd)
	}
	if err := c.found(ctx, foreign.Keeps(rs)); err != nil {
		c.cfg.Log.Warn("what is there again is not remembered", "err", err)
	}
	found.Shorten()
	if err != nil {
		signature = "" // read again next time
	}
	c.seen = reading{signature, now, found}
	return found
}

// found strikes out what a converge took by mistake and is there again, such as docker's rules after a restart
// of docker.
func (c *Converger) found(ctx context.Context, now []foreign.Kept) error {
	if len(c.now().Lost) == 0 {
		return nil
	}
	left := slices.DeleteFunc(slices.Clone(c.now().Lost), func(lost string) bool {
		return slices.ContainsFunc(now, func(k foreign.Kept) bool { return k.String() == lost })
	})
	if len(left) == len(c.now().Lost) {
		return nil
	}
	return c.keep(ctx, func(r *receipt) { r.Lost = left })
}

// refusals are judged in a report's words, what a person has to look at first.
func refusals(judged foreign.Report) *report.Refusals {
	r := &report.Refusals{}
	for _, one := range slices.Concat(judged.Refusing, judged.Legacy) {
		chain := report.Chain{Family: one.Family, Table: one.Table, Chain: one.Chain, Legacy: one.XTables != "", Hooks: one.Hooks, Priority: one.Priority,
			Policy: one.Policy, Owner: one.Owner, Kind: one.Kind, Fate: one.Fate}
		for _, how := range one.How { // without the counts: a ban more is no news
			word := how
			if i := strings.LastIndex(how, " x"); i > 0 {
				word = how[:i]
			}
			if !slices.Contains(chain.How, word) {
				chain.How = append(chain.How, word)
			}
		}
		r.Chains = append(r.Chains, chain)
	}
	order.Sort(r.Chains, func(a, b report.Chain) int { return weight(a) - weight(b) })
	for _, t := range judged.LegacyTables {
		r.Legacy = append(r.Legacy, t.Family+" "+t.Table)
	}
	for _, b := range judged.Bypass {
		r.Bypass = append(r.Bypass, fmt.Sprintf("%s %s: %s", b.What, b.Name, b.Why))
	}
	r.NotUnderstood = judged.NotUnderstood
	return r
}

// weight sorts chains: what is nobody's, front ends', others', mesh's; those that packets enter first.
func weight(c report.Chain) int {
	order := []string{report.FateName, report.FateRetire, report.FateLeave, report.FateKeep}
	least := len(order)
	for _, fate := range c.Fate {
		if i := slices.Index(order, fate); i >= 0 {
			least = min(least, i)
		}
	}
	if c.Priority == nil {
		return 2*least + 1
	}
	return 2 * least
}

// Package bans says who is banned on this machine, by which tool, why and since when (NET-11): what
// fail2ban, crowdsec, sshguard and psad keep in the kernel's packet filters, in whatever form, read from
// there and not from the tools. It changes nothing, needs root, and starts no goroutine. mesh itself bans
// nobody.
package bans

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"text/tabwriter"
	"time"

	"mesh/firewall/foreign"
	"mesh/shared/clock"
	"mesh/shared/engine"
	"mesh/shared/refusal"
)

// Read answers ask about the network namespace of the calling thread.
func Read(ctx context.Context, clk clock.Clock, ask engine.BannedAsk) (engine.BannedAnswer, error) {
	addresses, err := parse(ask.Addresses)
	if err != nil {
		return engine.BannedAnswer{}, err
	}
	rs, err := foreign.ReadAll(ctx)
	if err != nil {
		return engine.BannedAnswer{}, fmt.Errorf("read who is banned: %w", err)
	}
	return answer(rs, clk.Now(), addresses), nil
}

func parse(texts []string) (addresses []netip.Addr, err error) {
	if len(texts) > engine.MostAddresses {
		return nil, refusal.Newf("who of these is banned", "ask in parts", "they are %d addresses, the bound is %d", len(texts), engine.MostAddresses)
	}
	for _, text := range texts {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return nil, refusal.Newf("who is banned", "write it as 192.0.2.7 or 2001:db8::7", "%q is no address", text)
		}
		addresses = append(addresses, a.Unmap())
	}
	return addresses, nil
}

// answer is pure.
func answer(rs foreign.Ruleset, now time.Time, addresses []netip.Addr) engine.BannedAnswer {
	out := engine.BannedAnswer{Bans: []engine.Ban{}, NotUnderstood: rs.NotUnderstood}
	for _, b := range foreign.Bans(rs) {
		count(&out, b)
		if len(addresses) > 0 && !slices.ContainsFunc(addresses, b.Covers) {
			continue
		}
		if len(out.Bans) == engine.MostBans {
			out.More++
			continue
		}
		x := engine.Ban{Address: b.Addresses(), Tool: b.Owner, Jail: b.Jail, Where: b.Where, Idle: b.Idle}
		if b.AgeMS > 0 {
			x.SinceMS = now.UnixMilli() - int64(b.AgeMS)
		}
		if b.LeftMS > 0 {
			x.UntilMS = now.UnixMilli() + int64(b.LeftMS)
		}
		out.Bans = append(out.Bans, x)
	}
	return out
}

// count notes a ban in its jail; foreign.Bans has them jail by jail.
func count(out *engine.BannedAnswer, b foreign.Ban) {
	if n := len(out.Jails); n > 0 && out.Jails[n-1].Tool == b.Owner && out.Jails[n-1].Jail == b.Jail {
		out.Jails[n-1].Bans++
		return
	}
	out.Jails = append(out.Jails, engine.Jail{Tool: b.Owner, Jail: b.Jail, Bans: 1})
}

// Render prints who is banned for a person.
func Render(w io.Writer, a engine.BannedAnswer, now time.Time) error {
	if len(a.Bans) == 0 && a.More == 0 {
		if _, err := fmt.Fprintln(w, "nobody is banned here"); err != nil {
			return err
		}
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for i, b := range a.Bans {
		if i == 0 {
			fmt.Fprintln(tw, "ADDRESS\tTOOL\tJAIL\tSINCE\tLEFT\tWHERE")
		}
		where := b.Where
		if b.Idle != "" {
			where += " (refuses nobody: " + b.Idle + ")"
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\n", b.Address, b.Tool, or(b.Jail, "-"), ago(b.SinceMS, now), left(b.UntilMS, now), where)
	}
	if a.More > 0 {
		fmt.Fprintf(tw, "and %d more\n", a.More)
	}
	for i, n := range a.NotUnderstood {
		if i == 0 {
			fmt.Fprintln(tw, "\nnot understood")
		}
		fmt.Fprintln(tw, n)
	}
	return tw.Flush()
}

func ago(ms int64, now time.Time) string {
	if ms == 0 {
		return "-"
	}
	return now.Sub(time.UnixMilli(ms)).Round(time.Second).String() + " ago"
}

func left(ms int64, now time.Time) string {
	if ms == 0 {
		return "-"
	}
	return time.UnixMilli(ms).Sub(now).Round(time.Second).String()
}

func or(text, other string) string {
	if text == "" {
		return other
	}
	return text
}

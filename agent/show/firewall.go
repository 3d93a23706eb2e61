package show

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"mesh/firewall"
	"mesh/firewall/foreign"
	"mesh/shared/report"
)

// Live is what the kernel itself says of packet filters, asked when show is.
type Live struct {
	// Counts are those of mesh's table (NET-12).
	Counts []firewall.Count
	// Rules are everybody's.
	Rules foreign.Report
	// Why says why the kernel was not asked; empty: it was.
	Why string
}

// ReadLive asks the kernel, in the network namespace of the calling thread. It needs root; without, Why
// says so.
func ReadLive(ctx context.Context) Live {
	counts, err := firewall.Counts(ctx)
	if err != nil {
		return Live{Why: "the kernel counts, and shows who else filters, to root only"}
	}
	rs, err := foreign.Read(ctx)
	if err != nil {
		return Live{Why: err.Error()}
	}
	return Live{Counts: counts, Rules: foreign.Judge(rs)}
}

// others are the owners besides mesh that refuse, each with where.
func (l Live) others() (lines []string) {
	at := map[string][]string{}
	var order []string
	for _, c := range append(append([]foreign.Refusing{}, l.Rules.Refusing...), l.Rules.Legacy...) {
		for i, owner := range c.Owner {
			if owner == "mesh" {
				continue
			}
			if c.Kind[i] != owner {
				owner += " (" + c.Kind[i] + ")"
			}
			if at[owner] == nil {
				order = append(order, owner)
			}
			at[owner] = append(at[owner], c.Family+" "+c.Table+" "+c.Chain)
		}
	}
	for _, owner := range order {
		chains := at[owner]
		const most = 4
		words := strings.Join(chains[:min(len(chains), most)], ", ")
		if n := len(chains) - most; n > 0 {
			words += fmt.Sprintf(" and %d more", n)
		}
		lines = append(lines, owner+": "+words)
	}
	return lines
}

// RenderFirewall prints the packet filter in the manifest's words, with what it counted, and who else
// filters.
func RenderFirewall(w io.Writer, d *Document, live Live, now time.Time) error {
	p := &printer{w: w, now: now}
	p.stale(d)
	p.filterWords(d)
	switch {
	case d.Filter != nil && d.Filter.Loaded:
		p.mine(d, d.Filter, live)
	case len(live.Counts) > 0: // the kernel keeps what was loaded
		p.mine(d, &report.Filter{}, live)
	}
	if live.Why != "" {
		p.line("%s", live.Why)
		return p.err
	}
	for i, line := range live.others() {
		if i == 0 {
			p.line("")
			p.line("who else refuses here (a drop of anybody wins)")
		}
		p.line("  %s", line)
	}
	for i, b := range live.Rules.Bypass {
		if i == 0 {
			p.line("")
			p.line("passes the rules by")
		}
		p.line("  %s %s: %s", b.What, b.Name, b.Why)
	}
	for i, n := range live.Rules.NotUnderstood {
		if i == 0 {
			p.line("")
			p.line("not understood")
		}
		p.line("  %s", n)
	}
	return p.err
}

// mine prints mesh's own filter.
func (p *printer) mine(d *Document, f *report.Filter, live Live) {
	if f.Why != "" {
		p.amiss(f.Why)
	}
	if len(f.Rules)+len(live.Counts) > 0 {
		p.line("open from outside:")
	}
	var own []firewall.Count
	declared := 0
	p.table(func() {
		for _, c := range live.Counts {
			if !c.Declared {
				own = append(own, c)
				continue
			}
			if declared++; declared == 1 {
				p.line("  RULE\tFLOWS\tBYTES")
			}
			p.line("  %s\t%d\t%s", c.What, c.Packets, size(int64(c.Bytes)))
		}
	})
	if declared == 0 {
		for _, r := range f.Rules {
			p.line("  %s", r)
		}
	}
	refused := ""
	var counted []string
	for _, c := range own {
		switch {
		case c.Name == "refused":
			refused = fmt.Sprintf(": %d packets so far, %s", c.Packets, size(int64(c.Bytes)))
		case c.Packets > 0:
			counted = append(counted, fmt.Sprintf("%s: %d", c.What, c.Packets))
		}
	}
	p.line("%s that arrives over %s is refused%s", either(len(f.Rules)+declared > 0, "everything else", "everything"), orNone(d.outside()), refused)
	if len(counted) > 0 {
		p.line("packets besides: %s", strings.Join(counted, "; "))
	}
	if f.Repairs > 0 {
		p.line("repaired %s since the agent started, after others changed it", times(f.Repairs))
		if f.Repaired != "" {
			p.line("the last repair: %s", oneLine(f.Repaired))
		}
	}
}

// FilterPage is the packet filter as --json prints it. The filter's own fields are missing when none was
// ever declared; who else filters is there all the same.
func FilterPage(f *report.Filter, live Live) any {
	page := filterPage{Counts: live.Counts, Refusing: live.Rules.Refusing, Legacy: live.Rules.Legacy, Bypass: live.Rules.Bypass, NotUnderstood: live.Rules.NotUnderstood, Unknown: live.Why}
	switch {
	case f != nil:
		page.Filter, page.Since = f, stamp(f.Since)
	case len(page.Refusing)+len(page.Legacy)+len(page.Bypass)+len(page.NotUnderstood) == 0 && live.Why == "":
		return nil
	}
	return page
}

type filterPage struct {
	*report.Filter
	Since         time.Time          `json:"since,omitzero"`
	Counts        []firewall.Count   `json:"counts,omitempty"`
	Refusing      []foreign.Refusing `json:"refusing,omitempty"`
	Legacy        []foreign.Refusing `json:"refusing_legacy_xtables,omitempty"`
	Bypass        []foreign.Bypass   `json:"bypass,omitempty"`
	NotUnderstood []string           `json:"not_understood,omitempty"`
	// Unknown says why the kernel was not asked.
	Unknown string `json:"unknown,omitempty"`
}

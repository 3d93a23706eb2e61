package exposure

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"mesh/firewall/evaluate"
	"mesh/shared/report"
)

// Render prints a Why for a person: the answer first.
func (w Why) Render(out io.Writer) error {
	p := printer{w: out}
	p.line("%s: %s%s", w.Asked, verdictWords(w.Verdict), map[bool]string{true: " in part"}[w.Partly])
	for _, way := range w.Ways {
		p.line("  %s over %s: %s", way.Family, way.Link, wayWords(way.Answer.Verdict)+way.By)
		a := way.Answer
		for _, n := range a.NAT {
			p.line("    sent on to %s by %s", n.To, placeWords(n.Place))
		}
		switch {
		case a.Verdict == evaluate.Refused:
		case a.Way == evaluate.Forward && a.Out != "":
			p.line("    goes on over %s to %s", a.Out, a.To)
		case a.Way == evaluate.Input && len(way.Programs) > 0:
			p.line("    listening there: %s", strings.Join(way.Programs, ", "))
		case a.Way == evaluate.Input:
			p.line("    nothing listens there")
		}
		if len(a.Unless) > 0 {
			p.line("    otherwise for those that are named, or come too often:")
		}
		for i, u := range a.Unless {
			if i == mostUnless {
				p.line("      and %d more rules", len(a.Unless)-i)
				break
			}
			p.line("      %s", placeWords(u))
		}
	}
	for _, b := range w.Bypass {
		p.line("  passes the rules by: %s %s: %s", b.What, b.Name, b.Why)
	}
	if w.Do != "" {
		p.line("do: %s", w.Do)
	}
	return p.err
}

// mostUnless bounds the rules for some senders that are printed.
const mostUnless = 6

func verdictWords(v evaluate.Verdict) string {
	switch v {
	case evaluate.Accepted:
		return "let in"
	case evaluate.Refused:
		return "REFUSED"
	}
	return "it depends"
}

func wayWords(v evaluate.Verdict) string {
	switch v {
	case evaluate.Accepted:
		return "let in by "
	case evaluate.Refused:
		return "refused by "
	}
	return "depends on "
}

// Render prints an exposure for a person: what differs first.
func Render(out io.Writer, e *report.Exposure) error {
	p := printer{w: out}
	if e.Why != "" {
		p.line("it cannot be told: %s", e.Why)
		return p.err
	}
	if !e.Filtered {
		p.line("no packet filter of mesh is in force here")
	}
	for i, l := range e.Links {
		if i > 0 {
			p.line("")
		}
		p.line("%s%s, %s", l.Name, map[bool]string{true: " (tunnel)"}[l.Tunnel], strings.Join(l.Addresses, ", "))
		p.ports(l)
	}
	if e.More > 0 {
		p.line("and %d more ports", e.More)
	}
	if all := e.Differences(); len(all) > 0 {
		p.line("")
		for _, d := range all {
			p.line("! %s", d)
		}
	}
	return p.err
}

func (p *printer) ports(l report.ExposedLink) {
	if len(l.Ports) == 0 {
		p.line("  nothing listens, is redirected or is declared")
		return
	}
	tw := tabwriter.NewWriter(p.w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "  "+strings.ReplaceAll(report.Columns, " | ", "\t"))
	for _, row := range l.Rows() {
		fmt.Fprintln(tw, "  "+strings.Join(row, "\t"))
	}
	if err := tw.Flush(); err != nil && p.err == nil {
		p.err = err
	}
}

// printer keeps the first error, so that a page reads as a page.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format+"\n", args...)
	}
}

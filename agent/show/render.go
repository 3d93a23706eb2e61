package show

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"mesh/agent/state"
	"mesh/shared/report"
)

// Render prints d for a person: the verdict first, the trouble first. now is only for ages.
func Render(w io.Writer, d *Document, now time.Time) error {
	p := &printer{w: w, now: now}
	verdict, amiss := d.Judge()
	word := map[Verdict]string{Well: "well", Amiss: "NOT WELL", Unknown: "UNKNOWN"}[verdict]
	p.line("%s of mesh %s: %s", d.Node, short(d.Mesh), word)
	for _, a := range amiss {
		p.amiss(a)
	}
	p.line("")
	p.field("agent", "%s, %s%s", d.Agent.Version, either(d.Daemon.Up, "running", "not running"), p.since(d, partAgent))
	p.field("bus", "%s", p.busWords(d))
	p.field("declaration", "%s", p.declarationWords(d))
	p.filterWords(d)
	if d.Outbox.Depth > 0 || d.Outbox.Dropped > 0 {
		p.field("outbox", "%s", outboxWords(d.Outbox))
	}
	if d.FreeDisk > 0 {
		p.field("free disk", "%s, seen %s ago", size(d.FreeDisk), p.ago(d.At))
	}
	p.modules(d.Modules)
	for i, x := range d.Exposed {
		if i == 0 {
			p.line("")
			p.line("not open as declared; which rule decides: mesh-agent why")
		}
		p.line("  %s%s", x, p.since(d, partLinks))
	}
	for i, s := range d.Strays {
		if i == 0 {
			p.line("")
		}
		p.line("stray: %s has mesh's mark, and nothing declares it%s", s, p.since(d, partStrays))
	}
	p.held(d)
	p.drift(d.Drift)
	if len(d.Problems) > 0 {
		p.line("")
		p.line("last problems")
		for _, x := range d.Problems {
			p.line("  %s ago  %s", p.ago(x.At), indent(x.Text))
		}
	}
	return p.err
}

// RenderModule prints one module.
func RenderModule(w io.Writer, d *Document, m report.Module, now time.Time) error {
	p := &printer{w: w, now: now}
	p.line("%s on %s: %s", m.Name, d.Node, either(m.State == report.Broken, "FAILED", stateWords(m.State)))
	if m.State != report.Running {
		p.amiss(moduleWords(m))
	}
	p.stale(d)
	p.field("build", "%s", m.Build)
	p.field("since", "%s ago", p.ago(m.Since))
	p.field("restarts", "%d", m.Restarts)
	if m.FailedBuild != "" {
		p.field("failed", "%s", m.FailedBuild)
	}
	if m.Log != "" {
		p.line("")
		p.line("what %s said last", cmp.Or(m.FailedBuild, m.Build))
		for line := range strings.Lines(m.Log) {
			p.line("  %s", strings.TrimRight(line, "\n"))
		}
	}
	var mine []report.Drift
	for _, x := range d.Drift {
		if x.Module == m.Name {
			mine = append(mine, x)
		}
	}
	p.drift(mine)
	return p.err
}

// outside is where what arrives is filtered.
func (d *Document) outside() string {
	links := slices.Clone(d.Uplinks)
	if d.Tunnel != "" {
		links = append(links, d.Tunnel)
	}
	return strings.Join(links, ", ")
}

// RenderHistory prints past applies and what was changed by hand, newest first.
func RenderHistory(w io.Writer, past []state.Past, drift []report.Drift, now time.Time) error {
	p := &printer{w: w, now: now}
	if len(past) == 0 {
		p.line("nothing was ever applied here")
	} else {
		p.table(func() {
			p.line("AGO\tSEQ\tOUTCOME\tSTEPS\tTOOK\tWHY")
			for _, x := range past {
				p.line("%s\t%d\t%s\t%d\t%s\t%s", p.ago(x.At.UnixMilli()), x.Seq, x.Outcome, x.Steps, took(x.Took.Milliseconds()), oneLine(x.Why))
			}
		})
	}
	p.drift(drift)
	return p.err
}

// printer keeps the first error, so that a page reads as a page.
type printer struct {
	w   io.Writer
	now time.Time
	err error
}

func (p *printer) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format+"\n", args...)
	}
}

func (p *printer) field(name, format string, args ...any) {
	p.line("%-12s %s", name, fmt.Sprintf(format, args...))
}

// amiss prints a trouble; what to do stands below it.
func (p *printer) amiss(text string) { p.line("  ! %s", indent(text)) }

// stale says of a page that it is about the past.
func (p *printer) stale(d *Document) {
	if !d.Daemon.Up {
		p.amiss("the agent is not running; this is what it last knew\ndo: " + startAgent)
	}
}

// table aligns the columns of what fill prints.
func (p *printer) table(fill func()) {
	outer := p.w
	var b bytes.Buffer
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	p.w = tw
	fill()
	p.w = outer
	if err := tw.Flush(); err != nil && p.err == nil {
		p.err = err
	}
	for line := range strings.Lines(b.String()) {
		p.line("%s", strings.TrimRight(line, " \n"))
	}
}

func (p *printer) modules(ms []report.Module) {
	p.line("")
	if len(ms) == 0 {
		p.line("no module is assigned to this machine")
		return
	}
	p.table(func() {
		p.line("MODULE\tSTATE\tSINCE\tRESTARTS\tBUILD\tDETAIL")
		for _, bad := range []bool{true, false} { // the trouble first
			for _, m := range ms {
				if (m.State != report.Running) == bad {
					p.line("%s\t%s\t%s\t%d\t%s\t%s", m.Name, m.State, p.ago(m.Since), m.Restarts, m.Build, oneLine(m.Detail))
				}
			}
		}
	})
}

func (p *printer) drift(all []report.Drift) {
	for i, x := range all {
		if i == 0 {
			p.line("")
			p.line("changed by hand")
		}
		p.line("  %s ago  %s: %s (%s)", p.ago(x.At), x.Thing, x.What, either(x.Repaired, "repaired", "left as it was"))
		if x.Who != "" {
			p.line("    around then: %s", x.Who)
		}
	}
}

func (p *printer) busWords(d *Document) string {
	switch {
	case !d.Daemon.Up:
		return "not known while the agent is down"
	case d.Bus.Up:
		return fmt.Sprintf("connected to %s for %s", d.Bus.Address, p.ago(d.Bus.Since))
	}
	return fmt.Sprintf("away for %s: %s", p.ago(d.Bus.Since), orUnknown(d.Bus.Why))
}

func (p *printer) declarationWords(d *Document) string {
	x := d.Declaration
	refused := ""
	if x.Outcome == report.Refused {
		refused = fmt.Sprintf("; %d was refused", x.RefusedSeq)
		if x.RefusedSeq == 0 {
			refused = "; one that could not be read was refused"
		}
	}
	if x.Seq == 0 {
		return "none yet: the coordinator has not sent one" + refused
	}
	s := fmt.Sprintf("%d", x.Seq)
	if x.Accepted > 0 {
		s += fmt.Sprintf(", accepted %s ago", p.ago(x.Accepted))
	}
	switch {
	case x.Outcome == report.Applied:
		if s += ", applied"; x.TookMS > 0 {
			s += " in " + took(x.TookMS)
		}
	case x.Outcome == report.Applying:
		s += ", being applied"
	case x.Outcome == report.Failed && x.RefusedSeq != 0:
		s += fmt.Sprintf("; %d could not be taken in yet", x.RefusedSeq)
	case x.Outcome == report.Failed:
		s += ", NOT carried out whole"
	}
	return s + refused
}

func outboxWords(o Outbox) string {
	var words []string
	if o.Depth > 0 {
		words = append(words, fmt.Sprintf("%s for the bus", either(o.Depth == 1, "1 report waits", fmt.Sprintf("%d reports wait", o.Depth))))
	}
	if o.Dropped > 0 {
		words = append(words, fmt.Sprintf("%d dropped: it was full", o.Dropped))
	}
	return strings.Join(words, ", ")
}

func (p *printer) filterWords(d *Document) {
	if len(d.Uplinks) > 0 {
		p.field("uplinks", "%s%s", strings.Join(d.Uplinks, ", "), p.since(d, partLinks))
	}
	if d.Tunnel != "" {
		p.field("tunnel", "%s%s", d.Tunnel, p.since(d, partLinks))
	}
	switch f := d.Filter; {
	case !d.Daemon.Up:
		p.field("filter", "not known while the agent is down; the kernel keeps what was loaded")
	case f == nil:
		p.field("filter", "none is declared; the machine's own is left as it is%s", p.since(d, partFilter))
	case !f.Loaded:
		p.field("filter", "NOT in force: %s%s", oneLine(orUnknown(f.Why)), p.since(d, partFilter))
	default:
		p.field("filter", "in force for %s, %s", p.ago(f.Since), either(len(f.Rules) == 1, "1 opening", fmt.Sprintf("%d openings", len(f.Rules))))
	}
	p.converged(d)
}

// converged says what mesh switched off here.
func (p *printer) converged(d *Document) {
	c := d.Converge
	if c == nil || len(c.Retired) == 0 {
		return
	}
	p.field("retired", "%s, since %s: the packet filter is mesh's (back: mesh-coordinator node unconverge %s)", strings.Join(c.Retired, ", "), p.ago(c.At), d.Node)
}

// since is the age of a part, where it is known.
func (p *printer) since(d *Document, part string) string {
	if ms := d.Since[part]; ms > 0 {
		return ", for " + p.ago(ms)
	}
	return ""
}

func (p *printer) ago(ms int64) string {
	if ms == 0 {
		return "?"
	}
	return age(p.now.Sub(time.UnixMilli(ms)))
}

// age is a duration as people say it: one unit, rounded down. A clock that went back gives "0s".
func age(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

func size(n int64) string {
	const unit = 1024
	f, names := float64(n), []string{"B", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for f >= unit && i < len(names)-1 {
		f /= unit
		i++
	}
	return fmt.Sprintf("%.1f %s", f, names[i])
}

// took is how long something took.
func took(ms int64) string {
	d := time.Duration(ms) * time.Millisecond
	if d >= time.Second {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.String()
}

// shortMesh is how many characters of a mesh's id tell it from another to a person.
const shortMesh = 8

func short(mesh string) string { return mesh[:min(len(mesh), shortMesh)] }

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

func orNone(links string) string {
	if links == "" {
		return "an uplink (there is none now)"
	}
	return links
}

// indent puts further lines of a text below its first.
func indent(s string) string { return strings.ReplaceAll(s, "\n", "\n    ") }

func oneLine(s string) string { return strings.ReplaceAll(s, "\n", "; ") }

func either(is bool, yes, no string) string {
	if is {
		return yes
	}
	return no
}

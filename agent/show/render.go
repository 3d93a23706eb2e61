package show

import (
	"fmt"
	"io"
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
	p.line("%s of mesh %s: %s", d.Node, d.Mesh, word)
	for _, a := range amiss {
		p.line("  ! %s", strings.ReplaceAll(a, "\n", "\n    "))
	}
	p.line("")
	p.field("agent", "%s, %s", d.Agent.Version, upDown(d.Daemon.Up, "running", "not running"))
	p.field("bus", "%s", p.busWords(d))
	p.field("declaration", "%s", p.declarationWords(d))
	p.filterWords(d)
	if d.Outbox.Depth > 0 || d.Outbox.Dropped > 0 {
		p.field("outbox", "%d waiting, %d dropped", d.Outbox.Depth, d.Outbox.Dropped)
	}
	if d.FreeDisk > 0 {
		p.field("free disk", "%s", size(d.FreeDisk))
	}
	p.modules(d.Modules)
	for _, s := range d.Strays {
		p.line("stray: %s has mesh's mark and nothing declares it", s)
	}
	if len(d.Drift) > 0 {
		p.line("")
		p.line("changed by hand")
		for _, x := range d.Drift {
			p.line("  %s ago  %s: %s (%s)", p.ago(x.At), x.Thing, x.What, upDown(x.Repaired, "repaired", "left"))
		}
	}
	if len(d.Problems) > 0 {
		p.line("")
		p.line("last problems")
		for _, x := range d.Problems {
			p.line("  %s ago  %s", p.ago(x.At), strings.ReplaceAll(x.Text, "\n", "\n    "))
		}
	}
	return p.err
}

// RenderModule prints one module.
func RenderModule(w io.Writer, d *Document, m report.Module, now time.Time) error {
	p := &printer{w: w, now: now}
	p.line("%s on %s: %s", m.Name, d.Node, m.State)
	p.field("build", "%s", m.Build)
	p.field("since", "%s ago", p.ago(m.Since))
	p.field("restarts", "%d", m.Restarts)
	if m.Detail != "" {
		p.field("detail", "%s", m.Detail)
	}
	for _, x := range d.Drift {
		if x.Module == m.Name {
			p.line("changed by hand %s ago: %s: %s", p.ago(x.At), x.Thing, x.What)
		}
	}
	return p.err
}

// RenderFirewall prints the packet filter in the manifest's words.
func RenderFirewall(w io.Writer, d *Document, now time.Time) error {
	p := &printer{w: w, now: now}
	p.filterWords(d)
	if d.Filter == nil || !d.Filter.Loaded {
		return p.err
	}
	p.line("open from outside:")
	for _, r := range d.Filter.Rules {
		p.line("  %s", r)
	}
	p.line("everything else that arrives over %s is refused", strings.Join(d.Uplinks, ", "))
	if d.Filter.Repairs > 0 {
		p.line("repaired %d times after others changed it", d.Filter.Repairs)
	}
	return p.err
}

// RenderHistory prints past applies, newest first.
func RenderHistory(w io.Writer, past []state.Past, now time.Time) error {
	p := &printer{w: w, now: now}
	if len(past) == 0 {
		p.line("nothing was ever applied here")
		return p.err
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	p.w = tw
	p.line("AGO\tSEQ\tOUTCOME\tSTEPS\tTOOK\tWHY")
	for _, x := range past {
		p.line("%s\t%d\t%s\t%d\t%s\t%s", p.ago(x.At.UnixMilli()), x.Seq, x.Outcome, x.Steps, x.Took.Round(time.Millisecond), strings.ReplaceAll(x.Why, "\n", " "))
	}
	if err := tw.Flush(); err != nil && p.err == nil {
		p.err = err
	}
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

func (p *printer) modules(ms []report.Module) {
	p.line("")
	if len(ms) == 0 {
		p.line("no modules are assigned")
		return
	}
	outer := p.w
	tw := tabwriter.NewWriter(outer, 0, 0, 2, ' ', 0)
	p.w = tw
	p.line("MODULE\tSTATE\tSINCE\tRESTARTS\tBUILD\tDETAIL")
	for _, bad := range []bool{true, false} { // the trouble first
		for _, m := range ms {
			if (m.State != report.Running) == bad {
				p.line("%s\t%s\t%s\t%d\t%s\t%s", m.Name, m.State, p.ago(m.Since), m.Restarts, m.Build, strings.ReplaceAll(m.Detail, "\n", " "))
			}
		}
	}
	if err := tw.Flush(); err != nil && p.err == nil {
		p.err = err
	}
	p.w = outer
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
	if x.Seq == 0 {
		return "none yet: the coordinator has not sent one"
	}
	s := fmt.Sprintf("%d, %s", x.Seq, x.Outcome)
	if x.Accepted > 0 {
		s += fmt.Sprintf(", accepted %s ago", p.ago(x.Accepted))
	}
	if x.TookMS > 0 {
		s += fmt.Sprintf(" (took %v)", time.Duration(x.TookMS)*time.Millisecond)
	}
	if x.RefusedSeq > x.Seq {
		s += fmt.Sprintf("; %d was refused", x.RefusedSeq)
	}
	return s
}

func (p *printer) filterWords(d *Document) {
	if len(d.Uplinks) > 0 {
		p.field("uplinks", "%s", strings.Join(d.Uplinks, ", "))
	}
	if d.Tunnel != "" {
		p.field("tunnel", "%s", d.Tunnel)
	}
	switch f := d.Filter; {
	case !d.Daemon.Up:
		p.field("filter", "not known while the agent is down; the kernel keeps what was loaded")
	case f == nil:
		p.field("filter", "none is declared; the machine's own is left as it is")
	case !f.Loaded:
		p.field("filter", "NOT in force: %s", orUnknown(f.Why))
	default:
		p.field("filter", "in force for %s, %d openings", p.ago(f.Since), len(f.Rules))
	}
}

func (p *printer) ago(ms int64) string {
	if ms == 0 {
		return "?"
	}
	return Age(p.now.Sub(time.UnixMilli(ms)))
}

// Age is a duration as people say it: one unit, rounded down. A clock that went back gives "0s".
func Age(d time.Duration) string {
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

func upDown(up bool, yes, no string) string {
	if up {
		return yes
	}
	return no
}

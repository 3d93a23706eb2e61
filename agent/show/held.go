package show

import (
	"strings"

	"mesh/shared/report"
)

// held prints what modules declare and somebody else put there, and what was taken.
func (p *printer) held(d *Document) {
	for i, h := range d.Held {
		if i == 0 {
			p.line("")
			p.line("held: declared, there, and not mesh's; take it with mesh-coordinator take %s <module>", d.Node)
		}
		p.line("  %s of module %s", h.Thing, h.Module)
		for _, f := range h.Facts {
			p.line("    %-13s %s", f.What, heldWords(f))
		}
		switch {
		case h.Cannot != "":
			p.line("    it cannot be taken: %s", oneLine(h.Cannot))
		case len(h.Difference) > 0:
			p.line("    its text differs, %d lines are shown by mesh-agent show --json", len(h.Difference))
		}
	}
	for i, t := range d.Taken {
		if i == 0 {
			p.line("")
		}
		p.line("%s of module %s, %s ago: %s", t.State, t.Module, p.ago(t.At), oneLine(strings.Join(append(t.Things, t.Why), " ")))
	}
}

func heldWords(f report.HeldFact) string {
	switch {
	case f.Want == "":
		return oneLine(f.Have)
	case f.Have == "":
		return "none; declared: " + oneLine(f.Want)
	case f.Have == f.Want:
		return oneLine(f.Have) + " (as declared)"
	}
	return oneLine(f.Have) + "; declared: " + oneLine(f.Want)
}

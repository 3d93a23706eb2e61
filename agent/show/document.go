// Package show is what the agent says about its machine to whoever stands at it, bus or no bus, daemon
// up or down (NOD-10). The daemon gives one Document to whoever asks it over a socket in /run, and leaves its last
// one there; the command asks, and with the daemon down reads that or makes one from the store. What it prints as JSON (Page)
// is stable: fields are only added. The package owns no goroutine.
package show

import (
	"fmt"
	"slices"
	"strings"

	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/subject"
)

// Format is the version of the Document's JSON.
const Format = 1

// Document is everything show prints.
type Document struct {
	Format int          `json:"format"`
	Node   subject.Node `json:"node"`
	Mesh   string       `json:"mesh"`
	// At is when this was written, Unix milliseconds.
	At    int64        `json:"at"`
	Agent report.Agent `json:"agent"`
	// Daemon is the agent's service.
	Daemon Daemon `json:"daemon"`
	Bus    Bus    `json:"bus"`
	// Declaration is the one this machine holds, and how applying it went.
	Declaration Declaration     `json:"declaration"`
	Modules     []report.Module `json:"modules"`
	Uplinks     []string        `json:"uplinks"`
	Tunnel      string          `json:"tunnel,omitempty"`
	Filter      *report.Filter  `json:"filter,omitempty"`
	// Converge is how the packet filter was handed to mesh, or back; nil when it never was (NET-9).
	Converge *report.Converge `json:"converge,omitempty"`
	// Exposed is what can be reached from outside other than declared, in sentences (NET-14).
	Exposed []string `json:"exposed,omitempty"`
	// Drift is what was found changed by hand, newest first; Left is what of it stays as it is.
	Drift  []report.Drift `json:"drift"`
	Left   []report.Drift `json:"left"`
	Strays []string       `json:"strays"`
	// Held are declared things that are there and not mesh's, Taken is how takes stand (APP-9, APP-10).
	Held     []report.Held `json:"held,omitempty"`
	Taken    []report.Take `json:"taken,omitempty"`
	Outbox   Outbox        `json:"outbox"`
	FreeDisk int64         `json:"free_disk"`
	// Problems are the last ones, newest first.
	Problems []report.Problem `json:"problems"`
	Profile  *report.Profile  `json:"profile,omitempty"`
	// Since says of each part of the machine since when it is as it is, Unix milliseconds (NOD-15).
	Since map[string]int64 `json:"since,omitempty"`
}

// Daemon is the agent's service.
type Daemon struct {
	Up bool `json:"up"`
	// PID and Started tell a live daemon from one that died without a word.
	PID     int    `json:"pid,omitempty"`
	Started uint64 `json:"started,omitempty"` // in clock ticks since boot (proc(5), stat field 22)
}

// Bus is the link to the bus.
type Bus struct {
	Up      bool   `json:"up"`
	Address string `json:"address,omitempty"`
	// Since is when Up began, Unix milliseconds.
	Since int64  `json:"since,omitempty"`
	Why   string `json:"why,omitempty"`
}

// Declaration is the declaration in force.
type Declaration struct {
	Seq      uint64           `json:"seq"`
	Accepted int64            `json:"accepted,omitempty"`
	Outcome  report.Outcome   `json:"outcome"`
	Refused  *refusal.Refusal `json:"refused,omitempty"`
	// RefusedSeq is another declaration, which was not accepted; Outcome and Refused are about that one then.
	RefusedSeq uint64 `json:"refused_seq,omitempty"`
	TookMS     int64  `json:"took_ms,omitempty"`
	Drift      string `json:"drift,omitempty"`
}

// Outbox is what waits to be sent.
type Outbox struct {
	Depth   int    `json:"depth"`
	Dropped uint64 `json:"dropped,omitempty"`
}

// Verdict is the whole in one word.
type Verdict int

// The verdicts, which are exit codes (style.md, Command line).
const (
	Well    Verdict = 0
	Amiss   Verdict = 1
	Unknown Verdict = 2
)

// Judge says whether the machine is well, and what is amiss, the worst first. A thing that cannot be
// seen is never called well.
func (d *Document) Judge() (Verdict, []string) {
	var amiss []string
	add := func(format string, args ...any) { amiss = append(amiss, fmt.Sprintf(format, args...)) }
	if !d.Daemon.Up {
		add("the agent is not running; what follows is what it last knew\ndo: %s", startAgent)
	}
	if words := d.accountWords(); words != "" {
		add("%s", words)
	}
	for _, m := range d.Modules {
		if m.State != report.Running {
			add("%s", moduleWords(m))
		}
	}
	if d.Filter != nil && d.Filter.Why != "" {
		add("packet filter: %s", d.Filter.Why)
	}
	if d.Daemon.Up && !d.Bus.Up {
		add("the bus is away (%s); the machine goes on by itself", orUnknown(d.Bus.Why))
	}
	for _, x := range d.Left {
		add("%s was changed by hand and stays so: %s\ndo: undo it, or have it undone: \"mesh-coordinator node set %s drift=repair\" and push", x.Thing, x.What, d.Node)
	}
	if len(amiss) == 0 {
		return Well, nil
	}
	return Amiss, amiss
}

const startAgent = "systemctl start mesh-agent"

// accountWords is what is amiss with the declaration; "" for nothing, and for what a module says by itself.
func (d *Document) accountWords() string {
	x := d.Declaration
	switch x.Outcome {
	case report.Applying:
		return fmt.Sprintf("declaration %d is being applied", x.Seq)
	case report.Refused:
		if x.Refused == nil {
			return fmt.Sprintf("declaration %d was refused", x.RefusedSeq)
		}
		return x.Refused.Error()
	case report.Failed:
		if x.Refused == nil {
			return fmt.Sprintf("declaration %d could not be carried out whole", x.Seq)
		}
		name, isModule := strings.CutPrefix(x.Refused.What, "module ")
		if isModule && slices.ContainsFunc(d.Modules, func(m report.Module) bool { return string(m.Name) == name && m.State != report.Running }) {
			return ""
		}
		return strings.TrimPrefix(x.Refused.Error(), "refused: ")
	}
	return ""
}

// moduleWords is what is amiss with a module, and what to do.
func moduleWords(m report.Module) string {
	s := fmt.Sprintf("module %s: %s", m.Name, stateWords(m.State))
	if m.Detail != "" {
		s += ": " + m.Detail
	}
	switch {
	case m.FailedBuild != "":
		s += fmt.Sprintf("\ndo: see what it said: \"mesh-agent show %s\"; correct it and push a new build", m.Name)
	case m.State == report.Unwell:
		s += fmt.Sprintf("\ndo: look at \"journalctl -u 'mesh-%s-*'\"; it is asked again by itself", m.Name)
	case m.State == report.Broken:
		s += fmt.Sprintf("\ndo: look at \"journalctl -u 'mesh-%s-*'\"; it is tried again by itself", m.Name)
	}
	return s
}

// stateWords is a state in a sentence.
func stateWords(s report.State) string {
	switch s {
	case report.Pending:
		return "not reached yet"
	case report.Unknown:
		return "it cannot be told how it is"
	}
	return string(s)
}

func orUnknown(s string) string {
	if s == "" {
		return "cause unknown"
	}
	return s
}

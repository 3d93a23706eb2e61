// Package show is what the agent says about its machine to whoever stands at it, bus or no bus, daemon
// up or down (NOD-10). The daemon keeps one Document beside it in /run, written when something changed;
// the command reads that, and with the daemon down makes one from the store. The JSON form is stable:
// fields are only added.
package show

import (
	"fmt"
	"slices"

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
	Drift       []report.Drift  `json:"drift"`
	Strays      []string        `json:"strays"`
	Outbox      Outbox          `json:"outbox"`
	FreeDisk    int64           `json:"free_disk"`
	// Problems are the last ones, newest first.
	Problems []report.Problem `json:"problems"`
	Profile  *report.Profile  `json:"profile,omitempty"`
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
	// RefusedSeq is a newer declaration that was not accepted.
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
		add("the agent is not running: what follows is what it last knew; start it with \"systemctl start mesh-agent\"")
	}
	switch d.Declaration.Outcome {
	case report.Refused, report.Failed:
		if r := d.Declaration.Refused; r != nil {
			add("%s", r.Error())
		} else {
			add("declaration %d: %s", d.Declaration.Seq, d.Declaration.Outcome)
		}
	case report.Applying:
		add("declaration %d is being applied", d.Declaration.Seq)
	}
	for _, m := range d.Modules {
		if m.State != report.Running {
			add("module %s is %s: %s", m.Name, m.State, m.Detail)
		}
	}
	if d.Filter != nil && d.Filter.Why != "" {
		add("packet filter: %s", d.Filter.Why)
	}
	if d.Daemon.Up && !d.Bus.Up {
		add("the bus is away (%s); the machine goes on by itself", orUnknown(d.Bus.Why))
	}
	if i := slices.IndexFunc(d.Drift, func(x report.Drift) bool { return !x.Repaired }); i >= 0 {
		add("%s: %s (left as it is: this node only reports drift)", d.Drift[i].Thing, d.Drift[i].What)
	}
	if len(amiss) == 0 {
		return Well, nil
	}
	return Amiss, amiss
}

func orUnknown(s string) string {
	if s == "" {
		return "cause unknown"
	}
	return s
}

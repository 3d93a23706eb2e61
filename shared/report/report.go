// Package report is what a node says about itself and about the declaration it last applied (NOD-7).
// It is decoded strictly by the coordinator, which believes it about its own node only.
package report

import (
	"fmt"
	"unicode/utf8"

	"mesh/shared/refusal"
	"mesh/shared/strict"
	"mesh/shared/subject"
)

const (
	// Format is the version of the report's JSON.
	Format = 1
	// MaxSize is the largest report in bytes.
	MaxSize = 1 << 20
	// MaxCount bounds seqs and numbers: every store and every JSON reader holds them exactly.
	MaxCount = 1 << 53
	// maxFact bounds a fact of the machine, maxText a text for people: what is longer is cut.
	maxFact = 256
	maxText = 2 << 10
	// MaxLog bounds in bytes the lines of a module.
	MaxLog = 2 << 10
)

// Report is one word of a node.
type Report struct {
	Format int          `json:"format"`
	Mesh   string       `json:"mesh"`
	Node   subject.Node `json:"node"`
	// Number grows with each report of this node, across restarts; it orders reports, no clock does.
	Number uint64 `json:"number"`
	// Boot is the kernel's boot id.
	Boot string `json:"boot,omitempty"`
	// At is the node's own time, Unix milliseconds; for people.
	At    int64 `json:"at"`
	Agent Agent `json:"agent"`
	Apply Apply `json:"apply"`
	// Modules are sorted by name.
	Modules []Module `json:"modules,omitempty"`
	Profile *Profile `json:"profile,omitempty"`
	Uplinks []string `json:"uplinks,omitempty"`
	Tunnel  string   `json:"tunnel,omitempty"`
	Filter  *Filter  `json:"filter,omitempty"`
	// Refusals are all that refuses traffic, whoever wrote it (NET-8).
	Refusals *Refusals `json:"refusals,omitempty"`
	// Exposed is what can be reached from outside other than declared, each in a sentence: ports that are open
	// and that nothing declares, ports that are declared and somebody refuses (NET-14).
	Exposed []string `json:"exposed,omitempty"`
	// Converge is how the last converge or unconverge stands; nil when there was none (NET-9).
	Converge *Converge `json:"converge,omitempty"`
	// Keys are those of the instances here that use the bus, sorted by module.
	Keys []Key `json:"keys,omitempty"`
	// Drift is what was found changed by hand since the report before.
	Drift []Drift `json:"drift,omitempty"`
	// Held are things that modules declare, and that are there and not mesh's (APP-9); MoreHeld counts those left out.
	Held     []Held `json:"held,omitempty"`
	MoreHeld int    `json:"more_held,omitempty"`
	// Taken is how the takes of this machine's things stand, by module (APP-10).
	Taken []Take `json:"taken,omitempty"`
	// Strays are things with mesh's mark that nothing declares any more.
	Strays []string `json:"strays,omitempty"`
	// FreeDisk is what is left on the file system of the agent's state, in bytes.
	FreeDisk int64 `json:"free_disk,omitempty"`
	// Dropped counts superseded reports that left the outbox unsent (BUS-12).
	Dropped uint64 `json:"dropped,omitempty"`
	// Problems are what a person should know, newest first.
	Problems []Problem `json:"problems,omitempty"`
}

// Agent is the program that reports (NOD-6).
type Agent struct {
	Version string `json:"version"`
	// Digest is the SHA-256 of the agent's file, lower-case hex.
	Digest string `json:"digest,omitempty"`
	// Bundle is the digest of the bundle it was delivered in (NOD-12); empty for one placed by hand.
	Bundle string `json:"bundle,omitempty"`
}

// Outcome is how applying went.
type Outcome string

// The outcomes.
const (
	None     Outcome = "none"     // nothing was ever accepted
	Applying Outcome = "applying" // under way
	Applied  Outcome = "applied"  // the machine is as declared
	Failed   Outcome = "failed"   // some of it could not be done; tried again
	Refused  Outcome = "refused"  // not accepted; the machine keeps the one before
)

// Apply is the account of the declaration this report is about.
type Apply struct {
	// Seq is the declaration that was applied, or refused.
	Seq     uint64  `json:"seq"`
	Outcome Outcome `json:"outcome"`
	// Refused says why, when Outcome is Refused or Failed.
	Refused *refusal.Refusal `json:"refused,omitempty"`
	// TookMS is from acceptance to outcome, in milliseconds.
	TookMS int64 `json:"took_ms,omitempty"`
}

// State is how a module or unit is.
type State string

// The states.
const (
	Running State = "running"   // what should run runs, and what should be there is there
	Pending State = "pending"   // not reached yet
	Broken  State = "failed"    // it could not be applied, or does not stay up
	Unwell  State = "unhealthy" // it runs, and what asks for its health gets no good answer
	Unknown State = "unknown"   // it cannot be seen; never called well (design §10, promise 6)
)

// Module is one module on this node.
type Module struct {
	Name  subject.Module `json:"name"`
	Build string         `json:"build"`
	State State          `json:"state"`
	// Detail says what is wrong, in words.
	Detail string `json:"detail,omitempty"`
	// Since is when State began, Unix milliseconds.
	Since    int64 `json:"since,omitempty"`
	Restarts int   `json:"restarts,omitempty"`
	// FailedBuild is the declared build, when it did not get well: Build runs in its place then, or is it itself
	// when there is none to go back to (APP-7).
	FailedBuild string `json:"failed_build,omitempty"`
	// Log is what that build said last, in lines.
	Log string `json:"log,omitempty"`
}

// Profile is what the machine is (NOD-5).
type Profile struct {
	MachineID      string   `json:"machine_id,omitempty"`
	Hostname       string   `json:"hostname,omitempty"`
	OS             string   `json:"os,omitempty"`
	OSVersion      string   `json:"os_version,omitempty"`
	Kernel         string   `json:"kernel,omitempty"`
	Arch           string   `json:"arch,omitempty"`
	Virtualization string   `json:"virtualization,omitempty"`
	Engine         string   `json:"engine,omitempty"`
	NetworkManager string   `json:"network_manager,omitempty"`
	Cgroup         string   `json:"cgroup,omitempty"`
	CPUs           int      `json:"cpus,omitempty"`
	MemoryMiB      int      `json:"memory_mib,omitempty"`
	Capabilities   []string `json:"capabilities,omitempty"`
}

// Filter is the packet filter as it stands.
type Filter struct {
	Loaded bool `json:"loaded"`
	// Rules are in the manifest's words.
	Rules []string `json:"rules,omitempty"`
	// Why says why there is none, or why the last change was refused.
	Why     string `json:"why,omitempty"`
	Since   int64  `json:"since,omitempty"`
	Repairs int    `json:"repairs,omitempty"`
	// Repaired is what the last repair found, and who had done it.
	Repaired string `json:"repaired,omitempty"`
}

// Drift is one thing that was changed by hand.
type Drift struct {
	Module   subject.Module `json:"module,omitempty"`
	Thing    string         `json:"thing"`
	What     string         `json:"what"`
	Repaired bool           `json:"repaired"`
	At       int64          `json:"at"`
	// Who are those who may have done it, by what the machine wrote down around that time, in words (APP-19).
	Who string `json:"who,omitempty"`
}

// Problem is one line for a person.
type Problem struct {
	At   int64  `json:"at"`
	Text string `json:"text"`
}

// Decode reads a report that came on node's subject. Control characters in its words are replaced: they are
// for people's terminals.
func Decode(b []byte, node subject.Node) (*Report, error) {
	if len(b) > MaxSize {
		return nil, fmt.Errorf("the report of %s has %d bytes, the bound is %d", node, len(b), MaxSize)
	}
	var r Report
	if err := strict.Decode(b, &r); err != nil {
		return nil, fmt.Errorf("the report of %s: %w", node, err)
	}
	switch {
	case r.Format != Format:
		return nil, fmt.Errorf("the report of %s has format %d, this coordinator reads %d", node, r.Format, Format)
	case r.Node != node:
		return nil, fmt.Errorf("a report on the subject of %s names %s", node, r.Node)
	case r.Number == 0:
		return nil, fmt.Errorf("the report of %s has no number", node)
	case len(r.Keys) > MaxKeys:
		return nil, fmt.Errorf("the report of %s has %d keys, the bound is %d", node, len(r.Keys), MaxKeys)
	case r.Number > MaxCount || r.Apply.Seq > MaxCount:
		return nil, fmt.Errorf("the report of %s has the number %d and the seq %d, the bound is %d", node, r.Number, r.Apply.Seq, uint64(MaxCount))
	}
	switch r.Apply.Outcome {
	case None, Applying, Applied, Failed, Refused:
	default:
		return nil, fmt.Errorf("the report of %s has the outcome %q", node, r.Apply.Outcome)
	}
	for what, text := range map[string]string{"agent's version": r.Agent.Version, "agent's digest": r.Agent.Digest, "agent's bundle": r.Agent.Bundle, "boot id": r.Boot, "tunnel": r.Tunnel} {
		if len(text) > maxFact {
			return nil, fmt.Errorf("the report of %s: the %s has %d bytes, the bound is %d", node, what, len(text), maxFact)
		}
	}
	if r.Profile != nil {
		if err := r.Profile.Check(); err != nil {
			return nil, fmt.Errorf("the report of %s: %w", node, err)
		}
	}
	clean(b, &r)
	r.shorten()
	return &r, nil
}

// Check refuses facts that no machine has.
func (p *Profile) Check() error {
	for _, fact := range append([]string{p.MachineID, p.Hostname, p.OS, p.OSVersion, p.Kernel, p.Arch, p.Virtualization, p.Engine, p.NetworkManager, p.Cgroup}, p.Capabilities...) {
		if len(fact) > maxFact {
			return refusal.Newf("the machine's profile", "use the agent and the installer of this mesh's release", "a fact in it has %d bytes, the bound is %d", len(fact), maxFact)
		}
	}
	return nil
}

// shorten cuts texts for people: lists of many nodes show them, and one node must not make such a list
// larger than what a message takes.
func (r *Report) shorten() {
	r.Apply.Refused = Shorten(r.Apply.Refused, maxText)
	for i := range r.Modules {
		r.Modules[i].Build, r.Modules[i].Detail = Cut(r.Modules[i].Build, maxFact), Cut(r.Modules[i].Detail, maxText)
		r.Modules[i].FailedBuild, r.Modules[i].Log = Cut(r.Modules[i].FailedBuild, maxFact), Cut(r.Modules[i].Log, MaxLog)
	}
	if r.Filter != nil {
		r.Filter.Why = Cut(r.Filter.Why, maxText)
		r.Filter.Repaired = Cut(r.Filter.Repaired, maxText)
	}
	r.Refusals.shorten()
	r.Converge.shorten()
	r.shortenHeld()
	r.Exposed = Few(r.Exposed)
	for i := range r.Drift {
		r.Drift[i].Who = Cut(r.Drift[i].Who, maxText)
	}
	for i := range r.Problems {
		r.Problems[i].Text = Cut(r.Problems[i].Text, maxText)
	}
}

// Shorten is r with texts of at most n bytes each; r is not changed.
func Shorten(r *refusal.Refusal, n int) *refusal.Refusal {
	if r == nil {
		return nil
	}
	return &refusal.Refusal{What: Cut(r.What, n), Why: Cut(r.Why, n), Do: Cut(r.Do, n)}
}

// Cut is text with at most n bytes and what follows them shown as "…", at a letter's end.
func Cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	n -= len("…")
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n] + "…"
}

// KnownHeader is a header of a declaration: the number of the node's last report that the coordinator holds.
// A node whose last report that is, and who holds the declaration already, answers with a heartbeat.
const KnownHeader = "Mesh-Known-Report"

// Heartbeat says that a node is alive.
type Heartbeat struct {
	// At is the node's time, Unix milliseconds: the coordinator sees how far its clock is off.
	At  int64  `json:"at"`
	Seq uint64 `json:"seq"`
	// Report is the number of the last report the node made: while Seq is what that one is about, it stands.
	Report uint64 `json:"report,omitempty"`
	// Leaving says why it is about to be silent: one of the words below.
	Leaving string `json:"leaving,omitempty"`
}

// Why a node says good-bye. Of a machine that rests nobody misses a word (NOD-11); an agent that was stopped
// on a machine that goes on is missed.
const (
	Shutdown = "shutdown"
	Suspend  = "suspend"
	Stopping = "stopping"
)

// Rests reports whether a good-bye is of a machine that is off or asleep.
func Rests(leaving string) bool { return leaving == Shutdown || leaving == Suspend }

// DecodeHeartbeat reads a heartbeat.
func DecodeHeartbeat(b []byte) (Heartbeat, error) {
	var h Heartbeat
	if len(b) > 1024 {
		return h, fmt.Errorf("a heartbeat of %d bytes", len(b))
	}
	err := strict.Decode(b, &h)
	clean(b, &h)
	return h, err
}

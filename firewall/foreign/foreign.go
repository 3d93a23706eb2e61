// Package foreign reads every packet filter rule set of the machine, whoever wrote it, and says which
// chains refuse traffic, whose they are and what becomes of them when a machine is converged (NET-8,
// NET-9, NET-13).
//
// Read asks the kernel over netlink and keeps of each rule only what decides: what it refuses, where
// it leads, and what in it tells whose it is. A rule set of any size or dialect is read; what this
// package does not know is named in Ruleset.NotUnderstood and never a failure. Legacy xtables, which
// netlink does not show, are named from the proc files and read through iptables-legacy-save where
// that is installed.
//
// Judge is pure: the same Ruleset gives the same Report. Both change nothing on the machine, start no
// goroutine and keep no socket. mesh's own table is read like any other.
package foreign

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Ruleset is all that filters packets in one network namespace, at one moment.
type Ruleset struct {
	// Generation is the kernel's number for the nftables part.
	Generation uint32
	// Tables are those of nftables, in the kernel's order.
	Tables []Table
	// Legacy are the tables of legacy xtables. Those that could not be read have no chains.
	Legacy []Table
	// IPSets are those of ipset that rules of xtables ask, where ReadAll read them.
	IPSets []IPSet
	// Bypass is what passes the rules by.
	Bypass []Bypass
	// DeadEnds are the routes to one address each that refuse, at most 10,000.
	DeadEnds []DeadEnd
	// Served are the tables nftables.service loads, as "inet filter", where the caller knows.
	Served []string
	// NotUnderstood names what was met and is not known here, at most a hundred things.
	NotUnderstood []string
}

// DeadEnd is a route to one address that refuses: fail2ban and portsentry can ban that way.
type DeadEnd struct {
	Address netip.Addr
	// How is blackhole, unreachable or prohibit.
	How string
}

// Table is one table.
type Table struct {
	// Family is ip, ip6, inet, arp, bridge or netdev, or "family N".
	Family, Name string
	// Flags are dormant, owner, persist, as set.
	Flags []string
	// Comment is the table's own.
	Comment string
	// XT says that a rule in it was written by iptables-nft: several tools share such a table.
	XT bool
	// Chains are in the kernel's order.
	Chains []Chain
	// Maps are the verdict maps.
	Maps []Map
	// Sets are all sets and maps whole, where ReadAll read them.
	Sets []Set
}

// Chain is one chain.
type Chain struct {
	Name string
	// Base says that packets enter here, at Hook; the fields below it are of base chains only.
	Base     bool
	Hook     string
	Priority int32
	// Policy is accept or drop.
	Policy string
	// Type is filter, nat or route.
	Type string
	// Rules counts all rules of the chain, also those that only accept or count.
	Rules int
	// Acts are what its rules do that matters here.
	Acts []Act
	// Hints are owners that rules without an Act point to, such as by the words they log.
	Hints []string
	// Bridges are the links that a chain of docker's speaks of: its bridges may have any name.
	Bridges []string
	// Devices are the links whose packets enter, of the family netdev and the hook ingress.
	Devices []string
	// Lines are the rules whole, where ReadAll read them.
	Lines []Line
}

// Map is a verdict map, named or not: element by element what a packet is told.
type Map struct {
	Name string
	Acts []Act
}

// Act is something that Count rules of a chain do alike: they refuse, or lead somewhere else.
type Act struct {
	// Word is how a rule refuses ("drop", "reject", "queue", "xt REJECT", …), or empty.
	Word string
	// Chain is where a jump or goto leads, or empty.
	Chain string
	// Map is the verdict map looked up, or empty.
	Map string
	// Hint is the owner that something in the rule points to, or empty.
	Hint string
	// Count is how many rules.
	Count int
}

// Report is what Judge finds, with the fields and words of the project's reference data.
type Report struct {
	Tables   []TableLine `json:"tables"`
	Refusing []Refusing  `json:"refusing"`
	// Legacy are the refusing chains of legacy xtables.
	Legacy []Refusing `json:"refusing_legacy_xtables,omitempty"`
	// LegacyTables are all tables of legacy xtables, read or not.
	LegacyTables []TableLine `json:"legacy_tables,omitempty"`
	// Held are chains with refusals that cannot take effect.
	Held []Held `json:"holds_refusals_but_does_not_refuse,omitempty"`
	// Bypass is as in Ruleset.
	Bypass []Bypass `json:"bypass,omitempty"`
	// NotUnderstood is as in Ruleset.
	NotUnderstood []string `json:"not_understood,omitempty"`
}

// TableLine names a table.
type TableLine struct {
	Family string   `json:"family"`
	Table  string   `json:"table"`
	Flags  []string `json:"flags,omitempty"`
	// SharedBy is iptables-nft for a table several tools write into, which can never be deleted or
	// flushed as a whole.
	SharedBy string `json:"shared_by,omitempty"`
}

// Refusing is a chain that can refuse a packet.
type Refusing struct {
	Family string `json:"family"`
	Table  string `json:"table"`
	Chain  string `json:"chain"`
	// XTables is "legacy" for legacy xtables.
	XTables string `json:"xtables,omitempty"`
	Base    bool   `json:"base_chain,omitempty"`
	// Priority and Policy are of base chains only.
	Priority *int32 `json:"priority,omitempty"`
	Policy   string `json:"policy,omitempty"`
	// Hooks are those it can be reached from, sorted.
	Hooks []string `json:"hooks,omitempty"`
	// How is "policy drop", then the ways its rules refuse, each with how often: "drop x3".
	How []string `json:"how"`
	// Owner, Kind and Fate have one word each, or one for each of several owners in the same order.
	Owner Words `json:"owner"`
	Kind  Words `json:"kind"`
	Fate  Words `json:"fate"`
}

// Held is a chain with a refusal that cannot take effect.
type Held struct {
	Family string `json:"family"`
	Table  string `json:"table"`
	Chain  string `json:"chain"`
	Why    string `json:"why"`
	Owner  Words  `json:"owner"`
}

// Words is one word, or several, in JSON a string or a list.
type Words []string

// MarshalJSON writes a single word as a string.
func (w Words) MarshalJSON() ([]byte, error) {
	if len(w) == 1 {
		return json.Marshal(w[0])
	}
	return json.Marshal([]string(w))
}

// UnmarshalJSON reads a string or a list of strings.
func (w *Words) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		*w = Words{one}
		return nil
	}
	var many []string
	if err := json.Unmarshal(b, &many); err != nil {
		return errors.New("neither a word nor a list of words")
	}
	*w = many
	return nil
}

// mostNotes bounds NotUnderstood.
const mostNotes = 100

// note adds to NotUnderstood what is not there yet.
func (r *Ruleset) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if len(r.NotUnderstood) < mostNotes && !slices.Contains(r.NotUnderstood, text) {
		r.NotUnderstood = append(r.NotUnderstood, text)
	}
}

func (a Act) refuses() bool { return a.Word != "" }

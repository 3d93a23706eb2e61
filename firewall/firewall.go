// Package firewall turns rules into the one nftables table mesh keeps on a machine, `table inet
// mesh`, and drives it in the kernel. The rule vocabulary is shared/rule's; which links are outside
// is agent/host's to find; when to load, confirm or restore is agent/filter's.
//
// Compile is pure: the same rules in any order give the same Table, and Table.Text is that table as
// `nft -f` reads it. Declared rules are elements of sets that count, but for those that overlap. Driver writes it in one netlink transaction, in place, so that no packet meets
// a missing rule and no established flow is cut (NET-6), and reads it back to tell whether the
// kernel still holds exactly it.
//
// Packets that did not arrive over an uplink or the tunnel are accepted in one line (NET-1). The
// others must be an answer, the protocol's own needs, or meet a declared rule. Filtering is by the
// name of the link, never by the addresses of a container network.
//
// The Driver owns one netlink socket and, per Watch, one goroutine that ends with its context.
package firewall

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"mesh/shared/refusal"
	"mesh/shared/rule"
)

// TableName is the name of mesh's table, in family inet.
const TableName = "mesh"

// LogGroup is the nflog group that refused packets are logged to, a few a minute.
const LogGroup = 5

// hardware lists the names links with hardware behind them come under, by systemd's and the
// kernel's naming. They are outside for good: a card plugged in, or an uplink renamed by an upgrade,
// is never open until somebody reacts (NET-15).
var hardware = []string{"em*", "en*", "eth*", "ib*", "ppp*", "sl*", "usb*", "wl*", "ww*"}

// Filter is what the packet filter of one node should be.
type Filter struct {
	// Outside are the links found to be outside, by name: uplinks and what counts as one.
	Outside []string `json:"outside"`
	// Inside are links a person declared inside, by name: they are not filtered, whatever their names are
	// (NET-15). They may stand in Outside too, but for one at least; none may be a tunnel.
	Inside []string `json:"inside,omitempty"`
	// Bridges are those of Outside that are bridges: what they bridge is not filtered.
	Bridges []string `json:"bridges,omitempty"`
	// Tunnel are the links to the other machines, treated as outside (NET-2).
	Tunnel []string `json:"tunnel,omitempty"`
	// Allow is what may come in.
	Allow []rule.Allow `json:"allow"`
}

// Compile makes the table for f. The same input in any order gives the same table. It refuses a
// filter without a link outside (NET-3) and rules that say nothing or too much.
func Compile(f Filter) (Table, error) {
	if len(f.Outside) == 0 {
		return Table{}, refusal.New("a packet filter without an uplink",
			"no link with a default route was found, so there is nothing to filter around",
			"give the machine a default route; until then it keeps the filter it has")
	}
	if err := checkLinks(f); err != nil {
		return Table{}, err
	}
	all, err := openings(f.Allow)
	if err != nil {
		return Table{}, err
	}
	trusted := len(f.Inside) > 0
	d := declare(all)
	t := Table{sets: slices.Concat(linkSets(f), controlSets(), d.sets), counters: append(ownCounters(), d.counters...), openings: all}
	t.chains = []chain{
		{name: "input", hook: hookInput, lines: inputLines(trusted)},
		{name: "forward", hook: hookForward, lines: forwardLines(trusted)},
		{name: "control", lines: controlLines()},
		{name: "declared", lines: d.lines()},
		{name: "untracked", lines: d.untracked},
		{name: "refuse", lines: refuseLines()},
	}
	t.digest = digest(t.Text())
	return t, nil
}

// checkLinks refuses names that are none, and what leaves nothing to filter.
func checkLinks(f Filter) error {
	for _, names := range [][]string{f.Outside, f.Inside, f.Bridges, f.Tunnel} {
		for _, name := range names {
			if err := checkLink(name); err != nil {
				return err
			}
		}
	}
	for _, name := range f.Tunnel {
		if slices.Contains(f.Inside, name) {
			return refusal.New("the link "+name+" as inside", "it is the tunnel to the other machines, and that is outside (NET-2)", "take it off the links declared inside")
		}
	}
	if !slices.ContainsFunc(f.Outside, f.filters) {
		return refusal.New("a packet filter with every uplink declared inside", "nothing would be left to filter of "+strings.Join(f.Outside, ", "),
			"leave one of them outside; until then the machine keeps the filter it has")
	}
	return nil
}

// filters reports whether the link was not declared inside.
func (f Filter) filters(name string) bool { return !slices.Contains(f.Inside, name) }

// checkLink refuses names that cannot stand in a set of names or in nft's text.
func checkLink(name string) error {
	bad := func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune(`/:"\*`, r) }
	if name == "" || len(name) > 15 || strings.ContainsFunc(name, bad) {
		return refusal.New(fmt.Sprintf("the link name %q in the packet filter", name),
			`a name has 1 to 15 printable characters, without / : " \ * and blanks`, "rename the link")
	}
	return nil
}

func linkSets(f Filter) []set {
	outside := slices.Clone(hardware)
	for _, name := range slices.Concat(f.Outside, f.Tunnel) {
		if !f.filters(name) {
			continue
		}
		// A name and a wildcard that covers it are conflicting intervals.
		covered := slices.ContainsFunc(hardware, func(w string) bool { return strings.HasPrefix(name, strings.TrimSuffix(w, "*")) })
		if !covered {
			outside = append(outside, name)
		}
	}
	names := func(in []string) []string {
		in = slices.Clone(in)
		slices.Sort(in)
		return slices.Compact(in)
	}
	sets := []set{
		{name: "outside", kind: kindLink, interval: true},
		{name: "tunnel", kind: kindLink},
		{name: "same_bridge", kind: kindLinkPair},
	}
	if len(f.Inside) > 0 {
		sets = append(sets, set{name: "inside", kind: kindLink})
		for _, name := range names(f.Inside) {
			sets[3].elements = append(sets[3].elements, linkElement(name))
		}
	}
	for _, name := range names(outside) {
		sets[0].elements = append(sets[0].elements, linkElement(name))
	}
	for _, name := range names(f.Tunnel) {
		sets[1].elements = append(sets[1].elements, linkElement(name))
	}
	for _, name := range names(f.Bridges) {
		if !f.filters(name) {
			continue
		}
		e := linkElement(name)
		sets[2].elements = append(sets[2].elements, element{first: slices.Concat(e.first, e.first), text: e.text + " . " + e.text})
	}
	return sets
}

// linkElement is a link name, or a wildcard that ends in *, padded to the kernel's 16 bytes:
// without the padding a name would match as a prefix.
func linkElement(name string) element {
	prefix, wild := strings.CutSuffix(name, "*")
	e := element{first: make([]byte, 16), last: make([]byte, 16), text: `"` + name + `"`}
	copy(e.first, prefix)
	copy(e.last, prefix)
	if wild {
		copy(e.last[len(prefix):], bytes.Repeat([]byte{0xff}, 16))
	}
	return e
}

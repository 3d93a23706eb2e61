package converge

import (
	"fmt"
	"slices"
	"strings"

	"mesh/firewall/foreign"
)

// saved is what iptables-save prints of one table.
type saved struct {
	name     string
	policies map[string]string // of the chains that packets enter: ACCEPT or DROP
	chains   []string          // of people and tools, in order
	rules    []string          // "-A INPUT …", in order
}

// parseSaved reads what iptables-save prints. Counters are left out.
func parseSaved(text string) []saved {
	var all []saved
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch words := strings.Fields(line); {
		case strings.HasPrefix(line, "*"):
			all = append(all, saved{name: line[1:], policies: map[string]string{}})
		case len(all) == 0 || len(words) < 2:
		case strings.HasPrefix(line, ":"):
			t := &all[len(all)-1]
			if chain := words[0][1:]; words[1] == "-" {
				t.chains = append(t.chains, chain)
			} else {
				t.policies[chain] = words[1]
			}
		case strings.HasPrefix(line, "-A "):
			t := &all[len(all)-1]
			t.rules = append(t.rules, line)
		}
	}
	return all
}

// option is the word after the first of names in a rule, or empty.
func option(words []string, names ...string) string {
	for i, w := range words[:max(0, len(words)-1)] {
		if slices.Contains(names, w) {
			return words[i+1]
		}
	}
	return ""
}

// docker is the owner whose rules in shared chains bear no name of its own.
const docker = "docker"

func chainOf(rule string) string { return option(strings.Fields(rule), "-A") }

// stays says of each rule of t whether a converge leaves it alone: it stands in a chain of a container
// runtime, of bans or of a tunnel, leads to one, looks into a set of theirs, or is about a link that leads to
// docker's chains.
func (t *saved) stays() []bool {
	links := map[string]bool{}
	out := make([]bool, len(t.rules))
	for i, r := range t.rules {
		w := strings.Fields(r)
		to := foreign.Stays(option(w, "-j", "-g"))
		if link := option(w, "-o"); to == docker && link != "" {
			links[link] = true // a network's bridge, whatever its name
		}
		out[i] = to != "" || foreign.Stays(chainOf(r)) != "" || foreign.StaysSet(option(w, "--match-set")) != ""
	}
	for i, r := range t.rules {
		w := strings.Fields(r)
		for _, link := range []string{option(w, "-i"), option(w, "-o")} {
			out[i] = out[i] || links[link] || t.shared() && foreign.StaysLink(link) != ""
		}
	}
	return out
}

// shared says whether a tool that a converge leaves alone has chains in t.
func (t *saved) shared() bool {
	return slices.ContainsFunc(t.chains, func(c string) bool { return foreign.Stays(c) != "" })
}

// refusing are the targets that refuse.
var refusing = []string{"DROP", "REJECT", "TARPIT", "NFQUEUE", "STEAL"}

// own says of each rule of t whether it goes with the front end: in the table filter all that does not stay,
// elsewhere what refuses; translating addresses and marking packets go on.
func (t *saved) own() []bool {
	out := t.stays()
	for i, r := range t.rules {
		out[i] = !out[i] && (t.name == "filter" || slices.Contains(refusing, option(strings.Fields(r), "-j", "-g")))
	}
	return out
}

// gone are the chains of people in t that nothing is left in or leads to once own rules are deleted.
func (t *saved) gone(own []bool) []string {
	if t.name != "filter" {
		return nil
	}
	var all []string
	for _, c := range t.chains {
		used := foreign.Stays(c) != ""
		for i, r := range t.rules {
			used = used || !own[i] && (chainOf(r) == c || option(strings.Fields(r), "-j", "-g") == c)
		}
		if !used {
			all = append(all, c)
		}
	}
	return all
}

// opens are the chains whose policy goes to ACCEPT. Docker's policy of FORWARD is its own.
func (t *saved) opens() []string {
	var all []string
	for c, policy := range t.policies {
		docker := slices.ContainsFunc(t.chains, func(c string) bool { return foreign.Stays(c) == docker })
		if policy == "DROP" && !(c == "FORWARD" && docker) {
			all = append(all, c)
		}
	}
	slices.Sort(all)
	return all
}

// retireRules writes what iptables-restore --noflush reads to take a front end's rules out of shared tables
// in one transaction a table; empty when there is nothing of it.
func retireRules(text string) string {
	var b strings.Builder
	for _, t := range parseSaved(text) {
		own := t.own()
		opens, gone := t.opens(), t.gone(own)
		if len(opens)+len(gone) == 0 && !slices.Contains(own, true) {
			continue
		}
		fmt.Fprintf(&b, "*%s\n", t.name)
		for _, c := range opens {
			fmt.Fprintf(&b, ":%s ACCEPT [0:0]\n", c)
		}
		for i, r := range t.rules {
			if own[i] {
				fmt.Fprintf(&b, "-D %s\n", strings.TrimPrefix(r, "-A "))
			}
		}
		for _, c := range gone {
			fmt.Fprintf(&b, "-X %s\n", c)
		}
		b.WriteString("COMMIT\n")
	}
	return b.String()
}

// restoreRules writes what iptables-restore --noflush reads to put back into the rules of now what
// retireRules took out of those of before: each rule comes after the one it came after. What others have
// done meanwhile stays.
func restoreRules(before, now string) string { return bring(before, now, (*saved).own) }

// restoreAll is restoreRules for all rules, after a program that flushes what is not its own.
func restoreAll(before, now string) string {
	return bring(before, now, func(t *saved) []bool {
		all := make([]bool, len(t.rules))
		for i := range all {
			all[i] = true
		}
		return all
	})
}

// bring puts back into the rules of now those of before that which says.
func bring(before, now string, which func(*saved) []bool) string {
	var b strings.Builder
	current := parseSaved(now)
	for _, t := range parseSaved(before) {
		picked := which(&t)
		var cur saved
		if i := slices.IndexFunc(current, func(c saved) bool { return c.name == t.name }); i >= 0 {
			cur = current[i]
		}
		var text strings.Builder
		for _, c := range t.opens() {
			if cur.policies[c] != t.policies[c] {
				fmt.Fprintf(&text, ":%s %s [0:0]\n", c, t.policies[c])
			}
		}
		for _, c := range t.chains {
			if !slices.Contains(cur.chains, c) && t.uses(c, picked) {
				fmt.Fprintf(&text, ":%s - [0:0]\n", c)
			}
		}
		weave(&text, t, picked, cur.rules)
		if text.Len() > 0 {
			fmt.Fprintf(&b, "*%s\n%sCOMMIT\n", t.name, text.String())
		}
	}
	return b.String()
}

// uses says whether one of the picked rules is in chain or leads to it.
func (t *saved) uses(chain string, picked []bool) bool {
	for i, r := range t.rules {
		if picked[i] && (chainOf(r) == chain || option(strings.Fields(r), "-j", "-g") == chain) {
			return true
		}
	}
	return false
}

// weave writes the insertions of t's own rules into the rules of now.
func weave(b *strings.Builder, t saved, own []bool, now []string) {
	chains := map[string][]string{}
	for _, r := range now {
		chains[chainOf(r)] = append(chains[chainOf(r)], r)
	}
	after := map[string]int{} // in the chain: how many of now's rules come before the next insertion
	for i, r := range t.rules {
		c := chainOf(r)
		at := slices.Index(chains[c][after[c]:], r)
		if at >= 0 {
			after[c] += at + 1 // it is there: another's, or ours put back already
			continue
		}
		if !own[i] {
			continue // another took it away
		}
		fmt.Fprintf(b, "-I %s %d%s\n", c, after[c]+1, strings.TrimPrefix(r, "-A "+c))
		chains[c] = slices.Insert(slices.Clone(chains[c]), after[c], r)
		after[c]++
	}
}

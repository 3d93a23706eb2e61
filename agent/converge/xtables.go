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

// comment is that of a rule, or empty.
func comment(rule string) string {
	_, text, _ := strings.Cut(rule, " --comment ")
	if quoted, ok := strings.CutPrefix(text, `"`); ok {
		text, _, _ = strings.Cut(quoted, `"`)
		return text
	}
	text, _, _ = strings.Cut(text, " ")
	return text
}

// docker is the owner whose rules in shared chains bear no name of its own.
const docker = "docker"

func chainOf(rule string) string { return option(strings.Fields(rule), "-A") }

// stays says of each rule of t whether a converge leaves it alone: it stands in a chain of a container
// runtime, of bans or of a tunnel, leads to one, looks into a set of theirs, bears their comment, or is about a
// link that leads to docker's chains.
func (t *saved) stays() []bool {
	links := map[string]bool{}
	out := make([]bool, len(t.rules))
	for i, r := range t.rules {
		w := strings.Fields(r)
		to := foreign.Stays(option(w, "-j", "-g"))
		if link := option(w, "-o"); to == docker && link != "" {
			links[link] = true // a network's bridge, whatever its name
		}
		out[i] = to != "" || foreign.Stays(chainOf(r)) != "" || foreign.StaysSet(option(w, "--match-set")) != "" || foreign.StaysComment(comment(r)) != ""
	}
	shared := t.shared()
	for i, r := range t.rules {
		w := strings.Fields(r)
		for _, link := range []string{option(w, "-i"), option(w, "-o")} {
			out[i] = out[i] || links[link] || shared && foreign.StaysLink(link) != ""
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
	stay := make([]bool, len(own))
	for i := range own {
		stay[i] = !own[i]
	}
	used := t.used(stay)
	var all []string
	for _, c := range t.chains {
		if !used[c] && foreign.Stays(c) == "" {
			all = append(all, c)
		}
	}
	return all
}

// used are the chains that one of the picked rules is in or leads to.
func (t *saved) used(picked []bool) map[string]bool {
	used := map[string]bool{}
	for i, r := range t.rules {
		if picked[i] {
			w := strings.Fields(r)
			used[option(w, "-A")], used[option(w, "-j", "-g")] = true, true
		}
	}
	return used
}

// opens are the chains whose policy goes to ACCEPT. Docker's policy of FORWARD is its own.
func (t *saved) opens() []string {
	beside := slices.ContainsFunc(t.chains, func(c string) bool { return foreign.Stays(c) == docker })
	var all []string
	for c, policy := range t.policies {
		if policy == "DROP" && !(c == "FORWARD" && beside) {
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
		used := t.used(picked)
		for _, c := range t.chains {
			if used[c] && !slices.Contains(cur.chains, c) {
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

// weave writes the insertions of t's picked rules into the rules of now: each after the one it came after.
func weave(b *strings.Builder, t saved, picked []bool, now []string) {
	chains := map[string][]string{} // what of now's rules is not passed yet
	for _, r := range now {
		c := chainOf(r)
		chains[c] = append(chains[c], r)
	}
	passed := map[string]int{} // how many rules of the chain come before the next insertion
	for i, r := range t.rules {
		c := chainOf(r)
		if at := slices.Index(chains[c], r); at >= 0 {
			passed[c] += at + 1 // it is there: another's, or ours put back already
			chains[c] = chains[c][at+1:]
			continue
		}
		if !picked[i] {
			continue // another took it away
		}
		passed[c]++
		fmt.Fprintf(b, "-I %s %d%s\n", c, passed[c], strings.TrimPrefix(r, "-A "+c))
	}
}

package foreign

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// legacyParts are the worlds of legacy xtables. Listing one with its tool loads modules and registers
// hooks, so the tool is asked only where the proc file, that of the calling thread's namespace, names
// tables.
var legacyParts = []struct{ family, names, tool string }{
	{"ip", "/proc/thread-self/net/ip_tables_names", "iptables-legacy-save"},
	{"ip6", "/proc/thread-self/net/ip6_tables_names", "ip6tables-legacy-save"},
	{"arp", "/proc/thread-self/net/arp_tables_names", ""},
}

// saver runs the tool at path, and returns what it printed.
type saver func(ctx context.Context, path string) ([]byte, error)

// runSave runs it in this process's place.
func runSave(ctx context.Context, path string) ([]byte, error) {
	return exec.CommandContext(ctx, path).Output()
}

// readLegacy adds legacy xtables.
func readLegacy(ctx context.Context, rs *Ruleset, save saver) {
	for _, part := range legacyParts {
		b, err := os.ReadFile(part.names)
		if err != nil {
			continue // the kernel part is not there, and so no table
		}
		names := strings.Fields(string(b))
		if len(names) == 0 {
			continue
		}
		tables, err := saved(ctx, part.family, part.tool, save)
		if err != nil {
			rs.note("legacy xtables of %s (%s): %v", part.family, strings.Join(names, ", "), err)
		}
		for _, name := range names {
			if !slices.ContainsFunc(tables, func(t Table) bool { return t.Name == name }) {
				tables = append(tables, Table{Family: part.family, Name: name})
			}
		}
		rs.Legacy = append(rs.Legacy, tables...)
	}
}

func saved(ctx context.Context, family, tool string, save saver) ([]Table, error) {
	if tool == "" {
		return nil, errors.New("they may refuse, and nothing here reads them")
	}
	path, err := exec.LookPath(tool)
	if err != nil {
		return nil, fmt.Errorf("they may refuse, and %s is not installed to read them", tool)
	}
	out, err := save(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", tool, err)
	}
	return ParseSave(family, bytes.NewReader(out))
}

// ParseSave reads what iptables-save or ip6tables-save prints. What it does not know it passes over.
func ParseSave(family string, r io.Reader) ([]Table, error) {
	var tables []Table
	var counted map[string]*acts
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		switch {
		case strings.HasPrefix(line, "*"):
			tables = append(tables, Table{Family: family, Name: strings.TrimSpace(line[1:])})
			counted = map[string]*acts{}
		case len(tables) == 0:
		case strings.HasPrefix(line, ":"):
			tables[len(tables)-1].saveChain(strings.Fields(line[1:]))
		case strings.HasPrefix(line, "-A ") || strings.HasPrefix(line, "["):
			tables[len(tables)-1].saveRule(strings.Fields(line), counted)
		}
	}
	return tables, lines.Err()
}

// saveChain adds a chain from "INPUT DROP [0:0]"; one of people has the policy "-".
func (t *Table) saveChain(words []string) {
	if len(words) < 2 || t.chain(words[0]) != nil {
		return
	}
	c := Chain{Name: words[0]}
	if words[1] != "-" {
		c.Base, c.Hook, c.Policy = true, strings.ToLower(words[0]), strings.ToLower(words[1])
	}
	t.Chains = append(t.Chains, c)
}

// saveRule adds "-A INPUT … -j DROP", with or without counters before it.
func (t *Table) saveRule(words []string, counted map[string]*acts) {
	at := slices.Index(words, "-A")
	if at < 0 || at+1 >= len(words) {
		return
	}
	c := t.chain(words[at+1])
	if c == nil {
		return
	}
	c.Rules++
	var act Act
	for i, w := range words[:len(words)-1] {
		next := words[i+1]
		switch w {
		case "-j", "-g", "--jump", "--goto":
			switch {
			case next == "DROP":
				act.Word = "drop"
			case slices.Contains(refusingTargets, next):
				act.Word = strings.ToLower(next)
			case t.chain(next) != nil:
				act.Chain = next
			}
		case "-i", "-o":
			act.Hint = cmp.Or(act.Hint, ownerIn(linkNames, next))
		case "--match-set":
			act.Hint = cmp.Or(act.Hint, ownerIn(setNames, next))
		case "--log-prefix":
			if h := ownerIn(logPrefixes, strings.Trim(strings.Join(words[i+1:], " "), `"`)); h != "" {
				c.hint(h)
			}
		}
	}
	if act.Word == "" && act.Chain == "" {
		return
	}
	a := counted[c.Name]
	if a == nil {
		a = &acts{}
		counted[c.Name] = a
	}
	a.add(&c.Acts, act)
}

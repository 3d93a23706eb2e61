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
func readLegacy(ctx context.Context, rs *Ruleset, save saver, whole bool) {
	for _, part := range legacyParts {
		b, err := os.ReadFile(part.names)
		if err != nil {
			continue // the kernel part is not there, and so no table
		}
		names := strings.Fields(string(b))
		if len(names) == 0 {
			continue
		}
		tables, err := saved(ctx, part.family, part.tool, save, whole)
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

func saved(ctx context.Context, family, tool string, save saver, whole bool) ([]Table, error) {
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
	return parseSave(family, bytes.NewReader(out), whole)
}

// ParseSave reads what iptables-save or ip6tables-save prints. What it does not know it passes over.
func ParseSave(family string, r io.Reader) ([]Table, error) { return parseSave(family, r, false) }

// ParseSaveAll is ParseSave that keeps the rules whole.
func ParseSaveAll(family string, r io.Reader) ([]Table, error) { return parseSave(family, r, true) }

func parseSave(family string, r io.Reader, whole bool) ([]Table, error) {
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
			tables[len(tables)-1].saveRule(fields(line), counted, whole)
		}
	}
	return tables, lines.Err()
}

// fields splits a line as the shell would: what stands in quotes is one word.
func fields(line string) []string {
	var words []string
	var word strings.Builder
	inWord, quoted := false, false
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case c == '"':
			quoted, inWord = !quoted, true
		case c == '\\' && i+1 < len(line) && quoted:
			i++
			word.WriteByte(line[i])
		case c == ' ' && !quoted:
			if inWord {
				words = append(words, word.String())
			}
			word.Reset()
			inWord = false
		default:
			word.WriteByte(c)
			inWord = true
		}
	}
	if inWord {
		words = append(words, word.String())
	}
	return words
}

// saveChain adds a chain from "INPUT DROP [0:0]"; one of people has the policy "-".
func (t *Table) saveChain(words []string) {
	if len(words) < 2 || t.chain(words[0]) != nil {
		return
	}
	c := Chain{Name: words[0]}
	if words[1] != "-" {
		c.Base, c.Hook, c.Policy, c.Type = true, strings.ToLower(words[0]), strings.ToLower(words[1]), "filter"
		if t.Name == "nat" {
			c.Type = "nat"
		}
	}
	t.Chains = append(t.Chains, c)
}

// saveRule adds "-A INPUT … -j DROP", with or without counters before it.
func (t *Table) saveRule(words []string, counted map[string]*acts, whole bool) {
	at := slices.Index(words, "-A")
	if at < 0 || at+1 >= len(words) {
		return
	}
	c := t.chain(words[at+1])
	if c == nil {
		return
	}
	c.Rules++
	rest := words[at+2:]
	if whole {
		l := Line{Words: slices.Clip(append([]string{}, rest...))}
		if i := slices.Index(rest, "--comment"); i >= 0 && i+1 < len(rest) {
			l.Comment = rest[i+1]
		}
		c.Lines = append(c.Lines, l)
	}
	act, hint := actOf(t, rest)
	if hint != "" {
		c.hint(hint)
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

// actOf is what a rule of t does, and whose words it logs.
func actOf(t *Table, words []string) (act Act, hint string) {
	for i, w := range words {
		if i+1 == len(words) {
			break
		}
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
		case "--comment":
			act.Hint = cmp.Or(act.Hint, ownerIn(comments, next))
		case "--log-prefix":
			hint = ownerIn(logPrefixes, next)
		}
	}
	return act, hint
}

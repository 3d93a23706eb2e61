package foreign_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"mesh/firewall/foreign"
	"mesh/testbus/netlab"
)

// parts are the sections of a file of testdata/made: "-- name --", then its text.
func parts(t testing.TB, file string) map[string]string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	name := ""
	for line := range strings.Lines(string(b)) {
		if head, ok := strings.CutPrefix(strings.TrimSpace(line), "-- "); ok && strings.HasSuffix(head, " --") {
			name = strings.TrimSuffix(head, " --")
			continue
		}
		if name != "" {
			found[name] += line
		}
	}
	return found
}

// inLines is r as the sections "expected" have it, sorted.
func inLines(r foreign.Report) []string {
	var all []string
	join := func(w foreign.Words) string { return strings.Join(w, ", ") }
	var shared []string
	for _, t := range r.Tables {
		if t.SharedBy != "" {
			shared = append(shared, t.Family+" "+t.Table)
		}
	}
	if slices.Sort(shared); len(shared) > 0 {
		all = append(all, "shared "+strings.Join(shared, ", "))
	}
	for _, c := range r.Refusing {
		all = append(all, fmt.Sprintf("%s %s %s [%s]: %s | %s | %s", c.Family, c.Table, c.Chain, strings.Join(c.Hooks, ", "), strings.Join(c.How, ", "), join(c.Owner), join(c.Fate)))
	}
	for _, c := range r.Legacy {
		all = append(all, fmt.Sprintf("legacy %s %s %s: %s | %s | %s", c.Family, c.Table, c.Chain, strings.Join(c.How, ", "), join(c.Owner), join(c.Fate)))
	}
	for _, h := range r.Held {
		all = append(all, fmt.Sprintf("held %s %s %s: %s", h.Family, h.Table, h.Chain, h.Why))
	}
	slices.Sort(all)
	return all
}

// NET-8, NET-9, NET-13: rule sets of the kinds that facts/firewall.md names and none was collected of,
// written by nft and by iptables itself.
func TestRulesetsMade(t *testing.T) {
	files, err := filepath.Glob("testdata/made/*.txt")
	if err != nil || len(files) < 15 {
		t.Fatal("too few rule sets in testdata/made", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text := parts(t, file)
			s := netlab.NewSpace(t, "host")
			for _, tool := range [][]string{{"ipset", "ipset", "restore"}, {"v4", "iptables-nft-restore"}, {"v6", "ip6tables-nft-restore"}, {"legacy-v4", "iptables-legacy-restore"}, {"legacy-v6", "ip6tables-legacy-restore"}, {"nft", "nft", "-f", "-"}} {
				if text[tool[0]] != "" {
					s.Run(text[tool[0]], tool[1:]...)
				}
			}
			var rs foreign.Ruleset
			var err error
			s.Do(func() { rs, err = foreign.Read(t.Context()) })
			if err == nil && text["legacy"] != "" {
				rs.Legacy, err = foreign.ParseSave("ip", strings.NewReader(text["legacy"]))
			}
			if err != nil {
				t.Fatal(err)
			}
			r := foreign.Judge(rs)
			want := strings.Split(strings.TrimSpace(text["expected"]), "\n")
			slices.Sort(want)
			if diff := gocmp.Diff(want, inLines(r)); diff != "" {
				t.Errorf("expected (-), read (+):\n%s", diff)
			}
			if len(r.NotUnderstood) > 0 {
				t.Errorf("not understood: %v", r.NotUnderstood)
			}
		})
	}
}

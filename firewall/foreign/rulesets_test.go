package foreign_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"mesh/firewall/foreign"
	"mesh/testbus/netlab"
)

// rulesets are the names of testdata.
func rulesets(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.expected.json")
	if err != nil || len(files) == 0 {
		t.Fatal("no rule sets in testdata", err)
	}
	for i, f := range files {
		files[i] = strings.TrimSuffix(filepath.Base(f), ".expected.json")
	}
	return files
}

func expected(t testing.TB, name string) foreign.Report {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name+".expected.json"))
	if err != nil {
		t.Fatal(err)
	}
	var r foreign.Report
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

func read(t testing.TB, s *netlab.Space) foreign.Report {
	t.Helper()
	var rs foreign.Ruleset
	var err error
	s.Do(func() { rs, err = foreign.Read(t.Context()) })
	if err != nil {
		t.Fatal(err)
	}
	return foreign.Judge(rs)
}

// comparable is r without what expected.json does not say, in one order.
func comparable(r foreign.Report) foreign.Report {
	r.LegacyTables = nil
	key := func(a, b foreign.Refusing) int {
		return cmp.Or(cmp.Compare(a.Family, b.Family), cmp.Compare(a.Table, b.Table), cmp.Compare(a.Chain, b.Chain))
	}
	r.Refusing, r.Legacy, r.Held, r.Tables = slices.Clone(r.Refusing), slices.Clone(r.Legacy), slices.Clone(r.Held), slices.Clone(r.Tables)
	for i := range r.Refusing {
		r.Refusing[i].Policy = ""
	}
	slices.SortFunc(r.Refusing, key)
	slices.SortFunc(r.Legacy, key)
	slices.SortFunc(r.Held, func(a, b foreign.Held) int {
		return cmp.Or(cmp.Compare(a.Family, b.Family), cmp.Compare(a.Table, b.Table), cmp.Compare(a.Chain, b.Chain))
	})
	slices.SortFunc(r.Tables, func(a, b foreign.TableLine) int {
		return cmp.Or(cmp.Compare(a.Family, b.Family), cmp.Compare(a.Table, b.Table))
	})
	return r
}

// NET-8, NET-9: what every collected rule set is read as, from the kernel.
func TestRulesetsOfOthers(t *testing.T) {
	for _, name := range rulesets(t) {
		t.Run(name, func(t *testing.T) {
			s := netlab.NewSpace(t, "host")
			put(t, s, listing(t, name), prefixes(t, name), ipsets(t, s, name)...)
			got, want := comparable(read(t, s)), comparable(expected(t, name))
			got.Legacy = want.Legacy // TestLegacyXTables reads those
			if diff := gocmp.Diff(want, got); diff != "" {
				t.Errorf("expected (-), read (+):\n%s", diff)
			}
		})
	}
}

// As nft writes the same rule sets, with all their expressions. It cannot write what iptables did: a
// REJECT becomes a reject, some matches are lost.
func TestRulesetsOfOthersByNft(t *testing.T) {
	fix := strings.NewReplacer("flags owner,persist", "", "hook output priority dstnat - 10", "hook output priority -110", "hook output priority dstnat + 10", "hook output priority -90", "hook output priority dstnat", "hook output priority -100",
		"hook input priority srcnat", "hook input priority 100")
	for _, name := range rulesets(t) {
		t.Run(name, func(t *testing.T) {
			b, err := os.ReadFile(filepath.Join("testdata", name+".nft"))
			if err != nil {
				t.Fatal(err)
			}
			if why := outOfTongue.FindString(string(b)); why != "" {
				t.Logf("left to the other test: nft does not read %q", why)
				return
			}
			s := netlab.NewSpace(t, "host")
			if out, err := s.Try(unwritten.ReplaceAllString(fix.Replace(string(b)), ""), "nft", "-f", "-"); err != nil {
				t.Fatal(out)
			}
			got, want := plain(comparable(read(t, s))), plain(comparable(expected(t, name)))
			got.Legacy = want.Legacy
			if diff := gocmp.Diff(want, got); diff != "" {
				t.Errorf("expected (-), read (+):\n%s", diff)
			}
		})
	}
}

// ipsets makes the sets that rules of xtables ask, and returns their numbers in the order in which they do: the
// listings of nft say "set" and no more, those of iptables beside them have the names.
func ipsets(t testing.TB, s *netlab.Space, name string) (numbers []byte) {
	t.Helper()
	var names []string
	var made strings.Builder
	for _, part := range [][2]string{{"v4", "inet"}, {"v6", "inet6"}} {
		b, err := os.ReadFile(filepath.Join("testdata", name+".iptables-save."+part[0]+".txt"))
		if err != nil {
			continue
		}
		for _, set := range asked.FindAllStringSubmatch(string(b), -1) {
			if !slices.Contains(names, set[1]) {
				names = append(names, set[1])
				fmt.Fprintf(&made, "create %s hash:net family %s\n", set[1], part[1])
			}
			numbers = append(numbers, byte(slices.Index(names, set[1])))
		}
	}
	if made.Len() > 0 {
		s.Run(made.String(), "ipset", "restore")
	}
	return numbers
}

var asked = regexp.MustCompile(`--match-set (\S+)`)

// outOfTongue is what nft lists and does not read: chains whose names are words of its language, and sets of ipset.
var outOfTongue = regexp.MustCompile(`\tchain (accept|drop|reject|dynamic|return|continue|queue|log) \{|xt match "set"`)

// unwritten is what nft lists and cannot write: the parts of xtables that it has no words for, and, of nft 1.0.6, a
// TOS target of iptables in a table of either family.
var unwritten = regexp.MustCompile(`ip6 dscp set \S+|xt (match|target) "?[\w-]+"?`)

var counted = regexp.MustCompile(`^(xt REJECT|reject) x\d+$`)

// plain takes out what nft's own writing of an iptables rule set changes.
func plain(r foreign.Report) foreign.Report {
	for i := range r.Tables {
		r.Tables[i].SharedBy, r.Tables[i].Flags = "", nil
	}
	for i := range r.Refusing {
		how := slices.Clone(r.Refusing[i].How)
		for j, word := range how {
			if counted.MatchString(word) {
				how[j] = "reject"
			}
		}
		slices.Sort(how)
		r.Refusing[i].How = slices.Compact(how)
	}
	return r
}

func TestLegacyXTables(t *testing.T) {
	files, err := filepath.Glob("testdata/*.iptables-legacy-save.v4.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no legacy rule set in testdata", err)
	}
	for _, v4 := range files {
		name := strings.TrimSuffix(filepath.Base(v4), ".iptables-legacy-save.v4.txt")
		var rs foreign.Ruleset
		for family, file := range map[string]string{"ip": v4, "ip6": strings.Replace(v4, ".v4.", ".v6.", 1)} {
			f, err := os.Open(file)
			if err != nil {
				t.Fatal(err)
			}
			tables, err := foreign.ParseSave(family, f)
			f.Close()
			if err != nil {
				t.Fatal(err)
			}
			rs.Legacy = append(rs.Legacy, tables...)
		}
		if diff := gocmp.Diff(comparable(expected(t, name)).Legacy, comparable(foreign.Judge(rs)).Legacy); diff != "" {
			t.Errorf("%s: expected (-), read (+):\n%s", name, diff)
		}
	}
}

// The same in the kernel: legacy xtables are found by the proc files, and read by their tool.
func TestLegacyXTablesForReal(t *testing.T) {
	files, err := filepath.Glob("testdata/*.iptables-legacy-save.v4.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no legacy rule set in testdata", err)
	}
	for _, v4 := range files {
		name := strings.TrimSuffix(filepath.Base(v4), ".iptables-legacy-save.v4.txt")
		t.Run(name, func(t *testing.T) {
			s := netlab.NewSpace(t, "host")
			for file, tool := range map[string]string{v4: "iptables-legacy-restore", strings.Replace(v4, ".v4.", ".v6.", 1): "ip6tables-legacy-restore"} {
				b, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				s.Run(string(b), tool)
			}
			got, want := comparable(read(t, s)), comparable(expected(t, name))
			if diff := gocmp.Diff(want.Legacy, got.Legacy); diff != "" || len(got.Refusing) > 0 || len(got.NotUnderstood) > 0 {
				t.Errorf("expected (-), read (+):\n%s%v %v", diff, got.Refusing, got.NotUnderstood)
			}
		})
	}
}

func TestReadEndsWithItsContext(t *testing.T) {
	s := netlab.NewSpace(t, "host")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.Do(func() {
		if _, err := foreign.Read(ctx); err == nil {
			t.Error("a reading that was called off ended well")
		}
	})
}

func write(t testing.TB, root, name, text string) {
	t.Helper()
	path := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

package grant_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"mesh/shared/grant"
	"mesh/testbus"
)

// right is a subject with wildcards and a queue, taken apart.
type right struct {
	tokens []string
	queue  string
}

func apart(all []string) []right {
	out := make([]right, len(all))
	for i, r := range all {
		sub, queue, _ := strings.Cut(r, " ")
		out[i] = right{strings.Split(sub, "."), queue}
	}
	return out
}

// covers reports whether r covers the subject token by token, as the server has it. A right in a queue is none
// without it.
func (r right) covers(want right) bool {
	if r.queue != "" && r.queue != want.queue {
		return false
	}
	for i, t := range r.tokens {
		switch {
		case t == ">":
			return len(want.tokens) > i
		case i >= len(want.tokens), want.tokens[i] == ">", t != "*" && t != want.tokens[i]:
			return false
		}
	}
	return len(r.tokens) == len(want.tokens)
}

func may(rights []right, sub string) bool {
	want := apart([]string{sub})[0]
	return slices.ContainsFunc(rights, func(r right) bool { return r.covers(want) })
}

// meshes is how many meshes are made at random; each is some hundred pairs of a principal and a subject.
const meshes = 10_000

// MEM-7: in no mesh does a principal reach what is another's: declaration, membership, inbox, verb, event, key of
// a bucket, acknowledgement; and in each it may do what it needs.
func TestNobodyReachesItsNeighbours(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 7))
	checked := 0
	for i := range meshes {
		m := testbus.RandomMesh(r)
		p := m.Principals[r.IntN(len(m.Principals))] // one of them against all others
		rights, err := grant.For(p)
		if err != nil {
			t.Fatalf("mesh %d, %s: %v", i, p.Label(), err)
		}
		says, listens := apart(rights.Publish), apart(rights.Subscribe)
		own, ownHears := testbus.Needs(p)
		for _, s := range own {
			if checked++; !may(says, s) {
				t.Fatalf("mesh %d: %s may not publish %s, which it needs: %q", i, p.Label(), s, rights.Publish)
			}
		}
		for _, s := range ownHears {
			if checked++; !may(listens, s) {
				t.Fatalf("mesh %d: %s may not hear %s, which it needs: %q", i, p.Label(), s, rights.Subscribe)
			}
		}
		for _, q := range m.Principals {
			if q.Label() == p.Label() {
				continue
			}
			publish, hear := testbus.Theirs(q)
			for _, s := range publish {
				if checked++; may(says, s) && !slices.Contains(own, s) && !theCoordinators(p, s) {
					t.Fatalf("mesh %d: %s may publish %s of %s", i, p.Label(), s, q.Label())
				}
			}
			for _, s := range hear {
				if checked++; may(listens, s) && !slices.Contains(ownHears, s) && p.Kind != grant.Coordinator {
					t.Fatalf("mesh %d: %s may hear %s of %s", i, p.Label(), s, q.Label())
				}
			}
		}
	}
	t.Logf("%d meshes, %d pairs of a principal and a subject", meshes, checked)
}

// theCoordinators are what it may of others: it declares, and reads every stream.
func theCoordinators(p grant.Principal, sub string) bool {
	return p.Kind == grant.Coordinator && strings.HasPrefix(sub, "$JS.API.")
}

// The eyes of the property see what is wrong.
func TestThePropertyIsNotBlind(t *testing.T) {
	for _, x := range []struct {
		right, sub string
		want       bool
	}{{"a.*", "a.b", true}, {"a.*", "a.b.c", false}, {"a.>", "a.b.c", true}, {"a.>", "a", false}, {"a.*", "a.>", false}, {"a.b q", "a.b", false}, {"a.b q", "a.b q", true}, {"a.b", "a.b q", true}, {"a.b q", "a.b p", false}} {
		if got := may(apart([]string{x.right}), x.sub); got != x.want {
			t.Errorf("the right %q for %q: %v", x.right, x.sub, got)
		}
	}
}

const page, begins, ends = "../../docs/security.md", "<!-- rights: made by make generate -->\n", "<!-- rights end -->\n"

// The table of who may what in docs/security.md is that of the derivation.
func TestTheTableOfRightsIsFresh(t *testing.T) {
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(b), begins)
	old, after, ok2 := strings.Cut(rest, ends)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table", page)
	}
	fresh, err := table()
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("MESH_GENERATE") != "" {
		if err := os.WriteFile(page, []byte(before+begins+fresh+ends+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if old != fresh {
		t.Errorf("the table of rights in %s is stale; write it with: make generate", page)
	}
}

func table() (string, error) {
	var b strings.Builder
	b.WriteString("| who | may publish | may hear |\n|---|---|---|\n")
	for _, x := range testbus.Examples() {
		r, err := grant.For(x.Principal)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", x.Who, cells(r.Publish), cells(r.Subscribe))
	}
	return b.String(), nil
}

func cells(all []string) string {
	if len(all) > 16 {
		all = append(slices.Clone(all[:15]), fmt.Sprintf("… %d more verbs", len(all)-15))
	}
	return "`" + strings.Join(all, "`<br>`") + "`"
}

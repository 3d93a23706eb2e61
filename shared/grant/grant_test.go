package grant_test

import (
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"testing"

	"mesh/shared/credential"
	"mesh/shared/grant"
	"mesh/shared/subject"
)

func key(t *testing.T) string {
	t.Helper()
	s, err := credential.NewUser(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	k, err := s.Public()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestNoListIsEverEmpty(t *testing.T) {
	for _, p := range []grant.Principal{
		{Kind: grant.Coordinator}, {Kind: grant.Node, Name: "n1"}, {Kind: grant.Operator, Name: "viewer-of-nothing"}, {Kind: grant.Invitation, Name: "i"},
	} {
		r, err := grant.For(p)
		if err != nil || len(r.Publish) == 0 || len(r.Subscribe) == 0 {
			t.Errorf("%s: %+v, %v: the server takes an empty list for everything", p.Label(), r, err)
		}
	}
	if _, err := grant.For(grant.Principal{Kind: "pet", Name: "x"}); err == nil {
		t.Error("a kind nobody knows got rights")
	}
	if _, err := grant.For(grant.Principal{Kind: grant.Node, Name: "a.b"}); err == nil {
		t.Error("a node with a dot got rights")
	}
}

func TestNobodyGetsTheBareDirectGetOrAWildcardConsumer(t *testing.T) {
	for _, p := range []grant.Principal{{Kind: grant.Node, Name: "n1", Artifacts: []string{strings.Repeat("aa", 32)}}, {Kind: grant.Operator, Name: "ada", Verbs: []subject.Verb{"status"}, Upload: true}, {Kind: grant.Invitation, Name: "i"}} {
		r, err := grant.For(p)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range r.Publish {
			if s == "$JS.API.DIRECT.GET.DECLARATIONS" || strings.Contains(s, "CONSUMER") || strings.Contains(s, ">") && s != "_R_.>" {
				t.Errorf("%s may publish %s", p.Label(), s)
			}
		}
	}
}

// One bad record keeps nobody else off the list; least of all does one who asks to be let in with another's key.
func TestABadRecordIsLeftOutAndNamed(t *testing.T) {
	core, ada, n1 := grant.Principal{Kind: grant.Coordinator, Key: key(t)}, grant.Principal{Kind: grant.Operator, Name: "ada", Key: key(t)}, grant.Principal{Kind: grant.Node, Name: "n1", Key: key(t)}
	l, left, err := grant.Compose([]grant.Principal{
		{Kind: grant.Invitation, Name: "i", Key: n1.Key}, {Kind: grant.Node, Name: "thief", Key: core.Key}, {Kind: grant.Node, Name: "other", Key: ada.Key},
		{Kind: grant.Node, Name: "bad", Key: key(t), Artifacts: []string{">"}}, {Kind: "pet", Name: "x", Key: key(t)},
		n1, ada, core, {Kind: grant.Node, Name: "n2", Key: n1.Key},
	})
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]string{}
	for _, u := range l.Users {
		have[u.Principal] = u.Key
	}
	if len(have) != 3 || have["coordinator"] != core.Key || have["operator-ada"] != ada.Key || have["node-n1"] != n1.Key {
		t.Errorf("on the list: %v", have)
	}
	why := map[string]string{}
	for _, l := range left {
		why[l.Principal] = l.Why
	}
	for who, says := range map[string]string{"node-thief": "key of coordinator", "node-other": "key of operator-ada", "invitation-i": "key of node-n1", "node-n2": "key of node-n1", "node-bad": "SHA-256", "pet-x": "no rights are known"} {
		if !strings.Contains(why[who], says) {
			t.Errorf("%s is left out because %q, want it to say %q", who, why[who], says)
		}
	}
}

func TestATokenIsNeverAWildcard(t *testing.T) {
	for _, p := range []grant.Principal{
		{Kind: grant.Node, Name: "n1", Artifacts: []string{"*"}}, {Kind: grant.Node, Name: "n1", Artifacts: []string{strings.Repeat("AA", 32)}},
		{Kind: grant.Node, Name: "n1", Artifacts: []string{">"}}, {Kind: grant.Node, Name: "*"}, {Kind: grant.Invitation, Name: ">"},
		{Kind: grant.Operator, Name: "ada", Verbs: []subject.Verb{">"}}, {Kind: grant.Operator, Name: "ada", Verbs: []subject.Verb{"a.b"}},
	} {
		if r, err := grant.For(p); err == nil {
			t.Errorf("%+v may %+v", p, r)
		}
	}
}

func TestASharedArtifactIsOneRight(t *testing.T) {
	d := strings.Repeat("ab", 32)
	one, err := grant.For(grant.Principal{Kind: grant.Node, Name: "n1", Artifacts: []string{d}})
	if err != nil {
		t.Fatal(err)
	}
	two, err := grant.For(grant.Principal{Kind: grant.Node, Name: "n1", Artifacts: []string{d, d}})
	if err != nil || !slices.Equal(one.Publish, two.Publish) {
		t.Errorf("twice the same: %v, %v", two.Publish, err)
	}
}

func TestCompose(t *testing.T) {
	n1 := grant.Principal{Kind: grant.Node, Name: "n1", Key: key(t)}
	core := grant.Principal{Kind: grant.Coordinator, Key: key(t)}
	l, left, err := grant.Compose([]grant.Principal{n1, core, {Kind: grant.Node, Name: "n2"}, {Kind: grant.Node, Name: "n3", Key: "rubbish"}})
	if err != nil || len(l.Users) != 2 || len(left) != 2 || left[0].Principal != "node-n2" {
		t.Fatalf("got %d users, left %v, %v", len(l.Users), left, err)
	}
	for _, u := range l.Users {
		if want := grant.Fleet; (u.Key == core.Key) == (u.Account == want) {
			t.Errorf("%s is in account %s", u.Principal, u.Account)
		}
	}
	if _, _, err := grant.Compose(nil); !errors.Is(err, grant.ErrEmpty) {
		t.Errorf("an empty list: %v", err)
	}
	again, _, err := grant.Compose([]grant.Principal{core, n1})
	if err != nil || again.Digest() != l.Digest() {
		t.Error("the order of the records changed the list")
	}
	n1.Artifacts = []string{strings.Repeat("aa", 32)}
	more, _, err := grant.Compose([]grant.Principal{core, n1})
	if err != nil || more.Digest() == l.Digest() {
		t.Error("another right did not change the digest")
	}
}

func TestExportsAreSortedOutByKind(t *testing.T) {
	i := slices.IndexFunc(grant.Exports(), func(e grant.Export) bool { return e.Stream && e.Share })
	if i >= 0 {
		t.Errorf("%+v: only a service can be shared", grant.Exports()[i])
	}
}

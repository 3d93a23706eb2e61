package compose_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mesh/coordinator/compose"
	"mesh/coordinator/records"
	"mesh/shared/credential"
	"mesh/shared/declaration"
	"mesh/shared/grant"
	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/subject"
)

func (f *fleet) compose(c *compose.Composer, n subject.Node) compose.Composed {
	f.Helper()
	d, err := c.Node(f.Context(), n)
	f.ok(err)
	return d
}

// opened is the declaration as the node would open it.
func (f *fleet) opened(c *compose.Composer, d compose.Composed) *declaration.Declaration {
	f.Helper()
	text, err := c.Text(f.Context(), d)
	f.ok(err)
	got, err := text.Open(f.signer.Verifier(), "m1", d.Node)
	f.ok(err)
	if got.Seq != d.Seq {
		f.Fatalf("it says seq %d, composed was %d", got.Seq, d.Seq)
	}
	return got
}

func (f *fleet) hear(n subject.Node, change func(*report.Report)) {
	f.Helper()
	kept, err := f.store.Report(f.Context(), n)
	f.ok(err)
	r := kept.Report
	r.Format, r.Mesh, r.Node, r.Number = report.Format, "m1", n, r.Number+1
	if r.Apply.Outcome == "" {
		r.Apply.Outcome = report.None
	}
	change(&r)
	_, err = f.store.RecordReports(f.Context(), []records.Received{{Report: &r, Heard: f.clk.Now()}})
	f.ok(err)
}

func TestSeq(t *testing.T) {
	f := newFleet(t)
	f.node("db1")
	f.module(`{"module":"web","settings":{"port":{"default":"80"}}}`)
	f.assign("web", nil, "db1")
	c := f.composer()
	first := f.compose(c, "db1")
	if !first.Changed || first.Seq != 1 || len(first.Left) != 1 {
		t.Fatalf("first: %+v", first)
	}
	d := f.opened(c, first)
	if len(d.Modules) != 1 || d.Filter != nil {
		t.Errorf("opened %+v", d)
	}
	text := must(c.Text(t.Context(), first))
	for name, c := range map[string]*compose.Composer{"again": c, "after a restart": f.composer()} {
		d := f.compose(c, "db1")
		if d.Changed || d.Seq != 1 || d.Hash != first.Hash || string(must(c.Text(t.Context(), d))) != string(text) || !cmp.Equal(d.Left, first.Left) || !cmp.Equal(d.Builds, first.Builds) {
			t.Errorf("%s: %+v", name, d)
		}
	}
	f.assign("web", map[string]string{"port": "81"}, "db1")
	if d := f.compose(c, "db1"); !d.Changed || d.Seq != 2 || f.opened(c, d).Modules[0].Settings["port"] != "81" {
		t.Errorf("after a setting: %+v", d)
	}
	f.hear("db1", func(r *report.Report) { r.Uplinks = []string{"eth0"} })
	if d := f.compose(c, "db1"); d.Seq != 3 || len(d.Left) != 0 || len(f.opened(c, d).Filter.Allow) != 1 {
		t.Errorf("after the first uplink: %+v", d)
	}
	f.hear("db1", func(r *report.Report) { r.FreeDisk = 7; r.Apply.Seq = 3 })
	if d := f.compose(c, "db1"); d.Changed {
		t.Errorf("after free disk: %+v", d)
	}
}

// TestSeqOnlyGrows: a node that spoke of a newer declaration, a new machine under an old name and a new
// signing key get a seq that none before had.
func TestSeqOnlyGrows(t *testing.T) {
	f := newFleet(t)
	f.node("db1")
	c := f.composer()
	f.compose(c, "db1")
	f.hear("db1", func(r *report.Report) { r.Apply.Seq = 41 })
	if d := f.compose(c, "db1"); !d.Changed || d.Seq != 42 {
		t.Errorf("the node spoke of 41: %+v", d)
	}
	f.ok(f.store.RemoveNode(t.Context(), by, "db1"))
	if _, err := c.Node(t.Context(), "db1"); !errors.Is(err, records.ErrUnknown) {
		t.Errorf("a removed node: %v", err)
	}
	f.node("db1")
	if d := f.compose(c, "db1"); !d.Changed || d.Seq != 43 {
		t.Errorf("another machine under the name: %+v", d)
	}
	f.signer = must(credential.NewSigner(rand.Reader))
	c = f.composer()
	if d := f.compose(c, "db1"); !d.Changed || d.Seq != 44 {
		t.Errorf("another signer: %+v", d)
	}
}

func TestNodesRefuses(t *testing.T) {
	f := newFleet(t)
	f.node("db1")
	c := f.composer()
	emit := func([]compose.Composed) error { t.Error("something was composed"); return nil }
	for _, tt := range []struct {
		names []subject.Node
		say   string
	}{{nil, "empty selection"}, {[]subject.Node{"db1", "db2"}, `did you mean "db1"?`}} {
		err := c.Nodes(t.Context(), tt.names, emit)
		if refusal.Of(err) == nil || !strings.Contains(err.Error(), tt.say) {
			t.Errorf("%v: %v", tt.names, err)
		}
		if _, err := c.Plan(t.Context(), tt.names); refusal.Of(err) == nil || !strings.Contains(err.Error(), tt.say) {
			t.Errorf("plan %v: %v", tt.names, err)
		}
	}
	if got := must(f.store.Declared(t.Context(), "db1")); got.Seq != 0 {
		t.Errorf("db1 was composed: %+v", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Node(ctx, "db1"); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	f.compose(c, "db1") // and the next one works
}

// TestTooLarge: one node whose declaration does not fit is said, the others stand.
func TestTooLarge(t *testing.T) {
	f := newFleet(t)
	f.node("big")
	f.node("small")
	big := strings.Repeat("x", 250<<10)
	for i := range 9 {
		f.module(fmt.Sprintf(`{"module":"m%d","run":{"files":[{"path":"/etc/m%d","content":%q}]}}`, i, i, big))
		f.assign(subject.Module(fmt.Sprintf("m%d", i)), nil, "big")
	}
	f.assign("m0", nil, "small")
	c := f.composer()
	got := map[subject.Node]compose.Composed{}
	f.ok(c.All(t.Context(), func(all []compose.Composed) error {
		for _, d := range all {
			got[d.Node] = d
		}
		return nil
	}))
	if d := got["big"]; refusal.Of(d.Err) == nil || d.Seq != 0 || d.Changed || !strings.Contains(d.Err.Error(), "fewer modules") {
		t.Errorf("big: seq %d, %v", d.Seq, d.Err)
	}
	if d := got["small"]; d.Err != nil || d.Seq != 1 {
		t.Errorf("small: %+v", d.Err)
	}
	if why := must(c.Behind(t.Context()))["small"]; why != "declaration 1 was not sent" {
		t.Errorf("behind: %q", why)
	}
	f.ok(f.store.Unassign(t.Context(), by, []subject.Node{"big"}, "m8"))
	if d := f.compose(c, "big"); d.Seq != 1 {
		t.Errorf("made to fit: %+v", d)
	}
}

func principal(ps []grant.Principal, label string) *grant.Principal {
	for i := range ps {
		if ps[i].Label() == label {
			return &ps[i]
		}
	}
	return nil
}

// TestComposerPrincipals: the version tells when the list is another one, and a node may fetch what its
// last declarations name besides what its assignments do now.
func TestComposerPrincipals(t *testing.T) {
	f := newFleet(t)
	f.node("db1")
	c := f.composer()
	versions := []uint64{}
	look := func() []grant.Principal {
		ps, v, err := c.Principals(t.Context())
		f.ok(err)
		versions = append(versions, v)
		return ps
	}
	moved := func() bool { n := len(versions); return versions[n-1] != versions[n-2] }
	register := func(digest string) {
		f.clk.Advance(time.Millisecond)
		must2(f.store.Register(t.Context(), by, records.Registration{Manifest: []byte(`{"module":"web","settings":{"port":{"default":"1"}},"build":{"bundle":{"output":"dist"}}}`),
			Artifact: &declaration.Artifact{Digest: strings.Repeat(digest, 32), Size: 1, Chunks: 1}}))
	}
	fetches := func() string {
		var s []string
		for _, a := range principal(look(), "node-db1").Artifacts {
			s = append(s, a[:2])
		}
		return strings.Join(s, " ")
	}
	look()
	if look(); moved() {
		t.Error("nothing happened and the version moved")
	}
	register("aa")
	f.assign("web", nil, "db1")
	if got := fetches(); got != "aa" || !moved() {
		t.Errorf("assigned: %s", got)
	}
	f.compose(c, "db1")
	if got := fetches(); got != "aa" || moved() {
		t.Errorf("composed: %s, moved %v", got, moved())
	}
	register("bb")
	if got := fetches(); got != "aa bb" || !moved() {
		t.Errorf("another build: %s", got)
	}
	f.compose(c, "db1")
	if got := fetches(); got != "aa bb" || moved() {
		t.Errorf("the node may still run the build before: %s", got)
	}
	for i := range 3 { // settings change no list: a push of one costs no reload
		f.assign("web", map[string]string{"port": fmt.Sprint(i + 2)}, "db1")
		f.compose(c, "db1")
		if got := fetches(); got != "aa bb" || moved() {
			t.Errorf("after a setting: %s, moved %v", got, moved())
		}
	}
	c = f.composer() // after a restart
	if got := fetches(); got != "aa bb" {
		t.Errorf("after a restart: %s", got)
	}
	inv := must(f.store.Invite(t.Context(), by, "new1", time.Hour))
	if look(); !moved() || principal(look(), inv.Principal()) == nil {
		t.Error("the invitation is not on the list")
	}
	f.clk.Advance(24 * time.Hour)
	if look(); moved() {
		t.Error("an invitation that ended may ask why for a day")
	}
	f.clk.Advance(time.Hour)
	if look(); !moved() || principal(look(), inv.Principal()) != nil {
		t.Error("the invitation is on the list for ever")
	}
	f.clk.Advance(-24 * time.Hour) // the clock was wrong, and was put right
	if look(); !moved() || principal(look(), inv.Principal()) == nil {
		t.Error("an invitation that a wrong hour ended does not come back")
	}
	f.clk.Advance(48 * time.Hour)
	look()
	f.ok(f.store.RemoveNode(t.Context(), by, "db1"))
	ps := look()
	if !moved() || principal(ps, "node-db1") != nil {
		t.Error("a removed node is on the list (NOD-13)")
	}
	if _, left, err := grant.Compose(ps); err != nil || len(left) != 0 {
		t.Errorf("the list: %v, left out %v", err, left)
	}
}

func TestPlan(t *testing.T) {
	f := newFleet(t)
	f.node("db1")
	f.node("db2")
	f.module(`{"module":"web","settings":{"port":{"default":"80"}}}`)
	f.assign("web", nil, "db1")
	c := f.composer()
	ctx := t.Context()
	plan := func(n subject.Node) compose.NodePlan { return must(c.Plan(ctx, []subject.Node{n}))[0] }
	p := plan("db1")
	if p.Seq != 0 || len(p.Changes) != 1 || p.Changes[0].What != "module" || p.Unsent || len(p.Left) != 1 {
		t.Errorf("before the first: %+v", p)
	}
	if why := p.Changes[0].Why; !strings.Contains(why, "assign module web on db1, by operator-anna 2026-03-01T12:00:00Z: test") {
		t.Errorf("the cause is %q", why)
	}
	if got := must(f.store.Declared(ctx, "db1")); got.Seq != 0 {
		t.Error("a plan gave a seq")
	}
	f.compose(c, "db1")
	if p := plan("db1"); len(p.Changes) != 0 || !p.Unsent || p.Seq != 1 {
		t.Errorf("composed, not sent: %+v", p)
	}
	f.ok(f.store.RecordSends(ctx, []records.Send{{Node: "db1", Seq: 1, Push: "p1"}}))
	if p := plan("db1"); len(p.Changes) != 0 || p.Unsent {
		t.Errorf("sent: %+v", p)
	}
	f.clk.Advance(time.Minute)
	second := f.module(`{"module":"web","settings":{"port":{"default":"81"}}}`)
	f.assign("web", map[string]string{"port": "99"}, "db1")
	f.hear("db1", func(r *report.Report) { r.Uplinks = []string{"eth0"} })
	p = plan("db1")
	var what []string
	for _, ch := range p.Changes {
		what = append(what, ch.What)
	}
	if !slices.Equal(what, []string{"filter", "open", "build", "setting port"}) {
		t.Fatalf("changes are %v", what)
	}
	if why := p.Changes[0].Why; why != "the node reports other facts than before" {
		t.Errorf("the filter's cause is %q", why)
	}
	if ch := p.Changes[2]; ch.To != second.ID {
		t.Errorf("the build's change is %+v", ch)
	}
	behind := must(c.Behind(ctx))
	want := map[subject.Node]string{"db1": "what it should be has changed since declaration 1", "db2": "nothing was ever pushed to it"}
	if d := cmp.Diff(want, behind); d != "" {
		t.Errorf("behind (-want +got):\n%s", d)
	}
}

// TestManyAtOnce composes, plans and records from many goroutines; in the end the composer agrees with one
// that starts from scratch, and every seq was given once.
func TestManyAtOnce(t *testing.T) {
	f := newFleet(t)
	f.module(`{"module":"web","settings":{"port":{"default":"80"}}}`)
	names := make([]subject.Node, 8)
	for i := range names {
		names[i] = subject.Node(fmt.Sprintf("n%d", i))
		f.node(names[i])
		f.assign("web", nil, names[i])
	}
	c := f.composer()
	ctx := t.Context()
	var mu sync.Mutex // guards given
	given := map[string]bool{}
	note := func(all []compose.Composed) error {
		mu.Lock()
		defer mu.Unlock()
		for _, d := range all {
			key := fmt.Sprint(d.Node, d.Seq)
			if d.Changed && given[key] {
				t.Errorf("%s was given twice", key)
			}
			given[key] = given[key] || d.Changed
		}
		return nil
	}
	var assigning, composing sync.WaitGroup
	over := make(chan struct{})
	for g := range 2 {
		assigning.Go(func() { // ends after its rounds
			for i := range 60 {
				_, err := f.store.Assign(ctx, by, []subject.Node{names[(g+i)%len(names)]}, "web", records.AssignSet{Set: map[string]string{"port": fmt.Sprint(g*1000 + i)}})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 2 {
		composing.Go(func() { // ends when over is closed
			for {
				_, errP := c.Plan(ctx, names)
				_, _, errU := c.Principals(ctx)
				if err := errors.Join(c.Nodes(ctx, names, note), errP, errU); err != nil {
					t.Error(err)
				}
				select {
				case <-over:
					return
				default:
				}
			}
		})
	}
	assigning.Wait()
	close(over)
	composing.Wait()
	f.agrees(c)
}

// agrees checks that c gives what a composer that reads everything anew gives.
func (f *fleet) agrees(c *compose.Composer) {
	f.Helper()
	ours := f.all(c)
	fresh := f.composer()
	for n, d := range f.all(fresh) {
		if d.Changed || d.Seq != ours[n].Seq || d.Hash != ours[n].Hash || !cmp.Equal(d.Left, ours[n].Left) || !cmp.Equal(d.Builds, ours[n].Builds) {
			f.Fatalf("%s: from scratch seq %d changed %v left %v, incremental seq %d left %v", n, d.Seq, d.Changed, d.Left, ours[n].Seq, ours[n].Left)
		}
	}
	a, _, errA := c.Principals(f.Context())
	b, _, errB := fresh.Principals(f.Context())
	f.ok(errors.Join(errA, errB))
	if d := cmp.Diff(b, a); d != "" {
		f.Fatalf("principals (-scratch +incremental):\n%s", d)
	}
}

func (f *fleet) all(c *compose.Composer) map[subject.Node]compose.Composed {
	f.Helper()
	all := map[subject.Node]compose.Composed{}
	f.ok(c.All(f.Context(), func(batch []compose.Composed) error {
		for _, d := range batch {
			if d.Err != nil {
				return d.Err
			}
			all[d.Node] = d
		}
		return nil
	}))
	return all
}

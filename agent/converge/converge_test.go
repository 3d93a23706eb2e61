package converge_test

import (
	"slices"
	"strings"
	"testing"

	"mesh/agent/converge"
	"mesh/shared/refusal"
	"mesh/shared/report"
)

var forth = converge.Wish{ID: 5, Retire: []string{"firewalld", "nftables.service", "ufw"}, Seq: 2}

// everything is a machine with three front ends, and docker beside.
func everything(t *testing.T) *desk {
	return newDesk(t, "ufw", "firewalld", "nftables.service", "docker")
}

func (d *desk) wantOn(names string) {
	d.t.Helper()
	if got := d.names(); got != names {
		d.t.Errorf("on are %q, want %q; ran\n%s", got, names, strings.Join(d.ran, "\n"))
	}
}

// asBefore checks units and front ends of everything.
func (d *desk) asBefore() {
	d.t.Helper()
	d.wantOn("docker firewalld nftables.service ufw")
	for name, u := range d.units {
		if u.File != "enabled" || (u.Active == "active") != (name != "ufw.service") {
			d.t.Errorf("%s is %s, %s", name, u.File, u.Active)
		}
	}
}

// TestConvergeAndBack: each front end goes its own way, and comes back as it was (NET-9).
func TestConvergeAndBack(t *testing.T) {
	d := everything(t)
	c := d.start()
	d.must(c.Apply(t.Context(), forth))
	d.wantOn("docker")
	for name, want := range map[string]string{"ufw.service": "disabled inactive", "firewalld.service": "disabled inactive",
		"nftables.service": "disabled active", "fail2ban.service": "enabled active"} {
		if u := d.units[name]; u.File+" "+u.Active != want {
			t.Errorf("%s is %s %s, want %s", name, u.File, u.Active, want)
		}
	}
	if got := c.Status(); got.State != report.Converged || !slices.Equal(got.Retired, []string{"firewalld", "nftables.service", "ufw"}) || len(got.Left)+len(got.Lost) > 0 {
		t.Errorf("status %+v", got)
	}
	n := len(d.ran)
	d.must(c.Apply(t.Context(), forth))
	d.must(d.start().Apply(t.Context(), forth)) // and after a restart
	if len(d.ran) != n {
		t.Errorf("done again: %q", d.ran[n:])
	}
	d.must(d.start().Apply(t.Context(), converge.Wish{Seq: 3}))
	d.asBefore()
	c = d.start()
	n = len(d.ran)
	d.must(c.Apply(t.Context(), converge.Wish{Seq: 4}))
	if got := c.Status(); got.State != report.Unconverged || len(d.ran) != n {
		t.Errorf("status %+v, ran %q", got, d.ran[n:])
	}
}

// TestOnlyWhatWasNamed: a front end that came after the word was given is named and stays (NET-8).
func TestOnlyWhatWasNamed(t *testing.T) {
	d := everything(t)
	d.on["mine"] = true
	c := d.start()
	d.must(c.Apply(t.Context(), converge.Wish{ID: 5, Retire: []string{"ufw"}, Seq: 2}))
	d.wantOn("docker firewalld mine nftables.service")
	if got := c.Status(); len(got.Left) != 2 || !strings.HasPrefix(got.Left[0], "firewalld: it was not there") {
		t.Errorf("left are %q", got.Left)
	}
	if got := c.Refusals(t.Context()).Others(); !slices.Equal(got, []string{"firewalld", "nftables.service", "unknown"}) {
		t.Errorf("others are %q", got)
	}
	d.must(c.Apply(t.Context(), converge.Wish{ID: 6, Retire: []string{"firewalld"}, Seq: 3})) // another word
	d.wantOn("docker mine nftables.service")
	d.on["ufw"] = true // by hand; its unit stays disabled
	d.must(c.Apply(t.Context(), converge.Wish{ID: 7, Retire: []string{"ufw"}, Seq: 3}))
	d.wantOn("docker mine nftables.service")
	d.must(c.Apply(t.Context(), converge.Wish{Seq: 4})) // both come back
	d.wantOn("docker firewalld mine nftables.service ufw")
	if u := d.units["ufw.service"]; u.File != "enabled" {
		t.Errorf("given back, ufw.service is %s", u.File)
	}
}

// TestLockedOut: a machine that does not reach the bus any more is as it was, either way (NET-7).
func TestLockedOut(t *testing.T) {
	d := everything(t)
	c := d.start()
	d.reach = []error{errCut}
	if err := c.Apply(t.Context(), forth); refusal.Of(err) == nil || !strings.Contains(err.Error(), "no answer") {
		t.Errorf("converged without the bus: %v", err)
	}
	d.asBefore()
	if !slices.Equal(d.window, []string{"docker"}) {
		t.Errorf("the bus was tried with %q", d.window)
	}
	n := len(d.ran)
	if err := d.start().Apply(t.Context(), forth); refusal.Of(err) == nil || len(d.ran) != n {
		t.Errorf("tried again: %v, %q", err, d.ran[n:])
	}
	if got := c.Status(); got.State != report.NotTaken || got.ID != 5 || got.Why == "" {
		t.Errorf("status %+v", got)
	}
	again := forth
	again.ID = 6
	d.must(c.Apply(t.Context(), again))
	d.wantOn("docker")

	d.reach = []error{errCut} // with the front ends back, the bus is away
	if err := c.Apply(t.Context(), converge.Wish{Seq: 9}); refusal.Of(err) == nil {
		t.Errorf("given back without the bus: %v", err)
	}
	d.wantOn("docker")
	if got := c.Status(); got.State != report.Converged || got.ID != 6 || !strings.Contains(got.Why, "retired again") {
		t.Errorf("status %+v", got)
	}
	if err := d.start().Apply(t.Context(), converge.Wish{Seq: 9}); refusal.Of(err) == nil {
		t.Errorf("the same word again: %v", err)
	}
	d.must(d.start().Apply(t.Context(), converge.Wish{Seq: 10}))
	d.asBefore()

	d.away = errCut
	n = len(d.ran)
	if err := c.Apply(t.Context(), forth); refusal.Of(err) == nil || len(d.ran) != n {
		t.Errorf("begun with the bus away: %v, %q", err, d.ran[n:])
	}
}

// TestAFrontEndThatWouldNotGo: what was retired before it comes back, and it is said what failed.
func TestAFrontEndThatWouldNotGo(t *testing.T) {
	d := everything(t)
	d.fails["ufw --force disable"] = 3
	c := d.start()
	err := c.Apply(t.Context(), forth)
	if refusal.Of(err) == nil || !strings.Contains(err.Error(), "ufw --force disable: it ended with 3: it does not work") {
		t.Errorf("got %v", err)
	}
	d.asBefore()
	if c.Status().State != report.NotTaken {
		t.Errorf("status %+v", c.Status())
	}
	// An earlier converge stays.
	d.must(c.Apply(t.Context(), converge.Wish{ID: 6, Retire: []string{"firewalld"}, Seq: 3}))
	if err := c.Apply(t.Context(), converge.Wish{ID: 7, Retire: []string{"firewalld", "ufw"}, Seq: 4}); refusal.Of(err) == nil {
		t.Errorf("got %v", err)
	}
	d.wantOn("docker nftables.service ufw")
	if got := c.Status(); got.State != report.Converged || !slices.Equal(got.Retired, []string{"firewalld"}) || got.Why == "" {
		t.Errorf("status %+v", got)
	}
}

// TestKilled: at each step, either way, the next life ends with what the word says (APP-5).
func TestKilled(t *testing.T) {
	reached := map[string]bool{}
	for _, at := range converge.FailPoints {
		for _, way := range []string{"forth", "back", "forth, then the word is taken back"} {
			t.Run(at+" "+way, func(t *testing.T) {
				d := everything(t)
				word := forth
				if way == "back" {
					d.must(d.start().Apply(t.Context(), forth))
					word = converge.Wish{Seq: 3}
				}
				d.dieAt = at
				err, died := d.apply(d.start(), word)
				d.must(err)
				reached[at] = reached[at] || died
				d.dieAt = ""
				if strings.Contains(way, "then") {
					word = converge.Wish{Seq: 4}
				}
				c := d.start()
				d.must(c.Apply(t.Context(), word))
				if word.ID != 0 {
					d.wantOn("docker")
					word = converge.Wish{Seq: 8}
					d.must(c.Apply(t.Context(), word))
				}
				d.asBefore()
			})
		}
	}
	for _, at := range converge.FailPoints {
		if !reached[at] {
			t.Errorf("nothing died at %s", at)
		}
	}
}

// TestGiveBack: without the mesh a person at the machine puts back what was, and the word that retired it is not
// carried out again (NET-9).
func TestGiveBack(t *testing.T) {
	d := everything(t)
	if got, err := d.start().GiveBack(t.Context()); err != nil || got != nil {
		t.Errorf("nothing was retired, and %q is given back, %v", got, err)
	}
	d.must(d.start().Apply(t.Context(), forth))
	if got, err := converge.Retired(t.Context(), d); err != nil || !slices.Equal(got, forth.Retire) {
		t.Errorf("retired are %q, %v", got, err)
	}
	d.away = errCut
	if got, err := d.start().GiveBack(t.Context()); err != nil || !slices.Equal(got, forth.Retire) {
		t.Errorf("given back are %q, %v", got, err)
	}
	d.asBefore()
	d.away = nil
	if err := d.start().Apply(t.Context(), forth); refusal.Of(err) == nil || !strings.Contains(err.Error(), "by hand") {
		t.Errorf("the same word again: %v", err)
	}
	d.asBefore()
	again := forth
	again.ID++
	d.must(d.start().Apply(t.Context(), again))
	d.wantOn("docker")
}

// TestFirewalldInSharedTables: there only its own stop takes its rules away, and that takes everybody's; what is
// a part of its unit is started again.
func TestFirewalldInSharedTables(t *testing.T) {
	d := newDesk(t, "firewalld")
	d.direct = true
	c := d.start()
	word := converge.Wish{ID: 5, Retire: []string{"firewalld"}, Seq: 2}
	d.must(c.Apply(t.Context(), word))
	d.wantOn("")
	if !slices.Contains(d.ran, "systemctl stop firewalld.service") || d.units["fail2ban.service"].Active != "active" {
		t.Errorf("fail2ban is %s; ran\n%s", d.units["fail2ban.service"].Active, strings.Join(d.ran, "\n"))
	}
	d.must(c.Apply(t.Context(), converge.Wish{Seq: 3}))
	d.wantOn("firewalld")
	d.on["docker"] = true
	word.ID = 6
	d.must(c.Apply(t.Context(), word))
	d.wantOn("docker firewalld")
	if got := c.Status().Left; len(got) != 1 || !strings.Contains(got[0], "the rules of docker, too") {
		t.Errorf("left %q", got)
	}
}

// TestPreview: what a converge would do is said beforehand, in the report (NET-9).
func TestPreview(t *testing.T) {
	d := everything(t)
	d.must(writeFile(d, "etc/ufw/before.rules", "*nat\n:POSTROUTING ACCEPT [0:0]\n-A POSTROUTING -o eth0 -j MASQUERADE\nCOMMIT\n"))
	r := d.start().Refusals(t.Context())
	var got []string
	for _, f := range r.FrontEnds {
		got = append(got, f.Name+" | "+f.State+" | "+f.Cannot+" | "+strings.Join(f.Notes, "; "))
	}
	want := []string{
		"firewalld | firewalld.service enabled, running |  | what it was told without --permanent does not come back with it",
		"nftables.service | nftables.service enabled, running |  | ",
		"ufw | ufw.service enabled, not running |  | its files translate addresses (nat), too; what they do of that ends; the bans that fail2ban made with its action for ufw go with it, while fail2ban lists them as in force",
	}
	if !slices.Equal(got, want) {
		t.Errorf("front ends\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	// A front end whose own way off would take docker's rules is left, and it is said why.
	d.must(writeFile(d, "etc/default/ufw", "MANAGE_BUILTINS=yes\n"))
	c := d.start()
	r = c.Refusals(t.Context())
	if got := r.FrontEnds[2].Cannot; !strings.Contains(got, "the rules of docker, too") {
		t.Errorf("cannot because %q", got)
	}
	d.must(c.Apply(t.Context(), forth))
	d.wantOn("docker ufw")
	if got := c.Status().Left; len(got) != 1 || !strings.HasPrefix(got[0], "ufw: its own way off") {
		t.Errorf("left %q", got)
	}
}

// TestReadOnlyWhenChanged: a rule set that stands still is not read again (NET-8).
func TestReadOnlyWhenChanged(t *testing.T) {
	d := everything(t)
	c := d.start()
	first := c.Refusals(t.Context())
	for range 5 {
		if c.Refusals(t.Context()) != first {
			t.Error("another report of the same rules")
		}
	}
	if d.reads != 1 {
		t.Errorf("read %d times", d.reads)
	}
	d.on["mine"] = true
	if got := c.Refusals(t.Context()); d.reads != 2 || got.Chains[0].Table != "own" || got.Chains[len(got.Chains)-1].Table != "mesh" {
		t.Errorf("read %d times: %+v", d.reads, got.Chains)
	}
}

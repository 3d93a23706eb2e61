package firewall_test

import (
	"slices"
	"testing"

	"mesh/firewall"
	"mesh/shared/rule"
	"mesh/testbus/netlab"
)

func counts(t *testing.T, s *netlab.Space) map[string]firewall.Count {
	t.Helper()
	var all []firewall.Count
	var err error
	s.Do(func() { all, err = firewall.Counts(t.Context()) })
	if err != nil {
		t.Fatal(err)
	}
	byWhat := map[string]firewall.Count{}
	for _, c := range all {
		byWhat[c.What] = c
	}
	return byWhat
}

// NET-12: each rule counts under the words of the manifest, and goes on counting over changes of the
// table, a repair, and another driver.
func TestCounts(t *testing.T) {
	lab := netlab.New(t)
	if got := counts(t, lab.Host); len(got) != 0 {
		t.Errorf("without a table: %v", got)
	}
	for _, port := range []string{"22", "3001", "3011"} {
		lab.Host.Serve("tcp", "[::]:"+port)
	}
	f := firewall.Filter{Outside: []string{netlab.Uplink}, Allow: []rule.Allow{
		allow(t, "admin", "22/tcp", "anywhere"), allow(t, "web", "443/tcp", "198.51.100.0/24, 2001:db8:1::/64"), allow(t, "voice", "9000-9010/udp", "tunnel"),
		allow(t, "peer", "3001/tcp", "203.0.113.9, 2001:db8:1::9"), allow(t, "range", "3010-3019/tcp", "anywhere"), allow(t, "twice", "22/tcp", "anywhere"),
	}}
	d := open(t, lab.Host)
	table := compile(t, f)
	load(t, d, table)
	ask := func(address string, times int) {
		t.Helper()
		for range times {
			if err := lab.Outside.Ask("tcp", address, soon); err != nil {
				t.Fatal(err)
			}
		}
	}
	ask("203.0.113.1:22", 3)
	ask("[2001:db8:1::1]:22", 2)
	for _, to := range []string{"203.0.113.1", "[2001:db8:1::1]"} {
		ask(to+":3001", 1)
		ask(to+":3011", 2)
	}
	if err := lab.Outside.Ask("tcp", "203.0.113.1:3000", never); err == nil {
		t.Error("an undeclared port is open")
	}
	const ssh, web = "admin: 22/tcp from anywhere", "web: 443/tcp from 198.51.100.0/24, 2001:db8:1::/64"
	const peer, ranged, twice = "peer: 3001/tcp from 203.0.113.9/32, 2001:db8:1::9/128", "range: 3010-3019/tcp from anywhere", "twice: 22/tcp from anywhere"
	others := func(got map[string]firewall.Count) {
		t.Helper()
		if got[peer].Packets != 2 || got[ranged].Packets != 4 || got[twice].Packets != 0 {
			t.Errorf("%+v, %+v, %+v, want 2, 4 and 0 packets", got[peer], got[ranged], got[twice])
		}
	}
	got := counts(t, lab.Host)
	if c := got[ssh]; c.Packets != 5 || c.Bytes < 5*40 || !c.Declared || c.Name != "r_admin_tcp_22_any" {
		t.Errorf("ssh: %+v, want 5 first packets", c)
	}
	if c := got["refused"]; c.Packets == 0 || c.Declared {
		t.Errorf("refused: %+v", c)
	}
	if c := got["to this machine, part of a known flow"]; c.Packets < 10 {
		t.Errorf("known flows: %+v", c)
	}
	if c, ok := got[web]; !ok || c.Packets != 0 {
		t.Errorf("web: %+v", c)
	}
	others(got)
	for what, c := range got {
		if a, ok := table.Rule(c.Name); ok != c.Declared || ok && a.String() != what {
			t.Errorf("the rule of %q is %v", c.Name, a)
		}
	}
	if a, ok := table.Rule(got[web].Name); !ok || a.String() != web {
		t.Errorf("the rule of %q is %v", got[web].Name, a)
	}

	f.Allow = append(slices.Delete(f.Allow, 1, 3), // web and voice are withdrawn
		allow(t, "db", "5432/tcp", "tunnel"), allow(t, "peer", "3002/tcp", "203.0.113.9"), allow(t, "range", "3020-3029/tcp", "anywhere"))
	f.Outside = append(f.Outside, "up1")
	load(t, d, compile(t, f))
	ask("203.0.113.1:22", 1)
	got = counts(t, lab.Host)
	if c := got[ssh]; c.Packets != 6 {
		t.Errorf("after a change: %+v, want 6 packets", c)
	}
	others(got)
	if _, ok := got[web]; ok {
		t.Error("a withdrawn rule still counts")
	}
	if _, ok := got["db: 5432/tcp from tunnel"]; !ok {
		t.Error("a new rule does not count")
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	load(t, open(t, lab.Host), compile(t, f)) // the next agent takes over
	ask("203.0.113.1:22", 1)
	got = counts(t, lab.Host)
	others(got)
	if c := got[ssh]; c.Packets != 7 {
		t.Errorf("after another driver took over: %+v, want 7 packets", c)
	}
	lab.Host.Do(func() {
		all, err := firewall.Counts(t.Context())
		if err != nil {
			t.Error(err)
		}
		var order []string
		for _, c := range all {
			if c.Declared {
				order = append(order, c.What)
			}
		}
		if want := []string{ssh, "db: 5432/tcp from tunnel", peer, "peer: 3002/tcp from 203.0.113.9/32", ranged, "range: 3020-3029/tcp from anywhere", twice}; !slices.Equal(order, want) {
			t.Errorf("the order is %q, want %q", order, want)
		}
	})
}

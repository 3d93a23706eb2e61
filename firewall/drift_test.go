package firewall_test

import (
	"strings"
	"testing"
	"time"

	"mesh/firewall"
	"mesh/shared/clock"
	"mesh/testbus/netlab"
)

// NET-6: what others put into the table is named, and told from what they took or changed.
func TestDriftNamesForeignRules(t *testing.T) {
	host := netlab.NewSpace(t, "host")
	want, err := firewall.Compile(firewall.Filter{Outside: []string{"up0"}})
	if err != nil {
		t.Fatal(err)
	}
	var d *firewall.Driver
	host.Do(func() {
		d, err = firewall.Open(firewall.WithoutOwner(), firewall.WithClock(instantClock{clock.NewFake(time.Unix(0, 0))}))
	})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, tt := range []struct {
		name, nft string
		added     bool
		says      []string
	}{
		{"an accept of a tunnel's", `insert rule inet mesh input iifname "wt0" counter accept comment "NetBird"`, true, []string{`chain input`, `iifname wt0 accept comment NetBird`}},
		{"in the middle, with a set", `add rule inet mesh declared ip saddr { 192.0.2.1, 192.0.2.2 } jump refuse`, true, []string{"chain declared", "lookup jump refuse", "set __set0"}},
		{"a chain", `add chain inet mesh theirs`, true, []string{"chain theirs is not mesh's"}},
		{"a flushed chain", `flush chain inet mesh refuse`, false, []string{"chain refuse: has 0 rules"}},
		{"a flushed set and a rule more", "flush set inet mesh outside\nadd rule inet mesh forward accept", false, []string{"set outside", `"accept"`}},
		{"gone", `delete table inet mesh`, false, []string{"gone"}},
	} {
		if err := d.Load(t.Context(), want); err != nil {
			t.Fatal(err)
		}
		host.Run(tt.nft, "nft", "-f", "-")
		drift, err := d.Drift(t.Context(), want)
		if err != nil || drift.Added != tt.added {
			t.Errorf("%s: %+v, %v", tt.name, drift, err)
		}
		for _, says := range tt.says {
			if !strings.Contains(drift.What, says) {
				t.Errorf("%s: it says %q and not %q", tt.name, drift.What, says)
			}
		}
	}
}

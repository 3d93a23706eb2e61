package filter_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"mesh/agent/filter"
	hostlink "mesh/agent/host/link"
	"mesh/firewall"
	"mesh/shared/clock"
	"mesh/shared/waitfor"
	"mesh/testbus/netlab"
)

// within is what NET-5 and NET-6 give; a deadline of a state, so a slow machine is not a failure of luck
// but of the promise.
const within = time.Second

// realRig has the machine's clock, and finds the links of the lab's host by netlink as on a machine.
func realRig(t *testing.T, options ...firewall.Option) *rig {
	t.Helper()
	r := makeRig(t)
	r.clk = clock.Real()
	r.findLinks = func(ctx context.Context) (links filter.Links, err error) {
		r.lab.Host.Do(func() { links, err = filter.ReadLinks(ctx) })
		return links, err
	}
	ctx, cancel := context.WithCancel(t.Context())
	var err error
	r.lab.Host.Do(func() {
		r.hints, err = hostlink.Watch(ctx, r.clk, func(err error) { t.Errorf("watch ended: %v", err) })
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		for range r.hints { // until closed
		}
	})
	r.restart(options...)
	r.apply(want("22/tcp", "4222/tcp"), filter.Applied)
	done := make(chan error, 1)
	f := r.filter
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := waitfor.Value(t, "the end of Run", soon, done); err != nil {
			t.Error(err)
		}
	})
	return r
}

// NET-6: damage of each kind is repaired within a second, and the report says what and who.
func TestDamageIsRepairedWithinASecond(t *testing.T) {
	r := realRig(t, firewall.WithoutOwner())
	for n, tt := range []struct{ name, nft, says string }{
		{"a flush of everything", "flush ruleset", "gone"},
		{"a deleted rule", "", "chain input: has 4 rules instead of 5"},
		{"a rule of others", "insert rule inet mesh input iifname up0 counter accept", `"iifname up0 accept"`},
		{"an emptied set", "flush set inet mesh outside", "set outside"},
		{"a deleted table", "delete table inet mesh", "gone"},
		{"a table put to sleep", "add table inet mesh { flags dormant; }", "dormant"},
	} {
		nft := tt.nft
		if nft == "" {
			nft = "delete rule inet mesh input handle " + r.lastHandle()
		}
		start := clock.Real().Now()
		r.lab.Host.Run(nft, "nft", "-f", "-")
		var took time.Duration
		waitfor.True(t, tt.name+" to be repaired", within, func() (bool, any) {
			s := r.filter.State()
			took = clock.Real().Now().Sub(start)
			return s.Repairs == n+1 && s.Loaded, s
		})
		t.Logf("%s: repaired %v after nft was started", tt.name, took.Round(time.Millisecond))
		if s := r.filter.State(); !strings.Contains(s.LastDrift, tt.says) || !strings.HasPrefix(s.LastRepairBy, "nft (pid ") {
			t.Errorf("%s: it says %q, by %q", tt.name, s.LastDrift, s.LastRepairBy)
		}
		r.open("22", "4222")
	}
}

// lastHandle is the handle of the rule that refuses, the last of input.
func (r *rig) lastHandle() string {
	r.t.Helper()
	lines := strings.Split(strings.TrimSpace(r.lab.Host.Run("", "nft", "-a", "list", "chain", "inet", "mesh", "input")), "\n")
	for _, l := range slices.Backward(lines) {
		if _, handle, ok := strings.Cut(l, "goto refuse # handle "); ok {
			return strings.TrimSpace(handle)
		}
	}
	r.t.Fatalf("no rule that refuses in %q", lines)
	return ""
}

// NET-5: the table follows an uplink that gets another name, comes or goes, within a second, owned or not.
func TestLinksAreFollowedWithinASecond(t *testing.T) {
	for name, options := range map[string][]firewall.Option{"owned": nil, "not owned": {firewall.WithoutOwner()}} {
		t.Run(name, func(t *testing.T) {
			r := realRig(t, options...)
			ip := func(lines ...string) {
				t.Helper()
				for _, l := range lines {
					r.lab.Host.Run("", append([]string{"ip"}, strings.Fields(l)...)...)
				}
			}
			follows := func(what string, outside ...string) {
				t.Helper()
				start := clock.Real().Now()
				waitfor.True(t, what, within, func() (bool, any) {
					s := r.filter.State()
					return s.Loaded && slices.Equal(s.Outside, outside), s
				})
				took := clock.Real().Now().Sub(start)
				t.Logf("%s: followed after %v", what, took.Round(time.Millisecond))
			}
			ip("link set "+netlab.Uplink+" down", "link set "+netlab.Uplink+" name wan0", "link set wan0 up", "route add default via "+netlab.Outside4)
			follows("an uplink with another name", "wan0")
			r.open("22", "4222")
			ip("route add default via " + netlab.Peer4 + " table 52")
			follows("a second uplink", netlab.Tunnel, "wan0")
			ip("route del default table 52")
			follows("one that is none any more", "wan0")
			waitfor.True(t, "the store to follow", soon, func() (bool, any) { b := r.store.kept(); return strings.Contains(b, "wan0"), b })
			waitfor.True(t, "the boot's table to follow", soon, func() (bool, any) {
				text := r.bootText()
				return strings.Contains(text, `"wan0"`) && !strings.Contains(text, netlab.Uplink), text
			})
		})
	}
}

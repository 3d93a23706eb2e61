package filter_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"mesh/agent/filter"
	"mesh/shared/rule"
)

// The ruleset is flushed by hand while the agent is down, and the bus is away when it comes up: the rules that
// were confirmed are in force again at once.
func TestFlushedWhileTheAgentWasDown(t *testing.T) {
	r := newRig(t)
	r.apply(want("22/tcp", "4222/tcp"), filter.Applied)
	r.driver.Close() // as kill -9 closes it: the table stays, and is nobody's
	r.open("22", "4222")
	r.lab.Host.Run("", "nft", "flush", "ruleset")
	r.open("22", "80", "4222")
	r.restart()
	r.setProbe(func(context.Context) error { return fmt.Errorf("no route to host") })
	if err := r.filter.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.open("22", "4222")
	r.apply(want("22/tcp", "4222/tcp"), filter.Unchanged)
}

// A thousand prefixes, some within others, and a tunnel link the machine does not have.
func TestAThousandPrefixesAndNoTunnel(t *testing.T) {
	r := newRig(t)
	w := want("22/tcp", "4222/tcp")
	w.Tunnel = []string{"no-such-link0"}
	var prefixes []string
	for i := range 1000 {
		p := fmt.Sprintf("10.%d.%d.0/%d", i/200, i%200, 20+i%8)
		if i%3 == 0 {
			p = fmt.Sprintf("2001:db8:%x::/%d", i, 40+i%24)
		}
		prefixes = append(prefixes, netip.MustParsePrefix(p).Masked().String())
	}
	from, err := rule.ParseFrom(strings.Join(prefixes, ", "))
	if err != nil {
		t.Fatal(err)
	}
	port, _ := rule.ParsePort("80/tcp")
	w.Allow = append(w.Allow, rule.Allow{Owner: "web", Port: port, From: from})
	r.apply(w, filter.Applied)
	r.open("22", "4222")
	r.apply(w, filter.Unchanged)
	r.restart()
	if err := r.filter.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := r.filter.State(); !s.Loaded {
		t.Errorf("%+v", s)
	}
	r.open("22", "4222")
}

package firewall_test

import (
	"testing"
	"time"

	"mesh/firewall"
	"mesh/shared/clock"
	"mesh/shared/refusal"
	"mesh/testbus/netlab"
)

// NET-15: a link with a name that hardware comes under is outside until a person declares it inside, and is
// so again when the word is taken back; each change is one in place.
func TestDeclaredInside(t *testing.T) {
	const card, wait = "enp7s0", 5 * time.Second
	lab := netlab.New(t)
	lab.Host.Run("", "ip", "link", "set", netlab.Tunnel, "down")
	lab.Host.Run("", "ip", "link", "set", netlab.Tunnel, "name", card)
	lab.Host.Run("", "ip", "link", "set", card, "up")
	lab.Host.Run("", "ip", "route", "replace", "default", "via", netlab.Outside4)
	lab.Host.Serve("tcp", "0.0.0.0:3000")
	lab.Container.Serve("tcp", "0.0.0.0:80")
	var d *firewall.Driver
	var err error
	lab.Host.Do(func() {
		d, err = firewall.Open(firewall.WithClock(instantClock{clock.NewFake(time.Unix(0, 0))}))
	})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, inside := range [][]string{nil, {card, "lan9"}, nil} {
		table, err := firewall.Compile(firewall.Filter{Outside: []string{netlab.Uplink}, Inside: inside})
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Load(t.Context(), table); err != nil {
			t.Fatal(err)
		}
		if why, err := d.Differs(t.Context(), table); why != "" || err != nil {
			t.Errorf("inside %q: it differs: %s, %v", inside, why, err)
		}
		lab.Peer.Run(table.Text(), "nft", "-c", "-f", "-") // that of the host has an owner
		for what, ask := range map[string]func(limit time.Duration) error{
			"the host":    func(limit time.Duration) error { return lab.Peer.Ask("tcp", netlab.HostTunnel4+":3000", limit) },
			"a container": func(limit time.Duration) error { return lab.Peer.Ask("tcp", netlab.Container4+":80", limit) },
		} {
			limit := 300 * time.Millisecond
			if inside != nil {
				limit = wait
			}
			if err := ask(limit); (err == nil) != (inside != nil) {
				t.Errorf("inside %q: the peer asks %s: %v", inside, what, err)
			}
		}
		if lab.Outside.Ask("tcp", netlab.HostOutside4+":3000", 300*time.Millisecond) == nil {
			t.Errorf("inside %q: the uplink is open", inside)
		}
	}
	for _, f := range []firewall.Filter{
		{Outside: []string{"up0"}, Inside: []string{"up0"}}, {Outside: []string{"up0"}, Tunnel: []string{"wg0"}, Inside: []string{"wg0"}}, {Outside: []string{"up0"}, Inside: []string{"a b"}},
	} {
		if _, err := firewall.Compile(f); refusal.Of(err) == nil {
			t.Errorf("%+v: %v", f, err)
		}
	}
}

package bans_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"mesh/agent/bans"
	"mesh/shared/clock"
	"mesh/shared/engine"
	"mesh/testbus/netlab"
)

func read(t *testing.T, s *netlab.Space, addresses ...string) (engine.BannedAnswer, error) {
	t.Helper()
	var a engine.BannedAnswer
	var err error
	s.Do(func() { a, err = bans.Read(t.Context(), clock.Real(), engine.BannedAsk{Addresses: addresses}) })
	return a, err
}

// NET-11: who is banned, why and since when; and whether somebody is.
func TestBanned(t *testing.T) {
	s := netlab.NewSpace(t, "host")
	a, err := read(t, s)
	var b strings.Builder
	if err := bans.Render(&b, a, clock.Real().Now()); err != nil || b.String() != "nobody is banned here\n" {
		t.Errorf("%q, %v", b.String(), err)
	}
	if err != nil || len(a.Bans) != 0 {
		t.Fatalf("%+v, %v", a, err)
	}
	s.Run(`table inet f2b-table {
	set addr-set-sshd {
		type ipv4_addr
		flags timeout
		elements = { 198.51.100.7 timeout 1h expires 59m, 192.0.2.1 }
	}
	chain f2b-chain {
		type filter hook input priority filter - 1; policy accept;
		tcp dport 22 ip saddr @addr-set-sshd reject
	}
}
table ip6 crowdsec6 {
	set crowdsec6-blacklists {
		type ipv6_addr
		flags interval
		elements = { 2001:db8:bad::/48 }
	}
	chain crowdsec6-chain {
		type filter hook input priority filter - 10; policy accept;
		ip6 saddr @crowdsec6-blacklists drop
	}
}
`, "nft", "-f", "-")
	now := clock.Real().Now()
	if a, err = read(t, s); err != nil || len(a.Bans) != 3 || a.More != 0 {
		t.Fatalf("%+v, %v", a, err)
	}
	if want := []engine.Jail{{Tool: "crowdsec", Bans: 1}, {Tool: "fail2ban", Jail: "sshd", Bans: 2}}; fmt.Sprint(a.Jails) != fmt.Sprint(want) {
		t.Errorf("jails %v, want %v", a.Jails, want)
	}
	timed := a.Bans[2]
	if timed.Address != "198.51.100.7" || time.UnixMilli(timed.UntilMS).Sub(now) > time.Hour || now.Sub(time.UnixMilli(timed.SinceMS)) < 50*time.Second || a.Bans[1].UntilMS != 0 {
		t.Errorf("%+v", a.Bans)
	}
	b.Reset()
	if err := bans.Render(&b, a, now); err != nil {
		t.Fatal(err)
	}
	for _, words := range []string{"ADDRESS", "2001:db8:bad::/48", "sshd", "ago", "inet f2b-table addr-set-sshd"} {
		if !strings.Contains(b.String(), words) {
			t.Errorf("no %q in\n%s", words, b.String())
		}
	}
	if a, err = read(t, s, "2001:db8:bad::9", "192.0.2.2"); err != nil || len(a.Bans) != 1 || a.Bans[0].Tool != "crowdsec" {
		t.Errorf("%+v, %v", a, err)
	}
	if _, err = read(t, s, "nobody"); err == nil || !strings.Contains(err.Error(), "do: ") {
		t.Error(err)
	}
}

// Lists of some thousands are told in part.
func TestManyBans(t *testing.T) {
	s := netlab.NewSpace(t, "host")
	var list []string
	for i := range 2000 {
		list = append(list, fmt.Sprintf("10.%d.%d.1", i/250, i%250))
	}
	s.Run("table ip crowdsec {\nset crowdsec-blacklists {\ntype ipv4_addr\nelements = { "+strings.Join(list, ", ")+" }\n}\nchain crowdsec-chain {\ntype filter hook input priority -10\nip saddr @crowdsec-blacklists drop\n}\n}\n", "nft", "-f", "-")
	a, err := read(t, s)
	if err != nil || len(a.Bans) != engine.MostBans || a.More != 2000-engine.MostBans || a.Jails[0].Bans != 2000 {
		t.Errorf("%d bans, %d more, %v, %v", len(a.Bans), a.More, a.Jails, err)
	}
}

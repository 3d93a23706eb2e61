package diagnose_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"mesh/coordinator/diagnose"
	"mesh/shared/engine"
	"mesh/shared/report"
	"mesh/shared/subject"
)

// machines answer as they are told.
type machines struct {
	addresses map[subject.Node][]string
	bans      map[subject.Node][]engine.Ban
	fail      map[subject.Node]error

	mu    sync.Mutex
	asked map[subject.Node]int // addresses
	most  int                  // in one question
}

func (m *machines) Exposure(_ context.Context, n subject.Node) (report.Exposure, error) {
	return report.Exposure{Links: []report.ExposedLink{{Name: "eth0", Addresses: m.addresses[n]}}}, m.fail[n]
}

func (m *machines) Banned(_ context.Context, n subject.Node, addresses []string) (engine.BannedAnswer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked[n] += len(addresses)
	m.most = max(m.most, len(addresses))
	if slices.ContainsFunc(m.addresses[n], func(a string) bool { return slices.Contains(addresses, a) }) {
		return engine.BannedAnswer{}, fmt.Errorf("%s was asked whether it bans itself", n)
	}
	return engine.BannedAnswer{Node: n, Bans: m.bans[n]}, m.fail[n]
}

// NET-11: each machine is asked whether it bans one of the others; one that cannot be asked is named.
func TestWhoBansWhom(t *testing.T) {
	m := &machines{
		addresses: map[subject.Node][]string{"db1": {"192.0.2.1", "2001:db8::1"}, "web1": {"192.0.2.2"}, "web2": {"192.0.2.3", "10.0.0.3"}, "away": {"192.0.2.9"}},
		bans: map[subject.Node][]engine.Ban{
			"db1": {
				{Address: "192.0.2.2", Tool: "fail2ban", Jail: "sshd", Where: "inet f2b-table addr-set-sshd"}, {Address: "203.0.113.5", Tool: "fail2ban", Where: "x"},
				{Address: "192.0.2.3", Tool: "fail2ban", Where: "y", Idle: "nothing leads there"},
			},
			"web1": {{Address: "2001:db8::/32", Tool: "crowdsec", Where: "ip6 crowdsec6 crowdsec6-blacklists"}, {Address: "10.0.0.1-10.0.0.9", Tool: "sshguard", Where: "ip sshguard attackers"},
				{Address: "192.0.2.3", Tool: "route", Where: "blackhole route"}},
		},
		fail: map[subject.Node]error{"away": errors.New("it is silent")}, asked: map[subject.Node]int{},
	}
	got := diagnose.AskBans(t.Context(), m, []subject.Node{"away", "db1", "web1", "web2"})
	var lines []string
	for _, f := range got.Found {
		lines = append(lines, fmt.Sprintf("%s bans %s: %s of %s, %s", f.By, f.Node, f.Address, f.Tool, f.Do))
	}
	want := []string{
		"db1 bans web1: 192.0.2.2 of fail2ban, on db1: fail2ban-client unban 192.0.2.2, and put it into ignoreip",
		"web1 bans db1: 2001:db8::/32 of crowdsec, on web1: cscli decisions delete --ip 2001:db8::1, and put it into a whitelist",
		"web1 bans web2: 10.0.0.1-10.0.0.9 of sshguard, on web1: end the ban in ip sshguard attackers; mesh-coordinator bans web1 says more",
		"web1 bans web2: 192.0.2.3 of route, on web1: ip route del blackhole 192.0.2.3, once it is known who made it",
	}
	if diff := gocmp.Diff(want, lines); diff != "" {
		t.Error(diff)
	}
	if got.Asked != 3 || len(got.Unknown) != 1 || got.Unknown[0].Node != "away" || !strings.Contains(got.Unknown[0].Why, "it is silent") {
		t.Errorf("%d answered, unknown are %+v", got.Asked, got.Unknown)
	}
	if alone := diagnose.AskBans(t.Context(), m, []subject.Node{"db1"}); alone.Asked != 0 || len(alone.Found)+len(alone.Unknown) > 0 {
		t.Errorf("a machine alone: %+v", alone)
	}
}

// A large mesh is asked in questions that a machine takes.
func TestWhoBansWhomInParts(t *testing.T) {
	m := &machines{addresses: map[subject.Node][]string{"last": {"192.0.2.1"}}, asked: map[subject.Node]int{}}
	nodes := []subject.Node{"last"}
	a := netip.MustParseAddr("10.0.0.0")
	for i := range 60 {
		n := subject.Node(fmt.Sprintf("n%d", i))
		nodes = append(nodes, n)
		for range 20 {
			a = a.Next()
			m.addresses[n] = append(m.addresses[n], a.String())
		}
	}
	if got := diagnose.AskBans(t.Context(), m, nodes); got.Asked != 61 || len(got.Unknown) > 0 || m.asked["last"] != 1200 || m.most != engine.MostAddresses {
		t.Errorf("%d answered, unknown %v, one was asked about %d addresses, at most %d at once", got.Asked, got.Unknown, m.asked["last"], m.most)
	}
}

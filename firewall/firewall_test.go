package firewall_test

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"mesh/firewall"
	"mesh/shared/refusal"
	"mesh/shared/rule"
)

var update = flag.Bool("update", false, "rewrite golden files")

func allow(t testing.TB, owner, port, from string) rule.Allow {
	t.Helper()
	a, err := rule.ParseAllow(port + " from " + from)
	if err != nil {
		t.Fatal(err)
	}
	a.Owner = owner
	return a
}

func compile(t testing.TB, f firewall.Filter) firewall.Table {
	t.Helper()
	table, err := firewall.Compile(f)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// sample is a node with every kind of rule.
func sample(t testing.TB) firewall.Filter {
	return firewall.Filter{
		Outside: []string{"up0", "br-up", "enp1s0"},
		Bridges: []string{"br-up"},
		Tunnel:  []string{"mesh0"},
		Allow: []rule.Allow{
			allow(t, "admin", "22/tcp", "anywhere"),
			allow(t, "web", "443/tcp", "anywhere"),
			allow(t, "web", "8080/tcp", "anywhere"),
			allow(t, "voice", "5353/udp", "anywhere"),
			allow(t, "voice", "9000-9010/udp", "anywhere"),
			allow(t, "voice", "9005-9020/udp", "anywhere"),
			allow(t, "db-main", "5432/tcp", "tunnel"),
			allow(t, "metrics", "9100/tcp", "203.0.113.0/25,203.0.113.128/26,198.51.100.7,2001:db8:ff::/48"),
			allow(t, "metrics", "9101/tcp", "198.51.100.7,203.0.113.0/25,203.0.113.128/26,2001:db8:ff::/48"),
			allow(t, "dns", "53/udp", "0.0.0.0/0"),
			allow(t, "top", "65000-65535/tcp", "anywhere"),
			allow(t, "balance", "vrrp", "203.0.113.0/25"),
			allow(t, "ipsec", "esp", "198.51.100.7, 2001:db8:ff::/48"),
			allow(t, "ipsec", "ah", "198.51.100.7, 2001:db8:ff::/48"),
			allow(t, "routing", "ah", "anywhere"),
			allow(t, "routing", "ospf", "tunnel"),
			allow(t, "backup", "873/tcp", "198.51.100.7, 2001:db8:1::7"),
			allow(t, "restore", "873/tcp", "198.51.100.8, 2001:db8:1::7"),
			allow(t, "backup", "8730/udp", "198.51.100.7"),
		},
	}
}

func TestText(t *testing.T) {
	for name, f := range map[string]firewall.Filter{
		"sample":  sample(t),
		"minimal": {Outside: []string{"eth0"}},
	} {
		got := compile(t, f).Text()
		file := filepath.Join("testdata", name+".nft")
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s: rewrite with -update if this is meant:\n%s", file, diff)
		}
	}
}

func TestCompileRefuses(t *testing.T) {
	good := allow(t, "web", "80/tcp", "anywhere")
	with := func(change func(*rule.Allow)) firewall.Filter {
		a := good
		change(&a)
		return firewall.Filter{Outside: []string{"eth0"}, Allow: []rule.Allow{good, a}}
	}
	for name, f := range map[string]firewall.Filter{
		"no uplink (NET-3)":      {Allow: []rule.Allow{good}},
		"a link name too long":   {Outside: []string{"sixteencharacter"}},
		"a link name of nothing": {Outside: []string{""}},
		"a wildcard":             {Outside: []string{"e*"}},
		"a quote in a tunnel":    {Outside: []string{"eth0"}, Tunnel: []string{`a"b`}},
		"no owner":               with(func(a *rule.Allow) { a.Owner = "" }),
		"an owner that is text":  with(func(a *rule.Allow) { a.Owner = `x" accept` }),
		"port 0":                 with(func(a *rule.Allow) { a.Port.First = 0 }),
		"a range downward":       with(func(a *rule.Allow) { a.Port.Last = 79 }),
		"another protocol":       with(func(a *rule.Allow) { a.Port.Protocol = "sctp" }),
		"a port and a protocol":  with(func(a *rule.Allow) { a.Protocol = 112 }),
		"nothing":                with(func(a *rule.Allow) { a.Port = rule.Port{} }),
		"all of tcp (NET-16)":    with(func(a *rule.Allow) { a.Port, a.Protocol = rule.Port{}, 6 }),
		"a header of IPv6":       with(func(a *rule.Allow) { a.Port, a.Protocol = rule.Port{}, 44 }),
		"a tunnel inside":        {Outside: []string{"up0"}, Tunnel: []string{"wg0"}, Inside: []string{"wg0"}},
		"all inside":             {Outside: []string{"up0", "eth1"}, Inside: []string{"eth1", "up0"}},
		"from nobody":            with(func(a *rule.Allow) { a.From = rule.From{} }),
		"from two":               with(func(a *rule.Allow) { a.From = rule.From{Anywhere: true, Tunnel: true} }),
		"a prefix unmasked":      with(func(a *rule.Allow) { a.From = rule.From{Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/8")}} }),
		"a prefix of nothing":    with(func(a *rule.Allow) { a.From = rule.From{Prefixes: []netip.Prefix{{}}} }),
	} {
		if _, err := firewall.Compile(f); refusal.Of(err) == nil || refusal.Of(err).Do == "" {
			t.Errorf("%s: got %v, want a refusal that says what to do", name, err)
		}
	}
}

// filters draws random filters, often with rules that overlap.
func filters() *rapid.Generator[firewall.Filter] {
	return rapid.Custom(func(t *rapid.T) firewall.Filter {
		link := rapid.StringMatching(`(up|br-|en|wg|ppp)[0-9a-z]{1,6}`)
		f := firewall.Filter{
			Outside: rapid.SliceOfN(link, 1, 4).Draw(t, "outside"),
			Tunnel:  rapid.SliceOfN(link, 0, 2).Draw(t, "tunnel"),
			Inside:  rapid.SliceOfN(rapid.StringMatching(`(lan|eth)[0-9]{1,6}`), 0, 2).Draw(t, "inside"),
		}
		f.Bridges = f.Outside[:rapid.IntRange(0, len(f.Outside)).Draw(t, "bridges")]
		for range rapid.IntRange(0, 25).Draw(t, "rules") {
			first := rapid.OneOf(rapid.Uint16Range(1, 65535), rapid.Uint16Range(8000, 8020)).Draw(t, "first")
			a := rule.Allow{
				Owner: rapid.SampledFrom([]string{"admin", "web", "db-main", "x"}).Draw(t, "owner"),
				Port: rule.Port{First: first, Last: rapid.OneOf(rapid.Just(first), rapid.Uint16Range(first, min(first, 65500)+35)).Draw(t, "last"),
					Protocol: rapid.SampledFrom([]string{"tcp", "udp"}).Draw(t, "protocol")},
			}
			switch rapid.IntRange(0, 2).Draw(t, "from") {
			case 0:
				a.From.Anywhere = true
			case 1:
				a.From.Tunnel = true
			default:
				for range rapid.IntRange(1, 6).Draw(t, "prefixes") {
					a.From.Prefixes = append(a.From.Prefixes, prefix(t))
				}
			}
			if rapid.IntRange(0, 4).Draw(t, "whole") == 0 {
				a.Port, a.Protocol = rule.Port{}, rapid.SampledFrom([]rule.Protocol{47, 50, 51, 112}).Draw(t, "number")
			}
			f.Allow = append(f.Allow, a)
		}
		return f
	})
}

func prefix(t *rapid.T) netip.Prefix {
	if rapid.Bool().Draw(t, "known") { // some come again
		return rapid.SampledFrom([]netip.Prefix{
			netip.MustParsePrefix("203.0.113.7/32"), netip.MustParsePrefix("203.0.113.8/32"), netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("198.51.100.9/32"),
			netip.MustParsePrefix("2001:db8::7/128"), netip.MustParsePrefix("2001:db8::8/128"), netip.MustParsePrefix("2001:db8::/64"),
		}).Draw(t, "prefix")
	}
	if rapid.Bool().Draw(t, "v6") {
		a := netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, rapid.Byte().Draw(t, "b")})
		return netip.PrefixFrom(a, rapid.IntRange(0, 128).Draw(t, "bits")).Masked()
	}
	a := netip.AddrFrom4([4]byte{rapid.SampledFrom([]byte{10, 203, 255}).Draw(t, "a"), rapid.Byte().Draw(t, "b"), 255, rapid.Byte().Draw(t, "d")})
	return netip.PrefixFrom(a, rapid.IntRange(0, 32).Draw(t, "bits")).Masked()
}

func TestShuffledInputGivesTheSameTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := filters().Draw(t, "filter")
		one, err := firewall.Compile(f)
		if err != nil {
			t.Fatal(err)
		}
		g := firewall.Filter{
			Outside: rapid.Permutation(f.Outside).Draw(t, "outside"),
			Bridges: rapid.Permutation(f.Bridges).Draw(t, "bridges"),
			Inside:  rapid.Permutation(f.Inside).Draw(t, "inside"),
			Tunnel:  rapid.Permutation(f.Tunnel).Draw(t, "tunnel"),
			Allow:   rapid.Permutation(append(f.Allow, f.Allow...)).Draw(t, "allow"),
		}
		other, err := firewall.Compile(g)
		if err != nil {
			t.Fatal(err)
		}
		if one.Digest() != other.Digest() {
			t.Fatal(cmp.Diff(one.Text(), other.Text()))
		}
	})
}

func TestCommentsFitAndSayTheRule(t *testing.T) {
	f := firewall.Filter{Outside: []string{"eth0"}}
	var from []string
	for i := range 60 {
		from = append(from, fmt.Sprintf("2001:db8:%x:ffff:ffff:ffff:ffff:0/112", i))
	}
	for port := 10000; port < 10200; port += 2 {
		f.Allow = append(f.Allow, allow(t, strings.Repeat("o", 40), fmt.Sprintf("%d/tcp", port), strings.Join(from, ",")))
	}
	f.Allow = append(f.Allow, allow(t, "web", "80/tcp", "anywhere"), allow(t, "web", "443/tcp", "anywhere"))
	text := compile(t, f).Text()
	for l := range strings.Lines(text) {
		if strings.Count(l, `comment "`) > 1 {
			t.Errorf("two comments in a line: %s", l)
		}
		if _, comment, ok := strings.Cut(l, `comment "`); ok && len(strings.TrimSpace(comment)) > 127 {
			t.Errorf("a comment of %d bytes: %s", len(comment), l)
		}
	}
	for _, want := range []string{`comment "web: 80/tcp from anywhere"`, `comment "web: 443/tcp from anywhere"`, `from 2001:db8:0:ffff:ffff:ffff:ffff:0/112 and 59 more"`} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in %d bytes of text", want, len(text))
		}
	}
}

func BenchmarkCompile2000(b *testing.B) {
	f := many(2000)
	for b.Loop() {
		if _, err := firewall.Compile(f); err != nil {
			b.Fatal(err)
		}
	}
}

// many is a filter with n rules, each of another module.
func many(n int) firewall.Filter {
	f := firewall.Filter{Outside: []string{"up0"}}
	for i := range n {
		port := uint16(1000 + i)
		f.Allow = append(f.Allow, rule.Allow{Owner: fmt.Sprintf("m%d", i), Port: rule.Port{First: port, Last: port, Protocol: "tcp"}, From: rule.Anywhere()})
	}
	return f
}

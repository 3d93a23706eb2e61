package foreign_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"mesh/firewall/foreign"
	"mesh/shared/clock"
	"mesh/testbus/netlab"
)

// lines makes of a rule set in one line what nft 1.0.6 takes.
var lines = strings.NewReplacer("} } }", "}\n}\n}", "} } chain", "}\n}\nchain", "} chain", "}\nchain", "} }", "}\n}")

// What no collected file holds: shapes by which others refuse, or seem to.
func TestShapes(t *testing.T) {
	type chain struct{ how, owner, fate string }
	for name, tt := range map[string]struct {
		file string
		want map[string]chain
		held map[string]string
	}{
		"dormant table": {
			file: "table inet x { flags dormant; chain a { type filter hook input priority 0; policy drop; } }",
			held: map[string]string{"a": "the table is dormant"},
		},
		"drop in an unnamed map": {
			file: "table inet x { chain a { type filter hook input priority 0; ct state vmap { invalid : drop, new : jump b }; } chain b { tcp dport { 1, 2 } drop; } }",
			want: map[string]chain{"a": {"drop x1", "unknown", "leave and name"}, "b": {"drop x1", "unknown", "leave and name"}},
		},
		"a map nobody asks": {
			file: "table inet x { map m { type inet_service : verdict; elements = { 1 : jump b } } chain a { type filter hook input priority 0; } chain b { drop; } }",
			held: map[string]string{"b": "no base chain leads to it"},
		},
		"chains that lead to each other": {
			file: "table inet x { chain a { type filter hook input priority 0; jump b; } chain b { goto c; } chain c { meta mark 7 jump d; drop; } chain d { return; } }",
			want: map[string]chain{"c": {"drop x1", "unknown", "leave and name"}},
		},
		"docker's new tables": {
			file: `table ip docker-bridges { map m { type ifname : verdict; elements = { "docker0" : jump filter-forward-in__docker0 } }
				chain filter-FORWARD { type filter hook forward priority 0; oifname vmap @m; } chain filter-forward-in__docker0 { counter drop comment "UNPUBLISHED PORT DROP"; } }`,
			want: map[string]chain{"filter-forward-in__docker0": {"drop x1", "docker", "leave"}},
		},
		"somebody's iptables names": {
			file: "table ip filter { chain incoming { type filter hook input priority 0; policy drop; } }",
			want: map[string]chain{"incoming": {"policy drop", "unknown", "leave and name"}},
		},
		"bridge": {
			file: "table bridge filter { chain FORWARD { type filter hook forward priority 0; policy drop; } }",
			want: map[string]chain{"FORWARD": {"policy drop", "unknown", "leave and name"}},
		},
		"libvirt by nftables": {
			file: "table ip libvirt_network { chain forward { type filter hook forward priority 0; jump guest_cross; } chain guest_cross { reject; } }",
			want: map[string]chain{"guest_cross": {"reject x1", "libvirt", "leave"}},
		},
		"a ban inside ufw": {
			file: "table ip filter { chain INPUT { type filter hook input priority 0; jump ufw-user-input; } chain ufw-user-input { ip saddr 192.0.2.7 reject; tcp dport 23 drop; } }",
			want: map[string]chain{"ufw-user-input": {"drop x1 reject x1", "ufw fail2ban", "retire leave"}},
		},
		"a ban by set in a shared chain": {
			file: "table inet filter { set crowdsec-blacklists { type ipv4_addr; } chain input { type filter hook input priority 0; policy drop; ip saddr @crowdsec-blacklists drop; } }",
			want: map[string]chain{"input": {"policy drop drop x1", "nftables.service crowdsec", "retire leave"}},
		},
		"bans in a base chain of a shared table": {
			file: "table inet filter { chain f2b-sshd { type filter hook input priority -1; policy drop; } chain input { type filter hook input priority 0; } }",
			want: map[string]chain{"f2b-sshd": {"policy drop", "fail2ban", "leave"}},
		},
		"docker's bridge beside what people wrote": {
			file: `table ip filter { chain FORWARD { type filter hook forward priority 0; policy drop; jump DOCKER; iifname "docker_gwbridge" drop; } chain DOCKER { return; } chain DOCKER-USER { drop; } chain INPUT { type filter hook input priority 0; jump DOCKER-USER; } }`,
			want: map[string]chain{"FORWARD": {"policy drop drop x1", "docker", "leave"}, "DOCKER-USER": {"drop x1", "unknown", "leave and name"}},
		},
		"mesh's own": {
			file: "table inet mesh { chain input { type filter hook input priority 15; goto refuse; } chain refuse { drop; } }",
			want: map[string]chain{"refuse": {"drop x1", "mesh", "keep"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := netlab.NewSpace(t, "host")
			s.Run(lines.Replace(tt.file), "nft", "-f", "-")
			r := read(t, s)
			var got, held = map[string]chain{}, map[string]string{}
			for _, c := range r.Refusing {
				got[c.Chain] = chain{strings.Join(c.How, " "), strings.Join(c.Owner, " "), strings.Join(c.Fate, " ")}
			}
			for _, h := range r.Held {
				held[h.Chain] = h.Why
			}
			if len(got) != len(tt.want) || len(tt.want) > 0 && !reflect.DeepEqual(got, tt.want) {
				t.Errorf("refusing: %v\nwant %v", got, tt.want)
			}
			if len(held) != len(tt.held) || len(tt.held) > 0 && !reflect.DeepEqual(held, tt.held) {
				t.Errorf("held: %v\nwant %v", held, tt.held)
			}
			if len(r.NotUnderstood) > 0 {
				t.Errorf("not understood: %v", r.NotUnderstood)
			}
		})
	}
}

// NET-13: what is not known is named, and everything else is read.
func TestUnknownThingsAreNamed(t *testing.T) {
	s := netlab.NewSpace(t, "host")
	s.Run(lines.Replace("table inet x { flags dormant; chain a { type filter hook input priority 0; policy drop; ip saddr 192.0.2.1 counter drop; } }"), "nft", "-f", "-")
	b := dump(t, s)
	known := foreign.Decode(b)
	strange := []byte(strings.Replace(string(b), "counter\x00", "kounter\x00", 1))
	got := foreign.Decode(strange)
	got.Bypass, known.Bypass = nil, nil // Decode shows every step every message
	want := []string{"a rule of inet x a: the expression kounter is not known, so when the rule applies is not either"}
	if diff := gocmp.Diff(want, got.NotUnderstood); diff != "" {
		t.Error(diff)
	}
	got.NotUnderstood = nil
	if diff := gocmp.Diff(known, got); diff != "" {
		t.Errorf("the rest differs:\n%s", diff)
	}
	if r := foreign.Judge(foreign.Ruleset{NotUnderstood: want}); !slices.Equal(r.NotUnderstood, want) {
		t.Errorf("the report lacks it: %v", r.NotUnderstood)
	}
}

func dump(t testing.TB, s *netlab.Space) []byte {
	t.Helper()
	var b []byte
	var err error
	s.Do(func() { b, err = foreign.Dump() })
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// NET-16: what passes the rules by is named.
func TestBypass(t *testing.T) {
	s := netlab.NewSpace(t, "host")
	s.Run("", "ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1")
	s.Run("", "ip", "link", "add", "mv0", "link", "v0", "type", "macvlan")
	s.Run("", "tc", "qdisc", "add", "dev", "v1", "clsact")
	s.Run("", "ip", "route", "add", "blackhole", "203.0.113.9")
	s.Run("", "ip", "route", "add", "unreachable", "default", "metric", "4000")
	s.Run("", "ip", "-6", "route", "add", "prohibit", "2001:db8:9::/48", "table", "52")
	want := []foreign.Bypass{{What: "macvlan", Name: "mv0", Why: "what it carries leaves and comes over v0 without the rules for that link"},
		{What: "tc", Name: "v1", Why: "programs of traffic control may see its packets before any rule, and refuse, mark or redirect them"},
		{What: "route", Name: "203.0.113.9/32", Why: "a route of type blackhole refuses what goes there, answers too"},
		{What: "route", Name: "2001:db8:9::/48", Why: "a route of type prohibit refuses what goes there, answers too"}}
	if diff := gocmp.Diff(want, read(t, s).Bypass); diff != "" {
		t.Error(diff)
	}
	twoWays(t)
	var many strings.Builder // as a service that bans by routes
	for i := range 500 {
		fmt.Fprintf(&many, "route add blackhole 198.51.%d.%d\n", i/250, i%250)
	}
	s.Run(many.String(), "ip", "-batch", "-")
	if got := read(t, s).Bypass; len(got) != 13 || got[12].Name != "492 more" {
		t.Errorf("%v", got)
	}
}

// NET-16: cards and programs that this machine does not have, as the kernel says them.
func TestBypassOfCards(t *testing.T) {
	card := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: 2, Name: "enp1s0", Vfs: make([]netlink.VfInfo, 4)}}
	fast := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: 3, Name: "enp2s0", Xdp: &netlink.LinkXdp{Attached: true, ProgId: 7}}}
	plain := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: 4, Name: "enp3s0", Xdp: &netlink.LinkXdp{}}}
	far := &netlink.IPVlan{LinkAttrs: netlink.LinkAttrs{Index: 5, Name: "ipvl0", ParentIndex: 99}}
	want := []foreign.Bypass{{What: "sr-iov", Name: "enp1s0", Why: "4 virtual functions of the card: what has one sends and takes packets without the rules for this link"},
		{What: "xdp", Name: "enp2s0", Why: "a program sees its packets before any rule, and may refuse or redirect them"},
		{What: "ipvlan", Name: "ipvl0", Why: "what it carries leaves and comes over a link of another namespace without the rules for that link"}}
	if diff := gocmp.Diff(want, foreign.BypassOf([]netlink.Link{card, fast, plain, far})); diff != "" {
		t.Error(diff)
	}
}

// twoWays: with two ways out the kernel's own strictness refuses, and is named; with one it is only good.
func twoWays(t *testing.T) {
	s := netlab.NewSpace(t, "host")
	for i, link := range []string{"w0", "w1"} {
		s.Run("", "ip", "link", "add", link, "type", "veth", "peer", "name", "p"+link)
		s.Run("", "ip", "address", "add", fmt.Sprintf("192.0.%d.1/24", i), "dev", link)
		s.Run("", "ip", "link", "set", link, "up")
		s.Run("1", "tee", "/proc/sys/net/ipv4/conf/"+link+"/rp_filter")
	}
	s.Run("0", "tee", "/proc/sys/net/ipv4/conf/all/rp_filter")
	s.Run("", "ip", "route", "add", "default", "via", "192.0.0.9")
	if got := read(t, s).Bypass; got != nil {
		t.Errorf("with one way out: %v", got)
	}
	s.Run("", "ip", "route", "add", "default", "via", "192.0.1.9", "table", "100")
	s.Run("2", "tee", "/proc/sys/net/ipv4/conf/w0/rp_filter")
	want := []foreign.Bypass{{What: "rp_filter", Name: "w1", Why: "the kernel refuses what comes over it and would be answered over another link: net.ipv4.conf.w1.rp_filter is 1"}}
	if diff := gocmp.Diff(want, read(t, s).Bypass); diff != "" {
		t.Error(diff)
	}
}

func TestServed(t *testing.T) {
	root := t.TempDir()
	write(t, root, "etc/nftables.conf", "flush ruleset\ntable inet my_table {\n}\ntable ip6 six{\n}\ntable plain {\n}\n# table inet not\n")
	if got := foreign.Served(root); got != nil {
		t.Errorf("the unit is not enabled, and it serves %v", got)
	}
	write(t, root, "etc/systemd/system/sysinit.target.wants/nftables.service", "")
	if diff := gocmp.Diff([]string{"inet my_table", "ip6 six", "ip plain"}, foreign.Served(root)); diff != "" {
		t.Error(diff)
	}
	rs := foreign.Ruleset{
		Served: foreign.Served(root),
		Tables: []foreign.Table{{Family: "inet", Name: "my_table", Chains: []foreign.Chain{{Name: "i", Base: true, Hook: "input", Policy: "drop"}}}},
	}
	if got := foreign.Judge(rs).Refusing[0].Owner; !slices.Equal(got, foreign.Words{"nftables.service"}) {
		t.Errorf("owner %v", got)
	}
}

// rulesetsOf are Rulesets nobody would write.
func rulesetsOf() *rapid.Generator[foreign.Ruleset] {
	names := rapid.SampledFrom([]string{"INPUT", "FORWARD", "input", "forward", "ufw-user-input", "ufw-x", "DOCKER", "DOCKER-USER", "f2b-x", "INPUT_ZONES", "a", "miniupnpd"})
	acts := rapid.Custom(func(t *rapid.T) foreign.Act {
		return foreign.Act{
			Word:  rapid.SampledFrom([]string{"", "", "drop", "reject", "queue", "xt REJECT"}).Draw(t, "word"),
			Chain: rapid.SampledFrom([]string{"", "a", "ufw-x", "DOCKER", "nowhere"}).Draw(t, "chain"),
			Map:   rapid.SampledFrom([]string{"", "", "m", "nothing"}).Draw(t, "map"),
			Hint:  rapid.SampledFrom([]string{"", "crowdsec", "docker", "uruk", "one source"}).Draw(t, "hint"),
			Count: rapid.IntRange(1, 5).Draw(t, "count"),
		}
	})
	chains := rapid.Custom(func(t *rapid.T) foreign.Chain {
		c := foreign.Chain{Name: names.Draw(t, "name"), Rules: rapid.IntRange(0, 3).Draw(t, "rules"), Acts: rapid.SliceOfN(acts, 0, 4).Draw(t, "acts")}
		if c.Base = rapid.Bool().Draw(t, "base"); c.Base {
			c.Hook = rapid.SampledFrom([]string{"input", "forward", "output"}).Draw(t, "hook")
			c.Policy = rapid.SampledFrom([]string{"accept", "drop"}).Draw(t, "policy")
		}
		return c
	})
	tables := rapid.Custom(func(t *rapid.T) foreign.Table {
		return foreign.Table{
			Family: rapid.SampledFrom([]string{"ip", "ip6", "inet", "bridge", "family 99"}).Draw(t, "family"),
			Name:   rapid.SampledFrom([]string{"filter", "nat", "firewalld", "x", ""}).Draw(t, "table"),
			Flags:  rapid.SampledFrom([][]string{nil, {"dormant"}, {"owner", "persist"}}).Draw(t, "flags"),
			Chains: rapid.SliceOfN(chains, 0, 6).Draw(t, "chains"),
			Maps:   []foreign.Map{{Name: "m", Acts: rapid.SliceOfN(acts, 0, 3).Draw(t, "elements")}},
		}
	})
	return rapid.Custom(func(t *rapid.T) foreign.Ruleset {
		return foreign.Ruleset{Tables: rapid.SliceOfN(tables, 0, 4).Draw(t, "tables"), Legacy: rapid.SliceOfN(tables, 0, 2).Draw(t, "legacy")}
	})
}

func TestJudgementHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rs := rulesetsOf().Draw(t, "rule set")
		r := foreign.Judge(rs)
		if again := foreign.Judge(rs); !reflect.DeepEqual(r, again) {
			t.Fatalf("judged twice:\n%s", gocmp.Diff(r, again))
		}
		if len(r.Tables) != len(rs.Tables) || len(r.LegacyTables) != len(rs.Legacy) {
			t.Fatal("a table is missing")
		}
		for _, c := range slices.Concat(r.Refusing, r.Legacy) {
			if len(c.How) == 0 || len(c.Owner) == 0 || len(c.Owner) != len(c.Kind) || len(c.Owner) != len(c.Fate) || slices.Contains(c.Owner, "") {
				t.Fatalf("half a sentence: %+v", c)
			}
			if c.XTables == "" && len(c.Hooks) == 0 {
				t.Fatalf("nothing leads to %+v", c)
			}
		}
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		var back foreign.Report
		if err := json.Unmarshal(b, &back); err != nil {
			t.Fatalf("%v in %s", err, b)
		}
		if b2, _ := json.Marshal(back); string(b2) != string(b) {
			t.Fatalf("JSON there and back:\n%s\n%s", b, b2)
		}
	})
}

func FuzzDecode(f *testing.F) {
	// Tiny ones: the fuzzer shortens what it finds byte by byte, for a minute at a time.
	for _, seed := range []string{
		"table inet x { flags dormant; chain a { type filter hook input priority 0; policy drop; } }",
		"table ip x { chain b { reject; } chain a { meta mark 7 jump b; } }",
		`table ip x { chain a { iifname "docker0" log prefix "x" drop; } }`,
		"table ip x { map m { type mark : verdict; } chain a { meta mark vmap @m; } }",
	} {
		s := netlab.NewSpace(f, "host")
		s.Run(lines.Replace(seed), "nft", "-f", "-")
		f.Add(dump(f, s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		foreign.Bans(foreign.DecodeAll(b))
		rs := foreign.Decode(b)
		if len(rs.NotUnderstood) > 100 {
			t.Errorf("%d notes", len(rs.NotUnderstood))
		}
		if _, err := json.Marshal(foreign.Judge(rs)); err != nil {
			t.Error(err)
		}
	})
}

func FuzzParseSave(f *testing.F) {
	f.Add("*filter\n:INPUT DROP [0:0]\n:x - [0:0]\n-A INPUT -i docker0 -m state --state INVALID -j DROP\n[1:2] -A x -g INPUT\nCOMMIT\n")
	f.Fuzz(func(t *testing.T, text string) {
		tables, err := foreign.ParseSave("ip", strings.NewReader(text))
		if err == nil {
			foreign.Judge(foreign.Ruleset{Legacy: tables})
		}
	})
}

// manyRules is what iptables-nft would write: 10,000 rules in 503 chains, each with matches of
// xtables, a counter and a verdict.
func manyRules(t testing.TB) []object {
	t.Helper()
	var b strings.Builder
	b.WriteString(`[{"table":{"family":"ip","name":"filter"}}`)
	for _, c := range []string{"INPUT", "FORWARD", "OUTPUT"} {
		fmt.Fprintf(&b, `,{"chain":{"family":"ip","table":"filter","name":%q,"type":"filter","hook":%q,"prio":0,"policy":"accept"}}`, c, strings.ToLower(c))
	}
	for i := range 500 {
		fmt.Fprintf(&b, `,{"chain":{"family":"ip","table":"filter","name":"people-%d"}}`, i)
		fmt.Fprintf(&b, `,{"rule":{"family":"ip","table":"filter","chain":"INPUT","expr":[{"xt":{"type":"match","name":"conntrack"}},{"counter":null},{"jump":{"target":"people-%d"}}]}}`, i)
		for j := range 19 {
			verdict := []string{`{"drop":null}`, `{"accept":null}`, `{"xt":{"type":"target","name":"REJECT"}}`}[j%3]
			fmt.Fprintf(&b, `,{"rule":{"family":"ip","table":"filter","chain":"people-%d","expr":[{"match":{"op":"==","left":{"meta":{"key":"iifname"}},"right":"eth0"}},{"match":{"op":"==","left":{},"right":"x"}},{"xt":{"type":"match","name":"multiport"}},{"counter":null},%s]}}`, i, verdict)
		}
	}
	b.WriteString("]")
	var objects []object
	if err := json.Unmarshal([]byte(b.String()), &objects); err != nil {
		t.Fatal(err)
	}
	return objects
}

// TestManyRules holds the bounds of a reading of 10,000 rules: 0.4 s, 12 MiB of memory in all, also
// without a garbage collector. The time is the thread's own: the machine has other things to do.
func TestManyRules(t *testing.T) {
	s := netlab.NewSpace(t, "host")
	put(t, s, manyRules(t), nil)
	var before, after runtime.MemStats
	took, wall := time.Hour, time.Hour
	clk := clock.Real()
	var r foreign.Report
	s.Do(func() {
		for range 3 {
			runtime.ReadMemStats(&before)
			start, used := clk.Now(), processor(t)
			rs, err := foreign.Read(t.Context())
			if err != nil {
				t.Error(err)
			}
			r = foreign.Judge(rs)
			took, wall = min(took, processor(t)-used), min(wall, clk.Now().Sub(start))
			runtime.ReadMemStats(&after)
		}
	})
	if len(r.Refusing) != 500 || r.Tables[0].SharedBy != "iptables-nft" {
		t.Errorf("%d refusing chains in %+v", len(r.Refusing), r.Tables)
	}
	allocated := (after.TotalAlloc - before.TotalAlloc) >> 10
	t.Logf("read and judged in %v, %v on the clock, %d KiB allocated", took, wall, allocated)
	if took > 400*time.Millisecond || allocated > 12<<10 {
		t.Errorf("10,000 rules took %v and %d KiB", took, allocated)
	}
}

// processor is the time the calling thread has had.
func processor(t testing.TB) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
		t.Error(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkRead(b *testing.B) {
	s := netlab.NewSpace(b, "host")
	put(b, s, manyRules(b), nil)
	s.Do(func() {
		b.ReportAllocs()
		for b.Loop() {
			rs, err := foreign.Read(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			foreign.Judge(rs)
		}
	})
}

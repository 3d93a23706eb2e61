package firewall_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	"pgregory.net/rapid"

	"mesh/firewall"
	"mesh/shared/clock"
	"mesh/shared/refusal"
	"mesh/shared/waitfor"
	"mesh/testbus/netlab"
)

// open returns a Driver inside s whose first load does not wait.
func open(t testing.TB, s *netlab.Space, options ...firewall.Option) *firewall.Driver {
	t.Helper()
	fake := clock.NewFake(time.Unix(0, 0))
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop) })
	go func() { // plays the two seconds of the warm-up
		tick, end := clock.Real().Every(time.Millisecond)
		defer end()
		for {
			select {
			case <-tick:
				fake.Advance(time.Second)
			case <-stop:
				return
			}
		}
	}()
	var d *firewall.Driver
	var err error
	s.Do(func() { d, err = firewall.Open(append([]firewall.Option{firewall.WithClock(fake)}, options...)...) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func load(t testing.TB, d *firewall.Driver, table firewall.Table) {
	t.Helper()
	if err := d.Load(t.Context(), table); err != nil {
		t.Fatal(err)
	}
}

func differs(t testing.TB, d *firewall.Driver, table firewall.Table) string {
	t.Helper()
	why, err := d.Differs(t.Context(), table)
	if err != nil {
		t.Fatal(err)
	}
	return why
}

var volatile = regexp.MustCompile(`packets \d+ bytes \d+|flags owner(,persist)?\n`)

func listing(s *netlab.Space) string {
	return volatile.ReplaceAllString(s.Run("", "nft", "list", "table", "inet", "mesh"), "")
}

// The table by netlink and by its text are one, in nft's eyes and in ours; and the text loads over
// itself.
func TestTextAndLoadAreOne(t *testing.T) {
	odd := []string{"}", "{x", "a;b", "#c", "$d", "@e", "f|g", "'h'", "-i", "1.2.3.4", "j,k", "accept"}
	for name, f := range map[string]firewall.Filter{
		"sample": sample(t), "minimal": {Outside: []string{"eth0"}}, "odd names": {Outside: odd, Bridges: odd[:3], Inside: odd[3:6], Tunnel: []string{"set"}},
	} {
		t.Run(name, func(t *testing.T) {
			table := compile(t, f)
			byText, byLoad := netlab.NewSpace(t, "by-text"), netlab.NewSpace(t, "by-load")
			byText.Run(table.Text(), "nft", "-c", "-f", "-")
			byText.Run(table.Text(), "nft", "-f", "-")
			byText.Run(table.Text(), "nft", "-f", "-")
			d := open(t, byLoad, firewall.WithoutOwner())
			load(t, d, table)
			if why := differs(t, d, table); why != "" {
				t.Errorf("after Load: %s", why)
			}
			if diff := cmp.Diff(listing(byText), listing(byLoad)); diff != "" {
				t.Errorf("the text (-) and the load (+) differ:\n%s", diff)
			}
			if why := differs(t, open(t, byText, firewall.WithoutOwner()), table); why != "" {
				t.Errorf("the table nft loaded: %s", why)
			}
			netlab.NewSpace(t, "restored").Run(listing(byLoad), "nft", "-f", "-")
		})
	}
}

func TestAnyTableLoadsOverAnyOther(t *testing.T) {
	s, text := netlab.NewSpace(t, "host"), netlab.NewSpace(t, "text")
	d := open(t, s)
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		table, err := firewall.Compile(filters().Draw(t, "filter"))
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Load(context.Background(), table); err != nil {
			t.Fatal(err)
		}
		if n++; n%10 == 0 { // nft takes each as text, over the one before
			if out, err := text.Try(table.Text(), "nft", "-f", "-"); err != nil {
				t.Fatalf("nft: %v: %s\n%s", err, out, table.Text())
			}
		}
		fresh := firewall.Reread(d) // forget what was loaded, look at the kernel
		if why, err := fresh.Differs(context.Background(), table); why != "" || err != nil {
			t.Fatal(why, err, table.Text())
		}
	})
	table := compile(t, sample(t))
	load(t, d, table)
	if out, err := s.Try(table.Text(), "nft", "-c", "-f", "-"); err == nil {
		t.Errorf("nft may change the owned table: %s", out)
	}
}

// An independent reader finds what was written.
func TestAnotherReaderAgrees(t *testing.T) {
	s := netlab.NewSpace(t, "host")
	load(t, open(t, s), compile(t, many(300)))
	s.Do(func() {
		c, err := nftables.New()
		if err != nil {
			t.Error(err)
			return
		}
		mesh := &nftables.Table{Name: firewall.TableName, Family: nftables.TableFamilyINet}
		// Rules with ct original are past google/nftables v0.3.0: it reads the direction as 4 bytes.
		chain, err := c.ListChain(mesh, "forward")
		if err != nil || *chain.Hooknum != *nftables.ChainHookForward || *chain.Priority != 15 || *chain.Policy != nftables.ChainPolicyAccept {
			t.Errorf("the chain forward: %+v, %v", chain, err)
		}
		set, err := c.GetSetByName(mesh, "outside")
		if err != nil {
			t.Error(err)
			return
		}
		if elements, err := c.GetSetElements(set); err != nil || len(elements) != 20 {
			t.Errorf("%d entries outside, %v, want 10 ranges", len(elements), err)
		}
	})
}

// A list of elements longer than one message can hold arrives whole, and soon: 10,000 addresses within
// 0.2 s. Another reader counts them.
func TestTenThousandAddresses(t *testing.T) {
	const n, most = 10000, 200 * time.Millisecond
	f := firewall.Filter{Outside: []string{"eth0"}}
	without := compile(t, f)
	var from []string
	for i := range n {
		from = append(from, fmt.Sprintf("10.%d.%d.1", i/256, i%256))
	}
	f.Allow = append(f.Allow, allow(t, "web", "80/tcp", strings.Join(from, ",")))
	table := compile(t, f)
	s := netlab.NewSpace(t, "host")
	d := open(t, s)
	best := time.Hour
	for range 5 { // other work may take the processor away
		load(t, d, without)
		began := clock.Real().Now()
		load(t, d, table)
		best = min(best, clock.Real().Now().Sub(began))
	}
	if best > most {
		t.Errorf("loading %d addresses takes %v, want %v at most", n, best, most)
	}
	if why := differs(t, firewall.Reread(d), table); why != "" {
		t.Error(why)
	}
	if got := elements(t, s, "a_"); got != 2*n { // where each begins and ends
		t.Errorf("%d ends of ranges, want %d", got, 2*n)
	}
}

// elements counts the entries of the first set whose name begins with prefix, with another reader.
func elements(t *testing.T, s *netlab.Space, prefix string) (n int) {
	t.Helper()
	s.Do(func() {
		c, err := nftables.New()
		if err != nil {
			t.Error(err)
			return
		}
		sets, err := c.GetSets(&nftables.Table{Name: firewall.TableName, Family: nftables.TableFamilyINet})
		if err != nil {
			t.Error(err)
			return
		}
		for _, set := range sets {
			if strings.HasPrefix(set.Name, prefix) {
				all, err := c.GetSetElements(set)
				if err != nil {
					t.Error(err)
				}
				n = len(all)
				return
			}
		}
		t.Errorf("no set is named %s...", prefix)
	})
	return n
}

// Past every buffer's default: ten thousand rules go in with one transaction, and come back.
func TestTenThousandRules(t *testing.T) {
	table := compile(t, many(10000))
	d := open(t, netlab.NewSpace(t, "host"))
	load(t, d, table)
	if why := differs(t, firewall.Reread(d), table); why != "" {
		t.Error(why)
	}
	load(t, d, compile(t, many(9999)))
	load(t, firewall.Reread(d), table)
	if why := differs(t, firewall.Reread(d), table); why != "" {
		t.Error(why)
	}
}

// What only some of the table changes leaves the rest alone, and the whole is right after it.
func TestChangesInParts(t *testing.T) {
	s := netlab.NewSpace(t, "host")
	d := open(t, s)
	f := sample(t)
	for i, change := range []func(){
		func() {},
		func() { f.Allow = append(f.Allow, allow(t, "new", "7/tcp", "anywhere")) },
		func() { f.Outside = append(f.Outside, "up7") },
		func() { f.Inside = []string{"lan0"} },
		func() { f.Allow = f.Allow[3:] },
		func() { f.Inside = nil },
		func() { f.Allow = nil },
		func() { f = sample(t) },
	} {
		change()
		table := compile(t, f)
		load(t, d, table)
		if why := differs(t, open(t, s, firewall.WithoutOwner()), table); why != "" { // it knows nothing
			t.Errorf("change %d: %s", i, why)
		}
	}
}

// A table as agents wrote it before declared rules were elements becomes today's in place.
func TestATableOfAnEarlierAgent(t *testing.T) {
	s := netlab.NewSpace(t, "host")
	earlier, err := os.ReadFile("testdata/linear.nft")
	if err != nil {
		t.Fatal(err)
	}
	s.Run(string(earlier), "nft", "-f", "-")
	d := open(t, s, firewall.WithoutOwner())
	table := compile(t, sample(t))
	load(t, d, table)
	if why := differs(t, open(t, s, firewall.WithoutOwner()), table); why != "" {
		t.Error(why)
	}
	if counters := s.Run("", "nft", "list", "counters", "table", "inet", "mesh"); strings.Contains(counters, "r_web_") || !strings.Contains(counters, "r_routing_") {
		t.Errorf("the counters that are left: %s", counters)
	}
}

func TestDiffersNoticesEveryHandChange(t *testing.T) {
	s := netlab.NewSpace(t, "host")
	d := open(t, s, firewall.WithoutOwner())
	table := compile(t, sample(t))
	for _, tt := range []struct{ name, script, want string }{
		{"another table", "add table ip other", ""},
		{"a rule added", "add rule inet mesh declared tcp dport 3000 accept", "chain declared: has"},
		{"a rule inserted", "insert rule inet mesh input accept", "chain input: has"},
		{"a rule replaced", "flush chain inet mesh refuse; add rule inet mesh refuse limit rate 10/minute burst 20 packets log prefix \"mesh refused: \" group 5; add rule inet mesh refuse counter accept comment \"refused\"", "chain refuse: rule 2"},
		{"a comment changed", "flush chain inet mesh refuse; add rule inet mesh refuse limit rate 10/minute burst 20 packets log prefix \"mesh refused: \" group 5; add rule inet mesh refuse counter drop", "chain refuse: rule 2"},
		{"a limit changed", "flush chain inet mesh refuse; add rule inet mesh refuse limit rate 11/minute burst 20 packets log prefix \"mesh refused: \" group 5; add rule inet mesh refuse counter drop comment \"refused\"", "chain refuse: rule 1"},
		{"a chain flushed", "flush chain inet mesh input", "chain input: has 0 rules"},
		{"an element removed", "delete element inet mesh outside { \"up0\" }", "set outside: has"},
		{"an element added", "add element inet mesh tunnel { \"lo\" }", "set tunnel: has 2"},
		{"an element exchanged", "delete element inet mesh tunnel { \"mesh0\" }; add element inet mesh tunnel { \"lo\" }", "set tunnel: has other"},
		{"a declared port removed", "delete element inet mesh ports_tcp_any { 443 }", "set ports_tcp_any: has 2 elements instead of 3"},
		{"a declared port added", "add element inet mesh ports_tcp_any { 3000 }", "set ports_tcp_any: has 4 elements instead of 3"},
		{"a declared range cut short", "delete element inet mesh ranges_udp_any { 9000-9010 }; add element inet mesh ranges_udp_any { 9000-9009 comment \"voice: 9000-9010/udp from anywhere\" }", "set ranges_udp_any: has other elements"},
		{"an element's comment changed", "delete element inet mesh peers_udp_v4 { 198.51.100.7 . 8730 }; add element inet mesh peers_udp_v4 { 198.51.100.7 . 8730 comment \"theirs\" }", "set peers_udp_v4: has other comments"},
		{"a set that does not count", "flush chain inet mesh declared; flush chain inet mesh untracked; delete set inet mesh ports_udp_any; add set inet mesh ports_udp_any { type inet_service; }", "set ports_udp_any: has another type"},
		{"a policy changed", "chain inet mesh input { policy drop; }", "chain input: has another policy"},
		{"a chain added", "add chain inet mesh mine", "chain mine is not mesh's"},
		{"a base chain added", "add chain inet mesh mine { type filter hook input priority -500; policy drop; }", "chain mine is not mesh's"},
		{"a set added", "add set inet mesh mine { type ipv4_addr; }", "set mine is not mesh's"},
		{"a map that jumps to a chain", "add chain inet mesh mine; add map inet mesh m { type inet_service : verdict; elements = { 1 : jump mine }; }; add rule inet mesh mine tcp dport { 1, 2 } accept", "not mesh's"},
		{"put to sleep", "table inet mesh { flags dormant; }", "the table is dormant"},
		{"another hook", "flush ruleset; table inet mesh { chain input { type filter hook forward priority 0; }; }", "is gone"},
		{"flushed", "flush table inet mesh", "has 0 rules"},
		{"deleted", "delete table inet mesh", "the table is gone"},
		{"everything flushed", "flush ruleset", "the table is gone"},
	} {
		load(t, d, table)
		if why := differs(t, firewall.Reread(d), table); why != "" {
			t.Fatalf("%s: before it: %s", tt.name, why)
		}
		s.Run(tt.script, "nft", "-f", "-")
		if why := differs(t, d, table); !strings.Contains(why, tt.want) || (why == "") != (tt.want == "") {
			t.Errorf("%s: got %q, want %q", tt.name, why, tt.want)
		}
	}
	load(t, d, table)
	if why := differs(t, firewall.Reread(d), table); why != "" {
		t.Errorf("after the last repair: %s", why)
	}
}

// NET-6: nobody's flush touches an owned table; it outlives its owner and finds the next one.
func TestOwnership(t *testing.T) {
	s := netlab.NewSpace(t, "host")
	table := compile(t, sample(t))
	s.Run(table.Text(), "nft", "-f", "-") // as a unit before the network would
	first := open(t, s)
	if why := differs(t, first, table); why != "nobody owns the table" {
		t.Fatalf("a table without owner: %q", why)
	}
	load(t, first, table)
	s.Run("", "nft", "flush", "ruleset")
	for _, words := range []string{"insert rule inet mesh input accept", "flush table inet mesh", "delete table inet mesh"} {
		if out, err := s.Try(words, "nft", "-f", "-"); err == nil {
			t.Errorf("%s: done: %s", words, out)
		}
	}
	if why := differs(t, firewall.Reread(first), table); why != "" {
		t.Errorf("after a foreign flush: %s", why)
	}
	if tables := s.Run("", "nft", "list", "tables"); strings.Contains(tables, "mesh-") {
		t.Errorf("left behind: %s", tables)
	}
	var second *firewall.Driver
	s.Do(func() { second, _ = firewall.Open() })
	if err := second.Load(t.Context(), table); refusal.Of(err) == nil {
		t.Errorf("a second owner: %v, want a refusal", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if why := differs(t, second, table); why != "nobody owns the table" {
		t.Errorf("an orphan: %q", why)
	}
	load(t, second, table)
	if why := differs(t, firewall.Reread(second), table); why != "" {
		t.Errorf("after taking over: %s", why)
	}
	if err := second.Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
	if tables := s.Run("", "nft", "list", "tables"); tables != "" {
		t.Errorf("after Delete: %s", tables)
	}
	second.Close()
}

func TestFirstLoadWarmsUp(t *testing.T) {
	s := netlab.NewSpace(t, "host")
	fake := clock.NewFake(time.Unix(0, 0))
	var d *firewall.Driver
	var err error
	s.Do(func() { d, err = firewall.Open(firewall.WithClock(fake)) })
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	table := compile(t, sample(t))

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	start := func(ctx context.Context) {
		go s.Do(func() { done <- d.Load(ctx, table) })
		waitfor.True(t, "the warm-up", 5*time.Second, func() (bool, any) { return fake.Waiting() == 1, fake.Waiting() })
	}
	start(ctx)
	if tables := s.Run("", "nft", "list", "tables"); tables != "table inet mesh-warmup\n" {
		t.Errorf("during the warm-up: %s", tables)
	}
	cancel()
	if err := waitfor.Value(t, "the end of a cancelled load", 5*time.Second, done); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled load: %v", err)
	}
	if tables := s.Run("", "nft", "list", "tables"); tables != "" {
		t.Errorf("after a cancelled warm-up: %s", tables)
	}
	fake.Advance(2 * time.Second)
	start(t.Context())
	fake.Advance(2 * time.Second)
	if err := waitfor.Value(t, "the end of the load", 5*time.Second, done); err != nil {
		t.Fatal(err)
	}
	if tables := s.Run("", "nft", "list", "tables"); tables != "table inet mesh\n" {
		t.Errorf("after the load: %s", tables)
	}
	if err := d.Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
	load(t, d, table) // no warm-up: this would wait for ever
}

func TestWatchNamesTheOthers(t *testing.T) {
	s := netlab.NewSpace(t, "host")
	d := open(t, s, firewall.WithoutOwner())
	var events <-chan firewall.Event
	var err error
	ctx, cancel := context.WithCancel(t.Context())
	s.Do(func() { events, err = d.Watch(ctx) })
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		load(t, d, compile(t, sample(t)))
	}
	select {
	case e := <-events:
		t.Errorf("an event of our own: %+v", e)
	default:
	}
	s.Run("", "nft", "flush", "ruleset")
	if e := waitfor.Value(t, "the flush", 5*time.Second, events); e.Process != "nft" || e.PID == 0 {
		t.Errorf("got %+v, want nft", e)
	}
	cancel()
	waitfor.True(t, "the channel to close", 5*time.Second, func() (bool, any) {
		select {
		case _, ok := <-events:
			return !ok, "open"
		default:
			return false, "open"
		}
	})
}

// Somebody else commits all the time: loads go through, looks are whole.
func TestLoadsAmongOthers(t *testing.T) {
	s := netlab.NewSpace(t, "host")
	d := open(t, s, firewall.WithoutOwner())
	other := open(t, s, firewall.WithoutOwner())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if _, err := s.Try("add table ip x; add chain ip x c; delete table ip x", "nft", "-f", "-"); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	tables := []firewall.Table{compile(t, sample(t)), compile(t, many(200))}
	for i := range 100 {
		load(t, d, tables[i%2])
		if why := differs(t, other, tables[i%2]); why != "" {
			t.Fatalf("load %d: %s", i, why)
		}
	}
	cancel()
	<-done
}

func TestUnchangedCostsOneQuestion(t *testing.T) {
	s := netlab.NewSpace(t, "host")
	d := open(t, s)
	table := compile(t, many(2000))
	load(t, d, table)
	if allocations := testing.AllocsPerRun(100, func() { differs(t, d, table) }); allocations > 20 {
		t.Errorf("%v allocations to see that nothing changed", allocations)
	}
}

func BenchmarkDriver(b *testing.B) {
	for _, n := range []int{50, 2000} {
		table, others := compile(b, many(n)), many(n)
		for i := range others.Allow {
			others.Allow[i].Port.First += 20000
			others.Allow[i].Port.Last += 20000
		}
		tables := []firewall.Table{compile(b, others), table}
		s := netlab.NewSpace(b, "host")
		d := open(b, s)
		load(b, d, table)
		b.Run(fmt.Sprintf("Load%d", n), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				load(b, d, tables[i%2])
			}
		})
		load(b, d, table)
		b.Run(fmt.Sprintf("ReadBack%d", n), func(b *testing.B) {
			for b.Loop() {
				if why := differs(b, firewall.Reread(d), table); why != "" {
					b.Fatal(why)
				}
			}
		})
		b.Run(fmt.Sprintf("Unchanged%d", n), func(b *testing.B) {
			for b.Loop() {
				differs(b, d, table)
			}
		})
		file := b.TempDir() + "/rules.nft"
		if err := os.WriteFile(file, []byte(table.Text()), 0o600); err != nil {
			b.Fatal(err)
		}
		other := netlab.NewSpace(b, "other")
		b.Run(fmt.Sprintf("Nft%d", n), func(b *testing.B) {
			for b.Loop() {
				other.Run("", "nft", "-f", file)
			}
		})
	}
}

package link

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"mesh/shared/clock"
	"mesh/shared/waitfor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// inNamespace moves the test into a network namespace of its own, which ends with it. Root is needed.
// Only the test's own goroutine is in there, so no subtests.
func inNamespace(t *testing.T) {
	t.Helper()
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatalf("this test needs root: %v", err)
	}
}

func ip(t *testing.T, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", line, err, out)
		}
	}
}

// wire makes a veth pair name and name-x with an address on name and both ends up.
func wire(t *testing.T, name, addr string) {
	t.Helper()
	ip(t, "link add "+name+" type veth peer name "+name+"-x", "addr add "+addr+" dev "+name,
		"link set "+name+" up", "link set "+name+"-x up")
}

func uplinks(t *testing.T) []string {
	t.Helper()
	links, routes, err := Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return Uplinks(Outside(links, routes))
}

func TestReadFindsUplinksOfEveryTableAndShape(t *testing.T) {
	inNamespace(t)
	wire(t, "up0", "198.18.0.2/24")
	wire(t, "up1", "198.19.0.2/24")
	for _, tt := range []struct {
		name, add, del string
		want           []string
	}{
		{"none", "", "", nil},
		{"main table", "route add default via 198.18.0.1", "route del default", []string{"up0"}},
		{"table 52", "route add default via 198.19.0.1 table 52", "route del default table 52", []string{"up1"}},
		{"IPv6, without a gateway", "-6 route add default dev up1", "-6 route del default dev up1", []string{"up1"}},
		{"both halves", "route add 0.0.0.0/1 dev up0", "route del 0.0.0.0/1", []string{"up0"}},
		{"half of everything", "route add 128.0.0.0/1 dev up1", "route del 128.0.0.0/1", []string{"up1"}},
		{"2000::/3", "-6 route add 2000::/3 dev up0", "-6 route del 2000::/3", []string{"up0"}},
		{"two legs", "route add default nexthop via 198.18.0.1 nexthop via 198.19.0.1", "route del default", []string{"up0", "up1"}},
		{"unreachable", "-6 route add unreachable default", "-6 route del unreachable default", nil},
		{"blackhole", "route add blackhole default", "route del blackhole default", nil},
		{"local (transparent proxy)", "route add local default dev lo table 100", "route del local default table 100", nil},
	} {
		if tt.add != "" {
			ip(t, tt.add)
		}
		if got := uplinks(t); !slices.Equal(got, tt.want) {
			t.Errorf("%s: uplinks %v, want %v", tt.name, got, tt.want)
		}
		if tt.name == "main table" {
			_, routes, err := Read(t.Context())
			if err != nil || len(routes) != 1 || routes[0].Dst.String() != "0.0.0.0/0" || routes[0].Table != unix.RT_TABLE_MAIN {
				t.Errorf("routes %+v, %v", routes, err)
			}
		}
		if tt.del != "" {
			ip(t, tt.del)
		}
	}
	ip(t, "nexthop add id 7 via 198.19.0.1 dev up1", "route add default nhid 7")
	if got := uplinks(t); !slices.Equal(got, []string{"up1"}) {
		t.Errorf("nexthop object: uplinks %v", got)
	}
	ip(t, "route del default", "nexthop add id 8 via 198.18.0.1 dev up0", "nexthop add id 9 group 7/8")
	if err := os.WriteFile("/proc/sys/net/ipv4/nexthop_compat_mode", []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, add, del string
		want           []string
	}{
		{"an object alone", "route add default nhid 8", "route del default", []string{"up0"}},
		{"a group, in another table", "route add default nhid 9 table 52", "route del default table 52", []string{"up0", "up1"}},
		{"for IPv6", "-6 route add 2000::/3 nhid 10", "-6 route del 2000::/3", []string{"up1"}},
		{"a narrow route", "route add 192.0.2.0/24 nhid 8", "route del 192.0.2.0/24", nil},
	} {
		if tt.name == "for IPv6" {
			ip(t, "-6 nexthop add id 10 dev up1")
		}
		ip(t, tt.add)
		if got := uplinks(t); !slices.Equal(got, tt.want) {
			t.Errorf("nexthop objects without their links, %s: uplinks %v, want %v", tt.name, got, tt.want)
		}
		ip(t, tt.del)
	}
	ip(t, "link add br9 type bridge", "link set up0-x master br9", "link add link up0 name mv0 type macvlan")
	links, _, err := Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	by := map[string]Link{}
	for _, l := range links {
		by[l.Name] = l
	}
	if by["br9"].Kind != "bridge" || by["up0-x"].Master != by["br9"].Index || by["mv0"].Parent != by["up0"].Index ||
		by["up0"].Kind != "veth" || by["up0"].Hardware || !by["up0"].Up || !by["lo"].Loopback || by["br9"].Up {
		t.Errorf("links: %+v", by)
	}
}

// TestWatchHintsWithinASecond is NET-5 on the real kernel.
func TestWatchHintsWithinASecond(t *testing.T) {
	inNamespace(t)
	ctx, cancel := context.WithCancel(t.Context())
	hints, err := Watch(ctx, clock.Real(), func(err error) { t.Errorf("watch ended: %v", err) })
	if err != nil {
		t.Fatal(err)
	}
	until := func(what string, want ...string) {
		t.Helper()
		var got []string
		for deadline := time.After(time.Second); ; {
			select {
			case <-hints:
				if got = uplinks(t); slices.Equal(got, want) {
					return
				}
			case <-deadline:
				t.Fatalf("%s: uplinks %v after 1 s, want %v (now %v)", what, got, want, uplinks(t))
			}
		}
	}
	wire(t, "up0", "198.18.0.2/24")
	wire(t, "up1", "198.19.0.2/24")
	ip(t, "route add default via 198.18.0.1")
	until("a default route", "up0")
	ip(t, "route add default via 198.19.0.1 table 52")
	until("a default route in table 52", "up0", "up1")
	ip(t, "link set up0 down", "link set up0 name wan0", "link set wan0 up", "route add default via 198.18.0.1")
	until("a rename", "up1", "wan0")
	ip(t, "link set wan0 down") // IPv4 routes go without a message
	until("a link that went down", "up1")
	ip(t, "link del up1")
	until("a link that is gone")
	cancel()
	for range hints { // until closed
	}
}

func TestWatchSaysWhenItEnds(t *testing.T) {
	failed := make(chan error, 1)
	events := make(chan struct{}, 1)
	want := errors.New("broken")
	failed <- receive(reads{{nil, unix.ENOBUFS}, {nil, want}}.reader(), events)
	if err := waitfor.Value(t, "the end", time.Second, failed); !errors.Is(err, want) {
		t.Errorf("receive: %v", err)
	}
	waitfor.Value(t, "the event of an overrun", time.Second, events)
}

type read struct {
	b   []byte
	err error
}

type reads []read

type reader struct{ left reads }

func (r reads) reader() *reader { return &reader{r} }

func (r *reader) Read(b []byte) (int, error) {
	next := r.left[0]
	r.left = r.left[1:]
	return copy(b, next.b), next.err
}

func TestMatters(t *testing.T) {
	message := func(kind uint16, bits byte) []byte {
		b := make([]byte, unix.SizeofNlMsghdr+unix.SizeofRtMsg)
		binary.NativeEndian.PutUint32(b, uint32(len(b)))
		binary.NativeEndian.PutUint16(b[4:], kind)
		b[unix.SizeofNlMsghdr+1] = bits
		return b
	}
	narrow, wideOne := message(unix.RTM_NEWROUTE, 24), message(unix.RTM_DELROUTE, 0)
	for _, tt := range []struct {
		name string
		b    []byte
		want bool
	}{
		{"nothing", nil, false},
		{"narrow route", narrow, false},
		{"default route", wideOne, true},
		{"narrow, then default", slices.Concat(narrow, wideOne), true},
		{"link", message(unix.RTM_NEWLINK, 99), true},
		{"cut short", narrow[:20], true},
		{"rubbish", []byte{1, 2, 3}, true},
	} {
		if got := matters(tt.b); got != tt.want {
			t.Errorf("%s: matters = %v", tt.name, got)
		}
	}
}

func TestNarrowRoutesGiveNoHint(t *testing.T) {
	inNamespace(t)
	wire(t, "up0", "198.18.0.2/24")
	socket, err := listen()
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	up0, err := netlink.LinkByName("up0")
	if err != nil {
		t.Fatal(err)
	}
	_, dst, _ := net.ParseCIDR("203.0.113.0/24")
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: up0.Attrs().Index, Dst: dst}); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 16<<10)
	for {
		n, err := socket.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		if binary.NativeEndian.Uint16(buf[4:]) != unix.RTM_NEWROUTE {
			continue // IPv6 addresses that are being made
		}
		if buf[unix.SizeofNlMsghdr] == unix.AF_INET {
			if matters(buf[:n]) {
				t.Error("a /24 route matters")
			}
			return
		}
	}
}

func TestSettleWaitsForQuietButNotForEver(t *testing.T) {
	clk := clock.NewFake(time.Unix(0, 0))
	events, hints := make(chan struct{}), make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); settle(ctx, clk, events, hints) }()
	events <- struct{}{}
	waitfor.Value(t, "the hint where it begins", 5*time.Second, hints)
	for range 5 { // never quiet
		events <- struct{}{}
		events <- struct{}{} // taken: the timers of the first stand
		select {
		case <-hints:
			t.Fatal("a hint before the quiet")
		default:
		}
		clk.Advance(quiet - time.Millisecond)
	}
	clk.Advance(patience)
	waitfor.Value(t, "the hint that patience brings", 5*time.Second, hints)
	cancel()
	<-done
}

func BenchmarkRead(b *testing.B) {
	for b.Loop() {
		links, routes, err := Read(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		Outside(links, routes)
	}
}

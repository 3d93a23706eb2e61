package firewall_test

import (
	"encoding/binary"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mesh/firewall"
	"mesh/shared/rule"
	"mesh/shared/waitfor"
	"mesh/testbus/netlab"
)

// A withdrawn rule lets no new flow in, a flow under way lives on, and ends where that is asked for; one
// that another rule lets in does not notice.
func TestWithdrawnRule(t *testing.T) {
	c := newCrowd(t)
	d := open(t, c.Host)
	f := c.filter(t)
	load(t, d, compile(t, f))
	flows := map[string]net.Conn{}
	for what, to := range map[string]string{
		"to the host": "203.0.113.1:22", "to the host, v6": "[2001:db8:1::1]:22", "to a container": "203.0.113.1:8080", "to a container, v6": "[2001:db8:1::1]:8080", "kept": "203.0.113.1:8083",
	} {
		conn, err := c.Outside.Dial("tcp", to, soon)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := netlab.Echo(conn, soon); err != nil {
			t.Fatal(err)
		}
		flows[what] = conn
	}
	withdrawn := []rule.Allow{f.Allow[0], f.Allow[2], allow(t, "proxied", "8083/tcp", "203.0.113.0/24")}
	f.Allow = append(f.Allow[1:2:2], f.Allow[3:]...)
	load(t, d, compile(t, f))
	for what, conn := range flows {
		if err := netlab.Echo(conn, soon); err != nil {
			t.Errorf("%s, the rule withdrawn: the flow ended: %v", what, err)
		}
	}
	if err := c.Outside.Ask("tcp", "203.0.113.1:22", never); err == nil {
		t.Error("a new flow under a withdrawn rule")
	}
	var ended int
	var err error
	c.Host.Do(func() { ended, err = firewall.EndFlows(t.Context(), withdrawn) })
	if err != nil || ended < len(flows) {
		t.Errorf("%d flows ended, %v, want at least %d", ended, err, len(flows))
	}
	for what, conn := range flows {
		if err := netlab.Echo(conn, never); (err == nil) != (what == "kept") {
			t.Errorf("%s, the flows of withdrawn rules ended: %v", what, err)
		}
	}
	c.Host.Do(func() { ended, err = firewall.EndFlows(t.Context(), withdrawn[:1]) })
	if err != nil || ended != 0 {
		t.Errorf("again: %d flows ended, %v", ended, err)
	}
}

// Packets too big for a link on their way: the host and a container behind it learn so (RFC 1191, RFC 8201).
func TestPathMTU(t *testing.T) {
	lab := netlab.New(t)
	far := netlab.NewSpace(t, "far")
	far.Join("f0", []string{"192.0.2.9/24", "2001:db8:f::9/64"}, lab.Outside, "o9", []string{"192.0.2.1/24", "2001:db8:f::1/64"})
	lab.Outside.Run("", "ip", "link", "set", "o9", "mtu", "1300")
	far.Route("default via 192.0.2.1")
	far.Route("-6 default via 2001:db8:f::1")
	lab.Outside.Sysctl("net/ipv4/ip_forward", "1")
	lab.Outside.Sysctl("net/ipv6/conf/all/forwarding", "1")
	lab.Host.Run(engine, "nft", "-f", "-")
	far.Serve("tcp", "[::]:7000")
	d := open(t, lab.Host)
	load(t, d, compile(t, firewall.Filter{Outside: []string{netlab.Uplink}}))
	for name, from := range map[string]*netlab.Space{"host": lab.Host, "container": lab.Container} {
		for _, to := range netlab.Both("192.0.2.9", "2001:db8:f::9", "7000") {
			c, err := from.Dial("tcp", to, soon)
			if err != nil {
				t.Errorf("%s to %s: %v", name, to, err)
				continue
			}
			const size = 200 << 10
			stop := time.AfterFunc(soon, func() { c.Close() })
			go c.Write(make([]byte, size))
			if n, err := io.CopyN(io.Discard, c, size); err != nil {
				t.Errorf("%s to %s: %d of %d bytes came back: %v", name, to, n, size, err)
			}
			stop.Stop()
			c.Close()
		}
	}
	if got := lab.Host.Run("", "ip", "route", "get", "192.0.2.9"); !strings.Contains(got, "mtu 1300") {
		t.Errorf("nothing was learned, so this test shows nothing: %s", got)
	}
}

// A point-to-point link without a gateway, with the default route in another table: its name is one that
// hardware comes under, so it is outside although nothing named it.
func TestPointToPointUplink(t *testing.T) {
	host := netlab.NewSpace(t, "host")
	line := host.Tun("ppp0", "198.51.100.1/32", "2001:db8:2::1/128")
	host.Run("", "ip", "route", "add", "default", "dev", "ppp0", "table", "51820")
	host.Run("", "ip", "rule", "add", "not", "fwmark", "0x1", "lookup", "51820")
	host.Run("", "ip", "-6", "route", "add", "default", "dev", "ppp0", "table", "51820")
	host.Run("", "ip", "-6", "rule", "add", "not", "fwmark", "0x1", "lookup", "51820")
	w := &witness{seen: map[uint32]bool{}}
	w.listen(t, host, nil, []string{":3000", ":5353"})
	d := open(t, host)
	load(t, d, compile(t, firewall.Filter{Outside: []string{"up9"}, Allow: []rule.Allow{allow(t, "voice", "5353/udp", "anywhere")}}))
	for i, c := range []crafted{
		{"declared", "192.0.2.9", "198.51.100.1", 17, 0, udp(9, 5353), true, true},
		{"declared, v6", "2001:db8:f::9", "2001:db8:2::1", 17, 0, udp(9, 5353), true, true},
		{"not declared", "192.0.2.9", "198.51.100.1", 17, 0, udp(9, 3000), true, false},
		{"not declared, v6", "2001:db8:f::9", "2001:db8:2::1", 17, 0, udp(9, 3000), true, false},
		{"a last one", "192.0.2.9", "198.51.100.1", 17, 0, udp(9, 5353), true, true},
	} {
		if _, err := line.Write(c.bytes(uint32(i))); err != nil {
			t.Fatal(err)
		}
		if c.with {
			waitfor.True(t, c.what, soon, func() (bool, any) { return w.saw(uint32(i)), "nothing came" })
		} else if w.saw(uint32(i)) {
			t.Errorf("%s: it got through", c.what)
		}
	}
	if w.saw(2) || w.saw(3) {
		t.Error("an undeclared port is open over ppp0")
	}
	// An answer over it: the host asks, the other end answers.
	var c net.Conn
	var err error
	host.Do(func() { c, err = net.Dial("udp", "192.0.2.9:53") })
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("word")); err != nil {
		t.Fatal(err)
	}
	question := readUDP(t, line)
	answer := crafted{source: "192.0.2.9", to: "198.51.100.1", protocol: 17, body: udp(53, binary.BigEndian.Uint16(question[20:]))}.bytes(0x77)
	if _, err := line.Write(answer); err != nil {
		t.Fatal(err)
	}
	stop := time.AfterFunc(soon, func() { c.Close() })
	defer stop.Stop()
	b := make([]byte, 16)
	if n, err := c.Read(b); err != nil || n != 4 || binary.BigEndian.Uint32(b) != 0x77 {
		t.Errorf("the answer: %x, %v", b[:n], err)
	}
}

// readUDP reads packets that leave over line until one is of UDP and IPv4.
func readUDP(t *testing.T, line *os.File) []byte {
	t.Helper()
	stop := time.AfterFunc(soon, func() { line.Close() })
	defer stop.Stop()
	b := make([]byte, 2048)
	for {
		n, err := line.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		if n > 28 && b[0]>>4 == 4 && b[9] == unix.IPPROTO_UDP {
			return b[:n]
		}
	}
}

// Uplinks of other kinds, where the kernel has them. The link below is outside as well: a host answers for
// all its addresses on each of its links.
func TestUplinkOfAnotherKind(t *testing.T) {
	for _, tt := range []struct{ name, link, option string }{
		{"vlan", "ip link add link up0 name wan7 type vlan id 5", "CONFIG_VLAN_8021Q"}, {"macvlan", "ip link add link up0 name wan7 type macvlan mode bridge", "CONFIG_MACVLAN"},
		{"bond", "ip link add wan7 type bond", "CONFIG_BONDING"}, {"bridge", "ip link add wan7 type bridge", "CONFIG_BRIDGE"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			lab := netlab.New(t)
			words := strings.Fields(tt.link)
			if out, err := lab.Host.Try("", words...); err != nil {
				t.Skipf("NOT PROVEN ON THIS KERNEL: it lacks %s (%s). That such a link counts as outside, agent/host/link shows with messages as a kernel says them", tt.option, strings.TrimSpace(out))
			}
			lab.Outside.Run("", "ip", "address", "flush", "dev", "o0")
			lab.Host.Run("", "ip", "address", "flush", "dev", netlab.Uplink)
			there := "o0"
			switch tt.name {
			case "vlan":
				there = "wan8"
				lab.Outside.Run("", "ip", "link", "add", "link", "o0", "name", there, "type", "vlan", "id", "5")
			case "bond", "bridge":
				lab.Host.Run("", "ip", "link", "set", netlab.Uplink, "down")
				lab.Host.Run("", "ip", "link", "set", netlab.Uplink, "master", "wan7")
				lab.Host.Run("", "ip", "link", "set", netlab.Uplink, "up")
			}
			for s, a := range map[*netlab.Space][]string{lab.Host: {"wan7", "203.0.113.1/24", "2001:db8:1::1/64"}, lab.Outside: {there, "203.0.113.9/24", "2001:db8:1::9/64"}} {
				s.Run("", "ip", "address", "add", a[1], "dev", a[0])
				s.Run("", "ip", "address", "add", a[2], "dev", a[0], "nodad")
				s.Run("", "ip", "link", "set", a[0], "up")
			}
			lab.Host.Serve("tcp", "[::]:22")
			lab.Host.Serve("tcp", "[::]:3000")
			lab.Outside.Serve("tcp", "[::]:7000")
			d := open(t, lab.Host)
			load(t, d, compile(t, firewall.Filter{Outside: []string{"wan7", netlab.Uplink}, Allow: []rule.Allow{allow(t, "admin", "22/tcp", "anywhere")}}))
			uplink := func(port string) []string { return netlab.Both(netlab.HostOutside4, netlab.HostOutside6, port) }
			goAll(t, tt.name, []way{
				{"declared", lab.Outside, "", "tcp", uplink("22"), true, true},
				{"not declared", lab.Outside, "", "tcp", uplink("3000"), true, false},
				{"outward", lab.Host, "", "tcp", netlab.Both(netlab.Outside4, netlab.Outside6, "7000"), true, true},
			}, func(w way) bool { return w.with })
		})
	}
}

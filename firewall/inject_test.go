package firewall_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mesh/firewall"
	"mesh/shared/rule"
	"mesh/shared/waitfor"
	"mesh/testbus/netlab"
)

// crafted is a packet as nobody's sockets would send it.
type crafted struct {
	what     string
	source   string
	to       string
	protocol byte
	hops     byte // 0: 64
	body     []byte
	before   bool // it gets through without a table
	with     bool // and with it
}

// bytes is the packet with a mark in its body, by which it is known again.
func (c crafted) bytes(mark uint32) []byte {
	source, to := netip.MustParseAddr(c.source), netip.MustParseAddr(c.to)
	body := binary.BigEndian.AppendUint32(slices.Clone(c.body), mark)
	hops := c.hops
	if hops == 0 {
		hops = 64
	}
	sumAt := map[byte]int{unix.IPPROTO_ICMP: 2, unix.IPPROTO_ICMPV6: 2, unix.IPPROTO_UDP: 6, unix.IPPROTO_IGMP: 2}
	if c.protocol == unix.IPPROTO_UDP {
		binary.BigEndian.PutUint16(body[4:], uint16(len(body)))
	}
	if at, ok := sumAt[c.protocol]; ok {
		var pseudo []byte
		if c.protocol == unix.IPPROTO_UDP || c.protocol == unix.IPPROTO_ICMPV6 {
			pseudo = slices.Concat(source.AsSlice(), to.AsSlice(), []byte{0, c.protocol}, binary.BigEndian.AppendUint16(nil, uint16(len(body))))
		}
		binary.BigEndian.PutUint16(body[at:], checksum(append(pseudo, body...)))
	}
	if source.Is4() {
		head := []byte{0x45, 0, 0, 0, 0, 0, 0x40, 0, hops, c.protocol, 0, 0}
		head = slices.Concat(head, source.AsSlice(), to.AsSlice())
		binary.BigEndian.PutUint16(head[2:], uint16(len(head)+len(body)))
		binary.BigEndian.PutUint16(head[10:], checksum(head))
		return append(head, body...)
	}
	head := []byte{0x60, 0, 0, 0, 0, 0, c.protocol, hops}
	binary.BigEndian.PutUint16(head[4:], uint16(len(body)))
	return slices.Concat(head, source.AsSlice(), to.AsSlice(), body)
}

// checksum is the internet checksum (RFC 1071).
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

func udp(source, destination uint16) []byte {
	return append(binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, source), destination), 0, 0, 0, 0)
}

// witness keeps the marks of what got through to a host.
type witness struct {
	mu   sync.Mutex
	seen map[uint32]bool
}

// listen takes everything of protocols, and of UDP ports, until the test ends.
func (w *witness) listen(t *testing.T, s *netlab.Space, networks, ports []string) {
	t.Helper()
	s.Do(func() {
		for _, n := range networks {
			c, err := net.ListenPacket(n, "")
			if err != nil {
				t.Errorf("listen on %s: %v", n, err)
				continue
			}
			w.take(t, c)
		}
		for _, p := range ports {
			c, err := net.ListenPacket("udp", p)
			if err != nil {
				t.Errorf("listen on %s: %v", p, err)
				continue
			}
			w.take(t, c)
		}
	})
}

func (w *witness) take(t *testing.T, c net.PacketConn) {
	t.Cleanup(func() { c.Close() })
	go func() {
		b := make([]byte, 2048)
		for {
			n, _, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			if n >= 4 {
				w.mu.Lock()
				w.seen[binary.BigEndian.Uint32(b[n-4:])] = true
				w.mu.Unlock()
			}
		}
	}()
}

func (w *witness) saw(mark uint32) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen[mark]
}

// inject sends all and says which got through against what is wanted. barrier returns when what was sent
// before is through.
func inject(t *testing.T, lab *netlab.Lab, w *witness, all []crafted, phase uint32, want func(crafted) bool, barrier func()) {
	t.Helper()
	mark := func(i int) uint32 { return 0x6d000000 | phase<<16 | uint32(i) }
	packets := make([][]byte, len(all))
	for i, c := range all {
		packets[i] = c.bytes(mark(i))
	}
	lab.Outside.Inject("o0", lab.Host, netlab.Uplink, packets...)
	barrier()
	for i, c := range all {
		if want(c) {
			waitfor.True(t, c.what, 5*time.Second, func() (bool, any) { return w.saw(mark(i)), "nothing came" })
		} else if w.saw(mark(i)) {
			t.Errorf("%s: it got through (phase %d)", c.what, phase)
		}
	}
}

// ah is an authentication header (RFC 4302) before nothing.
func ah(next byte) []byte {
	return append([]byte{next, 4, 0, 0, 0, 0, 1, 1, 0, 0, 0, 1}, make([]byte, 12)...)
}

func icmp(typ, code byte) []byte { return []byte{typ, code, 0, 0, 0, 0, 0, 0} }

// neighbours of IPv6 need 24 bytes.
func neighbour(typ byte) []byte {
	return append(icmp(typ, 0), netip.MustParseAddr("2001:db8:1::abcd").AsSlice()...)
}

// What the protocols themselves need is let in, and not more (RFC 4890); spoofed addresses open nothing;
// other protocols come in when they are declared (NET-16).
func TestCraftedPackets(t *testing.T) {
	const out4, out6, local = netlab.Outside4, netlab.Outside6, "fe80::9"
	const host4, host6 = netlab.HostOutside4, netlab.HostOutside6
	lab := netlab.New(t)
	for _, key := range []string{"net/ipv4/conf/all/rp_filter", "net/ipv4/conf/up0/rp_filter"} {
		lab.Host.Sysctl(key, "0") // it would drop spoofed packets before any rule
	}
	lab.Host.Sysctl("net/ipv4/conf/up0/route_localnet", "1") // as kube-proxy does
	lab.Host.Run("", "ip", "address", "add", "224.0.0.18/32", "dev", netlab.Uplink, "autojoin")
	lab.Host.Serve("tcp", "[::]:22")
	w := &witness{seen: map[uint32]bool{}}
	w.listen(t, lab.Host,
		[]string{"ip4:1", "ip6:58", "ip4:2", "ip4:112", "ip4:50", "ip6:50", "ip4:51", "ip6:51", "ip4:47", "ip4:89", "ip4:132", "ip6:132", "ip4:41", "ip4:253"},
		[]string{":68", ":67", ":546", ":3000", ":5353", ":5433"})
	all := []crafted{
		{"a loopback address from outside, declared port", out4, "127.0.0.1", 17, 0, udp(9, 5353), true, false},
		{"a container's address on the uplink, undeclared port", "172.30.0.77", host4, 17, 0, udp(9, 3000), true, false},
		{"a container's address on the uplink, undeclared port, v6", "fd30::77", host6, 17, 0, udp(9, 3000), true, false},
		{"a container's address on the uplink, declared port", "172.30.0.77", host4, 17, 0, udp(9, 5353), true, true},
		{"a container's address on the uplink, declared port, v6", "fd30::77", host6, 17, 0, udp(9, 5353), true, true},
		{"a peer's address on the uplink, a port for the tunnel", netlab.Peer4, host4, 17, 0, udp(9, 5433), true, false},
		{"a peer's address on the uplink, a port for the tunnel, v6", netlab.Peer6, host6, 17, 0, udp(9, 5433), true, false},

		{"DHCP answer", out4, host4, 17, 0, udp(67, 68), true, true},
		{"DHCP answer to all", out4, "255.255.255.255", 17, 0, udp(67, 68), true, true},
		{"DHCP question", out4, host4, 17, 0, udp(68, 67), true, false},
		{"no DHCP server's port", out4, host4, 17, 0, udp(53, 68), true, false},
		{"DHCPv6 answer", local, host6, 17, 0, udp(547, 546), true, true},
		{"DHCPv6 answer from afar", out6, host6, 17, 0, udp(547, 546), true, false},

		{"declared VRRP", out4, "224.0.0.18", 112, 255, []byte{0x21, 1, 100, 0}, true, true},
		{"declared VRRP from another address", "198.51.100.7", host4, 112, 255, []byte{0x21, 1, 100, 0}, true, false},
		{"declared ESP", "198.51.100.7", host4, 50, 0, make([]byte, 16), true, true},
		{"declared ESP, v6", "2001:db8:7::7", host6, 50, 0, make([]byte, 16), true, true},
		{"declared AH", out4, host4, 51, 0, ah(59), true, true},
		{"declared AH, v6", out6, host6, 51, 0, ah(59), true, true},
		{"declared AH from another address", "198.51.100.7", host4, 51, 0, ah(59), true, false},
		{"declared AH from another address, v6", "2001:db8:7::7", host6, 51, 0, ah(59), true, false},
		{"declared 6in4", out4, host4, 41, 0, make([]byte, 40), true, true},
		{"GRE, for the tunnel only", out4, host4, 47, 0, make([]byte, 8), true, false},
		{"OSPF, not declared", out4, host4, 89, 1, make([]byte, 24), true, false},
		{"SCTP, not declared", out4, host4, 132, 0, make([]byte, 12), true, false},
		{"SCTP, not declared, v6", out6, host6, 132, 0, make([]byte, 12), true, false},
		{"a declared number", out4, host4, 253, 0, make([]byte, 8), true, true},
		{"IGMP to a group", out4, "224.0.0.1", 2, 1, []byte{0x11, 0, 0, 0, 0, 0, 0, 0}, true, true},
		{"IGMP to the host", out4, host4, 2, 1, []byte{0x11, 0, 0, 0, 0, 0, 0, 0}, true, false},
	}
	for typ, in := range map[byte]bool{3: true, 11: true, 12: true, 8: true, 0: false, 4: false, 5: false, 13: false, 17: false} {
		all = append(all, crafted{fmt.Sprintf("ICMP type %d", typ), out4, host4, 1, 0, append(icmp(typ, 0), quoted...), true, in})
	}
	for typ, in := range map[byte]bool{1: true, 2: true, 3: true, 4: true, 128: true, 129: false, 138: false, 139: false, 200: false} {
		all = append(all, crafted{fmt.Sprintf("ICMPv6 type %d", typ), out6, host6, 58, 0, append(icmp(typ, 0), quoted6...), true, in})
	}
	for typ, in := range map[byte]bool{133: false, 134: true, 135: true, 136: true, 137: true} {
		all = append(all, crafted{fmt.Sprintf("ICMPv6 type %d from this link", typ), local, host6, 58, 255, neighbour(typ), true, in},
			crafted{fmt.Sprintf("ICMPv6 type %d that a router passed on", typ), out6, host6, 58, 64, neighbour(typ), true, false})
	}
	for _, typ := range []byte{130, 131, 132, 143} {
		all = append(all, crafted{fmt.Sprintf("ICMPv6 type %d from this link", typ), local, host6, 58, 1, neighbour(typ), true, true},
			crafted{fmt.Sprintf("ICMPv6 type %d from afar", typ), out6, host6, 58, 1, neighbour(typ), true, false})
	}
	barrier := func() {
		if err := lab.Outside.Ask("tcp", host4+":22", soon); err != nil {
			t.Fatal(err)
		}
	}
	inject(t, lab, w, all, 1, func(c crafted) bool { return c.before }, barrier)
	d := open(t, lab.Host)
	load(t, d, compile(t, firewall.Filter{
		Outside: []string{netlab.Uplink}, Tunnel: []string{netlab.Tunnel},
		Allow: []rule.Allow{
			allow(t, "admin", "22/tcp", "anywhere"), allow(t, "voice", "5353/udp", "anywhere"), allow(t, "db", "5433/udp", "tunnel"),
			allow(t, "balance", "vrrp", "203.0.113.0/24"), allow(t, "ipsec", "esp", "anywhere"), allow(t, "ipsec", "ah", "203.0.113.9, 2001:db8:1::9"),
			allow(t, "six", "6in4", "203.0.113.9"), allow(t, "overlay", "gre", "tunnel"), allow(t, "lab", "protocol 253", "anywhere"),
		},
	}))
	inject(t, lab, w, all, 2, func(c crafted) bool { return c.with }, barrier)

	// Echo requests are let in at 20 a second, 40 at once.
	const pings = 300
	var burst [][]byte
	for i := range uint32(pings) { // each of an id of its own: those of one are a flow
		echo := []byte{8, 0, 0, 0, byte(i >> 8), byte(i), 0, 1}
		burst = append(burst, crafted{source: out4, to: host4, protocol: 1, body: echo}.bytes(0x70000000|i))
	}
	lab.Outside.Inject("o0", lab.Host, netlab.Uplink, burst...)
	barrier()
	got := 0
	for i := range uint32(pings) {
		if w.saw(0x70000000 | i) {
			got++
		}
	}
	if got < 30 || got > 150 {
		t.Errorf("%d of %d pings in a burst got through, want about 40", got, pings)
	}
}

// quoted is what an ICMP error says it is about: a packet of no flow that is known.
var (
	quoted  = crafted{source: netlab.HostOutside4, to: "198.51.100.200", protocol: 17, body: udp(4444, 5555)}.bytes(0)[:28]
	quoted6 = bytes.Clone(crafted{source: netlab.HostOutside6, to: "2001:db8:9::9", protocol: 17, body: udp(4444, 5555)}.bytes(0)[:48])
)

package firewall_test

import (
	"encoding/binary"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"mesh/firewall"
	"mesh/shared/rule"
	"mesh/testbus/netlab"
)

const (
	// answers come within a millisecond here; refused packets are dropped, so nothing ever comes.
	soon, never = 5 * time.Second, 400 * time.Millisecond
)

// way is one way a packet can take: from a space to addresses, one of each family mostly.
type way struct {
	what    string
	from    *netlab.Space
	source  string // own address to ask from; empty: any
	network string
	to      []string
	before  bool // answered without a table
	with    bool // answered with it
}

func (w way) ask(to string, limit time.Duration) (err error) {
	if w.source == "" {
		return w.from.Ask(w.network, to, limit)
	}
	var c net.Conn
	w.from.Do(func() {
		c, err = (&net.Dialer{Timeout: limit, LocalAddr: &net.TCPAddr{IP: net.ParseIP(w.source)}}).Dial(w.network, to)
	})
	if err != nil {
		return err
	}
	defer c.Close()
	return netlab.Echo(c, limit)
}

// goAll asks all ways at once, and says which were answered against what is wanted.
func goAll(t *testing.T, when string, ways []way, want func(way) bool) {
	t.Helper()
	var wg sync.WaitGroup
	for _, w := range ways {
		for _, to := range w.to {
			wg.Go(func() {
				limit := never
				if want(w) {
					limit = soon
				}
				if err := w.ask(to, limit); (err == nil) != want(w) {
					t.Errorf("%s: %s (%s %s): %v, want an answer: %v", when, w.what, w.network, to, err, want(w))
				}
			})
		}
	}
	wg.Wait()
}

// crowd is a host with everything around it: two uplinks, a tunnel, two bridges with containers, and an
// engine's table that publishes ports of theirs.
type crowd struct {
	*netlab.Lab
	other, second *netlab.Space
}

func newCrowd(t *testing.T) crowd {
	lab := netlab.New(t)
	c := crowd{lab, lab.SecondUplink(), lab.SecondBridge()}
	for _, port := range []string{"22", "80", "3000", "5432", "8443", "9100"} {
		c.Host.Serve("tcp", "[::]:"+port)
	}
	own := []string{netlab.HostOutside4, netlab.HostOutside6, netlab.Host2Outside4, netlab.Host2Outside6, netlab.HostTunnel4, netlab.HostTunnel6, netlab.HostBridge4, netlab.HostBridge6}
	for _, port := range []string{"3000", "5353", "9005", "5433"} {
		for _, host := range own { // answers of a socket on :: leave from another address
			c.Host.Serve("udp", net.JoinHostPort(host, port))
		}
	}
	for _, port := range []string{"22", "80", "81", "5354", "5355"} {
		c.Container.Serve("tcp", "[::]:"+port)
		c.second.Serve("tcp", "[::]:"+port)
		for _, host := range []string{netlab.Container4, netlab.Container6} {
			c.Container.Serve("udp", net.JoinHostPort(host, port))
		}
	}
	for s, addresses := range map[*netlab.Space][]string{
		c.Outside: {netlab.Outside4, netlab.Outside6}, c.other: {netlab.Other4, netlab.Other6}, c.Peer: {netlab.Peer4, netlab.Peer6},
	} {
		s.Serve("tcp", "[::]:7000")
		for _, a := range addresses {
			s.Serve("udp", net.JoinHostPort(a, "7000"))
		}
	}
	c.Host.Proxy("[::]:8083", net.JoinHostPort(netlab.Container4, "80"))
	c.Host.Proxy("[::]:8084", net.JoinHostPort(netlab.Container4, "80"))
	c.Host.Run(engine, "nft", "-f", "-")
	c.Host.Run("", "ip", "link", "set", "vethc", "type", "bridge_slave", "hairpin", "on") // back where it came from
	// A second address of the outside, the one that may ask for metrics.
	c.Outside.Run("", "ip", "address", "add", "203.0.113.77/24", "dev", "o0")
	c.Outside.Run("", "ip", "address", "add", "2001:db8:1::77/64", "dev", "o0", "nodad", "preferred_lft", "0")
	return c
}

// engine is what a container engine writes: 8080 and 8081 published to ports 80 and 81 of a container, 8090
// to one on the other bridge, two ports of UDP, and 443 redirected.
const engine = `table inet engine {
	map tcp4 { type inet_service : ipv4_addr . inet_service; elements = { 8080 : 172.30.0.2 . 80, 8081 : 172.30.0.2 . 81, 8090 : 172.31.0.2 . 80 }; }
	map tcp6 { type inet_service : ipv6_addr . inet_service; elements = { 8080 : fd30::2 . 80, 8081 : fd30::2 . 81, 8090 : fd31::2 . 80 }; }
	chain publish {
		fib daddr type != local return
		meta nfproto ipv4 meta l4proto tcp dnat ip to tcp dport map @tcp4
		meta nfproto ipv6 meta l4proto tcp dnat ip6 to tcp dport map @tcp6
		meta nfproto ipv4 udp dport { 5354, 5355 } dnat ip to 172.30.0.2
		meta nfproto ipv6 udp dport { 5354, 5355 } dnat ip6 to fd30::2
	}
	chain prerouting {
		type nat hook prerouting priority -100;
		jump publish
		tcp dport 443 redirect to :8443
	}
	chain output {
		type nat hook output priority -100;
		jump publish
	}
	chain postrouting {
		type nat hook postrouting priority 100;
		ip saddr 172.30.0.0/24 oifname != "br0" masquerade
		ip6 saddr fd30::/64 oifname != "br0" masquerade
		ip saddr 172.31.0.0/24 oifname != "br1" masquerade
		ip6 saddr fd31::/64 oifname != "br1" masquerade
		ip saddr 172.30.0.0/24 ip daddr 172.30.0.2 masquerade
		ip6 saddr fd30::/64 ip6 daddr fd30::2 masquerade
	}
}`

// filter is what the host of a crowd declares.
func (c crowd) filter(t testing.TB) firewall.Filter {
	return firewall.Filter{
		Outside: []string{netlab.Uplink, netlab.Uplink2}, Tunnel: []string{netlab.Tunnel},
		Allow: []rule.Allow{
			allow(t, "admin", "22/tcp", "anywhere"), allow(t, "web", "443/tcp", "anywhere"), allow(t, "web", "8080/tcp", "anywhere"), allow(t, "web", "8090/tcp", "anywhere"),
			allow(t, "proxied", "8083/tcp", "anywhere"), allow(t, "voice", "5353-5354/udp", "anywhere"), allow(t, "voice", "9000-9010/udp", "anywhere"),
			allow(t, "db", "5432/tcp", "tunnel"), allow(t, "db", "5433/udp", "tunnel"), allow(t, "metrics", "9100/tcp", "203.0.113.77, 2001:db8:1::77"),
		},
	}
}

// ways are the ways of facts of the field, each for IPv4 and IPv6.
func (c crowd) ways() []way {
	uplink := func(port string) []string { return netlab.Both(netlab.HostOutside4, netlab.HostOutside6, port) }
	uplink2 := func(port string) []string { return netlab.Both(netlab.Host2Outside4, netlab.Host2Outside6, port) }
	tunnel := func(port string) []string { return netlab.Both(netlab.HostTunnel4, netlab.HostTunnel6, port) }
	gateway := func(port string) []string { return netlab.Both(netlab.HostBridge4, netlab.HostBridge6, port) }
	container := func(port string) []string { return netlab.Both(netlab.Container4, netlab.Container6, port) }
	second := func(port string) []string { return netlab.Both(netlab.Container24, netlab.Container26, port) }
	outside := func(port string) []string { return netlab.Both(netlab.Outside4, netlab.Outside6, port) }
	other := func(port string) []string { return netlab.Both(netlab.Other4, netlab.Other6, port) }
	peer := func(port string) []string { return netlab.Both(netlab.Peer4, netlab.Peer6, port) }
	return []way{
		{"outside to a declared port", c.Outside, "", "tcp", uplink("22"), true, true},
		{"outside over the second uplink to a declared port", c.other, "", "tcp", uplink2("22"), true, true},
		{"outside to a declared port of UDP", c.Outside, "", "udp", uplink("5353"), true, true},
		{"outside over the second uplink to a declared port of UDP", c.other, "", "udp", uplink2("5353"), true, true},
		{"outside to a port in a declared range", c.Outside, "", "udp", uplink("9005"), true, true},
		{"outside to an undeclared port", c.Outside, "", "tcp", uplink("3000"), true, false},
		{"outside over the second uplink to an undeclared port", c.other, "", "tcp", uplink2("3000"), true, false},
		{"outside to an undeclared port of UDP", c.Outside, "", "udp", uplink("3000"), true, false},
		{"outside to a port published by DNAT, declared", c.Outside, "", "tcp", uplink("8080"), true, true},
		{"outside over the second uplink to it", c.other, "", "tcp", uplink2("8080"), true, true},
		{"outside to a port published by DNAT, not declared", c.Outside, "", "tcp", uplink("8081"), true, false},
		{"outside to the port behind the published one", c.Outside, "", "tcp", uplink("80"), true, false},
		{"outside to a port of UDP published, declared", c.Outside, "", "udp", uplink("5354"), true, true},
		{"outside to a port of UDP published, not declared", c.Outside, "", "udp", uplink("5355"), true, false},
		{"outside to a userland proxy, declared", c.Outside, "", "tcp", uplink("8083"), true, true},
		{"outside to a userland proxy, not declared", c.Outside, "", "tcp", uplink("8084"), true, false},
		{"outside to a port redirected, declared", c.Outside, "", "tcp", uplink("443"), true, true},
		{"outside to where the redirect leads", c.Outside, "", "tcp", uplink("8443"), true, false},
		{"outside to a port for the tunnel", c.Outside, "", "tcp", uplink("5432"), true, false},
		{"outside to a port of UDP for the tunnel", c.Outside, "", "udp", uplink("5433"), true, false},
		{"outside from an address of the set", c.Outside, "203.0.113.77", "tcp", uplink("9100")[:1], true, true},
		{"outside from an address of the set, IPv6", c.Outside, "2001:db8:1::77", "tcp", uplink("9100")[1:], true, true},
		{"outside from an address not in the set", c.Outside, "", "tcp", uplink("9100"), true, false},
		{"outside to a container directly", c.Outside, "", "tcp", container("22"), true, false},
		{"outside to a container's published port directly", c.Outside, "", "tcp", container("80"), true, false},
		{"outside to a container on the other bridge directly", c.Outside, "", "tcp", second("22"), true, false},
		{"one uplink through the host to the other (forwarding)", c.other, "", "tcp", outside("7000"), true, false},
		{"one uplink through the host to the other, UDP", c.other, "", "udp", outside("7000"), true, false},
		{"one uplink through the host to the tunnel", c.other, "", "tcp", peer("7000"), true, false},

		{"peer to a port for the tunnel", c.Peer, "", "tcp", tunnel("5432"), true, true},
		{"peer to a port of UDP for the tunnel", c.Peer, "", "udp", tunnel("5433"), true, true},
		{"peer to a port declared for anywhere", c.Peer, "", "tcp", tunnel("22"), true, true},
		{"peer to an undeclared port (NET-2)", c.Peer, "", "tcp", tunnel("3000"), true, false},
		{"peer to an undeclared port of UDP", c.Peer, "", "udp", tunnel("3000"), true, false},
		{"peer to a published and declared port", c.Peer, "", "tcp", tunnel("8080"), true, true},
		{"peer to a published and undeclared port", c.Peer, "", "tcp", tunnel("8081"), true, false},
		{"peer to a container directly", c.Peer, "", "tcp", container("22"), true, false},

		{"host to outside", c.Host, "", "tcp", outside("7000"), true, true},
		{"host to outside, UDP", c.Host, "", "udp", outside("7000"), true, true},
		{"host over its second uplink", c.Host, "", "tcp", other("7000"), true, true},
		{"host to a peer", c.Host, "", "tcp", peer("7000"), true, true},
		{"host to itself", c.Host, "", "tcp", []string{"127.0.0.1:3000", "[::1]:3000"}, true, true},
		{"host to its public address", c.Host, "", "tcp", uplink("3000"), true, true},
		{"host to its own published port", c.Host, "", "tcp", uplink("8080"), true, true},
		{"host to a container", c.Host, "", "tcp", container("22"), true, true},

		{"container to outside", c.Container, "", "tcp", outside("7000"), true, true},
		{"container to outside, UDP", c.Container, "", "udp", outside("7000"), true, true},
		{"container over the second uplink", c.Container, "", "tcp", other("7000"), true, true},
		{"container to a peer", c.Container, "", "tcp", peer("7000"), true, true},
		{"container to its host, undeclared port", c.Container, "", "tcp", gateway("3000"), true, true},
		{"container to its host, undeclared port of UDP", c.Container, "", "udp", gateway("3000"), true, true},
		{"container to its host's public address", c.Container, "", "tcp", uplink("3000"), true, true},
		{"container to a container on the other bridge", c.Container, "", "tcp", second("22"), true, true},
		{"container to a neighbour's port through the host's public address (hairpin)", c.Container, "", "tcp", uplink("8090"), true, true},
		{"container to its own port through the host's public address (hairpin)", c.Container, "", "tcp", uplink("8080"), true, true},
		{"container to an undeclared published port (hairpin)", c.second, "", "tcp", uplink("8081"), true, true},
	}
}

// NET-1, NET-2, NET-4: every way, IPv4 and IPv6, without a table, with it, and after the engine wrote its
// own anew.
func TestWays(t *testing.T) {
	c := newCrowd(t)
	ways := c.ways()
	goAll(t, "without a table", ways, func(w way) bool { return w.before })
	d := open(t, c.Host)
	load(t, d, compile(t, c.filter(t)))
	goAll(t, "with the table", ways, func(w way) bool { return w.with })
	c.Host.Run("delete table inet engine\n"+engine, "nft", "-f", "-")
	goAll(t, "after the engine wrote its table anew", ways, func(w way) bool { return w.with })
	for network, to := range map[string]string{"ip4:icmp": netlab.HostOutside4, "ip6:ipv6-icmp": netlab.HostOutside6} {
		if err := ping(c.Outside, network, to); err != nil {
			t.Errorf("ping %s: %v", to, err)
		}
	}

	// A raw table that keeps packets from being tracked leaves declared ports open, others closed.
	c.Host.Run(`table inet raw {
		chain prerouting { type filter hook prerouting priority -300; iifname "up0" tcp dport { 22, 3000 } notrack; }
		chain output { type filter hook output priority -300; oifname "up0" tcp sport { 22, 3000 } notrack; }
	}`, "nft", "-f", "-")
	untracked := []way{
		{"untracked, declared", c.Outside, "", "tcp", netlab.Both(netlab.HostOutside4, netlab.HostOutside6, "22"), true, true},
		{"untracked, not declared", c.Outside, "", "tcp", netlab.Both(netlab.HostOutside4, netlab.HostOutside6, "3000"), true, false},
	}
	goAll(t, "untracked", untracked, func(w way) bool { return w.with })

	// NET-15: a card plugged in later is outside by its name, before anybody reacts.
	c.Host.Run("", "ip", "link", "set", netlab.Uplink, "down")
	c.Host.Run("", "ip", "link", "set", netlab.Uplink, "name", "enp7s0")
	c.Host.Run("", "ip", "link", "set", "enp7s0", "up")
	if err := c.Outside.Ask("tcp", "203.0.113.1:3000", never); err == nil {
		t.Error("an uplink renamed as hardware is open")
	}
	if err := c.Outside.Ask("tcp", "203.0.113.1:22", soon); err != nil {
		t.Errorf("a declared port over an uplink renamed: %v", err)
	}
}

// Docker and Kubernetes send bridged frames through the forward hook: a guest on an uplink that is a
// bridge is not filtered for that.
func TestGuestOnAnUplinkBridge(t *testing.T) {
	lab := netlab.New(t)
	guest := netlab.NewSpace(t, "guest")
	guest.Join("g0", []string{"172.30.0.50/24", "fd30::50/64"}, lab.Host, "vethg", nil)
	lab.Host.Run("", "ip", "link", "set", "vethg", "master", netlab.Bridge)
	for _, family := range []string{"iptables", "ip6tables"} {
		if out, err := lab.Host.Try("1", "tee", "/proc/sys/net/bridge/bridge-nf-call-"+family); err != nil {
			t.Skipf("NOT PROVEN ON THIS KERNEL: it lacks CONFIG_BRIDGE_NETFILTER (%s)", strings.TrimSpace(out))
		}
	}
	guest.Serve("tcp", "[::]:80")
	lab.Host.Serve("tcp", "[::]:80")
	d := open(t, lab.Host)
	f := firewall.Filter{Outside: []string{netlab.Bridge}}
	load(t, d, compile(t, f))
	if err := lab.Container.Ask("tcp", "172.30.0.50:80", never); err == nil {
		t.Error("bridged frames do not meet the forward chain: this test shows nothing")
	}
	f.Bridges = f.Outside
	load(t, d, compile(t, f))
	for _, to := range []string{"172.30.0.50:80", "[fd30::50]:80"} {
		if err := lab.Container.Ask("tcp", to, soon); err != nil {
			t.Errorf("to a guest on the bridge, %s: %v", to, err)
		}
	}
	if err := lab.Container.Ask("tcp", "172.30.0.1:80", never); err == nil {
		t.Error("the host behind the bridge is open")
	}
}

// ping sends one echo request and waits for the answer.
func ping(from *netlab.Space, network, to string) error {
	request, reply, header := byte(8), byte(0), 20 // what is read begins with the header of IPv4
	if network != "ip4:icmp" {
		request, reply, header = 128, 129, 0 // the kernel writes the checksum
	}
	packet := []byte{request, 0, 0, 0, 0, 7, 0, 1}
	if request == 8 {
		binary.BigEndian.PutUint16(packet[2:], ^uint16(0x0800+7+1))
	}
	var c net.Conn
	var err error
	from.Do(func() { c, err = net.Dial(network, to) })
	if err != nil {
		return err
	}
	defer c.Close()
	stop := time.AfterFunc(soon, func() { c.Close() })
	defer stop.Stop()
	if _, err := c.Write(packet); err != nil {
		return err
	}
	for b := make([]byte, 256); ; {
		n, err := c.Read(b)
		if err != nil {
			return err
		}
		if n > header && b[header] == reply {
			return nil
		}
	}
}

package netlab

import (
	"io"
	"net"
	"os"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// What a Lab has after SecondUplink and SecondBridge.
const (
	Uplink2                      = "up1"
	Host2Outside4, Host2Outside6 = "198.51.100.1", "2001:db8:2::1"
	Other4, Other6               = "198.51.100.9", "2001:db8:2::9"

	Bridge2                    = "br1"
	Host2Bridge4, Host2Bridge6 = "172.31.0.1", "fd31::1"
	Container24, Container26   = "172.31.0.2", "fd31::2"
	containers24, containers26 = "172.31.0.0/24", "fd31::/64"
)

// SecondUplink gives the host another link to the outside, with a space at its end. Answers leave over the
// link their question came over.
func (l *Lab) SecondUplink() *Space {
	t := l.Host.t
	t.Helper()
	other := NewSpace(t, "other")
	other.Join("o1", []string{Other4 + "/24", Other6 + "/64"}, l.Host, Uplink2, []string{Host2Outside4 + "/24", Host2Outside6 + "/64"})
	for _, family := range []struct{ flag, from, via string }{{"-4", Host2Outside4, Other4}, {"-6", Host2Outside6, Other6}} {
		l.Host.Run("", "ip", family.flag, "route", "add", "default", "via", family.via, "table", "200")
		l.Host.Run("", "ip", family.flag, "rule", "add", "from", family.from, "lookup", "200")
		other.Run("", "ip", family.flag, "route", "add", "default", "via", family.from)
	}
	l.Outside.route("198.51.100.0/24 via " + HostOutside4)
	l.Outside.route("-6 2001:db8:2::/64 via " + HostOutside6)
	l.Peer.route("198.51.100.0/24 via " + HostTunnel4)
	l.Peer.route("-6 2001:db8:2::/64 via " + HostTunnel6)
	return other
}

// SecondBridge gives the host another bridge with a container behind it.
func (l *Lab) SecondBridge() *Space {
	t := l.Host.t
	t.Helper()
	container := NewSpace(t, "container2")
	l.Host.link(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: Bridge2}}, Host2Bridge4+"/24", Host2Bridge6+"/64")
	container.Join("c0", []string{Container24 + "/24", Container26 + "/64"}, l.Host, "vethd", nil)
	l.Host.Run("", "ip", "link", "set", "vethd", "master", Bridge2)
	container.route("default via " + Host2Bridge4)
	container.route("-6 default via " + Host2Bridge6)
	l.Outside.route(containers24 + " via " + HostOutside4)
	l.Outside.route("-6 " + containers26 + " via " + HostOutside6)
	return container
}

// Route adds a route in words of ip route; "-6 " before them is IPv6's.
func (s *Space) Route(words string) { s.t.Helper(); s.route(words) }

// Sysctl writes a setting below /proc/sys.
func (s *Space) Sysctl(key, value string) {
	s.t.Helper()
	s.Do(func() { must(s.t, os.WriteFile("/proc/sys/"+key, []byte(value), 0o644)) })
}

// Proxy passes TCP connections to listen on to another address, as an engine's userland proxy does: the
// other side sees the host.
func (s *Space) Proxy(listen, to string) {
	s.t.Helper()
	var l net.Listener
	var err error
	s.Do(func() { l, err = net.Listen("tcp", listen) })
	if err != nil {
		s.t.Fatalf("in %s: proxy %s: %v", s.name, listen, err)
	}
	s.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			go s.pass(near, to)
		}
	}()
}

func (s *Space) pass(near net.Conn, to string) {
	defer near.Close()
	var far net.Conn
	var err error
	onThread(func() {
		if err = unix.Setns(int(s.file.Fd()), unix.CLONE_NEWNET); err == nil {
			far, err = net.Dial("tcp", to)
		}
	})
	if err != nil {
		return // the client sees its connection end
	}
	defer far.Close()
	var wg sync.WaitGroup
	for _, pair := range [][2]net.Conn{{near, far}, {far, near}} {
		wg.Go(func() {
			io.Copy(pair[0], pair[1])
			if c, ok := pair[0].(*net.TCPConn); ok {
				c.CloseWrite()
			}
		})
	}
	wg.Wait()
}

// Tun makes a point-to-point link whose other end is the file returned: packets written to it arrive, and
// what leaves is read from it, each a whole IP packet.
func (s *Space) Tun(name string, addresses ...string) *os.File {
	s.t.Helper()
	var file *os.File
	s.Do(func() {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		must(s.t, err)
		request, err := unix.NewIfreq(name)
		must(s.t, err)
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		must(s.t, unix.IoctlIfreq(fd, unix.TUNSETIFF, request))
		file = os.NewFile(uintptr(fd), name)
	})
	s.t.Cleanup(func() { file.Close() })
	s.up(name, addresses)
	return file
}

// Inject puts IP packets on a link, as the machine at its other end would have sent them; near is that
// other end's own link. Nothing checks their addresses: they may be anybody's.
func (s *Space) Inject(near string, to *Space, far string, packets ...[]byte) {
	s.t.Helper()
	var destination []byte
	to.Do(func() {
		l, err := netlink.LinkByName(far)
		must(s.t, err)
		destination = l.Attrs().HardwareAddr
	})
	s.Do(func() {
		l, err := netlink.LinkByName(near)
		must(s.t, err)
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		must(s.t, err)
		defer unix.Close(fd)
		for _, packet := range packets {
			typ := []byte{0x08, 0x00}
			if packet[0]>>4 == 6 {
				typ = []byte{0x86, 0xdd}
			}
			frame := slices.Concat(destination, l.Attrs().HardwareAddr, typ, packet)
			must(s.t, unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: l.Attrs().Index}))
		}
	})
}

// Both writes a port of an address of each family, as a dialler takes it.
func Both(four, six, port string) []string {
	return []string{net.JoinHostPort(four, port), net.JoinHostPort(six, port)}
}

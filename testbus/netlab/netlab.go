// Package netlab is a small internet of network namespaces for tests of packet filters, on one
// kernel and out of reach of the machine's own filter: an outside, a host with an uplink, a container
// behind the host's bridge, and a peer behind the host's tunnel, each with IPv4 and IPv6. It needs
// root and fails the test without it. Spaces vanish with the test; the threads that entered one are
// thrown away.
package netlab

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Addresses of the lab; port numbers are the test's.
const (
	HostOutside4, HostOutside6 = "203.0.113.1", "2001:db8:1::1"
	Outside4, Outside6         = "203.0.113.9", "2001:db8:1::9"
	HostTunnel4, HostTunnel6   = "10.99.0.1", "fd99::1"
	Peer4, Peer6               = "10.99.0.2", "fd99::2"
	HostBridge4, HostBridge6   = "172.30.0.1", "fd30::1"
	Container4, Container6     = "172.30.0.2", "fd30::2"
)

// Names of the host's links. Uplink's is no name that hardware comes under.
const (
	Uplink, Bridge, Tunnel = "up0", "br0", "mesh0"
)

// Lab is the whole.
type Lab struct {
	Outside, Host, Container, Peer *Space
}

// Space is one network namespace.
type Space struct {
	t    testing.TB
	name string
	file *os.File
}

// New builds a Lab that lasts as long as the test.
func New(t testing.TB) *Lab {
	t.Helper()
	lab := &Lab{NewSpace(t, "outside"), NewSpace(t, "host"), NewSpace(t, "container"), NewSpace(t, "peer")}
	lab.Outside.Join("o0", []string{Outside4 + "/24", Outside6 + "/64"}, lab.Host, Uplink, []string{HostOutside4 + "/24", HostOutside6 + "/64"})
	lab.Peer.Join("p0", []string{Peer4 + "/24", Peer6 + "/64"}, lab.Host, Tunnel, []string{HostTunnel4 + "/24", HostTunnel6 + "/64"})
	lab.Host.link(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: Bridge}}, HostBridge4+"/24", HostBridge6+"/64")
	lab.Container.Join("c0", []string{Container4 + "/24", Container6 + "/64"}, lab.Host, "vethc", nil)
	lab.Host.Do(func() {
		bridge, err := netlink.LinkByName(Bridge)
		must(t, err)
		port, err := netlink.LinkByName("vethc")
		must(t, err)
		must(t, netlink.LinkSetMaster(port, bridge))
		for _, key := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
			must(t, os.WriteFile("/proc/sys/net/"+key, []byte("1"), 0o644))
		}
	})
	lab.Host.route("default via " + Outside4)
	lab.Host.route("-6 default via " + Outside6)
	lab.Container.route("default via " + HostBridge4)
	lab.Container.route("-6 default via " + HostBridge6)
	// A neighbour that routes to the container's address.
	lab.Outside.route("172.30.0.0/24 via " + HostOutside4)
	lab.Outside.route("-6 fd30::/64 via " + HostOutside6)
	lab.Peer.route("172.30.0.0/24 via " + HostTunnel4)
	lab.Peer.route("-6 fd30::/64 via " + HostTunnel6)
	return lab
}

// NewSpace makes one empty network namespace with loopback up.
func NewSpace(t testing.TB, name string) *Space {
	t.Helper()
	s := &Space{t: t, name: name}
	var err error
	onThread(func() {
		if err = unix.Unshare(unix.CLONE_NEWNET); err == nil {
			s.file, err = os.Open("/proc/thread-self/ns/net")
		}
	})
	if err != nil {
		t.Fatalf("make network namespace %s (needs root): %v", name, err)
	}
	t.Cleanup(func() { s.file.Close() })
	s.Do(func() {
		lo, err := netlink.LinkByName("lo")
		must(t, err)
		must(t, netlink.LinkSetUp(lo))
	})
	return s
}

// onThread runs fn on a thread that ends with it: it may have changed its namespace.
func onThread(fn func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked
		fn()
	}()
	<-done
}

// Do runs fn on a thread inside the space. Sockets and processes fn makes stay in it; goroutines it
// starts do not.
func (s *Space) Do(fn func()) {
	s.t.Helper()
	var err error
	onThread(func() {
		if err = unix.Setns(int(s.file.Fd()), unix.CLONE_NEWNET); err == nil {
			fn()
		}
	})
	if err != nil {
		s.t.Fatalf("enter network namespace %s: %v", s.name, err)
	}
}

// Run runs a program in the space and fails the test when that fails.
func (s *Space) Run(stdin string, command ...string) string {
	s.t.Helper()
	out, err := s.Try(stdin, command...)
	if err != nil {
		s.t.Fatalf("in %s: %s: %v\n%s", s.name, strings.Join(command, " "), err, out)
	}
	return out
}

// Try runs a program in the space.
func (s *Space) Try(stdin string, command ...string) (out string, err error) {
	s.Do(func() {
		cmd := exec.Command(command[0], command[1:]...)
		cmd.Stdin = strings.NewReader(stdin)
		var b []byte
		b, err = cmd.CombinedOutput()
		out = string(b)
	})
	return out, err
}

func (s *Space) route(words string) {
	s.t.Helper()
	args := []string{"ip"}
	if rest, six := strings.CutPrefix(words, "-6 "); six {
		args, words = append(args, "-6"), rest
	}
	s.Run("", append(append(args, "route", "add"), strings.Fields(words)...)...)
}

// Join connects two spaces with a pair of virtual cables.
func (s *Space) Join(name string, addresses []string, to *Space, far string, farAddresses []string) {
	s.t.Helper()
	s.Do(func() {
		must(s.t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: far, PeerNamespace: netlink.NsFd(to.file.Fd())}))
	})
	s.up(name, addresses)
	to.up(far, farAddresses)
}

func (s *Space) link(l netlink.Link, addresses ...string) {
	s.t.Helper()
	s.Do(func() { must(s.t, netlink.LinkAdd(l)) })
	s.up(l.Attrs().Name, addresses)
}

func (s *Space) up(name string, addresses []string) {
	s.t.Helper()
	s.Do(func() {
		l, err := netlink.LinkByName(name)
		must(s.t, err)
		for _, a := range addresses {
			address, err := netlink.ParseAddr(a)
			must(s.t, err)
			if address.IP.To4() == nil {
				address.Flags = unix.IFA_F_NODAD // usable at once
			}
			must(s.t, netlink.AddrAdd(l, address))
		}
		must(s.t, netlink.LinkSetUp(l))
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("network lab: %v", err)
		runtime.Goexit() // only the throw-away thread; the test goes on to its end as failed
	}
}

// Serve answers every TCP connection and UDP packet to address with what it got, until the test ends.
func (s *Space) Serve(network, address string) {
	s.t.Helper()
	var err error
	s.Do(func() {
		if network == "udp" {
			var c net.PacketConn
			if c, err = net.ListenPacket(network, address); err == nil {
				s.t.Cleanup(func() { c.Close() })
				go echoPackets(c)
			}
			return
		}
		var l net.Listener
		if l, err = net.Listen(network, address); err == nil {
			s.t.Cleanup(func() { l.Close() })
			go echoStreams(l)
		}
	})
	if err != nil {
		s.t.Fatalf("in %s: serve %s: %v", s.name, address, err)
	}
}

func echoPackets(c net.PacketConn) {
	b := make([]byte, 2048)
	for {
		n, from, err := c.ReadFrom(b)
		if err != nil {
			return
		}
		c.WriteTo(b[:n], from)
	}
}

func echoStreams(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			io.Copy(c, c)
		}()
	}
}

// Dial connects from inside the space.
func (s *Space) Dial(network, address string, timeout time.Duration) (c net.Conn, err error) {
	s.Do(func() { c, err = net.DialTimeout(network, address, timeout) })
	return c, err
}

// Ask sends a word to an echo server and wants it back within timeout.
func (s *Space) Ask(network, address string, timeout time.Duration) error {
	c, err := s.Dial(network, address, timeout)
	if err != nil {
		return err
	}
	defer c.Close()
	return Echo(c, timeout)
}

// Echo sends a word over an open connection and wants it back within timeout.
func Echo(c net.Conn, timeout time.Duration) error {
	stop := time.AfterFunc(timeout, func() { c.Close() })
	defer stop.Stop()
	if _, err := c.Write([]byte("word")); err != nil {
		return err
	}
	b := make([]byte, 4)
	if _, err := io.ReadFull(c, b); err != nil {
		return err
	}
	if string(b) != "word" {
		return fmt.Errorf("got %q back", b)
	}
	return nil
}

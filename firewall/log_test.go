package firewall_test

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mesh/firewall"
	"mesh/firewall/internal/nfnetlink"
	"mesh/testbus/netlab"
)

// NET-12: of a burst of refused packets all are counted and a few logged, to a group, so that the log works
// in any network namespace.
func TestRefusalsAreLoggedALittle(t *testing.T) {
	lab := netlab.New(t)
	d := open(t, lab.Host)
	load(t, d, compile(t, firewall.Filter{Outside: []string{netlab.Uplink}}))
	var fd int
	lab.Host.Do(func() { fd = logSocket(t, firewall.LogGroup) })
	if t.Failed() {
		return
	}
	defer unix.Close(fd)
	const sent = 200
	var packets [][]byte
	for range sent {
		packets = append(packets, crafted{source: netlab.Outside4, to: netlab.HostOutside4, protocol: 17, body: udp(9, 3000)}.bytes(0))
	}
	before := counts(t, lab.Host)["refused"].Packets // the links' own chatter
	lab.Outside.Inject("o0", lab.Host, netlab.Uplink, packets...)
	if n := counts(t, lab.Host)["refused"].Packets - before; n < sent || n > sent+10 {
		t.Errorf("%d of %d refused packets are counted", n, sent)
	}
	logged := 0
	buffer := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(fd, buffer, 0)
		if errors.Is(err, unix.EAGAIN) { // nothing more within its time
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		for m := range nfnetlink.Messages(buffer[:n]) {
			const packet, prefix = 4 << 8, 10 // of linux/netfilter/nfnetlink_log.h
			if m.Type != packet {
				continue
			}
			logged++
			for typ, v := range m.Attributes() {
				if typ == prefix && nfnetlink.Text(v) != "mesh refused: " {
					t.Errorf("logged with the prefix %q", nfnetlink.Text(v))
				}
			}
		}
	}
	if logged < 5 || logged > 25 {
		t.Errorf("%d of %d refused packets were logged, want about 20", logged, sent)
	}
}

// logSocket receives what is logged to a group.
func logSocket(t *testing.T, group uint16) int {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	}
	if err == nil {
		wait := unix.NsecToTimeval(int64(500 * time.Millisecond))
		err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait)
	}
	if err != nil {
		t.Errorf("listen to the log: %v", err)
		return fd
	}
	// Bind to the group, whole packets, each sent at once (linux/netfilter/nfnetlink_log.h).
	var w nfnetlink.Buffer
	w.Begin(4<<8|1, unix.NLM_F_ACK, unix.AF_UNSPEC, group)
	w.Bytes(1, []byte{1})
	w.Bytes(2, []byte{0, 0, 0xff, 0xff, 2, 0})
	w.U32(5, 1)
	w.Finish()
	if err := unix.Sendto(fd, w.B, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		t.Errorf("listen to the log: %v", err)
		return fd
	}
	answer := make([]byte, 4096)
	if n, _, err := unix.Recvfrom(fd, answer, 0); err != nil || n < 20 || binary.NativeEndian.Uint32(answer[16:]) != 0 {
		t.Errorf("listen to the log: %x, %v", answer[:max(n, 0)], err)
	}
	return fd
}

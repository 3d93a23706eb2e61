package registry

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// guarded accepts the connections of root and of one other user.
type guarded struct {
	net.Listener
	uid int
}

// Accept closes everybody else's connections.
func (g *guarded) Accept() (net.Conn, error) {
	for {
		c, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		uid, err := peerOf(c)
		if err == nil && (uid == 0 || uid == g.uid) {
			return c, nil
		}
		_ = c.Close() // nobody is told anything
	}
}

var errNoPeer = errors.New("the kernel does not know the other end of the connection")

// peerOf is the user whose socket is the other end of c, which is a connection within this machine.
func peerOf(c net.Conn) (uid int, err error) {
	theirs, err1 := netip.ParseAddrPort(c.RemoteAddr().String())
	ours, err2 := netip.ParseAddrPort(c.LocalAddr().String())
	if err := errors.Join(err1, err2); err != nil {
		return 0, err
	}
	f, err := os.Open("/proc/net/tcp")
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }() // only read
	return ownerIn(f, theirs, ours)
}

// ownerIn finds the user of the socket from local to remote in the kernel's table (proc_net_tcp(5)).
func ownerIn(table io.Reader, local, remote netip.AddrPort) (uid int, err error) {
	from, to := inTable(local), inTable(remote)
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		// sl local_address rem_address st tx:rx tr:tm retrnsmt uid …
		f := strings.Fields(lines.Text())
		if len(f) < 8 || f[1] != from || f[2] != to {
			continue
		}
		if uid, err = strconv.Atoi(f[7]); err != nil {
			return 0, fmt.Errorf("the table of sockets: %w", err)
		}
		return uid, nil
	}
	if err := lines.Err(); err != nil {
		return 0, err
	}
	return 0, errNoPeer
}

// inTable is an address as the table has it: the bytes of the address as a number of the machine.
func inTable(a netip.AddrPort) string {
	b := a.Addr().Unmap().As4()
	return fmt.Sprintf("%08X:%04X", binary.NativeEndian.Uint32(b[:]), a.Port())
}

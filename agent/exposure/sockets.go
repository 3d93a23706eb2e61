package exposure

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"mesh/firewall/evaluate"
)

// Socket is one that listens, or that takes packets from anybody.
type Socket struct {
	Protocol uint8
	Address  netip.Addr
	Port     uint16
	// Program is who has it, as "sshd (612)"; empty when that could not be told.
	Program string
	// Holder is the container it is held for, where it is such a socket.
	Holder Holder
}

// proc is where the kernel tells of sockets and programs.
const proc = "/proc"

// mostSockets bounds how many are kept.
const mostSockets = 10000

// readSockets reads the sockets of the network namespace of the calling thread, with their programs, and the
// containers that podman runs, whose processes it meets on the way.
func readSockets(ctx context.Context) (all []Socket, containers []Holder, err error) {
	all, inodes, err := listSockets(ctx)
	if err != nil {
		return nil, nil, err
	}
	containers, err = nameSockets(ctx, all, inodes)
	return all, containers, err
}

// listSockets leaves out the programs; inodes lead to places in all.
func listSockets(ctx context.Context) (all []Socket, inodes map[string][]int, err error) {
	inodes = map[string][]int{}
	for _, table := range []struct {
		file     string
		protocol uint8
		state    string // the one of a socket that waits for anybody
	}{{"tcp", unix.IPPROTO_TCP, "0A"}, {"tcp6", unix.IPPROTO_TCP, "0A"}, {"udp", unix.IPPROTO_UDP, "07"}, {"udp6", unix.IPPROTO_UDP, "07"}} {
		f, err := os.Open(filepath.Join(proc, "thread-self/net", table.file))
		if errors.Is(err, fs.ErrNotExist) {
			continue // a kernel without IPv6
		}
		if err != nil {
			return nil, nil, err
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() && len(all) < mostSockets {
			words := strings.Fields(lines.Text())
			if len(words) < 10 || words[3] != table.state {
				continue
			}
			local, ok := address(words[1])
			if !ok {
				continue
			}
			inodes[words[9]] = append(inodes[words[9]], len(all))
			all = append(all, Socket{Protocol: table.protocol, Address: local.Addr(), Port: local.Port()})
		}
		err = errors.Join(lines.Err(), f.Close())
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", table.file, err)
		}
	}
	return all, inodes, ctx.Err()
}

// address reads "0100007F:0016": each 4 bytes are in the machine's order.
func address(text string) (netip.AddrPort, bool) {
	host, port, _ := strings.Cut(text, ":")
	b, err := hex.DecodeString(host)
	n, errPort := strconv.ParseUint(port, 16, 16)
	if err != nil || errPort != nil || len(b)%4 != 0 {
		return netip.AddrPort{}, false
	}
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		for i := 0; i+4 <= len(b); i += 4 {
			slices.Reverse(b[i : i+4])
		}
	}
	a, ok := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(a, uint16(n)), ok
}

// nameSockets finds the programs that have the sockets. What ends meanwhile, or may not be looked at, is
// left without a name.
func nameSockets(ctx context.Context, all []Socket, inodes map[string][]int) (containers []Holder, err error) {
	processes, err := os.ReadDir(proc)
	if err != nil {
		return nil, err
	}
	for _, p := range processes {
		if _, err := strconv.Atoi(p.Name()); err != nil {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		name, beside := programName(p.Name())
		if beside.Container != "" {
			containers = append(containers, beside)
		}
		folder := filepath.Join(proc, p.Name(), "fd")
		files, err := os.ReadDir(folder)
		if err != nil {
			continue
		}
		for _, f := range files {
			target, err := os.Readlink(filepath.Join(folder, f.Name()))
			if err != nil {
				continue
			}
			inode, is := strings.CutPrefix(target, "socket:[")
			if !is {
				continue
			}
			for _, i := range inodes[strings.TrimSuffix(inode, "]")] {
				if all[i].Program == "" { // the first one: systemd opens it for others
					all[i].Program, all[i].Holder = name, beside
				}
			}
		}
	}
	return containers, nil
}

// programName is a process in words, and the container that it is beside.
func programName(pid string) (name string, beside Holder) {
	b, err := os.ReadFile(filepath.Join(proc, pid, "comm"))
	if err != nil {
		return "process " + pid, Holder{}
	}
	comm := strings.TrimSpace(string(b))
	return comm + " (" + pid + ")", holder(pid, comm)
}

// reachable says whether somebody on the link can ask for the socket's address: Linux takes packets to
// any of its addresses over any link, but for those of loopback.
func (s Socket) reachable(m *Machine, link string) bool {
	a := s.Address.Unmap()
	switch {
	case a.IsLoopback():
		return false
	case a.IsLinkLocalUnicast():
		l := m.link(link)
		return l != nil && slices.ContainsFunc(l.Addresses, func(p netip.Prefix) bool { return p.Addr() == a })
	case a.IsMulticast():
		return false
	}
	return true
}

// takes says whether the socket takes packets of the family: one of IPv6 for every address takes IPv4
// too, unless there is another for it.
func (s Socket) takes(six bool, all []Socket) bool {
	a := s.Address
	if a.Is4In6() || a.Is4() {
		return !six
	}
	if six || !a.IsUnspecified() {
		return six
	}
	return !slices.ContainsFunc(all, func(o Socket) bool { return o.Protocol == s.Protocol && o.Port == s.Port && o.Address.Is4() })
}

// listening names the programs that a packet over the link to a port comes to.
func (m *Machine) listening(link string, six bool, protocol uint8, port uint16) (programs []string) {
	for _, s := range m.Sockets {
		if s.Protocol != protocol || s.Port != port || !s.reachable(m, link) || !s.takes(six, m.Sockets) {
			continue
		}
		name := s.Program
		if name == "" {
			name = "a program"
		}
		if a := s.Address.Unmap(); !a.IsUnspecified() {
			name += " on " + a.String()
		}
		if !slices.Contains(programs, name) {
			programs = append(programs, name)
		}
	}
	return programs
}

// after is the port a packet arrives at, behind what redirects it.
func after(a evaluate.Answer, asked uint16) uint16 {
	if len(a.NAT) > 0 && a.Way == evaluate.Input {
		return a.To.Port()
	}
	return asked
}

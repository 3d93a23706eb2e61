package firewall

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"mesh/firewall/internal/nfnetlink"
)

// watchBuffer takes what a large foreign load says; with the default a single one overflows it.
const watchBuffer = 8 << 20

// Event says that somebody else committed a change to the rule set, perhaps to another table.
type Event struct {
	// Process is the name of the process that did it, empty when the kernel lost count of events:
	// then look.
	Process string
	PID     int
}

// Watch delivers an Event after commits of others until ctx ends or the socket fails, then closes the
// channel. Commits that come while the reader is busy are one Event, the newest. It runs one
// goroutine.
func (d *Driver) Watch(ctx context.Context) (<-chan Event, error) {
	fd, err := watchSocket(watchBuffer)
	if err != nil {
		return nil, fmt.Errorf("watch packet filter: %w", err)
	}
	return d.watch(ctx, fd)
}

// watch is Watch over the socket fd, which it closes.
func (d *Driver) watch(ctx context.Context, fd int) (<-chan Event, error) {
	// os.File on a socket that does not block waits in Go's poller, so that Close ends the wait.
	file := os.NewFile(uintptr(fd), "netfilter events")
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("watch packet filter: %w", errors.Join(err, file.Close()))
	}
	events := make(chan Event, 1)
	stop := context.AfterFunc(ctx, func() { file.Close() })
	go func() {
		defer close(events)
		defer file.Close()
		defer stop()
		buffer := make([]byte, 16<<10)
		for {
			var n int
			var errRead error
			err := raw.Read(func(fd uintptr) bool {
				n, _, errRead = unix.Recvfrom(int(fd), buffer, 0)
				return !errors.Is(errRead, unix.EAGAIN)
			})
			switch {
			case err != nil:
				return // closed
			case errors.Is(errRead, unix.EINTR):
				continue
			case errors.Is(errRead, unix.ENOBUFS): // some events are lost
				post(events, Event{})
				continue
			case errRead != nil:
				post(events, Event{})
				return
			}
			for m := range nfnetlink.Messages(buffer[:n]) {
				if e, ok := committed(m, d.kernel.Port()); ok {
					post(events, e)
				}
			}
		}
	}()
	return events, nil
}

// post replaces an event nobody took yet: they all mean "look". It is the channel's only sender.
func post(events chan Event, e Event) {
	select {
	case <-events:
	default:
	}
	events <- e
}

// committed reads the end of a commit. Its header names the socket that asked for it: ours is no news.
func committed(m nfnetlink.Message, own uint32) (e Event, ok bool) {
	if m.Type != unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN || m.Port == own {
		return e, false
	}
	for typ, v := range m.Attributes() {
		switch typ {
		case unix.NFTA_GEN_PROC_PID:
			e.PID = int(nfnetlink.Number(v))
		case unix.NFTA_GEN_PROC_NAME:
			e.Process = nfnetlink.Text(v)
		}
	}
	return e, true
}

func watchSocket(size int) (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	err = func() error {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, size); err != nil {
			return os.NewSyscallError("setsockopt SO_RCVBUFFORCE", err)
		}
		// Only the end of a commit is taken: loads of thousands of rules by others cost one wake-up.
		// The filter reads in network order what netlink writes in the machine's.
		var typ [2]byte
		binary.NativeEndian.PutUint16(typ[:], unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN)
		program := []unix.SockFilter{
			{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: 4},
			{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: uint32(binary.BigEndian.Uint16(typ[:]))},
			{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff},
			{Code: unix.BPF_RET | unix.BPF_K, K: 0},
		}
		if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}); err != nil {
			return os.NewSyscallError("setsockopt SO_ATTACH_FILTER", err)
		}
		if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
			return os.NewSyscallError("bind", err)
		}
		return os.NewSyscallError("setsockopt NETLINK_ADD_MEMBERSHIP",
			unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, unix.NFNLGRP_NFTABLES))
	}()
	if err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

package link

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"mesh/shared/clock"
)

const (
	// quiet is how long nothing may have happened before the last hint: one change comes as many messages.
	quiet = 20 * time.Millisecond
	// patience is how long a hint may be put off by messages that do not end; NET-5 gives 1 s for all.
	patience = 500 * time.Millisecond
)

// groups are the kernel's multicast groups that bear on Outside (rtnetlink(7)).
var groups = [...]uint{
	unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
	unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_NEXTHOP,
}

// Watch sends a hint on the channel when links, addresses or wide routes begin to change, so that a card is
// known before it is used, and another when a short quiet followed. One hint waits at most; a slow reader loses none that matters. The channel closes when ctx
// ends, or when watching is no longer possible: then failed is told once, before.
func Watch(ctx context.Context, clk clock.Clock, failed func(error)) (<-chan struct{}, error) {
	socket, err := listen()
	if err != nil {
		return nil, fmt.Errorf("watch links: %w", err)
	}
	events := make(chan struct{}, 1)
	hints := make(chan struct{}, 1)
	stop := context.AfterFunc(ctx, func() { socket.Close() }) // ends the read; nothing to lose
	go func() {
		defer close(events)
		defer socket.Close()
		defer stop()
		if err := receive(socket, events); ctx.Err() == nil {
			failed(fmt.Errorf("watch links: %w", err))
		}
	}()
	go func() {
		defer close(hints)
		settle(ctx, clk, events, hints)
	}()
	return hints, nil
}

// listen opens the one socket for all groups, in the namespace of the calling thread.
func listen() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	var mask uint32
	for _, g := range groups {
		mask |= 1 << (g - 1)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: mask}); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "rtnetlink"), nil
}

// receive sends one event for any number of messages that matter, until the socket ends.
func receive(socket io.Reader, events chan<- struct{}) error {
	buf := make([]byte, 16<<10)
	for {
		n, err := socket.Read(buf)
		// ENOBUFS: the kernel dropped messages, so anything may have happened. The socket goes on.
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			return err
		}
		if err != nil || matters(buf[:n]) {
			select {
			case events <- struct{}{}:
			default: // one is waiting already
			}
		}
	}
}

// matters reports whether one of the messages could change what Read gives. Only narrow routes cannot:
// they come and go with every container and, on a router, by the thousand. What cannot be read matters.
func matters(b []byte) bool {
	for len(b) >= unix.SizeofNlMsghdr {
		size := int(binary.NativeEndian.Uint32(b))
		kind := binary.NativeEndian.Uint16(b[4:])
		if size < unix.SizeofNlMsghdr || size > len(b) {
			return true
		}
		narrow := (kind == unix.RTM_NEWROUTE || kind == unix.RTM_DELROUTE) &&
			size >= unix.SizeofNlMsghdr+unix.SizeofRtMsg && b[unix.SizeofNlMsghdr+1] > wide // rtm_dst_len
		if !narrow {
			return true
		}
		b = b[min((size+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1), len(b)):]
	}
	return len(b) > 0
}

// settle turns a burst of events into two hints, where it begins and where it ends.
func settle(ctx context.Context, clk clock.Clock, events <-chan struct{}, hints chan<- struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case _, ok := <-events:
			if !ok {
				return
			}
		}
		hint(hints)
		latest := clk.After(patience)
		for calm := clk.After(quiet); calm != nil; {
			select {
			case <-ctx.Done():
				return
			case _, ok := <-events:
				calm = clk.After(quiet)
				if !ok {
					calm = nil
				}
			case <-calm:
				calm = nil
			case <-latest:
				calm = nil
			}
		}
		hint(hints)
	}
}

// hint leaves word unless there is one already.
func hint(hints chan<- struct{}) {
	select {
	case hints <- struct{}{}:
	default:
	}
}
